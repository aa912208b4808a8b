package worker

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/admission"
	"github.com/millrace/millrace/internal/edge"
)

// reconnect sets the back-off between attempts to reconnect to the scheduler.
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

// accepts returns a function that reports whether a token is one of those that the configuration
// accepts. It returns nil if no token is required.
func accepts(c Config) func(token string) bool {
	accept := slices.Clone(c.AcceptSums)
	for _, token := range c.AcceptTokens {
		accept = append(accept, sha256.Sum256([]byte(token)))
	}
	if c.Token != "" {
		accept = append(accept, sha256.Sum256([]byte(c.Token)))
	}
	if len(accept) == 0 {
		return nil
	}
	return func(token string) bool {
		found, shown := 0, sha256.Sum256([]byte(token))
		for _, sum := range accept {
			found |= subtle.ConstantTimeCompare(sum[:], shown[:])
		}
		return found != 0
	}
}

// workerTokens returns a function that reports whether a token is the one that workers use among
// themselves (the cluster's token, not that of tasks). It returns nil if there are no tokens.
func workerTokens(c Config) func(token string) bool {
	if c.Token == "" {
		return nil
	}
	return func(shown string) bool { return subtle.ConstantTimeCompare([]byte(c.Token), []byte(shown)) == 1 }
}

// shownToken returns the token that came with a call, empty if there was none.
func shownToken(ctx context.Context) string {
	shown, _ := auth.AuthFromMD(ctx, "bearer") // the error says no more than an empty token
	return shown
}

// authentication returns the check that the data service applies to a call before it reads the
// request. If no token is configured, every call is allowed.
func authentication(c Config) admission.Check {
	accepted := accepts(c)
	return func(ctx context.Context, method string) (open bool, err error) {
		if accepted == nil {
			return false, nil
		}
		shown, _ := auth.AuthFromMD(ctx, "bearer") // our own errors below say more
		if shown == "" {
			return false, unauthenticated(method, `no token: send the cluster's as metadata "authorization: Bearer TOKEN"`)
		}
		if !accepted(shown) {
			return false, unauthenticated(method, "this is not the cluster's token: use the one that its scheduler printed")
		}
		return false, nil
	}
}

func unauthenticated(method, message string) error {
	return edge.Refusal(codes.Unauthenticated, "UNAUTHENTICATED", message, map[string]string{"object": method})
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
