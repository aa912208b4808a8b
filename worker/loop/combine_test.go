package loop

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/inbox"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/workertest"
)

// Whichever goroutine is the owner, no event is lost, the events of each goroutine stay in order,
// and nothing is handled after the worker has stopped.
func TestInlineStepsAndTheOwnerAlternate(t *testing.T) {
	w := New(Config{Registration: &workerv1.Registration{Slots: 1}, Sessions: SessionsBy(nil), Native: new(handSlots), Store: workertest.NewStore(t, 1<<20), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.own(ctx) }()
	const drivers, each = 4, 2000
	var all sync.WaitGroup
	for d := range drivers {
		all.Go(func() {
			for i := range each {
				x := gone{ledger.ObjectID{Task: ids.TaskID(d), Generation: ids.Attempt(i)}}
				if i%3 == 0 {
					w.inbox.Post(x)
				} else {
					w.stepInline(x)
				}
			}
		})
	}
	all.Wait()
	w.inbox.Post(unmapped{peer: 1})
	w.stepInline(gone{ledger.ObjectID{Task: drivers}})
	next := [drivers + 1]uint32{}
	for next[drivers] == 0 {
		w.outbox.Wait(ctx)
		m := w.outbox.Take()
		for _, o := range m.GetObjects() {
			r := o.GetReplica()
			if r.GetGeneration() != next[r.GetTaskId()] {
				t.Fatalf("of goroutine %d came %d after %d", r.GetTaskId(), r.GetGeneration(), next[r.GetTaskId()])
			}
			next[r.GetTaskId()]++
		}
	}
	for d := range drivers {
		if next[d] != each {
			t.Errorf("of goroutine %d came %d of %d", d, next[d], each)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	w.outbox.Take() // the last message
	w.stepInline(gone{})
	if m := w.outbox.Take(); m != nil {
		t.Errorf("a worker that has stopped said %v", m)
	}
}

// Ended runs and notifications from peers are handled between the parts of a long message,
// everything else in its turn.
func TestUrgentEventsDoNotWaitForALongMessage(t *testing.T) {
	w := &Worker{machine: lifecycle.New(lifecycle.Config{}), outbox: session.NewOutbox(), inbox: inbox.New()}
	w.machine.Step(time.Now(), &lifecycle.Assigned{Ref: lifecycle.Ref{Task: 4, Attempt: 1}, Awaited: []lifecycle.Awaited{{Object: lifecycle.Object{Task: 3, Generation: 1}}}})
	registered, gone := session.Message{Session: 7}, left{}
	for _, x := range []any{registered, []*native.Run{}, completed{{Ref: transfer.Ref{Task: 3, Generation: 1}, Unavailable: true}}, gone} {
		w.inbox.Put(x)
	}
	w.urgent()
	if w.machine.Len() > 0 {
		t.Error("a notification was left for later")
	}
	w.urgent()
	if want, rest := []any{registered, gone}, w.inbox.Take(); !slices.Equal(rest, want) {
		t.Errorf("left for later are %v", rest)
	}
}

// The scheduler gets the report of an ended run only after all other work. The report is not lost
// if the worker registers again or leaves before that.
func TestAnEndThatWasNotReportedYetIsNotForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		next func(*Worker)
		says func(*Worker, *workerv1.SessionRequest) bool
	}{
		"registers": {func(w *Worker) { w.open() }, func(w *Worker, m *workerv1.SessionRequest) bool {
			return len(w.open().GetRunning()) == 1 && len(m.GetTasks()) == 1
		}},
		"leaves":   {func(w *Worker) { w.leave("told to") }, func(_ *Worker, m *workerv1.SessionRequest) bool { return m.GetLeaving() && len(m.GetTasks()) == 1 }},
		"signals":  {func(w *Worker) { w.signal() }, func(_ *Worker, m *workerv1.SessionRequest) bool { return len(m.GetTasks()) == 1 }},
		"does not": {func(*Worker) {}, func(_ *Worker, m *workerv1.SessionRequest) bool { return m == nil }},
	} {
		slots := new(handSlots)
		w := New(Config{Registration: &workerv1.Registration{Slots: 1}, Sessions: SessionsBy(nil), Native: slots, Store: workertest.NewStore(t, 1<<20), Log: slog.New(slog.DiscardHandler)})
		w.ops[1] = newOp(&millracev1.Op{Kind: millracev1.OpKind_OP_KIND_NATIVE, Name: "bench.noop"}, nil)
		w.assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1})
		w.handle(slots.started)
		if w.machine.Len() > 0 {
			t.Fatal("its end was not handled")
		}
		c.next(w)
		if m := w.outbox.Take(); !c.says(w, m) {
			t.Errorf("who %s with a report to make says %v", name, m)
		}
	}
}
