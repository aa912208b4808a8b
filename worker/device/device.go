// Package device is an Interface: the owner of a worker's memory, which also runs the built-in
// operations. Host memory is one kind of device; a CUDA device is another.
package device

import (
	"context"
	"errors"

	"github.com/millrace/millrace/memory"
)

// Kind is the kind of memory.
type Kind uint8

// The kinds. The values equal those of the API.
const (
	Host Kind = 1
	CUDA Kind = 2
)

// ErrNoRoom is matched by the error of an Allocator or a Scratch that found no free memory.
var ErrNoRoom = errors.New("no room for the result")

// Error says why an operation failed, in the terms of the API.
type Error struct {
	// Reason is stable: "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND", ...
	Reason  string
	Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Input is an object that is an argument of a call.
type Input struct {
	// Header is a serialised Value.
	Header []byte
	// Frames hold the object's data. They are read only.
	Frames []memory.Frame
	// Space is the memory that holds the frames; nil means the device's own.
	Space memory.Space
}

// Call is one call of a built-in operation.
type Call struct {
	Op string
	// Arguments is a serialised Arguments message.
	Arguments []byte
	Inputs    []Input
	Attempt   int
	// Scratch provides working memory for the call. If it is nil, the working memory comes from the
	// Go heap, up to a few GiB.
	Scratch Scratch
	// Cores returns the number of processors that the call may use at this moment, its own
	// goroutine's included. The number changes while other calls begin and end. Nil means one.
	Cores func() int
}

// Scratch provides the memory that a call needs in addition to its result while it runs. This
// memory counts against the worker's memory limit, as results do, and is released when the call has
// ended.
type Scratch interface {
	// Scratch returns a frame in the device's space. The error matches ErrNoRoom if there was no
	// free memory. It may wait for memory, so Starter.Start does not call it.
	Scratch(bytes uint64) (memory.Frame, error)
}

// Allocator allocates memory for the result of a call.
type Allocator func(bytes uint64) (memory.Frame, error)

// Result is the result of a call.
type Result struct {
	// Header is a serialised Value that refers to Frames by index.
	Header []byte
	// Frames are the frames that came from the allocator, in allocation order. All of them belong
	// to the result.
	Frames []memory.Frame
}

// Prepared is a call whose arguments have been decoded.
type Prepared interface {
	// OutputBytes returns the sizes that Run will request from its allocator, as far as they can be
	// known; nil if there are none.
	OutputBytes() []uint64
	// Run executes the call. It returns soon after the context ends.
	Run(ctx context.Context, alloc Allocator) (Result, error)
}

// Starter is a Prepared whose calls can be queued on the device one behind the other, without a
// wait of the caller between them.
type Starter interface {
	Prepared
	// Start submits the call behind the calls that were started before. It returns nil if that is
	// not possible now: the caller must then use Run.
	Start(ctx context.Context, alloc Allocator) (Started, error)
}

// Started is a call that was submitted.
type Started interface {
	// Done reports whether Finish would return without a wait.
	Done() bool
	// Header returns the header of the result if it is known before the call ends and if all
	// tensors of the result lie in frames; otherwise nil.
	Header() []byte
	// Finish waits for the end of the call. REQUIRES: called exactly once, even if the result is
	// not needed any more.
	Finish() (Result, error)
}

// Reading says how an operation reads the frames of its inputs.
type Reading uint8

// The values of Reading. They do not apply to headers.
const (
	// ReadsAgain: the operation reads some bytes many times, or this is not known. Inputs in the
	// memory of a peer should be copied to the device first.
	ReadsAgain Reading = iota
	// ReadsOnce: the operation reads each byte about once.
	ReadsOnce
	// Moves: the operation reads, about once, only the bytes that its result is made of. It
	// therefore reads no more bytes of an input than the result has.
	Moves
)

// InPlace is a Device that can read inputs in place in the memory of peers. The Space of such an
// Input is the peer's memory.
type InPlace interface {
	Reads(op string) Reading
}

// Device owns memory and runs operations on it. It is safe for concurrent use.
type Device interface {
	Kind() Kind
	Space() memory.Space
	// Ops returns the names of the built-in operations, sorted.
	Ops() []string
	// Prepare checks a call. Errors are of type *Error.
	Prepare(call Call) (Prepared, error)
	Close() error
}
