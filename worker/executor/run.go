package executor

import (
	"cmp"
	"time"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/tasklog"
)

// Run is one attempt that runs in an executor process.
type Run struct {
	Ref lifecycle.Ref
	// Op is the operation to run. Function is its payload, nil unless the function is pickled.
	Op       *millracev1.Op
	Function *millracev1.Function
	// Arguments is a serialised Arguments message.
	Arguments []byte
	Inputs    []*executorv1.ExecutorInput
	// Spaces are the memories in which the frames of Inputs are, by input; nil: in the slab.
	// An empty slice: all are in the slab. REQUIRES: a space can be read, and its descriptor is
	// open, until the run is Done.
	Spaces []memory.Space
	// InputObjects are the objects in the slab that Inputs are, in the same order.
	InputObjects []ledger.ObjectID
	// Reservation is memory reserved for the result, 0 if none. The caller that starts the run
	// releases it.
	Reservation ledger.ReservationID
	Key         string
	Namespace   string
	// Timeout is the longest run time, 0 for none.
	Timeout time.Duration
	// Priority is that of the task, for the tasks that its function submits.
	Priority int32
}

// source describes the run as a writer of output.
func (r *Run) source() tasklog.Source {
	return tasklog.Source{Task: r.Ref.Task, Attempt: r.Ref.Attempt, Key: r.Key, Namespace: cmp.Or(r.Namespace, "default")}
}

// Result is the outcome of a run.
type Result struct {
	Ref lifecycle.Ref
	// Returned: the run had not begun, and will not begin.
	Returned bool
	// NoSegments: the run had not begun, and will not begin, because its process cannot read
	// memory outside of the slab.
	NoSegments bool
	// Called, Blocked and Unblocked are no results: the function of the run is running, seen some
	// milliseconds after its call; the run waits for other tasks, or wants to go on; then it waits
	// for Resume.
	Called, Blocked, Unblocked bool
	// Outcome is Succeeded, Failed or ExecutorDied.
	Outcome lifecycle.Outcome
	// Error is the reason, unless the run succeeded.
	Error *millracev1.TaskError
	// Header is the header of the result, Bytes the size of the stored object.
	// Inline is the whole result as one Value, nil if it is not small.
	Header  []byte
	Bytes   uint64
	Inline  []byte
	RunTime time.Duration
	// DeserializeTime and PublishTime are the times that the executor spent on the inputs and on
	// the result; 0: unknown.
	DeserializeTime, PublishTime time.Duration
}
