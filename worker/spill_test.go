package worker_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/invariant"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// small makes the slab 16 MiB, with a disk tier below.
func small(c *worker.Config) {
	c.MemoryLimitBytes = 16 << 20
	c.SpillLimitBytes = 1 << 30
}

func input(task uint64, bytes int) *workerv1.Input {
	return &workerv1.Input{TaskId: task, Generation: 1, Bytes: uint64(bytes)}
}

// chunks makes n objects of the given size, by the tasks first, first+1, ..., and waits for them.
func (w *running) chunks(t *testing.T, first uint64, n, bytes int) {
	t.Helper()
	for i := range n {
		w.Assign(&workerv1.Assignment{TaskId: first + uint64(i), Attempt: 1, OpId: 1, Rank: first + uint64(i), Arguments: workertest.Arguments(bytes, i)})
	}
	for i := range n {
		if r := w.Report(first + uint64(i)); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
			t.Fatalf("chunk %d: %v", i, r)
		}
	}
}

func (w *running) release(first uint64, n int) {
	for i := range n {
		w.Send(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: first + uint64(i), Generation: 1}}})
	}
}

// spillFiles returns the names of the spill files below a directory.
func spillFiles(t *testing.T, directory string) (names []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(directory, "*", "data"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A reduction over data of eight times the slab's size. Each chunk is checked by the task that
// reads it; a task that combines two results needs both in memory.
func TestReductionOverEightTimesTheSlab(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), small)
	w.Op(1, native, "array.full")
	w.Op(2, native, "array.map")
	w.Op(3, native, "array.reduce")
	const n, bytes = 64, 2 << 20
	next := uint64(100)
	level := make([]uint64, n)
	sum := 0.0
	for i := range level {
		level[i] = next
		sum += float64(i) * bytes / 8
		w.Assign(&workerv1.Assignment{TaskId: next, Attempt: 1, OpId: 1, Rank: next, Arguments: workertest.Arguments([]any{bytes / 8}, float64(i))})
		next++
	}
	for _, task := range level {
		if r := w.Report(task); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
			t.Fatalf("chunk: %v", r)
		}
	}
	for len(level) > 1 {
		var up []uint64
		for i := 0; i < len(level); i += 2 {
			w.Assign(&workerv1.Assignment{
				TaskId: next, Attempt: 1, OpId: 2, Rank: next, Arguments: workertest.Arguments("x0+x1", workertest.Input(0), workertest.Input(1)),
				Inputs: []*workerv1.Input{input(level[i], bytes), input(level[i+1], bytes)},
			})
			up = append(up, next)
			next++
		}
		for _, task := range up {
			if r := w.Report(task); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
				t.Fatalf("sum of two: %v", r)
			}
		}
		for _, task := range level {
			w.release(task, 1)
		}
		level = up
	}
	w.Assign(&workerv1.Assignment{
		TaskId: next, Attempt: 1, OpId: 3, Arguments: workertest.Arguments(workertest.Input(0), "sum"), Inputs: []*workerv1.Input{input(level[0], bytes)},
	})
	if got := float64Of(t, workertest.Decode(t, w.Report(next).GetInlineResult())); got != sum {
		t.Errorf("sum %v, want %v", got, sum)
	}
}

// There are many tiny objects and one of nine tenths of the slab. The tiny ones are spilled,
// and all objects can be read.
func TestTinyObjectsMakeRoomForAHugeOne(t *testing.T) {
	// Large blocks are aligned: of 64 MiB, 62 MiB can be one block.
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { small(c); c.MemoryLimitBytes = 64 << 20 })
	w.Op(1, native, "bench.bytes")
	w.Op(2, native, "bench.checksum")
	// Objects of up to 1 KiB are stored in headers, outside of the slab.
	const tiny, huge = 1<<10 + 1, (64 << 20) / 10 * 9
	n := 10_000
	if invariant.Enabled {
		n = 300 // with invariants enabled, each step checks all of them
	}
	w.chunks(t, 100, n, tiny)
	w.chunks(t, 20_000, 1, huge)
	w.Assign(&workerv1.Assignment{TaskId: 30_000, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(workertest.Input(0)), Inputs: []*workerv1.Input{input(20_000, huge)}})
	if r := w.Report(30_000); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Fatalf("checksum of the huge one: %v", r)
	}
	for i := 0; i < n; i += n / 20 {
		task := uint64(40_000 + i)
		w.Assign(&workerv1.Assignment{TaskId: task, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(workertest.Input(0)), Inputs: []*workerv1.Input{input(uint64(100+i), tiny)}})
		if r := w.Report(task); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
			t.Fatalf("checksum of a tiny one: %v", r)
		}
	}
	// Peers and clients can read the objects from every tier.
	d := data(t, w.Registration.GetDataAddress())
	for _, task := range []uint64{100, 101, 20_000} {
		if _, b, failed := read(t, d, task); failed != nil || len(b) < tiny {
			t.Errorf("task %d: %d bytes, %v", task, len(b), failed)
		}
	}
}

