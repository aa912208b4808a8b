package rpc

import (
	"errors"
	"maps"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// errorClass is the wire form of an error kind. Reasons are stable: clients match on them.
type errorClass struct {
	code   codes.Code
	reason string
}

// machineError returns the wire form of a refusal by the machine.
func machineError(kind sched.ErrorKind) errorClass {
	switch kind {
	case sched.ErrGraphHasCycle:
		return errorClass{codes.InvalidArgument, "GRAPH_HAS_CYCLE"}
	case sched.ErrUnknownInput:
		return errorClass{codes.InvalidArgument, "UNKNOWN_INPUT"}
	case sched.ErrKeyConflict:
		return errorClass{codes.AlreadyExists, "KEY_CONFLICT"}
	case sched.ErrDuplicateKey:
		return errorClass{codes.InvalidArgument, "DUPLICATE_KEY"}
	case sched.ErrUnknownClient:
		return errorClass{codes.NotFound, "UNKNOWN_CLIENT"}
	case sched.ErrUnknownTask:
		return errorClass{codes.NotFound, "UNKNOWN_TASK"}
	case sched.ErrUnknownGraph:
		return errorClass{codes.NotFound, "UNKNOWN_GRAPH"}
	case sched.ErrGraphRunning:
		return errorClass{codes.FailedPrecondition, "GRAPH_RUNNING"}
	case sched.ErrNoWorkerFits:
		return errorClass{codes.FailedPrecondition, "NO_WORKER_FITS"}
	case sched.ErrInvalidField:
		return errorClass{codes.InvalidArgument, "INVALID_FIELD"}
	case sched.ErrUnknownDataset:
		return errorClass{codes.NotFound, "UNKNOWN_DATASET"}
	case sched.ErrRequestConflict:
		return errorClass{codes.AlreadyExists, "REQUEST_CONFLICT"}
	case sched.ErrUnknownWorker:
		return errorClass{codes.NotFound, "UNKNOWN_WORKER"}
	case sched.ErrWorkerLeaving:
		return errorClass{codes.FailedPrecondition, "WORKER_LEAVING"}
	case sched.ErrNotSupervised:
		return errorClass{codes.FailedPrecondition, "NOT_SUPERVISED"}
	case sched.ErrRebalanceRunning:
		return errorClass{codes.FailedPrecondition, "REBALANCE_RUNNING"}
	case sched.ErrWorkerNotActive:
		return errorClass{codes.FailedPrecondition, "WORKER_NOT_ACTIVE"}
	case sched.ErrFull:
		return errorClass{codes.ResourceExhausted, "SCHEDULER_FULL"}
	}
	return errorClass{codes.Internal, "INTERNAL"}
}

// loopError returns the wire form of a refusal by the loop or by this package.
func loopError(kind schedapi.ErrorKind) errorClass {
	switch kind {
	case schedapi.ErrUnknownWorker:
		return errorClass{codes.NotFound, "UNKNOWN_WORKER"}
	case schedapi.ErrUnknownOp:
		return errorClass{codes.InvalidArgument, "UNKNOWN_OP"}
	case schedapi.ErrUnknownFunction:
		return errorClass{codes.InvalidArgument, "UNKNOWN_FUNCTION"}
	case schedapi.ErrInvalidField:
		return errorClass{codes.InvalidArgument, "INVALID_FIELD"}
	case schedapi.ErrPermissionDenied:
		return errorClass{codes.PermissionDenied, "PERMISSION_DENIED"}
	case schedapi.ErrVersionTooNew:
		return errorClass{codes.FailedPrecondition, "VERSION_TOO_NEW"}
	case schedapi.ErrResultNotReady:
		return errorClass{codes.FailedPrecondition, "RESULT_NOT_READY"}
	case schedapi.ErrResultNotInline:
		return errorClass{codes.FailedPrecondition, "RESULT_NOT_INLINE"}
	case schedapi.ErrObjectLost:
		return errorClass{codes.DataLoss, "OBJECT_LOST"}
	case schedapi.ErrTaskFailed:
		return errorClass{codes.FailedPrecondition, "TASK_FAILED"}
	case schedapi.ErrTaskCancelled:
		return errorClass{codes.FailedPrecondition, "TASK_CANCELLED"}
	case schedapi.ErrDatasetExists:
		return errorClass{codes.AlreadyExists, "DATASET_EXISTS"}
	case schedapi.ErrRevisionTooOld:
		return errorClass{codes.OutOfRange, "REVISION_TOO_OLD"}
	case schedapi.ErrDraining:
		return errorClass{codes.Unavailable, "DRAINING"}
	case schedapi.ErrWatchEnded:
		return errorClass{codes.NotFound, "UNKNOWN_CLIENT"}
	case schedapi.ErrPeersMissing:
		return errorClass{codes.FailedPrecondition, "PEERS_MISSING"}
	case schedapi.ErrJournal:
		return errorClass{codes.Unavailable, "JOURNAL_FAILED"}
	case schedapi.ErrSchedulerFull:
		return errorClass{codes.ResourceExhausted, "SCHEDULER_FULL"}
	case schedapi.ErrorKinds:
	}
	return errorClass{codes.Internal, "INTERNAL"}
}

// memberError returns the wire form of a registration that was refused.
func memberError(kind members.ErrorKind) errorClass {
	switch kind {
	case members.ErrDead:
		return errorClass{codes.FailedPrecondition, "WORKER_DIED"}
	case members.ErrNameTaken:
		return errorClass{codes.AlreadyExists, "NAME_TAKEN"}
	}
	return errorClass{codes.Internal, "INTERNAL"}
}

// coordError returns the wire form of a refusal by the coordination machine.
func coordError(kind coord.ErrorKind) errorClass {
	switch kind {
	case coord.ErrInvalidField:
		return errorClass{codes.InvalidArgument, "INVALID_FIELD"}
	case coord.ErrRequestConflict:
		return errorClass{codes.AlreadyExists, "REQUEST_CONFLICT"}
	case coord.ErrNotHeld:
		return errorClass{codes.FailedPrecondition, "NOT_HELD"}
	case coord.ErrClosed:
		return errorClass{codes.FailedPrecondition, "CLOSED"}
	case coord.ErrClientGone:
		return errorClass{codes.NotFound, "UNKNOWN_CLIENT"}
	case coord.ErrFull:
		return errorClass{codes.ResourceExhausted, "SCHEDULER_FULL"}
	}
	return errorClass{codes.Internal, "INTERNAL"}
}

// statusOf converts an error to a gRPC status; no other function does. The statuses fit into
// trailers: see edge.Fit.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	return edge.Fit(unbounded(err))
}

