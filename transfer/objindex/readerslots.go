package objindex

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ReaderSlots is one reader's page of slots, as the lender sees it. A reader takes one slot for
// each concurrent read.
type ReaderSlots struct {
	index *Index
	file  *os.File
	words words // guarded by index.mu; empty after Close
}

// NewReaderSlots creates the page of slots for one connection.
func (x *Index) NewReaderSlots() (*ReaderSlots, error) {
	file, err := sealed("millrace-reader-slots", slotPageBytes)
	if err != nil {
		return nil, err
	}
	if err := seal(file, unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s := &ReaderSlots{index: x, file: file}
	if s.words, err = mapFile(file, slotPageBytes, true); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.readers = append(x.readers, s)
	return s, nil
}

// File returns the file that the reader maps. The ReaderSlots keep ownership.
func (s *ReaderSlots) File() *os.File { return s.file }

// Close closes all slots, also those in use: their readers detect this when they finish, and no
// slot can be taken any more.
func (s *ReaderSlots) Close() error {
	b := s.index
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.readers, s)
	if i < 0 {
		return nil
	}
	b.gone += s.read()
	for slot := range slots {
		atomic.OrUint64(s.words.at(slotAt(slot)), closed)
	}
	b.readers = slices.Delete(b.readers, i, i+1)
	return errors.Join(s.words.unmap(), s.file.Close())
}

// read returns the bytes that the reader counted next to its slots. REQUIRES: index.mu.
func (s *ReaderSlots) read() (n uint64) {
	for i := range slots {
		n += s.words.load(slotAt(i) + 1)
	}
	return n
}

// graceReaders is the set of slots under which objects that are unpublished by now may still be
// read.
type graceReaders struct {
	index *Index
	slots []activeSlot
	limit time.Time
}

// activeSlot is a slot that was active, with the word that it had.
type activeSlot struct {
	reader *ReaderSlots
	slot   int
	word   uint64
}

// Readers determines which readers may still be reading objects that are unpublished by now. nil:
// none. Otherwise over reports whether all of them have finished. over revokes the slots of readers
// that have not finished when TTL has passed since now.
func (x *Index) Readers(now time.Time) (over func(now time.Time) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var r *graceReaders
	for _, s := range x.readers {
		for i := range slots {
			w := s.words.load(slotAt(i))
			if w&states != active {
				continue
			}
			if r == nil {
				r = &graceReaders{index: x, limit: now.Add(x.ttl)}
			}
			r.slots = append(r.slots, activeSlot{s, i, w})
		}
	}
	if r == nil {
		return nil
	}
	return r.over
}

func (r *graceReaders) over(now time.Time) bool {
	b := r.index
	b.mu.Lock()
	defer b.mu.Unlock()
	late := !now.Before(r.limit)
	for len(r.slots) > 0 {
		s := r.slots[len(r.slots)-1]
		if s.reader.words.list != nil && s.reader.words.load(slotAt(s.slot)) == s.word {
			if !late {
				return false
			}
			if s.reader.words.swap(slotAt(s.slot), s.word, s.word&^states|revoked) {
				b.revoked++
			}
		}
		r.slots = r.slots[:len(r.slots)-1]
	}
	return true
}
