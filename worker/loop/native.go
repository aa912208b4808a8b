package loop

import (
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
)

// Native runs native operations in slots; see package native. The owner calls Start, Stop, TakeBack
// and Load; they do not wait.
type Native interface {
	// Open starts the slots, which hand each run back to host. Close ends them and waits for them.
	Open(host native.Host)
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

// nativeRun is an attempt's run in a native slot. The fields besides Run are for the work that is
// deferred until the peers are notified; see Worker.settleEnded.
type nativeRun struct {
	native.Run
	attempt *attempt
	loans   []transfer.Loan
	// pinned are the inputs that were pinned for the attempt.
	pinned []ledger.ObjectID
	// report is nil if there is nothing to report; told is the time when the result was published.
	report *workerv1.TaskReport
	told   time.Time
}

// host is the worker as its native slots know it.
type host struct{ w *Worker }

// Ended is part of native.Host.
func (h host) Ended(runs []*native.Run) { h.w.post(runs) }

// HandOver is part of native.Host.
func (h host) HandOver(runs []*native.Run) { h.w.stepInlineQuietly(runs) }

// Idle is part of native.Host.
func (h host) Idle() { h.w.signal() }

// DeviceLost is part of native.Host.
func (h host) DeviceLost(why error) { h.w.Fail(why) }

// SetPolling is part of native.Host.
func (h host) SetPolling(yes bool) {
	if notifier := h.w.config.Notifier; notifier != nil {
		notifier.SetPolling(yes)
	}
}

// Poll is part of native.Host.
func (h host) Poll() bool {
	if h.w.config.Notifier == nil || !h.w.config.Notifier.Poll() {
		return false
	}
	h.w.tryStepInline()
	return true
}

// startNative hands an attempt to its native slot.
func (w *Worker) startNative(a *attempt, e lifecycle.StartRun) {
	short, brief := a.op.times.Expected()
	a.native = &nativeRun{Run: native.Run{
		Ref: a.ref, Call: a.call(), Timeout: a.timeout, Width: int(a.assigned.Slots), Short: short, Brief: brief,
		Reservation: w.reservations[e.Reservation], Roomy: e.Roomy, Times: native.Times{Known: a.known, Handed: time.Now()},
	}}
	w.config.Native.Start(e.Slot, &a.native.Run)
}

// nativeEnded handles a run that its native slot has finished or returned.
func (w *Worker) nativeEnded(ended *native.Run) {
	a := w.attempts[ended.Ref]
	if a == nil || a.native == nil || &a.native.Run != ended {
		return
	}
	r := a.native
	a.native = nil
	switch {
	case r.Returned:
		a.notBegun()
		w.step(lifecycle.RunReturned{Ref: r.Ref})
		return
	case r.NoRoom != nil:
		a.notBegun()
		w.step(lifecycle.NoRoom{Ref: r.Ref, Bytes: r.NoRoom})
		return
	}
	a.op.times.Observe(r.RunTime)
	r.attempt, r.loans = a, a.loans
	if broken := a.endLoans(); len(broken) > 0 {
		w.settleRun(r)
		w.discardBorrowed(a, broken)
		return
	}
	w.ran(a, lifecycle.Succeeded, r.Bytes, r.Inline, r.RunTime, r.Failure)
	w.ending = r
	w.step(lifecycle.RunEnded{Ref: r.Ref, Succeeded: r.Failure == nil, Outcome: lifecycle.Failed, Moved: r.Made()})
	w.ending = nil
	w.mu.Lock()
	w.ended = append(w.ended, r)
	w.mu.Unlock()
}

// When a native run has ended, its peers wait for the completion notification and its slot for the
// next run. All other work that follows from the end of the run is deferred, in Worker.ended: the
// inputs stay pinned a little longer, in-place reads are recorded later, and the scheduler gets the
// report last. A slot does this work when the next call is on its device or it has nothing else to
// do; see native.Host. Every other goroutine that signals the scheduler does it, too.

// settleEnded does the deferred work of runs that have ended. When it returns, nothing is left of
// the runs that had ended before the call, even if another goroutine did the work. It does not need
// the owner: the attempts of these runs have left the machine.
func (w *Worker) settleEnded() {
	w.settling.Lock()
	defer w.settling.Unlock()
	w.mu.Lock()
	ended := w.ended
	w.ended = nil
	w.mu.Unlock()
	for _, r := range ended {
		w.settleRun(r)
	}
}

func (w *Worker) settleRun(r *nativeRun) {
	for _, id := range r.pinned {
		w.config.Store.Unpin(id, r.Ref.Task, r.Ref.Attempt)
	}
	r.readInPlace(func(id ledger.ObjectID, at transfer.Peer, bytes uint64) {
		w.nearby.lender.Read(at, bytes)
		w.peers.ReadInPlace(id, at.Worker, bytes, r.Ref.Task, r.Times.Handed, r.Times.Stored)
	})
	if r.report != nil {
		w.times.Write(&r.Times, r.told)
		w.outbox.Task(r.report)
	}
}
