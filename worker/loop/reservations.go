package loop

import (
	"errors"
	"time"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
)

// reservations are the reservations of the machine, which are those of the store by other numbers.
type reservations struct {
	store *store.Store
	// wait is how long an attempt waits for memory.
	wait time.Duration
	// post gets a reservationResult.
	post func(any)
	ids  map[lifecycle.ReservationID]ledger.ReservationID
}

// reservationResult is the outcome of a reservation that was not ready at once.
type reservationResult struct {
	ref         lifecycle.Ref
	reservation lifecycle.ReservationID
	store.ReservationResult
}

// reserve asks the store for memory and for inputs to be brought into the slab. It returns the
// answer if the store decides at once, and otherwise that the reservation waits. process says that
// the attempt runs in a process.
func (r *reservations) reserve(e lifecycle.Reserve, process bool) lifecycle.Event {
	q := store.Request{Holder: store.TaskHolder(e.Ref.Task), Bytes: e.Bytes, Deadline: time.Now().Add(r.wait)}
	// A native operation that finds no room for its result gives up the rest meanwhile.
	q.Partial = !e.WithResult && process
	for _, o := range e.Inputs {
		q.Inputs = append(q.Inputs, ledger.ObjectID(o))
	}
	id, progress, err := r.store.Acquire(q, func(t store.ReservationResult) { r.post(reservationResult{e.Ref, e.Reservation, t}) })
	if err == nil {
		r.ids[e.Reservation] = id
	}
	switch {
	case errors.Is(err, ledger.ErrTooLarge):
		return lifecycle.ReserveFailed{Reservation: e.Reservation, TooLarge: true, Message: err.Error()}
	case err != nil:
		return lifecycle.ReserveFailed{Reservation: e.Reservation, Message: err.Error()}
	case progress == ledger.Waiting:
		return lifecycle.ReserveWaits{Reservation: e.Reservation}
	}
	return lifecycle.Reserved{Reservation: e.Reservation, Loading: progress == ledger.Loading}
}

func (r *reservations) release(id lifecycle.ReservationID) {
	r.store.Release(r.ids[id])
	delete(r.ids, id)
}

// events are the store's decision in the machine's words.
func (x *reservationResult) events() []lifecycle.Event {
	switch {
	case x.Granted && x.Err != nil:
		return []lifecycle.Event{lifecycle.InputLost{Ref: x.ref, Object: lifecycle.Object(x.Lost), Reservation: x.reservation}}
	case x.Err != nil:
		return []lifecycle.Event{lifecycle.ReserveFailed{Reservation: x.reservation, Message: x.Err.Error()}}
	case x.Ready:
		// Reserved is ignored if the reservation was granted before.
		return []lifecycle.Event{lifecycle.Reserved{Reservation: x.reservation}, lifecycle.Loaded{Reservation: x.reservation}}
	}
	return []lifecycle.Event{lifecycle.Reserved{Reservation: x.reservation, Loading: true}}
}
