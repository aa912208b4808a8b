package loop

import (
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
)

// When a native run has ended, its peers wait for the completion notification and its slot for the
// next run. All other work that follows from the end of the run is deferred, in Worker.ended: the
// inputs stay pinned a little longer, in-place reads are recorded later, and the scheduler gets the
// report last. A slot does this work when the next call is on its device or it has nothing else to
// do; see native.Host. Every other goroutine that signals the scheduler does it, too.

// settleEnded does the deferred work of runs that have ended. When it returns, nothing is left of
// the runs that had ended before the call, even if another goroutine did the work. It does not need
// the owner: the attempts of these runs have left the machine.
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
		w.config.Store.Unpin(id, r.Ref.Task, r.Ref.Attempt)
	}
	r.readInPlace(func(id ledger.ObjectID, at transfer.Peer, bytes uint64) {
		w.nearby.lender.Read(at, bytes)
		w.peers.ReadInPlace(id, at.Worker, bytes, r.Ref.Task, r.Times.Handed, r.Times.Stored)
	})
	if r.report != nil {
		w.times.Write(&r.Times, r.told)
		w.outbox.Task(r.report)
	}
}
