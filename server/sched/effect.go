package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// EffectKind says what the loop must do.
type EffectKind uint8

// Kinds of effects. Effects for one worker (or one client) must be carried out in order.
const (
	// EffectAssign sends attempt Attempt of Task to Worker. The loop builds the message from Machine.AssignmentOf while
	// it handles the effects of this step (the task may be gone later).
	EffectAssign EffectKind = iota + 1
	// EffectRetract asks Worker to give back the attempt if it has not started.
	EffectRetract
	// EffectCancel asks Worker to stop or drop the attempt.
	EffectCancel
	// EffectRelease tells Worker that nobody needs the object (Task, generation Attempt): free it.
	EffectRelease
	// EffectNotify tells Client that Task, which it holds, is now in State. Machine.UpdateOf gives the rest.
	EffectNotify
	// EffectClientExpired says that a lease ended by time; the loop closes the client's streams.
	EffectClientExpired
	// EffectGraphChanged says that the summary of Graph changed (at most once a step for each graph).
	EffectGraphChanged
	// EffectGraphRemoved says that Graph is forgotten.
	EffectGraphRemoved
	// EffectFunctionUnused says that no task refers to the function any more: its pickle may be dropped.
	EffectFunctionUnused
	// EffectRescue asks Worker to copy the object (Task, generation Attempt) out of the memory of Dead, which died and which
	// it has mapped. It answers with ObjectsReported or RescueFailed.
	EffectRescue
	// EffectUnmap tells Worker that nothing more is wanted from the memory of Dead. Each of WorkerLost.Survivors that can
	// hear is told so once.
	EffectUnmap
	// EffectAccept tells Worker that the object (Task, generation Attempt), which a client wrote to it, is the result of Task.
	EffectAccept
	// EffectDrained tells Worker, which is draining, that it may leave: nothing runs there, and all wanted objects have
	// copies elsewhere, or no other worker can take them.
	EffectDrained
	// EffectTaskForgotten says that Task is gone altogether; late messages about it are dropped from now on.
	EffectTaskForgotten
)

// Effect is one order to the loop, as a value.
type Effect struct {
	Kind    EffectKind
	State   TaskState
	Worker  ids.WorkerID
	Attempt ids.Attempt
	// Dead is the lost worker of EffectRescue and EffectUnmap.
	Dead     ids.WorkerID
	Task     ids.TaskID
	Client   ids.ClientID
	Graph    ids.GraphID
	Function ids.FunctionHash
}

// TaskState is where a task is in its life.
type TaskState uint8

// States; the values equal those of the API.
const (
	TaskWaiting   TaskState = 1
	TaskReady     TaskState = 2
	TaskAssigned  TaskState = 3
	TaskRunning   TaskState = 4
	TaskSucceeded TaskState = 5
	TaskFailed    TaskState = 6
	TaskCancelled TaskState = 7
	TaskReleased  TaskState = 8
	// TaskRescuing: the worker that held the object has died, and others copy it out of its memory.
	TaskRescuing TaskState = 9
)

// Counts counts tasks by state; index 0 is unused.
type Counts [TaskRescuing + 1]uint64

// Assignment is everything that a worker must be told about one attempt.
type Assignment struct {
	Task      ids.TaskID
	Attempt   ids.Attempt
	Op        ids.OpID // number of the interned op; Machine.Op gives its OpSpec
	Arguments []byte
	Inputs    []AssignedInput
	// Rank orders a worker's assignments: lower first.
	Rank                uint64
	Timeout             time.Duration
	Key                 string
	Namespace           string
	Slots               uint32
	Resources           map[string]float64
	ExpectedOutputBytes uint64
}

// AssignedInput is one input of an assignment.
type AssignedInput struct {
	Replica
	// Holders are workers that hold it, best first; empty if the target holds it itself or Inline is set.
	Holders []ids.WorkerID
	// Inline is the object itself if the scheduler has it and the target does not hold it.
	Inline []byte
	// Pending: it does not exist yet; the attempt of its generation makes it. That was assigned to the target before, or is
	// at the one holder named.
	Pending bool
	// Relay is a worker that was told before to fetch it, where the target should read it while it arrives; 0: none. Relayed:
	// another worker was told that of the target. See relay.go.
	Relay   ids.WorkerID
	Relayed bool
}

// Update is what a client is told about a task that it holds.
type Update struct {
	Task        ids.TaskID
	State       TaskState
	OutputBytes uint64
	Inline      []byte
	Err         *TaskError
	Worker      ids.WorkerID
	Generation  ids.Attempt
}

// SubmitResult answers GraphSubmitted.
type SubmitResult struct {
	Graph  ids.GraphID
	Tasks  []ids.TaskID // in the order of the submission
	Joined uint64
}

// ErrorKind says what was wrong with a request.
type ErrorKind uint8

// Kinds of request errors; the adapter gives each its code and reason.
const (
	ErrGraphHasCycle ErrorKind = iota + 1
	ErrUnknownInput
	ErrKeyConflict
	ErrDuplicateKey
	ErrUnknownClient
	ErrUnknownTask
	ErrUnknownGraph
	ErrGraphRunning
	ErrNoWorkerFits
	ErrInvalidField
	ErrUnknownDataset
	// ErrRequestConflict: a request id comes again with other tasks.
	ErrRequestConflict
	// ErrFull: the scheduler holds as many bytes as it may. The same request may be accepted later.
	ErrFull
)

// Error is a request that was refused whole; nothing changed.
type Error struct {
	Kind ErrorKind
	// Object is the key, graph, client or field that the error is about.
	Object string
	// Message says what, where, why, and what to do.
	Message string
	// Keys are the tasks on a cycle, in order; nil otherwise.
	Keys []string
}

func (e *Error) Error() string { return e.Message }
