package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
)

// Copies of the inputs of an attempt may be larger than the slab, alone or with its result, while
// the attempt can run here if it reads them in the memory of peers. Such an attempt is large.
// Most inputs are copied for reasons that do not last or are only a matter of speed: the lender has
// little free memory, or has moved the object to a slower tier, or answers late; the object was
// borrowed often; the attempt has to wait for memory, and keeps nothing of others meanwhile; no
// executor has said yet whether it reads the memory of peers. For a large attempt, none of these is
// a reason to fail:
//
//   - It asks for leases whatever the sizes of the inputs and however often they were borrowed, and
//     says that it needs them (transfer.Reader.Needs).
//   - It asks again if a lender refuses for now or does not answer, until MemoryWait is over. Until
//     then it ends the leases that it got: it keeps no memory of others meanwhile.
//   - If it waits for memory for its result, it ends its leases as well (giveUpLoans), and asks for
//     them again when the memory is granted. If it does not get them, it gives the memory back and
//     begins anew.
//   - If its holders do not answer any more, or do not have the object any more, the scheduler is
//     told that, and assigns the task again.
//
// It fails with OUT_OF_MEMORY if no lender can lend an input here, or if inputs do not come into
// the memory of their lenders within MemoryWait.

// large is the state of an attempt that is large. The owner of the worker uses it.
type large struct {
	// until is the time after which it does not ask again. pause is the time before it does.
	until time.Time
	pause time.Duration
	// rounds counts the requests for leases. In each one, the next holder of an input is asked.
	rounds int
	// refused are the answers of the last round, by input: nil if there is a lease, or if nothing
	// was asked for.
	refused []error
	// pauses: it is to be admitted after a pause.
	pauses bool
	// given are the inputs whose leases it gave up while it waits for memory; reservation is that
	// memory, and granted the decision about it that waits for the leases.
	given       []int
	reservation lifecycle.ReservationID
	granted     *reservationResult
}

const (
	firstLargePause   = 5 * time.Millisecond
	longestLargePause = 200 * time.Millisecond
)

// errSlabOnly says that an executor cannot map what a peer lends.
var errSlabOnly = errors.New("the executor cannot map the memory in which it lies")

// admitLarge is posted when the pause of a large attempt is over.
type admitLarge struct{ attempt *attempt }

// tooLarge handles a request for memory that an empty slab could not grant. It returns the event
// for the machine, nil if the attempt is to fail with OUT_OF_MEMORY.
func (w *Worker) tooLarge(a *attempt) lifecycle.Event {
	switch {
	case a == nil:
		return nil
	case a.large == nil && a.giveUpPlaces():
		return lifecycle.InPlaceFailed{Ref: a.ref}
	case len(w.copied(a)) == 0:
		return nil
	case a.large == nil:
		a.large = &large{until: time.Now().Add(w.config.MemoryWait), pause: firstLargePause, refused: make([]error, len(a.inputs))}
		a.copies = false
		return lifecycle.InPlaceFailed{Ref: a.ref}
	}
	var lost []lifecycle.Unreachable
	for _, i := range w.copied(a) {
		switch kind, x := w.refusal(a, i); {
		case kind == refusedForNow && time.Now().Before(a.large.until):
			return w.admitLater(a)
		case kind == refusedByLoss:
			lost = append(lost, x)
		}
	}
	if len(lost) > 0 {
		return lifecycle.InputsUnreadable{Ref: a.ref, Inputs: lost}
	}
	return nil
}

// copied returns the inputs that an attempt would have to fetch and that may be readable in place
// at a peer.
func (w *Worker) copied(a *attempt) (inputs []int) {
	if !w.borrows(a, true) && !w.readsInPlace(a) {
		return nil
	}
	for i := range a.inputs {
		in := a.in(i)
		id := ledger.ObjectID(in.Object)
		if in.Size() > 0 && !in.Inline && !a.isLent(i) && !a.readsAt(i) && !w.config.Store.Here(id) && !w.config.Store.Here(listOf(id)) {
			inputs = append(inputs, i)
		}
	}
	return inputs
}

// refusalKind says what a missing lease means for a large attempt.
type refusalKind uint8

const (
	// refusedForGood: asking again is useless.
	refusedForGood refusalKind = iota
	refusedForNow
	// refusedByLoss: the holder has lost the object or does not answer.
	refusedByLoss
)

