package edge

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// infos returns all ErrorInfos of an error.
func infos(err error) (out []*errdetails.ErrorInfo) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			out = append(out, info)
		}
	}
	return out
}

// TestEveryCodeHasAReason: the only statuses without a reason are those that gRPC itself gives to a
// call whose connection ends.
func TestEveryCodeHasAReason(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		err := Fit(status.Error(code, "m"))
		found := infos(err)
		if code == codes.Unavailable {
			if len(found) != 0 {
				t.Errorf("%v: %v", code, found)
			}
			continue
		}
		if status.Code(err) != code || len(found) != 1 {
			t.Errorf("%v: %v with %v", code, err, found)
			continue
		}
		if _, listed := millracev1.ErrorReason_value["ERROR_REASON_"+found[0].GetReason()]; !listed || found[0].GetDomain() != Domain {
			t.Errorf("%v: %v", code, found[0])
		}
		if said := infos(Fit(Refusal(code, "OBJECT_EXISTS", "m", nil))); len(said) != 1 || said[0].GetReason() != "OBJECT_EXISTS" {
			t.Errorf("%v: %v", code, said)
		}
	}
}

func TestErrorsWithoutAStatus(t *testing.T) {
	for want, err := range map[codes.Code]error{
		codes.OK: nil, codes.Internal: errors.New("x"), codes.Canceled: fmt.Errorf("x: %w", context.Canceled),
		codes.DeadlineExceeded: fmt.Errorf("x: %w", context.DeadlineExceeded), codes.NotFound: fmt.Errorf("x: %w", Refusal(codes.NotFound, "UNKNOWN_TASK", "m", nil)),
	} {
		fitted := Fit(err)
		if status.Code(fitted) != want || err != nil && (len(infos(fitted)) != 1 || status.Convert(fitted).Message() != err.Error() && want != codes.NotFound) {
			t.Errorf("%v: %v with %v", err, fitted, infos(fitted))
		}
	}
}

func TestKnownMethod(t *testing.T) {
	services := map[string]grpc.ServiceInfo{"a.B": {Methods: []grpc.MethodInfo{{Name: "C"}}}}
	if err := KnownMethod(services, "/a.B/C"); err != nil {
		t.Error(err)
	}
	for _, method := range []string{"/a.B/D", "/a.C/C", "/a.B/", "a.B", "", "/"} {
		if found := infos(KnownMethod(services, method)); len(found) != 1 || found[0].GetReason() != "UNIMPLEMENTED" {
			t.Errorf("%q: %v", method, found)
		}
	}
}
