package loop

import (
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
)

// A kernel can read an input where it is, in the mapped memory of a peer's GPU. Package lifecycle
// decides which inputs may be read so; this file finds the peers, and leases the inputs for the
// time of a run. The lease ends with the run, after the kernel. If the memory was reused during the
// lease, the result is discarded (discardBorrowed).

// nearby reads inputs in place. Both fields are nil if the path or the device does not support it.
type nearby struct {
	lender transfer.Lender
	device device.InPlace
}

func newNearby(lender transfer.Lender, d device.InPlace) nearby {
	if lender == nil || d == nil {
		return nearby{}
	}
	return nearby{lender, d}
}

// reads says how an operation reads inputs at peers.
func (n *nearby) reads(o *op) lifecycle.Reading {
	if n.device == nil || o.runner != nativeRunner {
		return lifecycle.ReadsAgain
	}
	return lifecycle.Reading(n.device.Reads(o.pb.GetName()))
}

// reader returns the first holder at which an input can be read in place, if it is not here.
func (w *Worker) reader(in *lifecycle.Input) (transfer.Peer, bool) {
	for _, h := range in.Holders {
		peer := w.peers.Peer(h)
		if peer.Address == "" || !w.nearby.lender.CanLend(peer, transfer.Ref(in.Object)) {
			continue
		}
		_, here := w.config.Store.Lookup(ledger.ObjectID(in.Object))
		return peer, !here
	}
	return transfer.Peer{}, false
}

// readsAt says whether an input is to be read in place.
func (a *attempt) readsAt(i int) bool { return i < len(a.readAt) && a.readAt[i].Address != "" }

// lendInputs leases the inputs that an attempt reads in place; the attempt is about to be handed to
// a slot. It gets all leases or none. If it returns false, it has got none, or the attempt would
// move more than limit.
func (w *Worker) lendInputs(a *attempt, limit uint64) bool {
	if a.readAt == nil {
		return true
	}
	a.loans = make([]transfer.Loan, len(a.readAt))
	for i := range a.inputs {
		if !a.readsAt(i) {
			continue
		}
		if !w.nearby.lender.Lend(a.readAt[i], transfer.Ref(a.in(i).Object), &a.loans[i]) {
			a.endLoans()
			return false
		}
		a.inputs[i], _ = a.lentInput(i)
	}
	if limit > 0 && w.moves(a, limit) {
		a.endLoans()
		return false
	}
	return true
}

// moves says whether both the leased inputs and the result of an attempt are larger than a limit.
// This is only known now, when the shapes of the inputs are.
func (w *Worker) moves(a *attempt, limit uint64) bool {
	lent, result := uint64(0), uint64(0)
	for i := range a.inputs {
		if a.isLent(i) {
			lent += a.in(i).Bytes
		}
	}
	if lent <= limit {
		return false
	}
	// If the call is wrong, the slot gets the same error and reports it.
	for _, n := range w.config.Native.OutputBytes(a.call()) {
		result += n
	}
	return result > limit
}

// notBegun ends the leases of in-place inputs when the slot returns an attempt that it has not
// begun: the attempt waits again, and gets new leases when it is handed to a slot again. Leases
// that were borrowed before admission stay.
func (a *attempt) notBegun() {
	if a.readAt != nil {
		a.endLoans()
	}
}

// readInPlace calls of for each input that a run has read in place, with the peer and the number of
// bytes.
func (r *nativeRun) readInPlace(of func(id ledger.ObjectID, at transfer.Peer, bytes uint64)) {
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
		of(ledger.ObjectID{Task: head.Ref.Task, Generation: head.Ref.Generation}, a.readAt[i], bytes)
	}
}
