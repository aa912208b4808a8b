package ledger

import (
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/memory/alloc"
)

// Check returns an error that names the first broken invariant, nil if all hold. It walks the whole
// ledger. The invariants are:
//
//   - In each tier, each block in use of the allocator is one of these: the header, a place of an
//     extent, a rest of a granted reservation, or a range being punched, discarded or recalled.
//     Blocks do not overlap.
//   - An extent has as many references as it has frames: at least one, unless a transfer keeps it.
//     Its busy count is the number of its frames in held objects.
//   - An extent has a place in the slab if a hold other than a lease keeps it.
//   - The places that are coming are exactly the targets of transfers.
//   - The victim heaps have exactly the extents that may leave, with the use of their objects.
//   - Exactly the Building objects have a builder, which lists them.
//   - Dropped objects are pinned or held. Lost objects are dropped.
//   - An object is held by its builder, its pins in place, its leases and the reservations that
//     list it.
//   - The deadline heap agrees with the leases.
//   - Exactly the reservations that are not granted wait, urgent ones first, and hold nothing.
//   - A reservation's loading count is at least the number of transfers that it waits for.
//   - Every chunk of an extent is marked as dirty.
//   - The sums are right.
func (l *Ledger) Check() error {
	if err := l.space.Check(); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	leased := make(map[*extent]int)
	refs, busy, held := make(map[*extent]int), make(map[*extent]int), make(map[*object]int)
	// order-free: a sum.
	for _, r := range l.reservations {
		for _, o := range r.holds {
			held[o]++
		}
	}
	leases := make(map[ObjectID]int)
	for _, id := range slices.Sorted(maps.Keys(l.leases)) {
		e := l.leases[id]
		leases[e.Object]++
		if e.index >= len(l.deadlines) || l.deadlines[e.index] != e {
			return fmt.Errorf("ledger: lease %d is not at its place %d among the deadlines", id, e.index)
		}
		if l.objects[e.Object] == nil {
			return fmt.Errorf("ledger: lease %d is on %s, which is gone", id, e.Object)
		}
	}
	if len(l.deadlines) != len(l.leases) {
		return fmt.Errorf("ledger: %d leases, %d deadlines", len(l.leases), len(l.deadlines))
	}
	building := 0
	for _, o := range l.sorted() {
		if err := l.checkObject(o); err != nil {
			return err
		}
		if o.leases != leases[o.id] {
			return fmt.Errorf("ledger: object %s counts %d leases and has %d", o.id, o.leases, leases[o.id])
		}
		if o.state == Building {
			building++
		}
		want := held[o] + o.leases
		if o.state == Building {
			want++
		}
		for _, p := range o.pins {
			if p.inPlace() {
				want++
			}
		}
		if o.held != want {
			return fmt.Errorf("ledger: object %s is held %d times and counts %d", o.id, want, o.held)
		}
		for _, e := range o.extents {
			if e == nil {
				continue
			}
			refs[e]++
			if o.held > 0 {
				busy[e]++
			}
			leased[e] += o.leases
			if o.held > o.leases && e.best() != 0 && e.places[0].presence != Coming && e.best() >= 0 {
				return fmt.Errorf("ledger: object %s is held and not in the slab", o.id)
			}
		}
	}
	// order-free: the error may name any broken extent.
	for e, n := range leased {
		if e.leases != n {
			return fmt.Errorf("ledger: extent %v counts %d leases and has %d", e.places, e.leases, n)
		}
	}
	if err := l.checkTiers(refs, busy); err != nil {
		return err
	}
	blocks := l.places(0, refs)
	var reserved uint64
	if l.config.HeaderBytes > 0 {
		blocks++
	}
	waiting := 0
	for _, id := range slices.Sorted(maps.Keys(l.reservations)) {
		r := l.reservations[id]
		building -= len(r.building)
		if !r.granted {
			waiting++
			if len(r.blocks)+len(r.building)+len(r.holds)+r.loading > 0 {
				return fmt.Errorf("ledger: reservation %d waits and holds %d blocks, %d objects", id, len(r.blocks), len(r.building)+len(r.holds))
			}
		}
		loading := 0
		// order-free: a count.
		for _, x := range l.transfers {
			if slices.Contains(x.waiters, r) {
				loading++
			}
		}
		// A reservation with a lost input keeps its loading count above 0 until it is released.
		if r.loading < loading {
			return fmt.Errorf("ledger: reservation %d waits for %d transfers and counts %d", id, loading, r.loading)
		}
		for _, b := range r.blocks {
			if l.space.Bytes(b.Offset) != b.Bytes {
				return fmt.Errorf("ledger: reservation %d has a block at %d of %d bytes, the allocator of %d", id, b.Offset, b.Bytes, l.space.Bytes(b.Offset))
			}
			blocks++
			reserved += b.Bytes
		}
	}
	for i, r := range l.waiting {
		if i > 0 && r.urgent && !l.waiting[i-1].urgent {
			return fmt.Errorf("ledger: reservation %d is urgent and waits behind one that is not", r.id)
		}
		if r.granted || l.reservations[r.id] != r {
			return fmt.Errorf("ledger: reservation %d is in the queue and granted or gone", r.id)
		}
	}
	for _, f := range l.trim.punching {
		if l.space.Bytes(f.Offset) != f.Bytes {
			return fmt.Errorf("ledger: range [%d, +%d) being punched is not a block", f.Offset, f.Bytes)
		}
		blocks++
	}
	var recalled uint64
	for _, ticket := range slices.Sorted(maps.Keys(l.recalls)) {
		f := l.recalls[ticket]
		if l.space.Bytes(f.Offset) != f.Bytes {
			return fmt.Errorf("ledger: range [%d, +%d) being recalled is not a block", f.Offset, f.Bytes)
		}
		blocks++
		recalled += f.Bytes
	}
	if recalled != l.tiers[0].discardBytes {
		return fmt.Errorf("ledger: %d bytes are being recalled, counted %d", recalled, l.tiers[0].discardBytes)
	}
	header := uint64(0)
	if l.config.HeaderBytes > 0 {
		header = alloc.Rounded(l.config.HeaderBytes)
	}
	switch {
	case building != 0:
		return fmt.Errorf("ledger: %d building objects are in no reservation's list", building)
	case waiting != len(l.waiting):
		return fmt.Errorf("ledger: %d reservations wait, %d are in the queue", waiting, len(l.waiting))
	case reserved != l.reservedBytes:
		return fmt.Errorf("ledger: %d bytes reserved, counted %d", reserved, l.reservedBytes)
	case blocks != l.space.Stats().Blocks || header+l.tiers[0].heldBytes+recalled+reserved+l.trim.withheld() != l.space.Used():
		return fmt.Errorf("ledger: %d blocks of %d bytes have an owner, the allocator has %d of %d",
			blocks, header+l.tiers[0].heldBytes+recalled+reserved+l.trim.withheld(), l.space.Stats().Blocks, l.space.Used())
	}
	return nil
}

