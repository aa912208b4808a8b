package ledger

import (
	"cmp"
	"container/heap"
	"fmt"
	"time"
)

// victims is a heap of extents that may leave a tier, the best victim at 0.
type victims struct {
	tier  int
	list  []*extent
	bytes uint64 // of its extents, before rounding
}

// compareVictims has the better victim first; the order is total, because each
// use counts the clock up.
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

// role returns the heap that an extent belongs to as a victim of a tier, nil if
// it cannot leave.
func (l *Ledger) role(e *extent, i int) *victims {
	t := l.tiers[i]
	switch {
	case e.transfer != nil || e.refs == 0 || e.places[i].presence != Resident:
		return nil
	case e.best() < i && e.leases == 0:
		// Whoever holds it, but for readers outside, holds it in the slab.
		return &t.cheap
	case e.busy > 0:
		return nil
	case e.clean(i) || i == 0 && e.spare():
		return &t.cheap
	case i+1 < len(l.tiers):
		return &t.costly
	}
	return nil
}

// wanted says when an extent is needed first, and what it would take to make it
// again.
func (e *extent) wanted() (use uint64, effort int) {
	use = NeverUsed
	for _, o := range e.owners {
		use, effort = min(use, o.use()), max(effort, o.effort())
	}
	return use, effort
}

// index puts an extent where it belongs among the victims.
func (l *Ledger) index(e *extent) {
	use, effort := e.wanted()
	changed := use != e.use || effort != e.effort
	e.use, e.effort = use, effort
	for i, t := range l.tiers {
		t.cheap.tier, t.costly.tier = i, i
		in, to := e.victims[i], l.role(e, i)
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

// touch says that an extent was used just now.
func (l *Ledger) touch(e *extent) {
	l.clock++
	e.touched = l.clock
	for i := range l.tiers {
		if v := e.victims[i]; v != nil {
			heap.Fix(v, e.slot[i])
		}
	}
}

// fullTries bounds how many victims are looked at that a tier below has no room
// for, before the rest is taken to be no smaller.
const fullTries = 16

// shed makes room in a tier: victims that need no writing leave at once, others
// are being written when it returns, if write allows it. Those marked as kept stay. It returns how
// many bytes of blocks are free at once, and how many are leaving.
func (l *Ledger) shed(i int, need, keep uint64, write bool, why string, out []Effect) (freed, leaving uint64, effects []Effect) {
	t := l.tiers[i]
	var passed []*extent
	pass := func(v *victims) { passed = append(passed, heap.Pop(v).(*extent)) }
	// What is withheld leaves as what is being written does.
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
			l.tell(e, "left "+t.Name+": "+l.reason(e, why))
			withheld := t.discardBytes
			out = l.vacate(e, i, out)
			gone(withheld, e)
		case v == &t.cheap:
			withheld := t.discardBytes
			out = l.evict(e, l.reason(e, why), out)
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

// victim returns the heap whose first is to leave next, nil if nothing may.
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

// below finds a place for an extent in the fastest tier below i that has one. What
// lies there and further below too makes room for it, and, if drop allows it, so
// does what lies in the slab as well: that has to be written again to leave it.
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

// displace takes n bytes of a tier in place of cheap victims there, none of which
// leaves unless that is enough.
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
			l.tell(e, "left "+t.Name+" for others; it is elsewhere too")
			t.littered, t.strewn = max(t.littered, e.places[i].offset+t.block(e.bytes)), true
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

// evict drops the objects of an extent, which are copies that nobody needs here.
func (l *Ledger) evict(e *extent, why string, out []Effect) []Effect {
	for len(e.owners) > 0 {
		o := e.owners[0]
		o.state = Dropped
		l.log.add("copy dropped: "+why, o.id, 0, 0)
		out = append(out, Evicted{Object: o.id})
		out = l.free(o, out)
	}
	return out
}

func (l *Ledger) reason(e *extent, why string) string {
	switch e.use {
	case NeverUsed:
		return why + ", and nobody will need it" + e.making()
	case UnknownUse:
		return why + ", and nobody is known to need it" + e.making()
	}
	return fmt.Sprintf("%s, and it is needed last, at rank %d", why, e.use)
}

// making says how long an extent's objects took to make, if that is known.
func (e *extent) making() string {
	var took time.Duration
	for _, o := range e.owners {
		if !o.known {
			return ""
		}
		took = max(took, o.took)
	}
	return fmt.Sprintf("; it took %v to make", took)
}

// demand is what the waiting reservations ask for, up to a quarter of the slab: so
// much is made ready to leave before it is the turn of those behind the head.
func (l *Ledger) demand() (n uint64) {
	for _, r := range l.waiting {
		if n += r.bytes; n >= l.config.SizeBytes/4 {
			return l.config.SizeBytes / 4
		}
	}
	return n
}

// writeAhead writes what has no copy below when there is much of that, from the
// high to the low watermark.
func (l *Ledger) writeAhead(out []Effect) []Effect {
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
		bare := t.heldBytes - t.cleanBytes - t.leavingBytes
		if bare <= high {
			continue
		}
		var passed []*extent
		for bare > low && len(t.costly.list) > 0 && len(passed) < fullTries {
			e := t.costly.list[0]
			to, offset, ok := l.below(i, e, false)
			if !ok {
				passed = append(passed, heap.Pop(&t.costly).(*extent))
				continue
			}
			bare -= t.block(e.bytes)
			out = l.writeOut(e, i, to, offset, l.reason(e, "above the high watermark"), out)
		}
		for _, e := range passed {
			l.index(e)
		}
	}
	return out
}
