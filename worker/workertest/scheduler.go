// Package workertest is Test support: a scheduler that sends the messages of a test,
// and collects the reports of workers.
package workertest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// EventTimeout is how long a test waits for an event that must happen.
const EventTimeout = 5 * time.Minute

// Scheduler is a WorkerService over loopback. Accept returns its sessions.
type Scheduler struct {
	workerv1.UnimplementedWorkerServiceServer
	Address string
	// InlineResultBytes is the limit for inline results that is sent to workers.
	InlineResultBytes uint32
	// Refuse, if set before any worker starts, is the error that ends each attempt to open a
	// session.
	Refuse error
	// Life is the number of the scheduler's life, sent in the welcome. 0: workers do not wait until
	// the scheduler accepts the objects that clients write. Otherwise the test must accept them.
	// Set it between sessions only.
	Life atomic.Uint64
	// Deaths receives the reports of supervisors.
	Deaths chan *workerv1.ReportWorkerDeathRequest

	sessions chan *Session
	server   *grpc.Server
	mu       sync.Mutex
	workers  uint32 // guarded by mu
}

// NewScheduler starts a scheduler that ends with the test.
func NewScheduler(tb testing.TB) *Scheduler {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &Scheduler{
		Address: listener.Addr().String(), InlineResultBytes: 64 << 10,
		Deaths: make(chan *workerv1.ReportWorkerDeathRequest, 100), sessions: make(chan *Session, 100),
		server: grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20)),
	}
	workerv1.RegisterWorkerServiceServer(s.server, s)
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(listener) }()
	tb.Cleanup(func() {
		s.server.Stop()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	})
	return s
}

// Stop ends the scheduler before the end of the test.
func (s *Scheduler) Stop() { s.server.Stop() }

// Session is one stream of one worker.
type Session struct {
	Registration *workerv1.Registration
	ID           uint32

	tb      testing.TB
	out     chan *workerv1.SessionResponse
	in      chan *workerv1.SessionRequest
	breakIt chan error
	ended   chan struct{}
	// The fields below belong to the test's goroutine. They hold received reports that no call of
	// Report has consumed yet.
	Tasks   []*workerv1.TaskReport
	Objects []*workerv1.ObjectReport
	Missing [][]byte
	Rescues []*workerv1.RescueReport
	Stats   *workerv1.WorkerStats
	Leaving bool
	// Draining counts the requests for permission to leave.
	Draining int
}

// Session implements WorkerServiceServer.
func (s *Scheduler) Session(stream grpc.BidiStreamingServer[workerv1.SessionRequest, workerv1.SessionResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	for more := first.GetRegister().GetMore(); more; {
		next, err := stream.Recv()
		if err != nil {
			return err
		}
		whole, piece := first.GetRegister(), next.GetRegister()
		whole.Inventory, whole.Running = append(whole.Inventory, piece.GetInventory()...), append(whole.Running, piece.GetRunning()...)
		more = piece.GetMore()
	}
	if s.Refuse != nil {
		return s.Refuse
	}
	s.mu.Lock()
	s.workers++
	id := s.workers
	s.mu.Unlock()
	session := &Session{
		Registration: first.GetRegister(), ID: id,
		out: make(chan *workerv1.SessionResponse, 1000), in: make(chan *workerv1.SessionRequest, 100000),
		breakIt: make(chan error, 1), ended: make(chan struct{}),
	}
	defer close(session.ended)
	if err := stream.Send(&workerv1.SessionResponse{Registered: &workerv1.Registered{
		WorkerId: id, ClusterId: "test", Lease: durationpb.New(5 * time.Second), InlineResultBytes: s.InlineResultBytes, Life: s.Life.Load(),
	}}); err != nil {
		return err
	}
	s.sessions <- session
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			session.in <- m
		}
	}()
	for {
		select {
		case m := <-session.out:
			if err := stream.Send(m); err != nil {
				return err
			}
		case err := <-session.breakIt:
			return err
		case <-gone:
			return nil
		}
	}
}

// ReportWorkerDeath implements WorkerServiceServer.
func (s *Scheduler) ReportWorkerDeath(_ context.Context, r *workerv1.ReportWorkerDeathRequest) (*workerv1.ReportWorkerDeathResponse, error) {
	s.Deaths <- r
	return &workerv1.ReportWorkerDeathResponse{}, nil
}

// Accept waits for the next session.
func (s *Scheduler) Accept(tb testing.TB) *Session {
	tb.Helper()
	select {
	case session := <-s.sessions:
		session.tb = tb
		return session
	case <-time.After(EventTimeout):
		tb.Fatal("no worker registered")
		return nil
	}
}

