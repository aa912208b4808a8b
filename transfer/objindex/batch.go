package objindex

import (
	"slices"
	"sync/atomic"

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
func (g ReadGuard) FindAll(keys []transfer.Ref, size uint64, f *Found, heads []transfer.Head) (frames []memory.Frame, sum Sum) {
	heads = heads[:len(keys)]
	f.frames = f.frames[:0]
	var list [prefetchKeys]uint64
	for len(keys) > 0 {
		some := keys[:min(len(keys), prefetchKeys)]
		keys = keys[len(some):]
		entries := list[:len(some)]
		g.reader.locate(some, entries)
		g.reader.readLocated(some, entries, size, f, heads, &sum)
		heads = heads[len(some):]
	}
	return f.frames, sum
}

// locate sets entries[i] to the entry in which keys[i] should be according to the hash index, or to
// the number of entries if there is none.
func (r *Reader) locate(keys []transfer.Ref, entries []uint64) {
	entries = entries[:len(keys)]
	list, mask, none := r.words.list, r.mask, uint64(len(r.lines))
	for i := range keys {
		tag := mix(uint64(keys[i].Task), uint32(keys[i].Generation))
		n, ok := entryOf(atomic.LoadUint64(&list[indexAt(tag>>1&mask)+wayOf(tag)]), tag, none)
		if !ok {
			n = r.probe(tag)
		}
		entries[i] = n
	}
	for _, n := range entries {
		if n < none {
			atomic.LoadUint64(&r.lines[n][0]) // prefetch
		}
	}
}

// probe looks for a tag in all places where it may be. It returns the number of entries if the tag
// is not there.
func (r *Reader) probe(tag uint64) (entry uint64) {
	none := uint64(len(r.lines))
	one, two := buckets(tag, r.mask)
	for _, bucket := range [2]uint64{one, two} {
		for i := range ways {
			if entry, ok := entryOf(r.words.load(indexAt(bucket)+i), tag, none); ok {
				return entry
			}
		}
	}
	return none
}

// oneHeader is the frame size and the header of an object whose payload is in its line. Objects
// with equal ones share them: new memory for each would be garbage soon.
type oneHeader [inLine - 1]uint64

// noHeader equals that of no object, because its frame size is 0. It is never written.
var noHeader oneHeader

// readLocated reads the entries that locate has found.
func (r *Reader) readLocated(keys []transfer.Ref, entries []uint64, size uint64, f *Found, heads []transfer.Head, sum *Sum) {
	for {
		n, bytes := r.readLines(keys, entries, size, f, heads)
		sum.Objects, sum.Single, sum.Bytes = sum.Objects+n, sum.Single+n, sum.Bytes+bytes
		if n == len(keys) {
			return
		}
		if h := &heads[n]; r.readOther(keys[n], entries[n], size, f, h) {
			sum.Objects++
			sum.Bytes += h.Bytes()
			if len(h.FrameBytes) == 1 {
				sum.Single++
			}
		}
		keys, entries, heads = keys[n+1:], entries[n+1:], heads[n+1:]
	}
}

// readLines reads leading entries as long as each one holds its key, is whole, and has one frame
// that is not empty and a header that fits in the line, as most have. It returns their number and
// bytes.
func (r *Reader) readLines(keys []transfer.Ref, entries []uint64, size uint64, f *Found, heads []transfer.Head) (n int, total uint64) {
	lines, entries, heads := r.lines, entries[:len(keys)], heads[:len(keys)]
	f.frames = slices.Grow(f.frames, len(keys))
	frames := f.frames[len(f.frames):][:len(keys)]
	own := f.shared
	if own == nil {
		own = &noHeader
	}
	for i := range keys {
		if entries[i] >= uint64(len(lines)) {
			break
		}
		k, w, h := &keys[i], &lines[entries[i]], &heads[i]
		seq, shape := atomic.LoadUint64(&w[0]), atomic.LoadUint64(&w[2])
		offset, bytes := atomic.LoadUint64(&w[payloadAt]), atomic.LoadUint64(&w[payloadAt+1])
		one, two := atomic.LoadUint64(&w[payloadAt+2]), atomic.LoadUint64(&w[payloadAt+3])
		// One comparison of everything is faster than one of each.
		differs := seq&1 | (atomic.LoadUint64(&w[1]) ^ uint64(k.Task)) | (shape<<headerBits>>headerBits ^ (1<<32 | uint64(uint32(k.Generation)))) |
			(atomic.LoadUint64(&w[progressAt]) ^ whole) | (atomic.LoadUint64(&w[0]) ^ seq) | uint64(k.Item)
		header := shape >> (64 - headerBits)
		if differs != 0 || k.Task == 0 || header > lineHeader || bytes-1 >= size || offset > size-bytes {
			break
		}
		if (own[0]^bytes)|(own[1]^one)|(own[2]^two) != 0 {
			own = (*oneHeader)(f.alloc(len(own)))
			*own = oneHeader{bytes, one, two}
			f.shared = own
		}
		frames[i] = memory.Frame{Offset: offset, Bytes: bytes}
		h.Ref, h.Header, h.FrameBytes = *k, bytesOf(own[1:], int(header)), own[:1:1]
		total += bytes
		n++
	}
	f.frames, f.left = f.frames[:len(f.frames)+n], f.left-n
	return n, total
}

// readOther reads an entry that readLines does not handle. If the entry does not hold the key, it
// looks in all places, as Find does. It reports whether it found the object.
func (r *Reader) readOther(k transfer.Ref, entry, size uint64, f *Found, h *transfer.Head) bool {
	f.left--
	if entry < uint64(len(r.lines)) {
		if _, ok := r.read(entry, k, size, f, false, h); ok {
			return true
		}
		if at, _ := r.search(k, size, f, false, h); at > 0 {
			return true
		}
	}
	h.Ref = transfer.Ref{}
	return false
}
