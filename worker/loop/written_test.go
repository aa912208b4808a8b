package loop

import (
	"log/slog"
	"testing"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/workertest"
)

// A client may reach a worker before the worker knows that it is registered: the scheduler has told
// the address. An object that is written then waits for the scheduler like any other.
func TestWritesBeforeTheRegistrationWaitForTheScheduler(t *testing.T) {
	for name, c := range map[string]struct {
		life     uint64
		accepted int // objects that count once the worker is registered
	}{"scheduler that accepts": {life: 7, accepted: 0}, "scheduler that does not": {life: 0, accepted: 1}} {
		t.Run(name, func(t *testing.T) {
			w := New(Config{Registration: &workerv1.Registration{Slots: 1}, Native: new(handSlots), Store: workertest.NewStore(t, 1<<20), Log: slog.New(slog.DiscardHandler)})
			id := ledger.ObjectID{Task: 10, Generation: 1}
			x := &writing{id: id, answer: make(chan error, 1), report: &workerv1.ObjectReport{
				Replica: &workerv1.Replica{TaskId: 10, Generation: 1}, Event: workerv1.ObjectEvent_OBJECT_EVENT_WRITTEN,
			}}
			if err := w.config.Store.PutWritten(id, []byte("head")); err != nil {
				t.Fatal(err)
			}
			counts := func(when string, want int) {
				t.Helper()
				if found, answers := len(w.config.Store.Inventory()), len(x.answer); found != want || answers != want {
					t.Errorf("%s: %d objects are readable, %d answers are given, want %d", when, found, answers, want)
				}
			}
			w.written(x)
			counts("before the registration", 0)
			if session := w.open(); len(session.registration.GetInventory()) != 0 {
				t.Errorf("registered with %v", session.registration.GetInventory())
			}
			w.scheduler(&workerv1.SessionResponse{Registered: &workerv1.Registered{WorkerId: 1, Life: c.life}})
			counts("once registered", c.accepted)
			if m := w.outbox.take(); len(m.GetObjects()) != 1 {
				t.Errorf("reported %v", m)
			}
			w.scheduler(&workerv1.SessionResponse{AcceptedWrites: []*workerv1.Replica{{TaskId: 10, Generation: 1}}})
			counts("once accepted", 1)
			if err := <-x.answer; err != nil {
				t.Error(err)
			}
		})
	}
}
