package loop

import (
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
	switch w.machine.Renewal(w.pending(), time.Since(w.renewedSince)) {
	case lifecycle.Renewing:
		return
	case lifecycle.RenewalHangs:
		if w.stopped == nil {
			w.stopped = fmt.Errorf("the scheduler was started anew, and what ran here did not end within %v: %d attempts", lifecycle.RenewLimit, w.machine.Len())
		}
		return
	case lifecycle.Renewable:
	}
	w.native.settle()
	w.config.Store.Forget()
	w.functions.drop(w.functions.hashes())
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
