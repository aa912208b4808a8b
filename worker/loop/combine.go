package loop

import (
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/session"
)

// This file steps the machine by flat combining. A message that finds the owner goroutine asleep
// costs two switches between goroutines: to the owner, and to the goroutine that gets the order. On
// a machine with many processors that takes longer than a small task. So a goroutine that brings an
// urgent event, and has nothing else to do, tries to take the lock owning and steps the machine
// itself: a slot that has run out of work, or the receiver of the session. Only one goroutine holds
// the lock at a time. Events that arrive meanwhile wait in the inbox, in order; the holder checks
// the inbox after it has released the lock and continues if there is more, but at most
// lifecycle.InlineRounds times: then it wakes the owner goroutine.

// stepInline posts an event. If the inbox was empty and no other goroutine is the owner, the caller
// steps the machine itself. REQUIRES: the caller holds no locks, and the owner's work never waits
// for the caller.
func (w *Worker) stepInline(x any) {
	if w.stepInlineQuietly(x) {
		w.signal()
	}
}

// tell takes an event of package peers.
func (w *Worker) tell(e peers.Event, idle bool) {
	if idle {
		w.stepInline(e)
	} else {
		w.inbox.Post(e)
	}
}

// stepInlineQuietly is stepInline without the final signal: the caller must call signal to send the
// reports to the scheduler as soon as nothing else is urgent. It says whether the caller was the
// owner.
func (w *Worker) stepInlineQuietly(x any) bool {
	if waiting := w.inbox.Put(x); waiting > 1 {
		w.inbox.WakeOwner()
		return false
	}
	return w.tryStepInline()
}

// receive takes a message of the scheduler from a caller that can carry out a fetch itself. The
// first suitable fetch that results from a short message is returned, so that the caller can start
// it before all other work. The caller must then call after, for the work that was left undone: to
// wake the owner if there is work for it, and to send the reports to the scheduler.
func (w *Worker) receive(m session.Message) (fetch func(leave func()), after func()) {
	if waiting := w.inbox.Put(m); waiting > 1 || len(m.Response.GetAssignments()) > lifecycle.InlineAssignments {
		w.inbox.WakeOwner()
		return nil, nil
	}
	was, fetch, wake := w.tryStepInlineAndTake(true)
	if fetch == nil {
		if was {
			w.signal()
		}
		return nil, nil
	}
	return fetch, func() {
		if wake || w.inbox.Waiting() {
			w.inbox.WakeOwner()
		}
		w.signal()
	}
}

// tryStepInline handles the events in the inbox, unless another goroutine is the owner and will do
// so. It says whether the caller was the owner.
func (w *Worker) tryStepInline() (was bool) {
	was, _, _ = w.tryStepInlineAndTake(false)
	return was
}

// tryStepInlineAndTake says with a taken fetch whether the owner must be woken.
func (w *Worker) tryStepInlineAndTake(take bool) (was bool, fetch func(leave func()), wake bool) {
	for range lifecycle.InlineRounds {
		if !w.owning.TryLock() {
			return was, nil, false // the holder of the lock checks the inbox after it has released it
		}
		was, w.takesFetch = true, take
		w.drainInbox()
		w.settleQuietly()
		fetch, w.takenFetch, w.takesFetch = w.takenFetch, nil, false
		// Only the owner goroutine handles ticks and the end of the worker.
		wake = w.stopped != nil || w.machine.Len() > 0 && !w.ticking
		w.owning.Unlock()
		if fetch != nil {
			return true, fetch, wake
		}
		if wake {
			w.inbox.WakeOwner()
		}
		if !w.inbox.Waiting() {
			return true, nil, false
		}
	}
	w.inbox.WakeOwner()
	return true, nil, false
}

// settle is called after each batch of the owner's work.
func (w *Worker) settle() {
	w.settleQuietly()
	w.signal()
}

// signal completes the deferred work of runs that have ended (nativeRuns.settle) and lets the
// session send the queued reports to the scheduler.
func (w *Worker) signal() {
	w.native.settle()
	w.outbox.Signal()
}

func (w *Worker) settleQuietly() {
	if w.renewing != nil {
		w.renewed()
	}
	// The objects are counted when the worker is idle: that reads all of them.
	if w.asked && w.stopped == nil && w.machine.Idle(w.pending()) && w.machine.Leaves(w.pending(), w.drained, len(w.config.Store.Inventory())) {
		w.leave("drained")
	}
	w.config.Native.Load(w.machine.Len() > 0, w.machine.FreeSlots())
	w.subscriptions.flush()
}

// Completed queues completion notifications from peers; see notify.Config. Handle processes them.
func (w *Worker) Completed(completions []notify.Completion) { w.inbox.Put(completed(completions)) }

// Requested queues the subscriptions of a peer. Handle processes them.
func (w *Worker) Requested(s *notify.Subscriber, requests []notify.Request) {
	w.inbox.Put(requested{s, requests})
}

// Handle processes the notifications and subscriptions that Completed and Requested have queued,
// unless another goroutine is the owner: then that one does.
func (w *Worker) Handle() {
	if w.tryStepInline() {
		w.signal()
	}
}

// Left says that a peer's connection has ended: its subscriptions are dropped.
func (w *Worker) Left(s *notify.Subscriber) { w.inbox.Post(left{s}) }

// host is the worker as its native slots know it.
type host struct{ w *Worker }

// Ended is part of native.Host.
func (h host) Ended(runs []*native.Run) { h.w.inbox.Post(runs) }

// HandOver is part of native.Host.
func (h host) HandOver(runs []*native.Run) { h.w.stepInlineQuietly(runs) }

// Idle is part of native.Host.
func (h host) Idle() { h.w.signal() }

// DeviceLost is part of native.Host.
func (h host) DeviceLost(why error) { h.w.inbox.Post(session.Failed{Err: why}) }

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
