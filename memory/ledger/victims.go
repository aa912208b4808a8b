package ledger

import (
	"cmp"
	"container/heap"
	"fmt"
	"time"
)

// victims is a heap of extents that may leave a tier. The best victim is at index 0.
type victims struct {
	tier  int
	list  []*extent
	bytes uint64 // sum over its extents, before rounding
}

// compareVictims orders the better victim first: the extent that is needed later, then the one that
// takes less effort to compute again, then the one that was not used for longer. The order is
// total, because each use advances the clock.
func compareVictims(a, b *extent) int {
	return cmp.Or(cmp.Compare(b.use, a.use), cmp.Compare(a.effort, b.effort), cmp.Compare(a.touched, b.touched))
}

// Len is part of heap.Interface.
func (v *victims) Len() int { return len(v.list) }

// Less is part of heap.Interface.
func (v *victims) Less(i, j int) bool { return compareVictims(v.list[i], v.list[j]) < 0 }

// Swap is part of heap.Interface.
func (v *victims) Swap(i, j int) {
	v.list[i], v.list[j] = v.list[j], v.list[i]
	v.list[i].slot[v.tier], v.list[j].slot[v.tier] = i, j
}

// Push is part of heap.Interface.
func (v *victims) Push(x any) {
	e := x.(*extent)
	e.victims[v.tier], e.slot[v.tier] = v, len(v.list)
	v.bytes += e.bytes
	v.list = append(v.list, e)
}

// Pop is part of heap.Interface.
func (v *victims) Pop() any {
	last := len(v.list) - 1
	e := v.list[last]
	v.list[last] = nil
	v.list = v.list[:last]
	e.victims[v.tier] = nil
	v.bytes -= e.bytes
	return e
}

// victimHeap returns the heap that should contain an extent as a victim of a tier, nil if the
// extent cannot leave.
func (l *Ledger) victimHeap(e *extent, i int) *victims {
	t := l.tiers[i]
	switch {
	case e.transfer != nil || e.refs == 0 || e.places[i].presence != Resident:
		return nil
	case e.best() < i && e.leases == 0:
		// A faster tier has the bytes too, and nobody but readers under a lease needs this copy:
		// all other holders use the bytes in the slab.
		return &t.cheap
	case e.busy > 0:
		return nil
	case e.clean(i) || i == 0 && e.droppable():
		return &t.cheap
	case i+1 < len(l.tiers):
		return &t.costly
	}
	return nil
}

// need returns the lowest rank at which an extent is needed, and the effort to compute it again.
func (e *extent) need() (use uint64, effort int) {
	use = NeverUsed
	for _, o := range e.owners {
		use, effort = min(use, o.use()), max(effort, o.effort())
	}
	return use, effort
}

// index puts an extent into the right victim heaps, at the right index.
func (l *Ledger) index(e *extent) {
	use, effort := e.need()
	changed := use != e.use || effort != e.effort
	e.use, e.effort = use, effort
	for i, t := range l.tiers {
		t.cheap.tier, t.costly.tier = i, i
		in, to := e.victims[i], l.victimHeap(e, i)
		switch {
		case in != nil && in == to && changed:
			heap.Fix(in, e.slot[i])
		case in == to:
		default:
			if in != nil {
				heap.Remove(in, e.slot[i])
			}
			if to != nil {
				heap.Push(to, e)
			}
		}
	}
}

func (l *Ledger) reindex(o *object) {
	for i, e := range o.extents {
		if e != nil && (i == 0 || o.extents[i-1] != e) {
			l.index(e)
		}
	}
}

// touch records a use of an extent now.
func (l *Ledger) touch(e *extent) {
	l.clock++
	e.touched = l.clock
	for i := range l.tiers {
		if v := e.victims[i]; v != nil {
			heap.Fix(v, e.slot[i])
		}
	}
}

// fullTries limits the victims of one search for which no tier below has room. After so many, the
// search assumes that no tier below has room for the remaining victims either.
const fullTries = 16

// shed makes victims leave a tier until need bytes are free or leaving, or no victim is left.
// Victims that need no write leave at once. If write is true, writes of other victims are begun as
// well. If keep is not 0, extents whose field kept equals it stay. shed returns the bytes of the
// blocks that it freed, and of the blocks that are leaving.
func (l *Ledger) shed(i int, need, keep uint64, write bool, why string, out []Effect) (freed, leaving uint64, effects []Effect) {
	t := l.tiers[i]
	var passed []*extent
	pass := func(v *victims) { passed = append(passed, heap.Pop(v).(*extent)) }
	// In the slab, a block that readers may still use is withheld: it is added to discardBytes, and
	// counts as leaving.
	gone := func(withheld uint64, e *extent) {
		if i > 0 || t.discardBytes == withheld {
			freed += t.block(e.bytes)
		} else {
			leaving += t.block(e.bytes)
		}
	}
	full := 0
	for freed+leaving < need {
		v := l.victim(t, write && full < fullTries)
		if v == nil {
			break
		}
		e := v.list[0]
		switch {
		case keep != 0 && e.kept == keep:
			pass(v)
		case v == &t.cheap && e.clean(i) || v == &t.cheap && i > 0:
			l.logEach(e, "left "+t.Name+": "+l.reason(e, why))
			withheld := t.discardBytes
			out = l.vacate(e, i, out)
			gone(withheld, e)
		case v == &t.cheap:
			withheld := t.discardBytes
			out = l.dropCopies(e, l.reason(e, why), out)
			gone(withheld, e)
		default:
			to, offset, ok := l.below(i, e, true)
			if !ok {
				full++
				pass(v)
				break
			}
			leaving += t.block(e.bytes)
			out = l.writeOut(e, i, to, offset, l.reason(e, why), out)
		}
	}
	for _, e := range passed {
		l.index(e)
	}
	return freed, leaving, out
}

