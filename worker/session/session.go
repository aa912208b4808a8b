// Package session is an Adapter: it keeps a worker's session with the scheduler. It registers the
// worker, passes the scheduler's messages to the owner of the worker's loop, and sends what the
// owner puts into the outbox.
package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/leader"
)

// Config is fixed for the life of a worker.
type Config struct {
	// Scheduler is the connection to the scheduler, or to the leader of several. The caller closes
	// it.
	Scheduler grpc.ClientConnInterface
	// Timeout is how long the scheduler may be unreachable.
	Timeout time.Duration
	Outbox  *Outbox
	// Tell passes an event to the owner. It does not wait.
	Tell func(Event)
	// Receive passes a message to the owner, or handles it if the caller can be the owner. The
	// caller must carry out the fetch that it may return (see package peers): before a long wait
	// the fetch calls leave. The caller calls after then, or after the fetch.
	Receive func(Message) (fetch func(leave func()), after func())
	Log     *slog.Logger
}

// Event is what the owner is told: an Opening, a Message, a *Renewal, Alone or Failed.
type Event interface{ event() }

type (
	// Opening requests a registration for a new session. Reply has room for it.
	Opening struct {
		Session uint64
		Reply   chan<- *workerv1.Registration
	}
	// Message is a message of the scheduler in a session.
	Message struct {
		Session  uint64
		Response *workerv1.SessionResponse
	}
	// Renewal says that the scheduler has another life than in the last session. The owner closes
	// Done when nothing of the earlier life is left.
	Renewal struct {
		Life uint64
		Done chan struct{}
	}
	// Alone says for how long there has been no session.
	Alone struct{ Since time.Duration }
	// Failed says that the session loop has given up.
	Failed struct{ Err error }
)

func (Opening) event()  {}
func (Message) event()  {}
func (*Renewal) event() {}
func (Alone) event()    {}
func (Failed) event()   {}

// Sessions are the sessions of one worker, one after the other.
type Sessions struct {
	config Config
	// opened counts the sessions.
	opened uint64
	// connected: a session with the scheduler is registered.
	connected atomic.Bool
	// staying ends, through quit, when the worker leaves.
	staying context.Context //nolint:containedctx // a state that the session's goroutine waits for
	quit    context.CancelFunc
}

// New returns Sessions that do not run yet.
func New(c Config) *Sessions {
	s := &Sessions{config: c}
	s.staying, s.quit = context.WithCancel(context.Background())
	return s
}

// Connected reports whether the worker has a session with the scheduler now.
func (s *Sessions) Connected() bool { return s.connected.Load() }

// Leave says that the worker leaves: Run ends with the current session.
func (s *Sessions) Leave() { s.quit() }

const (
	// registerTimeout limits the time until a session is registered: a large inventory takes
	// seconds.
	registerTimeout = 10 * time.Second
	// firstBackoff and longestBackoff are the pauses between sessions: a scheduler that restarts
	// has its workers back within a second.
	firstBackoff   = 50 * time.Millisecond
	longestBackoff = time.Second
	// takenTimeout is how long a worker retries while another worker is registered with its name:
	// some leases of the other one.
	takenTimeout = 20 * time.Second
	// MaxMessageBytes limits the size of messages in both directions. Messages of the scheduler
	// contain functions of up to 32 MiB.
	MaxMessageBytes = 64 << 20
)