// places counts the extents that have a place in tier i.
func (l *Ledger) places(i int, refs map[*extent]int) (n int) {
	count := func(e *extent) {
		if e.places[i].presence != Absent {
			n++
		}
	}
	// order-free: a count.
	for e := range refs {
		count(e)
	}
	return n
}

// checkTiers checks the extents and the sums of the tiers. refs is the number of frames in each
// extent, busy the number of those that are held.
func (l *Ledger) checkTiers(refs, busy map[*extent]int) error {
	for _, id := range slices.Sorted(maps.Keys(l.transfers)) {
		x := l.transfers[id]
		if x.extent.transfer != x || x.ticket != id || x.from == x.to ||
			x.extent.places[x.to].presence != Coming || x.extent.places[x.from].presence != Resident {
			return fmt.Errorf("ledger: transfer %d from tier %d to %d does not fit its extent %v", id, x.from, x.to, x.extent.places)
		}
		if _, owned := refs[x.extent]; !owned {
			refs[x.extent] = 0
		}
	}
	type sums struct{ held, clean, leaving uint64 }
	var is [MaxTiers]sums
	count := 0
	// order-free: sums, and the error may name any broken extent.
	for e, n := range refs {
		if e.refs != n || e.busy != busy[e] {
			return fmt.Errorf("ledger: extent %v counts %d references, %d of them held, and has %d and %d", e.places, e.refs, e.busy, n, busy[e])
		}
		if use, effort := e.need(); n > 0 && (use != e.use || effort != e.effort) {
			return fmt.Errorf("ledger: extent %v is needed at rank %d with effort %d, noted as %d and %d", e.places, use, effort, e.use, e.effort)
		}
		for i, t := range l.tiers {
			p := e.places[i]
			if in := l.victimHeap(e, i); in != e.victims[i] {
				return fmt.Errorf("ledger: extent %v is in the wrong heap of tier %d", e.places, i)
			} else if in != nil {
				count++
			}
			if p.presence == Absent {
				continue
			}
			block := t.block(e.bytes)
			if t.space.Bytes(p.offset) != block {
				return fmt.Errorf("ledger: extent %v has %d bytes, its block in tier %d has %d", e.places, e.bytes, i, t.space.Bytes(p.offset))
			}
			if p.presence == Coming && (e.transfer == nil || e.transfer.to != i) {
				return fmt.Errorf("ledger: extent %v is coming to tier %d, and nothing brings it", e.places, i)
			}
			is[i].held += block
			if e.clean(i) {
				is[i].clean += block
			}
			if e.transfer != nil && e.transfer.from == i && e.transfer.to > i {
				is[i].leaving += block
			}
			for c := p.offset / trimChunk; i == 0 && c <= (p.offset+e.bytes-1)/trimChunk; c++ {
				if !l.trim.isDirty(c) {
					return fmt.Errorf("ledger: extent %v is in chunk %d, which is not marked as touched", e.places, c)
				}
			}
		}
	}
	for i, t := range l.tiers {
		if (is[i] != sums{t.heldBytes, t.cleanBytes, t.leavingBytes}) {
			return fmt.Errorf("ledger: tier %s holds %+v, counted %d, %d, %d", t.Name, is[i], t.heldBytes, t.cleanBytes, t.leavingBytes)
		}
		if i > 0 && t.heldBytes+t.discardBytes != t.space.Used() {
			return fmt.Errorf("ledger: tier %s holds %d bytes and discards %d, its allocator has %d", t.Name, t.heldBytes, t.discardBytes, t.space.Used())
		}
		for _, v := range []*victims{&t.cheap, &t.costly} {
			count -= len(v.list)
			for j, e := range v.list {
				if e.slot[i] != j || j > 0 && compareVictims(v.list[(j-1)/2], e) > 0 {
					return fmt.Errorf("ledger: victim %d of tier %s is at the wrong place", j, t.Name)
				}
			}
		}
		if err := t.space.Check(); err != nil {
			return fmt.Errorf("ledger: tier %s: %w", t.Name, err)
		}
	}
	if count != 0 {
		return fmt.Errorf("ledger: the heaps have %d victims more than there are", -count)
	}
	return nil
}

