package objindex

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// prefetchKeys is the number of keys whose entries are located before the first entry is read. The
// processor fetches the cache lines of all of them in parallel.
const prefetchKeys = 32

// Sum counts the objects that one call found, the number of them with exactly one frame, and their
// bytes.
type Sum struct {
	Objects, Single int
	Bytes           uint64
}

// FindAll is Find for many objects. It sets heads[i] for keys[i], with a zero Ref if the object was
// not found. frames are the frames of all found objects in order, valid until Found is used again.
//
// Objects that were published one after the other have neighbouring entries and are often looked up
// in the same order. So while the last keys were found in neighbouring entries, FindAll predicts
// that the next keys are in the entries that follow. Otherwise it takes the prediction from the
// hash index. A wrong prediction cannot cause a wrong result: the entry itself names its key, which
// is checked before and after the read, and if the key differs the index is searched as in Find.
func (g ReadGuard) FindAll(keys []transfer.Ref, size uint64, f *Found, heads []transfer.Head) (frames []memory.Frame, sum Sum) {
	heads = heads[:len(keys)]
	f.frames = f.frames[:0]
	v := g.reader
	var list [prefetchKeys]*line
	for len(keys) > 0 {
		n := min(len(keys), prefetchKeys)
		at, sequential := list[:n], f.sequential && f.last+uint64(n) < uint64(len(v.lines))
		if sequential {
			lines := v.lines[f.last+1:][:len(at)]
			for i := range at {
				at[i] = &lines[i]
			}
			done := v.readSome(keys[:n], at, size, f, heads, &sum)
			f.last, f.sequential, n = f.last+uint64(done), done == n, done
		} else {
			v.predict(keys[:n], at, f)
			v.readPredicted(keys[:n], at, size, f, heads, &sum)
		}
		keys, heads = keys[n:], heads[n:]
	}
	return f.frames, sum
}

// Sentinels for keys without a predicted entry: absent (not in the index) and unknown (the reader
// must search the index). They are never written.
var absent, unknown line

// predict determines in which entry each object should be. A key does not depend on the previous
// one except through branch prediction, so the cache lines of many keys are fetched in parallel.
func (r *Reader) predict(keys []transfer.Ref, at []*line, f *Found) {
	list, lines, mask := r.words.list, r.lines, r.mask
	entries := uint64(len(lines))
	at = at[:len(keys)]
	last, sequential := f.last, false
	for i := range keys {
		task, generation := uint64(keys[i].Task), uint32(keys[i].Generation)
		n := last + 1
		if !sequential || n >= entries || atomic.LoadUint64(&lines[n][1]) != task {
			tag, ok := mix(task, generation), false
			if n, ok = entryOf(atomic.LoadUint64(&list[indexAt(tag>>1&mask)+wayOf(tag)]), tag, entries); !ok {
				match, a, b := r.matches(tag)
				if match == 0 {
					at[i], sequential = &absent, false
					continue
				}
				// NB: the word may have changed since it matched.
				n, ok = entryOf(wordOf(match, a, b), tag, entries)
			}
			if !ok || atomic.LoadUint64(&lines[n][1]) != task {
				at[i], sequential = &unknown, false
				continue
			}
		}
		at[i] = &lines[n]
		sequential, last = n == last+1, n
	}
	f.last, f.sequential = last, sequential
}

// readPredicted reads the predicted entries. For each key that readSome does not handle it uses the
// general way: the predicted entry if there is one, then the index.
func (r *Reader) readPredicted(keys []transfer.Ref, at []*line, size uint64, f *Found, heads []transfer.Head, sum *Sum) {
	for {
		n := r.readSome(keys, at, size, f, heads, sum)
		if n == len(keys) {
			return
		}
		k, h, predicted := keys[n], &heads[n], at[n]
		keys, at, heads = keys[n+1:], at[n+1:], heads[n+1:]
		var o Object
		ok := false
		if predicted != &absent && predicted != &unknown {
			_, o, ok = r.read(r.number(predicted), k, size, f, false)
		}
		if !ok && predicted != &absent {
			at, _, other := r.find(k, size, f, false)
			o, ok = other, at > 0
		}
		if !ok {
			h.Ref = transfer.Ref{}
			continue
		}
		h.Ref, h.Header, h.FrameBytes = k, o.Header, o.Sizes
		sum.Objects, sum.Bytes = sum.Objects+1, sum.Bytes+h.Bytes()
		if len(o.Sizes) == 1 {
			sum.Single++
		}
	}
}

// number returns the entry number of a line.
func (r *Reader) number(w *line) uint64 {
	return uint64(uintptr(unsafe.Pointer(w))-uintptr(unsafe.Pointer(unsafe.SliceData(r.lines)))) / (lineWords * 8)
}

// readSome handles the leading keys that readSingles can read, and returns their number.
func (r *Reader) readSome(keys []transfer.Ref, at []*line, size uint64, f *Found, heads []transfer.Head, sum *Sum) (n int) {
	f.frames = slices.Grow(f.frames, len(keys))
	n, bytes := r.readSingles(keys, at, size, f, f.frames[len(f.frames):len(f.frames)+len(keys)], heads)
	f.frames, f.left = f.frames[:len(f.frames)+n], f.left-n
	sum.Objects, sum.Single, sum.Bytes = sum.Objects+n, sum.Single+n, sum.Bytes+bytes
	return n
}

// sharedHeader holds the data that identical single-frame objects share: the frame size and the
// header.
type sharedHeader struct {
	// words are the size and the header, at least as many words as fit in a line.
	words  *[inLine - 1]uint64
	header uint64
}

