package worker_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

const (
	lifeOne = 0x1111_0000_0000_0001
	lifeTwo = 0x2222_0000_0000_0002
)

// startIn runs a worker with the echo executor under a scheduler with the given life number.
func startIn(t *testing.T, life uint64, slots int) *running {
	t.Helper()
	binary, err := buildEcho()
	if err != nil {
		t.Fatal(err)
	}
	s := workertest.NewScheduler(t)
	s.Life.Store(life)
	return start(t, s, func(c *worker.Config) {
		c.Exec = map[string][]string{"echo": {binary}}
		c.Slots, c.StopGrace = slots, time.Second
	})
}

// A scheduler that was restarted may use the same task numbers again. The worker must not take any
// object or run of the previous life for one of the new life.
func TestAnotherLifeOfTheSchedulerStartsWithNothing(t *testing.T) {
	w := startIn(t, lifeOne, 1)
	if r := w.Registration; r.GetLife() != 0 {
		t.Errorf("registered with life %x before any session", r.GetLife())
	}
	d := data(t, w.Registration.GetDataAddress())
	w.Op(1, exec, "echo/upper")
	w.Op(2, exec, "echo/slab")
	w.Op(3, exec, "echo/sleep")
	w.call(1, 1, "old")
	w.call(2, 2, strings.Repeat("o", 16<<20))
	w.Report(1)
	w.Report(2)
	// A reader that stops in the middle keeps the bytes of an object, but not its number.
	stream, err := d.ReadObjects(t.Context(), &millracev1.ReadObjectsRequest{Objects: []*millracev1.ObjectRef{{TaskId: 2, Generation: 1}}})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	w.call(5, 3, "10m") // it keeps running
	w.Report(5, workerv1.TaskOutcome_TASK_OUTCOME_STARTED)
	w.call(6, 1, "queued behind it")
	w.scheduler.Life.Store(lifeTwo)
	w.Break(errors.New("killed"))
	// The worker cannot know of the new life yet.
	found := w.scheduler.Accept(t)
	if r := found.Registration; r.GetLife() != lifeOne || len(r.GetInventory()) != 2 || len(r.GetRunning()) < 1 {
		t.Errorf("registered as of life %x with %v and %v", r.GetLife(), r.GetInventory(), r.GetRunning())
	}
	next := w.scheduler.Accept(t)
	if r := next.Registration; r.GetLife() != lifeTwo || len(r.GetInventory())+len(r.GetRunning()) > 0 {
		t.Errorf("registered as of life %x with %v and %v", r.GetLife(), r.GetInventory(), r.GetRunning())
	}
	if len(found.Tasks)+len(found.Objects) > 0 {
		t.Errorf("in a session of another life it told %v, %v", found.Tasks, found.Objects)
	}
	for _, task := range []uint64{1, 2, 5} {
		if _, b, e := read(t, d, task); e == nil {
			t.Errorf("task %d of the life before is still read: %d bytes", task, len(b))
		}
	}
	// The same numbers, in any order, mean other tasks.
	w.Session = next
	next.Op(7, exec, "echo/upper")
	next.Op(8, exec, "echo/slab")
	for _, task := range []uint64{5, 6, 1} {
		w.call(task, 7, "new")
		if got := w.text(t, task); got != "NEW" {
			t.Errorf("task %d: %q", task, got)
		}
	}
	w.call(2, 8, strings.Repeat("n", 100_000))
	if r := w.Report(2); r.GetError() != nil {
		t.Fatal(r)
	}
	if _, b, e := read(t, d, 2); e != nil || string(b) != strings.Repeat("n", 100_000) {
		t.Errorf("other bytes came back, or %v", e)
	}
	// A slow machine reports that a task has started before it reports the end.
	ended := func(r *workerv1.TaskReport) bool { return r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_STARTED }
	if slices.ContainsFunc(next.Tasks, ended) {
		t.Errorf("it told of %v as well", next.Tasks)
	}
	// A new session in the same life loses nothing.
	next.Break(errors.New("the link broke"))
	again := w.scheduler.Accept(t)
	if r := again.Registration; r.GetLife() != lifeTwo || len(r.GetInventory()) != 4 {
		t.Errorf("registered as of life %x with %v", r.GetLife(), r.GetInventory())
	}
	w.Session = again
}

