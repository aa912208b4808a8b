package loop

import (
	"errors"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
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

// subscriptions connects results that other workers wait for, here or there, with the machine.
type subscriptions struct {
	// notifier may be nil.
	notifier Notifier
	peers    *peers.Peers
	store    *store.Store
	// inlineBytes is the size of the largest result that is sent inline.
	inlineBytes uint32
}

// These types are posted to the inbox.
type (
	completed []notify.Completion
	requested struct {
		subscriber *notify.Subscriber
		requests   []notify.Request
	}
	left struct{ subscriber *notify.Subscriber }
)

// makers enters what will make the inputs of an assignment that are not made yet: attempts on this
// worker, whose number is self, or peers.
func (s *subscriptions) makers(a *attempt, pb *workerv1.Assignment, self ids.WorkerID, attempts map[lifecycle.Ref]*attempt) {
	for i, in := range pb.GetInputs() {
		if !in.GetPending() {
			continue
		}
		x := a.in(i)
		id := ledger.ObjectID(x.Object).Whole()
		ref := lifecycle.Ref{Task: id.Task, Attempt: id.Generation}
		_, here := s.store.Lookup(id)
		switch {
		case here && attempts[ref] == nil:
		case len(x.Holders) == 0 || x.Holders[0] == self:
			// The result may be stored here before its attempt has ended; the attempt is waited
			// for.
			a.assigned.Makers = append(a.assigned.Makers, ref)
		default:
			if a.assigned.Awaited == nil {
				a.assigned.Awaited = make([]lifecycle.Awaited, 0, len(a.inputs)-i)
			}
			a.assigned.Awaited = append(a.assigned.Awaited, lifecycle.Awaited{Object: lifecycle.Object(id), Peer: x.Holders[0]})
		}
	}
}

// subscribe subscribes to the completion of an object at the peer that makes it.
func (s *subscriptions) subscribe(x lifecycle.Awaited) lifecycle.Event {
	peer := s.peers.Peer(x.Peer)
	if peer.Address == "" || s.notifier == nil {
		return lifecycle.NeverMade{Object: x.Object}
	}
	s.notifier.Subscribe(peer, transfer.Ref{Task: x.Object.Task, Generation: x.Object.Generation})
	return nil
}

func (s *subscriptions) unsubscribe(x lifecycle.Awaited) {
	if peer := s.peers.Peer(x.Peer); peer.Address != "" && s.notifier != nil {
		s.notifier.Unsubscribe(peer, transfer.Ref{Task: x.Object.Task, Generation: x.Object.Generation})
	}
}

// made converts a completion notification.
func made(x *notify.Completion) lifecycle.Event {
	o := lifecycle.Object{Task: x.Ref.Task, Generation: x.Ref.Generation}
	if x.Unavailable {
		return lifecycle.NeverMade{Object: o}
	}
	return lifecycle.Made{Object: o, Bytes: x.Bytes, Inline: x.Inline}
}

// ask converts a subscription of a peer, or its end.
func (s *subscriptions) ask(by *notify.Subscriber, x notify.Request) lifecycle.Event {
	o := lifecycle.Object{Task: x.Ref.Task, Generation: x.Ref.Generation}
	if x.Cancel {
		return lifecycle.Unasked{Object: o, By: by}
	}
	_, here := s.store.Lookup(ledger.ObjectID(o))
	return lifecycle.Asked{Object: o, By: by, Here: here}
}

// notify tells a subscriber that an object is here, or that it will not be made here.
func (s *subscriptions) notify(e lifecycle.Notify) {
	completion := notify.Completion{Ref: transfer.Ref(e.Object), Unavailable: true}
	if o, here := s.store.Lookup(ledger.ObjectID(e.Object)); here && !e.Unavailable {
		completion.Bytes, completion.Unavailable = o.Bytes(), false
		if !o.HasPlace() && len(o.Header) <= int(s.inlineBytes) {
			completion.Bytes, completion.Inline = uint64(len(o.Header)), o.Header
		}
	}
	s.notifier.Publish(e.To.(*notify.Subscriber), completion)
}

// publish notifies the subscribers of a result that was just made.
func (s *subscriptions) publish(r *workerv1.TaskReport, to []lifecycle.Subscriber) {
	ref := transfer.Ref{Task: ids.TaskID(r.GetTaskId()), Generation: ids.Attempt(r.GetAttempt())}
	for _, x := range to {
		s.notifier.Publish(x.(*notify.Subscriber), notify.Completion{Ref: ref, Bytes: r.GetOutputBytes(), Inline: r.GetInlineResult()})
	}
}

// flush sends the notifications that are queued.
func (s *subscriptions) flush() {
	if s.notifier != nil {
		s.notifier.Flush()
	}
}
