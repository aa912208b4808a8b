package copies

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Event is a fact that the machine is told, named in the past tense.
type Event interface{ event() }

// WorkerLost means that a worker is lost. Its records are still in the tables. The objects of
// which the effects order no rescue have lost its copy.
type WorkerLost struct {
	Worker ids.WorkerID
	// Left means that it ended as it was told.
	Left bool
	// Survivors may have its memory mapped.
	Survivors []ids.WorkerID
}

// WorkerRemoved means that a lost worker is in the tables no more.
type WorkerRemoved struct{ Worker ids.WorkerID }

// WorkersChanged means that the set of active workers has changed in another way than by an event
// or effect that names a worker.
type WorkersChanged struct{}

// WorkerMeasured means that the room of workers has changed.
type WorkerMeasured struct{}

// SessionOpened means that a worker has opened a session, and is active.
type SessionOpened struct{ Worker ids.WorkerID }

// InventoryRead means that the objects which a worker has listed in its session are recorded.
type InventoryRead struct{ Worker ids.WorkerID }

// WorkerReturned means that all which a worker has reported at the start of its session is
// recorded. Orders of the session before may have been lost.
type WorkerReturned struct{ Worker ids.WorkerID }

// AttemptEnded means that a worker has an attempt less. See Draining.
type AttemptEnded struct{ Worker ids.WorkerID }

// ObjectStoredAt means that an object has come to exist. See Draining.
type ObjectStoredAt struct{ Object ids.TaskID }

// ObjectReported means that a worker has reported an object that exists. See Watching.
type ObjectReported struct {
	Object ids.TaskID
	Worker ids.WorkerID
	// New means that it did not hold the object before, as far as was known. Kept means that it
	// will keep the object.
	New, Kept bool
}

// ObjectGone means that a worker holds an object no more. See Watching.
type ObjectGone struct {
	Object ids.TaskID
	Worker ids.WorkerID
	// Remains means that others hold the object, or the scheduler does.
	Remains bool
}

// KeeperLost means that the worker that would have kept an object has lost it, or is not known.
type KeeperLost struct{ Object ids.TaskID }

// CopyBegan answers EffectCopy: Task copies the object to Worker.
type CopyBegan struct {
	Copy   uint64
	Task   ids.TaskID
	Worker ids.WorkerID
}

// CopyRefused answers EffectCopy: there is no such task.
type CopyRefused struct {
	Copy uint64
	Why  string
}

// CopyEnded means that a task has ended, which may be one that copies an object. See Copying.
type CopyEnded struct {
	Task  ids.TaskID
	Error string // empty: it has succeeded
}

// RescueEnded means that an object which survivors were to copy has a copy, or is not wanted any
// more.
type RescueEnded struct{ Object ids.TaskID }

// RescueFailed means that a worker could not copy an object out of the memory of a dead one.
type RescueFailed struct {
	Worker, Dead ids.WorkerID
	Object       ids.TaskID
	Generation   ids.Attempt
}

// WorkerDraining means that the process of a worker was told to stop. It gets no new tasks, and
// other workers copy the objects that only it has. See drain.go.
type WorkerDraining struct{ Worker ids.WorkerID }

// DrainOrdered is the order of an operator to take workers out of use. It also holds for the later
// incarnations of these workers. See drain.go.
type DrainOrdered struct {
	Workers []ids.WorkerID
	// Purpose is DrainKeep, DrainRetire or DrainRestart.
	Purpose DrainPurpose
	// Reason is a text for people.
	Reason string
	// Timeout, if not 0, is the time after which the process ends even if the worker is not
	// drained; unused for DrainKeep.
	Timeout time.Duration
}

// DrainUndone is the order of an operator to use workers again, by name.
type DrainUndone struct{ Names []string }

// RebalanceOrdered is the order of a client to even out the bytes that workers hold. See
// rebalance.go.
type RebalanceOrdered struct {
	// Workers take part; empty: all active ones, at any time of the rebalance.
	Workers []ids.WorkerID
	// DryRun means that the moves are only planned.
	DryRun bool
}

// RebalanceStopped means that the client which ordered a rebalance does not want it any more.
type RebalanceStopped struct{ Rebalance uint64 }

// Continued means that all effects are carried out. It follows each EffectContinue, and comes while
// Pending.
type Continued struct{}

// TimePassed means that the time of an EffectWake has come.
type TimePassed struct{ Wake Wake }

func (WorkerLost) event()       {}
func (WorkerRemoved) event()    {}
func (WorkersChanged) event()   {}
func (WorkerMeasured) event()   {}
func (SessionOpened) event()    {}
func (InventoryRead) event()    {}
func (WorkerReturned) event()   {}
func (AttemptEnded) event()     {}
func (ObjectStoredAt) event()   {}
func (ObjectReported) event()   {}
func (ObjectGone) event()       {}
func (KeeperLost) event()       {}
func (CopyBegan) event()        {}
func (CopyRefused) event()      {}
func (CopyEnded) event()        {}
func (RescueEnded) event()      {}
func (RescueFailed) event()     {}
func (WorkerDraining) event()   {}
func (RebalanceStopped) event() {}
func (Continued) event()        {}
func (TimePassed) event()       {}
