package copies

import "github.com/millrace/millrace/internal/ids"

// Tables are what the machine reads of the tables of tasks, objects and workers. They never change
// while it steps.
type Tables interface {
	// Object returns what is known of the object that a task makes; false: the task is forgotten.
	Object(id ids.TaskID) (Object, bool)
	// Holders appends the workers that hold an object to out, the last that got it first. One that
	// has answered that it keeps the object comes last.
	Holders(id ids.TaskID, out []ids.WorkerID) []ids.WorkerID
	// Key returns the key of an object and its namespace; both are empty if the task is forgotten.
	Key(id ids.TaskID) (key, namespace string)
	// Used reports whether a worker has a task that needs an object, other than except. With bound,
	// tasks count, too, that no worker has yet and that may run on certain workers only. An object
	// with very many dependents counts as used.
	Used(id, except ids.TaskID, bound bool) bool
	// Attempt reports whether a task has not ended, and which worker has it; 0: none.
	Attempt(task ids.TaskID) (active bool, at ids.WorkerID)
	// Worker returns what is known of a worker; false: it is lost.
	Worker(id ids.WorkerID) (Worker, bool)
	// Workers lists the workers that are not lost, by id.
	Workers() []Worker
	// Objects lists the objects that a worker holds, by id.
	Objects(id ids.WorkerID) []ids.TaskID
	// Holds reports whether a worker holds an object.
	Holds(worker ids.WorkerID, id ids.TaskID) bool
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
	// Held means that a client, a dataset or a detached graph holds it. Uses counts the uses by
	// tasks that have not ended.
	Held bool
	Uses uint32
}

// neededByOneTask reports whether only one task needs the object, as one that copies it does.
func (o *Object) neededByOneTask() bool { return !o.Held && o.Uses == 1 }

// WorkerState is the state of a worker incarnation.
type WorkerState uint8

// Worker states; the values equal those of the API.
const (
	WorkerStateActive       WorkerState = 1
	WorkerStateDisconnected WorkerState = 2
	WorkerStateDraining     WorkerState = 3
	WorkerStateDrained      WorkerState = 4
	// WorkerStateLost is in no table of a machine: these forget lost workers. The catalogue keeps
	// rows of them.
	WorkerStateLost WorkerState = 5
)

// String returns the state's name in the API, without its prefix.
func (s WorkerState) String() string {
	names := [...]string{"NONE", "ACTIVE", "DISCONNECTED", "DRAINING", "DRAINED", "LOST"}
	if int(s) < len(names) {
		return names[s]
	}
	return "UNKNOWN"
}

// Worker is what is known of a worker that is not lost.
type Worker struct {
	ID   ids.WorkerID
	Name string
	// State is ACTIVE if it may get tasks and copies.
	State WorkerState
	// Native means that it can copy objects. Supervised means that a process starts it again.
	Native, Supervised bool
	// MemoryBytes is the limit of its memory; 0: none. ClaimedBytes are used, or will be by
	// fetches.
	MemoryBytes, ClaimedBytes uint64
	// Room is the number of bytes that it can take, as far as is known: free bytes, and bytes of
	// objects that can leave its memory. It is infinite without a limit.
	Room float64
	// HeldBytes is the size of its objects, and Objects their number. Assigned counts its attempts.
	HeldBytes         uint64
	Objects, Assigned int
}

// Reachable reports whether the connection to the worker is not broken.
func (w *Worker) Reachable() bool { return w.State != WorkerStateDisconnected }
