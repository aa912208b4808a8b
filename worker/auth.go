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

// reconnect is how a lost scheduler is looked for.
var reconnect = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// bearer is a token that goes with each call.
type bearer string

// GetRequestMetadata is part of credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity is part of credentials.PerRPCCredentials. The operator
// decides about TLS.
func (bearer) RequireTransportSecurity() bool { return false }

// accepts returns what says whether a token is one of the cluster's, nil if there
// is none to ask for.
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

// workerTokens returns what says whether a token is one that workers show each other: the cluster's, and not that of tasks. Nil
// if there are no tokens.
func workerTokens(c Config) func(token string) bool {
	if c.Token == "" {
		return nil
	}
	return func(shown string) bool { return subtle.ConstantTimeCompare([]byte(c.Token), []byte(shown)) == 1 }
}

// shownToken is what a call came with, empty if nothing.
func shownToken(ctx context.Context) string {
	shown, _ := auth.AuthFromMD(ctx, "bearer") // its error says no more than an empty token
	return shown
}

// authentication is what the data service asks of calls before it reads their
// requests; without a token to ask for all may be made.
func authentication(c Config) admission.Check {
	accepted := accepts(c)
	return func(ctx context.Context, _ string) (open bool, err error) {
		if accepted == nil {
			return false, nil
		}
		shown, _ := auth.AuthFromMD(ctx, "bearer") // its error says less than ours
		if shown == "" {
			return false, status.Error(codes.Unauthenticated, `no token: send the cluster's as metadata "authorization: Bearer TOKEN"`)
		}
		if !accepted(shown) {
			return false, status.Error(codes.Unauthenticated, "this is not the cluster's token; use the one that its scheduler printed")
		}
		return false, nil
	}
}

// checking has the calls of the data service end in statuses that can be sent, refuses requests against the rules in the protos, and has
// a panic fail its call with INTERNAL, and not end the worker, which has the results of others in its memory.
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
