package millrace

import (
	"errors"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// dialCluster connects to the cluster of the examples.
func dialCluster(t *testing.T, options ...Option) *Client {
	t.Helper()
	c, err := Dial(soon(t), append(options, WithNamespace(t.Name()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func submitTo(t *testing.T, c *Client, op string, args Arguments, options ...TaskOption) *Future {
	t.Helper()
	f, err := c.Submit(soon(t), Native(op), args, options...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Cancel returns an error for tasks that do not exist, and cancels the others.
func TestCancelOfUnknownTasksSaysSo(t *testing.T) {
	c := dialCluster(t)
	ctx := soon(t)
	// The first list of tasks has arrived once a future has ended. If it came after the release
	// below, it would end the future by its silence.
	if err := submitTo(t, c, "core.identity", Args(5)).Wait(ctx); err != nil {
		t.Fatal(err)
	}
	lost, kept := submitTo(t, c, "bench.sleep", Args(long), WithKey("lost")), submitTo(t, c, "bench.sleep", Args(long))
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	// The task is released without the client's knowledge, as by another connection with the same
	// lease.
	if _, err := c.service.ReleaseTasks(ctx, &millracev1.ReleaseTasksRequest{ClientId: c.lease.Load(), Tasks: &millracev1.TaskSet{Ids: []uint64{lost.TaskID()}}}); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Cancel(ctx, lost, kept); n != 1 || !errors.Is(err, ErrUnknownTask) || !strings.Contains(err.Error(), "lost") {
		t.Errorf("cancelled %d, %v", n, err)
	}
	if kept.State() != Cancelled {
		t.Errorf("the other one is %s", stateName(kept.State()))
	}
}

const long = 600.0 // seconds; the task ends only because it is cancelled

func TestCancelledFuturesSaySoWhenCancelReturns(t *testing.T) {
	c := dialCluster(t)
	ctx := soon(t)
	for i := range 50 {
		f := submitTo(t, c, "bench.sleep", Args(long))
		if i%2 == 0 { // some tasks have begun, others have not
			if err := c.Flush(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Cancel(ctx); err != nil {
			t.Fatal(err)
		}
		if err := f.end.Load(); f.State() != Cancelled || err == nil || !errors.Is(err.err, ErrTaskCancelled) {
			t.Fatalf("future %d is %s when Cancel returns", i, stateName(f.State()))
		}
	}
	done := submitTo(t, c, "core.identity", Args(5))
	if err := done.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if err := done.Cancel(ctx); err != nil {
		t.Error(err)
	}
	if v, err := Get[int](ctx, done); err != nil || v != 5 {
		t.Errorf("a task that had ended before: %v, %v", v, err)
	}
}

// Flush may find the batch before, which was acknowledged, still in its place.
func TestFlushReportsNoTaskThatWasCancelledLater(t *testing.T) {
	c, other := dialCluster(t), dialCluster(t)
	ctx := soon(t)
	f := submitTo(t, c, "bench.sleep", Args(long), WithKey("both"))
	submitTo(t, other, "bench.sleep", Args(long), WithKey("both"))
	if err := errors.Join(c.Flush(ctx), other.Flush(ctx)); err != nil {
		t.Fatal(err)
	}
	if err := f.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	c.submits.mu.Lock()
	c.submits.busy = &batch{futures: []*Future{f}, done: closedChan}
	c.submits.mu.Unlock()
	if err := c.Flush(ctx); err != nil {
		t.Error(err)
	}
}

func TestACancelledTaskThatOthersHoldGoesOnForThem(t *testing.T) {
	mine, other := dialCluster(t), dialCluster(t)
	ctx := soon(t)
	a := submitTo(t, mine, "bench.sleep", Args(long), WithKey("shared"))
	twin := submitTo(t, mine, "bench.sleep", Args(long), WithKey("shared"))
	b := submitTo(t, other, "bench.sleep", Args(long), WithKey("shared"))
	if err := errors.Join(mine.Flush(ctx), other.Flush(ctx)); err != nil {
		t.Fatal(err)
	}
	if err := a.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*Future{a, twin} {
		if err := f.Wait(ctx); f.State() != Cancelled || !errors.Is(err, ErrTaskCancelled) {
			t.Errorf("a future of the client that cancelled: %s, %v", stateName(f.State()), err)
		}
	}
	if b.end.Load() != nil {
		t.Errorf("the other client's future ended: %s", stateName(b.State()))
	}
	again := submitTo(t, mine, "bench.sleep", Args(long), WithKey("shared"))
	if err := mine.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if again.end.Load() != nil || again.TaskID() != b.TaskID() {
		t.Errorf("submitted again, it is %s", again)
	}
	a.Release()
	twin.Release()
	if err := b.Cancel(ctx); err != nil {
		t.Error(err)
	}
	if again.end.Load() != nil {
		t.Errorf("released futures of a task ended one that was made later: %s", again)
	}
	if err := again.Cancel(ctx); err != nil || again.State() != Cancelled {
		t.Errorf("%s, %v", again, err)
	}
	fresh := submitTo(t, mine, "core.identity", Args(1), WithKey("fresh"))
	if v, err := Get[int](ctx, fresh); err != nil || v != 1 {
		t.Errorf("%v, %v", v, err)
	}
}

func TestACancelledKeyRunsAgain(t *testing.T) {
	c := dialCluster(t)
	ctx := soon(t)
	f := submitTo(t, c, "bench.sleep", Args(0.01), WithKey("again"), WithWorkers("nobody"))
	if err := f.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	g := submitTo(t, c, "bench.sleep", Args(0.01), WithKey("again"), WithWorkers("nobody"))
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if g.end.Load() != nil {
		t.Errorf("it has the end of the one that was cancelled before: %s", g)
	}
	if err := g.Cancel(ctx); err != nil || g.State() != Cancelled {
		t.Errorf("%s, %v", g, err)
	}
}

// heard returns when c has received all updates on its tasks that were sent before.
func heard(t *testing.T, c *Client) {
	t.Helper()
	if err := submitTo(t, c, "core.identity", Args(0)).Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
}

func TestAHoldThatExistsIsHeardOfAgain(t *testing.T) {
	owner, c := dialCluster(t), dialCluster(t)
	if err := submitTo(t, owner, "core.identity", Args(7), WithKey("held")).Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	// The answer to this call is lost: the client holds the task without knowing it.
	in := &millracev1.HoldTasksRequest{ClientId: c.ID(), Tasks: &millracev1.TaskSet{Keys: []string{"held"}}}
	if _, err := c.Scheduler().HoldTasks(soon(t), in); err != nil {
		t.Fatal(err)
	}
	heard(t, c)
	ctx := soon(t)
	futures, err := c.HoldKeys(ctx, "held")
	if err != nil {
		t.Fatal(err)
	}
	if v, err := Get[int](ctx, futures[0]); err != nil || v != 7 {
		t.Errorf("%v, %v", v, err)
	}
}

func TestAReleasedKeyMayBeHeldAtOnce(t *testing.T) {
	owner, c := dialCluster(t), dialCluster(t)
	ctx := soon(t)
	kept := submitTo(t, owner, "core.identity", Args(7), WithKey("kept"))
	if err := kept.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		held, err := c.HoldKeys(ctx, "kept")
		if err != nil {
			t.Fatal(err)
		}
		if v, err := Get[int](ctx, held[0]); err != nil || v != 7 {
			t.Fatalf("hold %d: %v, %v", i, v, err)
		}
		held[0].Release()
		own := submitTo(t, c, "core.identity", Args(7), WithKey("kept"))
		if v, err := Get[int](ctx, own); err != nil || v != 7 {
			t.Fatalf("joined %d: %v, %v", i, v, err)
		}
		own.Release()
		mine := submitTo(t, c, "core.identity", Args(i), WithKey("mine"))
		if v, err := Get[int](ctx, mine); err != nil || v != i {
			t.Fatalf("submitted %d: %v, %v", i, v, err)
		}
		mine.Release() // the next task has the same key and other arguments
	}
}

func TestFuturesOfAnEarlierLeaseLeaveThoseOfTheNext(t *testing.T) {
	c := newFake(t).dial(t)
	table := &c.futures
	old, kept := &Future{client: c, key: "old"}, &Future{client: c, key: "kept"}
	table.bind([]*Future{old}, []uint64{5}, 1, nil)
	table.failAll(ErrLeaseLost)
	table.bind([]*Future{kept}, []uint64{6}, 1, nil)
	if released := table.forget([]*Future{old}); len(released) != 0 {
		t.Errorf("tasks %v of another lease are released", released)
	}
	table.update([]taskUpdate{{id: 6, state: Succeeded, end: nullOutcome}})
	if kept.State() != Succeeded {
		t.Errorf("the future of the next lease heard nothing: %s", kept)
	}
}
