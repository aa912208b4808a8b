package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// DefaultInlineResultBytes is the size of the largest result that the scheduler itself holds,
// unless Config says otherwise: such results reach clients with updates, without a call to a
// worker.
const DefaultInlineResultBytes = 64 << 10

// Config has the machine's limits. The zero value of a field means its default.
type Config struct {
	// FirstTask is the id of the first task. 0: 1. If two runs of a scheduler start at ids far
	// apart, they never give the same id to two tasks.
	FirstTask ids.TaskID
	// QueueDepth is the number of tasks that a worker gets beyond its slots. 0: adaptive, as many
	// as cover 5 ms of the learned run time for each slot, at least 2 and at most 1024.
	QueueDepth int
	// Preassigned is the number of attempts that a worker gets before their inputs exist, beyond
	// its slots. 0: adaptive, like QueueDepth. Negative: a worker gets no attempt before its inputs
	// exist.
	Preassigned int
	// InlineResultBytes is the size of the largest result that is kept inline. Default 64 KiB.
	InlineResultBytes uint64
	// InlineBudgetBytes bounds all inline results together. Beyond it clients fetch results from
	// workers. Default 256 MiB.
	InlineBudgetBytes uint64
	// DefaultBytesPerSecond and DefaultLatency are assumed between workers without a measurement.
	// Default 1 GB/s, 200 µs.
	DefaultBytesPerSecond float64
	DefaultLatency        time.Duration
	// MaxWorkerDeaths is the number of deaths of a worker or executor, while it ran a task, at
	// which the task is failed. A worker that ended for an outside reason counts a quarter, unless
	// the task was alone on each of them; see Machine.suspect. Default 3.
	MaxWorkerDeaths uint32
	// RescueTimeout is how long the copy of a dead worker's objects may take, beside the time that
	// their bytes need. Default 2 s. Negative: the objects are computed again at once.
	RescueTimeout time.Duration
	// DataGrace is how long the machine waits for scattered data that only a lost worker had, if
	// that worker's process is not known to have ended. Default 60 s. Negative: the data is lost at
	// once.
	DataGrace time.Duration
	// MemoryBytes bounds the memory that the machine holds for tasks: records, keys, arguments,
	// inline results, errors and log tails, and the memory that the caller holds for a submission
	// (GraphSubmitted.CallerBytes). Beyond it submissions are refused until tasks are forgotten. 0:
	// no bound.
	MemoryBytes uint64
	// DetailBytes bounds the tracebacks and exceptions of failed tasks, TailBytes the last output
	// of tasks. The oldest are dropped first. Default 256 MiB and 64 MiB.
	DetailBytes, TailBytes uint64
	// Facts asks for Machine.Facts.
	Facts bool
	// Namespaces has the shares and limits of namespaces; those of the name "*" are for all others.
	Namespaces map[string]NamespaceLimits
	// ChainBytes is the size from which an object is sent along a broadcast chain; see chain.go.
	// Default 64 MiB.
	ChainBytes uint64
}

func (c Config) withDefaults() Config {
	c.FirstTask = max(c.FirstTask, 1)
	if c.InlineResultBytes == 0 {
		c.InlineResultBytes = DefaultInlineResultBytes
	}
	if c.InlineBudgetBytes == 0 {
		c.InlineBudgetBytes = 256 << 20
	}
	if c.DefaultBytesPerSecond <= 0 {
		c.DefaultBytesPerSecond = 1e9
	}
	if c.DefaultLatency <= 0 {
		c.DefaultLatency = 200 * time.Microsecond
	}
	if c.RescueTimeout == 0 {
		c.RescueTimeout = 2 * time.Second
	}
	if c.DetailBytes == 0 {
		c.DetailBytes = 256 << 20
	}
	if c.TailBytes == 0 {
		c.TailBytes = 64 << 20
	}
	if c.DataGrace == 0 {
		c.DataGrace = time.Minute
	}
	if c.ChainBytes == 0 {
		c.ChainBytes = 64 << 20
	}
	if c.MaxWorkerDeaths == 0 {
		c.MaxWorkerDeaths = 3
	}
	return c
}

// WorkerState is the state of a worker incarnation.
type WorkerState = copies.WorkerState

// Worker states.
const (
	WorkerStateActive       = copies.WorkerStateActive
	WorkerStateDisconnected = copies.WorkerStateDisconnected
	WorkerStateDraining     = copies.WorkerStateDraining
	WorkerStateDrained      = copies.WorkerStateDrained
	WorkerStateLost         = copies.WorkerStateLost
)

