package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Event is a fact that the machine is told, in the past tense. Events are plain values; slices in them belong to the
// machine once stepped.
type Event interface{ event() }

// ClientOpened starts a client lease. The loop chooses the id (never reused).
type ClientOpened struct {
	Client    ids.ClientID
	Namespace string
	// Worker is the name of the one in whose task the client was opened; empty: in none.
	Worker string
	// TTL is how long the lease outlives the last ClientRenewed.
	TTL time.Duration
}

// ClientRenewed proves that a client lives. Unknown clients are ignored.
type ClientRenewed struct{ Client ids.ClientID }

// ClientClosed ends a lease at once.
type ClientClosed struct{ Client ids.ClientID }

// GraphSubmitted adds tasks, all or none. The answer is the SubmitResult that Submit returns.
type GraphSubmitted struct {
	// Client is 0 for a detached submission.
	Client ids.ClientID
	// Graph to append to; 0 makes a new one.
	Graph ids.GraphID
	Name  string
	// Namespace counts for detached submissions only; clients submit in their own.
	Namespace string
	// RequestID makes the submission idempotent; empty: not.
	RequestID string
	// Retention is how long a detached graph's results outlive its end.
	Retention time.Duration
	// Ops is the submission's op table. TaskSpec.Op indexes it.
	Ops []OpSpec
	// Options is the submission's options table. TaskSpec.Options indexes it, counted from 1; 0 means defaults.
	Options []Options
	Tasks   []TaskSpec
	// Beside is what the caller holds beside the machine, in bytes: it counts against Config.MemoryBytes.
	Beside uint64
}

// TasksHeld makes a client hold tasks by key. All or none; answered by HoldResult.
type TasksHeld struct {
	Client ids.ClientID
	Keys   []string
}

// TasksReleased gives up holds. Unknown tasks are ignored.
type TasksReleased struct {
	Client ids.ClientID
	Tasks  []ids.TaskID
}

// TasksCancelled stops tasks and everything that needs them.
type TasksCancelled struct {
	// Client on whose behalf; 0 for operators. Without Force only this client's hold ends where others hold the task.
	Client ids.ClientID
	Tasks  []ids.TaskID
	Graphs []ids.GraphID
	Reason string
	Force  bool
}

// TasksRetried runs failed or cancelled tasks again, with their failed or cancelled inputs.
type TasksRetried struct{ Tasks []ids.TaskID }

// GraphReleased drops a graph and the holds of a detached submission.
type GraphReleased struct {
	Graph  ids.GraphID
	Cancel bool
}

// DatasetPublished holds tasks under a name; DatasetUnpublished gives that up. The catalogue owns the names; the
// machine only counts the holds, by an opaque number.
type DatasetPublished struct {
	Dataset   uint64
	Namespace string
	Keys      []string
}

// DatasetUnpublished ends the hold of a dataset.
type DatasetUnpublished struct{ Dataset uint64 }

// WorkerRegistered adds a worker incarnation, or brings a disconnected one back.
type WorkerRegistered struct {
	// Worker is chosen by the loop: a new number, or the old one if the incarnation is known and not lost.
	Worker      ids.WorkerID
	Name        string
	Incarnation string
	Host        string
	Slots       uint32
	Resources   map[string]float64
	MemoryBytes uint64
	// Executors are the op kinds it runs: "native", "python", names of registered executors.
	Executors []string
	// Relays: it can read what is arriving at others of its host, and lets them read what is arriving here.
	Relays bool
	// Inventory is everything that it holds.
	Inventory []Replica
	// Running are the attempts that it still works on.
	Running []TaskRef
	// Awaits: it can be told of results by the workers that make them, and tells others of its own; see across.go.
	Awaits bool
}

// WorkerDisconnected says that a session broke. The worker keeps its tasks and data until WorkerLost.
type WorkerDisconnected struct{ Worker ids.WorkerID }

// WorkerLost says that an incarnation is gone: its process died, or its lease ended.
type WorkerLost struct {
	Worker ids.WorkerID
	// Cause is for errors: "killed by SIGKILL".
	Cause string
	// Outside: what ended it came from outside, as far as is known (a kill that was not for lack of memory, a network that
	// broke, an orderly end): what ran there is hardly to blame.
	Outside bool
	// Killed: it ended by SIGKILL. A person, the system or a task may have sent the signal.
	Killed bool
	// Gone: its process has ended, and will not come back with what it had.
	Gone bool
	// DeviceFault: its memory is not to be trusted, and reading it may cost its reader: nothing is rescued.
	DeviceFault bool
	// Survivors are workers that may have the memory of its process mapped, and read it after its end. Each makes sure by
	// itself that the process has ended.
	Survivors []ids.WorkerID
}

// WorkerEnded says that the process of a worker that was lost before has ended.
type WorkerEnded struct {
	Incarnation, Cause string
	// Killed: by SIGKILL, as a supervisor ends a worker that hangs.
	Killed bool
}

// RescueFailed says that a worker could not copy objects out of the memory of a dead one.
type RescueFailed struct {
	Worker, Dead ids.WorkerID
	Objects      []Replica
}

// WorkerDraining says that a worker is to leave: it gets nothing new, and what is only there is copied by others. See leave.go.
type WorkerDraining struct{ Worker ids.WorkerID }

// WorkerMeasured updates what placement knows about a worker.
type WorkerMeasured struct {
	Worker          ids.WorkerID
	MemoryUsedBytes uint64
}

// RatesMeasured is what one worker has found out about several directions.
type RatesMeasured []RateMeasured

