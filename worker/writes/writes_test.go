package writes

import (
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/value"
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
			objects := workertest.NewStore(t, 1<<20)
			committed := make(chan *Write, 1)
			w := New(Config{Store: objects, Tell: func(x *Write) { committed <- x }, Log: slog.New(slog.DiscardHandler)})
			incoming, err := w.Create(t.Context(), transfer.Head{Ref: transfer.Ref{Task: 10}, Header: value.Null()})
			if err != nil {
				t.Fatal(err)
			}
			written := make(chan error, 1)
			go func() { written <- incoming.Commit(t.Context()) }()
			x := <-committed
			counts := func(when string, want int) {
				t.Helper()
				if found, waiting := len(objects.Inventory()), len(w.Reports()); found != want || waiting != 1-want {
					t.Errorf("%s: %d objects are readable, %d wait, want %d", when, found, waiting, want)
				}
			}
			if report := w.Committed(x, false, false); report.GetReplica().GetTaskId() != 10 || report.GetReplica().GetGeneration() != 1 {
				t.Errorf("reported %v", report)
			}
			counts("before the registration", 0)
			w.Registered(c.life, 0)
			counts("once registered", c.accepted)
			w.Accept(x.ID)
			counts("once accepted", 1)
			if err := <-written; err != nil {
				t.Error(err)
			}
		})
	}
}

// An object is refused, and not kept, if its task runs here, if it was begun before the scheduler
// was started anew, or if the scheduler releases it.
func TestRefusedWritesAreAnswered(t *testing.T) {
	for want, refuse := range map[string]func(w *Writes, x *Write) (kept bool){
		"a task that runs here": func(w *Writes, x *Write) bool { return w.Committed(x, false, true) != nil },
		"the scheduler was":     func(w *Writes, x *Write) bool { return w.Committed(x, true, false) != nil },
		"started anew":          func(w *Writes, x *Write) bool { w.Renewed(8); return w.Committed(x, false, false) != nil },
		"scatter it again":      func(w *Writes, x *Write) bool { w.Committed(x, false, false); w.Refuse(); return false },
		"result of a DATA task": func(w *Writes, x *Write) bool { w.Committed(x, false, false); w.Released(x.ID); return false },
	} {
		objects := workertest.NewStore(t, 1<<20)
		committed := make(chan *Write, 1)
		w := New(Config{Store: objects, Tell: func(x *Write) { committed <- x }, Log: slog.New(slog.DiscardHandler)})
		w.Registered(7, 0)
		incoming, err := w.Create(t.Context(), transfer.Head{Ref: transfer.Ref{Task: 10}, Header: value.Null()})
		if err != nil {
			t.Fatal(err)
		}
		written := make(chan error, 1)
		go func() { written <- incoming.Commit(t.Context()) }()
		if refuse(w, <-committed) || len(w.Reports()) > 0 {
			t.Errorf("%s: it is reported", want)
		}
		if err := <-written; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the answer is %v, want %q", err, want)
		}
	}
}

// The reports on objects that wait for the scheduler are in the order of their tasks.
func TestReportsAreInOrder(t *testing.T) {
	const most = 20
	committed := make(chan *Write, most)
	w := New(Config{Store: workertest.NewStore(t, 1<<20), Tell: func(x *Write) { committed <- x }, Log: slog.New(slog.DiscardHandler)})
	var all sync.WaitGroup
	for i := range most {
		incoming, err := w.Create(t.Context(), transfer.Head{Ref: transfer.Ref{Task: ids.TaskID(most - i)}, Header: value.Null()})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() { _ = incoming.Commit(t.Context()) })
		w.Committed(<-committed, false, false)
	}
	for i, report := range w.Reports() {
		if task := report.GetReplica().GetTaskId(); task != uint64(i+1) {
			t.Errorf("report %d is on task %d", i, task)
		}
	}
	w.Refuse()
	all.Wait()
}
