package objindex

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// Reader is the reader's side: a mapped index of a lender, and this reader's own slots. Its methods
// are safe for concurrent use.
type Reader struct {
	words words
	slots words
	mask  uint64
	// lines are the entry lines within words.
	lines []line
	next  atomic.Uint32
}

// line is the line of one entry. See the layout.
type line [lineWords]uint64

// Open maps the files that a lender passed. The caller keeps ownership of the descriptors.
func Open(index, slots *os.File) (*Reader, error) {
	v := &Reader{}
	var err error
	if v.words, err = mapFile(index, 0, false); err != nil {
		return nil, err
	}
	if v.slots, err = mapFile(slots, slotPageBytes, true); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	n := v.words.load(1)
	if v.words.load(0) != magic || n == 0 || n&(n-1) != 0 || n > maxFileBytes || fileBytes(n) != int64(len(v.words.data)) {
		return nil, errors.Join(fmt.Errorf("%w: %#x with %d buckets in %d bytes", ErrNotAnIndex, v.words.load(0), n, len(v.words.data)), v.Close())
	}
	v.words.populate(n, unix.MADV_POPULATE_READ)
	v.mask = n - 1
	v.lines = unsafe.Slice((*line)(unsafe.Pointer(v.words.at(entryAt(n, 0)))), n*ways)
	return v, nil
}

// Close unmaps both files. REQUIRES: no ReadGuard is active.
func (r *Reader) Close() error {
	r.lines = nil
	return errors.Join(r.words.unmap(), r.slots.unmap())
}

// ReadGuard is an epoch guard: a slot that was taken. Objects that are found under
// it stay in place until End, unless Held or End reports the opposite. A ReadGuard belongs to one
// goroutine.
type ReadGuard struct {
	reader *Reader
	slot   int
	word   uint64
}

// Pin takes a slot. ok is false if all slots are in use.
func (r *Reader) Pin() (g ReadGuard, ok bool) {
	first := int(r.next.Add(1))
	for i := range slots {
		slot := (first + i) % slots
		w := r.slots.load(slotAt(slot))
		if w&states != idle {
			continue
		}
		if word := (w &^ states) + (states + 1) | active; r.slots.swap(slotAt(slot), w, word) {
			return ReadGuard{reader: r, slot: slot, word: word}, true
		}
	}
	return ReadGuard{}, false
}

// Held reports whether the guard has been valid until now, and so everything read under it.
func (g ReadGuard) Held() bool { return g.reader.slots.load(slotAt(g.slot)) == g.word }

// End gives the slot back and reports whether the guard was valid until now. If it was not, the
// caller must discard everything that it read under the guard. bytes is the number of bytes read,
// for the lender's statistics.
func (g ReadGuard) End(bytes uint64) (held bool) {
	s := &g.reader.slots
	atomic.AddUint64(s.at(slotAt(g.slot)+1), bytes)
	held = s.swap(slotAt(g.slot), g.word, g.word&^states|idle)
	if !held {
		// A revoked slot becomes free for the next use. A closed slot stays closed.
		s.swap(slotAt(g.slot), g.word&^states|revoked, g.word&^states|idle)
	}
	return held
}

// Found is reusable storage for the results of lookups.
type Found struct {
	// arena is preallocated memory for the sizes and headers of further objects. Parts that were
	// handed out are never reused. frames is owned by Found and reused.
	arena  []uint64
	frames []memory.Frame
	// left is the number of objects that are still expected. chunk is the size in words of the last
	// allocation of the arena.
	left, chunk int
	// shared is the frame size and header of the object that FindAll read last in its line.
	shared *oneHeader
}

// Begin clears the storage for about the given number of objects. REQUIRES: the frames of earlier
// results are no longer in use.
func (f *Found) Begin(objects int) {
	*f = Found{frames: f.frames[:0], left: objects}
}

// Limits in words for one allocation of the arena. The first one is small, because similar objects
// share their headers; each next one doubles. maxArenaWords is 16 KiB: allocations of more than 32
// KiB would not come from the Go runtime's per-processor caches of size classes.
const (
	minArenaWords = 64
	maxArenaWords = 2048
)

// alloc returns memory for the words of one object. A new chunk is sized as if the remaining
// objects needed as many words each.
func (f *Found) alloc(words int) []uint64 {
	if len(f.arena) < words {
		f.chunk = min(max(2*f.chunk, minArenaWords), maxArenaWords)
		f.arena = make([]uint64, max(words, min(words*f.left, f.chunk)))
	}
	own := f.arena[:words:words]
	f.arena = f.arena[words:]
	return own
}

