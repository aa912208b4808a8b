package worker_test

import (
	"testing"

	"github.com/google/uuid"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker/workertest"
)

// TestRescueIsAnswered: an object that is here counts as copied; an object that nobody on this host
// has mapped counts as failed, with the reason.
func TestRescueIsAnswered(t *testing.T) {
	w := start(t, workertest.NewScheduler(t), nil)
	d := data(t, w.Registration.GetDataAddress())
	if err := write(t, d, 100, bytesTensor(1<<20), random(1, 1<<20)); err != nil {
		t.Fatal(err)
	}
	w.Until("the object", func() bool { return len(w.Objects) == 1 })
	w.Objects = nil
	order := func(incarnation string) {
		w.Send(&workerv1.SessionResponse{Rescues: []*workerv1.Rescue{{
			WorkerId: 9, Incarnation: incarnation, DataAddress: "127.0.0.1:1", Name: "dead",
			Objects: []*workerv1.Replica{{TaskId: 100, Generation: 1}, {TaskId: 101, Generation: 4}},
		}}})
	}
	for _, incarnation := range []string{uuid.NewString(), "nonsense"} {
		order(incarnation)
		w.Until("both answers", func() bool { return len(w.Objects) == 1 && len(w.Rescues) == 1 })
		if o := w.Objects[0].GetReplica(); o.GetTaskId() != 100 || o.GetGeneration() != 1 || o.GetBytes() < 1<<20 || (w.Objects[0].GetEvent() == workerv1.ObjectEvent_OBJECT_EVENT_LOST) {
			t.Errorf("what is here: %v", w.Objects[0])
		}
		r := w.Rescues[0]
		if r.GetWorkerId() != 9 || len(r.GetFailed()) != 1 || r.GetFailed()[0].GetTaskId() != 101 || r.GetFailed()[0].GetGeneration() != 4 || r.GetReason() == "" || r.GetUnmapped() {
			t.Errorf("what cannot be copied: %v", r)
		}
		w.Objects, w.Rescues = nil, nil
	}
	w.release(100, 1)
	w.end(t)
}