// Send sends a message to the worker.
func (s *Session) Send(m *workerv1.SessionResponse) { s.out <- m }

// Break ends the stream with an error.
func (s *Session) Break(err error) { s.breakIt <- err }

// Ended is closed when the stream has ended.
func (s *Session) Ended() <-chan struct{} { return s.ended }

func (s *Session) take(m *workerv1.SessionRequest) {
	s.Tasks = append(s.Tasks, m.GetTasks()...)
	s.Objects = append(s.Objects, m.GetObjects()...)
	s.Rescues = append(s.Rescues, m.GetRescues()...)
	s.Missing = append(s.Missing, m.GetMissingFunctions()...)
	if m.GetStats() != nil {
		s.Stats = m.GetStats()
	}
	s.Leaving = s.Leaving || m.GetLeaving()
	if m.GetDraining() {
		s.Draining++
	}
}

// Until receives messages of the worker until done returns true. It fails the test after
// EventTimeout; the argument names the awaited event in the error.
func (s *Session) Until(what string, done func() bool) {
	s.tb.Helper()
	limit := time.NewTimer(EventTimeout)
	defer limit.Stop()
	for !done() {
		select {
		case m := <-s.in:
			s.take(m)
		case <-limit.C:
			s.tb.Fatalf("waited %v for %s; heard of tasks %v, objects %v", EventTimeout, what, s.Tasks, s.Objects)
		}
	}
}

// Report waits for a report on a task with one of the outcomes (default:
// any but STARTED) and removes it from Tasks.
func (s *Session) Report(task uint64, outcomes ...workerv1.TaskOutcome) *workerv1.TaskReport {
	s.tb.Helper()
	var found *workerv1.TaskReport
	s.Until(fmt.Sprintf("a report on task %d %v", task, outcomes), func() bool {
		for i, r := range s.Tasks {
			if r.GetTaskId() != task {
				continue
			}
			match := len(outcomes) == 0 && r.GetOutcome() != workerv1.TaskOutcome_TASK_OUTCOME_STARTED
			for _, o := range outcomes {
				match = match || r.GetOutcome() == o
			}
			if match {
				found = r
				s.Tasks = append(s.Tasks[:i:i], s.Tasks[i+1:]...)
				return true
			}
		}
		return false
	})
	return found
}

// Op defines an op.
func (s *Session) Op(id uint32, kind millracev1.OpKind, name string) {
	s.Send(&workerv1.SessionResponse{Ops: []*workerv1.OpDefinition{{OpId: id, Op: &millracev1.Op{Kind: kind, Name: name}}}})
}

// Assign assigns tasks.
func (s *Session) Assign(a ...*workerv1.Assignment) {
	s.Send(&workerv1.SessionResponse{Assignments: a})
}

// Arguments packs positional arguments: strings, ints, floats, *Value.
func Arguments(values ...any) []byte {
	a := &millracev1.Arguments{}
	for _, v := range values {
		a.Positional = append(a.Positional, ValueOf(v))
	}
	b, err := proto.Marshal(a)
	if err != nil {
		panic(err)
	}
	return b
}

// Input refers to an input by its index.
type Input uint32

// ValueOf converts a Go value.
func ValueOf(v any) *millracev1.Value {
	switch v := v.(type) {
	case string:
		return &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: v}}
	case int:
		return &millracev1.Value{Kind: &millracev1.Value_IntValue{IntValue: int64(v)}}
	case float64:
		return &millracev1.Value{Kind: &millracev1.Value_DoubleValue{DoubleValue: v}}
	case Input:
		return &millracev1.Value{Kind: &millracev1.Value_Input{Input: uint32(v)}}
	case []any:
		l := &millracev1.ListValue{}
		for _, e := range v {
			l.Values = append(l.Values, ValueOf(e))
		}
		return &millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: l}}
	case *millracev1.Value:
		return v
	}
	panic(fmt.Sprintf("workertest: a value of type %T", v))
}

// Decode parses a serialised value.
func Decode(tb testing.TB, b []byte) *millracev1.Value {
	tb.Helper()
	v := new(millracev1.Value)
	if err := proto.Unmarshal(b, v); err != nil {
		tb.Fatal(err)
	}
	return v
}

// ValueBytes serialises a value.
func ValueBytes(tb testing.TB, v *millracev1.Value) []byte {
	tb.Helper()
	b, err := proto.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}