func (l *Ledger) checkObject(o *object) error {
	if l.objects[o.id] != o || len(o.frames) != len(o.extents) {
		return fmt.Errorf("ledger: object %s is filed wrongly or has %d frames in %d extents", o.id, len(o.frames), len(o.extents))
	}
	for i, e := range o.extents {
		if (e == nil) != (o.frames[i].Bytes == 0) || e != nil && o.spans[i]+o.frames[i].Bytes > e.bytes ||
			e != nil && e.places[0].presence == Resident && o.view().Frames[i].Offset != e.places[0].offset+o.spans[i] {
			return fmt.Errorf("ledger: frame %d of object %s does not lie in its extent", i, o.id)
		}
	}
	if o.published && (o.state == Dropped || !o.inSlab()) {
		return fmt.Errorf("ledger: object %s is in the shared object index, and %s or not in the slab", o.id, o.state)
	}
	for _, e := range o.extents {
		if e != nil && (o.published && !e.published || e.published && e.places[0].presence != Resident) {
			return fmt.Errorf("ledger: object %s has an extent that is marked wrongly for the shared object index", o.id)
		}
	}
	for i, p := range o.pins {
		for _, q := range o.pins[:i] {
			if p.same(q) {
				return fmt.Errorf("ledger: object %s has the pin %s twice", o.id, p)
			}
		}
	}
	if o.lost && o.state != Dropped {
		return fmt.Errorf("ledger: object %s is lost and %s", o.id, o.state)
	}
	holds := len(o.pins) > 0 || o.state != Building && o.held > 0
	switch o.state {
	case Building:
		if o.builder == nil || holds {
			return fmt.Errorf("ledger: object %s is building without a builder, or held already", o.id)
		}
		for _, b := range o.builder.building {
			if b == o && l.reservations[o.builder.id] == o.builder {
				return nil
			}
		}
		return fmt.Errorf("ledger: object %s is not in its builder's list", o.id)
	case Sealed:
		if o.builder != nil {
			return fmt.Errorf("ledger: object %s is sealed and has a builder", o.id)
		}
	case Dropped:
		if !holds || o.builder != nil {
			return fmt.Errorf("ledger: object %s is dropped, and nothing holds it or it has a builder", o.id)
		}
	default:
		return fmt.Errorf("ledger: object %s is in no state", o.id)
	}
	return nil
}
