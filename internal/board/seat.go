package board

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Seat is the lender's side of a reader's slots.
type Seat struct {
	board *Board
	file  *os.File
	words words // guarded by board.mu; empty once it has left
}

// Seat makes a page of slots for one connection.
func (b *Board) Seat() (*Seat, error) {
	file, err := sealed("millrace-slots", seatBytes)
	if err != nil {
		return nil, err
	}
	if err := seal(file, unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s := &Seat{board: b, file: file}
	if s.words, err = mapFile(file, seatBytes, true); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seats = append(b.seats, s)
	return s, nil
}

// File is what the reader maps. It stays the seat's.
func (s *Seat) File() *os.File { return s.file }

// Leave takes the slots away, those in use as well: their readers find that at the
// end, and none is taken any more.
func (s *Seat) Leave() error {
	b := s.board
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.seats, s)
	if i < 0 {
		return nil
	}
	b.gone += s.read()
	for slot := range slots {
		atomic.OrUint64(s.words.at(slotAt(slot)), closed)
	}
	b.seats = slices.Delete(b.seats, i, i+1)
	return errors.Join(s.words.unmap(), s.file.Close())
}

// read is what the reader noted beside its slots. REQUIRES: board.mu.
func (s *Seat) read() (n uint64) {
	for i := range slots {
		n += s.words.load(slotAt(i) + 1)
	}
	return n
}

// readers are those who may be reading what was hidden before.
type readers struct {
	board *Board
	slots []busy
	limit time.Time
}

// busy is a slot that was active.
type busy struct {
	seat *Seat
	slot int
	word uint64
}

// Readers looks who may be reading what is hidden by now; nil: nobody is. Otherwise
// over says whether none of them is reading any more. Who has not gone on when TTL is
// over loses its slot.
func (b *Board) Readers(now time.Time) (over func(now time.Time) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var r *readers
	for _, s := range b.seats {
		for i := range slots {
			w := s.words.load(slotAt(i))
			if w&states != active {
				continue
			}
			if r == nil {
				r = &readers{board: b, limit: now.Add(b.ttl)}
			}
			r.slots = append(r.slots, busy{s, i, w})
		}
	}
	if r == nil {
		return nil
	}
	return r.over
}

func (r *readers) over(now time.Time) bool {
	b := r.board
	b.mu.Lock()
	defer b.mu.Unlock()
	late := !now.Before(r.limit)
	for len(r.slots) > 0 {
		s := r.slots[len(r.slots)-1]
		if s.seat.words.list != nil && s.seat.words.load(slotAt(s.slot)) == s.word {
			if !late {
				return false
			}
			if s.seat.words.swap(slotAt(s.slot), s.word, s.word&^states|revoked) {
				b.revoked++
			}
		}
		r.slots = r.slots[:len(r.slots)-1]
	}
	return true
}
