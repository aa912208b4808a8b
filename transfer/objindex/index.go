// Package objindex is an Adapter: read leases through shared memory, without messages.
//
// A board is a shared object index. A lender (a worker) publishes in it which objects lie at which
// offsets of the memory that its readers have mapped. The index is a file in memory that only the
// lender can write. Each reader has a page of reader slots, which the reader writes and the lender
// observes. To read, a reader takes a slot, looks objects up, copies them and gives the slot back:
// four operations on memory, for one object or for ten thousand.
//
// # Why a delivered copy is never torn
//
// The protocol is epoch-based reclamation, as for lock-free reads (RCU: McKenney and Slingwine
// 1998; Fraser, "Practical lock-freedom", 2004). The slots announce the active readers. All
// accesses to shared words are sequentially consistent.
//
//   - A reader makes its slot active before its first lookup. After the copy it checks that the
//     slot is unchanged.
//   - The lender hides an object first (Hide) and then looks at all slots (Readers). It overwrites
//     the bytes only when no slot was active, or when each slot that was active has changed since.
//   - So at least one of the two sees the other. If the slot was active before the lender looked,
//     the bytes stay. If it was not, the lookup comes after the hiding and does not find the
//     object. A lookup that runs concurrently is protected by a sequence lock: an entry that
//     changes during the lookup counts as not found.
//   - A stopped reader would keep memory for ever. So the lender revokes, by compare-and-swap, a
//     slot that has not changed for TTL since the lender first had to wait for it. The reader
//     detects this when it gives the slot back, also by compare-and-swap, and discards everything
//     that it read under the slot. Only one of the two swaps succeeds, so the bytes are either
//     overwritten or delivered, never both.
//   - When a connection ends, the lender closes its slots in any state and waits for them no
//     longer. A reader that is still active detects this, and no slot of that page can be taken
//     again. A lender that was killed closes no slots, but it also overwrites nothing.
//
// # Arriving objects
//
// The lender can also publish an object that it is still fetching (ShowArriving), for readers that
// follow it: a follower copies the bytes that have arrived and asks for the progress. Only the end
// of the fetch proves the bytes valid. So a follower delivers nothing before the entry says that
// the object is whole; the lender writes this when it has validated its own copy. The entry must
// also be the one that the follower found, with the same sequence number. If the fetch failed or
// began anew, the entry was hidden, and a new entry has another sequence number. Find does not
// return arriving objects, and the readers that rescue the objects of a dead lender do not see them
// either.
//
// The generation is part of the key: a lookup finds exactly the requested object, or nothing. An
// object that is not in the index may exist all the same: it has too many frames or too long a
// header, it is not in that memory at present, or the index had no room.
//
// # Trust
//
// Readers belong to the same user, but their bugs must not harm the lender: the index file is
// sealed against writing by others, no file can change its size, and nothing that a reader writes
// into its slots delays the lender for longer than TTL.
package objindex

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

// ErrNotABoard means that a passed file is not an index or slot page in the format of this build.
var ErrNotABoard = errors.New("not a board")

const (
	// DefaultEntries is the default capacity. Such an index takes 8 MiB.
	DefaultEntries = 32 << 10
	// DefaultTTL equals the duration of leases in package borrow.
	DefaultTTL = 10 * time.Second
)

// Board is the lender's side of the shared object index. Its methods are safe for concurrent use.
type Board struct {
	ttl  time.Duration
	file *os.File
	turn *os.File
	mask uint64

	mu sync.Mutex
	// All fields below are guarded by mu.
	words words
	// free lists the entries without an object. The next one to use is at the end.
	free    []uint32
	seats   []*Seat
	gone    uint64 // bytes read through seats that have left
	revoked int
}

// New returns an empty index with room for at most the given number of objects, a power of two of
// at least 16. 0 means DefaultEntries. A ttl of 0 means DefaultTTL.
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
	// From here on no holder of the descriptor can map the file for writing.
	if err := seal(file, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Close unmaps and closes the index. REQUIRES: all seats have left, and no object is published.
func (b *Board) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(b.words.unmap(), b.file.Close(), b.turn.Close())
}

// TurnFile returns the file for OpenTurn. The board keeps ownership.
func (b *Board) TurnFile() *os.File { return b.turn }

// File returns the file that readers map. The board keeps ownership.
func (b *Board) File() *os.File { return b.file }

// Show publishes an object that is not yet in the index. The object's bytes must neither change nor
// move until Hide, and after Hide until Readers reports that no reader is left. Show returns false
// if the object does not fit.
func (b *Board) Show(k transfer.Ref, header []byte, frames []memory.Frame) bool {
	return b.enter(k, header, frames, whole)
}

// enter writes an entry and links it in the index. See Show.
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
	// Clear the rest of the line: readers compare whole lines to detect objects with equal headers.
	for i := 2*len(frames) + (len(header)+7)/8; i < inLine; i++ {
		w.store(payload(at, rest, i), 0)
	}
	w.store(at, seq+2)
	w.store(index, indexWord(tag, entry))
	return true
}

// room returns a free index place for a tag. It prefers the first bucket while that is at least
// half free, then the emptier one of the two. In the first bucket it prefers the place at which
// readers look first (wayOf). There are as many entries as index places, so a free entry exists,
// too. REQUIRES: mu.
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

// vacant returns the number of free places of a bucket and the first of them. REQUIRES: mu.
func (b *Board) vacant(bucket uint64) (free, first int) {
	for i := ways - 1; i >= 0; i-- {
		if at := indexAt(bucket) + i; b.words.load(at) == 0 {
			free++
			first = at
		}
	}
	return free, first
}

// find returns the index place and the entry of a published object. REQUIRES: mu.
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

// Hide removes an object from the index: later lookups do not find it. Readers that found it before
// may still be reading. Hide returns false if the object was not published.
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
	// Shown counts the published objects, Seats the connected readers, Revoked the slots that were
	// revoked from stopped readers.
	Shown, Seats, Revoked int
	// ReadBytes is the total number of bytes that readers reported as read.
	ReadBytes uint64
}

// Stats returns the current counts. It scans the slots of all seats.
func (b *Board) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{Shown: int((b.mask+1)*ways) - len(b.free), Seats: len(b.seats), Revoked: b.revoked, ReadBytes: b.gone}
	for _, seat := range b.seats {
		s.ReadBytes += seat.read()
	}
	return s
}

// Revoked returns the number of slots that were revoked from stopped readers.
func (b *Board) Revoked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.revoked
}
