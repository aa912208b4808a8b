package ledger

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/millrace/millrace/memory"
)

// trimChunk is the unit in which pages go back to the system. Smaller ranges would cost a system
// call each for little memory.
const trimChunk = 1 << 20

// RememberedTrims is the number of calls of Trim for which memory that was in use at one moment
// keeps its pages. Jobs use memory in waves: with fewer calls, the pages that one wave has made are
// given back before the next wave needs them.
const RememberedTrims = 16

// trimmer tracks which parts of the slab may have physical pages. Free memory keeps its pages at
// first, for two reasons: new pages cost more than the copy into them (a fault and a cleared page
// for each 4 KiB), and a worker's next result often has the size of the one just freed. The pages
// go back in batches when there are more than the caller wants to keep, and more than were in use
// at one moment since the last RememberedTrims calls of Trim.
type trimmer struct {
	// dirty has one bit for each whole or partial chunk. A bit is set exactly if the chunk was part
	// of a frame since it was last punched.
	dirty []uint64
	// peak is the largest number of bytes in use at one moment since the last Trim. peaks are those
	// before the last calls of Trim; next is the place of the oldest one.
	peak  uint64
	peaks [RememberedTrims - 1]uint64
	next  int
	// punching are the ranges withheld until Punched. They are blocks in use of the allocator.
	punching []memory.Frame
}

func (t *trimmer) init(size uint64) {
	chunks := (size + trimChunk - 1) / trimChunk
	t.dirty = make([]uint64, (chunks+63)/64)
}

// touch records that a range is now in use. used is the total in use, the withheld ranges included.
func (t *trimmer) touch(off, n, used uint64) {
	t.peak = max(t.peak, used-t.withheld())
	for c := off / trimChunk; c <= (off+n-1)/trimChunk; c++ {
		t.dirty[c/64] |= 1 << (c % 64)
	}
}

// recent returns the largest number of bytes in use at one moment since the last RememberedTrims
// calls of Trim.
func (t *trimmer) recent() uint64 { return max(t.peak, slices.Max(t.peaks[:])) }

func (t *trimmer) withheld() (n uint64) {
	for _, f := range t.punching {
		n += f.Bytes
	}
	return n
}

func (t *trimmer) isDirty(chunk uint64) bool { return t.dirty[chunk/64]&(1<<(chunk%64)) != 0 }

// KeepBytes is the amount of free memory whose pages a worker keeps. A transfer of an object of
// 256 MiB took 200 ms where it had to take new pages, and 42 ms on pages that were kept.
const KeepBytes = 256 << 20

// Trim orders the pages of free memory to be given back if more than keep bytes of free memory have
// pages. It leaves half of keep, so that the next frees do not order it again. In addition it keeps
// as much as was in use at one moment since the last RememberedTrims calls, because that much is
// likely to be needed again. So call Trim at intervals that are long compared with tasks. Trim(0)
// gives back all memory beyond that.
//
// Trim does nothing while a PunchHoles is in progress or a reservation waits for the memory.
func (l *Ledger) Trim(keep uint64) []Effect {
	t := &l.trim
	if len(t.punching) > 0 || len(l.waiting) > 0 {
		return nil
	}
	recent := t.recent() - min(t.recent(), l.space.Used())
	t.peaks[t.next], t.next = t.peak, (t.next+1)%len(t.peaks)
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
	// Begin at the far end, because the allocator takes from the front.
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

// Punched reports the end of a PunchHoles. With ok false it failed: the pages are still there, and
// the memory can still be used.
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
