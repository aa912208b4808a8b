package loop

// poller polls for notifications from peers on this host while a slot waits. The slot's own thread
// handles them, and its next run often follows from them: so no thread has to be woken between the
// end of a task at a peer and the start of the task that waits for its result here.
type poller struct {
	// setPolling declares that the slot polls often from now on, or no longer does.
	setPolling func(yes bool)
	// poll handles the notifications that have arrived and says whether there were any. The caller
	// must send the resulting reports to the scheduler (see Worker.signal).
	poll func() bool
	// started says whether the owner has started other goroutines since the last call; a waiting
	// slot yields its thread to them.
	started func() bool
}

// poller returns the poller of a worker. Without notifications (no Notifier) it finds nothing.
func (w *Worker) poller() poller {
	h := w.config.Notifier
	if h == nil {
		return poller{setPolling: func(bool) {}, poll: func() bool { return false }, started: w.takeStarted}
	}
	return poller{setPolling: h.SetPolling, started: w.takeStarted, poll: func() bool {
		found := h.Poll()
		if found {
			w.tryStepInline()
		}
		return found
	}}
}

func (w *Worker) takeStarted() bool { return w.startedWork.Load() && w.startedWork.Swap(false) }
