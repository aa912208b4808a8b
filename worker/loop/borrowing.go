package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
)

const (
	// borrowBytes is the smallest input that is borrowed rather than copied: to copy a smaller one
	// costs no more than the request for a lease, and yields a replica.
	borrowBytes = 64 << 10
	// borrowTimes is how often one object is borrowed. An object that is used more often becomes a
	// replica, which the scheduler can take into account.
	borrowTimes = 4
	// borrowKnown is the number of objects that are counted. All counts are dropped when it is
	// reached.
	borrowKnown = 10_000
	// replicateOp is the operation that only makes copies of its inputs, so it never borrows.
	replicateOp = "core.replicate"
)

// borrowed is posted when all peers have answered. loans are the leases by input index; an entry
// without End is no lease. refused are the reasons of refusals by input index.
type borrowed struct {
	attempt *attempt
	loans   []transfer.Loan
	refused []error
}

// borrow requests leases from peers on this host for inputs that are not here. It returns false if
// there is nothing to request; otherwise lent continues with the attempt later. Executors that can
// map no memory but our slab get copies instead.
func (w *Worker) borrow(a *attempt) bool {
	if a.copies || !w.borrows(a, a.large != nil) {
		return false
	}
	orders := w.orders(a, nil)
	if len(orders) == 0 {
		return false
	}
	w.request(a, orders)
	return true
}

// borrows says whether an attempt can use leases. As long as no executor of its kind has said
// whether it can, only a large attempt tries to; see large.go.
func (w *Worker) borrows(a *attempt, large bool) bool {
	if w.config.capabilities().Borrow == nil {
		return false
	}
	if a.op.runner == nativeRunner {
		return a.op.pb.GetName() != replicateOp
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

// orders returns the requests for those inputs of an attempt that are to be borrowed; nil for
// inputs means all.
func (w *Worker) orders(a *attempt, inputs []int) (orders []order) {
	lender := w.config.capabilities().Borrow
	least, round := uint64(borrowBytes), 0
	if a.large != nil {
		least, round = 1, a.large.rounds
	}
	for i := range a.inputs {
		in := a.in(i)
		id := ledger.ObjectID(in.Object)
		if in.Size() < least || in.Inline || a.large == nil && w.borrowedTimes[id] >= borrowTimes || inputs != nil && !slices.Contains(inputs, i) {
			continue
		}
		for n := range in.Holders {
			peer := w.peers[in.Holders[(n+round)%len(in.Holders)]]
			if peer.Address == "" || a.large == nil && !lender.Lends(peer) {
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

// request requests leases for an attempt; lent gets the answers.
func (w *Worker) request(a *attempt, orders []order) {
	w.borrowing[a.ref] = a
	ctx, lender := w.fetchCtx, w.config.capabilities().Borrow
	needs := a.large != nil
	if needs {
		a.large.rounds++
	}
	w.fetching.Add(1)
	w.lending++
	w.startedWork.Store(true)
	go func() {
		defer w.fetching.Done()
		limited, cancel := context.WithTimeout(ctx, w.config.BorrowWait)
		defer cancel()
		got := borrowed{attempt: a, loans: make([]transfer.Loan, len(a.inputs)), refused: make([]error, len(a.inputs))}
		for _, o := range orders {
			loans, err := lender.Borrow(limited, o.peer, o.refs, needs)
			for n, i := range o.inputs {
				switch {
				case err != nil: // the path has recorded the reason; the object is fetched instead
					got.refused[i] = err
				case errors.Is(loans[n].Err, transfer.ErrUnreachable):
					got.refused[i] = fmt.Errorf("%w: %w", errRefusedNow, loans[n].Err)
				case loans[n].Err != nil:
					got.refused[i] = loans[n].Err
				case a.op.runner != nativeRunner && !passable(&loans[n]):
					loans[n].End()
					got.refused[i] = errSlabOnly
				default:
					got.loans[i] = loans[n]
				}
			}
		}
		w.post(got)
	}()
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

// lent continues with an attempt that waited for leases.
func (w *Worker) lent(x borrowed) {
	a := x.attempt
	a.loans = x.loans
	w.lending--
	waited := w.borrowing[a.ref] == a
	if waited {
		delete(w.borrowing, a.ref)
	}
	if !waited || w.attempts[a.ref] != a {
		a.endLoans() // It was retracted or cancelled in the meantime.
		return
	}
	for i := range a.loans {
		if a.loans[i].End == nil {
			continue
		}
		if len(w.borrowedTimes) >= borrowKnown {
			clear(w.borrowedTimes)
		}
		ref := a.loans[i].Head.Ref
		w.borrowedTimes[ledger.ObjectID(ref)]++
		w.borrowedBytes.Add(a.loans[i].Head.Bytes())
	}
	if a.large != nil {
		a.large.refused = x.refused
		if a.large.granted != nil {
			w.regained(a)
			return
		}
	}
	w.step(w.lookUp(a))
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

// giveUpPlaces makes an attempt that has to wait for memory need less of it: it ends the leases of
// the attempt, which fetches copies after that, also of items of lists that are here. With leases,
// attempts of two workers could wait for each other: each keeps objects of the other worker in the
// slab whose room the other attempt needs. And whole lists would have to be brought into the slab
// for one item each. It returns false if the attempt needs copies of all such inputs anyway, or if
// it is large.
func (a *attempt) giveUpPlaces() bool {
	if a == nil || a.copies || a.large != nil || len(a.lentInputs()) == 0 && !slices.Contains(a.whole, true) {
		return false
	}
	a.endLoans()
	a.copies = true
	return true
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
