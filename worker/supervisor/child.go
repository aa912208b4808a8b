package supervisor

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Child is a worker to keep alive.
type Child struct {
	Name string
	// Env is added to that of Config.
	Env []string
	// Device names what its memory lies on, for people; "" is host memory. Only a
	// worker with a device is retired when that fails again and again.
	Device string
	// Start calls start where the process should run; what of that the kernel refused
	// is returned beside. Nil: here.
	Start func(start func() error) (refused, err error)
}

// Hosts returns n children with names of a prefix: host-0, host-1, ...
func Hosts(prefix string, n int) []Child {
	children := make([]Child, n)
	for i := range children {
		children[i].Name = fmt.Sprintf("%s-%d", prefix, i)
	}
	return children
}

func (c Child) place(start func() error) (refused, err error) {
	if c.Start == nil {
		return nil, start()
	}
	return c.Start(start)
}

const (
	// deviceFailures within deviceMemory retire a device: a fault of a program may
	// well come twice, and a broken card fails for ever.
	deviceFailures = 3
	deviceMemory   = 10 * time.Minute
)

// failures are when a device failed, the last few.
type failures []time.Time

// another notes one, and says whether that is too many.
func (f *failures) another(now time.Time) bool {
	*f = append(*f, now)
	if over := len(*f) - deviceFailures; over > 0 {
		*f = (*f)[over:]
	}
	return len(*f) == deviceFailures && now.Sub((*f)[0]) <= deviceMemory
}

// RetiredError says that a worker is given up, since its device fails again and
// again.
type RetiredError struct {
	Name, Device string
	// Failures is how often, Cause is the last one.
	Failures int
	Cause    string
}

// Error says what to do.
func (e *RetiredError) Error() string {
	return fmt.Sprintf("%s is retired: %s failed %d times within %v, at last: %s; look at `millrace doctor`, nvidia-smi and the kernel's log, then start millrace again",
		e.Name, e.Device, e.Failures, deviceMemory, e.Cause)
}

// UnusableError says that a worker is given up, since it would end again: its machine lacks what it was told to use, the
// scheduler refuses it or is away, or its settings are wrong.
type UnusableError struct {
	Name, Cause string
	// ExitCode is that of its process: ExitUnusable, ExitRefused and so on.
	ExitCode int
}

// Error says what it said.
func (e *UnusableError) Error() string { return e.Name + " is not started again: " + e.Cause }

// lastWords begin the line in which a child says why it ends.
const lastWords = "millrace: worker ends: "

// Tell writes, for the supervisor that reads it, why a child ends.
func Tell(w io.Writer, err error) {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	_, _ = fmt.Fprintln(w, lastWords+text) // nobody is left to tell
}
