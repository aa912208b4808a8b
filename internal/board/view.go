package board

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// View is a reader's side: a board that it reads, and slots of its own. Its methods
// may be called from any goroutine.
type View struct {
	words words
	slots words
	mask  uint64
	next  atomic.Uint32
}

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
	v.mask = n - 1
	return v, nil
}

// Close ends the mappings. REQUIRES: no glance is out.
func (v *View) Close() error { return errors.Join(v.words.unmap(), v.slots.unmap()) }

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
		// It was revoked. The next one must not look like this one to anybody.
		s.store(slotAt(g.slot), (g.word&^states)+(states+1)|idle)
	}
	return held
}

// Found are objects that were looked up. Each takes a part of the lists, which the
// finder owns: who keeps a header keeps those beside it.
type Found struct {
	// Headers, Sizes and Frames of all objects, one behind the other.
	Headers []byte
	Sizes   []uint64
	Frames  []memory.Frame
}

// Grow makes room for so many objects of one frame and a short header.
func (f *Found) Grow(objects int) {
	f.Headers = make([]byte, 0, objects*48)
	f.Sizes = make([]uint64, 0, objects)
	f.Frames = make([]memory.Frame, 0, objects)
}

// Object is one that was found.
type Object struct {
	Header []byte
	Sizes  []uint64
	Frames []memory.Frame
}

// Find looks an object up in the memory of size bytes. What it returns are parts of
// what it appended to f.
func (g Glance) Find(k transfer.Ref, size uint64, f *Found) (o Object, ok bool) {
	v := g.view
	w := &v.words
	tag := mix(uint64(k.Task), uint32(k.Generation))
	one, two := buckets(tag, v.mask)
	for _, bucket := range [2]uint64{one, two} {
		index := indexAt(bucket)
		for i := range ways {
			if w.load(index+i) == tag {
				if o, ok = v.read(entryAt(v.mask+1, bucket*ways+uint64(i)), k, size, f); ok {
					return o, true
				}
			}
		}
	}
	return Object{}, false
}

// read takes an entry if it is the key's, and whole.
func (v *View) read(at int, k transfer.Ref, size uint64, f *Found) (o Object, ok bool) {
	w := v.words.list[at : at+entryWords]
	for range 100 {
		seq := atomic.LoadUint64(&w[0])
		if seq&1 != 0 {
			// Its writer was interrupted, or is about to be through.
			runtime.Gosched()
			continue
		}
		if atomic.LoadUint64(&w[1]) != uint64(k.Task) {
			return Object{}, false
		}
		shape := atomic.LoadUint64(&w[2])
		frames, header := int(shape>>32&0xFF), int(shape>>40)
		if uint32(shape) != uint32(k.Generation) || frames > maxFrames || frames*16+header > MaxPayload {
			return Object{}, false // or it is being rewritten, for another one
		}
		sizes, places, headers := len(f.Sizes), len(f.Frames), len(f.Headers)
		from := payloadAt
		for range frames {
			frame := memory.Frame{Offset: atomic.LoadUint64(&w[from]), Bytes: atomic.LoadUint64(&w[from+1])}
			f.Sizes, f.Frames = append(f.Sizes, frame.Bytes), append(f.Frames, frame)
			from += 2
		}
		for n := 0; n < header; n += 8 {
			f.Headers = binary.LittleEndian.AppendUint64(f.Headers, atomic.LoadUint64(&w[from]))
			from++
		}
		f.Headers = f.Headers[:headers+header]
		if atomic.LoadUint64(&w[0]) == seq {
			o = Object{Header: f.Headers[headers:len(f.Headers):len(f.Headers)], Sizes: f.Sizes[sizes:len(f.Sizes):len(f.Sizes)], Frames: f.Frames[places:len(f.Frames):len(f.Frames)]}
			ok = true
			for _, frame := range o.Frames {
				ok = ok && (frame.Bytes == 0 || frame.Within(size))
			}
		}
		if ok {
			return o, true
		}
		f.Sizes, f.Frames, f.Headers = f.Sizes[:sizes], f.Frames[:places], f.Headers[:headers]
		if atomic.LoadUint64(&w[0]) == seq {
			return Object{}, false // frames that do not lie in the memory
		}
	}
	return Object{}, false
}
