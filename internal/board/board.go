// Package board is an Adapter: read leases through shared memory, without messages.
//
// A lender shows on its board which objects lie where in the memory that others
// have mapped. The board is a file in memory that only the lender can write. A
// reader has a page of slots, which it alone writes and the lender watches. It takes
// a slot, looks objects up, copies them, and gives the slot back: four operations on
// memory, for one object or for ten thousand.
//
// # Why bytes that are delivered are those of the object
//
// It is reclamation by epochs, as for data that is read without locks (McKenney's
// RCU; Fraser, "Practical lock-freedom", 2004), with the slots as what tells who
// reads. All words are used by sequentially consistent operations.
//
//   - A reader makes its slot active before it looks up the first object, and asks
//     at the end whether the slot is still as it left it.
//   - The lender hides an object first, and looks at all slots after that (Readers).
//     It overwrites the bytes when none was active, or each that was has changed.
//   - So of the two one sees the other. Either the reader's slot was active before
//     the lender looked: then the bytes stay. Or it was not: then the lookup comes
//     after the hiding, and does not find the object. A lookup in between is one of
//     a sequence lock: an entry that changes meanwhile is not found.
//   - A reader that is stopped would keep memory for ever. A slot that does not
//     change for TTL, from the moment when the lender had to wait for it, is revoked
//     by compare-and-swap. The reader finds that when it gives the slot back, also
//     by compare-and-swap, and throws everything away that it read under it. One of
//     the two succeeds, so bytes are overwritten or delivered, never both.
//   - When a connection ends, the lender closes its slots, whatever is in them, and
//     waits for them no longer: whoever was reading finds that, and no slot of that
//     page is taken again. A lender that was killed does not close any, nor
//     does it overwrite anything.
//
// # What arrives
//
// An object that the lender is still fetching can be shown as well (ShowArriving), for
// readers that follow it: they copy what has arrived, and ask how far it has come.
// Nothing says before its end that it will be valid. So a follower delivers nothing
// before the entry says that the object is whole, which its lender writes when it has
// found its own copy to be valid, and the entry must be the one that the follower
// found: it has the same sequence. What was hidden meanwhile, because the fetch failed or
// began anew, is another entry, or none. Find does not find what arrives, nor do those
// who read what a dead lender has left.
//
// Generations are part of the key: what a lookup finds is what was asked for, or
// nothing. What is not on the board may exist all the same: it has too many frames,
// too long a header, does not lie in that memory just now, or there was no room.
//
// # Trust
//
// Readers belong to the same user, and still cannot do harm by mistake: the file of
// the board is sealed against being written by anybody else, files cannot change
// their size, and whatever a reader writes into its slots delays nothing for longer
// than TTL.
package board

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// ErrNotABoard: what was passed is not what this build uses.
var ErrNotABoard = errors.New("not a board")

const (
	// DefaultEntries take 8 MiB.
	DefaultEntries = 32 << 10
	// DefaultTTL is as long as leases of package borrow.
	DefaultTTL = 10 * time.Second
)

// Board is the lender's. Its methods may be called from any goroutine.
type Board struct {
	ttl  time.Duration
	file *os.File
	turn *os.File
	mask uint64

	mu sync.Mutex
	// All below is guarded by mu.
	words words
	// free are the entries without an object, that to be used next at the end.
	free    []uint32
	seats   []*Seat
	gone    uint64 // bytes that seats which left have read
	revoked int
}

