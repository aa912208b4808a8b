package ops

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/millrace/millrace/internal/text"
)

// ErrorKind is the cause of an Error.
type ErrorKind uint8

// The kinds of errors. Cancellation is not among them: its error is that of the context, wrapped
// with the name of the operation.
const (
	UnknownOp   ErrorKind = iota + 1 // no operation of that name
	BadArgument                      // the call can never succeed as it is
	Failed                           // the operation ran and could not finish
)

// Error is the error of an operation.
type Error struct {
	Kind     ErrorKind
	Op       string
	Argument string // empty if no single argument is the cause
	Reason   string
	Cause    error // may be nil
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Argument != "" {
		b.WriteString(": argument " + e.Argument)
	}
	if e.Reason != "" {
		b.WriteString(": " + e.Reason)
	}
	if e.Cause != nil {
		b.WriteString(": " + e.Cause.Error())
	}
	return text.Cut(b.String(), maxErrorBytes)
}

const (
	// maxErrorBytes limits the text of an error, which may quote arguments of any size.
	maxErrorBytes = 2 << 10
	// maxQuotedBytes limits each quoted argument, so that the rest of the text is not cut off.
	maxQuotedBytes = 256
)

// recovered turns a panic during the planning or the run of an operation into an error of the
// operation, so that a fault of one operation fails only one task. REQUIRES: it is the deferred
// function itself, since recover works only there.
func recovered(op string, err *error) {
	if cause := recover(); cause != nil {
		*err = &Error{Kind: Failed, Op: op, Reason: fmt.Sprintf("internal error, please report it with the arguments: %v\n%s", cause, debug.Stack())}
	}
}

func (e *Error) Unwrap() error { return e.Cause }

// bad returns the error for a wrong argument of this call.
func (c *call) bad(argument, format string, values ...any) error {
	for i, v := range values {
		if s, ok := v.(string); ok {
			values[i] = text.Cut(s, maxQuotedBytes)
		}
	}
	return &Error{Kind: BadArgument, Op: c.op.Name, Argument: argument, Reason: fmt.Sprintf(format, values...)}
}
