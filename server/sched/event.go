package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// Event is a fact that the machine is informed of, named in the past tense. Events are plain
// values. Slices in an event belong to the machine after Step.
type Event interface{ event() }

// ClientOpened starts a client lease. The loop chooses the id (never reused).
type ClientOpened struct {
	Client    ids.ClientID
	Namespace string
	// Worker is the name of the worker whose task opened the client; empty if no task did.
	Worker string
	// TTL is how long the lease lives after the last ClientRenewed.
	TTL time.Duration
}

// ClientRenewed shows that a client is alive. Unknown clients are ignored.
type ClientRenewed struct{ Client ids.ClientID }

// ClientClosed ends a lease at once.
type ClientClosed struct{ Client ids.ClientID }

// GraphSubmitted adds tasks, all or none. Machine.Submit returns the answer as a SubmitResult.
type GraphSubmitted struct {
	// Client is 0 for a detached submission.
	Client ids.ClientID
	// Graph is the graph to append to; 0 makes a new one.
	Graph ids.GraphID
	Name  string
	// Namespace is used for detached submissions only; a client submits in its own namespace.
	Namespace string
	// RequestID makes the submission idempotent; empty: it is not idempotent.
	RequestID string
	// Retention is how long the results of a detached graph are kept after its end.
	Retention time.Duration
	// Ops is the submission's op table. TaskSpec.Op indexes it.
	Ops []OpSpec
	// Options is the submission's options table. TaskSpec.Options indexes it, counted from 1; 0
	// means defaults.
	Options []Options
	Tasks   []TaskSpec
	// CallerBytes is the memory, in bytes, that the caller itself holds for the submission. It
	// counts against Config.MemoryBytes.
	CallerBytes uint64
}

// TasksHeld makes a client hold tasks by number and by key, all or none. Machine.Hold returns the
// numbers of the tasks: those of Tasks, then those of Keys.
type TasksHeld struct {
	Client ids.ClientID
	Tasks  []ids.TaskID
	Keys   []string
}

// TasksReleased ends holds of a client. Unknown tasks are ignored.
type TasksReleased struct {
	Client ids.ClientID
	Tasks  []ids.TaskID
}

// TasksCancelled stops tasks and all tasks that need them.
type TasksCancelled struct {
	// Client is the client that asks; 0: an operator. Without Force, if other holders want a task
	// too, only this client's hold on it ends.
	Client ids.ClientID
	Tasks  []ids.TaskID
	Graphs []ids.GraphID
	Reason string
	Force  bool
}

// TasksRetried runs failed or cancelled tasks again, with their failed or cancelled inputs.
type TasksRetried struct{ Tasks []ids.TaskID }

// GraphReleased drops a graph and, if it is detached, its holds. With Cancel, its active tasks are
// cancelled; without, a graph with active tasks is refused.
type GraphReleased struct {
	Graph  ids.GraphID
	Cancel bool
}

// DatasetPublished holds tasks for a dataset; DatasetUnpublished ends that. The catalogue owns the
// names of datasets. The machine knows each dataset only by an opaque number.
type DatasetPublished struct {
	Dataset   uint64
	Namespace string
	Keys      []string
}

// DatasetUnpublished ends the hold of a dataset.
type DatasetUnpublished struct{ Dataset uint64 }

// WorkerRegistered adds a worker incarnation, or brings a disconnected one back.
type WorkerRegistered struct {
	// Worker is chosen by the loop: a new number, or the old one if the incarnation is known and
	// not lost.
	Worker      ids.WorkerID
	Name        string
	Incarnation string
	Host        string
	Slots       uint32
	Resources   map[string]float64
	MemoryBytes uint64
	// Executors are the executors that the worker offers: "native", "python", names of registered
	// executors.
	Executors []string
	// PipelinedReads means that the worker takes part in broadcast chains: it can read an object
	// that is still arriving at another worker of its host, and lets others read its own arriving
	// objects.
	PipelinedReads bool
	// Inventory lists all objects that the worker holds.
	Inventory []Replica
	// Written lists objects that clients wrote there, and that are not accepted, as far as the
	// worker knows. It reports them next.
	Written []Replica
	// Running lists the attempts that the worker still has.
	Running []TaskRef
	// Notifies means that the worker sends completion notifications to other workers and can wait
	// for theirs; see crosspreassign.go.
	Notifies bool
	// Supervised means that a supervisor starts the worker again when it ends for a restart.
	Supervised bool
	// Linalg describes how the worker computes linear algebra on the CPU.
	Linalg Linalg
}

// WorkerDisconnected means that a worker's session broke. The worker keeps its tasks and data until
// WorkerLost.
type WorkerDisconnected struct{ Worker ids.WorkerID }

