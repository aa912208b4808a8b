package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
)

// Run is one attempt for a slot. The slot owns it from Start until it hands the run to the host.
type Run struct {
	Ref     lifecycle.Ref
	Call    device.Call
	Timeout time.Duration
	// Width is the number of slots that the task takes; 0 means 1.
	Width int
	// Short: the run is expected to be short, so the slot may start it asynchronously and stay in
	// its polling mode. Brief: so short that notifications from peers can wait for its end.
	Short, Brief bool
	// Reservation is memory that the caller has reserved and also releases; 0: none. Roomy: the
	// result fits in it; otherwise it is for the inputs only.
	Reservation ledger.ReservationID
	Roomy       bool
	// Times: the caller sets Known and Handed.
	Times Times

	// state is one of the constants below. A compare-and-swap decides a race between the slot that
	// begins the run and the caller that takes it back.
	state atomic.Uint32

	Outcome
}

// Outcome is what became of a run. Its slot sets it.
type Outcome struct {
	// Returned: the run was not begun.
	Returned bool
	// NoRoom are the sizes of the result for which there was no memory: the run was not begun.
	NoRoom []uint64
	// Failure is the error of the run, nil if it has succeeded.
	Failure *millracev1.TaskError
	// Inline is the value of a result that is small enough to be sent inline, otherwise nil.
	Inline []byte
	// Bytes is the size of the result, Framed that of its frames without the header; 0 if it has
	// none.
	Bytes, Framed uint64
	RunTime       time.Duration
}

// Made is the size of the result, without the header if there are frames.
func (o *Outcome) Made() uint64 { return cmp.Or(o.Framed, o.Bytes) }

const (
	runQueued uint32 = iota
	runBegun
	runTaken
)

var (
	errTimeout   = errors.New("out of time")
	errCancelled = errors.New("cancelled")
)

// taskError converts a failure into the error of the API.
func taskError(ctx context.Context, r *Run, err error) *millracev1.TaskError {
	var failed *device.Error
	switch {
	case errors.Is(context.Cause(ctx), errTimeout):
		return &millracev1.TaskError{
			Reason:   "TIMEOUT",
			Message:  fmt.Sprintf("%s ran longer than its timeout of %v and was interrupted; raise the timeout or use smaller chunks", r.Call.Op, r.Timeout),
			Metadata: map[string]string{"timeout": r.Timeout.String(), "stopped_by": "interrupt"},
		}
	case ctx.Err() != nil:
		return &millracev1.TaskError{Reason: "CANCELLED", Message: r.Call.Op + " was cancelled while it ran"}
	case errors.As(err, &failed):
		return &millracev1.TaskError{Reason: failed.Reason, Message: failed.Message}
	case errors.Is(err, device.ErrNoRoom):
		return &millracev1.TaskError{Reason: "OUT_OF_MEMORY", Message: fmt.Sprintf("%s: %v", r.Call.Op, err)}
	}
	return &millracev1.TaskError{Reason: "OP_FAILED", Message: fmt.Sprintf("%s: %v", r.Call.Op, err)}
}
