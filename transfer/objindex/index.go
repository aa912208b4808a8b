// Package objindex is an Adapter: read leases through shared memory, without messages.
//
// An index belongs to one slab. A lender (a worker) publishes in it which objects lie at which
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
//   - The lender unpublishes an object first (Unpublish) and then looks at all slots (Readers). It
//     overwrites the bytes only when no slot was active, or when each slot that was active has
//     changed since.
//   - So at least one of the two sees the other. If the slot was active before the lender looked,
//     the bytes stay. If it was not, the lookup comes after the removal and does not find the
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
// The lender can also publish an object that it is still fetching (PublishArriving), for readers
// that follow it: a follower copies the bytes that have arrived and asks for the progress. Only the
// end of the fetch proves the bytes valid. So a follower delivers nothing before the entry says
// that the object is whole; the lender writes this when it has validated its own copy. The entry
// must also be the one that the follower found, with the same sequence number. If the fetch failed
// or began anew, the entry was removed, and a new entry has another sequence number. Find does not
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
	"github.com/millrace/millrace/memory/alloc"
	"github.com/millrace/millrace/transfer"
)

// ErrNotAnIndex means that a passed file is not an index or slot page in the format of this build.
var ErrNotAnIndex = errors.New("not an object index")

const (
	// DefaultEntries is the default capacity. Such an index takes 8.25 MiB, and up to
	// 32 MiB more for objects with many frames or long headers.
	DefaultEntries = 32 << 10
	// DefaultTTL equals the duration of leases in package borrow.
	DefaultTTL = 10 * time.Second
)

// Index is the lender's side of the shared object index. Its methods are safe for concurrent use.
type Index struct {
	ttl   time.Duration
	file  *os.File
	token *os.File
	mask  uint64

	mu sync.Mutex
	// All fields below are guarded by mu.
	words words
	// free lists the entries without an object. The next one to use is at the end. long has the
	// blocks of long payloads.
	free    []uint32
	long    *alloc.Allocator
	readers []*ReaderSlots
	gone    uint64 // bytes read through slots of closed connections
	revoked int
}

