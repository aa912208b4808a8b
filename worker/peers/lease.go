package peers

import (
	"context"
	"errors"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/lifecycle"
)

// LeaseRequest is a request for leases of those inputs of an attempt that may be leased and are not
// here.
type LeaseRequest struct {
	Inputs []lifecycle.Input
	Ways   []lifecycle.Way
	// Large: copies of the inputs do not fit here. See lifecycle.Lender.
	Large bool
	Round int
	// Mapped: another process must be able to map what is lent.
	Mapped bool
	// Answer gets the leases and the answers, by input, from another goroutine. An entry without
	// End is no lease.
	Answer func(loans []transfer.Loan, answers []lifecycle.LeaseAnswer)
}

// leaseOrder is the part of a request that one peer gets.
type leaseOrder struct {
	peer transfer.Peer
	refs []transfer.Ref
	// inputs are the inputs that the refs name.
	inputs []int
}

// Lease requests leases. It returns false if no peer is to be asked.
func (p *Peers) Lease(r LeaseRequest) bool {
	orders := p.leaseOrders(&r)
	if len(orders) == 0 {
		return false
	}
	lender := p.Capabilities().Borrow
	p.Go(func(ctx context.Context) {
		limited, cancel := context.WithTimeout(ctx, p.config.BorrowWait)
		defer cancel()
		got, answers := make([]transfer.Loan, len(r.Inputs)), make([]lifecycle.LeaseAnswer, len(r.Inputs))
		for _, o := range orders {
			loans, err := lender.Borrow(limited, o.peer, o.refs, r.Large)
			for n, i := range o.inputs {
				switch {
				case err != nil: // the path has recorded the reason; the object is fetched instead
					answers[i] = refusalOfRequest(err)
				case loans[n].Err != nil:
					answers[i] = refusalOfLoan(loans[n].Err)
				case r.Mapped && !passable(&loans[n]):
					loans[n].End()
					answers[i].Why = "the executor cannot map the memory in which it lies"
				default:
					got[i], answers[i].Granted = loans[n], true
				}
			}
		}
		r.Answer(got, answers)
	})
	return true
}

func (p *Peers) leaseOrders(r *LeaseRequest) (orders []leaseOrder) {
	lender := p.Capabilities().Borrow
	if lender == nil {
		return nil
	}
	for i := range r.Ways {
		if !r.Ways[i].Lease {
			continue
		}
		in := &r.Inputs[i]
		id := ledger.ObjectID(in.Object)
		peer := p.all[lifecycle.Lender(in.Holders, r.Round, r.Large, func(holder ids.WorkerID) (known, lends bool) {
			peer := p.all[holder]
			return peer.Address != "", peer.Address != "" && lender.Lends(peer)
		})]
		if peer.Address == "" || p.config.Store.Here(id) || p.config.Store.Here(id.Whole()) {
			continue
		}
		at := slices.IndexFunc(orders, func(o leaseOrder) bool { return o.peer == peer })
		if at < 0 {
			orders, at = append(orders, leaseOrder{peer: peer}), len(orders)
		}
		orders[at].refs = append(orders[at].refs, transfer.Ref(id))
		orders[at].inputs = append(orders[at].inputs, i)
	}
	return orders
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
