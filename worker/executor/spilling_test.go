package executor_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/disk"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
	"github.com/millrace/millrace/worker/workertest"
)

// spilling is a process with leases of its own in a slab of 4 MiB above a disk tier,
// and the expected contents of its results.
type spilling struct {
	t *testing.T
	*executor.Pools
	objects *store.Store
	results chan executor.Result
	tasks   int
	// ordinal counts the runs of the current process.
	ordinal int
	// content is the expected content of results, by task. hoards and keeps are the ordinals of the
	// runs in which the process allocated memory of its own, or kept an input.
	content       map[int][]byte
	hoards, keeps []int
}

func newSpilling(t *testing.T) *spilling {
	t.Helper()
	binary, err := buildEcho()
	if err != nil {
		t.Fatal(err)
	}
	slab, err := host.NewSlab(4<<20, memory.Identity{Nonce: 5})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slab.Close(); err != nil {
			t.Error(err)
		}
	})
	tier, err := disk.Open(disk.Config{Directory: t.TempDir(), SizeBytes: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tier.Close(); err != nil {
			t.Error(err)
		}
	})
	log := slog.New(slog.DiscardHandler)
	l := &spilling{t: t, results: make(chan executor.Result, 100), content: make(map[int][]byte)}
	if l.objects, err = store.New(slab, log, tier); err != nil {
		t.Fatal(err)
	}
	l.Pools, err = executor.New(executor.Config{
		Worker: "w", Commands: map[string][]string{"echo": {binary}}, Processes: 1, Scratch: t.TempDir(), Store: l.objects,
		Logs: new(tasklog.Logs), Log: log, MemoryWait: workertest.EventTimeout, ReadyTimeout: workertest.EventTimeout,
		Done: func(results []executor.Result) {
			for _, x := range results {
				if !x.Called { // a slow machine reports the call before the end
					l.results <- x
				}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Registered(1, 1<<10)
	t.Cleanup(func() {
		l.Close()
		l.objects.Close()
	})
	return l
}

// await waits for a value, and advances the time of the store meanwhile.
func await[T any](l *spilling, from <-chan T) T {
	l.t.Helper()
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for limit := time.After(workertest.EventTimeout); ; {
		select {
		case x := <-from:
			return x
		case now := <-ticks.C:
			l.objects.Tick(now)
		case <-limit:
			l.t.Fatalf("the work has stopped: %+v", l.objects.Snapshot(10))
		}
	}
}

// room reserves memory, with the inputs in the slab, and returns the function that releases it.
func (l *spilling) room(inputs []ledger.ObjectID, sizes ...uint64) func() {
	l.t.Helper()
	results := make(chan store.ReservationResult, 4)
	id, progress, err := l.objects.Acquire(store.Request{
		Holder: ledger.Holder{Kind: ledger.HolderWorker, ID: 7}, Bytes: sizes, Inputs: inputs, Deadline: time.Now().Add(time.Hour),
	}, func(x store.ReservationResult) { results <- x })
	for progress != ledger.Ready {
		if err != nil {
			l.t.Fatal(err)
		}
		x := await(l, results)
		if err = x.Err; x.Ready {
			progress = ledger.Ready
		}
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return func() { l.objects.Release(id) }
}

// run calls an operation with a text, or with the result of a task as the input; 0: no input.
func (l *spilling) run(op, text string, input int) executor.Result {
	l.t.Helper()
	l.tasks++
	l.ordinal++
	a := &millracev1.Arguments{}
	if text != "" {
		a.Positional = append(a.Positional, &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: text}})
	}
	b, err := proto.Marshal(a)
	if err != nil {
		l.t.Fatal(err)
	}
	run := &executor.Run{
		Ref:       lifecycle.Ref{Task: ids.TaskID(l.tasks), Attempt: 1},
		Op:        &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_EXEC, Name: "echo/" + op},
		Arguments: b,
	}
	if input != 0 {
		defer l.room([]ledger.ObjectID{object(input)})()
		o, ok := l.objects.Lookup(object(input))
		if !ok || !o.InSlab {
			l.t.Fatalf("the input of task %d is %+v, %v", l.tasks, o, ok)
		}
		in := &executorv1.ExecutorInput{Header: o.Header}
		for _, f := range o.Frames {
			in.Frames = append(in.Frames, &executorv1.FrameLocation{Offset: f.Offset, SizeBytes: f.Bytes})
		}
		run.Inputs, run.InputObjects = append(run.Inputs, in), append(run.InputObjects, object(input))
	}
	l.Start("echo", 0, run)
	return await(l, l.results)
}

func (l *spilling) must(op, text string, input int) {
	l.t.Helper()
	if out := l.run(op, text, input); out.Error != nil {
		l.t.Fatalf("%s: %v", op, out.Error)
	}
}

// read compares a result with its expected content.
func (l *spilling) read(task int) {
	l.t.Helper()
	defer l.room([]ledger.ObjectID{object(task)})()
	o, ok := l.objects.Lookup(object(task))
	if !ok || !o.InSlab {
		l.t.Fatalf("the result of task %d is %+v, %v", task, o, ok)
	}
	if got := bytes.Join(l.objects.Views(o.Frames), nil); !bytes.Equal(got, l.content[task]) {
		l.t.Fatalf("the result of task %d has other bytes than were written", task)
	}
}

// scattered is 1 MiB in pieces that have room wherever the memory lies that a process keeps:
// 4 leases of 64 KiB and 2 inputs of at most 320 KiB leave more than 3 MiB of the slab, in at most
// 7 places. One piece of 1 MiB need not have room: the places depend on how fast others left.
var scattered = []uint64{256 << 10, 256 << 10, 256 << 10, 256 << 10}

// Results in memory that an executor had leased are spilled and restored like all others, without a
// change, independent of other leases of the executor and of the time of its death.
func TestResultsInLeasesLeaveTheSlab(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { leaveAndComeBack(t, seed) })
	}
}