// victim returns the heap whose first extent must leave next, nil if none may.
func (l *Ledger) victim(t *tier, write bool) *victims {
	cheap, costly := len(t.cheap.list) > 0, write && len(t.costly.list) > 0
	switch {
	case cheap && (!costly || t.cheap.list[0].use >= t.costly.list[0].use):
		return &t.cheap
	case costly:
		return &t.costly
	}
	return nil
}

// below finds a place for an extent in the fastest open tier below i that has room. To make room
// there, extents with another copy further below may lose their place in it. If drop is true,
// extents whose only other copy is in a faster tier may lose their place as well. They must be
// written again before they leave the faster tier.
func (l *Ledger) below(i int, e *extent, drop bool) (to int, offset uint64, ok bool) {
	for to = i + 1; to < len(l.tiers); to++ {
		if t := l.tiers[to]; t.open() {
			if offset, ok = t.space.Alloc(t.block(e.bytes)); !ok {
				offset, ok = l.displace(to, t.block(e.bytes), drop)
			}
			if ok {
				return to, offset, true
			}
		}
	}
	return 0, 0, false
}

// displace frees cheap victims of a tier until it can allocate n bytes there. If that fails, all of
// them stay.
func (l *Ledger) displace(i int, n uint64, drop bool) (offset uint64, ok bool) {
	t := l.tiers[i]
	if t.space.Size()-t.space.Used()+t.cheap.bytes+uint64(len(t.cheap.list))*t.block(1) < n {
		return 0, false
	}
	var tried, freed []*extent
	for !ok && len(t.cheap.list) > 0 {
		e := heap.Pop(&t.cheap).(*extent)
		tried = append(tried, e)
		if !e.clean(i) && !drop {
			continue
		}
		freed = append(freed, e)
		t.space.Free(e.places[i].offset)
		offset, ok = t.space.Alloc(n)
	}
	for _, e := range freed {
		if ok {
			l.logEach(e, "left "+t.Name+" for others; it is elsewhere too")
			t.dirtyEnd, t.dirtyWritten = max(t.dirtyEnd, e.places[i].offset+t.block(e.bytes)), true
			l.clear(e, i)
		} else if !t.space.Claim(e.places[i].offset, t.block(e.bytes)) {
			panic("ledger: a place that was just given up is taken")
		}
	}
	for _, e := range tried {
		l.index(e)
	}
	return offset, ok
}

// dropCopies drops the objects of an extent, which are copies of peers' objects that no task here
// needs.
func (l *Ledger) dropCopies(e *extent, why string, out []Effect) []Effect {
	for len(e.owners) > 0 {
		o := e.owners[0]
		o.state = Dropped
		l.log.add("copy dropped: "+why, o.id, 0, 0)
		out = append(out, CopyDropped{Object: o.id})
		out = l.free(o, out)
	}
	return out
}

func (l *Ledger) reason(e *extent, why string) string {
	switch e.use {
	case NeverUsed:
		return why + ", and nobody will need it" + e.describeCost()
	case UnknownUse:
		return why + ", and nobody is known to need it" + e.describeCost()
	}
	return fmt.Sprintf("%s, and it is needed last, at rank %d", why, e.use)
}

// describeCost describes how long the extent's objects took to compute, if that is known.
func (e *extent) describeCost() string {
	var took time.Duration
	for _, o := range e.owners {
		if !o.known {
			return ""
		}
		took = max(took, o.took)
	}
	return fmt.Sprintf("; it took %v to make", took)
}

// demand returns the bytes of the blocks that the waiting reservations ask for, without their
// inputs, but at most a quarter of the slab. spillEarly aims to have that many bytes free, or
// copied to a tier below, before these reservations reach the head of the queue.
func (l *Ledger) demand() (n uint64) {
	for _, r := range l.waiting {
		if n += r.bytes; n >= l.config.SizeBytes/4 {
			return l.config.SizeBytes / 4
		}
	}
	return n
}

// spillEarly begins writes of extents that have no copy below. In each tier but the lowest, it
// begins when the bytes without a copy below exceed the high watermark, and ends at the low one.
// The configuration sets the watermarks of the slab; in other tiers they are 7/8 and 3/4 of the
// size. While reservations wait, the watermarks of the slab are lowered, so that the requested room
// (see demand) can be freed without a write.
func (l *Ledger) spillEarly(out []Effect) []Effect {
	for i := 0; i+1 < len(l.tiers); i++ {
		t := l.tiers[i]
		high, low := l.config.HighBytes, l.config.LowBytes
		if i == 0 {
			if demand := l.demand(); demand > 0 {
				high = min(high, t.SizeBytes-demand)
				low = min(low, high-t.SizeBytes/8)
			}
		} else {
			high, low = t.SizeBytes/8*7, t.SizeBytes/4*3
		}
		unsaved := t.heldBytes - t.cleanBytes - t.leavingBytes
		if unsaved <= high {
			continue
		}
		var passed []*extent
		for unsaved > low && len(t.costly.list) > 0 && len(passed) < fullTries {
			e := t.costly.list[0]
			to, offset, ok := l.below(i, e, false)
			if !ok {
				passed = append(passed, heap.Pop(&t.costly).(*extent))
				continue
			}
			unsaved -= t.block(e.bytes)
			out = l.writeOut(e, i, to, offset, l.reason(e, "above the high watermark"), out)
		}
		for _, e := range passed {
			l.index(e)
		}
	}
	return out
}
