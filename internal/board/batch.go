package board

import (
	"encoding/binary"
	"math/bits"
	"runtime"
	"sync/atomic"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// FindAll is Find for many objects: heads has those that are found, each in the place of its
// key, and a zero Ref for others. frames are theirs, one behind the other, and are good until
// Found is used for others; bytes is how many they have.
//
// What was shown one after the other is often looked up so, and lies side by side. So
// where two keys in a row were found in neighbouring entries, the third is looked for in
// the next one before the index is asked. That changes nothing of what finding means: an
// entry says itself whose it is, before and after it was read.
func (g Glance) FindAll(keys []transfer.Ref, size uint64, f *Found, heads []transfer.Head) (frames []memory.Frame, bytes uint64) {
	v := g.view
	heads = heads[:len(keys)]
	// Lists are the function's own while it runs: to write pointers costs far more into
	// memory that the collector looks at.
	headers, sizes, frames := f.headers, f.sizes, f.frames[:0]
	last, inRow := f.last, f.inRow
	for i := range keys {
		k := &keys[i]
		heads[i].Ref = transfer.Ref{}
		if k.Task == 0 || k.Generation == 0 {
			continue
		}
		var entry entry
		found := false
		if inRow && last+1 < (v.mask+1)*ways {
			last++
			found = v.look(last, k, &entry)
		}
		if !found {
			var n uint64
			if n, found = v.seek(k, &entry); !found {
				inRow = false
				continue
			}
			inRow, last = n == last+1, n
		}
		w := entry.words
		if cap(headers)-len(headers) < (entry.header+7)&^7 {
			headers = make([]byte, 0, (entry.header+7)&^7*max(f.left, 1))
		}
		if cap(sizes)-len(sizes) < entry.frames {
			sizes = make([]uint64, 0, entry.frames*max(f.left, 1))
		}
		f.left--
		first, firstSize, firstFrame := len(headers), len(sizes), len(frames)
		from, inside, together := payloadAt, true, uint64(0)
		for range entry.frames {
			frame := memory.Frame{Offset: atomic.LoadUint64(&w[from]), Bytes: atomic.LoadUint64(&w[from+1])}
			inside = inside && (frame.Bytes == 0 || frame.Within(size))
			together += frame.Bytes
			sizes, frames = append(sizes, frame.Bytes), append(frames, frame)
			from += 2
		}
		for n := 0; n < entry.header; n += 8 {
			headers = binary.LittleEndian.AppendUint64(headers, atomic.LoadUint64(&w[from]))
			from++
		}
		if atomic.LoadUint64(&w[0]) != entry.seq || !inside {
			headers, sizes, frames = headers[:first], sizes[:firstSize], frames[:firstFrame]
			inRow = false
			continue // it is being rewritten: nobody need find it any more, or is not to be believed
		}
		h := &heads[i]
		h.Ref = *k
		h.Header = headers[first : first+entry.header : first+entry.header]
		h.FrameBytes = sizes[firstSize:len(sizes):len(sizes)]
		bytes += together
	}
	f.headers, f.sizes, f.frames, f.last, f.inRow = headers, sizes, frames, last, inRow
	return frames, bytes
}

// entry is one that was found to be a key's, and whole, at some sequence.
type entry struct {
	words          *[entryWords]uint64
	seq            uint64
	frames, header int
}

// look says whether an entry is a key's, and whole.
func (v *View) look(n uint64, k *transfer.Ref, into *entry) bool {
	at := entryAt(v.mask+1, n)
	w := (*[entryWords]uint64)(v.words.list[at : at+entryWords])
	for range 100 {
		seq := atomic.LoadUint64(&w[0])
		if atomic.LoadUint64(&w[1]) != uint64(k.Task) {
			return false
		}
		if seq&1 != 0 {
			// Its writer was interrupted, or is about to be through.
			runtime.Gosched()
			continue
		}
		shape := atomic.LoadUint64(&w[2])
		frames, header := int(shape>>32&0xFF), int(shape>>40)
		if uint32(shape) != uint32(k.Generation) || frames > maxFrames || frames*16+header > MaxPayload || atomic.LoadUint64(&w[progressAt]) != whole {
			return false
		}
		*into = entry{w, seq, frames, header}
		return true
	}
	return false
}

// seek finds an entry by the index.
func (v *View) seek(k *transfer.Ref, into *entry) (n uint64, ok bool) {
	tag := mix(uint64(k.Task), uint32(k.Generation))
	match, a, b := v.matches(tag)
	for ; match != 0; match &= match - 1 {
		// NB: it may be another word by now.
		n, maybe := entryOf(wordOf(match, a, b), tag, (v.mask+1)*ways)
		if maybe && v.look(n, k, into) {
			return n, true
		}
	}
	return 0, false
}

// matches are the words of the index that may be a tag's, as bits, those of its first bucket
// below those of the other one. There is no branch for each word: which of them it is cannot
// be predicted.
func (v *View) matches(tag uint64) (match uint64, a, b *[ways]uint64) {
	one, two := buckets(tag, v.mask)
	a, b = v.bucket(one), v.bucket(two)
	return alike(&a[0], tag) | alike(&a[1], tag)<<1 | alike(&a[2], tag)<<2 | alike(&a[3], tag)<<3 |
		alike(&a[4], tag)<<4 | alike(&a[5], tag)<<5 | alike(&a[6], tag)<<6 | alike(&a[7], tag)<<7 |
		alike(&b[0], tag)<<8 | alike(&b[1], tag)<<9 | alike(&b[2], tag)<<10 | alike(&b[3], tag)<<11 |
		alike(&b[4], tag)<<12 | alike(&b[5], tag)<<13 | alike(&b[6], tag)<<14 | alike(&b[7], tag)<<15, a, b
}

// wordOf is the word of the lowest bit of a match.
func wordOf(match uint64, a, b *[ways]uint64) uint64 {
	i := bits.TrailingZeros64(match)
	if i >= ways {
		a = b
	}
	return atomic.LoadUint64(&a[i%ways])
}

func (v *View) bucket(n uint64) *[ways]uint64 {
	at := indexAt(n)
	return (*[ways]uint64)(v.words.list[at : at+ways])
}

// alike is 1 if a word of the index may be that of a tag, 0 otherwise.
func alike(word *uint64, tag uint64) uint64 {
	differ := (atomic.LoadUint64(word) ^ tag) >> numberBits
	return (differ - 1) >> 63
}
