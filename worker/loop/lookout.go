package loop

// lookout polls for notifications from peers on this host while a lane waits. The lane's own thread
// handles them, and its next run often follows from them: so no thread has to be woken between the
// end of a task at a peer and the start of the task that waits for its result here.
type lookout struct {
	// looking declares that the lane polls often from now on, or no longer does.
	looking func(yes bool)
	// look handles the notifications that have arrived and says whether there were any. The caller
	// must send the resulting reports to the scheduler (see Worker.signal).
	look func() bool
	// going says whether the owner has started other goroutines since the last call; a waiting lane
	// yields its thread to them.
	going func() bool
}

// lookout returns the poller of a worker. Without notifications (no Herald) it finds nothing.
func (w *Worker) lookout() lookout {
	h := w.config.Herald
	if h == nil {
		return lookout{looking: func(bool) {}, look: func() bool { return false }, going: w.isGoing}
	}
	return lookout{looking: h.Looking, going: w.isGoing, look: func() bool {
		found := h.Look()
		if found {
			w.ownForAMoment()
		}
		return found
	}}
}

func (w *Worker) isGoing() bool { return w.going.Load() && w.going.Swap(false) }
