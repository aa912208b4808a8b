package loop

import (
	"slices"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
)

// replicateOp is the operation that only makes copies of its inputs, so it never borrows.
const replicateOp = "core.replicate"

// borrowed is posted when all peers have answered. loans are the leases by input index; an entry
// without End is no lease.
type borrowed struct {
	attempt *attempt
	loans   []transfer.Loan
	answers []lifecycle.LeaseAnswer
}

// borrows says whether an attempt can use leases. As long as no executor of its kind has said
// whether it can, only a large attempt, whose inputs do not fit as copies, tries to.
func (w *Worker) borrows(a *attempt, large bool) bool {
	if a.op.runner == nativeRunner {
		return true
	}
	known, can := w.config.Executors.Segments(a.op.runner)
	return can || large && !known
}

// request requests leases for an attempt; lent gets the answers. It returns false if no peer is to
// be asked.
func (w *Worker) request(a *attempt, ways []lifecycle.Way, large bool, round int) bool {
	if !slices.ContainsFunc(ways, func(x lifecycle.Way) bool { return x.Lease }) || !w.borrows(a, large) || !w.peers.Lease(peers.LeaseRequest{
		Inputs: a.assigned.Inputs, Ways: ways, Large: large, Round: round, Mapped: a.op.runner != nativeRunner,
		Answer: func(loans []transfer.Loan, answers []lifecycle.LeaseAnswer) { w.post(borrowed{a, loans, answers}) },
	}) {
		return false
	}
	w.lending++
	w.config.Native.GiveWay()
	return true
}

// lent passes the leases of an attempt that waited for them to the machine.
func (w *Worker) lent(x borrowed) {
	a := x.attempt
	a.loans = x.loans
	w.lending--
	if w.attempts[a.ref] != a {
		a.endLoans() // It was retracted or cancelled in the meantime.
		return
	}
	// If the attempt had leases before, the objects may lie elsewhere now.
	for i := range a.inputs {
		if in, lent := a.lentInput(i); lent {
			a.inputs[i] = in
		}
	}
	w.step(&lifecycle.Leased{Ref: a.ref, Answers: x.answers})
}

// isLent says whether the attempt has a lease of an input.
func (a *attempt) isLent(i int) bool { return i < len(a.loans) && a.loans[i].End != nil }

// lentInput returns an input that the attempt has a lease of; ok is false if it has none.
func (a *attempt) lentInput(i int) (in device.Input, ok bool) {
	if !a.isLent(i) {
		return device.Input{}, false
	}
	l := &a.loans[i]
	in.Header = l.Head.Header
	for _, r := range l.Regions {
		in.Space = r.Space
		in.Frames = append(in.Frames, r.Frame)
	}
	if in.Frames == nil {
		in.Frames = []memory.Frame{}
	}
	return in, true
}

// endLoans ends all leases of an attempt. It returns the inputs whose bytes were not protected
// during the whole lease: results computed from these must be discarded.
func (a *attempt) endLoans() (broken []int) {
	for i := range a.loans {
		if end := a.loans[i].End; end != nil && !end() {
			broken = append(broken, i)
		}
	}
	a.loans = nil
	return broken
}

// endAnswers ends the leases that came too late: the worker has stopped. REQUIRES: no more are
// requested.
func (w *Worker) endAnswers() {
	w.mu.Lock()
	left := w.inbox
	w.inbox = nil
	w.mu.Unlock()
	for _, x := range left {
		if late, is := x.(borrowed); is {
			late.attempt.loans = late.loans
			late.attempt.endLoans()
		}
	}
}

// EndLoans ends the leases of attempts that ran in processes when the worker stopped. REQUIRES: Run
// has returned, and these processes have ended: until then they may read what is leased.
func (w *Worker) EndLoans() {
	// order-free: each lease is ended independently.
	for _, a := range w.attempts {
		a.endLoans()
	}
}

// inProcess says whether an attempt was handed to an executor process.
func (w *Worker) inProcess(a *attempt) bool {
	state, _ := w.machine.State(a.ref)
	return state == lifecycle.Running && a.op.runner != nativeRunner
}

// lentInputs returns the inputs that the attempt has leases of.
func (a *attempt) lentInputs() (inputs []int) {
	for i := range a.loans {
		if a.isLent(i) {
			inputs = append(inputs, i)
		}
	}
	return inputs
}

// discardBorrowed discards the result of a run whose inputs were not protected during the whole
// lease. The attempt is reported as INPUT_UNREACHABLE, so the scheduler runs the task again, and
// the failure does not count against the task.
func (w *Worker) discardBorrowed(a *attempt, broken []int) {
	w.log.Warn("a result was thrown away: a borrowed input was not protected all the time", "task", a.ref.String(), "key", a.key)
	w.unreachable(a, broken)
}

// refuseLent handles a run whose executor process cannot map the leased memory. The attempt is
// reported as INPUT_UNREACHABLE and the task runs again on copies: Executors.Segments is false by
// now.
func (w *Worker) refuseLent(a *attempt) {
	w.log.Warn("the executor reads nothing but the worker's memory; inputs are copied from now on", "task", a.ref.String(), "kind", a.op.runner)
	lent := a.lentInputs()
	a.endLoans()
	w.unreachable(a, lent)
}

// unreachable drops the result of an attempt and reports the attempt as INPUT_UNREACHABLE because
// of the given inputs.
func (w *Worker) unreachable(a *attempt, broken []int) {
	w.config.Store.Drop(ledger.ObjectID{Task: a.ref.Task, Generation: a.ref.Attempt})
	a.report = reportOn(a.ref, lifecycle.InputUnreachable)
	for _, i := range broken {
		in := a.in(i)
		a.report.Unreachable = append(a.report.Unreachable, unreachableOf(&lifecycle.Unreachable{Object: in.Object, FailedAt: in.Holders}))
	}
	w.step(lifecycle.RunEnded{Ref: a.ref, Outcome: lifecycle.InputUnreachable})
}
