package rpc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"buf.build/go/protovalidate"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/server/schedapi"
)

// Role is the set of rights that a token gives.
type Role string

// Roles. An operator may do everything. A worker may only make the calls of workers and their
// supervisors, which clients and readers may not make. A client may make all other calls, except to
// stop the cluster. A reader may only read.
const (
	RoleClient   Role = "client"
	RoleWorker   Role = "worker"
	RoleOperator Role = "operator"
	RoleReader   Role = "read-only"
)

// interceptors are, from the outside in: metrics, log, statuses, validation, recovery. Tokens are
// checked earlier, before any of the request is read: see gate.admit.
func interceptors(config Config, validator protovalidate.Validator, metrics *grpcprom.ServerMetrics) (unary, stream grpc.ServerOption) {
	log := logging.LoggerFunc(func(ctx context.Context, level logging.Level, message string, fields ...any) {
		config.Log.Log(ctx, slog.Level(level), message, fields...)
	})
	// Calls are logged when they end: a log entry per message would cost more than the task that it
	// carries.
	logged := []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithLevels(callLevel),
	}
	check := validation{validator}
	recovered := recovery.WithRecoveryHandlerContext(func(ctx context.Context, cause any) error {
		method, _ := grpc.Method(ctx)
		config.Log.ErrorContext(ctx, "a call panicked", "method", method, "cause", cause, "stack", string(debug.Stack()))
		return fmt.Errorf("internal error in %s: %v: please report it with the scheduler's log", method, cause)
	})
	unary = grpc.ChainUnaryInterceptor(
		metrics.UnaryServerInterceptor(),
		logging.UnaryServerInterceptor(log, logged...),
		unaryStatus,
		check.unary,
		recovery.UnaryServerInterceptor(recovered),
	)
	stream = grpc.ChainStreamInterceptor(
		metrics.StreamServerInterceptor(),
		logging.StreamServerInterceptor(log, logged...),
		streamStatus,
		check.stream,
		recovery.StreamServerInterceptor(recovered),
	)
	return unary, stream
}

func unaryStatus(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	response, err := handler(ctx, request)
	return response, statusOf(err)
}

func streamStatus(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return statusOf(handler(service, stream))
}

// gate checks tokens.
type gate map[string]Role

// admit accepts a call if its token's role allows the method. Health is open, because load
// balancers have no tokens: open reports such a call. Without any configured tokens every call is
// accepted, and its connection counts as one with a token.
func (g gate) admit(ctx context.Context, method string) (open bool, err error) {
	if len(g) == 0 {
		return false, nil
	}
	if strings.HasPrefix(method, "/"+healthpb.Health_ServiceDesc.ServiceName+"/") {
		return true, nil
	}
	return false, statusOf(g.check(ctx, method))
}

func (g gate) check(ctx context.Context, method string) error {
	token, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil || token == "" {
		return &schedapi.Error{Kind: schedapi.ErrUnauthenticated, Object: method,
			Message: "the call carries no token: send the metadata \"authorization: Bearer TOKEN\" (the command and the clients read it from MILLRACE_TOKEN or the scheduler file)"}
	}
	role, known := g.role(token)
	if !known {
		return &schedapi.Error{Kind: schedapi.ErrUnauthenticated, Object: method,
			Message: "the token is not one of this scheduler's: it may be of another cluster, or of one that was restarted"}
	}
	if !allowed(role, method) {
		return &schedapi.Error{Kind: schedapi.ErrPermissionDenied, Object: method,
			Message:  fmt.Sprintf("a token of role %q may not call %s: use one of a role that may", role, method),
			Metadata: map[string]string{"role": string(role)}}
	}
	return nil
}

// Knows reports whether a token is one of the given ones. Without any, every token is accepted.
func Knows(tokens map[string]Role, token string) bool {
	_, known := gate(tokens).role(token)
	return known || len(tokens) == 0
}

// role finds a token. It takes the same time whichever token matches.
func (g gate) role(token string) (Role, bool) {
	var found Role
	given, known := sha256.Sum256([]byte(token)), false
	for candidate, role := range g {
		sum := sha256.Sum256([]byte(candidate))
		if subtle.ConstantTimeCompare(sum[:], given[:]) == 1 {
			found, known = role, true
		}
	}
	return found, known
}

// forOperators are the calls that tasks may not make.
var forOperators = map[string]bool{
	pb.SchedulerService_Shutdown_FullMethodName: true, pb.SchedulerService_DrainWorkers_FullMethodName: true,
	pb.SchedulerService_RetireWorkers_FullMethodName: true, pb.SchedulerService_RestartWorkers_FullMethodName: true,
	pb.SchedulerService_Rebalance_FullMethodName: true,
}

func allowed(role Role, method string) bool {
	if strings.HasPrefix(method, "/grpc.reflection.") {
		return true
	}
	if strings.HasPrefix(method, "/millrace.worker.v1.") {
		return role == RoleWorker || role == RoleOperator
	}
	switch role {
	case RoleOperator:
		return true
	case RoleClient:
		return !forOperators[method]
	case RoleReader:
		name := method[strings.LastIndexByte(method, '/')+1:]
		return strings.HasPrefix(name, "Get") || strings.HasPrefix(name, "List") ||
			name == "ExplainTask" || name == "LocateObjects" || name == "Watch"
	case RoleWorker:
		return false
	}
	return false
}

// validation checks requests against the rules in the protos.
type validation struct{ validator protovalidate.Validator }

func (v validation) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := v.check(request); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func (v validation) stream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(service, &validatedStream{ServerStream: stream, validation: v})
}

func (v validation) check(message any) error {
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
	var options []*pb.TaskOptions
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
		options, header = m.GetOptions(), m.GetHeader()
	}
	if bad(header.GetRetention()) {
		return "header.retention"
	}
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
		return s.validation.check(request.GetRegister())
	}
	return s.validation.check(message)
}
