package loop

import (
	"log/slog"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

// Config is fixed for the life of a worker.
type Config struct {
	// Registration describes the worker to the scheduler. The loop fills in inventory and running.
	Registration *workerv1.Registration
	// Sessions makes the sessions with the scheduler.
	Sessions func(session.Config) Sessions
	// Native runs native operations. The worker opens and closes it.
	Native Native
	// GPUHealth returns the state of the worker's GPU, nil if that is unknown. May be nil.
	GPUHealth func() *millracev1.GpuHealth
	Store     *store.Store
	// Path fetches objects from peers. Nil: the worker has no peers.
	Path transfer.Path
	// Notifier sends completion notifications to peers and receives theirs. It must call the
	// worker's Completed, Requested, Handle and Left. Nil: this worker sends none, and its
	// registration must say so.
	Notifier Notifier
	// Executors may be nil: then the worker has native operations only. The caller must pass the
	// results to Worker.PostResults.
	Executors Executors
	Logs      *tasklog.Logs
	// Traffic returns the bytes received and sent since the start.
	Traffic func() (in, out uint64)
	// RSS returns the resident memory of the process in bytes. Nil: that of this process.
	RSS func() uint64
	// Go calls a function in a goroutine of its own. Nil: at once.
	Go func(func())
	// SchedulerTimeout is how long the scheduler may be unreachable. Default 60 s.
	SchedulerTimeout time.Duration
	// MemoryWait is how long an attempt waits for memory. Default 30 s.
	MemoryWait time.Duration
	// BorrowWait limits the time of a request for leases; after that the object is fetched. Default
	// 2 s.
	BorrowWait time.Duration
	Log        *slog.Logger
	// Ready, if set, is called by the owner at the first registration.
	Ready func(ids.WorkerID)
	// Alive, if set, is called by the owner about every second. If the calls stop, the worker
	// hangs.
	Alive func()
	// Drain, when it is closed, makes the worker take no new work, finish its attempts, and leave
	// as soon as the scheduler confirms that nothing is lost with it. After DrainGrace it leaves in
	// any case. May be nil.
	Drain      <-chan struct{}
	DrainGrace time.Duration
	// Lifecycle are the machine's limits. Slots and resources are taken from the registration.
	Lifecycle lifecycle.Config
}