// refusal says why a large attempt has no lease of an input. x is the input as the scheduler is
// told of it, if the kind is refusedByLoss.
func (w *Worker) refusal(a *attempt, i int) (kind refusalKind, x lifecycle.Unreachable) {
	in, err := a.in(i), a.large.refused[i]
	x.Object = in.Object
	known := 0
	for _, h := range in.Holders {
		if w.peers[h].Address != "" {
			known++
		}
		if errors.Is(err, transfer.ErrNotHere) {
			x.MissingAt = append(x.MissingAt, h)
		} else {
			x.FailedAt = append(x.FailedAt, h)
		}
	}
	switch {
	case known == 0:
		return refusedByLoss, x
	case a.large.rounds < known || w.readsInPlace(a):
		return refusedForNow, x
	case errors.Is(err, transfer.ErrPeerLost) || errors.Is(err, transfer.ErrNotHere):
		return refusedByLoss, x
	case errors.Is(err, errRefusedNow) || errors.Is(err, transfer.ErrStalled) || errors.Is(err, context.DeadlineExceeded):
		return refusedForNow, x
	}
	return refusedForGood, x
}

// errRefusedNow wraps the answer of a peer that lends, and does not lend this object now.
var errRefusedNow = errors.New("the peer does not lend it now")

// admitLater makes a large attempt wait before it is admitted anew.
func (w *Worker) admitLater(a *attempt) lifecycle.Event {
	a.endLoans()
	a.large.pauses = true
	return lifecycle.InPlaceFailed{Ref: a.ref}
}

// pauses says whether an attempt is admitted after a pause, which has begun then.
func (w *Worker) pauses(a *attempt) bool {
	l := a.large
	if l == nil || !l.pauses {
		return false
	}
	l.pauses = false
	w.borrowing[a.ref] = a
	time.AfterFunc(l.pause, func() { w.post(admitLarge{a}) })
	l.pause = min(2*l.pause, longestLargePause)
	return true
}

// pauseOver admits an attempt whose pause is over.
func (w *Worker) pauseOver(a *attempt) {
	if w.borrowing[a.ref] != a {
		return // the life of the scheduler that assigned it is over
	}
	delete(w.borrowing, a.ref)
	if w.attempts[a.ref] != a || w.borrow(a) {
		return
	}
	w.step(w.lookUp(a))
}

// giveUpLoans ends the leases of a large attempt, because it waits for memory. It gets them again
// when the memory is granted; see regain.
func (a *attempt) giveUpLoans(memory lifecycle.ReservationID) {
	if a == nil || a.large == nil {
		return
	}
	if lent := a.lentInputs(); len(lent) > 0 {
		a.large.given, a.large.reservation = lent, memory
		a.endLoans()
	}
}

// regain requests the leases that a large attempt gave up for its wait for memory, which is over.
// It returns false if there are none; otherwise the attempt goes on when they are here.
func (w *Worker) regain(x reservationResult) bool {
	a := w.attempts[x.ref]
	if a == nil || a.large == nil || a.large.given == nil || a.large.reservation != x.reservation || w.reservations[x.reservation] == 0 {
		return false
	}
	a.large.granted = &x
	w.request(a, w.orders(a, a.large.given))
	return true
}

// regained continues with a large attempt that has asked again for leases that it gave up.
func (w *Worker) regained(a *attempt) {
	x, all := *a.large.granted, true
	for _, i := range a.large.given {
		in, ok := a.lentInput(i)
		a.inputs[i] = in
		all = all && ok
	}
	a.large.given, a.large.granted = nil, nil
	if !all {
		a.large.until = time.Now().Add(w.config.MemoryWait) // the wait for memory does not count
		w.step(w.admitLater(a))
		return
	}
	w.ready(x.reservation)
}

// needs says why the request of a large attempt for memory failed: err, and why its inputs were not
// read in place.
func (a *attempt) needs(err error) string {
	text := err.Error()
	if a == nil || a.large == nil {
		return text
	}
	var why []string
	for i, refused := range a.large.refused {
		if refused != nil && len(why) < maxReasons {
			why = append(why, fmt.Sprintf("input %d: %v", i, refused))
		}
	}
	if len(why) == 0 {
		return text
	}
	return text + "; the inputs could not be read in place either: " + strings.Join(why, "; ")
}

// maxReasons bounds the inputs that an error names.
const maxReasons = 3

// readsInPlace says whether the operation of an attempt can read inputs in the mapped memory of
// peers; see chooseInPlace.
func (w *Worker) readsInPlace(a *attempt) bool {
	n := &w.nearby
	return n.lender != nil && n.device != nil && a.op.runner == nativeRunner && n.device.Reads(a.op.pb.GetName()) != device.ReadsAgain
}