// noHeader is the initial sharedHeader. It matches no object: objects of size 0 are not shared. It
// is never written.
var noHeader [inLine - 1]uint64

// readSingles reads leading entries as long as each one holds its key, is whole, and has exactly
// one non-empty frame, as most have. It returns their number and bytes. The objects of a batch are
// often alike; then they share one copy of size and header. Writing to new memory that is in no
// cache, and collecting it later, costs more than the comparison.
func (r *Reader) readSingles(keys []transfer.Ref, at []*line, size uint64, f *Found, frames []memory.Frame, heads []transfer.Head) (n int, taken uint64) {
	at, frames, heads = at[:len(keys)], frames[:len(keys)], heads[:len(keys)]
	own, length := f.shared.words, f.shared.header
	if own == nil {
		own = &noHeader
	}
	for i := range keys {
		k, w := &keys[i], at[i]
		seq, shape := atomic.LoadUint64(&w[0]), atomic.LoadUint64(&w[2])
		header := shape >> 40
		offset, bytes := atomic.LoadUint64(&w[payloadAt]), atomic.LoadUint64(&w[payloadAt+1])
		one, two := atomic.LoadUint64(&w[payloadAt+2]), atomic.LoadUint64(&w[payloadAt+3])
		differs := header ^ length | own[0] ^ bytes | own[1] ^ one | own[2] ^ two
		if header > lineHeader || differs != 0 {
			// NB: this check comes first: a sentinel line is not part of the index, so it has no
			// entry number for headerOf.
			if header > MaxPayload-16 || k.Task == 0 || atomic.LoadUint64(&w[1]) != uint64(k.Task) {
				return i, taken
			}
			// NB: the entry may change while it is copied. Then a mixture is cached, which does no
			// harm: an object shares it only if it is equal to it.
			own = r.headerOf(w, header, own, differs, [...]uint64{bytes, one, two}, f)
			length = header
			f.shared = sharedHeader{own, length}
		}
		odd := seq&1 | (atomic.LoadUint64(&w[1]) ^ uint64(k.Task)) | (shape<<24>>24 ^ (1<<32 | uint64(uint32(k.Generation)))) |
			(atomic.LoadUint64(&w[progressAt]) ^ whole) | (atomic.LoadUint64(&w[0]) ^ seq)
		if odd != 0 || k.Task == 0 || bytes-1 >= size || offset > size-bytes {
			return i, taken
		}
		h, frame := &heads[i], &frames[i]
		frame.Offset, frame.Bytes = offset, bytes
		h.Ref.Task, h.Ref.Generation = k.Task, k.Generation
		h.Header = unsafe.Slice((*byte)(unsafe.Pointer(&own[1])), header)
		h.FrameBytes = own[:1:1]
		taken += bytes
	}
	return len(keys), taken
}

// headerOf returns the shared header of an object whose line has been read. It returns the previous
// object's shared header if neither the line (differs) nor the rest is different, otherwise a new
// one.
func (r *Reader) headerOf(w *line, header uint64, before *[inLine - 1]uint64, differs uint64, first [inLine - 1]uint64, f *Found) *[inLine - 1]uint64 {
	words := max(1+int(header+7)/8, len(first))
	rest := r.words.list[restAt(r.mask+1, r.number(w))+inLine:][:words-len(first)]
	if differs == 0 {
		same := true
		for i, word := range unsafe.Slice(&before[0], words)[len(first):] {
			same = same && atomic.LoadUint64(&rest[i]) == word
		}
		if same {
			return before
		}
	}
	own := f.alloc(words)
	copy(own, first[:])
	for i := range rest {
		own[len(first)+i] = atomic.LoadUint64(&rest[i])
	}
	return (*[inLine - 1]uint64)(own)
}

// matches returns a bit for each index word that may belong to the tag: the words of the first
// bucket a in the lower 8 bits, those of the second bucket b above. It uses no branch per word,
// because the matching position cannot be predicted.
func (r *Reader) matches(tag uint64) (match uint64, a, b *[ways]uint64) {
	one, two := buckets(tag, r.mask)
	a, b = r.bucket(one), r.bucket(two)
	return matchBit(&a[0], tag) | matchBit(&a[1], tag)<<1 | matchBit(&a[2], tag)<<2 | matchBit(&a[3], tag)<<3 |
		matchBit(&a[4], tag)<<4 | matchBit(&a[5], tag)<<5 | matchBit(&a[6], tag)<<6 | matchBit(&a[7], tag)<<7 |
		matchBit(&b[0], tag)<<8 | matchBit(&b[1], tag)<<9 | matchBit(&b[2], tag)<<10 | matchBit(&b[3], tag)<<11 |
		matchBit(&b[4], tag)<<12 | matchBit(&b[5], tag)<<13 | matchBit(&b[6], tag)<<14 | matchBit(&b[7], tag)<<15, a, b
}

// wordOf returns the index word of the lowest bit of a match.
func wordOf(match uint64, a, b *[ways]uint64) uint64 {
	i := bits.TrailingZeros64(match)
	if i >= ways {
		a = b
	}
	return atomic.LoadUint64(&a[i%ways])
}

func (r *Reader) bucket(n uint64) *[ways]uint64 {
	at := indexAt(n)
	return (*[ways]uint64)(r.words.list[at : at+ways])
}

// matchBit returns 1 if an index word may belong to the tag, 0 otherwise.
func matchBit(word *uint64, tag uint64) uint64 {
	differ := (atomic.LoadUint64(word) ^ tag) >> numberBits
	return (differ - 1) >> 63
}
