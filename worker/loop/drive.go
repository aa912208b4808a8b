package loop

// A message that finds the owner asleep costs two hops between goroutines, one to wake it and one to what it orders; on a
// machine with many processors that is more than a small task takes. So whoever brings what may be urgent, and has
// nothing else to do, is the owner for the moment: a lane that has run out of work, and the session's receiver. Only one
// can be at a time, and what comes meanwhile waits in the inbox, in order: who was the owner looks there
// afterwards and goes on with it, but not for ever: then it wakes the one whose business it is.

// maxDriven is how many assignments a message has that its receiver carries out itself: more of them are work, and the
// owner does that beside the receiver.
const maxDriven = 4

// maxTurns bounds for how long one is the owner while others go on bringing something.
const maxTurns = 4

// post hands something to the owner. It may be called with locks held.
func (w *Worker) post(x any) {
	w.put(x)
	w.wakeOwner()
}

// drive is post by one who takes the owner's part, if nobody has it and nothing else waits. REQUIRES: the caller holds no
// locks and is not waited for by what the owner does.
func (w *Worker) drive(x any) {
	if w.driveQuietly(x) {
		w.signal()
	}
}

// driveQuietly is drive but for the scheduler's word, which is for the caller to send off, by signal, as soon as
// nothing else is urgent. It says whether it was the owner.
func (w *Worker) driveQuietly(x any) bool {
	if waiting := w.put(x); waiting > 1 {
		w.wakeOwner()
		return false
	}
	return w.ownForAMoment()
}

// driveAndTake is drive by one who can carry out a fetch: the first that is ordered is its own, and begins before
// anything else that there is to do; what else there is it does in catchUp, which is the caller's to call.
func (w *Worker) driveAndTake(x any) (taken *fetching) {
	if waiting := w.put(x); waiting > 1 {
		w.wakeOwner()
		return nil
	}
	was, taken := w.ownAndTake(true)
	if was && taken == nil {
		w.signal()
	}
	return taken
}

// catchUp does what who took a fetch has left undone.
func (f *fetching) catchUp() {
	if f.wake || f.worker.waiting() {
		f.worker.wakeOwner()
	}
	f.worker.signal()
}

// ownForAMoment handles what is in the inbox, unless somebody else is the owner and will. It says whether it was the owner.
func (w *Worker) ownForAMoment() (was bool) {
	was, _ = w.ownAndTake(false)
	return was
}

func (w *Worker) ownAndTake(take bool) (was bool, taken *fetching) {
	for range maxTurns {
		if !w.owning.TryLock() {
			return was, nil // whoever holds it looks into the inbox afterwards
		}
		was, w.takes = true, take
		w.drainInbox()
		w.settleQuietly()
		taken, w.taken, w.takes = w.taken, nil, false
		// Ticks and the end are the owner's alone.
		wake := w.stopped != nil || w.machine.Len() > 0 && !w.ticking
		w.owning.Unlock()
		if taken != nil {
			taken.wake = wake
			return true, taken
		}
		if wake {
			w.wakeOwner()
		}
		if !w.waiting() {
			return true, nil
		}
	}
	w.wakeOwner()
	return true, nil
}

func (w *Worker) put(x any) (waiting int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inbox = append(w.inbox, x)
	return len(w.inbox)
}

// urgent handles what ran and what peers have told, out of its turn: a message of the scheduler may bring a thousand
// assignments, and a peer may wait for the result of the first. Neither depends on what was posted before it.
func (w *Worker) urgent() {
	if !w.waiting() {
		return
	}
	var first []any
	w.mu.Lock()
	rest := w.inbox[:0]
	for _, x := range w.inbox {
		switch x.(type) {
		case []*nativeRun, heard:
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
	if len(first) > 0 && w.config.Herald != nil {
		w.config.Herald.Flush()
	}
}

func (w *Worker) waiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.inbox) > 0
}

func (w *Worker) wakeOwner() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// settle is done after each piece of the owner's work.
func (w *Worker) settle() {
	w.settleQuietly()
	w.signal()
}

// signal does what was left to do of runs that have ended, for which no peer waits, and sends off what the scheduler is to hear.
func (w *Worker) signal() {
	w.settleEnded()
	w.outbox.signal()
}

func (w *Worker) settleQuietly() {
	if w.renewing != nil {
		w.renewed()
	}
	if w.draining && w.machine.Len() == 0 && len(w.parked) == 0 && len(w.borrowing) == 0 && w.stopped == nil && w.mayLeave() {
		w.leave("drained")
	}
	w.busy.Store(w.machine.Len() > 0)
	if w.config.Herald != nil {
		w.config.Herald.Flush()
	}
}