// bytesOf returns the first bytes of a list of words.
func bytesOf(words []uint64, bytes int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes)
}

// Object is a found object. The caller may keep Header and Sizes. Frames is valid until Found is
// used again.
type Object struct {
	Header []byte
	Sizes  []uint64
	Frames []memory.Frame
}

// Find looks an object up. All its frames must lie within a memory of the given size.
func (g ReadGuard) Find(k transfer.Ref, size uint64, f *Found) (o Object, ok bool) {
	o, at, _ := g.find(k, size, f, false)
	return o, at > 0
}

// find returns an object with the word offset of its entry and the entry's sequence number; an
// offset of 0 means not found.
func (g ReadGuard) find(k transfer.Ref, size uint64, f *Found, arriving bool) (o Object, at int, seq uint64) {
	var h transfer.Head
	first := len(f.frames)
	at, seq = g.reader.search(k, size, f, arriving, &h)
	return Object{Header: h.Header, Sizes: h.FrameBytes, Frames: f.frames[first:len(f.frames):len(f.frames)]}, at, seq
}

// search reads an object from wherever the hash index may have it. at is the word offset of its
// entry, 0 if it is not found.
func (r *Reader) search(k transfer.Ref, size uint64, f *Found, arriving bool, h *transfer.Head) (at int, seq uint64) {
	w := &r.words
	tag := mix(uint64(k.Task), uint32(k.Generation))
	one, two := buckets(tag, r.mask)
	for _, bucket := range [2]uint64{one, two} {
		index := indexAt(bucket)
		for i := range ways {
			if entry, maybe := entryOf(w.load(index+i), tag, uint64(len(r.lines))); maybe {
				if seq, ok := r.read(entry, k, size, f, arriving, h); ok {
					return entryAt(r.mask+1, entry), seq
				}
			}
		}
	}
	return 0, 0
}

// payloadOf returns line and rest, as payload takes them, of the payload of an entry. It returns
// false if the place of a long payload is not within the file.
func (r *Reader) payloadOf(entry uint64, frames, header int) (line, rest int, ok bool) {
	line = entryAt(r.mask+1, entry)
	if !isLong(frames, header) {
		return line, restAt(r.mask+1, entry), true
	}
	block, first, end := r.words.load(line+payloadAt), uint64(longAt(r.mask+1)), uint64(len(r.words.list))
	words := uint64(payloadWords(frames, header))
	if block < first || words > end-first || block > end-words {
		return 0, 0, false
	}
	return longLine(int(block)), longRest(int(block)), true
}

// read reads an entry if it holds the key, and if the object is whole or arriving objects are
// accepted. If so, it sets the head and appends the frames to f.frames.
func (r *Reader) read(entry uint64, k transfer.Ref, size uint64, f *Found, arriving bool, h *transfer.Head) (seq uint64, ok bool) {
	w := &r.lines[entry]
	for range 100 {
		seq := atomic.LoadUint64(&w[0])
		if seq&1 != 0 {
			// The writer of the entry was interrupted, or is about to finish.
			runtime.Gosched()
			continue
		}
		if k.Task == 0 || k.Item != 0 || atomic.LoadUint64(&w[1]) != uint64(k.Task) {
			return 0, false // a free entry belongs to no key, and no entry to an item
		}
		shape := atomic.LoadUint64(&w[2])
		frames, header := shapeOf(shape)
		if uint32(shape) != uint32(k.Generation) || !arriving && atomic.LoadUint64(&w[progressAt]) != whole {
			return 0, false // or another object is being written into the entry
		}
		at, rest, there := r.payloadOf(entry, frames, header)
		if !there {
			return 0, false // or its place is being written
		}
		own, first, inside := f.alloc(frames+(header+7)/8), len(f.frames), true
		for i := range frames {
			frame := memory.Frame{
				Offset: r.words.load(payload(at, rest, 2*i)),
				Bytes:  r.words.load(payload(at, rest, 2*i+1)),
			}
			inside = inside && (frame.Bytes == 0 || frame.Within(size))
			own[i], f.frames = frame.Bytes, append(f.frames, frame)
		}
		for i := frames; i < len(own); i++ {
			own[i] = r.words.load(payload(at, rest, frames+i))
		}
		same := atomic.LoadUint64(&w[0]) == seq
		if same && inside {
			h.Ref, h.Header, h.FrameBytes = k, bytesOf(own[frames:], header), own[:frames:frames]
			return seq, true
		}
		f.frames = f.frames[:first]
		if same {
			return 0, false
		}
	}
	return 0, false
}
