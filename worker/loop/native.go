package loop

import (
	"sync"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
)

// When a native run has ended, its peers wait for the completion notification and its slot for the
// next run. All other work that follows from the end of the run is deferred, in nativeRuns.ended:
// the inputs stay pinned a little longer, in-place reads are recorded later, and the scheduler gets
// the report last. A slot does this work when the next call is on its device or it has nothing else
// to do; see native.Host. Every other goroutine that signals the scheduler does it, too.

// nativeRuns are the runs in native slots.
type nativeRuns struct {
	slots  Native
	store  *store.Store
	peers  *peers.Peers
	outbox *session.Outbox
	times  *native.TimeBook
	// ending is the run whose end the machine is handling, nil if there is none. It belongs to the
	// owner.
	ending *nativeRun

	// settling is held during settle.
	settling sync.Mutex

	mu sync.Mutex
	// ended are the runs whose deferred work is not done yet. They are guarded by mu.
	ended []*nativeRun
}

// start hands an attempt to its slot.
func (n *nativeRuns) start(a *attempt, e *lifecycle.StartRun, reservation ledger.ReservationID) {
	short, brief := a.op.times.Expected()
	a.native = &nativeRun{Run: native.Run{
		Ref: a.ref, Call: a.call(), Timeout: a.timeout, Width: int(a.assigned.Slots), Short: short, Brief: brief,
		Reservation: reservation, Roomy: e.Roomy, Times: native.Times{Known: a.known, Handed: time.Now()},
	}}
	n.slots.Start(e.Slot, &a.native.Run)
}

// end calls handle, which tells the machine that a run has ended. It defers the work that follows.
func (n *nativeRuns) end(r *nativeRun, handle func()) {
	n.ending = r
	handle()
	n.ending = nil
	n.mu.Lock()
	n.ended = append(n.ended, r)
	n.mu.Unlock()
}

// deferReport defers the report on the run that is ending. It returns false if there is none.
func (n *nativeRuns) deferReport(r *workerv1.TaskReport) bool {
	if n.ending == nil {
		return false
	}
	n.ending.report, n.ending.told = r, time.Now()
	return true
}

// deferUnpin defers the end of a pin if it is for the run that is ending, and returns false
// otherwise.
func (n *nativeRuns) deferUnpin(e *lifecycle.Unpin) bool {
	if n.ending == nil || n.ending.Ref != e.Ref {
		return false
	}
	n.ending.pinned = append(n.ending.pinned, ledger.ObjectID(e.Object))
	return true
}

// settle does the deferred work of runs that have ended. When it returns, nothing is left of the
// runs that had ended before the call, even if another goroutine did the work. It does not need the
// owner: the attempts of these runs have left the machine.
func (n *nativeRuns) settle() {
	n.settling.Lock()
	defer n.settling.Unlock()
	n.mu.Lock()
	ended := n.ended
	n.ended = nil
	n.mu.Unlock()
	for _, r := range ended {
		n.settleRun(r)
	}
}

func (n *nativeRuns) settleRun(r *nativeRun) {
	for _, id := range r.pinned {
		n.store.Unpin(id, r.Ref.Task, r.Ref.Attempt)
	}
	r.eachReadInPlace(func(loan *transfer.Loan, at transfer.Peer, bytes uint64) {
		n.peers.ReadInPlace(loan, at, bytes, r.Ref.Task, r.Times.Handed, r.Times.Stored)
	})
	if r.report != nil {
		n.times.Write(&r.Times, r.told)
		n.outbox.Task(r.report)
	}
}