func leaveAndComeBack(t *testing.T, seed uint64) {
	t.Helper()
	l := newSpilling(t)
	rng := rand.New(rand.NewPCG(seed, 15))
	some := func() int {
		tasks := slices.Sorted(maps.Keys(l.content))
		if len(tasks) == 0 {
			return 0
		}
		return tasks[rng.IntN(len(tasks))]
	}
	for range 250 {
		task := some()
		switch n := rng.IntN(100); {
		case n < 45 || task == 0:
			op := []string{"lease", "slab"}[rng.IntN(2)]
			text := string(bytes.Repeat([]byte{'a' + byte(rng.IntN(26))}, 20_000+rng.IntN(300_000)))
			l.must(op, text, 0)
			l.content[l.tasks] = []byte(text)
		case n < 55:
			l.must("alias", "", task)
			l.content[l.tasks] = l.content[task][len(l.content[task])/2:]
		case n < 62 && len(l.hoards) < 4:
			l.must("hoard", "", 0)
			l.hoards = append(l.hoards, l.ordinal)
		case n < 67 && len(l.hoards) > 0:
			l.must("release", fmt.Sprint(l.hoards[0]), 0)
			l.hoards = l.hoards[1:]
		case n < 72 && len(l.keeps) < 2:
			l.must("keep", "", task)
			l.keeps = append(l.keeps, l.ordinal)
		case n < 77 && len(l.keeps) > 0:
			l.must("unkeep", fmt.Sprint(l.keeps[0]), 0)
			l.keeps = l.keeps[1:]
		case n < 80:
			if out := l.run("kill", "", 0); out.Outcome != lifecycle.ExecutorDied {
				t.Fatalf("got %+v", out)
			}
			l.ordinal, l.hoards, l.keeps = 0, nil, nil
		case n < 86:
			l.room(nil, scattered...)()
		case n < 91:
			l.objects.Drop(object(task))
			delete(l.content, task)
		default:
			l.read(task)
		}
		if err := l.objects.Check(); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range l.keeps {
		l.must("unkeep", fmt.Sprint(n), 0)
	}
	for _, n := range l.hoards {
		l.must("release", fmt.Sprint(n), 0)
	}
	// All results can leave the slab.
	l.room(nil, rest...)()
	for task := range l.content {
		l.read(task)
	}
	if err := l.objects.Check(); err != nil {
		t.Fatal(err)
	}
	if tiers := l.objects.Tiers(); tiers[0].InBytes+tiers[1].InBytes == 0 || tiers[1].OutBytes == 0 {
		t.Errorf("nothing has left the slab and come back: %+v", tiers)
	}
}
