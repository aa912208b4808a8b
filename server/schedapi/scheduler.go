// Package schedapi is an Interface: the calls that the network adapters (rpc, web) make to the
// scheduler, in the scheduler's own types. The loop implements it. No protocol type occurs in it.
package schedapi

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/templates"
)

// TaskSet names tasks by number, and by key in a namespace. Without a namespace, the keys are in
// that of the client who asks, or in "default".
type TaskSet struct {
	Tasks     []ids.TaskID
	Keys      []string
	Namespace string
}

// Scheduler lists all calls to the scheduler. Any goroutine may call the methods. Errors are
// *sched.Error, *coord.Error, *members.Error, *Error, or the error of the context.
type Scheduler interface {
	Coordination

	OpenClient(context.Context, ClientSpec) (*Client, error)
	// OwnerOf returns the owner of an open client. It does not wait.
	OwnerOf(ids.ClientID) (owner string, known bool)
	// RenewClient extends a lease. CloseClient ends it; closing an unknown lease is no error.
	RenewClient(context.Context, ids.ClientID) error
	CloseClient(context.Context, ids.ClientID) error
	// WatchTasks streams the changes of the tasks that a client holds. It resumes after a revision
	// if possible, else it starts with a snapshot.
	WatchTasks(ctx context.Context, client ids.ClientID, after uint64) (TaskWatch, error)

	Submit(context.Context, Submission) (Accepted, error)
	// Hold returns the numbers of the tasks: those of TaskSet.Tasks, then those of its keys.
	Hold(context.Context, ids.ClientID, TaskSet) ([]ids.TaskID, error)
	// Release ignores tasks that are unknown or not held.
	Release(context.Context, ids.ClientID, TaskSet) error
	// Cancel adds the tasks of the set to those that what names. Retry takes the failed and
	// cancelled tasks of the graphs as well. Both are for a client or, with client 0, an operator.
	Cancel(ctx context.Context, what sched.TasksCancelled, tasks TaskSet) (sched.Cancelled, error)
	Retry(ctx context.Context, client ids.ClientID, tasks TaskSet, graphs []ids.GraphID) (uint64, error)
	ReleaseGraph(context.Context, sched.GraphReleased) error
	Publish(context.Context, DatasetSpec) (*Dataset, error)
	Unpublish(ctx context.Context, namespace, name string) error

	// Snapshot returns the catalogue with all changes that anybody can have learned of before:
	// those that a returned call of any client has made, the end of each graph, and each change of
	// a worker's state. It waits for a commit only if one of these is not committed yet. The
	// progress of graphs that have not ended, and counters, are as in LastSnapshot.
	Snapshot(context.Context) (Snapshot, error)
	// LastSnapshot returns the catalogue as of its last commit, without waiting. It is at most
	// about 50 ms old; counters are at most about 250 ms old. The registrations of workers and the
	// datasets are always up to date.
	LastSnapshot() Snapshot
	// Read runs read while the machine handles no event. It must be quick, and must not keep the
	// Reader.
	Read(ctx context.Context, read func(Reader)) error
	// Await returns the update of a task as soon as the task has ended. It holds the task until
	// then.
	Await(ctx context.Context, namespace, key string) (sched.Update, error)

	Register(context.Context, Registration) (Session, error)
	// ReportDeath reports how an incarnation died. Its worker is lost from then on.
	ReportDeath(ctx context.Context, died members.Died) error

	// DrainWorkers orders the drain of workers, all or none. UndoDrains puts workers, by name, back
	// into use. When they return, a Snapshot has the new states.
	DrainWorkers(context.Context, sched.DrainOrdered) error
	UndoDrains(ctx context.Context, names []string) error
	// Plugins gives the machine of plugins to change, and records what changes of its rows. change
	// must be quick, must not keep the machine, and carries out the effects before it returns them.
	// Those that registers one are refused if nothing new is accepted.
	Plugins(ctx context.Context, registers bool, change func(*plugins.Machine) []plugins.Effect) error
	// Template returns a template of a namespace, and counts this as a use; nil: it is not known.
	// Any number of goroutines may call it, and none waits for other work of the scheduler.
	Template(namespace string, hash templates.Hash) *templates.Template
	// DefineTemplate keeps a template, and returns the one that has its hash. It is durable when a
	// later submission is accepted, or when Recorded returns.
	DefineTemplate(ctx context.Context, namespace string, t *templates.Template) (*templates.Template, error)
	// Recorded waits until all that was accepted before is durable. An error says why it is not.
	Recorded(ctx context.Context) error
	// Rebalance plans a rebalance and, unless it is a dry run, begins it. It returns the plan.
	Rebalance(context.Context, sched.RebalanceOrdered) (Rebalance, copies.RebalanceInfo, error)

	// Events returns the latest events with numbers above after, oldest first. It does not wait.
	Events(after uint64) []Event
	// Deaths returns the numbers of deaths of workers, by cause.
	Deaths() map[string]uint64
	// Journal returns the state of the journal; nil if there is none.
	Journal() *Journal

	// Shutdown orders the workers to stop for good, and then stops the scheduler.
	Shutdown(ctx context.Context, reason string) error
	// Draining is closed when the scheduler begins to stop.
	Draining() <-chan struct{}
	// Cluster returns the constant description of the scheduler. NativeOps returns the sorted names
	// of the native ops that the configuration or some worker has named; empty: none is known yet.
	Cluster() Cluster
	NativeOps() []string
}

