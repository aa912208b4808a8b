package executor_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
	"github.com/millrace/millrace/worker/workertest"
)

// distant is a space that the CPU cannot address directly.
type distant struct {
	mu   sync.Mutex
	data []byte
}

func (d *distant) Size() uint64                { return uint64(len(d.data)) }
func (d *distant) Identity() memory.Identity   { return memory.Identity{Nonce: 5} }
func (d *distant) Bytes(uint64, uint64) []byte { return nil }
func (d *distant) FD() int                     { return -1 }

func (d *distant) ReadInto(off uint64, p []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(p, d.data[off:])
	return nil
}

func (d *distant) WriteFrom(off uint64, p []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.data[off:], p)
	return nil
}

// rig is a set of pools over memory on a device, with one process of the echo executor.
type rig struct {
	*executor.Pools
	space   *distant
	objects *store.Store
	results chan executor.Result
	logs    *tasklog.Logs
	// reservation is the reservation of the runs; 0: they have none.
	reservation ledger.ReservationID
}

var buildEcho = sync.OnceValues(func() (binary string, err error) {
	if echoDir, err = os.MkdirTemp("", "millrace-echo-"); err != nil {
		return "", err
	}
	binary = filepath.Join(echoDir, "echo")
	out, err := osexec.Command("go", "build", "-o", binary, "./executortest/echo").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, nil
})

// echoDir is the directory in which the echo executor is built. TestMain removes it.
var echoDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if echoDir != "" {
		_ = os.RemoveAll(echoDir) // it is ours
	}
	os.Exit(code)
}

func newRig(t *testing.T, env ...string) *rig {
	t.Helper()
	return newRigOf(t, []string{"echo"}, env...)
}

