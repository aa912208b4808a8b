package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Config sets the machine's limits. The zero value of every field means its default.
type Config struct {
	// FirstTask is the number of the first task. 0: 1. Two lives of a scheduler that begin at numbers far apart never call two
	// tasks by one number.
	FirstTask ids.TaskID
	// AssignAhead is how many tasks a worker gets beyond its slots. 0: adaptive, at least 2, and as many as cover 5 ms of
	// the learned run time, at most 1024.
	AssignAhead int
	// Followers is how many attempts a worker gets ahead of inputs that it has yet to make, beyond its slots. 0: adaptive,
	// as AssignAhead. Negative: none.
	Followers int
	// InlineResultBytes is the largest inline result that is kept. Default 64 KiB.
	InlineResultBytes uint64
	// InlineBudgetBytes bounds all inline results together; beyond it clients fetch from workers. Default 256 MiB.
	InlineBudgetBytes uint64
	// ReconnectGrace is how long the loop waits before it declares a disconnected worker lost. The machine only keeps it.
	ReconnectGrace time.Duration
	// DefaultBytesPerSecond and DefaultLatency stand for pairs of workers without a measurement. Default 1 GB/s, 200 µs.
	DefaultBytesPerSecond float64
	DefaultLatency        time.Duration
	// MaxWorkerDeaths is how many deaths of a worker or executor a task may be running on before it is stopped; workers that
	// were ended from outside count a quarter, unless the task was alone on each of them; see Machine.suspect. Default 3.
	MaxWorkerDeaths uint32
	// RescueTimeout is how long objects of a dead worker may take to be copied by those that have its memory mapped, beside
	// the time that their bytes need. Default 2 s. Negative: they are computed again at once.
	RescueTimeout time.Duration
	// DataGrace is how long scattered data that only a lost worker had is waited for, if that worker's process is not known to have
	// ended. Default 60 s. Negative: it is lost at once.
	DataGrace time.Duration
	// MemoryBytes bounds what the machine holds for tasks: their records, keys, arguments, inline results, errors and log tails, and
	// what the caller holds beside it (GraphSubmitted.Beside). Submissions beyond it are refused until tasks are forgotten. 0: no bound.
	MemoryBytes uint64
	// DetailBytes bounds tracebacks and exceptions of failed tasks, TailBytes what tasks wrote last. The oldest go first. Default 256 and 64 MiB.
	DetailBytes, TailBytes uint64
	// NoCopies: objects that only a leaving worker has are not copied to others.
	NoCopies bool
	// RelayBytes is from which size on workers read an object at each other while it arrives. Default 64 MiB.
	RelayBytes uint64
}

