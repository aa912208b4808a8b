package session

import (
	"testing"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

func report(task uint64, inline int, outcome workerv1.TaskOutcome) *workerv1.TaskReport {
	return &workerv1.TaskReport{TaskId: task, Attempt: 1, Outcome: outcome, InlineResult: make([]byte, inline)}
}

func TestMessagesAreBounded(t *testing.T) {
	o := NewOutbox()
	const each, tasks = 64 << 10, 1000
	for i := range uint64(tasks) {
		o.Task(report(i+1, each, workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED))
	}
	o.Leave()
	next := uint64(1)
	for {
		m := o.Take()
		if m == nil {
			break
		}
		if n := len(m.GetTasks()); n == 0 || n*each > maxReportBytes+each {
			t.Errorf("a message with %d reports of %d bytes", n, each)
		}
		for _, r := range m.GetTasks() {
			if r.GetTaskId() != next {
				t.Fatalf("task %d comes where %d is next", r.GetTaskId(), next)
			}
			next++
		}
		if m.GetLeaving() != (next == tasks+1) {
			t.Errorf("leaving: %v before task %d", m.GetLeaving(), next)
		}
		o.Sent()
	}
	if next != tasks+1 {
		t.Errorf("the last report is that of task %d", next-1)
	}
}

// The inventory of a new session lacks a result that was lost in the gap. The report on its attempt
// comes after the inventory, so the report on the loss has to come after that.
func TestALossFollowsTheReportOnItsAttempt(t *testing.T) {
	o := NewOutbox()
	o.Task(report(1, 0, workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED))
	for task := range uint64(2) {
		o.Object(&workerv1.ObjectReport{Replica: &workerv1.Replica{TaskId: task + 1, Generation: 1}, Event: workerv1.ObjectEvent_OBJECT_EVENT_LOST})
	}
	o.Reopen(nil)
	m := o.Take()
	if len(m.GetTasks()) != 1 || len(m.GetObjects()) != 1 || m.GetObjects()[0].GetReplica().GetTaskId() != 1 {
		t.Errorf("after the inventory comes %v", m)
	}
}

func TestUnsentMessagesAreSentAgain(t *testing.T) {
	o := NewOutbox()
	o.Task(report(1, 0, workerv1.TaskOutcome_TASK_OUTCOME_STARTED))
	o.Task(report(1, 0, workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED))
	o.Object(&workerv1.ObjectReport{Replica: &workerv1.Replica{TaskId: 7}})
	m := o.Take()
	o.unsent(m)
	o.Task(report(2, 0, workerv1.TaskOutcome_TASK_OUTCOME_FAILED))
	// A new session counts them as running, so that the scheduler does not place them again.
	if refs := o.Reopen(nil); len(refs) != 2 || refs[0].Task != 1 || refs[1].Task != 2 {
		t.Errorf("final reports of %v", refs)
	}
	m = o.Take()
	if len(m.GetTasks()) != 3 || len(m.GetObjects()) != 0 { // objects are in the inventory
		t.Errorf("said again: %v", m)
	}
	o.Sent()
	if m := o.Take(); m != nil {
		t.Errorf("there is still %v", m)
	}
}