// Run keeps a session with the scheduler until the context ends or the worker leaves (then the
// current session ends with the last message). If the scheduler is unreachable for too long, or
// rejects this worker for good, Run tells that.
func (s *Sessions) Run(ctx context.Context) {
	backoff := firstBackoff
	lost, taken, refusals := time.Now(), 0, 0
	for ctx.Err() == nil {
		registered, err := s.once(ctx)
		if ctx.Err() != nil || s.staying.Err() != nil {
			return
		}
		if registered {
			backoff, lost = firstBackoff, time.Now()
		}
		switch code := status.Code(err); code {
		case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument:
			if registered {
				s.config.Tell(Failed{fmt.Errorf("the scheduler ended the session: %w", err)})
				return
			}
			s.config.Tell(Failed{&RefusedError{err}})
			return
		case codes.AlreadyExists:
			// Another worker has the name. If that worker has died without a sign to the scheduler,
			// its lease ends soon.
			if taken++; time.Since(lost) >= takenTimeout && taken > 1 {
				s.config.Tell(Failed{&RefusedError{err}})
				return
			}
		case codes.FailedPrecondition:
			// This incarnation ends; the supervisor starts the next one.
			s.config.Tell(Failed{&StoppedError{err.Error()}})
			return
		default:
			taken = 0
		}
		if away := time.Since(lost); away > s.config.Timeout {
			s.config.Tell(Failed{fmt.Errorf("%w for %v: %w; start it, or look at --address", ErrSchedulerLost, away.Round(time.Second), err)})
			return
		}
		if _, refused := leader.Refused(err); !refused {
			refusals = 0
		} else if refusals++; refusals%leader.Addresses(s.config.Scheduler) != 0 {
			continue // the next session is with another scheduler
		}
		s.config.Tell(Alone{time.Since(lost)})
		s.config.Log.Warn("session ended, trying again", "error", err, "in", backoff)
		select {
		case <-time.After(backoff):
		case <-s.staying.Done():
			return
		case <-ctx.Done():
			return
		}
		backoff = min(2*backoff, longestBackoff)
	}
}

var errLeaving = errors.New("the worker leaves")

var errReregister = errors.New("the scheduler asked to register anew")

var errOtherLife = errors.New("the scheduler was started anew; registering with nothing")

