package ops

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/millrace/millrace/internal/text"
)

// ErrorKind says whose fault an Error is.
type ErrorKind uint8

// The kinds of error. Cancellation is not among them: it is the context's error,
// wrapped with the name of the operation.
const (
	UnknownOp   ErrorKind = iota + 1 // no operation of that name
	BadArgument                      // the call can never succeed as it is
	Failed                           // the operation ran and could not finish
)

// Error is what an operation answers instead of a result.
type Error struct {
	Kind     ErrorKind
	Op       string
	Argument string // empty when no single argument is to blame
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
	// maxErrorBytes bounds the text of an error, which may quote arguments of any size.
	maxErrorBytes = 2 << 10
	// maxQuotedBytes bounds what it quotes of one, so that the rest of the text is not cut off.
	maxQuotedBytes = 256
)

// recovered turns a panic while an operation is planned or run into its error, so that a fault of one operation fails one
// task. REQUIRES: deferred itself.
func recovered(op string, err *error) {
	if cause := recover(); cause != nil {
		*err = &Error{Kind: Failed, Op: op, Reason: fmt.Sprintf("internal error, please report it with the arguments: %v\n%s", cause, debug.Stack())}
	}
}

func (e *Error) Unwrap() error { return e.Cause }

// bad reports an argument of this call.
func (c *call) bad(argument, format string, values ...any) error {
	for i, v := range values {
		if s, ok := v.(string); ok {
			values[i] = text.Cut(s, maxQuotedBytes)
		}
	}
	return &Error{Kind: BadArgument, Op: c.op.Name, Argument: argument, Reason: fmt.Sprintf(format, values...)}
}
