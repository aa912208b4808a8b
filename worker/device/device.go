// Package device is an Interface: what owns a worker's memory and runs the
// operations that are built in. Host memory is one device; a CUDA device is
// another one.
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

// ErrNoRoom is what an Allocator's error matches when there was no memory.
var ErrNoRoom = errors.New("no room for the result")

// Error is why an operation failed, in the terms of the API.
type Error struct {
	// Reason is stable: "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND", ...
	Reason  string
	Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Input is an object that a call refers to.
type Input struct {
	// Header is a serialised Value.
	Header []byte
	// Frames are read only.
	Frames []memory.Frame
	// Space is where they lie. Nil: in the device's own.
	Space memory.Space
}

// Call is one call of a built-in operation.
type Call struct {
	Op string
	// Arguments is a serialised Arguments message.
	Arguments []byte
	Inputs    []Input
	Attempt   int
	// Scratch provides working memory; see Scratch. Nil: the working memory comes from the Go heap, up to a few GiB.
	Scratch Scratch
}

// Scratch provides memory that a call needs beside its result while it runs. It counts against the worker's memory like
// results do, and is taken back when the call has ended.
type Scratch interface {
	// Scratch returns a frame in the device's space. Its error matches ErrNoRoom where there was none.
	Scratch(bytes uint64) (memory.Frame, error)
}

// Allocator gives a call memory for its result.
type Allocator func(bytes uint64) (memory.Frame, error)

// Result is what a call returned.
type Result struct {
	// Header is a serialised Value that refers to Frames by index.
	Header []byte
	// Frames are those that came from the allocator, in the order in which they
	// came. All of them belong to the result.
	Frames []memory.Frame
}

// Prepared is a call whose arguments have been understood.
type Prepared interface {
	// OutputBytes are the sizes that Run will ask its allocator for, as far as
	// that can be known; nil if there are none.
	OutputBytes() []uint64
	// Run carries the call out. It ends soon after the context does.
	Run(ctx context.Context, alloc Allocator) (Result, error)
}

// Starter is a Prepared whose calls can follow each other on the device without
// anybody waiting in between.
type Starter interface {
	Prepared
	// Start submits the call, behind those that were started before. It returns nil if
	// that is not possible now: then the call is to be Run.
	Start(ctx context.Context, alloc Allocator) (Started, error)
}

// Started is a call that was submitted.
type Started interface {
	// Done says whether Finish would not have to wait.
	Done() bool
	// Header is that of the result, if it is known before the end and all the rest lies in frames; else nil.
	Header() []byte
	// Finish waits for the end. REQUIRES: once, also for results that nobody wants any more.
	Finish() (Result, error)
}

// Reading is how an operation reads the frames of its inputs.
type Reading uint8

// The ways. It says nothing of headers.
const (
	// ReadsAgain: some bytes many times, or that is not known. What is far is to be copied
	// first.
	ReadsAgain Reading = iota
	// ReadsOnce: each byte about once.
	ReadsOnce
	// Moves: those bytes, about once, that its result is made of: of an input no more than
	// the result has.
	Moves
)

// InPlace is a Device that can read inputs in the memory of peers, which is an Input's
// Space then.
type InPlace interface {
	Reads(op string) Reading
}

// Device is safe for concurrent use.
type Device interface {
	Kind() Kind
	Space() memory.Space
	// Ops are the names of the built-in operations, sorted.
	Ops() []string
	// Prepare checks a call. Errors are of type *Error.
	Prepare(call Call) (Prepared, error)
	Close() error
}
