package store

import (
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
)

// Allocate makes frames of an object that is being built.
func (s *Store) Allocate(r ledger.ReservationID, id ledger.ObjectID, sizes ...uint64) ([]memory.Frame, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Allocate(r, id, sizes...)
}

// Rebuild forgets an object that is being built, so that it can be built again in the same memory.
func (s *Store) Rebuild(r ledger.ReservationID, id ledger.ObjectID) {
	s.mu.Lock()
	s.ledger.Rebuild(r, id)
	s.mu.Unlock()
}

// Restore makes an object readable again that was dropped while it was pinned, so that its bytes
// are here. It does nothing to any other object, and says so. The object does not count as Copied.
func (s *Store) Restore(id ledger.ObjectID) (restored bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger.Restore(id) != nil {
		return false
	}
	if id.Item == 0 {
		s.latest[id.Task] = max(s.latest[id.Task], id.Generation)
		s.publish(id)
	}
	return true
}

// Alias makes frames of an object that is being built out of ranges of another object.
func (s *Store) Alias(r ledger.ReservationID, id, source ledger.ObjectID, ranges ...memory.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Alias(r, id, source, ranges...)
}

// Seal makes an object readable. An object without any allocated frame must be stored with PutSmall
// instead.
func (s *Store) Seal(id ledger.ObjectID, header []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seal(id, header)
}

// seal is Seal. REQUIRES: mu.
func (s *Store) seal(id ledger.ObjectID, header []byte) error {
	err := s.ledger.Seal(id, header)
	switch {
	case err != nil:
	case id.Task < temporaryTasks:
		if id.Item != 0 {
			break // readers find it in its object, at the worker that has that
		}
		s.latest[id.Task] = max(s.latest[id.Task], id.Generation)
		if s.ledger.IsPublished(id) {
			s.index.Complete(refOf(id))
		} else {
			s.publish(id)
		}
	}
	return err
}

// SealTemporary seals a temporary object: memory that a process writes to as long as the object
// exists. process names the holder in descriptions.
func (s *Store) SealTemporary(id ledger.ObjectID, process ledger.Holder) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ledger.Seal(id, nil); err != nil {
		return err
	}
	return s.ledger.Pin(id, ledger.Pin{Reason: ledger.PinExecutor, Holder: process})
}

// temporaryTasks is the first task number of temporary objects, far above the numbers that a
// scheduler assigns.
const temporaryTasks ids.TaskID = 1 << 62

// Temporary returns a name for an object that is only a step in building another one and is never
// seen outside.
func (s *Store) Temporary() ledger.ObjectID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastTemporary++
	return ledger.ObjectID{Task: temporaryTasks + ids.TaskID(s.lastTemporary), Generation: 1}
}
