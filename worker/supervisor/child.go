package supervisor

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Child describes a worker that the supervisor keeps alive.
type Child struct {
	Name string
	// Env is added to Config.Env.
	Env []string
	// Device names the worker's device in messages for people; "" means host memory.
	// Only a worker with a device is retired when its device fails repeatedly.
	Device string
	// Start calls start in a way that the process runs in the right place (CPUs, NUMA nodes).
	// refused is the part of the placement that the kernel refused; err is the error of start.
	// Nil: start is called directly.
	Start func(start func() error) (refused, err error)
}

// Hosts returns n children named prefix-first, and so on with the next numbers.
func Hosts(prefix string, first, n int) []Child {
	children := make([]Child, n)
	for i := range children {
		children[i].Name = fmt.Sprintf("%s-%d", prefix, first+i)
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
	// A device is retired when it fails deviceFailures times within deviceMemory.
	// A faulty program may well fail twice; a broken card fails for ever.
	deviceFailures = 3
	deviceMemory   = 10 * time.Minute
)

// failures are the times of a device's last few failures.
type failures []time.Time

// another records a failure, and reports whether there were too many.
func (f *failures) another(now time.Time) bool {
	*f = append(*f, now)
	if over := len(*f) - deviceFailures; over > 0 {
		*f = (*f)[over:]
	}
	return len(*f) == deviceFailures && now.Sub((*f)[0]) <= deviceMemory
}

// RetiredError says that a worker is not started again because its device fails repeatedly.
type RetiredError struct {
	Name, Device string
	// Failures is the number of failures, Cause describes the last one.
	Failures int
	Cause    string
}

// Error describes the failures and the remedy.
func (e *RetiredError) Error() string {
	return fmt.Sprintf("%s is retired: %s failed %d times within %v, at last: %s; look at `millrace doctor`, nvidia-smi and the kernel's log, then start millrace again",
		e.Name, e.Device, e.Failures, deviceMemory, e.Cause)
}

// UnusableError says that a worker is not started again because it would end in the same way: its
// machine lacks something that the configuration requires, the scheduler refuses it or is away,
// or its settings are wrong.
type UnusableError struct {
	Name, Cause string
	// ExitCode is the exit code of its process: ExitUnusable, ExitRefused and so on.
	ExitCode int
}

// Error contains the reason that the worker gave.
func (e *UnusableError) Error() string { return e.Name + " is not started again: " + e.Cause }

// lastWords is the beginning of the line in which a child gives the reason for its end.
const lastWords = "millrace: worker ends: "

// Tell writes the reason for a child's end, in the format that the supervisor reads.
func Tell(w io.Writer, err error) {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	_, _ = fmt.Fprintln(w, lastWords+text) // an error cannot be reported: the process is ending
}
