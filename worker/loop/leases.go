package loop

import (
	"log/slog"
	"slices"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
)

// leases requests leases of inputs that peers lend.
type leases struct {
	peers *peers.Peers
	// executors may be nil.
	executors Executors
	native    Native
	store     *store.Store
	// post gets a borrowed.
	post func(any)
	log  *slog.Logger
	// pending counts the goroutines that request leases.
	pending int
}

// borrowed is posted when all peers have answered. loans are the leases by input index; an entry
// without End is no lease.
type borrowed struct {
	attempt *attempt
	loans   []transfer.Loan
	answers []lifecycle.LeaseAnswer
}

// usable says whether an attempt can use leases. As long as no executor of its kind has said
// whether it can, only a large attempt, whose inputs do not fit as copies, tries to.
func (l *leases) usable(a *attempt, large bool) bool {
	if !a.inProcess() {
		return true
	}
	known, can := l.executors.Segments(a.op.runner)
	return can || large && !known
}

// request requests leases for an attempt; answered gets the answers. It returns false if no peer is
// to be asked.
func (l *leases) request(a *attempt, ways []lifecycle.Way, large bool, round int) bool {
	if !slices.ContainsFunc(ways, func(x lifecycle.Way) bool { return x.Lease }) || !l.usable(a, large) || !l.peers.Lease(peers.LeaseRequest{
		Inputs: a.assigned.Inputs, Ways: ways, Large: large, Round: round, Mapped: a.inProcess(),
		Answer: func(loans []transfer.Loan, answers []lifecycle.LeaseAnswer) { l.post(borrowed{a, loans, answers}) },
	}) {
		return false
	}
	l.pending++
	l.native.GiveWay()
	return true
}

// answered enters the leases of an attempt that waited for them. It returns nil if the attempt was
// retracted or cancelled in the meantime, and is not wanted any more.
func (l *leases) answered(x borrowed, wanted bool) lifecycle.Event {
	a := x.attempt
	a.loans = x.loans
	l.pending--
	if !wanted {
		a.endLoans()
		return nil
	}
	// If the attempt had leases before, the objects may lie elsewhere now.
	for i := range a.inputs {
		if in, lent := a.lentInput(i); lent {
			a.inputs[i] = in
		}
	}
	return &lifecycle.Leased{Ref: a.ref, Answers: x.answers}
}

// broken discards the result of a run whose inputs were not protected during the whole lease. The
// attempt is reported as INPUT_UNREACHABLE, so the scheduler runs the task again, and the failure
// does not count against the task.
func (l *leases) broken(a *attempt, inputs []int) lifecycle.Event {
	l.log.Warn("a result was thrown away: a borrowed input was not protected all the time", "task", a.ref.String(), "key", a.key)
	return l.unreachable(a, inputs)
}

// unmappable handles a run whose executor process cannot map the leased memory. The attempt is
// reported as INPUT_UNREACHABLE and the task runs again on copies: Executors.Segments is false by
// now.
func (l *leases) unmappable(a *attempt) lifecycle.Event {
	l.log.Warn("the executor reads nothing but the worker's memory; inputs are copied from now on", "task", a.ref.String(), "kind", a.op.runner)
	var lent []int
	for i := range a.loans {
		if a.isLent(i) {
			lent = append(lent, i)
		}
	}
	a.endLoans()
	return l.unreachable(a, lent)
}

// unreachable drops the result of an attempt and reports the attempt as INPUT_UNREACHABLE because
// of the given inputs.
func (l *leases) unreachable(a *attempt, inputs []int) lifecycle.Event {
	l.store.Drop(ledger.ObjectID{Task: a.ref.Task, Generation: a.ref.Attempt})
	a.report = session.ReportOn(a.ref, lifecycle.InputUnreachable)
	for _, i := range inputs {
		in := a.in(i)
		a.report.Unreachable = append(a.report.Unreachable, session.UnreachableOf(&lifecycle.Unreachable{Object: in.Object, FailedAt: in.Holders}))
	}
	return lifecycle.RunEnded{Ref: a.ref, Outcome: lifecycle.InputUnreachable}
}
