package loop

import (
	"context"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
)

const (
	// borrowBytes is the size from which on an input is borrowed rather than
	// copied: a copy of less costs no more than the asking, and is a replica.
	borrowBytes = 64 << 10
	// borrowTimes is how often one object is borrowed: what is used more often
	// becomes a replica, which the scheduler can count on.
	borrowTimes = 4
	// borrowKnown bounds the memory for counting.
	borrowKnown = 10_000
	// replicateOp is there to make copies of its inputs.
	replicateOp = "core.replicate"
)

// borrowed is posted when peers have answered: loans are in the order of the
// attempt's inputs, those that are none have no End.
type borrowed struct {
	attempt *attempt
	loans   []transfer.Loan
}

// borrow asks peers on this host for inputs that are not here. It returns false if
// there is nothing to ask for; otherwise the attempt goes on when lent is called.
// Executors that know no memory but our slab get copies.
func (w *Worker) borrow(a *attempt, admitted bool) bool {
	lender, ok := w.config.Path.(transfer.Borrower)
	if !ok {
		return false
	}
	if a.op.runner == nativeRunner {
		if a.op.pb.GetName() == replicateOp {
			return false
		}
	} else if !w.config.Executors.Segments(a.op.runner) {
		return false
	}
	type order struct {
		peer   transfer.Peer
		refs   []transfer.Ref
		inputs []int
	}
	var orders []order
	for i, in := range a.pb.GetInputs() {
		id := ledger.ObjectID{Task: ids.TaskID(in.GetTaskId()), Generation: ids.Attempt(in.GetGeneration())}
		if in.GetBytes() < borrowBytes || len(in.GetInlineResult()) > 0 || w.borrowedTimes[id] >= borrowTimes {
			continue
		}
		for _, h := range in.GetHolders() {
			peer := w.peers[ids.WorkerID(h)]
			if peer.Address == "" || !lender.Lends(peer) {
				continue
			}
			if _, here := w.config.Store.Lookup(id); here {
				break
			}
			at := -1
			for n := range orders {
				if orders[n].peer == peer {
					at = n
				}
			}
			if at < 0 {
				orders, at = append(orders, order{peer: peer}), len(orders)
			}
			orders[at].refs = append(orders[at].refs, transfer.Ref{Task: id.Task, Generation: id.Generation})
			orders[at].inputs = append(orders[at].inputs, i)
			break
		}
	}
	if len(orders) == 0 {
		return false
	}
	a.admitted = admitted
	w.borrowing[a.ref] = a
	ctx := w.fetchCtx
	w.fetching.Add(1)
	w.lending++
	w.going.Store(true)
	go func() {
		defer w.fetching.Done()
		limited, cancel := context.WithTimeout(ctx, w.config.BorrowWait)
		defer cancel()
		got := borrowed{attempt: a, loans: make([]transfer.Loan, len(a.pb.GetInputs()))}
		for _, o := range orders {
			loans, err := lender.Borrow(limited, o.peer, o.refs)
			if err != nil {
				continue // The path keeps the reason; the object is fetched.
			}
			for n, i := range o.inputs {
				switch {
				case loans[n].Err != nil:
				case a.op.runner != nativeRunner && !passable(&loans[n]):
					loans[n].End()
				default:
					got.loans[i] = loans[n]
				}
			}
		}
		w.post(got)
	}()
	return true
}

// passable says whether another process can map what was lent.
func passable(l *transfer.Loan) bool {
	for _, r := range l.Regions {
		if r.Space.FD() < 0 {
			return false
		}
	}
	return true
}

// lent goes on with an attempt that waited for loans.
func (w *Worker) lent(x borrowed) {
	a := x.attempt
	a.loans = x.loans
	w.lending--
	waited := w.borrowing[a.ref] == a
	if waited {
		delete(w.borrowing, a.ref)
	}
	if !waited || w.attempts[a.ref] != a {
		a.endLoans() // It was taken back meanwhile.
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
		w.borrowedTimes[ledger.ObjectID{Task: ref.Task, Generation: ref.Generation}]++
		w.borrowedBytes.Add(a.loans[i].Head.Bytes())
	}
	e := w.assigned(a)
	e.Admitted = a.admitted
	w.step(e)
}

// isLent says whether the attempt has a loan of an input.
func (a *attempt) isLent(i int) bool { return i < len(a.loans) && a.loans[i].End != nil }

// lentInput is an input that the attempt has a loan of.
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

// endLoans ends what an attempt borrowed, and returns those of its inputs whose
// bytes were not protected all the time.
func (a *attempt) endLoans() (broken []int) {
	for i := range a.loans {
		if end := a.loans[i].End; end != nil && !end() {
			broken = append(broken, i)
		}
	}
	a.loans = nil
	return broken
}

// lentInputs are the inputs that an attempt has loans of.
func (a *attempt) lentInputs() (inputs []int) {
	for i := range a.loans {
		if a.isLent(i) {
			inputs = append(inputs, i)
		}
	}
	return inputs
}

// discardBorrowed throws away what a run made of bytes that were not protected: it
// is to be done again, and not the task's fault.
func (w *Worker) discardBorrowed(a *attempt, broken []int) {
	w.log.Warn("a result was thrown away: a borrowed input was not protected all the time", "task", a.ref.String(), "key", a.pb.GetKey())
	w.unreachable(a, broken)
}

// refuseLent is for a run whose process cannot read what was lent to it: it is to be
// done again, on copies, since that is known by now.
func (w *Worker) refuseLent(a *attempt) {
	w.log.Warn("the executor reads nothing but the worker's memory, unlike the one before; inputs are copied from now on", "task", a.ref.String(), "kind", a.op.runner)
	lent := a.lentInputs()
	a.endLoans()
	w.unreachable(a, lent)
}

// unreachable ends an attempt for the sake of some of its inputs.
func (w *Worker) unreachable(a *attempt, broken []int) {
	w.config.Store.Drop(ledger.ObjectID{Task: a.ref.Task, Generation: a.ref.Attempt})
	a.report = &millracev1.TaskReport{
		TaskId: uint64(a.ref.Task), Attempt: uint32(a.ref.Attempt), Outcome: millracev1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE,
	}
	for _, i := range broken {
		in := a.pb.GetInputs()[i]
		a.report.Unreachable = append(a.report.Unreachable, &millracev1.Unreachable{
			TaskId: in.GetTaskId(), Generation: in.GetGeneration(), FailedAt: in.GetHolders(),
		})
	}
	w.step(lifecycle.RunEnded{Ref: a.ref, Outcome: lifecycle.InputUnreachable})
}