// WorkerLost means that a worker incarnation is gone: its process died, or its lease ended.
type WorkerLost struct {
	Worker ids.WorkerID
	// Cause is text for error messages, such as "killed by SIGKILL".
	Cause string
	// Outside means that the worker ended for an outside reason, as far as is known: a kill that
	// was not for lack of memory, a broken network, an orderly end. Its tasks are then hardly to
	// blame.
	Outside bool
	// Killed means that SIGKILL ended it. A person, the system or a task may have sent the signal.
	Killed bool
	// Left means that the worker ended by itself, in an orderly way.
	Left bool
	// Gone means that its data will not come back: its process has ended, or another incarnation
	// has its name.
	Gone bool
	// Calls says which functions were running.
	Calls Calls
	// DeviceFault means that its memory cannot be trusted, and that reading it may break the
	// reader. Nothing is rescued.
	DeviceFault bool
	// Survivors are workers that may have the memory of its process mapped and can read it after
	// its end. Each survivor checks by itself that the process has ended.
	Survivors []ids.WorkerID
}

// WorkerEnded means that the process of a worker that was lost earlier has now ended.
type WorkerEnded struct {
	Incarnation, Cause string
	// Killed means that SIGKILL ended it, as when a supervisor kills a worker that hangs.
	Killed bool
	// Calls says which functions were running.
	Calls Calls
}

// Calls are the functions that the executor processes of a worker were running when it died, as its
// supervisor found out. A process that still starts, or loads what the function needs, runs none.
type Calls struct {
	// Known: the supervisor knows all of them. The zero value says nothing.
	Known    bool
	Attempts []TaskRef
}

// RescueFailed means that Worker could not copy Objects out of the memory of Dead.
type RescueFailed struct {
	Worker, Dead ids.WorkerID
	Objects      []Replica
}

// Events for the machine of copies.
type (
	// WorkerDraining means that the process of a worker was told to stop.
	WorkerDraining copies.WorkerDraining
	// DrainOrdered is the order of an operator to take workers out of use.
	DrainOrdered copies.DrainOrdered
	// DrainUndone is the order of an operator to use workers again.
	DrainUndone copies.DrainUndone
	// RebalanceOrdered is the order of a client to even out the bytes that workers hold.
	RebalanceOrdered copies.RebalanceOrdered
	// RebalanceStopped means that the client does not want it any more.
	RebalanceStopped copies.RebalanceStopped
)

// WorkerMeasured updates the memory use of a worker, which placement considers.
type WorkerMeasured struct {
	Worker          ids.WorkerID
	MemoryUsedBytes uint64
	// MemoryEvictableBytes are those of the used bytes that can leave the memory to make room.
	MemoryEvictableBytes uint64
}

// RatesMeasured is a batch of transfer rates that one worker measured.
type RatesMeasured []RateMeasured

// RateMeasured sets the transfer rate from From to To. From or To 0 means any worker.
type RateMeasured struct {
	From, To       ids.WorkerID
	BytesPerSecond float64
	Latency        time.Duration
}

// TasksReported is a batch of reports from one worker, in the order in which they happened.
type TasksReported struct {
	Worker  ids.WorkerID
	Reports []Report
}

// ObjectsReported is a batch of objects that one worker gained or lost in another way than by
// running tasks.
type ObjectsReported struct {
	Worker ids.WorkerID
	Gained []Stored
	Lost   []Replica
}

// TimePassed runs the timers that are due: retry back-off, lease ends, retention and others. The
// loop sends it at Machine.NextDeadline.
type TimePassed struct{}

func (ClientOpened) event() {}

func (ClientRenewed) event() {}

func (ClientClosed) event() {}

func (GraphSubmitted) event() {}

func (TasksHeld) event() {}

func (TasksReleased) event() {}

func (TasksCancelled) event() {}

func (TasksRetried) event() {}

func (GraphReleased) event() {}

func (DatasetPublished) event() {}

func (DatasetUnpublished) event() {}

func (WorkerRegistered) event() {}

func (WorkerDisconnected) event() {}

func (WorkerLost) event() {}

func (WorkerEnded) event() {}

func (RescueFailed) event() {}

func (WorkerDraining) event() {}

func (DrainOrdered) event() {}

func (DrainUndone) event() {}

func (RebalanceOrdered) event() {}

func (RebalanceStopped) event() {}

func (WorkerMeasured) event() {}

func (RatesMeasured) event() {}

func (TasksReported) event() {}

func (ObjectsReported) event() {}

func (TimePassed) event() {}

// OpSpec is the machine's view of an op: its name, for counting, and the kind of executor that it
// needs.
type OpSpec struct {
	Kind OpKind
	// Name groups tasks in the summaries of a graph. With Kind and Function it identifies the op.
	Name string
	// Function is the hash of a pickled function; zero otherwise.
	Function ids.FunctionHash
}

// OpKind is the kind of executor that runs an op.
type OpKind uint8

// Kinds of ops; the values equal those of the API.
const (
	OpNative       OpKind = 1
	OpPythonImport OpKind = 2
	OpPythonPickle OpKind = 3
	OpExec         OpKind = 4
	OpData         OpKind = 5
)

// Options are the rules for a task; the zero value is the default.
type Options struct {
	Priority     int32
	MaxRetries   uint32
	RetryBackoff time.Duration // 0: 100 ms
	Timeout      time.Duration // 0: none
	Resources    map[string]float64
	// Workers are the preferred workers: those that one of the selectors selects. Empty: all.
	Workers             []WorkerSelector
	AllowOtherWorkers   bool
	ExpectedOutputBytes uint64
	Slots               uint32 // 0: 1
	NoWait              bool
}

