package store

import (
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
)

// Index is a shared object index: readers find objects there without requesting a lease.
type Index interface {
	// Publish publishes an object. It returns false if the object does not fit into the index.
	Publish(ref transfer.Ref, header []byte, frames []memory.Frame) bool
	// PublishArriving publishes an object that is being written, so that readers can read it while
	// it arrives (pipelined read). SetProgress publishes how many bytes are in place, counted over
	// the frames in order. Complete declares it complete, like an object published with Publish.
	PublishArriving(ref transfer.Ref, header []byte, frames []memory.Frame) bool
	SetProgress(ref transfer.Ref, bytes uint64)
	Complete(ref transfer.Ref) bool
	// Unpublish removes an object. Readers that have found it may still be reading it.
	Unpublish(ref transfer.Ref) bool
	// Readers determines which readers may still be reading objects that are unpublished by now;
	// nil: none. Otherwise over says, whenever it is called, whether these reads have ended; they
	// end in bounded time.
	Readers(now time.Time) (over func(now time.Time) bool)
	// Revoked counts the readers that were too slow and whose reads were revoked.
	Revoked() int
}

// recalling is a range of the slab that readers may still be reading.
type recalling struct {
	ticket ledger.Ticket
	over   func(time.Time) bool
}

// The pauses between two checks of readers: most readers finish within the first pause.
const (
	firstPoll   = 50 * time.Microsecond
	longestPoll = 2 * time.Millisecond
)

// PublishTo sets the shared object index for objects in the slab. It must be called before anything
// is stored, and the index must be closed after the store.
func (s *Store) PublishTo(b Index) { s.index = b }

// publish publishes an object in the index, if it fits. REQUIRES: mu.
func (s *Store) publish(id ledger.ObjectID) {
	if s.index == nil || id.Task >= temporaryTasks || id.Item != 0 || s.ledger.IsPublished(id) {
		return
	}
	v, ok := s.ledger.Lookup(id)
	o := objectOf(v)
	if ok && v.State == ledger.Sealed && o.InSlab && len(o.Frames) > 0 && s.index.Publish(refOf(id), o.Header, o.Frames) {
		s.ledger.Published(id)
	}
}

// PublishArriving publishes an object that is being built, so that readers can read the part that
// SetProgress reports, until it is sealed or Unpublish is called. Its memory is not reused or
// released before their reads are over. It returns false if the object does not fit into the index.
func (s *Store) PublishArriving(id ledger.ObjectID, header []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index == nil || id.Item != 0 || s.ledger.IsPublished(id) {
		return false
	}
	o, ok := s.ledger.Lookup(id)
	if !ok || o.State != ledger.Building || len(o.Frames) == 0 || !s.index.PublishArriving(refOf(id), header, o.Frames) {
		return false
	}
	s.ledger.Published(id)
	return true
}

// SetProgress publishes how many bytes of such an object are in place, counted over its frames in
// order. It does not wait for anything that takes long.
func (s *Store) SetProgress(id ledger.ObjectID, bytes uint64) { s.index.SetProgress(refOf(id), bytes) }

// Unpublish removes an arriving object that is not sealed from the index: its bytes are not valid,
// or will not become the object.
func (s *Store) Unpublish(id ledger.ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Unpublish(id)
}

func refOf(id ledger.ObjectID) transfer.Ref {
	return transfer.Ref{Task: id.Task, Generation: id.Generation}
}

// ledgerIndex implements ledger.ObjectIndex. Its methods are called under mu.
type ledgerIndex struct{ store *Store }

// Unpublish is part of ledger.ObjectIndex.
func (x ledgerIndex) Unpublish(id ledger.ObjectID) { x.store.index.Unpublish(refOf(id)) }

// Vacate is part of ledger.ObjectIndex.
func (x ledgerIndex) Vacate(ticket ledger.Ticket, _ memory.Frame) bool {
	s := x.store
	over := s.index.Readers(time.Now())
	if over == nil {
		return true
	}
	s.recalling = append(s.recalling, recalling{ticket, over})
	if !s.watching && !s.closed {
		s.watching = true
		s.working.Add(1)
		go s.recall()
	}
	return false
}

// recall polls until all reads that are waited for have ended, and reports them to the ledger.
func (s *Store) recall() {
	defer s.working.Done()
	pause := firstPoll
	timer := time.NewTimer(pause)
	defer timer.Stop()
	revoked := s.index.Revoked()
	for {
		<-timer.C
		s.mu.Lock()
		now := time.Now()
		var over []ledger.Ticket
		left := s.recalling[:0]
		for _, r := range s.recalling {
			if r.over(now) {
				over = append(over, r.ticket)
			} else {
				left = append(left, r)
			}
		}
		clear(s.recalling[len(left):])
		s.recalling = left
		var calls []func()
		if len(over) > 0 {
			calls = s.apply(s.ledger.Recalled(over...))
			pause = firstPoll
		}
		// NB: requests granted by this may have added to the list.
		end := len(s.recalling) == 0 || s.closed
		if end {
			s.watching = false
		}
		s.mu.Unlock()
		run(calls)
		if n := s.index.Revoked(); n > revoked {
			s.log.Warn("readers of this worker's memory did not go on, and lost what they read", "times", n-revoked)
			revoked = n
		}
		if end {
			return
		}
		timer.Reset(pause)
		pause = min(2*pause, longestPoll)
	}
}
