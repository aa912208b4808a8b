package loop

import (
	"context"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
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
