package worker

import (
	"context"
	"crypto/subtle"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
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
	accept := c.AcceptTokens
	if c.Token != "" {
		accept = append(accept[:len(accept):len(accept)], c.Token)
	}
	if len(accept) == 0 {
		return nil
	}
	return func(shown string) bool {
		found := 0
		for _, token := range accept {
			found |= subtle.ConstantTimeCompare([]byte(token), []byte(shown))
		}
		return found != 0
	}
}

// authentication returns the interceptors that ask for a token, none if there is
// none to ask for.
func authentication(c Config) []grpc.ServerOption {
	accepted := accepts(c)
	if accepted == nil {
		return nil
	}
	check := func(ctx context.Context) error {
		shown := ""
		if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
			if scheme, token, ok := strings.Cut(values[0], " "); ok && strings.EqualFold(scheme, "bearer") {
				shown = token
			}
		}
		if shown == "" {
			return status.Error(codes.Unauthenticated, `no token: send the cluster's as metadata "authorization: Bearer TOKEN"`)
		}
		if !accepted(shown) {
			return status.Error(codes.Unauthenticated, "this is not the cluster's token; use the one that its scheduler printed")
		}
		return nil
	}
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := check(ctx); err != nil {
				return nil, err
			}
			return next(ctx, request)
		}),
		grpc.StreamInterceptor(func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := check(stream.Context()); err != nil {
				return err
			}
			return next(server, stream)
		}),
	}
}
