package store

import (
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
)

// Board is where readers find objects without a lease.
type Board interface {
	// Show lets them find one, if it fits there.
	Show(ref transfer.Ref, header []byte, frames []memory.Frame) bool
	// ShowArriving lets them follow one that is being written there, Arrived says how
	// much of it is in place, over its frames in their order, and Whole that it is
	// what Show would be said of.
	ShowArriving(ref transfer.Ref, header []byte, frames []memory.Frame) bool
	Arrived(ref transfer.Ref, bytes uint64)
	Whole(ref transfer.Ref) bool
	// Hide ends that. Those who have found it may be reading.
	Hide(ref transfer.Ref) bool
	// Readers looks who may be reading what is hidden by now; nil: nobody. Otherwise
	// over says, when it is asked, whether that is over, as it will be in bounded time.
	Readers(now time.Time) (over func(now time.Time) bool)
	// Revoked counts the readers that were not waited for any longer.
	Revoked() int
}

// recalling is a range of the slab that readers may still read.
type recalling struct {
	ticket ledger.Ticket
	over   func(time.Time) bool
}

// The pauses between two looks at readers: most are through in less than the first.
const (
	firstLook   = 50 * time.Microsecond
	longestLook = 2 * time.Millisecond
)

// ShowOn says on which board readers find what is in the slab. It is called before
// anything is stored, and the board is closed after the store.
func (s *Store) ShowOn(b Board) { s.board = b }

// show lets readers find an object without asking, if it fits there. REQUIRES: mu.
func (s *Store) show(id ledger.ObjectID) {
	if s.board == nil || id.Task >= temporaryTasks || s.ledger.IsShown(id) {
		return
	}
	v, ok := s.ledger.Lookup(id)
	o := objectOf(v)
	if ok && v.State == ledger.Sealed && o.InSlab && len(o.Frames) > 0 && s.board.Show(refOf(id), o.Header, o.Frames) {
		s.ledger.Shown(id)
	}
}

// ShowArriving lets readers follow an object that is being built, as far as Arrived says,
// until it is sealed or Conceal is called; its memory is not built anew, nor given back,
// before their reads are over. It returns false if the object does not fit there.
func (s *Store) ShowArriving(id ledger.ObjectID, header []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.board == nil || s.ledger.IsShown(id) {
		return false
	}
	o, ok := s.ledger.Lookup(id)
	if !ok || o.State != ledger.Building || len(o.Frames) == 0 || !s.board.ShowArriving(refOf(id), header, o.Frames) {
		return false
	}
	s.ledger.Shown(id)
	return true
}

// Arrived says how many bytes of such an object are in place, over its frames in their
// order. It waits for nothing that takes long.
func (s *Store) Arrived(id ledger.ObjectID, bytes uint64) { s.board.Arrived(refOf(id), bytes) }

// Conceal ends that an object is followed that is not sealed: what was said to be in place
// is not, or will not be the object.
func (s *Store) Conceal(id ledger.ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Conceal(id)
}

func refOf(id ledger.ObjectID) transfer.Ref {
	return transfer.Ref{Task: id.Task, Generation: id.Generation}
}

// hider is the store as the ledger's board. Its methods are called under mu.
type hider struct{ store *Store }

// Hide is part of ledger.Board.
func (h hider) Hide(id ledger.ObjectID) { h.store.board.Hide(refOf(id)) }

// Vacate is part of ledger.Board.
func (h hider) Vacate(ticket ledger.Ticket, _ memory.Frame) bool {
	s := h.store
	over := s.board.Readers(time.Now())
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

// recall watches readers until none is left of those who are waited for.
func (s *Store) recall() {
	defer s.working.Done()
	pause := firstLook
	timer := time.NewTimer(pause)
	defer timer.Stop()
	revoked := s.board.Revoked()
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
			pause = firstLook
		}
		// NB: what was granted by that may have added to the list.
		end := len(s.recalling) == 0 || s.closed
		if end {
			s.watching = false
		}
		s.mu.Unlock()
		run(calls)
		if n := s.board.Revoked(); n > revoked {
			s.log.Warn("readers of this worker's memory did not go on, and lost what they read", "times", n-revoked)
			revoked = n
		}
		if end {
			return
		}
		timer.Reset(pause)
		pause = min(2*pause, longestLook)
	}
}
