package store

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
)

// Spare is memory for one frame of the next result. It is reserved while there is time for that, so
// that Adopt is fast. The zero Spare is none.
type Spare struct {
	Reservation ledger.ReservationID
	Frame       memory.Frame
	object      ledger.ObjectID
}

// sparePart: 1/sparePart of the slab must stay free beside a spare, so that a spare neither evicts
// objects nor makes requests wait.
const sparePart = 4

// Spare reserves memory, or returns the zero Spare if memory is short. Release releases it.
func (s *Store) Spare(bytes uint64) (x Spare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if books := s.ledger.Stats(); s.closed || books.Waiting > 0 || books.FreeBytes < books.SizeBytes/sparePart+bytes {
		return x
	}
	s.lastReservation++
	id := s.lastReservation
	_, effects, err := s.ledger.Reserve(time.Now(), ledger.Request{ID: id, Holder: ledger.Holder{Kind: ledger.HolderWorker}, Bytes: []uint64{bytes}})
	// There are no callbacks: no request was waiting.
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

// Adopt makes a spare the memory of an object that is being built, as its only frame, and assigns
// it to a holder.
func (s *Store) Adopt(x Spare, id ledger.ObjectID, holder ledger.Holder) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Adopt(x.Reservation, x.object, id, holder)
}
