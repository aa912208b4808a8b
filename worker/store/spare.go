package store

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
)

// Spare is memory for one frame of whatever is made next. It is had while there is time for that, so that
// who needs it has it at once: Adopt. The zero Spare is none.
type Spare struct {
	Reservation ledger.ReservationID
	Frame       memory.Frame
	object      ledger.ObjectID
}

// sparePart is the part of the slab that must be free beside a spare: it makes nothing leave, and
// nobody wait.
const sparePart = 4

// Spare sets memory aside, or returns none. Release gives it back.
func (s *Store) Spare(bytes uint64) (x Spare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if books := s.ledger.Stats(); s.closed || books.Waiting > 0 || books.FreeBytes < books.SizeBytes/sparePart+bytes {
		return x
	}
	s.lastReservation++
	id := s.lastReservation
	_, effects, err := s.ledger.Reserve(time.Now(), ledger.Request{ID: id, Holder: ledger.Holder{Kind: ledger.HolderWorker}, Bytes: []uint64{bytes}})
	// There are no calls: of what could be told, there was none that waited.
	s.apply(effects)
	if err != nil {
		return x
	}
	s.lastTemporary++
	object := ledger.ObjectID{Task: temporaryTasks + ids.TaskID(s.lastTemporary), Generation: 1}
	frames, err := s.ledger.Allocate(id, object, bytes)
	if err != nil {
		panic("store: what was just set aside for an object has no room for it: " + err.Error())
	}
	return Spare{Reservation: id, Frame: frames[0], object: object}
}

// Adopt makes a spare the memory of an object that is being built, with its only frame, for a holder.
func (s *Store) Adopt(x Spare, id ledger.ObjectID, holder ledger.Holder) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Adopt(x.Reservation, x.object, id, holder)
}
