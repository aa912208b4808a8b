package loop

// lookout is how a lane that waits looks for what peers of this host say meanwhile. What they say is handled in the lane's
// own thread, and what follows from it is often its own next run: so nothing is woken between the end of a task at a peer
// and the start of what waits for it here.
type lookout struct {
	// looking says that the lane looks soon and again, or does not any more.
	looking func(yes bool)
	// look handles what has come, and says whether there was anything. What the scheduler is to hear of it is for the
	// caller to send off.
	look func() bool
	// going says whether the owner has set other goroutines going since it was asked last, which whoever waits gives way to.
	going func() bool
}

// lookout is that of a worker, which looks for nothing if it hears of nothing.
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