func TestLargerThanTheSlabFailsAtOnce(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), small)
	w.Op(1, native, "bench.bytes")
	w.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1, Arguments: workertest.Arguments(17<<20, 1)})
	if e := w.Report(1).GetError(); e.GetReason() != "OUT_OF_MEMORY" || !strings.Contains(e.GetMessage(), "larger than the slab") {
		t.Errorf("got %v", e)
	}
	// Two inputs are on disk and do not fit in memory together.
	w.Op(2, native, "array.map")
	w.chunks(t, 10, 4, 9<<20)
	w.Assign(&workerv1.Assignment{
		TaskId: 20, Attempt: 1, OpId: 2, Arguments: workertest.Arguments("x0+x1", workertest.Input(0), workertest.Input(1)),
		Inputs: []*workerv1.Input{input(10, 9<<20), input(11, 9<<20)},
	})
	if e := w.Report(20).GetError(); e.GetReason() != "OUT_OF_MEMORY" || !strings.Contains(e.GetMessage(), "larger than the slab") {
		t.Errorf("got %v", e)
	}
}

func TestSpilledObjectsAreReadByPeersAndClients(t *testing.T) {
	s := workertest.NewScheduler(t)
	a := start(t, s, small)
	b := start(t, s, func(c *worker.Config) { small(c); c.Name = "host-1" })
	for _, w := range []*running{a, b} {
		w.Op(1, native, "bench.bytes")
		w.Op(2, native, "bench.checksum")
	}
	const n, bytes = 32, 2 << 20
	a.chunks(t, 100, n, bytes)
	b.Send(&workerv1.SessionResponse{Peers: []*workerv1.Peer{{WorkerId: a.ID, Name: "host-0", DataAddress: a.Registration.GetDataAddress()}}})
	for i := range n {
		task := uint64(100 + i)
		in := input(task, bytes)
		a.Assign(&workerv1.Assignment{TaskId: 200 + task, Attempt: 1, OpId: 2, Rank: task, Arguments: workertest.Arguments(workertest.Input(0)), Inputs: []*workerv1.Input{in}})
		from := input(task, bytes)
		from.Holders = []uint32{a.ID}
		b.Assign(&workerv1.Assignment{TaskId: 300 + task, Attempt: 1, OpId: 2, Rank: task, Arguments: workertest.Arguments(workertest.Input(0)), Inputs: []*workerv1.Input{from}})
	}
	for i := range n {
		here, there := a.Report(300+uint64(i)), b.Report(400+uint64(i))
		if here.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED || string(here.GetInlineResult()) != string(there.GetInlineResult()) {
			t.Fatalf("chunk %d: %v here, %v there", i, here, there)
		}
	}
	d := data(t, a.Registration.GetDataAddress())
	_, first, failed := read(t, d, 100)
	_, again, failedAgain := read(t, d, 100)
	if failed != nil || failedAgain != nil || len(first) != bytes || string(first) != string(again) {
		t.Errorf("%d and %d bytes, %v, %v", len(first), len(again), failed, failedAgain)
	}
}

