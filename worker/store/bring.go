package store

import (
	"time"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
)

const (
	// bringWait is how long an object that is to be brought into the slab for a reader waits for
	// room.
	bringWait = 30 * time.Second
	// broughtFor is how long such an object stays in the slab, so that the reader can ask for a
	// lease. The reader asks several times a second.
	broughtFor = time.Second
)

// bring begins to bring an object into the slab for a reader that cannot do with a copy. It does
// nothing if the object is there, or on its way already.
func (s *Store) bring(reader transfer.Reader, ref transfer.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.lookup(ledger.ObjectID{Task: ref.Task, Generation: ref.Generation})
	if !ok || !o.HasPlace() || o.InSlab || s.bringing[o.ID] || s.closed {
		return
	}
	s.bringing[o.ID] = true
	s.working.Add(1)
	go func() {
		defer s.working.Done()
		done := make(chan error, 1)
		id, progress, err := s.Acquire(Request{
			Holder: ledger.Holder{Kind: ledger.HolderWorker, ID: uint64(reader.Worker)}, Inputs: []ledger.ObjectID{o.ID}, Deadline: time.Now().Add(bringWait),
		}, func(r ReservationResult) {
			if r.Err != nil || r.Ready {
				select {
				case done <- r.Err:
				default: // it has failed before
				}
			}
		})
		if err == nil && progress != ledger.Ready {
			err = <-done
			s.waited(id)
		}
		s.mu.Lock()
		delete(s.bringing, o.ID)
		s.mu.Unlock()
		if err != nil {
			s.Release(id) // the reader asks again, until it gives up
			return
		}
		time.AfterFunc(broughtFor, func() { s.Release(id) })
	}()
}
