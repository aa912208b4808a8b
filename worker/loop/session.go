package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

const (
	registerTimeout = 10 * time.Second
	firstBackoff    = 50 * time.Millisecond
	longestBackoff  = time.Second
	// takenTimeout is how long a worker retries while another worker is registered with its name.
	takenTimeout = 20 * time.Second
	// MaxMessageBytes limits the size of messages in both directions. Messages of the scheduler
	// contain functions of up to 32 MiB.
	MaxMessageBytes = 64 << 20
)

// sessions keeps a session with the scheduler until the context ends or the worker leaves (then the
// current session ends with the last message). If the scheduler is unreachable for too long, or
// rejects this worker for good, sessions posts that.
func (w *Worker) sessions(ctx context.Context) {
	backoff := firstBackoff
	lost, taken := time.Now(), 0
	for ctx.Err() == nil {
		registered, err := w.sessionOnce(ctx)
		if ctx.Err() != nil || w.staying.Err() != nil {
			return
		}
		if registered {
			backoff, lost = firstBackoff, time.Now()
		}
		switch code := status.Code(err); code {
		case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument:
			if registered {
				w.post(sessionFailed{fmt.Errorf("the scheduler ended the session: %w", err)})
				return
			}
			w.post(sessionFailed{&RefusedError{err}})
			return
		case codes.AlreadyExists:
			// Another worker has the name. If that worker has died without a sign to the scheduler,
			// its lease ends soon.
			if taken++; time.Since(lost) >= takenTimeout && taken > 1 {
				w.post(sessionFailed{&RefusedError{err}})
				return
			}
		case codes.FailedPrecondition:
			// This incarnation ends; the supervisor starts the next one.
			w.post(sessionFailed{&StoppedError{err.Error()}})
			return
		default:
			taken = 0
		}
		if away := time.Since(lost); away > w.config.SchedulerTimeout {
			w.post(sessionFailed{fmt.Errorf("%w for %v: %w; start it, or look at --address", ErrSchedulerLost, away.Round(time.Second), err)})
			return
		}
		w.post(alone{time.Since(lost)})
		w.log.Warn("session ended, trying again", "error", err, "in", backoff)
		pause := time.NewTimer(backoff)
		select {
		case <-pause.C:
		case <-w.staying.Done():
			pause.Stop()
			return
		case <-ctx.Done():
			pause.Stop()
			return
		}
		backoff = min(2*backoff, longestBackoff)
	}
}

var errReregister = errors.New("the scheduler asked to register anew")

var errOtherLife = errors.New("the scheduler was started anew; registering with nothing")

// renewFor starts a renewal and waits until nothing of the earlier life of the scheduler is left.
func (w *Worker) renewFor(ctx context.Context, life uint64) error {
	r := &renewal{life: life, done: make(chan struct{})}
	w.post(r)
	select {
	case <-r.done:
		return errOtherLife
	case <-w.staying.Done():
		return errLeft
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sessionOnce runs one session to its end.
func (w *Worker) sessionOnce(ctx context.Context) (registered bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// One deadline covers everything until the worker is registered.
	limit := min(registerTimeout, w.config.SchedulerTimeout)
	deadline := time.AfterFunc(limit, func() { cancel(fmt.Errorf("not registered within %v", limit)) })
	defer deadline.Stop()
	// A worker that is leaving does not register: its owner, which builds the registration, has
	// ended.
	undo := context.AfterFunc(w.staying, func() { cancel(errLeft) })
	defer undo()
	stream, err := workerv1.NewWorkerServiceClient(w.config.Scheduler).Session(ctx,
		grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes))
	if err != nil {
		return false, causeOf(ctx, err)
	}
	reply := make(chan *opened, 1)
	w.post(opening{reply})
	var session *opened
	select {
	case session = <-reply:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	undo()
	for _, piece := range pieces(session.registration) {
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
	if life := first.GetRegistered().GetLife(); life != session.life && session.life != 0 && life != 0 {
		return true, w.renewFor(ctx, life)
	}
	w.post(message{session.session, first})
	w.connected.Store(first.GetRegistered() != nil)
	defer w.connected.Store(false)
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		if err := w.send(ctx, stream); err != nil {
			cancel(err)
		}
	}()
	r := &receiving{worker: w, stream: stream, session: session.session, ended: make(chan error, 1)}
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

func (w *Worker) send(ctx context.Context, stream workerv1.WorkerService_SessionClient) error {
	for {
		m := w.outbox.take()
		if m == nil {
			if !w.outbox.wait(ctx) {
				return nil
			}
			continue
		}
		if err := stream.Send(m); err != nil {
			// A message that our side cannot send would also fail in the next session: the
			// connection is not the cause.
			if code := status.Code(err); code == codes.Internal || code == codes.ResourceExhausted {
				w.log.Error("a message to the scheduler cannot be sent; the parts that cannot be sent are left out", "error", err, "what", sendable(m))
			}
			w.outbox.unsent(m)
			// Recv returns the actual error of the stream.
			return nil
		}
		w.outbox.sent()
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
