package loop_test

import (
	"context"
	"testing"
	"time"

	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// An attempt that no message can carry fails its task. Otherwise the task would be assigned again
// and again.
func TestAnUndeliverableAttemptFailsItsTask(t *testing.T) {
	l := loop.New(loop.Config{Cluster: schedapi.Cluster{WorkerLease: patience}})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	ended := make(chan struct{})
	go func() { defer close(ended); l.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	session, err := l.Register(ctx, schedapi.Registration{Worker: sched.WorkerRegistered{
		Name: "w", Incarnation: "i", Slots: 1, MemoryBytes: 1 << 30, Executors: []string{"native"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Submit(ctx, schedapi.Submission{Graph: sched.GraphSubmitted{
		Namespace: "n", Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}}, Tasks: []sched.TaskSpec{{Key: "large"}},
		Retention: time.Hour,
	}})
	if err != nil {
		t.Fatal(err)
	}
	var told schedapi.Outbound
	for len(told.Assignments) == 0 {
		select {
		case <-session.Wake():
			session.Take(&told)
		case <-ctx.Done():
			t.Fatal("nothing is assigned")
		}
	}
	session.Undeliverable(told.Assignments[0].Task, told.Assignments[0].Attempt, "far too large")
	update, err := l.Await(ctx, "n", "large")
	if err != nil || update.State != sched.TaskFailed || update.Err.Reason != "TOO_LARGE" || update.Err.Message != "far too large" {
		t.Errorf("%v %+v, %v", update.State, update.Err, err)
	}
}
