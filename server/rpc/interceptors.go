package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"buf.build/go/protovalidate"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
)

// interceptors are, from the outside in: metrics, log, statuses, validation, recovery. Tokens are
// checked earlier, before any of the request is read: see admission.Gate.
func interceptors(config Config, check validation, metrics *grpcprom.ServerMetrics) (unary, stream grpc.ServerOption) {
	log := logging.LoggerFunc(func(ctx context.Context, level logging.Level, message string, fields ...any) {
		config.Log.Log(ctx, slog.Level(level), message, fields...)
	})
	// Calls are logged when they end: a log entry per message would cost more than the task that it
	// carries.
	logged := []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithLevels(callLevel),
	}
	recovered := recovery.WithRecoveryHandlerContext(func(ctx context.Context, cause any) error {
		method, _ := grpc.Method(ctx)
		config.Log.ErrorContext(ctx, "a call panicked", "method", method, "cause", cause, "stack", string(debug.Stack()))
		return fmt.Errorf("internal error in %s: %v: please report it with the scheduler's log", method, cause)
	})
	unary = grpc.ChainUnaryInterceptor(
		metrics.UnaryServerInterceptor(),
		logging.UnaryServerInterceptor(log, logged...),
		unaryStatus,
		current(config.Leads),
		check.unary,
		recovery.UnaryServerInterceptor(recovered),
	)
	stream = grpc.ChainStreamInterceptor(
		metrics.StreamServerInterceptor(),
		logging.StreamServerInterceptor(log, logged...),
		streamStatus,
		currentStream(config.Leads),
		check.stream,
		recovery.StreamServerInterceptor(recovered),
	)
	return unary, stream
}

func unaryStatus(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	response, err := handler(ctx, request)
	return response, statusOf(err)
}

// current refuses calls if another scheduler may lead: a process that was stopped goes on where it
// was, and answers what waits in its sockets before it learns that it leads no more. Of calls that
// only read, what was read is refused. Others are refused before they begin: most schedulers have
// what such a call is told that it has changed, but it may also change nothing, and tell of what
// this one has, as that a queue is empty. If the process stops after that check, such a call is
// answered from the state of before the stop. One scheduler alone has no check.
func current(leads func(context.Context) error) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if leads == nil || !shared(info.FullMethod) {
			return handler(ctx, request)
		}
		if !reads(info.FullMethod) {
			if lost := leads(ctx); lost != nil {
				return nil, lost
			}
			return handler(ctx, request)
		}
		response, err := handler(ctx, request)
		if lost := leads(ctx); lost != nil {
			return nil, lost
		}
		return response, err
	}
}

// currentStream is current for streams that only read. Each message is checked: a stream may go on
// for as long as this scheduler leads. Other streams are not checked.
func currentStream(leads func(context.Context) error) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if leads == nil || !reads(info.FullMethod) {
			return handler(service, stream)
		}
		err := handler(service, &leadingStream{ServerStream: stream, leads: leads})
		if lost := leads(stream.Context()); lost != nil {
			return lost
		}
		return err
	}
}

// leadingStream sends only what was read while this scheduler led.
type leadingStream struct {
	grpc.ServerStream
	leads func(context.Context) error
}

func (s *leadingStream) SendMsg(message any) error {
	if lost := s.leads(s.Context()); lost != nil {
		return lost
	}
	return s.ServerStream.SendMsg(message)
}

// reads reports whether a call changes nothing, and tells of what all schedulers share. Reflection
// is among them, which tells of the program alone: nobody is worse off if it asks.
func reads(method string) bool { return access.Allowed(access.Reader, method) && shared(method) }

// shared reports whether a call is about what all schedulers share. The others need no token, or
// say which scheduler leads.
func shared(method string) bool {
	return !access.Open(method) && method != pb.SchedulerService_ListPeers_FullMethodName
}

func streamStatus(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return statusOf(handler(service, stream))
}

// validation checks requests against the rules in the protos, and against the rights of the caller.
// owner returns the token that has opened a client.
type validation struct {
	validator protovalidate.Validator
	owner     func(ids.ClientID) (token string, known bool)
}

func (v validation) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := v.check(ctx, request); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func (v validation) stream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(service, &validatedStream{ServerStream: stream, validation: v})
}

func (v validation) check(ctx context.Context, message any) error {
	if err := checkCaller(ctx, message, v.owner); err != nil {
		return err
	}
	checked, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	if field := badDuration(message); field != "" {
		return invalid(field, "it is no duration: seconds and nanoseconds have one sign, nanoseconds are below a second")
	}
	err := withoutPlain(message, func() error { return v.validator.Validate(checked) })
	if err == nil {
		return nil
	}
	return invalid(edge.Violation(err))
}

// badDuration returns the name of an invalid duration in a request; empty: none. The rules in the
// protos only compare durations, and accept {seconds: 1, nanos: -5}.
func badDuration(message any) string {
	bad := func(d *durationpb.Duration) bool { return d != nil && d.CheckValid() != nil }
	var header *pb.SubmitHeader
	switch m := message.(type) {
	case *pb.OpenClientRequest:
		if bad(m.GetLeaseTtl()) {
			return "lease_ttl"
		}
	case interface{ GetWait() *durationpb.Duration }:
		if bad(m.GetWait()) {
			return "wait"
		}
	case *pb.SubmitRequest:
		header = m.GetHeader()
		for i, t := range m.GetTemplates() {
			if field := badOptions(t.GetOptions()); field != "" {
				return fmt.Sprintf("templates[%d].%s", i, field)
			}
		}
		if field := badOptions(m.GetOptions()); field != "" {
			return field
		}
	}
	if bad(header.GetRetention()) {
		return "header.retention"
	}
	return ""
}

// badOptions is badDuration for a table of options.
func badOptions(options []*pb.TaskOptions) string {
	bad := func(d *durationpb.Duration) bool { return d != nil && d.CheckValid() != nil }
	for i, o := range options {
		switch {
		case bad(o.GetTimeout()):
			return fmt.Sprintf("options[%d].timeout", i)
		case bad(o.GetRetryBackoff()):
			return fmt.Sprintf("options[%d].retry_backoff", i)
		}
	}
	return ""
}

// validatedStream checks every message except those of workers, of which only the registration has
// rules: their reports are the hot path.
type validatedStream struct {
	grpc.ServerStream
	validation validation
}

func (s *validatedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	if request, ok := message.(*workerv1.SessionRequest); ok {
		if request.GetRegister() == nil {
			return nil
		}
		return s.validation.check(s.Context(), request.GetRegister())
	}
	return s.validation.check(s.Context(), message)
}
