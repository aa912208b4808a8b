package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/schedapi"
)

// flushTimeout is the time that a session which the scheduler ended has to send its remaining
// messages.
const flushTimeout = 2 * time.Second

type workerService struct {
	workerv1.UnimplementedWorkerServiceServer
	*Server
}

type sessionStream = grpc.BidiStreamingServer[workerv1.SessionRequest, workerv1.SessionResponse]

func (s *workerService) ReportWorkerDeath(ctx context.Context, r *workerv1.ReportWorkerDeathRequest) (*workerv1.ReportWorkerDeathResponse, error) {
	if r.GetName() == "" {
		return nil, invalid("name", "it is empty: give the name of the worker that died")
	}
	if err := s.scheduler.ReportDeath(ctx, members.Died{Name: r.GetName(), Death: deathFrom(r.GetDeath()), Calls: callsFrom(r)}); err != nil {
		return nil, err
	}
	return &workerv1.ReportWorkerDeathResponse{}, nil
}

// Session serves one worker. One goroutine reads and one writes. The handler only waits: when it
// returns, both are unblocked.
func (s *workerService) Session(stream sessionStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetRegister() == nil {
		return invalid("register", "it is absent: the first message of a session must register the worker")
	}
	registration, err := wholeRegistration(first.GetRegister(), stream.Recv)
	if err != nil {
		return err
	}
	session, err := s.scheduler.Register(stream.Context(), RegistrationFrom(registration))
	if dead := (*members.Error)(nil); errors.As(err, &dead) && dead.Kind == members.ErrDead {
		return stream.Send(&workerv1.SessionResponse{StopReason: dead.Message})
	}
	if err != nil {
		return err
	}
	err = stream.Send(RegisteredTo(session.Worker(), s.scheduler.Cluster()))
	if err != nil {
		session.Disconnect()
		return err
	}
	read, written := make(chan error, 1), make(chan error, 1)
	s.streams.Go(func() { read <- readSession(stream, session) })
	s.streams.Go(func() { written <- writeSession(stream, session) })
	select {
	case err = <-read:
	case err = <-written:
	case <-session.Done():
		timer := time.NewTimer(flushTimeout)
		defer timer.Stop()
		select {
		case err = <-written:
		case <-timer.C:
		}
		return err
	}
	session.Disconnect()
	return err
}

// RegisteredTo is the first message to a worker that was registered.
func RegisteredTo(worker ids.WorkerID, cluster schedapi.Cluster) *workerv1.SessionResponse {
	return &workerv1.SessionResponse{Registered: &workerv1.Registered{
		WorkerId: uint32(worker), ClusterId: cluster.ID,
		Lease: durationpb.New(cluster.WorkerLease), InlineResultBytes: cluster.InlineResultBytes,
		Life: cluster.Life,
	}}
}

// mostRegistered bounds the objects, and the attempts, in a registration: more than fit into a
// worker's memory.
const mostRegistered = 1 << 28

// wholeRegistration returns a registration together with the inventory of the messages that
// continue it.
func wholeRegistration(whole *workerv1.Registration, recv func() (*workerv1.SessionRequest, error)) (*workerv1.Registration, error) {
	for more := whole.GetMore(); more; {
		next, err := recv()
		if err != nil {
			return nil, err
		}
		piece := next.GetRegister()
		if piece == nil || piece.GetIncarnation() != whole.GetIncarnation() {
			return nil, invalid("register", "it is absent or of another incarnation, and the registration before it goes on (more)")
		}
		whole.Inventory = append(whole.Inventory, piece.GetInventory()...)
		whole.Running = append(whole.Running, piece.GetRunning()...)
		if n := max(len(whole.Inventory), len(whole.Running)); n > mostRegistered {
			return nil, invalid("register.inventory", fmt.Sprintf("it has %d entries, and a worker can register with %d", n, mostRegistered))
		}
		more = piece.GetMore()
	}
	return whole, nil
}

// readSession returns when the worker ends the stream or the connection breaks.
func readSession(stream sessionStream, session schedapi.Session) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			return nil // However it ended, the worker may reconnect.
		}
		if err := session.Report(stream.Context(), InboundFrom(message)); err != nil {
			return err
		}
	}
}

// writeSession sends the collected messages each time the session wakes it, until the scheduler
// ends the session.
func writeSession(stream sessionStream, session schedapi.Session) error {
	var outbound schedapi.Outbound
	var message SessionMessage
	for {
		ended := false
		select {
		case <-session.Wake():
		case <-session.Done():
			ended = true
		case <-stream.Context().Done():
			return nil
		}
		if session.Take(&outbound) {
			if err := message.Send(&outbound, stream.Send, session.Undeliverable); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
	}
}
