package loop

import (
	"cmp"
	"time"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
)

// A kernel can read an input where it is, in the mapped memory of a peer's GPU. Fetching a small
// input costs ten times as much as reading it: memory is reserved, copied to and recorded in the
// ledger, and goroutines hand the work to each other. This file decides when an input is read in
// place.
//
// An input that is not here is read in place if all of the following holds:
//
//   - The operation is native and declares that it reads each byte about once
//     (device.ReadsOnce), and the input has at most inPlaceBytes. Or the operation only moves
//     bytes (device.Moves): then the size of the input does not matter, since the operation
//     reads no more than it writes. But if both the inputs and the result are larger than
//     inPlaceMoved, the inputs are fetched: reading in place gains nothing then, and the copy
//     engine leaves the multiprocessors to other work, while a kernel would occupy all of
//     them and wait for the link.
//   - It is a whole object, and not an item of a list.
//   - A holder publishes it in its shared object index, in memory that is mapped here. The
//     first such holder is read.
//   - It is not part of a broadcast chain: neither does this worker have an upstream
//     for it, nor will another worker read it here.
//   - The attempt has at most inPlaceInputs inputs: each input is leased separately, while
//     fetches are batched.
//   - This worker has read less than inPlaceTimes its size of it in place so far. An object
//     that is used more often becomes a replica, which the scheduler can take into account.
//
// If copies of the inputs do not fit into the slab, only the first three conditions must hold, and
// the size of an input does not matter; see large.go.
//
// Nothing is leased before the attempt is handed to a slot: a lease delays the frees of its lender,
// and the attempt may have to wait for memory itself until then. If the object cannot be leased at
// that moment (it was moved to another tier, or too many readers are active there), the attempt is
// admitted anew and fetches the object. The lease ends with the run, after the kernel. If the
// memory was reused during the lease, the result is discarded (discardBorrowed).
const (
	inPlaceBytes  = 4<<20 + 4<<10 // 4 MiB, and room for the header
	inPlaceMoved  = 64 << 20
	inPlaceTimes  = 4
	inPlaceInputs = 1000
)

// nearby is the owner's record of inputs that are read in place.
type nearby struct {
	// lender and device are nil if the path or the device does not support reading in place.
	lender transfer.Lender
	device device.InPlace
	// read counts the bytes of objects that were read in place or will be, in a table of readsKnown
	// entries; see reads.
	read []reads
}

// reads counts the bytes of one object that are read in place. The entry is chosen by task number
// modulo readsKnown, and a new object overwrites the old one: tasks with consecutive numbers have
// different entries.
type reads struct {
	object ledger.ObjectID
	bytes  uint64
}

// readsKnown bounds the size of the table to 96 KiB.
const readsKnown = 4096

func newNearby(c *Config) (n nearby) {
	n.lender = c.capabilities().Lend
	n.device, _ = c.Device.(device.InPlace)
	n.read = make([]reads, readsKnown)
	return n
}

// chooseInPlace decides which inputs of an attempt are read in place, and records the peers in
// readAt.
func (w *Worker) chooseInPlace(a *attempt) {
	a.readAt = nil
	n := &w.nearby
	if n.lender == nil || n.device == nil || a.copies || a.loans != nil || a.op.runner != nativeRunner || len(a.inputs) > inPlaceInputs && a.large == nil {
		return
	}
	if a.reading = n.device.Reads(a.op.pb.GetName()); a.reading == device.ReadsAgain {
		return
	}
	for i := range a.inputs {
		peer, ok := w.inPlace(a, a.in(i))
		if !ok {
			continue
		}
		if a.readAt == nil {
			a.readAt = make([]transfer.Peer, len(a.inputs))
		}
		a.readAt[i] = peer
	}
}

// inPlace returns the peer at which an input is to be read in place, if there is one.
func (w *Worker) inPlace(a *attempt, in *lifecycle.Input) (transfer.Peer, bool) {
	bytes := in.Bytes
	if bytes == 0 || in.Object.Item != 0 || in.Inline {
		return transfer.Peer{}, false
	}
	n, id := &w.nearby, ledger.ObjectID(in.Object)
	read := n.readOf(id)
	if a.large == nil && (in.Upstream != 0 || in.Downstream || a.reading == device.ReadsOnce && bytes > inPlaceBytes || *read >= inPlaceTimes*bytes) {
		return transfer.Peer{}, false
	}
	for _, h := range in.Holders {
		peer := w.peers[h]
		if peer.Address == "" || !n.lender.CanLend(peer, transfer.Ref{Task: id.Task, Generation: id.Generation}) {
			continue
		}
		if _, here := w.config.Store.Lookup(id); here {
			break
		}
		if a.reading == device.ReadsOnce {
			// The bytes are counted now, since many attempts may be admitted before the first one
			// reads.
			*read += bytes
		}
		return peer, true
	}
	return transfer.Peer{}, false
}

// readOf returns the byte counter of an object. The pointer is valid until readOf is called for an
// object with the same table entry.
func (n *nearby) readOf(id ledger.ObjectID) *uint64 {
	r := &n.read[id.Task%readsKnown]
	if r.object != id {
		*r = reads{object: id}
	}
	return &r.bytes
}

// readsAt says whether an input is to be read in place.
func (a *attempt) readsAt(i int) bool { return i < len(a.readAt) && a.readAt[i].Address != "" }

// lendInputs leases the inputs that an attempt reads in place; the attempt is about to be handed to
// a slot. It gets all leases or none. If it returns false, the attempt must be admitted anew, and
// then fetches copies.
func (w *Worker) lendInputs(a *attempt) bool {
	if a.readAt == nil {
		return true
	}
	a.loans = make([]transfer.Loan, len(a.readAt))
	for i := range a.inputs {
		if !a.readsAt(i) {
			continue
		}
		id := a.in(i).Object
		if !w.nearby.lender.Lend(a.readAt[i], transfer.Ref{Task: id.Task, Generation: id.Generation}, &a.loans[i]) {
			a.endLoans()
			a.noRoom = false
			if a.large != nil && time.Now().Before(a.large.until) {
				a.large.pauses = true // it asks again
			} else {
				a.copies = true
			}
			return false
		}
		a.inputs[i], _ = a.lentInput(i)
	}
	if a.large == nil && a.reading == device.Moves && w.movesMuch(a) {
		a.endLoans()
		a.copies, a.noRoom = true, false
		return false
	}
	return true
}

// movesMuch says whether both the leased inputs and the result of an attempt are larger than
// inPlaceMoved. This is only known now, when the shapes of the inputs are.
func (w *Worker) movesMuch(a *attempt) bool {
	lent, result := uint64(0), uint64(0)
	for i := range a.inputs {
		if a.isLent(i) {
			lent += a.in(i).Bytes
		}
	}
	if lent <= inPlaceMoved {
		return false
	}
	p, err := w.config.Device.Prepare(a.call())
	if err != nil {
		return false // the slot gets the same error and reports it
	}
	for _, n := range p.OutputBytes() {
		result += n
	}
	return result > inPlaceMoved
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
		if a.reading == device.Moves {
			bytes = min(bytes, cmp.Or(r.framed, r.bytes))
		}
		of(ledger.ObjectID{Task: head.Ref.Task, Generation: head.Ref.Generation}, a.readAt[i], bytes)
	}
}