// newRigOf is newRig with these kinds of executors. All of them run the same program.
func newRigOf(t *testing.T, kinds []string, env ...string) *rig {
	t.Helper()
	binary, err := buildEcho()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{space: &distant{data: make([]byte, 4<<20)}, results: make(chan executor.Result, 100), logs: new(tasklog.Logs)}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	if r.objects, err = store.New(r.space, log); err != nil {
		t.Fatal(err)
	}
	commands := make(map[string][]string)
	for _, kind := range kinds {
		commands[kind] = []string{binary}
	}
	r.Pools, err = executor.New(executor.Config{
		Worker: "w", Commands: commands, Processes: 1, Env: env, Scratch: t.TempDir(), Store: r.objects,
		Logs: r.logs, Log: log, MemoryWait: time.Millisecond, ReadyTimeout: workertest.EventTimeout,
		Device: &executor.Device{UUID: [16]byte{1}, Visible: "GPU-x", Handle: []byte{0xab}, Driver: "libcuda.so.1", ArenaBytes: 77, ArenaLibraries: []string{"cupy", "torch"}},
		Done: func(results []executor.Result) {
			for _, x := range results {
				if !x.Called { // a slow machine reports the call before the end
					r.results <- x
				}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Registered(1, 1<<10)
	t.Cleanup(func() {
		r.Close()
		r.objects.Close()
	})
	return r
}

func object(task int) ledger.ObjectID {
	return ledger.ObjectID{Task: ids.TaskID(task), Generation: 1}
}

func (r *rig) call(t *testing.T, task int, op string, arguments ...string) executor.Result {
	t.Helper()
	return r.callOn(t, task, op, 0, arguments...)
}

// callOn is call with the object of another task as the only input; 0: no input.
func (r *rig) callOn(t *testing.T, task int, op string, input int, arguments ...string) executor.Result {
	t.Helper()
	var a millracev1.Arguments
	for _, s := range arguments {
		a.Positional = append(a.Positional, &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: s}})
	}
	b, err := proto.Marshal(&a)
	if err != nil {
		t.Fatal(err)
	}
	run := &executor.Run{
		Ref:       lifecycle.Ref{Task: ids.TaskID(task), Attempt: 1},
		Op:        &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_EXEC, Name: "echo/" + op},
		Arguments: b, Reservation: r.reservation,
	}
	if input != 0 {
		o, ok := r.objects.Lookup(object(input))
		if !ok {
			t.Fatalf("task %d has no object", input)
		}
		in := &executorv1.ExecutorInput{Header: o.Header}
		for _, f := range o.Frames {
			in.Frames = append(in.Frames, &executorv1.FrameLocation{Offset: f.Offset, SizeBytes: f.Bytes})
		}
		run.Inputs, run.InputObjects = append(run.Inputs, in), append(run.InputObjects, object(input))
	}
	r.Start("echo", 0, run)
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for {
		select {
		case out := <-r.results:
			return out
		case now := <-ticks.C: // ends waits for memory that exceed their deadline
			r.objects.Tick(now)
		}
	}
}

func (r *rig) held() uint64 {
	books, _, _ := r.objects.Stats()
	return books.HeldBytes
}

func TestExecutorIsToldOfTheSlabOnAGPU(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	out := r.call(t, 1, "device")
	var v millracev1.Value
	if out.Error != nil || proto.Unmarshal(out.Inline, &v) != nil || v.GetStringValue() != "ab MILLRACE 77 [cupy torch] 1 GPU-x" {
		t.Errorf("it was told %q, %v", v.GetStringValue(), out.Error)
	}
}

// Processes of another kind keep memory on the GPU as well, even while they run nothing.
func TestExecutorCountIncludesAllKinds(t *testing.T) {
	r := newRigOf(t, []string{"echo", "other", "third"}, "ECHO_DEVICE=yes")
	out := r.call(t, 1, "device")
	var v millracev1.Value
	if out.Error != nil || proto.Unmarshal(out.Inline, &v) != nil || !strings.HasSuffix(v.GetStringValue(), " 3 GPU-x") {
		t.Errorf("it was told %q, %v", v.GetStringValue(), out.Error)
	}
}

func TestResultsOnAGPUAreNotLookedAt(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	content := strings.Repeat("0123456789", 20_000)
	out := r.call(t, 1, "inline", content)
	if out.Error != nil || out.Bytes < uint64(len(content)) {
		t.Fatalf("got %+v", out)
	}
	o, ok := r.objects.Lookup(object(1))
	if !ok || len(o.Frames) != 1 {
		t.Fatalf("stored as %+v, %v", o, ok)
	}
	got := make([]byte, len(content))
	if err := r.space.ReadInto(o.Frames[0].Offset, got); err != nil || string(got) != content {
		t.Error("what came over the link is not in the slab")
	}
	// An object on a device is not sent inline, however small it is.
	if out = r.call(t, 2, "lease"); out.Error != nil || out.Inline != nil || out.Bytes < 4096 {
		t.Errorf("got %+v", out)
	}
}

func TestLeasesEndWhenReleasedOrWithTheProcess(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	if out := r.call(t, 1, "hoard"); out.Error != nil {
		t.Fatal(out.Error)
	}
	if held := r.held(); held != 1<<16 {
		t.Fatalf("%d bytes are held by a lease of 64 KiB", held)
	}
	// The process handles the release before this run, so its effect is visible after the run.
	if out := r.call(t, 2, "release"); out.Error != nil {
		t.Fatal(out.Error)
	}
	if held := r.held(); held != 0 {
		t.Fatalf("%d bytes are held after the release", held)
	}
	if out := r.call(t, 3, "twice"); out.Error.GetReason() != "EXECUTOR_ERROR" || !strings.Contains(out.Error.GetMessage(), "by which it has some") {
		t.Errorf("got %v", out.Error)
	}
	if out := r.call(t, 4, "lease"); out.Error != nil {
		t.Fatal(out.Error)
	}
	if held := r.held(); held != 2<<16 {
		t.Fatalf("%d bytes are held by a lease of 64 KiB and a result that was one", held)
	}
	if out := r.call(t, 5, "kill"); out.Outcome != lifecycle.ExecutorDied {
		t.Fatalf("got %+v", out)
	}
	// The result outlives the process and its leases.
	if held := r.held(); held != 1<<16 {
		t.Errorf("%d bytes are held by a result in what was leased", held)
	}
	r.objects.Drop(object(4))
	if held := r.held(); held != 0 {
		t.Errorf("%d bytes are held by nobody", held)
	}
}

func TestInputThatOutlivesItsRunStays(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	const size = 100_000
	if out := r.call(t, 1, "inline", strings.Repeat("x", size)); out.Error != nil {
		t.Fatal(out.Error)
	}
	for _, task := range []int{2, 3} {
		if out := r.callOn(t, task, "keep", 1); out.Error != nil {
			t.Fatal(out.Error)
		}
	}
	o, _ := r.objects.Lookup(object(1))
	at := o.Frames[0]
	full := r.held()
	r.objects.Drop(object(1))
	if held := r.held(); held != full {
		t.Fatalf("%d of %d bytes are held of an input that the process looks at", held, full)
	}
	if out := r.call(t, 4, "unkeep", "2"); out.Error != nil {
		t.Fatal(out.Error)
	}
	if held := r.held(); held != full {
		t.Fatalf("%d of %d bytes are held of an input that was kept twice and given back once", held, full)
	}
	var there [3]byte
	if err := r.space.ReadInto(at.Offset, there[:]); err != nil || string(there[:]) != "xxx" {
		t.Errorf("%q lies there: %v", there, err)
	}
	if out := r.call(t, 5, "unkeep", "3"); out.Error != nil {
		t.Fatal(out.Error)
	}
	if held := r.held(); held != 0 {
		t.Fatalf("%d bytes are held after all was given back", held)
	}
	// The death of the process ends the lease as well.
	if out := r.call(t, 6, "inline", strings.Repeat("y", size)); out.Error != nil {
		t.Fatal(out.Error)
	}
	if out := r.callOn(t, 7, "keep", 6); out.Error != nil {
		t.Fatal(out.Error)
	}
	r.objects.Drop(object(6))
	if held := r.held(); held != full {
		t.Fatalf("%d of %d bytes are held", held, full)
	}
	if out := r.call(t, 8, "kill"); out.Outcome != lifecycle.ExecutorDied {
		t.Fatalf("got %+v", out)
	}
	if held := r.held(); held != 0 {
		t.Errorf("%d bytes are held by nobody", held)
	}
}

func TestNoResultLiesInMemoryThatItsProcessKeeps(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	out := r.call(t, 1, "retain")
	if out.Error.GetReason() != "EXECUTOR_ERROR" || !strings.Contains(out.Error.GetMessage(), "releases in the same message") {
		t.Errorf("a result was taken that its process can still write to: %+v", out)
	}
}

func TestLeaseThatFindsNoRoomIsRefused(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	for i := range 64 {
		if out := r.call(t, 1+i, "lease"); out.Error != nil {
			if out.Error.GetReason() != "OUT_OF_MEMORY" {
				t.Errorf("got %v", out.Error)
			}
			return
		}
	}
	t.Error("64 leases of 64 KiB fit into 4 MiB with a header")
}

func TestProcessesAreAskedForWhatTheyDoNotUse(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	r.ReleaseUnused() // no process holds memory yet
	if out := r.call(t, 1, "hoard"); out.Error != nil {
		t.Fatal(out.Error)
	}
	r.ReleaseUnused()
	// The request reaches the process before this run, and its answer comes before the run's
	// result.
	if out := r.call(t, 2, "env", "HOME"); out.Error != nil {
		t.Fatal(out.Error)
	}
	if held := r.held(); held != 0 {
		t.Errorf("%d bytes are held after the process was asked to give them back", held)
	}
}

// rest is the whole slab of the rig except its header, provided that nothing else is in the slab.
var rest = []uint64{2 << 20, 2<<20 - 8<<10}

// wait requests memory for a holder that is neither a task nor an executor, and returns the channel
// for the answer. The request is waiting when the function returns.
func (r *rig) wait(t *testing.T, sizes ...uint64) <-chan store.ReservationResult {
	t.Helper()
	results := make(chan store.ReservationResult, 2)
	id, progress, err := r.objects.Acquire(store.Request{Holder: ledger.Holder{Kind: ledger.HolderWorker, ID: 7}, Bytes: sizes, Deadline: time.Now().Add(time.Hour)},
		func(x store.ReservationResult) { results <- x })
	if err != nil || progress != ledger.Waiting {
		t.Fatalf("a request for all memory stands %v, %v", progress, err)
	}
	t.Cleanup(func() { r.objects.Release(id) })
	return results
}

// granted waits until a request for memory was granted, and advances the time of the store
// meanwhile.
func (r *rig) granted(t *testing.T, results <-chan store.ReservationResult) {
	t.Helper()
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for limit := time.After(workertest.EventTimeout); ; {
		select {
		case x := <-results:
			if x.Err != nil || !x.Ready {
				t.Fatalf("the reservation ended with %+v", x)
			}
			return
		case now := <-ticks.C:
			r.objects.Tick(now)
		case <-limit:
			t.Fatalf("nobody asked the executor for what it keeps: %+v", r.objects.Snapshot(3))
		}
	}
}

func TestAnybodyWhoWaitsHasExecutorsAskedForWhatTheyKeep(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	if out := r.call(t, 1, "spare"); out.Error != nil {
		t.Fatal(out.Error)
	}
	r.granted(t, r.wait(t, rest...))
}

func TestExecutorsAreAskedAgainWhileSomebodyWaits(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	first, granted, err := r.objects.Reserve(ledger.Holder{Kind: ledger.HolderWorker, ID: 8}, rest[1:], time.Time{}, nil)
	if !granted || err != nil {
		t.Fatal(err)
	}
	results := r.wait(t, rest...) // no executor holds memory yet
	if out := r.call(t, 1, "hoard"); out.Error != nil {
		t.Fatal(out.Error)
	}
	r.objects.Release(first)
	r.granted(t, results)
}

func TestMemoryThatAnExecutorKeepsIsNotTakenFromThoseWhoWait(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	first, granted, err := r.objects.Reserve(ledger.Holder{Kind: ledger.HolderWorker, ID: 8}, rest[1:], time.Time{}, nil)
	if !granted || err != nil {
		t.Fatal(err)
	}
	results := r.wait(t, rest...)
	out := r.call(t, 1, "spare")
	if out.Error.GetReason() != "OUT_OF_MEMORY" || !strings.Contains(out.Error.GetMessage(), "not free at once") {
		t.Errorf("it got memory before those who wait for it: %v", out.Error)
	}
	r.objects.Release(first)
	r.granted(t, results)
}

// A run whose process waits for memory would otherwise wait for the memory that is set aside for
// its own result.
func TestLeaseTakesTheMemoryThatIsReservedForTheResult(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	var granted bool
	var err error
	r.reservation, granted, err = r.objects.Reserve(ledger.Holder{Kind: ledger.HolderWorker, ID: 8}, rest, time.Time{}, nil)
	if !granted || err != nil {
		t.Fatal(err)
	}
	if out := r.call(t, 1, "hoard"); out.Error != nil {
		t.Error(out.Error)
	}
	r.objects.Release(r.reservation)
}

func TestLeaseThatDoesNotWait(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	if out := r.call(t, 1, "greedy"); out.Error != nil {
		t.Fatal(out.Error)
	}
	if out := r.call(t, 2, "greedy"); out.Error.GetReason() != "OUT_OF_MEMORY" || !strings.Contains(out.Error.GetMessage(), "not free at once") {
		t.Errorf("got %v", out.Error)
	}
	books, _, _ := r.objects.Stats()
	if books.Waiting != 0 || books.ReservedBytes != 0 {
		t.Errorf("something is left: %+v", books)
	}
}

func TestLastWordsAreThoseOfTheRunThatDied(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	// Output of the first task may be read between the task's end and its result, before any task
	// counts as ended. So two tasks write, and the words of the second one are awaited: those of
	// the first one come before them through the pipe.
	for task, text := range []string{"by another task", "by another task, the last"} {
		if out := r.call(t, 1+task, "log", text); out.Error != nil {
			t.Fatal(out.Error)
		}
	}
	for !strings.Contains(r.logs.Tail(1, 1)+r.logs.Tail(2, 1), "another task, the last") {
		runtime.Gosched()
	}
	out := r.call(t, 3, "kill")
	if out.Outcome != lifecycle.ExecutorDied || strings.Contains(out.Error.GetMessage(), "another task") {
		t.Errorf("got %+v", out)
	}
}

func TestExecutorThatDidNotOpenTheSlabIsRefused(t *testing.T) {
	r := newRig(t)
	out := r.call(t, 1, "device")
	if out.Outcome != lifecycle.ExecutorDied || !strings.Contains(out.Error.GetMessage(), "ready.device_opened") {
		t.Errorf("got %+v", out)
	}
}

// Processes forget functions that no task refers to any more, and receive them again when they are
// needed again.
func TestFunctionsAreForgotten(t *testing.T) {
	r := newRig(t, "ECHO_DEVICE=yes")
	task := 0
	functions := func(f *millracev1.Function) string {
		t.Helper()
		task++
		r.Start("echo", 0, &executor.Run{
			Ref: lifecycle.Ref{Task: ids.TaskID(task), Attempt: 1}, Function: f,
			Op: &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_EXEC, Name: "echo/functions", Function: f.GetHash()},
		})
		out := <-r.results
		var v millracev1.Value
		if out.Error != nil || proto.Unmarshal(out.Inline, &v) != nil {
			t.Fatal(out.Error)
		}
		return v.GetStringValue()
	}
	var hashes [][]byte
	for i := range 5 {
		f := &millracev1.Function{Hash: bytes.Repeat([]byte{byte(i)}, 32), Payload: []byte("x")}
		hashes = append(hashes, f.Hash)
		if got := functions(f); got != fmt.Sprint(i+1) {
			t.Errorf("it has %s functions", got)
		}
	}
	r.DropFunctions(hashes[1:])
	if got := functions(nil); got != "1" {
		t.Errorf("it has %s functions", got)
	}
	if got := functions(&millracev1.Function{Hash: hashes[3], Payload: []byte("x")}); got != "2" {
		t.Errorf("it has %s functions", got)
	}
	// Functions that were dropped and are needed again before the process was told.
	r.DropFunctions(hashes)
	if got := functions(&millracev1.Function{Hash: hashes[3], Payload: []byte("x")}); got != "1" {
		t.Errorf("it has %s functions", got)
	}
}
