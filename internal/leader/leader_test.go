package leader

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/edge"
)

// TestRefusalsAreTold: the leader is in a refusal, also after it went through the interceptors of
// our servers, which may shorten errors. Other errors are no refusals.
func TestRefusalsAreTold(t *testing.T) {
	for _, address := range []string{"host:7786", "[::1]:1", ""} {
		for _, err := range []error{Refusal(address), edge.Fit(Refusal(address)), fmt.Errorf("watch: %w", Refusal(address))} {
			if got, refused := Refused(err); got != address || !refused || status.Code(err) != codes.Unavailable {
				t.Errorf("%v: %q, %v; want %q, true", err, got, refused, address)
			}
		}
	}
	other := edge.Refusal(codes.Unavailable, "SCHEDULER_STARTING", "", map[string]string{"leader": "host:1"})
	foreign := edge.Refusal(codes.FailedPrecondition, Reason, "", nil)
	for _, err := range []error{nil, errors.New("x"), status.Error(codes.Unavailable, Reason), other, foreign} {
		if got, refused := Refused(err); refused || got != "" {
			t.Errorf("%v: %q, %v; want no refusal", err, got, refused)
		}
	}
}
