package ledger

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/millrace/millrace/memory"
)

// trimChunk is the unit in which pages go back to the system. Smaller ranges
// would cost a system call each for little memory.
const trimChunk = 1 << 20

// trimmer knows which parts of the slab may have pages behind them. Free memory
// keeps its pages at first, because new pages cost more than the copy into them
// (a fault and a cleared page each 4 KiB) and a worker's next result has often
// the size of the one just freed; they go back in batches once there are more
// than the caller wants to keep, and than there were in use of late.
type trimmer struct {
	// dirty has a bit for each whole or begun chunk: exactly those are set that
	// were part of a frame since they were last punched.
	dirty []uint64
	// peak is the most that was in use at one moment since the last Trim.
	peak uint64
	// punching are the ranges withheld until Punched, blocks in use of the
	// allocator.
	punching []memory.Frame
}

func (t *trimmer) init(size uint64) {
	chunks := (size + trimChunk - 1) / trimChunk
	t.dirty = make([]uint64, (chunks+63)/64)
}

// touch notes that a range is in use, one of all that are.
func (t *trimmer) touch(off, n, used uint64) {
	t.peak = max(t.peak, used-t.withheld())
	for c := off / trimChunk; c <= (off+n-1)/trimChunk; c++ {
		t.dirty[c/64] |= 1 << (c % 64)
	}
}

func (t *trimmer) withheld() (n uint64) {
	for _, f := range t.punching {
		n += f.Bytes
	}
	return n
}

func (t *trimmer) isDirty(chunk uint64) bool { return t.dirty[chunk/64]&(1<<(chunk%64)) != 0 }

// Trim orders the pages of free memory to be given back when more than keep
// bytes of it have pages: down to half of keep, so that the next frees do not
// order it again. What was in use at one moment since the last Trim is kept
// beyond that: it is likely to be needed again. So Trim is called at intervals that
// are long for tasks; Trim(0) gives back all that was not in use since the last one.
// It does nothing while a PunchHoles is out or a reservation waits for the memory.
func (l *Ledger) Trim(keep uint64) []Effect {
	t := &l.trim
	if len(t.punching) > 0 || len(l.waiting) > 0 {
		return nil
	}
	recent := t.peak - min(t.peak, l.space.Used())
	t.peak = l.space.Used()
	touched := 0
	for _, w := range t.dirty {
		touched += bits.OnesCount64(w)
	}
	if uint64(touched)*trimChunk <= keep {
		return nil
	}
	var runs []memory.Frame
	var total uint64
	for off, n := range l.space.FreeBlocks(trimChunk) {
		first, end := (off+trimChunk-1)/trimChunk, (off+n)/trimChunk
		for c := first; c < end; c++ {
			if !t.isDirty(c) {
				continue
			}
			total += trimChunk
			if last := len(runs) - 1; c > first && last >= 0 && runs[last].End() == c*trimChunk {
				runs[last].Bytes += trimChunk
			} else {
				runs = append(runs, memory.Frame{Offset: c * trimChunk, Bytes: trimChunk})
			}
		}
	}
	if total <= max(keep, recent) {
		return nil
	}
	// From the far end: the allocator refills from the front.
	slices.SortFunc(runs, func(a, b memory.Frame) int { return cmp.Compare(b.Offset, a.Offset) })
	want := (total - max(keep/2, recent) + trimChunk - 1) / trimChunk * trimChunk
	for _, f := range runs {
		if f.Bytes > want {
			f.Offset += f.Bytes - want
			f.Bytes = want
		}
		if !l.space.Claim(f.Offset, f.Bytes) {
			panic("ledger: a free range could not be claimed")
		}
		t.punching = append(t.punching, f)
		if want -= f.Bytes; want == 0 {
			break
		}
	}
	l.log.add("trimming", ObjectID{}, 0, t.withheld())
	l.verify()
	return []Effect{PunchHoles{Ranges: slices.Clone(t.punching)}}
}

// Punched says that a PunchHoles has been carried out, or, with ok false, that
// it could not be: then the pages are still there, and so is the memory.
func (l *Ledger) Punched(ok bool) []Effect {
	t := &l.trim
	for _, f := range t.punching {
		l.space.Free(f.Offset)
		for c := f.Offset / trimChunk; ok && c < f.End()/trimChunk; c++ {
			t.dirty[c/64] &^= 1 << (c % 64)
		}
	}
	t.punching = nil
	l.log.add("trimmed", ObjectID{}, 0, 0)
	out := l.serve(nil)
	l.verify()
	return out
}
