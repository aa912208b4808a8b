package loop

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/uuid"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/workertest"
)

// A rescued object that is here is reported. If the end of a fetch has dropped it meanwhile, the
// scheduler hears that the rescue has failed.
func TestOnlyWhatIsHereIsReportedAsRescued(t *testing.T) {
	room := workertest.NewStore(t, 1<<20)
	w := New(Config{Registration: &workerv1.Registration{Slots: 1}, Sessions: SessionsBy(nil), Native: new(handSlots), Store: room, Log: slog.New(slog.DiscardHandler)})
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

// slowRescue is a path whose rescues wait for the test, and bring an object.
type slowRescue struct {
	transfer.Path
	room *store.Store
	end  chan struct{}
}

func (p *slowRescue) Capabilities() transfer.Capabilities { return transfer.Capabilities{Rescue: p} }

func (p *slowRescue) Rescue(_ context.Context, _ transfer.Peer, _ [16]byte, refs []transfer.Ref, sink transfer.Sink) error {
	<-p.end
	err := p.room.PutSmall(ledger.ObjectID(refs[0]), []byte("value"))
	sink.Done(0, err)
	return err
}

// A worker that was told to leave ends the rescues that it was ordered to do, and leaves when the
// scheduler has agreed again: it has an object more to hand over.
func TestAWorkerThatLeavesEndsItsRescues(t *testing.T) {
	room := workertest.NewStore(t, 1<<20)
	path := &slowRescue{room: room, end: make(chan struct{})}
	w := New(Config{Registration: &workerv1.Registration{Slots: 1}, Sessions: SessionsBy(nil), Native: new(handSlots), Store: room, Path: path, Log: slog.New(slog.DiscardHandler)})
	w.peers.Begin(t.Context())
	w.askToLeave()
	w.scheduler(&workerv1.SessionResponse{Rescues: []*workerv1.Rescue{{
		WorkerId: 2, DataAddress: "host:1", Incarnation: uuid.NewString(), Objects: []*workerv1.Replica{{TaskId: 9, Generation: 1}},
	}}})
	w.scheduler(&workerv1.SessionResponse{Drained: true})
	w.outbox.Take()
	w.settle()
	if w.stopped != nil {
		t.Fatalf("it leaves while it copies: %v", w.stopped)
	}
	close(path.end)
	w.next(t, "end of the rescue", func() bool { return !w.peers.Rescuing() })
	w.settle()
	if w.stopped != nil {
		t.Fatalf("it leaves with an object that nobody else has: %v", w.stopped)
	}
	if m := w.outbox.Take(); len(m.GetObjects()) != 1 || !m.GetDraining() {
		t.Errorf("it says %v", m)
	}
	w.scheduler(&workerv1.SessionResponse{Drained: true})
	w.settle()
	if !errors.Is(w.stopped, errLeft) {
		t.Errorf("it does not leave: %v", w.stopped)
	}
}