// Reader is the read side of the scheduler machine. It is valid during one Read only.
type Reader interface {
	Lookup(namespace, key string) (ids.TaskID, bool)
	Task(ids.TaskID) (sched.TaskInfo, bool)
	Tasks(filter sched.TaskFilter, after ids.TaskID, limit int) (tasks []sched.TaskInfo, next ids.TaskID)
	UpdateOf(ids.TaskID) (sched.Update, bool)
	Explain(now time.Time, task ids.TaskID) (sched.Explanation, bool)
	History(ids.TaskID) []string
	HoldersOf(task ids.TaskID, limit int) []sched.Holder
	DependentsOf(task ids.TaskID, limit int) []sched.Dependent
	Runs(namespace string, graph ids.GraphID, begin time.Time, after uint64, limit int) (runs []sched.Run, next uint64)
	LatestRuns(after uint64, limit int) (runs []sched.Run, last uint64)
	RunsIf(wanted func(*sched.Run) bool, after, upTo uint64, limit int) (runs []sched.Run, last uint64)
	LastRun() uint64
	RunsBefore(before uint64, limit int, filter sched.RunFilter) (runs []sched.Run, next uint64)
	// ReplicasOf appends the workers that hold an object to out.
	ReplicasOf(task ids.TaskID, out []ids.WorkerID) (sched.Replica, sched.TaskState, []ids.WorkerID)
	Totals() sched.Totals
	OpTimes() []sched.OpTimes
	Unserved(limit int) []sched.Unserved
}

// ClientSpec opens a client lease.
type ClientSpec struct {
	Name      string
	Namespace string
	Origin    string
	// Worker is the name of the worker in whose task the client was opened; empty: outside of
	// tasks.
	Worker string
	TTL    time.Duration
	// Owner names the token that opened it: only that one, or an operator's, may be used for calls
	// in its name.
	Owner string
}

// Submission is a graph with the functions that the client sent along.
type Submission struct {
	Graph sched.GraphSubmitted
	// Functions are the needed functions that the client sent along.
	Functions []functions.Function
	// Needed lists the functions that the ops of the tasks refer to.
	Needed []ids.FunctionHash
}

// Accepted answers a submission.
type Accepted struct {
	sched.SubmitResult
	// Revision of the client's tasks from which on the new tasks are visible; 0 if detached.
	Revision uint64
	// MissingFunctions are neither known to the scheduler nor sent along. If there are any, nothing
	// was accepted.
	MissingFunctions []ids.FunctionHash
}

// DatasetSpec publishes a dataset.
type DatasetSpec struct {
	// Client selects its own namespace; 0: Namespace is used.
	Client    ids.ClientID
	Namespace string
	Name      string
	Keys      []string
	// Value is a serialised pb.Value. Its references to results are indices into Keys.
	Value   []byte
	Replace bool
}

// Cluster is the description of the scheduler that never changes during its life.
type Cluster struct {
	ID string
	// Life is random and never 0. Numbers of tasks, workers and clients are valid within one life
	// only.
	Life              uint64
	StartedAt         time.Time
	InlineResultBytes uint32
	MaxMessageBytes   uint64
	HTTPAddress       string
	WorkerLease       time.Duration
}

// Rebalance is a rebalance that was begun, or only planned.
type Rebalance interface {
	// Info returns its figures as they are now; after its end, the last ones.
	Info(context.Context) (copies.RebalanceInfo, error)
	// Ended is closed when nothing will change any more.
	Ended() <-chan struct{}
	// Stop ends it, also if the context has ended. After its end, Stop does nothing.
	Stop(context.Context)
}

// Journal is the state of the journal.
type Journal struct {
	// Records is the number of records since the start, and Waiting that of those that are not
	// durable yet. Lag is the age of the oldest of them.
	Records, Waiting uint64
	Lag              time.Duration
	// Bytes are those of its files.
	Bytes uint64
	// Syncs are the times that the disk took to make batches durable.
	Syncs sched.Histogram
	// Trouble is the error of the disk; empty: none. Lost says that nothing is recorded any more.
	Trouble string
	Lost    bool
	// Logged are the bytes, uncompressed, that were logged since the last snapshot began. Snapshots
	// counts those of this start; SnapshotBytes is the size of the last one, SnapshotAt the time of
	// its end, and SnapshotTook how long it took.
	Logged, Snapshots, SnapshotBytes uint64
	SnapshotAt                       time.Time
	SnapshotTook                     time.Duration
}

// TaskWatch is a stream of updates for one client. REQUIRES: one user at a time.
type TaskWatch interface {
	// Next returns the next batch. It invalidates the batch before: the memory is used again.
	Next(context.Context) (*TaskBatch, error)
	// Ready and Done are Next in two steps, for callers that wait for other events as well. Ready
	// yields the next batch after Done has given the last one back. The channel is closed when the
	// client's lease has ended.
	Ready() <-chan *TaskBatch
	Done(*TaskBatch)
	Close()
}

// TaskBatch holds the changed tasks in their state at the time of the batch. A task that came into
// that state several times, such as RUNNING in several attempts, may occur several times.
type TaskBatch struct {
	// Revision to resume after.
	Revision uint64
	// Snapshot says that the client holds only the tasks in the batch. Results that do not fit
	// follow in later batches; until then their tasks are RUNNING.
	Snapshot bool
	Updates  []sched.Update
	// Topics are those that the client reads and that have new messages: these were published
	// before the changes.
	Topics []coord.TopicPosition
}
