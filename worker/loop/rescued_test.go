package loop

import (
	"log/slog"
	"testing"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/workertest"
)

// A rescued object that is here is reported. If the end of a fetch has dropped it meanwhile, the
// scheduler hears that the rescue has failed.
func TestOnlyWhatIsHereIsReportedAsRescued(t *testing.T) {
	room := workertest.NewStore(t, 1<<20)
	w := New(Config{Registration: &workerv1.Registration{Slots: 1}, Native: new(handSlots), Store: room, Log: slog.New(slog.DiscardHandler)})
	here, dropped := ledger.ObjectID{Task: 1, Generation: 1}, ledger.ObjectID{Task: 2, Generation: 1}
	for _, id := range []ledger.ObjectID{here, dropped} {
		if err := room.PutSmall(id, []byte("value")); err != nil {
			t.Fatal(err)
		}
	}
	w.step(lifecycle.InputFetched{Fetch: 9, Object: lifecycle.Object(dropped)}) // nobody waits for it
	w.handle(peers.Gained{Object: here, Dead: 7})
	w.handle(peers.Gained{Object: dropped, Dead: 7})
	m := w.outbox.Take()
	if o := m.GetObjects(); len(o) != 1 || o[0].GetReplica().GetTaskId() != 1 || o[0].GetEvent() != workerv1.ObjectEvent_OBJECT_EVENT_GAINED {
		t.Errorf("reported are %v", o)
	}
	if r := m.GetRescues(); len(r) != 1 || r[0].GetWorkerId() != 7 || len(r[0].GetFailed()) != 1 || r[0].GetFailed()[0].GetTaskId() != 2 {
		t.Errorf("failed rescues are %v", r)
	}
}
