package session

import (
	"errors"
)

// ErrSchedulerLost says that the scheduler was unreachable for longer than SchedulerTimeout.
var ErrSchedulerLost = errors.New("the scheduler is away")

// StoppedError is returned when the scheduler told the worker to stop.
type StoppedError struct{ Reason string }

// Error is part of error.
func (e *StoppedError) Error() string { return "stopped by the scheduler: " + e.Reason }

// RestartError is returned when the worker has left so that its supervisor starts it again.
type RestartError struct{ Reason string }

// Error is part of error.
func (e *RestartError) Error() string { return e.Reason }

// RefusedError says that the scheduler rejects this worker, and always will.
type RefusedError struct{ Err error }

// Error is part of error.
func (e *RefusedError) Error() string { return "the scheduler refuses this worker: " + e.Err.Error() }

func (e *RefusedError) Unwrap() error { return e.Err }