func (c Config) withDefaults() Config {
	c.FirstTask = max(c.FirstTask, 1)
	if c.InlineResultBytes == 0 {
		c.InlineResultBytes = 64 << 10
	}
	if c.InlineBudgetBytes == 0 {
		c.InlineBudgetBytes = 256 << 20
	}
	if c.ReconnectGrace == 0 {
		c.ReconnectGrace = 30 * time.Second
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
	if c.RelayBytes == 0 {
		c.RelayBytes = 64 << 20
	}
	if c.MaxWorkerDeaths == 0 {
		c.MaxWorkerDeaths = 3
	}
	return c
}

// WorkerState is where a worker incarnation is in its life.
type WorkerState uint8

// Worker states; the values equal those of the API.
const (
	WorkerStateActive       WorkerState = 1
	WorkerStateDisconnected WorkerState = 2
	WorkerStateDraining     WorkerState = 3
	// WorkerStateLost never comes from the machine, which forgets lost workers; rows of them are the catalogue's.
	WorkerStateLost WorkerState = 4
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
	// Worker has the current attempt; 0 if none is under way.
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
	// MissingInputs counts inputs that have no object now; a duplicate input counts twice.
	MissingInputs uint32
	// WaitingDependents counts the uses by tasks that have not ended.
	WaitingDependents uint32
	// Holders counts clients, datasets and detached graphs that hold it.
	Holders uint32
	// Err is set if the state is FAILED or CANCELLED.
	Err     *TaskError
	Options Options
	// RunTime of the last finished attempt; 0: unknown.
	RunTime      time.Duration
	SubmittedAt  time.Time
	RetriesUsed  uint32
	WorkerDeaths uint32
	LogTail      string
}

// TaskFilter selects tasks; zero fields select everything.
type TaskFilter struct {
	Graph     ids.GraphID
	Namespace string
	State     TaskState
	// Worker selects tasks under way on it.
	Worker ids.WorkerID
	// Client selects tasks that it holds.
	Client ids.ClientID
	// Prefix selects by op name, exactly.
	Prefix string
	// KeyPrefix selects keys that start with it.
	KeyPrefix string
}

// GraphInfo is a copied snapshot of one graph.
type GraphInfo struct {
	Graph     ids.GraphID
	Name      string
	Namespace string
	// Client that submitted it; 0: detached.
	Client ids.ClientID
	// Counts of tasks by state, indexed by TaskState. Forgotten tasks count as RELEASED.
	Counts Counts
	// Prefixes are the ops in it, in order of first appearance, merged by name.
	Prefixes  []PrefixInfo
	CreatedAt time.Time
	// EndedAt is when the last task ended; zero while some have not.
	EndedAt time.Time
	// FirstError is the error of the first task that failed; nil if none did.
	FirstError *TaskError
	// ExpiresAt is when the results of a detached graph are dropped; zero: not yet known, or not detached.
	ExpiresAt time.Time
}

// PrefixInfo sums up the tasks of one op in one graph.
type PrefixInfo struct {
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
	// Assigned counts attempts under way, Running those of them that were reported started.
	Assigned uint32
	Running  uint32
	// Objects counts replicas.
	Objects uint64
	// Finished counts attempts that succeeded here.
	Finished        uint64
	MemoryBytes     uint64
	MemoryUsedBytes uint64
}

// Explanation says why a task is not running, or what it did.
type Explanation struct {
	Task TaskInfo
	// Reason is stable: INPUTS_MISSING, NO_WORKERS, NO_WORKER_FITS, ALL_WORKERS_BUSY, RETRY_BACKOFF, WAITING_FOR_DATA,
	// ASSIGNED, ASSIGNED_AHEAD, RUNNING, RESCUING, ENDED.
	Reason string
	// Text says the same in words, with what would help.
	Text string
	// Missing are inputs without an object, at most 20.
	Missing []TaskInfo
	// Workers are what each worker means for the task, at most 100.
	Workers []Verdict
}

// Verdict is what one worker means for one task.
type Verdict struct {
	Worker   ids.WorkerID
	Name     string
	Feasible bool
	// Reason says why it is not feasible; empty if it is.
	Reason       string
	QueueSeconds float64
	MissingBytes uint64
	// TransferSeconds is the estimated time to fetch the missing bytes.
	TransferSeconds float64
	// FinishSeconds is the estimated finish from now.
	FinishSeconds float64
	// Sources are the workers that the missing bytes would come from, in the order of the inputs; at most 8.
	Sources []Source
}

// Source is a worker that inputs would be fetched from.
type Source struct {
	Worker ids.WorkerID
	Bytes  uint64
}

// Totals sums up the machine.
type Totals struct {
	// Counts of live tasks by state, indexed by TaskState.
	Counts                   Counts
	Tasks                    uint64
	Graphs, Clients, Workers uint64
	// ReadyQueued counts ready tasks that wait for a worker.
	ReadyQueued uint64
	InlineBytes uint64
	// HeldBytes are those of records, keys and arguments, about; DetailBytes and TailBytes see Config.
	HeldBytes, DetailBytes, TailBytes uint64
	// Submitted and the following only grow.
	Submitted, Forgotten, Assigned, Succeeded, Failed, Cancelled, Retracted, Recomputed uint64
	// Rescued counts objects that were copied out of the memory of dead workers.
	Rescued uint64
	// Stale counts reports that were dropped because their attempt was not the current one.
	Stale uint64
}
