package loop

import (
	"context"
	"log/slog"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

// Executors runs attempts in processes. The owner calls its methods; they do not wait.
type Executors interface {
	// Kinds are the kinds of runners that it has: "python", and the names of registered programs.
	Kinds() []string
	// Segments says whether processes of a kind can read memory besides the slab. known is false as
	// long as no process has said so.
	Segments(kind string) (known, can bool)
	// KindOf returns the kind of executor that a process is, "" if it is none that runs tasks now.
	KindOf(pid int) string
	// Start hands a run to a slot.
	Start(kind string, slot int, r *executor.Run)
	// Stop ends a run, begun or not; its result follows.
	Stop(kind string, slot int, ref lifecycle.Ref)
	// Refuse ends a run that cannot wait for other tasks, as a failure; its result follows.
	Refuse(kind string, slot int, ref lifecycle.Ref, why string)
	// Resume lets a run go on that waited for other tasks.
	Resume(kind string, slot int, ref lifecycle.Ref)
	// TakeBack returns a run as a result if it has not begun.
	TakeBack(kind string, slot int, ref lifecycle.Ref)
	// Registered passes on the worker's number and the size limit of inline results.
	Registered(worker ids.WorkerID, inlineBytes uint64)
	// DropFunctions makes the processes forget functions, identified by their hashes.
	DropFunctions(hashes [][]byte)
	// Deaths returns how many processes died, and the reason of the last death.
	Deaths() (n uint64, last string)
}

// Native runs native operations in slots; see package native. The owner calls Start, Stop, TakeBack
// and Load; they do not wait.
type Native interface {
	// Open starts the slots, which hand each run back to their host. Close ends them and waits for
	// them.
	Open(of native.Host)
	Close()
	// Start hands a run to a slot.
	Start(slot int, r *native.Run)
	// Stop ends a run, begun or not; it comes back.
	Stop(slot int, r *native.Run)
	// TakeBack returns a run if it has not begun.
	TakeBack(slot int, r *native.Run)
	// Registered passes on the size limit of inline results.
	Registered(inlineBytes uint32)
	// Load says whether the worker has attempts, and how many slots no task occupies.
	Load(busy bool, free int)
	// GiveWay makes a slot that spins yield its thread: the owner has started a fetch or a lease
	// request.
	GiveWay()
	// InPlace says how operations read inputs at peers, nil if the device cannot do that.
	InPlace() device.InPlace
	// OutputBytes are the sizes of a call's result, nil if the call is wrong or they are unknown.
	OutputBytes(call device.Call) []uint64
}

// Sessions are the sessions with the scheduler, one after the other; see package session.
type Sessions interface {
	// Run keeps a session until the context ends or the worker leaves.
	Run(ctx context.Context)
	// Connected reports whether there is a session now.
	Connected() bool
	// Leave says that the worker leaves: Run ends with the current session.
	Leave()
}

// Notifier sends completion notifications to peers; see package notify. The owner calls its
// methods; they do not wait.
type Notifier interface {
	Subscribe(peer transfer.Peer, ref transfer.Ref)
	Unsubscribe(peer transfer.Peer, ref transfer.Ref)
	Publish(to *notify.Subscriber, c notify.Completion)
	Flush()
	SetPolling(yes bool)
	Poll() bool
}

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
	// NetworkDevices returns what the network devices carry, nil if that is unknown. May be nil.
	NetworkDevices func() []*millracev1.NetworkDevice
	Store          *store.Store
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
