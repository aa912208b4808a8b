package chaos

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// rescueTimeout is the time that the scheduler waits for copies.
const rescueTimeout = 2 * time.Second

// TestSealedObjectsOutliveTheirWorker: the finished results of a killed worker are not computed
// again if other workers of its host have its memory mapped. Its unfinished tasks run again.
func TestSealedObjectsOutliveTheirWorker(t *testing.T) {
	t.Parallel()
	c := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	defer cancel()
	list, err := c.active(ctx)
	if err != nil || len(list) != workers {
		t.Fatalf("%d workers, %v", len(list), err)
	}
	slices.SortFunc(list, func(a, b *millracev1.Worker) int { return cmp.Compare(a.GetName(), b.GetName()) })
	victim := list[0]

	const objects = 48
	stamp := millrace.Native("bench.stamp")
	g := c.client.NewGraph("sealed")
	var keys []millrace.Key
	var numbers []int64
	for i := range objects {
		size := []int{100 << 10, 1 << 20, 3 << 20}[i%3]
		numbers = append(numbers, int64(1000+i))
		keys = append(keys, g.Add(fmt.Sprintf("sealed-%d", i), stamp, millrace.Args(1000+i, size, []int64{}), millrace.Hold(), millrace.WithPreferredWorkers(victim.GetName())))
	}
	run, err := g.Submit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	// Each of the other workers reads one object in place.
	for i, w := range list[1:] {
		f, err := c.client.Submit(ctx, stamp, millrace.Args(2000+i, 32, numbers[i:i+1], run.Future(keys[i])), millrace.WithWorkers(w.GetName()))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		f.Release()
	}
	unsealed, err := c.client.Submit(ctx, millrace.Native("bench.sleep"), millrace.Args(600.0), millrace.WithPreferredWorkers(victim.GetName()))
	if err != nil {
		t.Fatal(err)
	}
	c.until(ctx, t, "the sleeping task to run", func() bool {
		task, err := c.client.Task(ctx, unsealed.Key())
		return err == nil && task.GetState() == millracev1.TaskState_TASK_STATE_RUNNING && task.GetWorker() == victim.GetName()
	})

	killed := time.Now()
	if err := syscall.Kill(int(victim.GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// This task reads all objects, wherever they are now.
	args := []any{3000, 32, numbers}
	for _, key := range keys {
		args = append(args, run.Future(key))
	}
	all, err := c.client.Submit(ctx, stamp, millrace.Args(args...))
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	took := time.Since(killed)
	t.Logf("all objects were read again %v after the kill", took.Round(time.Millisecond))
	c.until(ctx, t, "the worker to be back", func() bool {
		now, err := c.active(ctx)
		return err == nil && len(now) == workers
	})
	t.Logf("the worker was back %v after the kill", time.Since(killed).Round(time.Millisecond))
	c.until(ctx, t, "the unfinished task to run again", func() bool {
		task, err := c.client.Task(ctx, unsealed.Key())
		return err == nil && task.GetState() == millracev1.TaskState_TASK_STATE_RUNNING && task.GetAttempt() > 1
	})
	if _, err := c.client.Cancel(ctx, unsealed); err != nil {
		t.Error(err)
	}
	for _, key := range keys {
		task, err := c.client.Task(ctx, string(key))
		if err != nil {
			t.Fatal(err)
		}
		// An object that was not copied in time may be computed again.
		if task.GetAttempt() != 1 && took < rescueTimeout || task.GetState() != millracev1.TaskState_TASK_STATE_SUCCEEDED {
			t.Errorf("%s: state %s after attempt %d\n%v", key, task.GetState(), task.GetAttempt(), task.GetHistory())
		}
	}
}

// until waits until a condition holds. what completes the sentence "waited in vain for".
func (c *cluster) until(ctx context.Context, t *testing.T, what string, so func() bool) {
	t.Helper()
	for !so() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
