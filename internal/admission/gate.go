package admission

import (
	"context"
	"fmt"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/text"
)

// Gate returns the check of a server: a call needs an accepted token whose role may make it, or
// none if the table of package access says so. services are those of the server.
func Gate(tokens access.Tokens, services func() map[string]grpc.ServiceInfo) Check {
	return func(ctx context.Context, method string) (context.Context, bool, error) {
		caller, open := access.Nobody, access.Open(method)
		if len(tokens) > 0 && !open {
			shown, _ := auth.AuthFromMD(ctx, "bearer") // our own errors below say more
			var known bool
			if caller, known = tokens.Find(shown); shown == "" {
				return ctx, false, unauthenticated(method, "the call carries no token: send the metadata \"authorization: Bearer TOKEN\" (the command and the clients read it from MILLRACE_TOKEN or the scheduler file)")
			} else if !known {
				return ctx, false, unauthenticated(method, "the token is not one of this cluster's: use the one that its scheduler printed; it may be of another cluster, or of one that was restarted")
			}
		}
		if err := edge.KnownMethod(services(), method); err != nil {
			return ctx, false, err
		}
		if !access.Listed(method) || len(tokens) > 0 && !open && !access.Allowed(caller.Role, method) {
			return ctx, false, edge.Fit(edge.Refusal(codes.PermissionDenied, "PERMISSION_DENIED",
				fmt.Sprintf("a token of role %q may not call %s: use one of a role that may", caller.Role, text.Cut(method, edge.MetadataBytes)),
				map[string]string{"object": method, "role": string(caller.Role)}))
		}
		return access.With(ctx, caller), open && len(tokens) > 0, nil
	}
}

func unauthenticated(method, message string) error {
	return edge.Fit(edge.Refusal(codes.Unauthenticated, "UNAUTHENTICATED", message, map[string]string{"object": method}))
}
