package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// EffectKind is the action that the loop must take.
type EffectKind uint8

// Kinds of effects. The loop must carry out the effects for one worker (or one client) in order.
const (
	// EffectAssign sends attempt Attempt of Task to Worker. The loop builds the message with
	// Machine.AssignmentOf while it handles the effects of this step, because the task may be gone
	// later.
	EffectAssign EffectKind = iota + 1
	// EffectRetract asks Worker to give back the attempt if it has not started.
	EffectRetract
	// EffectCancel asks Worker to stop or drop the attempt.
	EffectCancel
	// EffectRelease tells Worker to free the object (Task, generation Attempt), which is not needed
	// any more.
	EffectRelease
	// EffectNotify tells Client, which holds Task, that Task is now in State. Machine.UpdateOf
	// returns the rest.
	EffectNotify
	// EffectClientExpired means that a client lease expired. The loop closes the client's streams.
	EffectClientExpired
	// EffectGraphChanged means that the summary of Graph changed. Ended says that all its tasks
	// have ended. Failed says so, too, and that some have failed since the last effect that said
	// it. At most one per graph and step.
	EffectGraphChanged
	// EffectGraphRemoved means that Graph is forgotten.
	EffectGraphRemoved
	// EffectFunctionUnused means that no task refers to Function any more. The loop may drop its
	// pickle.
	EffectFunctionUnused
	// EffectRescue asks Worker to copy the object (Task, generation Attempt) out of the memory of
	// Dead. Dead is a dead worker whose memory Worker has mapped. Worker answers with
	// ObjectsReported or RescueFailed.
	EffectRescue
	// EffectUnmap tells Worker that nothing more is needed from the memory of Dead. Each connected
	// survivor gets it once.
	EffectUnmap
	// EffectAccept tells Worker that the object (Task, generation Attempt), which a client wrote to
	// it, is accepted as the result of Task.
	EffectAccept
	// EffectDrained tells Worker, whose process was told to stop, that it may leave: nothing runs
	// there, and each wanted object has a copy elsewhere or cannot be taken by another worker.
	EffectDrained
	// EffectKeep tells Worker not to drop the object (Task, generation Attempt) to make room, which
	// it may do with copies. Worker answers with ObjectsReported.
	EffectKeep
	// EffectRetire tells Worker to end its process for good. EffectRestart tells it to end its
	// process, so that its supervisor starts the next one.
	EffectRetire
	EffectRestart
	// EffectWorkerChanged means that the state or the drain of Worker changed. At most one per
	// worker and step.
	EffectWorkerChanged
	// EffectRebalanceEnded means that the rebalance has ended. Machine.Rebalance returns its last
	// figures.
	EffectRebalanceEnded
	// EffectFreeSlot tells Worker that the attempt, which waits for other tasks, may give its slots
	// to others: the assignments before this effect are what can run in them.
	EffectFreeSlot
	// EffectOrdersChanged means that orders of operators to drain workers have changed. At most one
	// per step; Machine.ChangedOrders returns them. It comes only if Config.Facts is set.
	EffectOrdersChanged
	// EffectTaskForgotten means that the record of Task is gone. Later messages about it are
	// dropped.
	EffectTaskForgotten
)

// Effect is one order to the loop, as a plain value.
type Effect struct {
	Kind    EffectKind
	State   TaskState
	Ended   bool // Ended and Failed are set for EffectGraphChanged only.
	Failed  bool
	Worker  ids.WorkerID
	Attempt ids.Attempt
	// Dead is the lost worker; set for EffectRescue and EffectUnmap only.
	Dead     ids.WorkerID
	Task     ids.TaskID
	Client   ids.ClientID
	Graph    ids.GraphID
	Function ids.FunctionHash
}

// Counts counts tasks by state; index 0 is unused.
type Counts [TaskRescuing + 1]uint64

// Assignment is everything that a worker needs to know about one attempt.
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
	Priority            int32
}

// AssignedInput is one input of an assignment.
type AssignedInput struct {
	Replica
	// Holders are the workers that hold the input, best first. Empty if the target holds it itself.
	// For a pending input of another worker: the worker that makes it.
	Holders []ids.WorkerID
	// Inline is the object itself if the scheduler has it, it fits the assignment, and the target
	// does not hold it.
	Inline []byte
	// Pending means that the input does not exist yet; the attempt of its generation makes it. That
	// attempt was assigned to the target before, or runs at the one worker in Holders.
	Pending bool
	// Upstream is the worker before the target in the object's broadcast chain: the target should
	// read the object there while it arrives. 0: none. Downstream means that another worker was
	// told to read the object at the target in the same way. See chain.go.
	Upstream   ids.WorkerID
	Downstream bool
	// Item is the item of the input that the task needs, 0: all of it. The other fields describe
	// the whole input. Count is about the number of its items; 0: unknown.
	Item  ids.Item
	Count uint32
}

// Update is the information that a client gets about a task that it holds.
type Update struct {
	Task        ids.TaskID
	State       TaskState
	OutputBytes uint64
	Inline      []byte
	Err         *TaskError
	Worker      ids.WorkerID
	Generation  ids.Attempt
	// LogWorker is the worker where a task that has ended wrote output last; 0: none is known.
	LogWorker ids.WorkerID
}

// SubmitResult answers GraphSubmitted.
type SubmitResult struct {
	Graph  ids.GraphID
	Tasks  []ids.TaskID // in the order of the submission
	Joined uint64
	// Failed are the joined tasks that had failed and do not run again, because a client holds
	// them.
	Failed []ids.TaskID
	// Repeated says that the submission was accepted before, with this answer.
	Repeated bool
}
