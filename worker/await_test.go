package worker_test

import (
	"fmt"
	"testing"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// pair starts two workers that know each other. looks is the spin limit (Config.SpinTime).
func pair(t *testing.T, looks time.Duration) (a, b *running) {
	t.Helper()
	return pairWith(t, func(c *worker.Config) { c.SpinTime = looks })
}

// pairWith is pair with other settings, which change makes.
func pairWith(t *testing.T, change func(c *worker.Config)) (a, b *running) {
	t.Helper()
	s := workertest.NewScheduler(t)
	with := func(name string) func(c *worker.Config) {
		return func(c *worker.Config) {
			c.Name, c.Token = name, "secret"
			change(c)
		}
	}
	a, b = start(t, s, with("host-0")), start(t, s, with("host-1"))
	for _, w := range []*running{a, b} {
		if !w.Registration.GetNotifies() {
			t.Fatal("a worker says that it does not tell of its results")
		}
		w.Send(&workerv1.SessionResponse{Peers: []*workerv1.Peer{
			{WorkerId: a.ID, Name: "host-0", DataAddress: a.Registration.GetDataAddress()},
			{WorkerId: b.ID, Name: "host-1", DataAddress: b.Registration.GetDataAddress()},
			{WorkerId: 77, Name: "gone", DataAddress: "127.0.0.1:1"},
		}})
		w.Op(1, native, "bench.noop")
		w.Op(2, native, "array.full")
		w.Op(3, native, "array.reduce")
		w.Op(4, native, "bench.sleep")
	}
	return a, b
}

// pending returns an input that its maker, another worker, has not produced yet.
func pending(task uint64, maker uint32) *workerv1.Input {
	return &workerv1.Input{TaskId: task, Generation: 1, Pending: true, Holders: []uint32{maker}}
}

func noop(task uint64, inputs ...*workerv1.Input) *workerv1.Assignment {
	return &workerv1.Assignment{TaskId: task, Attempt: 1, OpId: 1, Rank: task, Arguments: workertest.Arguments(), Inputs: inputs}
}

// Two workers run a stencil without any message from the scheduler between the steps.
func TestNeighboursTellEachOtherOfResults(t *testing.T) {
	for _, looks := range []time.Duration{-1, time.Millisecond} {
		t.Run(looks.String(), func(t *testing.T) { neighbours(t, looks) })
	}
}

func neighbours(t *testing.T, looks time.Duration) {
	t.Helper()
	a, b := pair(t, looks)
	const steps = 200
	of := func(step int, w uint64) uint64 { return uint64(step)*2 + w }
	// All steps but the first are assigned before any result exists.
	for step := 1; step < steps; step++ {
		before := func(self uint64, other uint32) []*workerv1.Input {
			own, far := pending(of(step-1, self), 0), pending(of(step-1, 1-self), other)
			own.Holders = nil
			if step == 1 {
				own.Pending = false // the first step is assigned last
				return []*workerv1.Input{far}
			}
			return []*workerv1.Input{own, far}
		}
		a.Assign(noop(of(step, 0), before(0, b.ID)...))
		b.Assign(noop(of(step, 1), before(1, a.ID)...))
	}
	a.Assign(noop(of(0, 0)))
	b.Assign(noop(of(0, 1)))
	for _, w := range []struct {
		*running
		n uint64
	}{{a, 0}, {b, 1}} {
		if r := w.Report(of(steps-1, w.n)); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
			t.Errorf("the last step: %v", r)
		}
	}
}

// For a large result, the completion notification does not carry the data; the reader fetches it.
func TestLargeResultsAreFetchedWhenToldOf(t *testing.T) {
	a, b := pair(t, time.Millisecond)
	for task := uint64(12); task <= 13; task++ {
		b.Assign(&workerv1.Assignment{
			TaskId: task, Attempt: 1, OpId: 3, Arguments: workertest.Arguments(workertest.Input(0), "sum"), Inputs: []*workerv1.Input{pending(11, a.ID)},
		})
	}
	a.Assign(&workerv1.Assignment{TaskId: 11, Attempt: 1, OpId: 2, Arguments: workertest.Arguments([]any{1 << 20}, 2.0)})
	for task := uint64(12); task <= 13; task++ {
		if got := float64Of(t, workertest.Decode(t, b.Report(task).GetInlineResult())); got != 1<<21 {
			t.Errorf("sum = %v", got)
		}
	}
	// The result exists by now, so the notification is immediate, also for a reader that has not
	// subscribed before.
	b.Assign(&workerv1.Assignment{
		TaskId: 14, Attempt: 1, OpId: 3, Arguments: workertest.Arguments(workertest.Input(0), "sum"), Inputs: []*workerv1.Input{pending(11, a.ID)},
	})
	b.Report(14)
	a.Assign(noop(15))
	a.Report(15)
	b.Assign(noop(16, pending(15, a.ID)))
	b.Report(16)
}

// On a slow machine, an assignment may reach the maker long after its reader has subscribed. The
// reader's wait is a setting; tests wait as long as for any other event.
func TestReaderWaitsForALateAssignment(t *testing.T) {
	a, b := pair(t, time.Millisecond)
	b.Assign(noop(2, pending(1, a.ID)))
	// Subscriptions are checked before each of the worker's heartbeats, and the default wait is
	// over before the fourth one.
	for range 4 {
		a.Stats = nil
		a.Until("a heartbeat", func() bool { return a.Stats != nil })
	}
	a.Assign(noop(1))
	if r := b.Report(2); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Errorf("got %v", r)
	}
}

// A maker that cannot be reached, or that does not know the task, fails no task:
// the attempt is returned to the scheduler with the outcome that its input is unreachable.
func TestInputsWithoutNotificationAreReturned(t *testing.T) {
	a, b := pair(t, time.Millisecond)
	b.Assign(noop(1, pending(100, 77)))
	checkUnreachable(t, b.Report(1), 100, 77)
	b.Assign(noop(2, pending(100, 78))) // no worker has this number
	checkUnreachable(t, b.Report(2), 100, 78)
	a.Assign(&workerv1.Assignment{TaskId: 101, Attempt: 1, OpId: 4, Arguments: workertest.Arguments(3600.0)})
	a.Report(101, workerv1.TaskOutcome_TASK_OUTCOME_STARTED)
	b.Assign(noop(4, pending(101, a.ID)), noop(5, pending(101, a.ID)))
	b.Send(&workerv1.SessionResponse{Cancellations: []*workerv1.AttemptRef{{TaskId: 4, Attempt: 1}}})
	b.Report(4, workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED)
	// The reader detects that the maker ended.
	a.stop()
	checkUnreachable(t, b.Report(5), 101, a.ID)
}

// A reader waits a limited time for an attempt that was never assigned to the maker.
func TestReadersDoNotWaitForUnknownAttempts(t *testing.T) {
	a, b := pairWith(t, func(c *worker.Config) { c.SpinTime, c.SubscriptionWait = time.Millisecond, shortWait })
	b.Assign(noop(1, pending(102, a.ID)))
	checkUnreachable(t, b.Report(1), 102, a.ID)
}

// checkUnreachable checks that a task was returned because one worker did not give its input.
func checkUnreachable(t *testing.T, r *workerv1.TaskReport, input uint64, at uint32) {
	t.Helper()
	u := r.GetUnreachable()
	if r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE || len(u) != 1 || u[0].GetTaskId() != input ||
		fmt.Sprint(u[0].GetFailedAt()) != fmt.Sprint([]uint32{at}) || len(u[0].GetMissingAt()) > 0 {
		t.Errorf("got %v", r)
	}
}
