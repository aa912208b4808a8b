package loop

import (
	"sync"
	"time"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
)

// runners hands attempts to slots: those of native operations, and those of executors.
type runners struct {
	native *nativeRuns
	// executors may be nil.
	executors    Executors
	functions    *functions
	reservations *reservations
}

// start hands an attempt to its slot. REQUIRES: its inputs are located.
func (r *runners) start(a *attempt, e *lifecycle.StartRun) {
	a.slot, a.fetching, a.loading, a.waiting = e.Slot, e.Fetching, e.Loading, e.Waiting
	reservation := r.reservations.ids[e.Reservation]
	if a.inProcess() {
		r.executors.Start(a.op.runner, e.Slot, r.runOf(a, reservation))
		return
	}
	r.native.start(a, e, reservation)
}

// runOf describes an attempt to an executor.
func (r *runners) runOf(a *attempt, reservation ledger.ReservationID) *executor.Run {
	run := &executor.Run{
		Ref: a.ref, Op: a.op.pb, Arguments: a.arguments, Key: a.key, Namespace: a.namespace, Timeout: a.timeout, Priority: a.priority, Reservation: reservation,
	}
	if a.op.pb.GetKind() == millracev1.OpKind_OP_KIND_PYTHON_PICKLE {
		run.Function = r.functions.of(a.op)
	}
	for i, in := range a.inputs {
		id := a.in(i).Object
		x := &executorv1.ExecutorInput{Header: in.Header, TaskId: uint64(id.Task), Generation: uint32(id.Generation), Item: uint32(id.Item)}
		for _, f := range in.Frames {
			x.Frames = append(x.Frames, &executorv1.FrameLocation{Offset: f.Offset, SizeBytes: f.Bytes})
		}
		run.Inputs = append(run.Inputs, x)
		if a.isLent(i) {
			if run.Spaces == nil && in.Space != nil {
				run.Spaces = make([]memory.Space, len(a.inputs))
			}
			if in.Space != nil { // an object without a Space has a header only
				run.Spaces[i] = in.Space
			}
			continue
		}
		run.InputObjects = append(run.InputObjects, a.inputID(i))
	}
	return run
}

// stop ends a run, begun or not: because it was cancelled, or for a reason for which it fails.
func (r *runners) stop(a *attempt, reason string) {
	switch {
	case a.native != nil && reason != "":
	case a.native != nil:
		r.native.slots.Stop(a.slot, &a.native.Run)
	case reason != "":
		r.executors.Refuse(a.op.runner, a.slot, a.ref, reason)
	default:
		r.executors.Stop(a.op.runner, a.slot, a.ref)
	}
}

// resume lets a run go on that waited for other tasks. Native operations never do.
func (r *runners) resume(a *attempt) {
	if a.native == nil {
		r.executors.Resume(a.op.runner, a.slot, a.ref)
	}
}

// takeBack makes the slot return an attempt that it has not begun.
func (r *runners) takeBack(a *attempt) {
	if a.native != nil {
		r.native.slots.TakeBack(a.slot, &a.native.Run)
	} else {
		r.executors.TakeBack(a.op.runner, a.slot, a.ref)
	}
}

// When a native run has ended, its peers wait for the completion notification and its slot for the
// next run. All other work that follows from the end of the run is deferred, in nativeRuns.ended:
// the inputs stay pinned a little longer, in-place reads are recorded later, and the scheduler gets
// the report last. A slot does this work when the next call is on its device or it has nothing else
// to do; see native.Host. Every other goroutine that signals the scheduler does it, too.

// nativeRun is an attempt's run in a native slot. The fields besides Run are for the work that is
// deferred until the peers are notified; see nativeRuns.settle.
type nativeRun struct {
	native.Run
	attempt *attempt
	loans   []transfer.Loan
	// pinned are the inputs that were pinned for the attempt.
	pinned []ledger.ObjectID
	// report is nil if there is nothing to report; told is the time when the result was published.
	report *workerv1.TaskReport
	told   time.Time
}

// eachReadInPlace calls of for each input that the run has read in place, with the loan, the peer
// and the number of bytes.
func (r *nativeRun) eachReadInPlace(of func(loan *transfer.Loan, at transfer.Peer, bytes uint64)) {
	a := r.attempt
	for i := range a.readAt {
		if i >= len(r.loans) || r.loans[i].End == nil {
			continue
		}
		bytes := r.loans[i].Head.Bytes()
		if a.assigned.Reads == lifecycle.Moves {
			bytes = min(bytes, r.Made())
		}
		of(&r.loans[i], a.readAt[i], bytes)
	}
}

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
