package objindex

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// ahead is the number of keys whose entries are located before the first entry is read. The
// processor fetches the cache lines of all of them in parallel.
const ahead = 32

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
// in the same order. So while the last keys were found in neighbouring entries, FindAll guesses
// that the next keys are in the entries that follow. Otherwise it takes the guess from the hash
// index. A wrong guess cannot cause a wrong result: the entry itself names its key, which is
// checked before and after the read, and if the key differs the index is searched as in Find.
func (g Glance) FindAll(keys []transfer.Ref, size uint64, f *Found, heads []transfer.Head) (frames []memory.Frame, sum Sum) {
	heads = heads[:len(keys)]
	f.frames = f.frames[:0]
	v := g.view
	var list [ahead]*line
	for len(keys) > 0 {
		n := min(len(keys), ahead)
		at, row := list[:n], f.inRow && f.last+uint64(n) < uint64(len(v.lines))
		if row {
			lines := v.lines[f.last+1:][:len(at)]
			for i := range at {
				at[i] = &lines[i]
			}
			done := v.takeSome(keys[:n], at, size, f, heads, &sum)
			f.last, f.inRow, n = f.last+uint64(done), done == n, done
		} else {
			v.guess(keys[:n], at, f)
			v.take(keys[:n], at, size, f, heads, &sum)
		}
		keys, heads = keys[n:], heads[n:]
	}
	return f.frames, sum
}

// Sentinels for keys without a guessed entry: nowhere (not in the index) and anywhere (unknown:
// search the index). They are never written.
var nowhere, anywhere line

// guess determines in which entry each object should be. A key does not depend on the previous one
// except through branch prediction, so the cache lines of many keys are fetched in parallel.
func (v *View) guess(keys []transfer.Ref, at []*line, f *Found) {
	list, lines, mask := v.words.list, v.lines, v.mask
	entries := uint64(len(lines))
	at = at[:len(keys)]
	last, inRow := f.last, false
	for i := range keys {
		task, generation := uint64(keys[i].Task), uint32(keys[i].Generation)
		n := last + 1
		if !inRow || n >= entries || atomic.LoadUint64(&lines[n][1]) != task {
			tag, ok := mix(task, generation), false
			if n, ok = entryOf(atomic.LoadUint64(&list[indexAt(tag>>1&mask)+wayOf(tag)]), tag, entries); !ok {
				match, a, b := v.matches(tag)
				if match == 0 {
					at[i], inRow = &nowhere, false
					continue
				}
				// NB: the word may have changed since it matched.
				n, ok = entryOf(wordOf(match, a, b), tag, entries)
			}
			if !ok || atomic.LoadUint64(&lines[n][1]) != task {
				at[i], inRow = &anywhere, false
				continue
			}
		}
		at[i] = &lines[n]
		inRow, last = n == last+1, n
	}
	f.last, f.inRow = last, inRow
}

