package ops

import (
	"fmt"
	"strings"
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
	return b.String()
}

func (e *Error) Unwrap() error { return e.Cause }

// bad reports an argument of this call.
func (c *call) bad(argument, format string, values ...any) error {
	return &Error{Kind: BadArgument, Op: c.op.Name, Argument: argument, Reason: fmt.Sprintf(format, values...)}
}
