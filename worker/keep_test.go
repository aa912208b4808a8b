package worker_test

import (
	"testing"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker/workertest"
)

// A worker answers for each object that it is to keep: whether it has it.
func TestWorkerTellsWhatItKeeps(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), nil)
	w.Op(1, native, "array.full")
	w.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 2, OpId: 1, Arguments: workertest.Arguments([]any{1 << 17}, 1.0)})
	made := w.Report(1)
	w.Send(&workerv1.SessionResponse{Keeps: []*workerv1.Replica{{TaskId: 1, Generation: 2}, {TaskId: 1, Generation: 1}, {TaskId: 9, Generation: 1}}})
	w.Until("three answers", func() bool { return len(w.Objects) == 3 })
	for i, want := range []workerv1.ObjectEvent{workerv1.ObjectEvent_OBJECT_EVENT_KEPT, workerv1.ObjectEvent_OBJECT_EVENT_LOST, workerv1.ObjectEvent_OBJECT_EVENT_LOST} {
		if got := w.Objects[i].GetEvent(); got != want {
			t.Errorf("answer %d: %v, want %v", i, w.Objects[i], want)
		}
	}
	if got := w.Objects[0].GetReplica(); got.GetTaskId() != 1 || got.GetBytes() != made.GetOutputBytes() {
		t.Errorf("it keeps %v, made %v", got, made)
	}
}
