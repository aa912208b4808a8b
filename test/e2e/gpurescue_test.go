//go:build cgo && linux

package e2e

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// The finished objects of a killed worker on a GPU are copied out of its slab by the worker that
// has the slab mapped, over the link between the GPUs. Then the slab's memory is free again for the
// worker that is started in its place.
func TestGPUSealedObjectsOutliveTheirWorker(t *testing.T) {
	needs(t, 2)
	large, objects, limits := 1<<20, 12, []string{"--device-memory-limit", "64MiB", "--pinned-limit", "32MiB"}
	op := millrace.Native("bench.stamp")
	args := func(i int) millrace.Arguments { return millrace.Args(100+i, large, []int64{}) }
	if onRealGPU() {
		// The slab has the default size, 70 %.
		large, objects, limits = 256<<20, 40, []string{"--pinned-limit", "4GiB"}
		op = millrace.Native("array.random")
		// The size is a number of float64 values.
		args = func(i int) millrace.Arguments { return millrace.Args([]int{large / 8}, i) }
	}
	c, _ := startGPUs(t, 2, limits...)
	client, ctx := c.dial(t), soon(t)
	list, err := client.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
	if err != nil || len(list) != 2 {
		t.Fatalf("%d workers, %v", len(list), err)
	}
	slices.SortFunc(list, func(a, b *millracev1.Worker) int { return strings.Compare(a.GetName(), b.GetName()) })
	victim, survivor := list[0], list[1]
	var futures []*millrace.Future
	submit := func(op millrace.Op, args millrace.Arguments, options ...millrace.TaskOption) *millrace.Future {
		f, err := client.Submit(ctx, op, args, options...)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	value := func(f *millrace.Future) int64 {
		v, err := millrace.Get[int64](ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		f.Release()
		return v
	}
	for i := range objects {
		futures = append(futures, submit(op, args(i), millrace.WithPreferredWorkers(victim.GetName())))
	}
	if err := millrace.WaitAll(ctx, futures...); err != nil {
		t.Fatal(err)
	}
	// The other worker reads one of them, which maps the slab.
	sum := millrace.Native("bench.checksum")
	want := []int64{value(submit(sum, millrace.Args(futures[0]), millrace.WithWorkers(survivor.GetName())))}
	for _, f := range futures[1:min(8, objects)] {
		want = append(want, value(submit(sum, millrace.Args(f), millrace.WithWorkers(victim.GetName()))))
	}

	killed := time.Now()
	if err := syscall.Kill(int(victim.GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	task := func(f *millrace.Future) *millracev1.Task {
		task, err := client.Task(ctx, f.Key())
		if err != nil {
			t.Fatal(err)
		}
		return task
	}
	wait := func(what string, so func() bool) time.Duration {
		for !so() {
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("waited in vain for %s\n%s", what, c.log.String())
			}
		}
		return time.Since(killed)
	}
	gone := false
	// Objects that are computed again may be on the next process of that worker.
	rescued := wait("the objects to be elsewhere", func() bool {
		if !gone {
			now, err := client.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
			gone = err == nil && !slices.ContainsFunc(now, func(w *millracev1.Worker) bool { return w.GetWorkerId() == victim.GetWorkerId() })
		}
		return gone && !slices.ContainsFunc(futures, func(f *millrace.Future) bool {
			return task(f).GetState() != millracev1.TaskState_TASK_STATE_SUCCEEDED
		})
	})
	back := wait("the worker to be back", func() bool {
		now, err := client.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
		return err == nil && len(now) == 2 && !slices.ContainsFunc(now, func(w *millracev1.Worker) bool { return w.GetWorkerId() == victim.GetWorkerId() })
	})
	t.Logf("%d objects of %d MiB were elsewhere %v after the kill, the worker was back with its slab after %v",
		objects, large>>20, rescued.Round(time.Millisecond), back.Round(time.Millisecond))
	for i, f := range futures {
		// An object that was not copied within 2 s is rightly computed again.
		if x := task(f); x.GetAttempt() != 1 && rescued < 2*time.Second {
			t.Errorf("object %d was made again: attempt %d\n%v", i, x.GetAttempt(), x.GetHistory())
		}
	}
	for i := range want {
		if got := value(submit(sum, millrace.Args(futures[i]))); got != want[i] {
			t.Errorf("object %d has other bytes: %x, not %x", i, got, want[i])
		}
	}
	for line := range strings.Lines(c.log.String()) {
		if strings.Contains(line, "dead peer") || strings.Contains(line, "dead worker") || strings.Contains(line, "is unmapped") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