// corrupt flips bytes in all parts of the spill files.
func corrupt(t *testing.T, directory string) {
	t.Helper()
	for _, name := range spillFiles(t, directory) {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		for off := int64(100); off < info.Size(); off += 64 << 10 {
			if _, err := f.WriteAt([]byte(fmt.Sprintf("broken %d", off)), off); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// An object that cannot be read back is never delivered as valid. The task and the worker both
// report to the scheduler that the object is not here, and a client gets the same error.
func TestCorruptedSpillFileLosesTheObjects(t *testing.T) {
	directory := t.TempDir()
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { small(c); c.LocalDirectory = directory })
	w.Op(1, native, "bench.bytes")
	w.Op(2, native, "bench.checksum")
	const n, bytes = 32, 2 << 20
	w.chunks(t, 100, n, bytes)
	corrupt(t, directory)
	lost, whole := 0, 0
	for i := range n {
		task := uint64(100 + i)
		w.Assign(&workerv1.Assignment{TaskId: 200 + task, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(workertest.Input(0)), Inputs: []*workerv1.Input{input(task, bytes)}})
		switch r := w.Report(200 + task); r.GetOutcome() {
		case workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED:
			whole++
		case workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE:
			if u := r.GetUnreachable()[0]; u.GetTaskId() != task || len(u.GetMissingAt()) != 1 || u.GetMissingAt()[0] != w.ID {
				t.Errorf("unreachable: %v", r)
			}
			lost++
			w.Until("a report that the object is lost", func() bool {
				for _, o := range w.Objects {
					if (o.GetEvent() == workerv1.ObjectEvent_OBJECT_EVENT_LOST) && o.GetReplica().GetTaskId() == task {
						return true
					}
				}
				return false
			})
		default:
			t.Fatalf("chunk %d: %v", i, r)
		}
	}
	if lost == 0 || whole == 0 {
		t.Errorf("%d objects lost, %d whole", lost, whole)
	}
}

// A peer asks for several objects, some of them corrupted, and gets the intact ones.
func TestCorruptedSpilledObjectsAreNotServed(t *testing.T) {
	directory := t.TempDir()
	s := workertest.NewScheduler(t)
	a := start(t, s, func(c *worker.Config) { small(c); c.LocalDirectory = directory })
	b := start(t, s, func(c *worker.Config) { small(c); c.Name, c.MemoryLimitBytes = "host-1", 64<<20 })
	a.Op(1, native, "bench.bytes")
	b.Op(2, native, "bench.checksum")
	const n, bytes = 16, 2 << 20
	a.chunks(t, 100, n, bytes)
	corrupt(t, directory)
	b.Send(&workerv1.SessionResponse{Peers: []*workerv1.Peer{{WorkerId: a.ID, Name: "host-0", DataAddress: a.Registration.GetDataAddress()}}})
	for i := range n {
		in := input(uint64(100+i), bytes)
		in.Holders = []uint32{a.ID}
		b.Assign(&workerv1.Assignment{TaskId: uint64(200 + i), Attempt: 1, OpId: 2, Arguments: workertest.Arguments(workertest.Input(0)), Inputs: []*workerv1.Input{in}})
	}
	whole, lost := 0, 0
	for i := range n {
		switch r := b.Report(uint64(200 + i)); r.GetOutcome() {
		case workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED:
			whole++
		case workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE:
			lost++
			if u := r.GetUnreachable()[0]; len(u.GetMissingAt()) == 0 {
				t.Errorf("chunk %d should be missing there: %v", i, r)
			}
		default:
			t.Fatalf("chunk %d: %v", i, r)
		}
	}
	// The slab has 7 of them.
	if whole < 7 || lost == 0 {
		t.Errorf("%d whole, %d lost", whole, lost)
	}
}

func TestNothingIsLeftAfterTheEnd(t *testing.T) {
	directory := t.TempDir()
	s := workertest.NewScheduler(t)
	before := descriptors(t)
	w := start(t, s, func(c *worker.Config) { small(c); c.LocalDirectory = directory })
	w.Op(1, native, "bench.bytes")
	w.chunks(t, 100, 32, 2<<20)
	if len(spillFiles(t, directory)) != 1 {
		t.Errorf("files %v", spillFiles(t, directory))
	}
	// All memory is released as soon as the objects are not needed any more.
	w.release(100, 32)
	w.Until("an empty slab", func() bool { return w.Stats != nil && w.Stats.GetMemoryUsedBytes() == 0 })
	w.stop()
	if err := <-w.ended; err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(directory)
	if err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
	for limit := time.Now().Add(workertest.EventTimeout); ; time.Sleep(time.Millisecond) {
		left := descriptors(t)
		maps.DeleteFunc(left, func(name string, n int) bool { return n <= before[name] })
		if len(left) == 0 {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("these descriptors are open and were not before, or not so many: %v", left)
		}
	}
}

// descriptors counts the open files of this process by name, for regular files and shared memory
// only. Sockets and the runtime's own descriptors come and go.
func descriptors(t *testing.T) map[string]int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	open := make(map[string]int)
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "/proc") {
			open[name]++
		}
	}
	return open
}
