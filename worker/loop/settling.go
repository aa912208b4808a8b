package loop

import (
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/lifecycle"
)

// When a run has ended its peers wait for their word, and its lane for whatever is next. All else that follows from the end of a
// run of the lanes here is left until then, in Worker.ended: its inputs stay pinned a little longer, what it read in place is entered later, and
// at last the scheduler hears of it. A lane does that when the next call is on its device, or nothing is to be done; see
// nativeLane.idle. Whoever else signals the scheduler does it, too.

// settleEnded does what was left to do of runs that have ended. When it returns, nothing is left of those that had ended
// before, whoever did it. It needs no owner: their attempts are nobody's any more.
func (w *Worker) settleEnded() {
	w.settling.Lock()
	defer w.settling.Unlock()
	w.mu.Lock()
	ended := w.ended
	w.ended = nil
	w.mu.Unlock()
	for _, r := range ended {
		w.settleRun(r)
	}
}

func (w *Worker) settleRun(r *nativeRun) {
	for _, id := range r.pinned {
		w.config.Store.Unpin(id, r.ref.Task, r.ref.Attempt)
	}
	r.readInPlace(func(id ledger.ObjectID, at transfer.Peer, bytes uint64) {
		w.borrowedBytes.Add(bytes)
		w.nearby.lender.Read(at, bytes)
		w.fetches.write(&fetchTimes{
			first: lifecycle.Object(id), peer: at.Worker, objects: 1, bytes: bytes, readBy: r.ref.Task,
			wanted: r.times.handed, usable: r.times.stored.Sub(r.times.handed),
		})
	})
	if r.report != nil {
		w.times.write(&r.times, r.told)
		w.outbox.task(r.report)
	}
}
