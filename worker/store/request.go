package store

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory/ledger"
)

// Request is a request for memory; see ledger.Request.
type Request struct {
	Holder   ledger.Holder
	Bytes    []uint64
	Partial  bool
	Inputs   []ledger.ObjectID
	Urgent   bool
	Deadline time.Time
}

// ReservationResult is the outcome of a reservation that was not ready at once.
type ReservationResult struct {
	// Granted: the memory is reserved. Ready: the inputs are in the slab, too; no further outcome
	// follows.
	Granted, Ready bool
	// Err is the reason of a failure. If Granted is set, Lost is an input that could not be read
	// back, and the caller must release the reservation.
	Err  error
	Lost ledger.ObjectID
}

// Acquire reserves memory and brings inputs into the slab. If the progress is not Ready, callback
// is called with the outcome, from any goroutine.
func (s *Store) Acquire(q Request, callback func(ReservationResult)) (ledger.ReservationID, ledger.Progress, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, 0, fmt.Errorf("store: the worker is stopping: %w", ledger.ErrNoRoom)
	}
	s.lastReservation++
	id := s.lastReservation
	// An executor requests this for a run whose inputs it holds already.
	q.Urgent = q.Urgent || q.Holder.Kind == ledger.HolderExecutor && !q.Deadline.IsZero()
	progress, effects, err := s.ledger.Reserve(time.Now(), ledger.Request{
		ID: id, Holder: q.Holder, Bytes: q.Bytes, Partial: q.Partial, Inputs: q.Inputs, Urgent: q.Urgent, Deadline: q.Deadline,
	})
	if err == nil && progress != ledger.Ready {
		s.callbacks[id] = callback
	}
	calls := s.apply(effects)
	if err == nil && progress == ledger.Waiting {
		calls = append(calls, s.askForRoom(time.Now())...)
	}
	s.mu.Unlock()
	run(calls)
	if err != nil {
		return 0, 0, err
	}
	return id, progress, nil
}

// askEvery is the interval between calls of OnShort's function while a request waits for room.
const askEvery = time.Second

// OnShort adds a function that the store calls while a request waits for room in the slab, so that
// memory kept in reserve is given back: at once, and again every askEvery, because executors may
// keep memory again meanwhile. stuck: a request has waited for askEvery whose holder keeps memory
// until it has more. The function must not block.
func (s *Store) OnShort(short func(stuck bool)) {
	s.mu.Lock()
	s.short = append(s.short, short)
	s.mu.Unlock()
}

// askForRoom returns the calls of the functions of OnShort, to be made without the lock. REQUIRES:
// mu.
func (s *Store) askForRoom(now time.Time) (calls []func()) {
	s.asked = now
	stuck := s.ledger.UrgentWait(now) >= askEvery
	for _, short := range s.short {
		calls = append(calls, func() { short(stuck) })
	}
	return calls
}

// ReserveIdle reserves memory for which no request waits and that is free or can be freed without a
// transfer. It fails at once if there is none. It leaves the room that holders of memory may need.
func (s *Store) ReserveIdle(holder ledger.Holder, bytes []uint64) (ledger.ReservationID, error) {
	id, _, err := s.Acquire(Request{Holder: holder, Bytes: bytes}, nil)
	return id, err
}

// Reserve reserves memory for a holder. If it has to wait, at most until the deadline, callback is
// called once with the decision, from any goroutine. Otherwise granted is true and callback is not
// called.
func (s *Store) Reserve(holder ledger.Holder, bytes []uint64, deadline time.Time, callback func(error)) (id ledger.ReservationID, granted bool, err error) {
	id, progress, err := s.Acquire(Request{Holder: holder, Bytes: bytes, Deadline: deadline}, func(t ReservationResult) { callback(t.Err) })
	return id, progress == ledger.Ready, err
}

// ReserveWait is Reserve for callers that can block.
func (s *Store) ReserveWait(ctx context.Context, holder ledger.Holder, bytes []uint64, wait time.Duration) (ledger.ReservationID, error) {
	return s.acquireWait(ctx, Request{Holder: holder, Bytes: bytes, Deadline: time.Now().Add(wait)})
}

// ReserveMore is ReserveWait for callers that hold memory already: they go before all that hold
// none.
func (s *Store) ReserveMore(ctx context.Context, holder ledger.Holder, bytes []uint64, wait time.Duration) (ledger.ReservationID, error) {
	return s.acquireWait(ctx, Request{Holder: holder, Bytes: bytes, Urgent: true, Deadline: time.Now().Add(wait)})
}

// Grow adds memory to a granted reservation for an object that is larger than it. It makes other
// objects leave the slab, and waits.
func (s *Store) Grow(ctx context.Context, r ledger.ReservationID, holder ledger.Holder, bytes []uint64, wait time.Duration) error {
	more, err := s.ReserveMore(ctx, holder, bytes, wait)
	if err != nil {
		return err
	}
	s.mu.Lock()
	err = s.ledger.Merge(more, r)
	s.mu.Unlock()
	if err != nil {
		s.Release(more)
	}
	return err
}

func (s *Store) acquireWait(ctx context.Context, q Request) (ledger.ReservationID, error) {
	decided := make(chan error, 1)
	id, progress, err := s.Acquire(q, func(t ReservationResult) { decided <- t.Err })
	if progress == ledger.Ready || err != nil {
		return id, err
	}
	select {
	case err := <-decided:
		s.waited(id)
		return id, err
	case <-ctx.Done():
		s.waited(id)
		s.Release(id)
		return 0, context.Cause(ctx)
	}
}

// Forgo frees the memory of a granted reservation that was not allocated yet: see ledger.Forgo.
func (s *Store) Forgo(id ledger.ReservationID) {
	s.mu.Lock()
	calls := s.apply(s.ledger.Forgo(id))
	s.mu.Unlock()
	run(calls)
}

// Release ends a reservation with everything that was built in it and not sealed. REQUIRES: nothing
// writes there any more.
func (s *Store) Release(id ledger.ReservationID) {
	if id == 0 {
		return
	}
	s.mu.Lock()
	delete(s.callbacks, id)
	effects, err := s.ledger.Release(id)
	var calls []func()
	if err == nil {
		calls = s.apply(effects)
	}
	s.mu.Unlock()
	run(calls)
}
