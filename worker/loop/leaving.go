package loop

// askToLeave asks the scheduler for permission to leave. The scheduler then places nothing new
// here, and has other workers copy the objects that only this worker holds.
func (w *Worker) askToLeave() {
	w.log.Info("asked to leave: ending what runs, and handing over what no other worker has",
		"running", w.machine.Len(), "objects", len(w.config.Store.Inventory()), "grace", w.config.DrainGrace)
	w.asked = true
	w.outbox.Drain()
}

// mayLeave says whether an idle worker that was told to leave can do so without loss: the scheduler
// has agreed, or the worker holds no objects.
func (w *Worker) mayLeave() bool {
	return w.drained || len(w.config.Store.Inventory()) == 0
}

func (w *Worker) leave(why string) {
	if running, objects := w.machine.Len(), len(w.config.Store.Inventory()); !w.asked || w.drained || running+objects == 0 {
		w.log.Info("leaving", "reason", why)
	} else {
		// The scheduler recomputes the lost objects that it can.
		w.log.Warn("leaving before all was handed over", "reason", why, "running", running, "objects", objects)
	}
	w.sessions.Leave()
	w.native.settle()
	w.outbox.Leave()
	w.leaving = true
	w.stopped = errLeft
}
