package copies

import "github.com/millrace/millrace/internal/ids"

// Event is a fact that the machine is told, named in the past tense.
type Event interface{ event() }

// WorkerLost means that a worker is lost. Its records are still in the tables. The objects of
// which the effects order no rescue have lost its copy.
type WorkerLost struct {
	Worker ids.WorkerID
	// Survivors may have its memory mapped.
	Survivors []ids.WorkerID
}

// WorkerRemoved means that a lost worker is in the tables no more.
type WorkerRemoved struct{ Worker ids.WorkerID }

// WorkerReturned means that a worker which has opened a session has reported all its objects.
// Orders of the session before may have been lost.
type WorkerReturned struct{ Worker ids.WorkerID }

// RescueEnded means that an object which survivors were to copy has a copy, or is not wanted any
// more.
type RescueEnded struct{ Object ids.TaskID }

// RescueFailed means that a worker could not copy an object out of the memory of a dead one.
type RescueFailed struct {
	Worker, Dead ids.WorkerID
	Object       ids.TaskID
	Generation   ids.Attempt
}

// TimePassed means that the time of an EffectWake has come.
type TimePassed struct{ Wake Wake }

func (WorkerLost) event()     {}
func (WorkerRemoved) event()  {}
func (WorkerReturned) event() {}
func (RescueEnded) event()    {}
func (RescueFailed) event()   {}
func (TimePassed) event()     {}