// take reads the guessed entries. For each key that takeSome does not handle it uses the general
// way: the guessed entry if there is one, then the index.
func (v *View) take(keys []transfer.Ref, at []*line, size uint64, f *Found, heads []transfer.Head, sum *Sum) {
	for {
		n := v.takeSome(keys, at, size, f, heads, sum)
		if n == len(keys) {
			return
		}
		k, h, guessed := keys[n], &heads[n], at[n]
		keys, at, heads = keys[n+1:], at[n+1:], heads[n+1:]
		var o Object
		ok := false
		if guessed != &nowhere && guessed != &anywhere {
			_, o, ok = v.read(v.number(guessed), k, size, f, false)
		}
		if !ok && guessed != &nowhere {
			at, _, other := v.find(k, size, f, false)
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
func (v *View) number(w *line) uint64 {
	return uint64(uintptr(unsafe.Pointer(w))-uintptr(unsafe.Pointer(unsafe.SliceData(v.lines)))) / (lineWords * 8)
}

// takeSome handles the leading keys that takeSingle can read, and returns their number.
func (v *View) takeSome(keys []transfer.Ref, at []*line, size uint64, f *Found, heads []transfer.Head, sum *Sum) (n int) {
	f.frames = slices.Grow(f.frames, len(keys))
	n, bytes := v.takeSingle(keys, at, size, f, f.frames[len(f.frames):len(f.frames)+len(keys)], heads)
	f.frames, f.left = f.frames[:len(f.frames)+n], f.left-n
	sum.Objects, sum.Single, sum.Bytes = sum.Objects+n, sum.Single+n, sum.Bytes+bytes
	return n
}

// likeness holds the data that identical single-frame objects share: the frame size and the header.
type likeness struct {
	// words are the size and the header, at least as many words as fit in a line.
	words  *[inLine - 1]uint64
	header uint64
}

// nothing is the initial likeness. It matches no object: objects of size 0 are not shared. It is
// never written.
var nothing [inLine - 1]uint64

// takeSingle reads leading entries as long as each one holds its key, is whole, and has exactly one
// non-empty frame, as most have. It returns their number and bytes. The objects of a batch are
// often alike; then they share one copy of size and header. Writing to new memory that is in no
// cache, and collecting it later, costs more than the comparison.
func (v *View) takeSingle(keys []transfer.Ref, at []*line, size uint64, f *Found, frames []memory.Frame, heads []transfer.Head) (n int, taken uint64) {
	at, frames, heads = at[:len(keys)], frames[:len(keys)], heads[:len(keys)]
	own, length := f.like.words, f.like.header
	if own == nil {
		own = &nothing
	}
	for i := range keys {
		k, w := &keys[i], at[i]
		seq, shape := atomic.LoadUint64(&w[0]), atomic.LoadUint64(&w[2])
		header := shape >> 40
		offset, bytes := atomic.LoadUint64(&w[payloadAt]), atomic.LoadUint64(&w[payloadAt+1])
		one, two := atomic.LoadUint64(&w[payloadAt+2]), atomic.LoadUint64(&w[payloadAt+3])
		differs := header ^ length | own[0] ^ bytes | own[1] ^ one | own[2] ^ two
		if header > lineHeader || differs != 0 {
			// NB: this check comes first: a sentinel line is not part of the board, so it has no
			// entry number for takeOwn.
			if header > MaxPayload-16 || k.Task == 0 || atomic.LoadUint64(&w[1]) != uint64(k.Task) {
				return i, taken
			}
			// NB: the entry may change while it is copied. Then a mixture is cached, which does no
			// harm: an object shares it only if it is equal to it.
			own = v.takeOwn(w, header, own, differs, [...]uint64{bytes, one, two}, f)
			length = header
			f.like = likeness{own, length}
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

// takeOwn returns the likeness of an object whose line has been read. It returns the previous
// object's likeness if neither the line (differs) nor the rest is different, otherwise a new one.
func (v *View) takeOwn(w *line, header uint64, before *[inLine - 1]uint64, differs uint64, first [inLine - 1]uint64, f *Found) *[inLine - 1]uint64 {
	words := max(1+int(header+7)/8, len(first))
	rest := v.words.list[restAt(v.mask+1, v.number(w))+inLine:][:words-len(first)]
	if differs == 0 {
		same := true
		for i, word := range unsafe.Slice(&before[0], words)[len(first):] {
			same = same && atomic.LoadUint64(&rest[i]) == word
		}
		if same {
			return before
		}
	}
	own := f.take(words)
	copy(own, first[:])
	for i := range rest {
		own[len(first)+i] = atomic.LoadUint64(&rest[i])
	}
	return (*[inLine - 1]uint64)(own)
}

// matches returns a bit for each index word that may belong to the tag: the words of the first
// bucket a in the lower 8 bits, those of the second bucket b above. It uses no branch per word,
// because the matching position cannot be predicted.
func (v *View) matches(tag uint64) (match uint64, a, b *[ways]uint64) {
	one, two := buckets(tag, v.mask)
	a, b = v.bucket(one), v.bucket(two)
	return alike(&a[0], tag) | alike(&a[1], tag)<<1 | alike(&a[2], tag)<<2 | alike(&a[3], tag)<<3 |
		alike(&a[4], tag)<<4 | alike(&a[5], tag)<<5 | alike(&a[6], tag)<<6 | alike(&a[7], tag)<<7 |
		alike(&b[0], tag)<<8 | alike(&b[1], tag)<<9 | alike(&b[2], tag)<<10 | alike(&b[3], tag)<<11 |
		alike(&b[4], tag)<<12 | alike(&b[5], tag)<<13 | alike(&b[6], tag)<<14 | alike(&b[7], tag)<<15, a, b
}

// wordOf returns the index word of the lowest bit of a match.
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

// alike returns 1 if an index word may belong to the tag, 0 otherwise.
func alike(word *uint64, tag uint64) uint64 {
	differ := (atomic.LoadUint64(word) ^ tag) >> numberBits
	return (differ - 1) >> 63
}
