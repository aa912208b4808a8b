// Package front is an Interface: what the adapters that face the network (rpc, web) ask of the scheduler, in the
// scheduler's own words. The loop implements it; no type of a protocol occurs in it.
package front

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// Scheduler is the whole of what can be asked. All methods may be called from any goroutine. Errors are *sched.Error,
// *Error, or that of the context.
type Scheduler interface {
	OpenClient(context.Context, ClientSpec) (*Client, error)
	// RenewClient prolongs a lease; CloseClient ends it. Closing an unknown one is no error.
	RenewClient(context.Context, ids.ClientID) error
	CloseClient(context.Context, ids.ClientID) error
	// WatchTasks streams what happens to the tasks that a client holds, resuming after a revision if that is possible.
	WatchTasks(ctx context.Context, client ids.ClientID, after uint64) (TaskWatch, error)

	Submit(context.Context, Submission) (Accepted, error)
	Hold(context.Context, sched.TasksHeld) ([]ids.TaskID, error)
	Release(context.Context, sched.TasksReleased) error
	// Cancel and Retry take tasks by number, and by key in a namespace (that of the client, if one is given).
	Cancel(ctx context.Context, what sched.TasksCancelled, namespace string, keys []string) (sched.Cancelled, error)
	Retry(ctx context.Context, client ids.ClientID, tasks []ids.TaskID, namespace string, keys []string) (uint64, error)
	ReleaseGraph(context.Context, sched.GraphReleased) error
	Publish(context.Context, DatasetSpec) (*Dataset, error)
	Unpublish(ctx context.Context, namespace, name string) error

	// Snapshot returns the catalogue with everything in it that happened before the call.
	Snapshot(context.Context) (Snapshot, error)
	// LastSnapshot returns the catalogue as of its last commit, at most some 50 ms old, without a wait.
	LastSnapshot() Snapshot
	// Read runs read on the machine's own goroutine. It must be quick, and must not keep the reader.
	Read(ctx context.Context, read func(Reader)) error
	// Await returns the update of a task as soon as it has ended, holding it meanwhile.
	Await(ctx context.Context, namespace, key string) (sched.Update, error)

	Register(context.Context, Registration) (Session, error)
	// ReportDeath says how an incarnation died, whose worker is thereby lost.
	ReportDeath(ctx context.Context, name string, death Death) error

	// Shutdown tells workers and clients that the cluster stops for good, and then stops the scheduler.
	Shutdown(ctx context.Context, reason string) error
	// Draining is closed when the scheduler begins to stop.
	Draining() <-chan struct{}
	// Cluster returns what never changes, and NativeOps the sorted names of native ops that some worker or the
	// configuration knows; empty: nothing is known yet.
	Cluster() Cluster
	NativeOps() []string
}

// Reader is the reading side of the scheduler machine, valid during one Read.
type Reader interface {
	Lookup(namespace, key string) (ids.TaskID, bool)
	Task(ids.TaskID) (sched.TaskInfo, bool)
	Tasks(filter sched.TaskFilter, after ids.TaskID, limit int) (tasks []sched.TaskInfo, next ids.TaskID)
	UpdateOf(ids.TaskID) (sched.Update, bool)
	Explain(now time.Time, task ids.TaskID) (sched.Explanation, bool)
	Story(ids.TaskID) []string
	// ReplicasOf appends the workers that hold an object to out.
	ReplicasOf(task ids.TaskID, out []ids.WorkerID) (sched.Replica, sched.TaskState, []ids.WorkerID)
	Totals() sched.Totals
}

// ClientSpec opens a client lease.
type ClientSpec struct {
	Name      string
	Namespace string
	Origin    string
	// Worker is the name of the one in whose task the client was opened; empty: in none.
	Worker string
	TTL    time.Duration
}

// Function is a pickled function.
type Function struct {
	Hash    ids.FunctionHash
	Payload []byte
	// Language that can run it, with its version; empty: not said.
	Language string
}

// Submission is a graph with the functions that came along.
type Submission struct {
	Graph sched.GraphSubmitted
	// Functions that the ops of its tasks refer to, as far as they came along.
	Functions []Function
	// Needed are the functions that the ops of its tasks refer to.
	Needed []ids.FunctionHash
}

// Accepted answers a submission.
type Accepted struct {
	sched.SubmitResult
	// Revision of the client's tasks as of which all are visible; 0 if detached.
	Revision uint64
	// MissingFunctions are neither known nor came along: nothing was accepted.
	MissingFunctions []ids.FunctionHash
}

// DatasetSpec publishes a dataset.
type DatasetSpec struct {
	// Client in whose namespace; 0: Namespace.
	Client    ids.ClientID
	Namespace string
	Name      string
	Keys      []string
	Metadata  []byte
	Replace   bool
}

// Cluster is what never changes in a scheduler's life.
type Cluster struct {
	ID string
	// Life is random and never 0. Numbers of tasks, workers and clients mean something in one life only.
	Life              uint64
	StartedAt         time.Time
	InlineResultBytes uint32
	MaxMessageBytes   uint64
	HTTPAddress       string
	WorkerLease       time.Duration
}

// TaskWatch is a stream of updates for one client. REQUIRES: one user at a time.
type TaskWatch interface {
	// Next returns the next batch. The batch before is invalid from then on: its memory is used again.
	Next(context.Context) (*TaskBatch, error)
	// Ready is a channel that yields the next batch, after the last one was given back by Done: Next in two steps, for
	// those who wait for other things as well. It is closed when the client's lease has ended.
	Ready() <-chan *TaskBatch
	Done(*TaskBatch)
	Close()
}

// TaskBatch is what changed, each task at most once or twice, in its state at the time of the batch.
type TaskBatch struct {
	// Revision to resume after.
	Revision uint64
	// Snapshot says that the client holds nothing but what is in the batch. Results that do not fit follow in further
	// batches; in the snapshot their tasks are RUNNING.
	Snapshot bool
	Updates  []sched.Update
}
