package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

// info returns the code and the ErrorInfo of an error.
func info(t *testing.T, err error) (codes.Code, *errdetails.ErrorInfo) {
	t.Helper()
	s := status.Convert(err)
	for _, detail := range s.Details() {
		if found, ok := detail.(*errdetails.ErrorInfo); ok {
			return s.Code(), found
		}
	}
	t.Fatalf("no ErrorInfo in %v", err)
	return 0, nil
}

func TestEveryKindOfErrorHasACodeAndAReason(t *testing.T) {
	stable := regexp.MustCompile(`^[A-Z]+(_[A-Z]+)+$|^UNAUTHENTICATED$|^DRAINING$`)
	check := func(name string, err error) {
		t.Helper()
		code, detail := info(t, statusOf(fmt.Errorf("while testing: %w", err)))
		if code == codes.Internal || code == codes.OK || code == codes.Unknown {
			t.Errorf("%s: code %v", name, code)
		}
		if !stable.MatchString(detail.GetReason()) || detail.GetDomain() != edge.Domain || detail.GetMetadata()["object"] != "thing" {
			t.Errorf("%s: %v", name, detail)
		}
	}
	kinds := 0
	for kind := sched.ErrGraphHasCycle; machineError(kind).reason != "INTERNAL"; kind++ {
		check(fmt.Sprint("sched kind ", kind), &sched.Error{Kind: kind, Object: "thing", Message: "m"})
		kinds++
	}
	if kinds != int(sched.ErrWorkerNotActive) {
		t.Errorf("%d kinds of the machine have a reason, want %d", kinds, sched.ErrWorkerNotActive)
	}
	for kind := schedapi.ErrUnknownWorker; kind < schedapi.ErrorKinds; kind++ {
		check(fmt.Sprint("front kind ", kind), &schedapi.Error{Kind: kind, Object: "thing", Message: "m"})
	}
}

func TestMessagesAndDetailsReachTheClient(t *testing.T) {
	err := statusOf(fmt.Errorf("ops[1]: %w", &sched.Error{Kind: sched.ErrGraphHasCycle, Object: "a", Message: "a needs itself", Keys: []string{"a", "b"}}))
	code, detail := info(t, err)
	if code != codes.InvalidArgument || detail.GetReason() != "GRAPH_HAS_CYCLE" || detail.GetMetadata()["tasks"] != "a,b" ||
		status.Convert(err).Message() != "ops[1]: a needs itself" {
		t.Errorf("%v with %v", err, detail)
	}
	_, detail = info(t, statusOf(&schedapi.Error{Kind: schedapi.ErrUnknownOp, Message: "m", Metadata: map[string]string{"similar": "x"}}))
	if detail.GetMetadata()["similar"] != "x" {
		t.Errorf("metadata: %v", detail)
	}
}

func TestOtherErrorsKeepTheirMeaning(t *testing.T) {
	for want, err := range map[codes.Code]error{
		codes.OK: nil, codes.Canceled: fmt.Errorf("x: %w", context.Canceled), codes.DeadlineExceeded: context.DeadlineExceeded,
		codes.ResourceExhausted: status.Error(codes.ResourceExhausted, "x"), codes.Internal: errors.Join(io.ErrUnexpectedEOF),
	} {
		if got := status.Code(statusOf(err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
		if err != nil {
			info(t, statusOf(err))
		}
	}
}

func TestOnesThatAreRefusedForLackOfRoomHearWhenToTryAgain(t *testing.T) {
	for _, full := range []error{&sched.Error{Kind: sched.ErrFull, Message: "m"}, &schedapi.Error{Kind: schedapi.ErrSchedulerFull, Message: "m"}} {
		code, detail := info(t, statusOf(full))
		delay := false
		for _, other := range status.Convert(statusOf(full)).Details() {
			if retry, ok := other.(*errdetails.RetryInfo); ok {
				delay = retry.GetRetryDelay().AsDuration() == fullDelay
			}
		}
		if code != codes.ResourceExhausted || detail.GetReason() != "SCHEDULER_FULL" || !delay {
			t.Errorf("%v: %v with %v", full, code, status.Convert(statusOf(full)).Details())
		}
	}
}
