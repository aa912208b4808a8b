package loop

import (
	"context"
	"errors"
	"slices"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
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

// order is a request for leases to one peer.
type order struct {
	peer transfer.Peer
	refs []transfer.Ref
	// inputs are the inputs that the refs name.
	inputs []int
}

// orders returns the requests for leases of those inputs that may be leased and are not here. The
// peer is the first holder that lends; for a large attempt the first holder from round on.
func (w *Worker) orders(a *attempt, ways []lifecycle.Way, large bool, round int) (orders []order) {
	lender := w.peers.Capabilities().Borrow
	if lender == nil || !slices.ContainsFunc(ways, func(x lifecycle.Way) bool { return x.Lease }) || !w.borrows(a, large) {
		return nil
	}
	for i := range ways {
		if !ways[i].Lease {
			continue
		}
		in := a.in(i)
		id := ledger.ObjectID(in.Object)
		for n := range in.Holders {
			peer := w.peers.Peer(in.Holders[(n+round)%len(in.Holders)])
			if peer.Address == "" || !large && !lender.Lends(peer) {
				continue
			}
			if w.config.Store.Here(id) || w.config.Store.Here(listOf(id)) {
				break
			}
			at := slices.IndexFunc(orders, func(o order) bool { return o.peer == peer })
			if at < 0 {
				orders, at = append(orders, order{peer: peer}), len(orders)
			}
			orders[at].refs = append(orders[at].refs, transfer.Ref(id))
			orders[at].inputs = append(orders[at].inputs, i)
			break
		}
	}
	return orders
}

// request requests leases for an attempt; lent gets the answers. needs says that copies of the
// inputs do not fit here.
func (w *Worker) request(a *attempt, orders []order, needs bool) {
	lender := w.peers.Capabilities().Borrow
	w.lending++
	w.config.Native.GiveWay()
	w.peers.Go(func(ctx context.Context) {
		limited, cancel := context.WithTimeout(ctx, w.config.BorrowWait)
		defer cancel()
		got := borrowed{attempt: a, loans: make([]transfer.Loan, len(a.inputs)), answers: make([]lifecycle.LeaseAnswer, len(a.inputs))}
		for _, o := range orders {
			loans, err := lender.Borrow(limited, o.peer, o.refs, needs)
			for n, i := range o.inputs {
				switch {
				case err != nil: // the path has recorded the reason; the object is fetched instead
					got.answers[i] = refusalOfRequest(err)
				case loans[n].Err != nil:
					got.answers[i] = refusalOfLoan(loans[n].Err)
				case a.op.runner != nativeRunner && !passable(&loans[n]):
					loans[n].End()
					got.answers[i].Why = "the executor cannot map the memory in which it lies"
				default:
					got.loans[i], got.answers[i].Granted = loans[n], true
				}
			}
		}
		w.post(got)
	})
}

// refusalOfRequest converts the error of a request for leases.
func refusalOfRequest(err error) lifecycle.LeaseAnswer {
	x := lifecycle.LeaseAnswer{Why: err.Error()}
	switch {
	case errors.Is(err, transfer.ErrNotHere):
		x.Refusal = lifecycle.NotHeld
	case errors.Is(err, transfer.ErrPeerLost):
		x.Refusal = lifecycle.HolderLost
	case errors.Is(err, transfer.ErrStalled) || errors.Is(err, context.DeadlineExceeded):
		x.Refusal = lifecycle.RefusedForNow
	}
	return x
}

// refusalOfLoan converts the answer of a peer about one object. A peer that lends, and does not
// lend this object, may do so later.
func refusalOfLoan(err error) lifecycle.LeaseAnswer {
	x := refusalOfRequest(err)
	if x.Refusal == lifecycle.RefusedForGood && errors.Is(err, transfer.ErrUnreachable) {
		x.Refusal, x.Why = lifecycle.RefusedForNow, "the peer does not lend it now: "+x.Why
	}
	return x
}

// passable says whether another process can map the leased memory.
func passable(l *transfer.Loan) bool {
	for _, r := range l.Regions {
		if r.Space.FD() < 0 {
			return false
		}
	}
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
	a.report = &workerv1.TaskReport{
		TaskId: uint64(a.ref.Task), Attempt: uint32(a.ref.Attempt), Outcome: workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE,
	}
	for _, i := range broken {
		in := a.in(i)
		a.report.Unreachable = append(a.report.Unreachable, unreachableOf(&lifecycle.Unreachable{Object: in.Object, FailedAt: in.Holders}))
	}
	w.step(lifecycle.RunEnded{Ref: a.ref, Outcome: lifecycle.InputUnreachable})
}