// TaskInfo is a copied snapshot of one task.
type TaskInfo struct {
	Task      ids.TaskID
	Key       string
	Namespace string
	Graph     ids.GraphID
	Op        OpSpec
	State     TaskState
	// Attempt is the current or last attempt; 0 if there was none.
	Attempt ids.Attempt
	// Worker is the worker that has the current attempt; 0 if no worker has one.
	Worker ids.WorkerID
	// Replicas are the workers that hold the object, in the order they got it.
	Replicas    []ids.WorkerID
	OutputBytes uint64
	// Inline says that the scheduler holds the object itself.
	Inline bool
	// Inputs are the first 1,000 of InputCount.
	Inputs     []string
	InputCount uint32
	// InputTasks are the tasks of Inputs, in the same order.
	InputTasks []ids.TaskID
	// Items are those of Inputs of which the task needs one item only, in ascending order of Input.
	Items []ItemInput
	// MissingInputs counts inputs that have no object now; a duplicate input counts twice.
	MissingInputs uint32
	// WaitingDependents counts the uses of the object by active tasks.
	WaitingDependents uint32
	// Holders counts clients, datasets and detached graphs that hold it.
	Holders uint32
	// Err is set if the state is FAILED or CANCELLED.
	Err     *TaskError
	Options Options
	// RunTime of the last finished attempt; 0: unknown.
	RunTime     time.Duration
	SubmittedAt time.Time
	// StartedAt is the time at which the current attempt was reported to run; zero unless RUNNING.
	StartedAt    time.Time
	RetriesUsed  uint32
	WorkerDeaths uint32
	LogTail      string
	// Linalg is the library that computed the object; empty: the task is none of linear algebra on
	// the CPU, or has no object.
	Linalg string
}

// TaskFilter selects tasks; zero fields select everything.
type TaskFilter struct {
	Graph     ids.GraphID
	Namespace string
	State     TaskState
	// Worker selects the tasks that are assigned to it or run on it.
	Worker ids.WorkerID
	// Client selects the tasks that it holds.
	Client ids.ClientID
	// Op selects by the name of the op.
	Op string
	// KeyPrefix selects keys that start with it.
	KeyPrefix string
}

// GraphInfo is a copied snapshot of one graph.
type GraphInfo struct {
	Graph     ids.GraphID
	Name      string
	Namespace string
	// Client is the client that submitted it; 0: detached.
	Client ids.ClientID
	// Counts has the number of tasks by state, indexed by TaskState. Forgotten tasks count as
	// RELEASED.
	Counts Counts
	// Ops are the summaries of the ops in the graph, merged by name, in order of first appearance.
	Ops       []OpSummary
	CreatedAt time.Time
	// EndedAt is the time at which the last task ended; zero while some task has not ended.
	EndedAt time.Time
	// FirstError is the error of the first task that failed; nil if none did.
	FirstError *TaskError
	// NewError is the error of the first task that failed since an effect last told of failures, or
	// before that effect if none has failed since; nil if none ever did.
	NewError *TaskError
	// ExpiresAt is the time at which the results of a detached graph are dropped; zero: not yet
	// known, or not detached.
	ExpiresAt time.Time
}

// OpSummary sums up the tasks of one op in one graph.
type OpSummary struct {
	Name   string
	Counts Counts
	// RunTime is the sum over finished attempts.
	RunTime time.Duration
	// OutputBytes is the sum over finished attempts.
	OutputBytes uint64
}

// WorkerInfo is a copied snapshot of one worker incarnation that is not lost.
type WorkerInfo struct {
	Worker      ids.WorkerID
	Name        string
	Incarnation string
	Host        string
	State       WorkerState
	Slots       uint32
	// Assigned counts attempts under way; Running counts those of them that have started.
	Assigned uint32
	Running  uint32
	// Objects counts replicas.
	Objects uint64
	// Finished counts attempts that succeeded here.
	Finished        uint64
	MemoryBytes     uint64
	MemoryUsedBytes uint64
	// Drain is nil if the worker is not drained. It must not be changed.
	Drain *copies.DrainInfo
}

// Explanation says why a task is not running, or how it ended.
type Explanation struct {
	Task TaskInfo
	// Status is one of Statuses().
	Status string
	// Text is a sentence with the same status and a remedy.
	Text string
	// Missing are inputs without an object, at most 20.
	Missing []TaskInfo
	// Workers are the verdicts of at most 100 workers.
	Workers []Verdict
}

// Verdict describes one worker as a place for one task.
type Verdict struct {
	Worker   ids.WorkerID
	Name     string
	Feasible bool
	// Reason says why the worker is not feasible; empty if it is.
	Reason       string
	QueueSeconds float64
	MissingBytes uint64
	// TransferSeconds is the estimated time to fetch the missing bytes.
	TransferSeconds float64
	// FinishSeconds is the estimated time from now until the task would end there.
	FinishSeconds float64
	// Sources are the workers from which the missing bytes would come, in the order of the inputs;
	// at most 8.
	Sources []Source
}

// Source is a worker from which inputs would be fetched.
type Source struct {
	Worker ids.WorkerID
	Bytes  uint64
}
