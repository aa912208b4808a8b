package ledger

import (
	"fmt"

	"github.com/millrace/millrace/memory/alloc"
)

// Check returns an error that names the first broken invariant, nil if all
// hold. It walks everything.
//
// The invariants: each block in use of the allocator is the header, an extent,
// a rest of a granted reservation or a range being punched, and they do not
// overlap; an extent has as many references as there are frames in it, and at
// least one; exactly the Building objects have a builder, which lists them;
// Dropped objects are held by a pin or a lease; lease counts and the deadline
// heap agree with the leases; exactly the reservations that are not granted
// wait, and hold nothing; every chunk of an extent is marked as touched; the
// sums are right.
func (l *Ledger) Check() error {
	if err := l.space.Check(); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	refs := make(map[*extent]int)
	leases := make(map[ObjectID]int)
	for _, id := range sortedKeys(l.leases) {
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
		for _, e := range o.extents {
			if e != nil {
				refs[e]++
			}
		}
	}
	blocks := 0
	var held, reserved uint64
	if l.config.HeaderBytes > 0 {
		blocks++
	}
	// order-free: sums, and any one broken extent is as good as another.
	for e, n := range refs {
		if e.refs != n || l.space.Bytes(e.Offset) != alloc.Rounded(e.Bytes) {
			return fmt.Errorf("ledger: extent [%d, +%d) counts %d references and has %d; its block has %d bytes",
				e.Offset, e.Bytes, e.refs, n, l.space.Bytes(e.Offset))
		}
		blocks++
		held += alloc.Rounded(e.Bytes)
		for c := e.Offset / trimChunk; c <= (e.End()-1)/trimChunk; c++ {
			if !l.trim.isDirty(c) {
				return fmt.Errorf("ledger: extent [%d, +%d) is in chunk %d, which is not marked as touched", e.Offset, e.Bytes, c)
			}
		}
	}
	waiting := 0
	for _, id := range sortedKeys(l.reservations) {
		r := l.reservations[id]
		building -= len(r.building)
		if !r.granted {
			waiting++
			if len(r.blocks)+len(r.building) > 0 {
				return fmt.Errorf("ledger: reservation %d waits and holds %d blocks, %d objects", id, len(r.blocks), len(r.building))
			}
		}
		for _, b := range r.blocks {
			if l.space.Bytes(b.Offset) != b.Bytes {
				return fmt.Errorf("ledger: reservation %d has a block at %d of %d bytes, the allocator of %d", id, b.Offset, b.Bytes, l.space.Bytes(b.Offset))
			}
			blocks++
			reserved += b.Bytes
		}
	}
	for _, r := range l.waiting {
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
	header := uint64(0)
	if l.config.HeaderBytes > 0 {
		header = alloc.Rounded(l.config.HeaderBytes)
	}
	switch {
	case building != 0:
		return fmt.Errorf("ledger: %d building objects are in no reservation's list", building)
	case waiting != len(l.waiting):
		return fmt.Errorf("ledger: %d reservations wait, %d are in the queue", waiting, len(l.waiting))
	case held != l.extentBytes || reserved != l.reservedBytes:
		return fmt.Errorf("ledger: %d bytes held and %d reserved, counted %d and %d", held, reserved, l.extentBytes, l.reservedBytes)
	case blocks != l.space.Stats().Blocks || header+held+reserved+l.trim.withheld() != l.space.Used():
		return fmt.Errorf("ledger: %d blocks of %d bytes have an owner, the allocator has %d of %d",
			blocks, header+held+reserved+l.trim.withheld(), l.space.Stats().Blocks, l.space.Used())
	}
	return nil
}

func (l *Ledger) checkObject(o *object) error {
	if l.objects[o.id] != o || len(o.frames) != len(o.extents) {
		return fmt.Errorf("ledger: object %s is filed wrongly or has %d frames in %d extents", o.id, len(o.frames), len(o.extents))
	}
	for i, e := range o.extents {
		if (e == nil) != (o.frames[i].Bytes == 0) || e != nil && !e.Contains(o.frames[i]) {
			return fmt.Errorf("ledger: frame %d of object %s does not lie in its extent", i, o.id)
		}
	}
	for i, p := range o.pins {
		for _, q := range o.pins[:i] {
			if p == q {
				return fmt.Errorf("ledger: object %s has the pin %s twice", o.id, p)
			}
		}
	}
	holds := len(o.pins) > 0 || o.leases > 0
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