// WorkerSelector selects workers by the one field that is set.
type WorkerSelector struct {
	Worker ids.WorkerID // one incarnation
	Name   string       // a worker, in all its incarnations
	Host   string       // all workers of a host
}

// String returns the name, the host or the id.
func (s WorkerSelector) String() string {
	if s.Worker != 0 {
		return s.Worker.String()
	}
	return s.Name + s.Host
}

// TaskSpec is one task as submitted.
type TaskSpec struct {
	Key string
	// Op indexes GraphSubmitted.Ops.
	Op uint32
	// Options is an index in GraphSubmitted.Options plus 1; 0: defaults.
	Options uint32
	// Inputs are keys of tasks in the same submission or in the namespace.
	Inputs []string
	// Items are the inputs of which the task needs one item only, in ascending order of Input.
	Items []ItemInput
	// Arguments are opaque bytes that go to the worker unchanged.
	Arguments []byte
	Hold      bool
}

// ItemInput says that a task needs one item of an input, which is a list.
type ItemInput struct {
	// Input is an index in TaskSpec.Inputs.
	Input uint32
	Item  ids.Item
	// Count is the expected length of the list; 0: unknown.
	Count uint32
}

// Replica is one generation of one object, with its size.
type Replica struct {
	Task       ids.TaskID
	Generation ids.Attempt
	Bytes      uint64
}

// Stored is an object that a worker got by scatter or by copy.
type Stored struct {
	Replica
	// Inline is the object itself if it is small; nil otherwise.
	Inline []byte
	// Written means that a client wrote the object to the worker. The worker hides it from readers
	// until EffectAccept.
	Written bool
	// Kept means that the worker answers EffectKeep.
	Kept bool
}

// TaskRef names one attempt.
type TaskRef struct {
	Task    ids.TaskID
	Attempt ids.Attempt
}

// Outcome is the way in which an attempt went on or ended.
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
	// OutcomeBlocked means that the attempt runs and waits for other tasks, without a slot;
	// OutcomeGoesOn, that it has a slot again.
	OutcomeBlocked Outcome = 9
	OutcomeGoesOn  Outcome = 10
)

// Report is a worker's message about one attempt.
type Report struct {
	Task        ids.TaskID
	Attempt     ids.Attempt
	Outcome     Outcome
	OutputBytes uint64
	// Inline is the result itself if it is small; nil otherwise.
	Inline  []byte
	RunTime time.Duration
	Err     *TaskError
	// Unreachable lists the inputs that could not be fetched, for OutcomeInputUnreachable.
	Unreachable []Unreachable
	// LogTail is the end of the task's output; may be empty.
	LogTail string
	// AtFault is the input to which the failure is due, counted from 1. The machine names it in
	// front of the message. 0: none.
	AtFault uint32
	// Phases are of a finished attempt, for its Run.
	Phases Phases
}

// Unreachable is an input that could not be fetched.
type Unreachable struct {
	Task       ids.TaskID
	Generation ids.Attempt
	FailedAt   []ids.WorkerID
	// MissingAt are workers that answered that they do not hold it: those replicas are gone.
	MissingAt []ids.WorkerID
}

// TaskError is the reason why a task failed. Detail is opaque to the machine: the adapter keeps the
// API's TaskError there.
type TaskError struct {
	Reason  string
	Message string
	// OriginKey is the key of the task that failed first.
	OriginKey string
	Worker    string
	Attempt   ids.Attempt
	// Attempts counts the attempts that failed or ended with a death, including this one. 0: the
	// error does not belong to an attempt.
	Attempts uint32
	// LogTail is the end of the task's output if Detail does not contain it; may be empty.
	LogTail string
	// Detail carries information for clients only: traceback, exception, log tail, metadata. The
	// machine never reads it.
	Detail any
	// DetailBytes is the size of Detail; 0 if Detail belongs to another task's error.
	DetailBytes uint64
}

// Linalg describes how a worker computes linear algebra on the CPU.
type Linalg struct {
	// Library describes the library for people. Empty: the worker does not compute linear algebra.
	Library string
	// File is the library's file on the worker's host; empty: there is no library, or no such file.
	File string
	// Cores is the number of processors that native operations may use together; 0 means all.
	Cores uint32
	// Ops are the native operations of linear algebra that the CPU computes.
	Ops []string
}

// Phases are the times that a worker spent on an attempt beside running it; 0: unknown.
type Phases struct {
	// Fetch is the time in which inputs came from other workers, Load that in which they came only
	// from lower tiers, Wait that for memory, Deserialize that for the function and the inputs, and
	// Publish that for the result.
	Fetch, Load, Wait, Deserialize, Publish time.Duration
	// FetchedBytes came from other workers.
	FetchedBytes uint64
	// Slot is the number of the worker's slot, counted from 1.
	Slot uint32
}

// known reports whether a worker has told any of them.
func (p *Phases) known() bool {
	return p.Slot != 0 || p.FetchedBytes != 0 || p.Fetch|p.Load|p.Wait|p.Deserialize|p.Publish != 0
}
