package millrace

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/leader"
)

// errorDomain is the ErrorInfo domain of the scheduler's and the workers' errors.
const errorDomain = "millrace.dev"

// reasonError is a sentinel that matches every error with this reason.
type reasonError string

// reasonCancelled is the reason of a cancelled task if the scheduler gave none.
const reasonCancelled = "CANCELLED"

// Reasons that the client itself decides by.
const (
	reasonFull     = "SCHEDULER_FULL"
	reasonStarting = "SCHEDULER_STARTING"
)

// Error returns the reason.
func (r reasonError) Error() string { return "millrace: " + string(r) }

// Sentinels of the reasons that programs decide by; use them with errors.Is. millracev1.ErrorReason
// lists all reasons, with their meaning.
var (
	ErrGraphHasCycle    error = reasonError("GRAPH_HAS_CYCLE")
	ErrUnknownInput     error = reasonError("UNKNOWN_INPUT")
	ErrKeyConflict      error = reasonError("KEY_CONFLICT")
	ErrDuplicateKey     error = reasonError("DUPLICATE_KEY")
	ErrUnknownOp        error = reasonError("UNKNOWN_OP")
	ErrUnknownFunction  error = reasonError("UNKNOWN_FUNCTION")
	ErrUnknownClient    error = reasonError("UNKNOWN_CLIENT")
	ErrUnknownTask      error = reasonError("UNKNOWN_TASK")
	ErrUnknownGraph     error = reasonError("UNKNOWN_GRAPH")
	ErrUnknownWorker    error = reasonError("UNKNOWN_WORKER")
	ErrUnknownDataset   error = reasonError("UNKNOWN_DATASET")
	ErrNoWorkerFits     error = reasonError("NO_WORKER_FITS")
	ErrInvalidField     error = reasonError("INVALID_FIELD")
	ErrInvalidArgument  error = reasonError("INVALID_ARGUMENT")
	ErrUnauthenticated  error = reasonError("UNAUTHENTICATED")
	ErrPermissionDenied error = reasonError("PERMISSION_DENIED")
	ErrVersionTooNew    error = reasonError("VERSION_TOO_NEW")
	ErrResultNotReady   error = reasonError("RESULT_NOT_READY")
	ErrResultNotInline  error = reasonError("RESULT_NOT_INLINE")
	ErrObjectLost       error = reasonError("OBJECT_LOST")
	ErrObjectNotHere    error = reasonError("OBJECT_NOT_HERE")
	ErrDatasetExists    error = reasonError("DATASET_EXISTS")
	ErrGraphRunning     error = reasonError("GRAPH_RUNNING")
	ErrRequestConflict  error = reasonError("REQUEST_CONFLICT")
	ErrRevisionTooOld   error = reasonError("REVISION_TOO_OLD")
	ErrDraining         error = reasonError("DRAINING")
	// ErrSchedulerStarting: the scheduler still reads its journal. Calls are retried.
	ErrSchedulerStarting error = reasonError(reasonStarting)
	// ErrNotLeader: the scheduler that answered is one of several, and another one leads them.
	ErrNotLeader        error = reasonError(leader.Reason)
	ErrRebalanceRunning error = reasonError("REBALANCE_RUNNING")
	// ErrSchedulerFull: the tasks in the scheduler use all the memory that they may use.
	// Releasing results makes room.
	ErrSchedulerFull error = reasonError(reasonFull)
	// ErrNotHeld: a lock that is to be released is not held, or was lost before. Others may have
	// it.
	ErrNotHeld error = reasonError(reasonNotHeld)
	// ErrSharedClosed: a lock, semaphore or queue was closed while a call waited for it.
	ErrSharedClosed     error = reasonError("CLOSED")
	ErrPythonException  error = reasonError("PYTHON_EXCEPTION")
	ErrFunctionNotFound error = reasonError("FUNCTION_NOT_FOUND")
	ErrWorkerDied       error = reasonError("WORKER_DIED")
	ErrExecutorDied     error = reasonError("EXECUTOR_DIED")
	ErrPoisonTask       error = reasonError("POISON_TASK")
	ErrTimeout          error = reasonError("TIMEOUT")
	ErrOutOfMemory      error = reasonError("OUT_OF_MEMORY")
	ErrInputFailed      error = reasonError("INPUT_FAILED")
	// ErrInputUnreachable: the task must run on one worker and its input must stay on another, and
	// the first worker cannot fetch from the second.
	ErrInputUnreachable error = reasonError("INPUT_UNREACHABLE")

	// ErrTaskFailed matches every *TaskError of a task that failed, whatever its reason.
	ErrTaskFailed error = reasonError("TASK_FAILED")
	// ErrTaskCancelled matches the *TaskError of a task that was cancelled.
	ErrTaskCancelled error = reasonError("TASK_CANCELLED")
	// ErrUnavailable matches calls that did not reach the scheduler or a worker.
	ErrUnavailable error = errors.New("millrace: unavailable")
	// ErrClosed is returned by calls on a Client after Close.
	ErrClosed error = errors.New("millrace: the client is closed")
	// ErrReleased is returned by a Future after its Release.
	ErrReleased error = errors.New("millrace: the future was released")
	// ErrLeaseLost ends the Futures of a client whose lease the scheduler does not know any more:
	// the client was silent for longer than the lease, or the scheduler is a new one. It also ends
	// those that have succeeded, if their results have not been fetched. Later submissions run
	// under a new lease.
	ErrLeaseLost error = errors.New("millrace: the scheduler has forgotten this client's lease, and with it what it held")
)

