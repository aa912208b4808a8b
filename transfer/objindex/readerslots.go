package objindex

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Seat is one reader's page of slots, as the lender sees it. A reader takes one slot for each
// concurrent read.
type Seat struct {
	board *Board
	file  *os.File
	words words // guarded by board.mu; empty after Leave
}

// Seat creates the page of slots for one connection.
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

// File returns the file that the reader maps. The seat keeps ownership.
func (s *Seat) File() *os.File { return s.file }

// Leave closes all slots, also those in use: their readers detect this when they finish, and no
// slot can be taken any more.
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

// read returns the bytes that the reader counted next to its slots. REQUIRES: board.mu.
func (s *Seat) read() (n uint64) {
	for i := range slots {
		n += s.words.load(slotAt(i) + 1)
	}
	return n
}

// readers is the set of slots under which objects that are now hidden may still be read.
type readers struct {
	board *Board
	slots []busy
	limit time.Time
}

// busy is a slot that was active, with the word that it had.
type busy struct {
	seat *Seat
	slot int
	word uint64
}

// Readers determines which readers may still be reading objects that are hidden by now. nil: none.
// Otherwise over reports whether all of them have finished. over revokes the slots of readers that
// have not finished when TTL has passed since now.
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
