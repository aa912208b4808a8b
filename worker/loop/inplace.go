package loop

import (
	"cmp"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
)

// A kernel can read an input where it is, in the mapped memory of a peer's GPU. To fetch what
// is small costs ten times what it takes to read it: memory is set aside, copied to, entered
// into books, and goroutines hand it to each other. This file decides when that is done.
//
// An input that is not here is read in place if all of this is so:
//
//   - The operation is built in, and says that it reads each byte about once (device.ReadsOnce),
//     and the input has at most inPlaceBytes; or that it only moves bytes (device.Moves): then
//     its size does not matter, for it reads what it makes and no more. But if both are
//     larger than inPlaceMoved it is fetched: nothing is gained then, and the copy engine
//     leaves the multiprocessors to others, where a kernel would have them all and wait
//     for the link.
//   - The first holder that can be asked shows it, in memory that is mapped here.
//   - It is not to be read behind another reader, nor by another one behind this worker: see
//     the scheduler's relays.
//   - The attempt has at most inPlaceInputs: each is asked for by itself, where fetches go
//     in batches.
//   - What was read of it in place so far, by this worker, is less than inPlaceTimes its
//     size. What is used more often becomes a replica, which the scheduler can count on.
//
// Nothing is held before the attempt is handed to a lane: a loan delays its lender's frees,
// and the attempt may have to wait for memory itself until then. If the object is not lent at
// that moment, as it was moved to another tier or too many read there, the attempt begins
// anew and fetches. The loan ends when the run has, after the kernel; if it did not hold, the
// result is thrown away (discardBorrowed).
const (
	inPlaceBytes  = 4<<20 + 4<<10 // 4 MiB, and whatever the header has
	inPlaceMoved  = 64 << 20
	inPlaceTimes  = 4
	inPlaceInputs = 1000
)

// nearby is what the owner knows of inputs that are read in place.
type nearby struct {
	// lender and device are nil if either cannot.
	lender transfer.Lender
	device device.InPlace
	// read has the bytes that were read of objects, or will be: see reads.
	read []reads
}

// reads is how much of an object is read in place. Each has its place in a list, and what was noted of another one that
// has the same is forgotten: tasks that follow each other have places of their own.
type reads struct {
	object ledger.ObjectID
	bytes  uint64
}

// readsKnown bounds the memory for that, to 96 KiB.
const readsKnown = 4096

func newNearby(c *Config) (n nearby) {
	n.lender, _ = c.Path.(transfer.Lender)
	n.device, _ = c.Device.(device.InPlace)
	n.read = make([]reads, readsKnown)
	return n
}

// chooseInPlace decides which inputs of an attempt are read in place, and notes at whom.
func (w *Worker) chooseInPlace(a *attempt) {
	a.readAt = nil
	n := &w.nearby
	if n.lender == nil || n.device == nil || a.copies || a.loans != nil || a.op.runner != nativeRunner || len(a.pb.GetInputs()) > inPlaceInputs {
		return
	}
	if a.reading = n.device.Reads(a.op.pb.GetName()); a.reading == device.ReadsAgain {
		return
	}
	for i, in := range a.pb.GetInputs() {
		peer, ok := w.inPlace(a, in)
		if !ok {
			continue
		}
		if a.readAt == nil {
			a.readAt = make([]transfer.Peer, len(a.pb.GetInputs()))
		}
		a.readAt[i] = peer
	}
}

// inPlace says at whom an input is read, if it is.
func (w *Worker) inPlace(a *attempt, in *millracev1.Input) (transfer.Peer, bool) {
	bytes := in.GetBytes()
	if bytes == 0 || len(in.GetInlineResult()) > 0 || in.GetRelayWorkerId() != 0 || in.GetRelayed() {
		return transfer.Peer{}, false
	}
	if a.reading == device.ReadsOnce && bytes > inPlaceBytes {
		return transfer.Peer{}, false
	}
	n, id := &w.nearby, inputID(in)
	read := n.readOf(id)
	if *read >= inPlaceTimes*bytes {
		return transfer.Peer{}, false
	}
	for _, h := range in.GetHolders() {
		peer := w.peers[ids.WorkerID(h)]
		if peer.Address == "" || !n.lender.Shows(peer, transfer.Ref{Task: id.Task, Generation: id.Generation}) {
			continue
		}
		if _, here := w.config.Store.Lookup(id); here {
			break
		}
		if a.reading == device.ReadsOnce {
			*read += bytes // many may be admitted before the first has read
		}
		return peer, true
	}
	return transfer.Peer{}, false
}

// readOf is where it is noted how much of an object is read in place, until it is asked for another one.
func (n *nearby) readOf(id ledger.ObjectID) *uint64 {
	r := &n.read[id.Task%readsKnown]
	if r.object != id {
		*r = reads{object: id}
	}
	return &r.bytes
}

// readsAt says whether an input is to be read in place.
func (a *attempt) readsAt(i int) bool { return i < len(a.readAt) && a.readAt[i].Address != "" }

// lendInputs gets loans of the inputs that an attempt reads in place, which is about to be
// handed to a lane. If it does not get all of them it has none, and is to begin anew.
func (w *Worker) lendInputs(a *attempt) bool {
	if a.readAt == nil {
		return true
	}
	a.loans = make([]transfer.Loan, len(a.readAt))
	for i, in := range a.pb.GetInputs() {
		if !a.readsAt(i) {
			continue
		}
		id := inputID(in)
		if !w.nearby.lender.Lend(a.readAt[i], transfer.Ref{Task: id.Task, Generation: id.Generation}, &a.loans[i]) {
			a.endLoans()
			a.copies, a.noRoom = true, false
			return false
		}
		a.inputs[i], _ = a.lentInput(i)
	}
	if a.reading == device.Moves && w.movesMuch(a) {
		a.endLoans()
		a.copies, a.noRoom = true, false
		return false
	}
	return true
}

// movesMuch says whether an attempt would bring more from its peers than is read in place.
// That is known now, when the shapes of its inputs are.
func (w *Worker) movesMuch(a *attempt) bool {
	lent, result := uint64(0), uint64(0)
	for i, in := range a.pb.GetInputs() {
		if a.isLent(i) {
			lent += in.GetBytes()
		}
	}
	if lent <= inPlaceMoved {
		return false
	}
	p, err := w.config.Device.Prepare(a.call())
	if err != nil {
		return false // its lane finds that as well, and says so
	}
	for _, n := range p.OutputBytes() {
		result += n
	}
	return result > inPlaceMoved
}

// notBegun ends the loans of an attempt that its lane has given back: it waits, and gets
// others when it is handed to a lane again. What was borrowed before it was admitted stays.
func (a *attempt) notBegun() {
	if a.readAt != nil {
		a.endLoans()
	}
}

// readInPlace says of each input that a run has read in place at whom that was, and how much of it.
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