// Error describes a call that the scheduler or a worker refused.
type Error struct {
	// Op is the name of the call: "SubmitBatch".
	Op string
	// Code is the gRPC code.
	Code codes.Code
	// Reason is the stable reason, a name of millracev1.ErrorReason without ERROR_REASON_; empty if
	// the error came from the transport.
	Reason string
	// Message describes the problem and the remedy.
	Message string
	// Metadata holds the variable parts of Message by name: "key", "task_id".
	Metadata map[string]string
}

// Error returns the call, the message and the reason.
func (e *Error) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("millrace: %s: %s (%s)", e.Op, e.Message, e.Code)
	}
	return fmt.Sprintf("millrace: %s: %s (%s)", e.Op, e.Message, e.Reason)
}

// Is matches the sentinel of the reason. It matches context errors and ErrUnavailable,
// ErrUnauthenticated and ErrPermissionDenied by the gRPC code.
func (e *Error) Is(target error) bool {
	if r, ok := target.(reasonError); ok && string(r) == e.Reason {
		return true
	}
	return target == ErrUnavailable && e.Code == codes.Unavailable ||
		target == ErrUnauthenticated && e.Code == codes.Unauthenticated ||
		target == ErrPermissionDenied && e.Code == codes.PermissionDenied ||
		target == context.DeadlineExceeded && e.Code == codes.DeadlineExceeded ||
		target == context.Canceled && e.Code == codes.Canceled
}

// GRPCStatus lets status.FromError see the code.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// callError converts the error of an RPC to an *Error; nil stays nil. If ctx has ended, the error
// of ctx is returned instead.
func callError(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if ctx != nil && ctx.Err() != nil {
		return fmt.Errorf("millrace: %s: %w", op, context.Cause(ctx))
	}
	s, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("millrace: %s: %w", op, err)
	}
	out := &Error{Op: op, Code: s.Code(), Message: s.Message()}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			out.Reason, out.Metadata = info.GetReason(), info.GetMetadata()
		}
	}
	return out
}

// TaskError describes why a task failed or was cancelled.
type TaskError struct {
	// Key is the key of the task whose result was requested.
	Key string
	// OriginKey is the task that failed first; it differs from Key when an input failed.
	OriginKey string
	// Reason is the stable reason: "PYTHON_EXCEPTION", "TIMEOUT". millracev1.ErrorReason lists
	// those of Millrace itself; executors of other languages may have others.
	Reason string
	// Message describes the failure, its place, its cause and the remedy.
	Message string
	// Worker is the name of the worker on which the task failed; empty if no worker was involved.
	Worker string
	// Traceback is the formatted Python traceback with its chain of causes; empty for other tasks.
	Traceback string
	// LogTail holds the last lines that the task wrote to stdout and stderr.
	LogTail string
	// Attempt is the number of the failed attempt, counted from 1.
	Attempt uint32
	// Attempts counts the attempts that failed or that ended with the death of a worker or an
	// executor, including this one; 0 if the error does not come from an attempt.
	Attempts uint32
	// Cancelled is true for a cancelled task, false for a failed one.
	Cancelled bool
	// Joined is true if the task had failed before this submission of its key: a client holds the
	// failed task, so it does not run again. Client.Retry runs it again.
	Joined bool
	// Metadata holds details by name: "signal", "exit_code".
	Metadata map[string]string
}

// Error returns a text with the task, the worker and the cause. The traceback, if any, follows on
// lines of its own.
func (e *TaskError) Error() string {
	var b strings.Builder
	state := "failed"
	if e.Cancelled {
		state = "was cancelled"
	}
	fmt.Fprintf(&b, "millrace: task %q %s", e.Key, state)
	if e.OriginKey != "" && e.OriginKey != e.Key {
		fmt.Fprintf(&b, " because of its input %q", e.OriginKey)
	}
	if e.Worker != "" {
		fmt.Fprintf(&b, " on worker %s", e.Worker)
	}
	if e.Attempts > 1 {
		fmt.Fprintf(&b, " after %d attempts", e.Attempts)
	}
	if e.Joined {
		b.WriteString(" before this submission joined it (a client holds it; Retry runs it again)")
	}
	fmt.Fprintf(&b, ": %s (%s)", e.Message, e.Reason)
	if e.Traceback != "" {
		b.WriteString("\n")
		b.WriteString(strings.TrimRight(e.Traceback, "\n"))
	}
	return b.String()
}

// Is matches the sentinel of the reason, ErrTaskFailed or ErrTaskCancelled, and ErrInputFailed if
// the failure of an input was the cause.
func (e *TaskError) Is(target error) bool {
	r, ok := target.(reasonError)
	if !ok {
		return false
	}
	switch target {
	case ErrTaskFailed:
		return !e.Cancelled
	case ErrTaskCancelled:
		return e.Cancelled
	case ErrInputFailed:
		return e.Reason == string(r) || e.OriginKey != "" && e.OriginKey != e.Key
	}
	return e.Reason == string(r)
}

func taskError(key string, state millracev1.TaskState, e *millracev1.TaskError) *TaskError {
	out := &TaskError{
		Key:       key,
		OriginKey: e.GetOriginKey(),
		Reason:    e.GetReason(),
		Message:   e.GetMessage(),
		Worker:    e.GetWorker(),
		Traceback: e.GetTraceback(),
		LogTail:   e.GetLogTail(),
		Attempt:   e.GetAttempt(),
		Attempts:  e.GetAttempts(),
		Metadata:  e.GetMetadata(),
		Cancelled: state == millracev1.TaskState_TASK_STATE_CANCELLED,
	}
	if out.Reason == "" && out.Cancelled {
		out.Reason = reasonCancelled
	}
	if out.Message == "" {
		out.Message = "no cause was given"
	}
	return out
}
