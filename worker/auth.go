package worker

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/edge"
)

// reconnect sets the back-off between attempts to reconnect to the scheduler: at most a second,
// which is short beside the grace that the scheduler gives a disconnected worker.
var reconnect = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// bearer is a token that is sent with each call.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. It returns false,
// since the operator decides whether TLS is used.
func (bearer) RequireTransportSecurity() bool { return false }

// tokens are those that a worker accepts; none: everybody may do everything.
func (c Config) tokens() access.Tokens {
	if c.Token == "" {
		return c.Accept
	}
	return append(slices.Clone(c.Accept), access.TokenOf(c.Token, access.Worker))
}

// accepts returns a function that reports whether a token may be used for what a call does, by
// another way than that call.
func (c Config) accepts(method string) func(token string) bool {
	tokens := c.tokens()
	return func(token string) bool { return tokens.Allows(token, method) }
}

// checking returns server options that do three things for the calls of the data service:
// they turn errors into statuses that can be sent, they refuse requests that violate the validation
// rules of the protos, and they turn a panic into INTERNAL for that one call.
// A panic must not end the worker, because its memory holds the results of other tasks.
func checking(log *slog.Logger) ([]grpc.ServerOption, error) {
	validator, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("worker: rules of requests: %w", err)
	}
	check := edge.Check{Validator: validator}
	recovered := recovery.WithRecoveryHandlerContext(func(_ context.Context, cause any) error {
		log.Error("a panic was caught", "in", "the data service", "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
		return status.Errorf(codes.Internal, "internal error: %v; the log of the worker has more", cause)
	})
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(edge.UnaryStatus, check.Unary, recovery.UnaryServerInterceptor(recovered)),
		grpc.ChainStreamInterceptor(edge.StreamStatus, check.Stream, recovery.StreamServerInterceptor(recovered)),
	}, nil
}
