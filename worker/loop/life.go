package loop

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/session"
)

// A restarted scheduler (another "life" of it) may give the same numbers to other tasks: an object,
// an attempt or a report of the earlier life could be mistaken for one of a new task. So if a
// worker finds a life that differs from its last session, it ends the session without sending
// anything, drops everything, and registers again with nothing. It is "renewing" until all its runs
// have ended. Until then it gets no assignments, so that the state of two lives never mixes.

// renew starts a renewal: it drops or cancels everything that belongs to the earlier life.
func (w *Worker) renew(r *session.Renewal) {
	if w.renewing == nil { // otherwise that session has ended, but the renewal that it began goes on
		w.renewedSince = time.Now()
	}
	w.log.Warn("the scheduler was started anew: this worker gives up the objects and tasks of the earlier one", "objects", len(w.config.Store.Inventory()),
		"attempts", w.machine.Len())
	w.renewing = r
	w.outbox.Forget(true)
	w.writes.Refuse()
	w.peers.Cancel()
	for _, ref := range w.machine.Attempts() {
		w.step(lifecycle.Cancelled{Ref: ref})
	}
}

// renewed ends the renewal when no run, fetch, rescue or lease request of the earlier life is
// active any more.
func (w *Worker) renewed() {
	r := w.renewing
	if w.machine.Busy() || w.peers.Rescuing() || w.lending > 0 {
		if time.Since(w.renewedSince) > lifecycle.RenewLimit && w.stopped == nil {
			w.stopped = fmt.Errorf("the scheduler was started anew, and what ran here did not end within %v: %d attempts", lifecycle.RenewLimit, w.machine.Len())
		}
		return
	}
	w.settleEnded()
	w.config.Store.Forget()
	var hashes [][]byte
	// order-free: each is forgotten independently.
	for hash := range w.functions {
		hashes = append(hashes, hash[:])
	}
	w.dropFunctions(hashes)
	w.step(lifecycle.Renewed{})
	w.peers.Forget()
	w.outbox.Forget(false)
	w.peers.Begin(w.running)
	w.life = r.Life
	w.writes.Renewed(r.Life)
	w.renewing = nil
	w.log.Info("everything of the earlier scheduler is given up", "took", time.Since(w.renewedSince).Round(time.Millisecond))
	close(r.Done)
}

var errLeft = errors.New("left")

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
	w.settleEnded()
	w.outbox.Leave()
	w.leaving = true
	w.stopped = errLeft
}
