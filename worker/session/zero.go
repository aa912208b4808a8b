package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/value"
)

// ZeroConfig configures a worker that executes nothing; it measures the overhead of everything
// else.
type ZeroConfig struct {
	Registration *workerv1.Registration
	Scheduler    grpc.ClientConnInterface
	// RSS returns the resident memory of the process in bytes.
	RSS func() uint64
	Log *slog.Logger
	// Ready, if set, is called at the first registration.
	Ready func(ids.WorkerID)
}

// RunZero answers each assignment at once as succeeded, with a null result, and forgets it: the
// time that is left is the cost of everything but the execution. It ends when its stream ends. It
// returns nil if the context ended (it then tells the scheduler that it leaves) or if the scheduler
// stopped it.
func RunZero(ctx context.Context, c ZeroConfig) error {
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	undo := context.AfterFunc(ctx, cancel)
	stream, err := workerv1.NewWorkerServiceClient(c.Scheduler).Session(streaming, grpc.WaitForReady(true),
		grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes))
	// A registered worker says that it leaves, so the context does not end the stream from here on.
	if !undo() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("zero worker: %w", err)
	}
	if err := stream.Send(&workerv1.SessionRequest{Register: c.Registration}); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("zero worker: register: %w", err)
	}
	replies := make(chan *workerv1.SessionRequest, 64)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		zeroSend(ctx, c, stream, replies, cancel)
	}()
	err = zeroReceive(c, stream, replies)
	close(replies)
	<-sent
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// zeroSend sends replies, and a heartbeat every second. When the context ends it sends that the
// worker leaves. If the scheduler then does not end the stream within the farewell time, zeroSend
// does, by calling end.
func zeroSend(ctx context.Context, c ZeroConfig, stream workerv1.WorkerService_SessionClient, replies <-chan *workerv1.SessionRequest, end func()) {
	told := ctx.Done()
	beats := time.NewTicker(lifecycle.Beat)
	defer beats.Stop()
	broken := false
	for {
		var m *workerv1.SessionRequest
		var more bool
		select {
		case m, more = <-replies:
			if !more {
				_ = stream.CloseSend() // it never fails
				return
			}
		case <-beats.C:
			m = &workerv1.SessionRequest{Stats: &workerv1.WorkerStats{RssBytes: c.RSS()}}
		case <-told:
			told = nil
			m = &workerv1.SessionRequest{Leaving: true}
		}
		// Recv reports a broken stream. Replies are still taken until then, so that zeroReceive
		// does not block.
		broken = broken || stream.Send(m) != nil
		if m.GetLeaving() && !broken {
			_ = stream.CloseSend() // it never fails
			broken = true
			defer time.AfterFunc(lifecycle.Farewell, end).Stop()
		}
	}
}

func zeroReceive(c ZeroConfig, stream workerv1.WorkerService_SessionClient, replies chan<- *workerv1.SessionRequest) error {
	null := value.Null()
	leaving := false
	m := new(workerv1.SessionResponse)
	for {
		// The message is reused, which saves the allocation that Recv would make.
		if err := stream.RecvMsg(m); err != nil {
			if leaving || errors.Is(err, io.EOF) {
				return io.EOF
			}
			return fmt.Errorf("zero worker: session: %w", err)
		}
		if r := m.GetRegistered(); r != nil {
			c.Log.Info("registered", "id", ids.WorkerID(r.GetWorkerId()), "cluster", r.GetClusterId())
			if c.Ready != nil {
				c.Ready(ids.WorkerID(r.GetWorkerId()))
			}
		}
		if m.GetStopReason() != "" || m.GetLeave() != nil {
			leaving = true
			replies <- &workerv1.SessionRequest{Leaving: true}
			continue
		}
		reply := &workerv1.SessionRequest{}
		if n := len(m.GetAssignments()); n > 0 {
			reports := make([]workerv1.TaskReport, n)
			reply.Tasks = make([]*workerv1.TaskReport, n)
			for i, a := range m.GetAssignments() {
				r := &reports[i]
				r.TaskId, r.Attempt = a.GetTaskId(), a.GetAttempt()
				r.Outcome = workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED
				r.OutputBytes, r.InlineResult = uint64(len(null)), null
				reply.Tasks[i] = r
			}
		}
		for _, r := range m.GetRetractions() {
			reply.Tasks = append(reply.Tasks, &workerv1.TaskReport{TaskId: r.GetTaskId(), Attempt: r.GetAttempt(), Outcome: workerv1.TaskOutcome_TASK_OUTCOME_RETRACT_REFUSED})
		}
		if len(reply.GetTasks()) > 0 {
			replies <- reply
		}
	}
}