// RateMeasured updates the transfer rate between two workers; To or From 0 means any.
type RateMeasured struct {
	From, To       ids.WorkerID
	BytesPerSecond float64
	Latency        time.Duration
}

// TasksReported is a batch of outcomes from one worker, in the order they happened.
type TasksReported struct {
	Worker  ids.WorkerID
	Reports []Report
}

// ObjectsReported is a batch of objects gained or lost on one worker other than by tasks.
type ObjectsReported struct {
	Worker ids.WorkerID
	Gained []Stored
	Lost   []Replica
}

// TimePassed lets due timers run: retry back-off, lease ends, retention. The loop sends it at Machine.NextDeadline.
type TimePassed struct{}

func (ClientOpened) event()       {}
func (ClientRenewed) event()      {}
func (ClientClosed) event()       {}
func (GraphSubmitted) event()     {}
func (TasksHeld) event()          {}
func (TasksReleased) event()      {}
func (TasksCancelled) event()     {}
func (TasksRetried) event()       {}
func (GraphReleased) event()      {}
func (DatasetPublished) event()   {}
func (DatasetUnpublished) event() {}
func (WorkerRegistered) event()   {}
func (WorkerDisconnected) event() {}
func (WorkerLost) event()         {}
func (WorkerEnded) event()        {}
func (RescueFailed) event()       {}
func (WorkerDraining) event()     {}
func (WorkerMeasured) event()     {}
func (RatesMeasured) event()      {}
func (TasksReported) event()      {}
func (ObjectsReported) event()    {}
func (TimePassed) event()         {}

// OpSpec is an op as the machine sees it: enough to count by name, and to know who can run it.
type OpSpec struct {
	Kind OpKind
	// Name counts tasks by prefix and, with Kind and Function, identifies the op.
	Name string
	// Function is the hash of a pickled function; zero otherwise.
	Function ids.FunctionHash
}

// OpKind is who runs an op.
type OpKind uint8

// Kinds of ops; the values equal those of the API.
const (
	OpNative       OpKind = 1
	OpPythonImport OpKind = 2
	OpPythonPickle OpKind = 3
	OpExec         OpKind = 4
	OpData         OpKind = 5
)

// Options are the rules a task runs under; the zero value is the default.
type Options struct {
	Priority     int32
	MaxRetries   uint32
	RetryBackoff time.Duration // 0: 100 ms
	Timeout      time.Duration // 0: none
	Resources    map[string]float64
	// Workers are names, ids ("w3") or hosts.
	Workers             []string
	AllowOtherWorkers   bool
	ExpectedOutputBytes uint64
	Slots               uint32 // 0: 1
	NoWait              bool
}

// TaskSpec is one task as submitted.
type TaskSpec struct {
	Key string
	// Op indexes GraphSubmitted.Ops.
	Op uint32
	// Options indexes GraphSubmitted.Options from 1; 0: defaults.
	Options uint32
	// Inputs are keys: of the same submission, or known in the namespace.
	Inputs []string
	// Arguments are opaque: passed to the worker as they came.
	Arguments []byte
	Hold      bool
}

// Replica is one generation of one object, of a size.
type Replica struct {
	Task       ids.TaskID
	Generation ids.Attempt
	Bytes      uint64
}

// Stored is an object that arrived on a worker by scatter or copy.
type Stored struct {
	Replica
	// Inline is the object itself if it is small, else nil.
	Inline []byte
	// Written: a client wrote it, and the worker waits for EffectAccept before anybody may read it.
	Written bool
}

// TaskRef names one attempt.
type TaskRef struct {
	Task    ids.TaskID
	Attempt ids.Attempt
}

// Outcome is what became of an attempt.
type Outcome uint8

// Outcomes; the values equal those of the API.
const (
	OutcomeStarted          Outcome = 1
	OutcomeSucceeded        Outcome = 2
	OutcomeFailed           Outcome = 3
	OutcomeInputUnreachable Outcome = 4
	OutcomeRetracted        Outcome = 5
	OutcomeCancelled        Outcome = 6
	OutcomeRetractRefused   Outcome = 7
	OutcomeExecutorDied     Outcome = 8
)

// Report is what became of one attempt.
type Report struct {
	Task        ids.TaskID
	Attempt     ids.Attempt
	Outcome     Outcome
	OutputBytes uint64
	// Inline is the result itself if it is small, else nil.
	Inline  []byte
	RunTime time.Duration
	Err     *TaskError
	// Unreachable names inputs that could not be fetched, if the outcome is InputUnreachable.
	Unreachable []Unreachable
	// LogTail is what the task wrote last; may be empty.
	LogTail string
}

// Unreachable is an input that workers did not deliver.
type Unreachable struct {
	Task       ids.TaskID
	Generation ids.Attempt
	FailedAt   []ids.WorkerID
	// MissingAt said that they do not hold it: those replicas are gone.
	MissingAt []ids.WorkerID
}

// TaskError is why a task failed. Detail is opaque to the machine (the API's TaskError, kept by the adapter).
type TaskError struct {
	Reason  string
	Message string
	// OriginKey is the key of the task that failed first.
	OriginKey string
	Worker    string
	Attempt   ids.Attempt
	// Attempts counts the attempts that failed or ended with a death, this one included; 0: the error is of no attempt.
	Attempts uint32
	// LogTail is what the task wrote last, where Detail does not say it; may be empty.
	LogTail string
	// Detail carries what only clients read: traceback, exception, log tail, metadata. Never looked at.
	Detail any
	// DetailBytes is the size of Detail; 0 where it is another error's.
	DetailBytes uint64
}
