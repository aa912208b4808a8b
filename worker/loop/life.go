package loop

import (
	"context"
	"fmt"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/herald"
	"github.com/millrace/millrace/worker/lifecycle"
)

// A restarted scheduler (another life of it) may give the same numbers to other tasks: an object, an attempt or a
// report of the life before could be mistaken for one of a new task. So a worker that meets another life than in its
// last session ends that session without sending anything, drops everything, and registers anew with nothing. It is
// "renewing" until all that ran has ended; until then it gets no assignments, so that state of two lives never meets.

// renewLimit is how long running attempts may take to end. After it the worker ends itself; its next incarnation begins
// with nothing.
const renewLimit = 30 * time.Second

// renewal is posted by the session that has found another life. done is closed when nothing of the earlier life is left.
type renewal struct {
	life uint64
	done chan struct{}
	// since is when it began.
	since time.Time
}

// renew gives up everything that belongs to the earlier life.
func (w *Worker) renew(r *renewal) {
	r.since = time.Now()
	if w.renewing != nil {
		r.since = w.renewing.since // the session in which that began has ended
	}
	w.log.Warn("the scheduler was started anew: this worker gives up the objects and tasks of the earlier one", "objects", len(w.config.Store.Inventory()),
		"attempts", w.machine.Len())
	w.renewing = r
	w.outbox.forget(true)
	w.parked = nil
	// Attempts that wait for loans are unknown to the machine; their loans end when they arrive. order-free: each is dropped
	// for itself.
	for ref, a := range w.borrowing {
		delete(w.borrowing, ref)
		if !a.admitted {
			delete(w.attempts, ref)
		}
	}
	// order-free: each is answered for itself.
	for id := range w.writes {
		w.refuse(id, otherLife, otherLifeWords)
	}
	w.cancelFetches()
	for _, ref := range w.machine.Attempts() {
		w.step(lifecycle.Cancelled{Ref: ref})
	}
}

// renewed ends a renewal when nothing is under way any more.
func (w *Worker) renewed() {
	r := w.renewing
	if w.machine.Busy() || len(w.rescuing) > 0 || w.lending > 0 {
		if time.Since(r.since) > renewLimit && w.stopped == nil {
			w.stopped = fmt.Errorf("the scheduler was started anew, and what ran here did not end within %v: %d attempts", renewLimit, w.machine.Len())
		}
		return
	}
	w.settleEnded()
	w.config.Store.Forget()
	var hashes [][]byte
	// order-free: each is forgotten for itself.
	for hash := range w.functions {
		hashes = append(hashes, hash[:])
	}
	w.dropFunctions(hashes)
	clear(w.borrowedTimes)
	w.nearby = newNearby(&w.config)
	// order-free: each is forgotten for itself.
	for id := range w.peers {
		w.setPeer(&millracev1.Peer{WorkerId: uint32(id)})
	}
	clear(w.awaits.waiting)
	// order-free: each is answered for itself.
	for id, readers := range w.awaits.readers {
		for _, x := range readers {
			w.config.Herald.Tell(x.Reader, herald.Word{Ref: transfer.Ref{Task: id.Task, Generation: id.Generation}, Never: true})
		}
	}
	clear(w.awaits.readers)
	w.outbox.forget(false)
	w.beginFetches()
	w.life.Store(r.life)
	w.renewing = nil
	w.log.Info("everything of the earlier scheduler is given up", "took", time.Since(r.since).Round(time.Millisecond))
	close(r.done)
}

// beginFetches and cancelFetches bound what fetches, loans and rescues of one life may take.
func (w *Worker) beginFetches() { w.fetchCtx, w.cancelFetches = context.WithCancel(w.running) }
