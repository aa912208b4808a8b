package worker_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/workertest"
)

// A worker that is asked to leave finishes its running tasks and asks the scheduler for permission,
// again in each new session. It leaves when the scheduler agrees.
func TestAskedToLeaveItWaitsForTheScheduler(t *testing.T) {
	drain := make(chan struct{})
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.Drain, c.DrainGrace = drain, workertest.EventTimeout })
	w.Op(1, native, "bench.noop")
	w.Op(2, native, "bench.sleep")
	w.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1}, &workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(3600.0)})
	w.Report(1)
	w.Report(2, workerv1.TaskOutcome_TASK_OUTCOME_STARTED)
	close(drain)
	w.Until("its asking for leave", func() bool { return w.Draining > 0 })
	w.Break(status.Error(codes.Unavailable, "the scheduler restarts"))
	again := w.scheduler.Accept(t)
	again.Until("its asking once more", func() bool { return again.Draining > 0 })
	again.Send(&workerv1.SessionResponse{Drained: true})
	again.Send(&workerv1.SessionResponse{Cancellations: again.Registration.GetRunning()})
	// After these cancellations, nothing runs. The new session gets the start of the task again.
	again.Until("the farewell", func() bool { return again.Leaving })
	if len(again.Tasks) != 2 || again.Tasks[0].GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_STARTED ||
		again.Tasks[1].GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED {
		t.Errorf("reported before the farewell: %v", again.Tasks)
	}
	if err := <-w.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

// The grace period ends the worker in any case. A worker without objects and tasks does not wait
// for it.
func TestGraceToLeaveEnds(t *testing.T) {
	for _, busy := range []bool{true, false} {
		drain := make(chan struct{})
		w := start(t, workertest.NewScheduler(t), func(c *worker.Config) {
			c.Drain, c.DrainGrace = drain, workertest.EventTimeout
			if busy {
				c.DrainGrace = 300 * time.Millisecond
			}
		})
		if busy {
			w.Op(1, native, "bench.sleep")
			w.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1, Arguments: workertest.Arguments(3600.0)})
			w.Report(1, workerv1.TaskOutcome_TASK_OUTCOME_STARTED)
		}
		close(drain)
		w.Until("the farewell", func() bool { return w.Leaving })
		if err := <-w.ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	}
}

// After a refusal by the scheduler, the worker does not retry for ever, but ends with the reason.
// After FailedPrecondition (this incarnation is over), it ends as stopped, so that the next
// incarnation can start.
func TestRefusalsOfTheScheduler(t *testing.T) {
	for code, wrong := range map[codes.Code]bool{codes.Unauthenticated: true, codes.PermissionDenied: true, codes.InvalidArgument: true, codes.FailedPrecondition: false} {
		s := workertest.NewScheduler(t)
		s.Refuse = status.Error(code, "because")
		err := worker.Run(t.Context(), worker.Config{Name: "host-0", Scheduler: s.Address, MemoryLimitBytes: 1 << 20, BLASLibrary: "none", PythonCommand: []string{""}, LocalDirectory: t.TempDir()})
		var refused *session.RefusedError
		var stopped *session.StoppedError
		if errors.As(err, &refused) != wrong || errors.As(err, &stopped) == wrong {
			t.Errorf("%v: ended with %v", code, err)
		}
	}
}

// A worker calls Alive as long as it works.
func TestWorkerGivesSignsOfLife(t *testing.T) {
	signs := make(chan struct{}, 1000)
	start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.Alive = func() { signs <- struct{}{} } })
	for range 2 {
		select {
		case <-signs:
		case <-time.After(workertest.EventTimeout):
			t.Fatal("no sign of life")
		}
	}
}

// A worker that has nothing to do does not wait for an absent scheduler, however long its grace is.
func TestAskedToLeaveWithoutAScheduler(t *testing.T) {
	drain := make(chan struct{})
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.Drain, c.DrainGrace, c.SchedulerTimeout = drain, time.Hour, time.Hour })
	w.Op(1, native, "bench.noop")
	w.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1})
	w.Report(1)
	w.scheduler.Stop()
	close(drain)
	select {
	case err := <-w.ended:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(workertest.EventTimeout):
		t.Error("it stays")
	}
}