// New returns an empty board with room for at most so many objects, a power of two
// of at least 16; 0: DefaultEntries. A ttl of 0 means DefaultTTL.
func New(entries int, ttl time.Duration) (*Board, error) {
	if entries == 0 {
		entries = DefaultEntries
	}
	if ttl <= 0 {
		ttl = DefaultTTL
	}
	n := uint64(entries) / ways
	if entries < 2*ways || entries&(entries-1) != 0 || fileBytes(n) > maxFileBytes {
		return nil, fmt.Errorf("board: room for %d objects: must be a power of two from 16 to 4 Mi", entries)
	}
	file, err := sealed("millrace-board", int(fileBytes(n)))
	if err != nil {
		return nil, err
	}
	b := &Board{ttl: ttl, file: file, mask: n - 1}
	if b.words, err = mapFile(file, fileBytes(n), true); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	b.words.populate(n, unix.MADV_POPULATE_WRITE)
	for i := range uint32(entries) {
		b.free = append(b.free, uint32(entries)-1-i)
	}
	b.words.store(0, magic)
	b.words.store(1, n)
	if b.turn, err = newTurn(); err != nil {
		return nil, errors.Join(err, b.words.unmap(), file.Close())
	}
	// From here on nobody can map it for writing, whoever has the descriptor.
	if err := seal(file, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Close ends the board. REQUIRES: all seats have left, nothing is shown any more.
func (b *Board) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(b.words.unmap(), b.file.Close(), b.turn.Close())
}

// TurnFile is what OpenTurn maps. It stays the board's.
func (b *Board) TurnFile() *os.File { return b.turn }

// File is what readers map. It stays the board's.
func (b *Board) File() *os.File { return b.file }

// Show lets readers find an object that is not shown, whose bytes stay what and
// where they are until Hide, and from then on until Readers says so. It returns
// false if the object does not fit.
func (b *Board) Show(k transfer.Ref, header []byte, frames []memory.Frame) bool {
	return b.enter(k, header, frames, whole)
}

// enter writes an entry.
func (b *Board) enter(k transfer.Ref, header []byte, frames []memory.Frame, progress uint64) bool {
	if k.Task == 0 || k.Generation == 0 || len(frames) > maxFrames || len(frames)*16+len(header) > MaxPayload {
		return false
	}
	tag := mix(uint64(k.Task), uint32(k.Generation))
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.words.list == nil {
		return false
	}
	index, entry, again := b.find(k, tag)
	if !again {
		var ok bool
		if index, ok = b.room(tag); !ok {
			return false
		}
		last := len(b.free) - 1
		entry, b.free = uint64(b.free[last]), b.free[:last]
	}
	w := &b.words
	at, rest := entryAt(b.mask+1, entry), restAt(b.mask+1, entry)
	seq := w.load(at)
	w.store(at, seq+1)
	w.store(at+1, uint64(k.Task))
	w.store(at+2, uint64(uint32(k.Generation))|uint64(len(frames))<<32|uint64(len(header))<<40)
	w.store(at+progressAt, progress)
	for i, f := range frames {
		w.store(payload(at, rest, 2*i), f.Offset)
		w.store(payload(at, rest, 2*i+1), f.Bytes)
	}
	for i, left := 2*len(frames), header; len(left) > 0; i++ {
		var v [8]byte
		left = left[copy(v[:], left):]
		w.store(payload(at, rest, i), binary.NativeEndian.Uint64(v[:]))
	}
	// What another object has left in the line would make those differ that are alike.
	for i := 2*len(frames) + (len(header)+7)/8; i < inLine; i++ {
		w.store(payload(at, rest, i), 0)
	}
	w.store(at, seq+2)
	w.store(index, indexWord(tag, entry))
	return true
}

// room returns a free place in the index for a tag: in the emptier of its buckets, or in the
// first if that is half empty; there where it is looked for first, if that is free. There
// are as many entries. REQUIRES: mu.
func (b *Board) room(tag uint64) (index int, ok bool) {
	one, two := buckets(tag, b.mask)
	free, first := b.vacant(one)
	if free < ways/2 {
		if other, at := b.vacant(two); other > free {
			return at, true
		}
	}
	if at := indexAt(one) + wayOf(tag); b.words.load(at) == 0 {
		first = at
	}
	return first, free > 0
}

// vacant returns how many places of a bucket are free, and the first of them. REQUIRES: mu.
func (b *Board) vacant(bucket uint64) (free, first int) {
	for i := ways - 1; i >= 0; i-- {
		if at := indexAt(bucket) + i; b.words.load(at) == 0 {
			free++
			first = at
		}
	}
	return free, first
}

// find returns where an object is shown. REQUIRES: mu.
func (b *Board) find(k transfer.Ref, tag uint64) (index int, entry uint64, ok bool) {
	one, two := buckets(tag, b.mask)
	for _, bucket := range [2]uint64{one, two} {
		for i := range ways {
			index = indexAt(bucket) + i
			if entry, ok = entryOf(b.words.load(index), tag, (b.mask+1)*ways); !ok {
				continue
			}
			at := entryAt(b.mask+1, entry)
			if b.words.load(at+1) == uint64(k.Task) && uint32(b.words.load(at+2)) == uint32(k.Generation) {
				return index, entry, true
			}
		}
	}
	return 0, 0, false
}

// Hide ends that readers find an object. Those who have found it may be reading.
func (b *Board) Hide(k transfer.Ref) bool {
	tag := mix(uint64(k.Task), uint32(k.Generation))
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.words.list == nil {
		return false
	}
	index, entry, ok := b.find(k, tag)
	if !ok {
		return false
	}
	at := entryAt(b.mask+1, entry)
	seq := b.words.load(at)
	b.words.store(at, seq+1)
	b.words.store(at+1, 0)
	b.words.store(at, seq+2)
	b.words.store(index, 0)
	b.free = append(b.free, uint32(entry))
	return true
}

// Stats describes a board.
type Stats struct {
	// Shown are objects, Seats readers, Revoked slots of readers that did not go on.
	Shown, Seats, Revoked int
	// ReadBytes are what readers say that they have read, ever.
	ReadBytes uint64
}

// Stats costs a look at all seats.
func (b *Board) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{Shown: int((b.mask+1)*ways) - len(b.free), Seats: len(b.seats), Revoked: b.revoked, ReadBytes: b.gone}
	for _, seat := range b.seats {
		s.ReadBytes += seat.read()
	}
	return s
}

// Revoked is how many slots were taken from readers that did not go on.
func (b *Board) Revoked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.revoked
}
