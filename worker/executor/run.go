package executor

import (
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
)

// Run is one attempt to run in a process.
type Run struct {
	Ref lifecycle.Ref
	// Op is what to run. Function is its payload, nil unless it is pickled.
	Op       *millracev1.Op
	Function *millracev1.Function
	// Arguments is a serialised Arguments message.
	Arguments []byte
	Inputs    []*millracev1.ExecutorInput
	// Spaces are where the frames of Inputs lie, by input; nil: in the slab. An empty
	// slice: all do.
	// REQUIRES: a space can be read, and its descriptor is open, until the run is Done.
	Spaces []memory.Space
	// InputObjects are the objects in the slab that Inputs are, in the same order.
	InputObjects []ledger.ObjectID
	// Reservation is memory set aside for the result, 0 if none. Whoever starts
	// the run gives it back.
	Reservation ledger.ReservationID
	Key         string
	Namespace   string
	// Timeout is the longest run time, 0 for none.
	Timeout time.Duration
}

// Result is what became of a run.
type Result struct {
	Ref lifecycle.Ref
	// Returned: the run had not begun, and will not.
	Returned bool
	// NoSegments: it had not begun, and will not, because its process knows no memory
	// but the slab.
	NoSegments bool
	// Outcome is Succeeded, Failed or ExecutorDied.
	Outcome lifecycle.Outcome
	// Error says why, unless it succeeded.
	Error *millracev1.TaskError
	// Header is the result's, Bytes the size of the stored object. Inline is the
	// whole result as one Value, nil if it is not small.
	Header  []byte
	Bytes   uint64
	Inline  []byte
	RunTime time.Duration
}
