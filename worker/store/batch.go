package store

import (
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
)

// AllocateAll makes frames for count objects in one step, each like Rebuild and Allocate. It
// appends them to into. It ends at the first error, which belongs to the object with index made. It
// calls object under the lock.
func (s *Store) AllocateAll(count int, object func(i int) (r ledger.ReservationID, id ledger.ObjectID, sizes []uint64), into []memory.Frame) (made int, frames []memory.Frame, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; made < count; made++ {
		r, id, sizes := object(made)
		if len(sizes) == 0 {
			continue
		}
		s.ledger.Rebuild(r, id)
		own, err := s.ledger.Allocate(r, id, sizes...)
		if err != nil {
			return made, into, err
		}
		into = append(into, own...)
	}
	return made, into, nil
}

// SealCopies makes copies of other workers' objects readable in one step, each like Seal and
// Copied. It calls told with the size or the error of each object. object and told are called under
// the lock.
func (s *Store) SealCopies(count int, object func(i int) (id ledger.ObjectID, header []byte), told func(i int, bytes uint64, err error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range count {
		id, header := object(i)
		if err := s.seal(id, header); err != nil {
			told(i, 0, err)
			continue
		}
		s.copied(id)
		o, _ := s.lookup(id)
		told(i, o.Bytes(), nil)
	}
}