// unbounded is statusOf for texts of any length: the status may not fit into trailers.
func unbounded(err error) error {
	if ours := (*sched.Error)(nil); errors.As(err, &ours) {
		metadata := map[string]string{}
		if len(ours.Keys) > 0 {
			metadata["tasks"] = strings.Join(few(ours.Keys, len(ours.Keys), edge.MetadataBytes), ",")
		}
		return withInfo(machineError(ours.Kind), err.Error(), ours.Object, metadata)
	}
	if ours := (*schedapi.Error)(nil); errors.As(err, &ours) {
		return withInfo(loopError(ours.Kind), err.Error(), ours.Object, cloned(ours.Metadata))
	}
	if ours := (*members.Error)(nil); errors.As(err, &ours) {
		return withInfo(memberError(ours.Kind), err.Error(), ours.Object, cloned(ours.Metadata))
	}
	if ours := (*coord.Error)(nil); errors.As(err, &ours) {
		return withInfo(coordError(ours.Kind), err.Error(), ours.Object, map[string]string{})
	}
	return err
}

// cloned copies metadata, which may be nil.
func cloned(metadata map[string]string) map[string]string {
	if metadata == nil {
		return map[string]string{}
	}
	return maps.Clone(metadata)
}

// fullDelay is the delay after which a client may repeat a request that was refused for lack of
// room.
const fullDelay = time.Second

func withInfo(class errorClass, message, object string, metadata map[string]string) error {
	if object != "" {
		metadata["object"] = object
	}
	plain := status.New(class.code, message)
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: class.reason, Domain: edge.Domain, Metadata: metadata}}
	if class.reason == "SCHEDULER_FULL" {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(fullDelay)})
	}
	detailed, err := plain.WithDetails(details...)
	if err != nil {
		return plain.Err()
	}
	return detailed.Err()
}

func invalid(field, message string) error {
	return &schedapi.Error{Kind: schedapi.ErrInvalidField, Object: field, Message: field + ": " + message}
}