// New returns an empty index with room for at most the given number of objects, a power of two of
// at least 16. 0 means DefaultEntries. A ttl of 0 means DefaultTTL.
func New(entries int, ttl time.Duration) (*Index, error) {
	if entries == 0 {
		entries = DefaultEntries
	}
	if ttl <= 0 {
		ttl = DefaultTTL
	}
	n := uint64(entries) / ways
	if entries < 2*ways || entries&(entries-1) != 0 || fileBytes(n) > maxFileBytes {
		return nil, fmt.Errorf("object index: room for %d objects: must be a power of two from 16 to 512 Ki", entries)
	}
	file, err := sealed("millrace-objindex", int(fileBytes(n)))
	if err != nil {
		return nil, err
	}
	b := &Index{ttl: ttl, file: file, mask: n - 1}
	if b.words, err = mapFile(file, fileBytes(n), true); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	b.words.populate(n, unix.MADV_POPULATE_WRITE)
	if b.long, err = alloc.New(n * longBytes); err != nil {
		return nil, errors.Join(err, b.words.unmap(), file.Close())
	}
	for i := range uint32(entries) {
		b.free = append(b.free, uint32(entries)-1-i)
	}
	b.words.store(0, magic)
	b.words.store(1, n)
	if b.token, err = newEgressToken(); err != nil {
		return nil, errors.Join(err, b.words.unmap(), file.Close())
	}
	// From here on no holder of the descriptor can map the file for writing.
	if err := seal(file, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Close unmaps and closes the index. REQUIRES: all reader slots are closed, and no object is
// published.
func (x *Index) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return errors.Join(x.words.unmap(), x.file.Close(), x.token.Close())
}

// EgressTokenFile returns the file for OpenEgressToken. The index keeps ownership.
func (x *Index) EgressTokenFile() *os.File { return x.token }

// File returns the file that readers map. The index keeps ownership.
func (x *Index) File() *os.File { return x.file }

// Publish publishes an object that is not yet in the index. The object's bytes must neither change
// nor move until Unpublish, and after it until Readers reports that no reader is left. Publish
// returns false if the object does not fit, or is an item: readers find items in their object.
func (x *Index) Publish(k transfer.Ref, header []byte, frames []memory.Frame) bool {
	return x.write(k, header, frames, whole)
}

// write writes an entry and links it in the index. See Publish.
func (x *Index) write(k transfer.Ref, header []byte, frames []memory.Frame, progress uint64) bool {
	if k.Task == 0 || k.Generation == 0 || k.Item != 0 || len(frames) > MaxFrames || len(header) > MaxHeader {
		return false
	}
	tag := mix(uint64(k.Task), uint32(k.Generation))
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.words.list == nil {
		return false
	}
	if index, entry, again := x.find(k, tag); again {
		x.remove(index, entry)
	}
	index, ok := x.freePlace(tag)
	if !ok {
		return false
	}
	last := len(x.free) - 1
	entry := uint64(x.free[last])
	w := &x.words
	at, rest := entryAt(x.mask+1, entry), restAt(x.mask+1, entry)
	line := at
	if isLong(len(frames), len(header)) {
		block, ok := x.long.Alloc(uint64(payloadWords(len(frames), len(header))) * 8)
		if !ok {
			return false
		}
		place := longAt(x.mask+1) + int(block/8)
		line, rest = longLine(place), longRest(place)
	}
	x.free = x.free[:last]
	seq := w.load(at)
	w.store(at, seq+1)
	w.store(at+1, uint64(k.Task))
	w.store(at+2, newShape(uint32(k.Generation), len(frames), len(header)))
	w.store(at+progressAt, progress)
	// Clear the line: readers compare whole lines to detect objects with equal headers.
	for i := range inLine {
		w.store(payload(at, rest, i), 0)
	}
	if line != at {
		w.store(payload(at, rest, 0), uint64(rest))
	}
	for i, f := range frames {
		w.store(payload(line, rest, 2*i), f.Offset)
		w.store(payload(line, rest, 2*i+1), f.Bytes)
	}
	for i, left := 2*len(frames), header; len(left) > 0; i++ {
		var v [8]byte
		left = left[copy(v[:], left):]
		w.store(payload(line, rest, i), binary.NativeEndian.Uint64(v[:]))
	}
	w.store(at, seq+2)
	w.store(index, indexWord(tag, entry))
	return true
}

// freePlace returns a free index place for a tag. It prefers the first bucket while that is at
// least half free, then the emptier one of the two. In the first bucket it prefers the place at
// which readers look first (wayOf). There are as many entries as index places, so a free entry
// exists, too. REQUIRES: mu.
func (x *Index) freePlace(tag uint64) (index int, ok bool) {
	one, two := buckets(tag, x.mask)
	free, first := x.vacant(one)
	if free < ways/2 {
		if other, at := x.vacant(two); other > free {
			return at, true
		}
	}
	if at := indexAt(one) + wayOf(tag); x.words.load(at) == 0 {
		first = at
	}
	return first, free > 0
}

// vacant returns the number of free places of a bucket and the first of them. REQUIRES: mu.
func (x *Index) vacant(bucket uint64) (free, first int) {
	for i := ways - 1; i >= 0; i-- {
		if at := indexAt(bucket) + i; x.words.load(at) == 0 {
			free++
			first = at
		}
	}
	return free, first
}

// find returns the index place and the entry of a published object. REQUIRES: mu.
func (x *Index) find(k transfer.Ref, tag uint64) (index int, entry uint64, ok bool) {
	one, two := buckets(tag, x.mask)
	for _, bucket := range [2]uint64{one, two} {
		for i := range ways {
			index = indexAt(bucket) + i
			if entry, ok = entryOf(x.words.load(index), tag, (x.mask+1)*ways); !ok {
				continue
			}
			at := entryAt(x.mask+1, entry)
			if x.words.load(at+1) == uint64(k.Task) && uint32(x.words.load(at+2)) == uint32(k.Generation) {
				return index, entry, true
			}
		}
	}
	return 0, 0, false
}

// Unpublish removes an object from the index: later lookups do not find it. Readers that found it
// before may still be reading. Unpublish returns false if the object was not published.
func (x *Index) Unpublish(k transfer.Ref) bool {
	tag := mix(uint64(k.Task), uint32(k.Generation))
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.words.list == nil {
		return false
	}
	index, entry, ok := x.find(k, tag)
	if ok {
		x.remove(index, entry)
	}
	return ok
}

// remove removes an object from its index place and its entry. Readers that are reading a long
// payload notice by the sequence that its block may be in use for another. REQUIRES: mu.
func (x *Index) remove(index int, entry uint64) {
	at := entryAt(x.mask+1, entry)
	seq := x.words.load(at)
	x.words.store(at, seq+1)
	x.words.store(at+1, 0)
	x.words.store(at, seq+2)
	x.words.store(index, 0)
	x.free = append(x.free, uint32(entry))
	if isLong(shapeOf(x.words.load(at + 2))) {
		x.long.Free((x.words.load(at+payloadAt) - uint64(longAt(x.mask+1))) * 8)
	}
}

// Stats describes an index.
type Stats struct {
	// Published counts the objects, Readers the connected readers, Revoked the slots that were
	// revoked from stopped readers.
	Published, Readers, Revoked int
	// ReadBytes is the total number of bytes that readers reported as read.
	ReadBytes uint64
}

// Stats returns the current counts. It scans the slots of all readers.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Stats{Published: int((x.mask+1)*ways) - len(x.free), Readers: len(x.readers), Revoked: x.revoked, ReadBytes: x.gone}
	for _, slots := range x.readers {
		s.ReadBytes += slots.read()
	}
	return s
}

// Revoked returns the number of slots that were revoked from stopped readers.
func (x *Index) Revoked() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.revoked
}
