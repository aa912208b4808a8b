package loop

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"google.golang.org/grpc"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/workertest"
)

// SessionsBy makes the sessions over a connection.
func SessionsBy(conn *grpc.ClientConn) func(session.Config) Sessions {
	return func(c session.Config) Sessions {
		c.Scheduler = conn
		return session.New(c)
	}
}

// noSessions are sessions that a test carries out itself.
type noSessions struct{}

func (noSessions) Run(context.Context) {}
func (noSessions) Connected() bool     { return true }
func (noSessions) Leave()              {}

// heldSlots keep a run until the test ends it.
type heldSlots struct {
	handSlots
	host native.Host
	runs []*native.Run
}

func (s *heldSlots) Open(host native.Host)        { s.host = host }
func (s *heldSlots) Start(_ int, run *native.Run) { s.runs = append(s.runs, run) }

// A worker goes by turns alone from its registration over a task to its end, as a simulation leads
// it.
func TestTurnsLeadAWorker(t *testing.T) {
	var sessions session.Config
	slots := new(heldSlots)
	w := New(Config{
		Registration: &workerv1.Registration{Name: "host-0", Slots: 1}, Native: slots, Store: workertest.NewStore(t, 1<<20), Log: slog.New(slog.DiscardHandler),
		Sessions: func(c session.Config) Sessions { sessions = c; return noSessions{} },
	})
	turn := func(why Occasion) Next {
		t.Helper()
		next := w.Turn(why)
		if err := w.Check(); err != nil {
			t.Fatal(err)
		}
		return next
	}
	w.Begin(t.Context())
	reply := make(chan *workerv1.Registration, 1)
	sessions.Tell(session.Opening{Session: 1, Reply: reply})
	if !w.Waiting() || turn(Woken).Ticks || w.Waiting() || (<-reply).GetName() != "host-0" {
		t.Fatal("it does not register")
	}
	sessions.Tell(session.Message{Session: 1, Response: &workerv1.SessionResponse{
		Registered: &workerv1.Registered{WorkerId: 1, Life: 7}, Ops: []*workerv1.OpDefinition{{OpId: 1, Op: &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_NATIVE, Name: "bench.noop"}}},
		Assignments: []*workerv1.Assignment{{TaskId: 1, Attempt: 1, OpId: 1}},
	}})
	if !turn(Woken).Ticks || len(slots.runs) != 1 || !w.Busy() || w.Residue() == nil || len(w.Describe(1)) != 1 {
		t.Fatalf("it runs %d tasks, and does not ask for ticks", len(slots.runs))
	}
	slots.host.Ended(slots.runs)
	if next := turn(Woken); !next.Ticks || w.Busy() || w.Residue() != nil {
		t.Errorf("after the run it has %v", w.Residue())
	}
	if m := sessions.Outbox.Take(); len(m.GetTasks()) != 1 || m.GetTasks()[0].GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED {
		t.Errorf("it reports %v", m)
	}
	sessions.Outbox.Sent()
	if turn(TickDue).Ticks {
		t.Error("it asks for ticks, and has no attempts")
	}
	turn(BeatDue)
	if m := sessions.Outbox.Take(); m.GetStats() == nil {
		t.Errorf("a beat says %v", m)
	}
	if next := turn(StopOrdered); !next.Stopped || !errors.Is(w.Stopped(), errLeft) {
		t.Errorf("it goes on: %v", w.Stopped())
	}
	if m := sessions.Outbox.Take(); !m.GetLeaving() {
		t.Errorf("at its end it says %v", m)
	}
}
