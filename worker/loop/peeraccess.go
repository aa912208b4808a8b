package loop

import (
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/store"
)

// A kernel can read an input where it is, in the mapped memory of a peer's GPU. Package lifecycle
// decides which inputs may be read so; this file finds the peers, and leases the inputs for the
// time of a run. The lease ends with the run, after the kernel. If the memory was reused during the
// lease, the result is discarded (leases.broken).

// peerAccess reads inputs in the memory of peers. lender and device are nil if the path or the
// device does not support it.
type peerAccess struct {
	lender transfer.Lender
	device device.InPlace
	peers  *peers.Peers
	store  *store.Store
	native Native
}

func newPeerAccess(p *peers.Peers, s *store.Store, n Native) *peerAccess {
	x := &peerAccess{peers: p, store: s, native: n}
	if lender, d := p.Capabilities().Lend, n.InPlace(); lender != nil && d != nil {
		x.lender, x.device = lender, d
	}
	return x
}

// reads says how an operation reads inputs at peers.
func (x *peerAccess) reads(o *op) lifecycle.Reading {
	if x.device == nil || o.runner != nativeRunner {
		return lifecycle.ReadsAgain
	}
	return lifecycle.Reading(x.device.Reads(o.pb.GetName()))
}

// reader returns the first holder at which an input can be read in place, if it is not here.
func (x *peerAccess) reader(in *lifecycle.Input) (transfer.Peer, bool) {
	for _, h := range in.Holders {
		peer := x.peers.Peer(h)
		if peer.Address == "" || !x.lender.CanLend(peer, transfer.Ref(in.Object)) {
			continue
		}
		_, here := x.store.Lookup(ledger.ObjectID(in.Object))
		return peer, !here
	}
	return transfer.Peer{}, false
}

// lend leases the inputs that an attempt reads in place; the attempt is about to be handed to a
// slot. It gets all leases or none. If it returns false, it has got none, or the order to start it
// says that it would move too much.
func (x *peerAccess) lend(a *attempt, order *lifecycle.StartRun) bool {
	if a.readAt == nil {
		return true
	}
	a.loans = make([]transfer.Loan, len(a.readAt))
	for i := range a.inputs {
		if !a.readsAt(i) {
			continue
		}
		if !x.lender.Lend(a.readAt[i], transfer.Ref(a.in(i).Object), &a.loans[i]) {
			a.endLoans()
			return false
		}
		a.inputs[i], _ = a.lentInput(i)
	}
	// The size of the result is only known now, when the shapes of the inputs are.
	if order.MovesTooMuch(a.lentBytes(), func() uint64 { return x.resultBytes(a) }) {
		a.endLoans()
		return false
	}
	return true
}

// resultBytes is the size of the result of an attempt. If the call is wrong, the slot gets the same
// error and reports it.
func (x *peerAccess) resultBytes(a *attempt) (sum uint64) {
	for _, n := range x.native.OutputBytes(a.call()) {
		sum += n
	}
	return sum
}

// record records what a run has read in place, at which peer and how many bytes.
func (x *peerAccess) record(r *nativeRun) {
	a := r.attempt
	for i := range a.readAt {
		if i >= len(r.loans) || r.loans[i].End == nil {
			continue
		}
		head := &r.loans[i].Head
		bytes := head.Bytes()
		if a.assigned.Reads == lifecycle.Moves {
			bytes = min(bytes, r.Made())
		}
		x.lender.Read(a.readAt[i], bytes)
		x.peers.ReadInPlace(ledger.ObjectID{Task: head.Ref.Task, Generation: head.Ref.Generation}, a.readAt[i].Worker, bytes, r.Ref.Task, r.Times.Handed, r.Times.Stored)
	}
}
