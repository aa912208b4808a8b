package board

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

// View is a reader's side: a board that it reads, and slots of its own. Its methods
// may be called from any goroutine.
type View struct {
	words words
	slots words
	mask  uint64
	// lines are those of the entries, in words.
	lines []line
	next  atomic.Uint32
}

// line is that of an entry.
type line [lineWords]uint64

// Open maps what a lender passed. The descriptors stay the caller's.
func Open(board, seat *os.File) (*View, error) {
	v := &View{}
	var err error
	if v.words, err = mapFile(board, 0, false); err != nil {
		return nil, err
	}
	if v.slots, err = mapFile(seat, seatBytes, true); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	n := v.words.load(1)
	if v.words.load(0) != magic || n == 0 || n&(n-1) != 0 || n > maxFileBytes || fileBytes(n) != int64(len(v.words.data)) {
		return nil, errors.Join(fmt.Errorf("%w: %#x with %d buckets in %d bytes", ErrNotABoard, v.words.load(0), n, len(v.words.data)), v.Close())
	}
	v.words.populate(n, unix.MADV_POPULATE_READ)
	v.mask = n - 1
	v.lines = unsafe.Slice((*line)(unsafe.Pointer(v.words.at(entryAt(n, 0)))), n*ways)
	return v, nil
}

// Close ends the mappings. REQUIRES: no glance is out.
func (v *View) Close() error {
	v.lines = nil
	return errors.Join(v.words.unmap(), v.slots.unmap())
}

// Glance is a slot that was taken: what is found under it stays what it is until it
// is given back, unless Held says otherwise. Its methods belong to one goroutine.
type Glance struct {
	view *View
	slot int
	word uint64
}

// Look takes a slot; ok is false if all are taken.
func (v *View) Look() (g Glance, ok bool) {
	first := int(v.next.Add(1))
	for i := range slots {
		slot := (first + i) % slots
		w := v.slots.load(slotAt(slot))
		if w&states != idle {
			continue
		}
		if word := (w &^ states) + (states + 1) | active; v.slots.swap(slotAt(slot), w, word) {
			return Glance{view: v, slot: slot, word: word}, true
		}
	}
	return Glance{}, false
}

// Held says whether all that was found is what it was until now.
func (g Glance) Held() bool { return g.view.slots.load(slotAt(g.slot)) == g.word }

// End gives the slot back, and says whether all that was found was what it was until
// now; bytes are what was read.
func (g Glance) End(bytes uint64) (held bool) {
	s := &g.view.slots
	atomic.AddUint64(s.at(slotAt(g.slot)+1), bytes)
	held = s.swap(slotAt(g.slot), g.word, g.word&^states|idle)
	if !held {
		// If it was revoked, it can be taken again. If it was closed, it stays so.
		s.swap(slotAt(g.slot), g.word&^states|revoked, g.word&^states|idle)
	}
	return held
}

// Found are lists that hold what was looked up.
type Found struct {
	// room is for the sizes of frames and the headers of more objects: whoever got what was before
	// it keeps that. frames are the finder's, to be used again.
	room   []uint64
	frames []memory.Frame
	// left is for how many objects more there should be room, chunk how much there was at last.
	left, chunk int
	// like is what the object of one frame before was like.
	like likeness
	// last is the entry that was guessed last, of FindAll; inRow: it was the next to the one before.
	last  uint64
	inRow bool
}

// Begin makes the lists empty, for about so many objects. REQUIRES: nobody uses the
// frames of what was found before.
func (f *Found) Begin(objects int) {
	*f = Found{frames: f.frames[:0], left: objects}
}

// There is little room at first, for objects are often alike, and then ever more, up to mostWords at a
// time: what is larger is not had from the lists of sizes that each processor of the runtime has.
const (
	leastWords = 64
	mostWords  = 2048
)

// take is room for the words of an object; those that will follow are perhaps like it.
func (f *Found) take(words int) []uint64 {
	if len(f.room) < words {
		f.chunk = min(max(2*f.chunk, leastWords), mostWords)
		f.room = make([]uint64, max(words, min(words*f.left, f.chunk)))
	}
	own := f.room[:words:words]
	f.room = f.room[words:]
	return own
}

// bytesOf are the first so many bytes of words.
func bytesOf(words []uint64, bytes int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes)
}

// Object is one that was found. Header and Sizes may be kept, with those beside them;
// Frames are good until Found is used for others.
type Object struct {
	Header []byte
	Sizes  []uint64
	Frames []memory.Frame
}

// Find looks an object up, whose frames must lie in a memory of size bytes.
func (g Glance) Find(k transfer.Ref, size uint64, f *Found) (o Object, ok bool) {
	at, _, o := g.view.find(k, size, f, false)
	return o, at > 0
}

// find returns where the entry of an object begins, and its sequence; 0 if there is none.
func (v *View) find(k transfer.Ref, size uint64, f *Found, arriving bool) (at int, seq uint64, o Object) {
	w := &v.words
	tag := mix(uint64(k.Task), uint32(k.Generation))
	one, two := buckets(tag, v.mask)
	for _, bucket := range [2]uint64{one, two} {
		index := indexAt(bucket)
		for i := range ways {
			if entry, maybe := entryOf(w.load(index+i), tag, (v.mask+1)*ways); maybe {
				if seq, o, ok := v.read(entry, k, size, f, arriving); ok {
					return entryAt(v.mask+1, entry), seq, o
				}
			}
		}
	}
	return 0, 0, Object{}
}

// read takes an entry if it is the key's, and whole, or arriving is enough.
func (v *View) read(entry uint64, k transfer.Ref, size uint64, f *Found, arriving bool) (seq uint64, o Object, ok bool) {
	at, rest := entryAt(v.mask+1, entry), restAt(v.mask+1, entry)
	w := v.words.list[at : at+lineWords]
	for range 100 {
		seq := atomic.LoadUint64(&w[0])
		if seq&1 != 0 {
			// Its writer was interrupted, or is about to be through.
			runtime.Gosched()
			continue
		}
		if k.Task == 0 || atomic.LoadUint64(&w[1]) != uint64(k.Task) {
			return 0, Object{}, false // a free entry is nobody's
		}
		shape := atomic.LoadUint64(&w[2])
		frames, header := shapeOf(shape)
		if uint32(shape) != uint32(k.Generation) || frames > maxFrames || frames*16+header > MaxPayload ||
			!arriving && atomic.LoadUint64(&w[progressAt]) != whole {
			return 0, Object{}, false // or it is being rewritten, for another one
		}
		own, places, inside := f.take(frames+(header+7)/8), len(f.frames), true
		for i := range frames {
			frame := memory.Frame{
				Offset: v.words.load(payload(at, rest, 2*i)),
				Bytes:  v.words.load(payload(at, rest, 2*i+1)),
			}
			inside = inside && (frame.Bytes == 0 || frame.Within(size))
			own[i], f.frames = frame.Bytes, append(f.frames, frame)
		}
		for i := frames; i < len(own); i++ {
			own[i] = v.words.load(payload(at, rest, frames+i))
		}
		same := atomic.LoadUint64(&w[0]) == seq
		if same && inside {
			return seq, Object{
				Header: bytesOf(own[frames:], header), Sizes: own[:frames:frames], Frames: f.frames[places:len(f.frames):len(f.frames)],
			}, true
		}
		f.frames = f.frames[:places]
		if same {
			return 0, Object{}, false
		}
	}
	return 0, Object{}, false
}
