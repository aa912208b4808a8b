package copies

import "github.com/millrace/millrace/internal/ids"

// Tables are what the machine reads of the tables of tasks, objects and workers. They never change
// while it steps.
type Tables interface {
	// Object returns what is known of the object that a task makes; false: the task is forgotten.
	Object(id ids.TaskID) (Object, bool)
	// Holders appends the workers that hold an object to out, the last that got it first.
	Holders(id ids.TaskID, out []ids.WorkerID) []ids.WorkerID
	// Worker returns what is known of a worker; false: it is lost.
	Worker(id ids.WorkerID) (Worker, bool)
	// Objects lists the objects that a worker holds, by id.
	Objects(id ids.WorkerID) []ids.TaskID
	// BytesPerMicro is the rate at which one worker fetches from another, in bytes per microsecond.
	BytesPerMicro(from, to ids.WorkerID) float64
}

// ObjectState says whether an object exists.
type ObjectState uint8

const (
	// ObjectAbsent: its task has not made it, or it is released or lost.
	ObjectAbsent ObjectState = iota
	// ObjectStored: workers hold it, or the scheduler holds it inline.
	ObjectStored
	// ObjectRescuing: it was lost with a worker, and survivors are to copy it.
	ObjectRescuing
)

// Object is what is known of the object that a task makes.
type Object struct {
	State ObjectState
	// Wanted means that a client or a task that has not ended needs it.
	Wanted bool
	// Inline means that the scheduler holds it, too.
	Inline bool
	// Generation is the attempt that made it.
	Generation ids.Attempt
	Bytes      uint64
}

// Worker is what is known of a worker that is not lost.
type Worker struct {
	ID   ids.WorkerID
	Name string
	// Active means that it may get tasks. Reachable means that its connection is not broken.
	Active, Reachable bool
	// MemoryBytes is the limit of its memory; 0: none. ClaimedBytes are used, or will be by
	// fetches.
	MemoryBytes, ClaimedBytes uint64
}