// renewFor starts a renewal and waits until nothing of the earlier life of the scheduler is left.
func (s *Sessions) renewFor(ctx context.Context, life uint64) error {
	r := &Renewal{Life: life, Done: make(chan struct{})}
	s.config.Tell(r)
	select {
	case <-r.Done:
		return errOtherLife
	case <-s.staying.Done():
		return errLeaving
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// once runs one session to its end.
func (s *Sessions) once(ctx context.Context) (registered bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// One deadline covers everything until the worker is registered.
	limit := min(registerTimeout, s.config.Timeout)
	deadline := time.AfterFunc(limit, func() { cancel(fmt.Errorf("not registered within %v", limit)) })
	defer deadline.Stop()
	// A worker that is leaving does not register: its owner, which builds the registration, has
	// ended.
	undo := context.AfterFunc(s.staying, func() { cancel(errLeaving) })
	defer undo()
	stream, err := workerv1.NewWorkerServiceClient(s.config.Scheduler).Session(ctx,
		grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes))
	if err != nil {
		return false, causeOf(ctx, err)
	}
	s.opened++
	reply := make(chan *workerv1.Registration, 1)
	s.config.Tell(Opening{s.opened, reply})
	var registration *workerv1.Registration
	select {
	case registration = <-reply:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	undo()
	before := registration.GetLife()
	for _, piece := range pieces(registration) {
		if err := stream.Send(&workerv1.SessionRequest{Register: piece}); errors.Is(err, io.EOF) {
			break // Recv returns the reason
		} else if err != nil {
			return false, causeOf(ctx, err)
		}
	}
	first, err := stream.Recv()
	if err != nil {
		return false, causeOf(ctx, err)
	}
	if first.GetRegistered() == nil && first.GetStopReason() == "" {
		return false, status.Error(codes.Internal, "the scheduler's first message does not say that we are registered")
	}
	deadline.Stop()
	if life := first.GetRegistered().GetLife(); life != before && before != 0 && life != 0 {
		return true, s.renewFor(ctx, life)
	}
	s.config.Tell(Message{s.opened, first})
	s.connected.Store(first.GetRegistered() != nil)
	defer s.connected.Store(false)
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		if err := s.send(ctx, stream); err != nil {
			cancel(err)
		}
	}()
	r := &receiving{sessions: s, stream: stream, session: s.opened, ended: make(chan error, 1)}
	go r.run() // until the stream ends
	err = causeOf(ctx, <-r.ended)
	cancel(nil)
	<-sending
	return true, err
}

// maxRegistered is the largest number of objects, and of attempts, in one message of a
// registration: about 20 MiB of objects.
const maxRegistered = 1 << 20

// pieces divides a registration into messages, each with a part of the inventory and of the running
// attempts.
func pieces(whole *workerv1.Registration) (out []*workerv1.Registration) {
	inventory, running := whole.GetInventory(), whole.GetRunning()
	whole.Inventory, whole.Running = nil, nil
	for {
		piece := proto.Clone(whole).(*workerv1.Registration)
		piece.Inventory, inventory = split(inventory, maxRegistered)
		piece.Running, running = split(running, maxRegistered)
		piece.More = len(inventory)+len(running) > 0
		if out = append(out, piece); !piece.More {
			return out
		}
	}
}

func (s *Sessions) send(ctx context.Context, stream workerv1.WorkerService_SessionClient) error {
	for {
		m := s.config.Outbox.Take()
		if m == nil {
			if !s.config.Outbox.Wait(ctx) {
				return nil
			}
			continue
		}
		if err := stream.Send(m); err != nil {
			// A message that our side cannot send would also fail in the next session: the
			// connection is not the cause.
			if code := status.Code(err); code == codes.Internal || code == codes.ResourceExhausted {
				s.config.Log.Error("a message to the scheduler cannot be sent; the parts that cannot be sent are left out", "error", err, "what", sendable(m))
			}
			s.config.Outbox.unsent(m)
			// Recv returns the actual error of the stream.
			return nil
		}
		s.config.Outbox.Sent()
		if m.GetLeaving() {
			_ = stream.CloseSend() // it never fails
		}
	}
}

// causeOf returns the cause of a cancelled context, if it has one, rather than the bare "context
// canceled" that gRPC returns.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// receiving receives the messages of the scheduler in a session. One goroutine at a time does this.
// It also carries out the first fetch that results from a short message: it has found the object
// and begun to copy it before another goroutine could have been woken, especially if the processors
// were idle. Before such a fetch waits for long, another goroutine continues to receive, and this
// one ends with the fetch.
type receiving struct {
	sessions *Sessions
	stream   workerv1.WorkerService_SessionClient
	session  uint64
	// ended has room for one value: the reason why receiving has ended.
	ended chan error
}

// run receives until the stream ends or another goroutine has taken over.
func (r *receiving) run() {
	for {
		m, err := r.stream.Recv()
		if err != nil {
			r.ended <- err
			return
		}
		if m.GetReregister() {
			r.sessions.config.Tell(Message{r.session, m})
			r.ended <- errReregister
			return
		}
		fetch, after := r.sessions.config.Receive(Message{r.session, m})
		if fetch == nil {
			continue
		}
		replaced := false
		fetch(func() {
			replaced = true
			after()
			go r.run()
		})
		if replaced {
			return
		}
		after()
	}
}

// ErrSchedulerLost says that the scheduler was unreachable for longer than SchedulerTimeout.
var ErrSchedulerLost = errors.New("the scheduler is away")

// StoppedError is returned when the scheduler told the worker to stop.
type StoppedError struct{ Reason string }

// Error is part of error.
func (e *StoppedError) Error() string { return "stopped by the scheduler: " + e.Reason }

// RestartError is returned when the worker has left so that its supervisor starts it again.
type RestartError struct{ Reason string }

// Error is part of error.
func (e *RestartError) Error() string { return e.Reason }

// RefusedError says that the scheduler rejects this worker, and always will.
type RefusedError struct{ Err error }

// Error is part of error.
func (e *RefusedError) Error() string { return "the scheduler refuses this worker: " + e.Err.Error() }

func (e *RefusedError) Unwrap() error { return e.Err }
