package loop

import (
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

// post appends an event to the inbox and wakes the owner goroutine. It may be called with locks
// held.
func (w *Worker) post(x any) {
	w.put(x)
	w.wakeOwner()
}

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
		w.post(e)
	}
}

// stepInlineQuietly is stepInline without the final signal: the caller must call signal to send the
// reports to the scheduler as soon as nothing else is urgent. It says whether the caller was the
// owner.
func (w *Worker) stepInlineQuietly(x any) bool {
	if waiting := w.put(x); waiting > 1 {
		w.wakeOwner()
		return false
	}
	return w.tryStepInline()
}

// receive takes a message of the scheduler from a caller that can carry out a fetch itself. The
// first suitable fetch that results from a short message is returned, so that the caller can start
// it before all other work. The caller must then call after, for the work that was left undone: to
// wake the owner if there is work for it, and to send the reports to the scheduler.
func (w *Worker) receive(m session.Message) (fetch func(leave func()), after func()) {
	if waiting := w.put(m); waiting > 1 || len(m.Response.GetAssignments()) > lifecycle.InlineAssignments {
		w.wakeOwner()
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
		if wake || w.Waiting() {
			w.wakeOwner()
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
			w.wakeOwner()
		}
		if !w.Waiting() {
			return true, nil, false
		}
	}
	w.wakeOwner()
	return true, nil, false
}

func (w *Worker) put(x any) (waiting int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inbox = append(w.inbox, x)
	return len(w.inbox)
}

// urgent handles ended runs and notifications from peers before their turn in the inbox: one
// message of the scheduler may carry a thousand assignments, and a peer may wait for the result of
// the first. These events do not depend on the events that were posted before them.
func (w *Worker) urgent() {
	if !w.Waiting() {
		return
	}
	var first []any
	w.mu.Lock()
	rest := w.inbox[:0]
	for _, x := range w.inbox {
		switch x.(type) {
		case []*native.Run, completed:
			first = append(first, x)
		default:
			rest = append(rest, x)
		}
	}
	clear(w.inbox[len(rest):])
	w.inbox = rest
	w.mu.Unlock()
	for _, x := range first {
		w.handle(x)
	}
	if len(first) > 0 && w.config.Notifier != nil {
		w.config.Notifier.Flush()
	}
}

func (w *Worker) wakeOwner() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// settle is called after each batch of the owner's work.
func (w *Worker) settle() {
	w.settleQuietly()
	w.signal()
}

// signal completes the deferred work of runs that have ended (settleEnded) and lets the session
// send the queued reports to the scheduler.
func (w *Worker) signal() {
	w.settleEnded()
	w.outbox.Signal()
}

func (w *Worker) settleQuietly() {
	if w.renewing != nil {
		w.renewed()
	}
	if w.asked && w.machine.Len() == 0 && w.lending == 0 && !w.peers.Rescuing() && w.stopped == nil && w.mayLeave() {
		w.leave("drained")
	}
	w.config.Native.Load(w.machine.Len() > 0, w.machine.FreeSlots())
	if w.config.Notifier != nil {
		w.config.Notifier.Flush()
	}
}