// Nobody can read an object that a client has written before the scheduler has accepted it.
func TestWrittenObjectsCountOnceTheyAreAccepted(t *testing.T) {
	w := startIn(t, lifeOne, 1)
	d := data(t, w.Registration.GetDataAddress())
	text := &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: "small"}}
	writing := func(task uint64, v *millracev1.Value, frames ...[]byte) chan error {
		done := make(chan error, 1)
		go func() { done <- write(t, d, task, v, frames...) }()
		return done
	}
	reported := func(task uint64) {
		t.Helper()
		w.Until("a report on what was written", func() bool {
			for _, o := range w.Objects {
				if o.GetReplica().GetTaskId() == task && o.GetEvent() == workerv1.ObjectEvent_OBJECT_EVENT_WRITTEN {
					w.Objects = nil
					return true
				}
			}
			return false
		})
	}
	for task := uint64(10); task <= 11; task++ {
		v, frames := text, [][]byte(nil)
		if task == 11 {
			v, frames = bytesTensor(100_000), [][]byte{random(1, 100_000)}
		}
		done := writing(task, v, frames...)
		reported(task)
		if _, _, e := read(t, d, task); e.GetReason() != "OBJECT_NOT_HERE" {
			t.Errorf("before it was accepted: %v", e)
		}
		select {
		case err := <-done:
			t.Fatalf("the client is told %v before the scheduler has said anything", err)
		default:
		}
		if err := write(t, d, task, text); status.Code(err) != codes.AlreadyExists {
			t.Errorf("written twice: %v", err)
		}
		// The object is not in the inventory either, and it is reported again.
		w.Break(errors.New("the link broke"))
		w.Session = w.scheduler.Accept(t)
		for _, o := range w.Registration.GetInventory() {
			if o.GetTaskId() == task {
				t.Errorf("in the inventory is %v", o)
			}
		}
		reported(task)
		w.Send(&workerv1.SessionResponse{AcceptedWrites: []*workerv1.Replica{{TaskId: task, Generation: 1}}})
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, _, e := read(t, d, task); e != nil {
			t.Errorf("after it was accepted: %v", e)
		}
	}
	// A task that waited for such an object is assigned in the same message that accepts the
	// object.
	w.Op(2, native, "core.identity")
	done := writing(20, bytesTensor(100_000), random(2, 100_000))
	reported(20)
	w.Send(&workerv1.SessionResponse{
		AcceptedWrites: []*workerv1.Replica{{TaskId: 20, Generation: 1}},
		Assignments: []*workerv1.Assignment{{TaskId: 21, Attempt: 1, OpId: 2, Rank: 21,
			Inputs:    []*workerv1.Input{{TaskId: 20, Generation: 1, Bytes: 100_000, Holders: []uint32{w.ID}}},
			Arguments: workertest.Arguments(workertest.Input(0))}},
	})
	if r := w.Report(21); r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Errorf("a task that was assigned with it: %v", r)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	// The scheduler refuses an object.
	done = writing(12, text)
	reported(12)
	w.Send(&workerv1.SessionResponse{Releases: []*workerv1.Replica{{TaskId: 12, Generation: 1}}})
	if err := <-done; status.Code(err) != codes.FailedPrecondition || reasonOf(err) != "NOT_A_DATA_TASK" {
		t.Errorf("refused with %v", err)
	}
	if _, _, e := read(t, d, 12); e.GetReason() != "OBJECT_NOT_HERE" {
		t.Errorf("after it was refused: %v", e)
	}
	// A client cannot write the result of a task that runs here; only that task can.
	w.Op(1, exec, "echo/sleep")
	w.call(13, 1, "10m")
	w.Report(13, workerv1.TaskOutcome_TASK_OUTCOME_STARTED)
	if err := write(t, d, 13, text); reasonOf(err) != "NOT_A_DATA_TASK" || !strings.Contains(err.Error(), "for that task to make") {
		t.Errorf("refused with %v", err)
	}
	w.Send(&workerv1.SessionResponse{Cancellations: []*workerv1.AttemptRef{{TaskId: 13, Attempt: 1}}})
	w.Report(13)
	// After a restart of the scheduler, writes that were begun before it are refused.
	done = writing(14, text)
	reported(14)
	w.scheduler.Life.Store(lifeTwo)
	w.Break(errors.New("killed"))
	w.scheduler.Accept(t)
	if err := <-done; reasonOf(err) != "SCHEDULER_RESTARTED" || !strings.Contains(err.Error(), "started anew") {
		t.Errorf("refused with %v", err)
	}
	w.Session = w.scheduler.Accept(t)
}

// reasonOf returns the stable reason of an error; empty if it has none.
func reasonOf(err error) string { return infoOf(err).GetReason() }

// infoOf returns the ErrorInfo of a call's error; nil: it has none.
func infoOf(err error) *errdetails.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "millrace.dev" {
			return info
		}
	}
	return nil
}
