package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
)

// ReservationID identifies a reservation. The caller chooses it and never uses it again in the life
// of the ledger.
type ReservationID uint64

// Request asks for memory: all of it or nothing.
type Request struct {
	ID ReservationID
	// Holder is the party that will use it, for error messages.
	Holder Holder
	// Bytes are the sizes of the blocks, one for each expected frame. Zeros are left out.
	Bytes []uint64
	// Partial: the holder will probably ask for as much again, inputs included, and keeps this
	// meanwhile.
	Partial bool
	// Inputs are objects that must be in the slab from the time when the reservation is loaded
	// until it is released. Inputs that are not sealed here when it is granted are left out: see
	// Hold.
	Inputs []ObjectID
	// Urgent: the requesting task already holds memory and cannot continue without more. The
	// request is queued before all requests that are not urgent.
	Urgent bool
	// Deadline is the end of the wait in the queue. With the zero time or a time that has passed,
	// the request does not wait. With the zero time, its error does not name the largest holders.
	Deadline time.Time
}

type reservation struct {
	id       ReservationID
	holder   Holder
	sizes    []uint64 // largest first, none of them 0
	bytes    uint64   // sum of sizes, each rounded to granules
	deadline time.Time
	inputs   []ObjectID
	urgent   bool
	// later is what the holder will probably ask for later.
	later   uint64
	since   time.Time
	granted bool
	// loading is the number of its inputs' extents that are still coming.
	loading int
	// holds are the objects that it keeps in their place: its inputs, and the objects that were
	// built in it and sealed.
	holds []*object
	// blocks are the rest of the memory set aside. Each is a block in use of the allocator.
	blocks []memory.Frame
	// building are exactly the Building objects that were created in this reservation.
	building []*object
	// one has the backing arrays of the lists for a reservation for one object with one frame,
	// which saves allocations.
	one struct {
		size     [1]uint64
		block    [1]memory.Frame
		building [1]*object
	}
}

// Progress says how far a reservation has come.
type Progress uint8

// The stages of a reservation.
const (
	// Waiting: it is in the queue and holds nothing.
	Waiting Progress = iota
	// Loading: it is granted, and inputs are being read back.
	Loading
	// Ready: it is granted, and its inputs are in the slab.
	Ready
)

// Reserve sets memory aside. Without an error, Waiting means that Granted or Refused will follow,
// and Loading that Loaded or LoadFailed will follow. With an error there is no new
// reservation. A request without bytes and inputs is granted at once. The effects must be carried
// out even if there is an error: other bytes may have left the slab.
func (l *Ledger) Reserve(now time.Time, q Request) (s Progress, out []Effect, err error) {
	if _, taken := l.reservations[q.ID]; taken {
		return Waiting, nil, fmt.Errorf("ledger: reservation %d for %s: %w; ids must not be reused", q.ID, q.Holder, ErrDuplicate)
	}
	r := &reservation{id: q.ID, holder: q.Holder, deadline: q.Deadline, inputs: q.Inputs, urgent: q.Urgent, since: now}
	r.sizes, r.blocks, r.building = r.one.size[:0], r.one.block[:0], r.one.building[:0]
	for _, n := range q.Bytes {
		if n == 0 {
			continue
		}
		if n > l.config.SizeBytes || r.bytes > l.config.SizeBytes {
			return Waiting, nil, l.tooLarge(q)
		}
		r.sizes = append(r.sizes, n)
		r.bytes += alloc.Rounded(n)
	}
	slices.SortFunc(r.sizes, func(a, b uint64) int { return cmp.Compare(b, a) })
	if !l.fitsEmpty(r) {
		return Waiting, nil, l.tooLarge(q)
	}
	if q.Partial {
		// Inputs that are here count as well as those that are fetched into its blocks.
		r.later = r.bytes
		for _, e := range l.loads(r, true) {
			r.later += alloc.Rounded(e.bytes)
		}
	}
	before := 0
	for q.Urgent && before < len(l.waiting) && l.waiting[before].urgent {
		before++
	}
	if !q.Urgent {
		before = len(l.waiting)
	}
	wait := now.Before(q.Deadline)
	granted := r.bytes == 0 && len(r.inputs) == 0
	if !granted && before == 0 {
		granted, out = l.tryGrant(r, wait, out)
	}
	switch {
	case granted:
		r.granted = true
		l.log.add("reserved", ObjectID{}, r.id, r.bytes)
		if s = Ready; r.loading > 0 {
			s = Loading
		}
	case q.Deadline.IsZero():
		// A caller that does not wait may ask again in a loop. The error does not name the largest
		// holders, because finding them each time takes long.
		l.verify()
		return Waiting, out, fmt.Errorf("ledger: reservation %d of %s for %s: %w now", q.ID, size(r.bytes), q.Holder.Describe(), ErrNoRoom)
	case !wait:
		err = fmt.Errorf("ledger: reservation %d of %s for %s: %w now (%s of %s free%s, %d waiting); largest holders: %s",
			q.ID, size(r.bytes), q.Holder.Describe(), ErrNoRoom, size(l.space.Size()-l.space.Used()), size(l.config.SizeBytes), l.describeTiers(), len(l.waiting), l.describeLargest())
		l.verify()
		return Waiting, out, err
	default:
		l.waiting = slices.Insert(l.waiting, before, r)
		l.log.add("waits for room", ObjectID{}, r.id, r.bytes)
	}
	l.reservations[r.id] = r
	out = l.spillEarly(out)
	l.verify()
	return s, out, nil
}

// tooLarge makes the error for a request that an empty slab could not grant. It names the bytes
// that the blocks take, which may be many times the bytes that they hold.
func (l *Ledger) tooLarge(q Request) error {
	var sum uint64
	blocks := 0
	add := func(n uint64) {
		blocks++
		if n = max(n, alloc.Rounded(n)); sum+n < sum { // Rounded wraps near 2^64.
			n = 1<<64 - 1 - sum
		}
		sum += n
	}
	for _, n := range q.Bytes {
		add(n)
	}
	for _, e := range l.loads(&reservation{inputs: q.Inputs}, true) {
		add(e.bytes)
	}
	count := "one block"
	if blocks > 1 {
		count = fmt.Sprintf("%d blocks", blocks)
	}
	return fmt.Errorf("%s needs %s at once, inputs included, in %s: %w, which has %s, even when it is empty (each block takes a multiple of %s, and from %s on it is aligned to %s); use smaller chunks or raise --memory-limit",
		q.Holder.Describe(), size(sum), count, ErrTooLarge, size(l.config.SizeBytes), size(alloc.Granule), size(alloc.BigBytes), size(alloc.HugeBytes))
}

// fitsEmpty says whether an empty slab could grant the reservation, by trying it. Grants allocate
// the sizes in the same order, and an allocator with everything freed is in the same state as a new
// one, so the answer is exact.
func (l *Ledger) fitsEmpty(r *reservation) bool {
	bytes, sizes := r.bytes, r.sizes
	if len(r.inputs) > 0 {
		sizes = slices.Clone(sizes)
		for _, e := range l.loads(r, true) {
			sizes = append(sizes, e.bytes)
			bytes += alloc.Rounded(e.bytes)
		}
		slices.SortFunc(sizes, func(a, b uint64) int { return cmp.Compare(b, a) })
	}
	// Alignment at most doubles a block, and the header costs one alignment, so an eighth of the
	// slab always fits.
	if bytes <= l.config.SizeBytes/8 && l.config.HeaderBytes <= l.config.SizeBytes/8 {
		return true
	}
	if bytes > l.config.SizeBytes-l.config.HeaderBytes {
		return false
	}
	empty, err := emptySpace(l.config)
	if err != nil {
		return false
	}
	for _, n := range sizes {
		if _, ok := empty.Alloc(n); !ok {
			return false
		}
	}
	return true
}

// loads returns the extents of a reservation's inputs, each once, without those that are still
// being built or whose bytes are lost. If all is false, it returns only the extents that have no
// place in the slab.
func (l *Ledger) loads(r *reservation, all bool) (list []*extent) {
	l.clock++
	for _, id := range r.inputs {
		o := l.objects[id]
		if o == nil || o.state == Building {
			continue
		}
		for _, e := range o.extents {
			if e == nil || e.best() < 0 || e.seen == l.clock || !all && e.places[0].presence != Absent {
				continue
			}
			e.seen = l.clock
			list = append(list, e)
		}
	}
	return list
}

// tryGrant grants a reservation and makes room for it if necessary. wait says whether the
// reservation may wait for transfers, so that tryGrant may begin them.
func (l *Ledger) tryGrant(r *reservation, wait bool, out []Effect) (bool, []Effect) {
	for l.mayGrant(r) {
		var ok bool
		if ok, out = l.grant(r, out); ok {
			return true, out
		}
		if ok, out = l.makeRoom(r, wait, out); !ok {
			return false, out
		}
	}
	return false, out
}

// mayGrant says whether nothing but missing room can prevent a grant.
func (l *Ledger) mayGrant(r *reservation) bool {
	for _, id := range r.inputs {
		// An extent that is being written from one tier below to another is not read before that
		// write has ended.
		if o := l.objects[id]; o != nil && o.state != Building && slices.ContainsFunc(o.extents, func(e *extent) bool {
			return e != nil && e.transfer != nil && e.places[0].presence == Absent
		}) {
			return false
		}
	}
	return l.leavesHeadroom(r)
}

// grant takes everything that a reservation asked for, or nothing: its blocks, places for the
// inputs that are not in the slab, and a hold on all inputs.
func (l *Ledger) grant(r *reservation, out []Effect) (bool, []Effect) {
	var loads []*extent
	if len(r.inputs) > 0 {
		loads = l.loads(r, false)
	}
	if len(loads) == 0 {
		if !l.setAside(r) {
			return false, out
		}
	} else {
		offsets, ok := l.setAsideWith(r, loads)
		if !ok {
			return false, out
		}
		for i, e := range loads {
			out = l.readIn(e, offsets[i], out)
		}
	}
	for _, id := range r.inputs {
		o := l.objects[id]
		if o == nil || o.state == Building || slices.Contains(r.holds, o) {
			continue
		}
		l.hold(o)
		r.holds = append(r.holds, o)
		for _, e := range o.extents {
			if e != nil && e.places[0].presence == Coming && !slices.Contains(e.transfer.waiters, r) {
				e.transfer.waiters = append(e.transfer.waiters, r)
				r.loading++
			}
		}
	}
	return true, out
}

// leavesHeadroom says whether a reservation may be granted without taking the room that other
// holders of memory may still ask for. While there are such holders, a quarter of the slab is kept
// free of bytes that cannot leave, or as much as one of them will probably ask for later: each of
// them can end while the others wait. The limit does not apply to urgent reservations, nor if there
// is no tier below the slab.
func (l *Ledger) leavesHeadroom(r *reservation) bool {
	if len(l.tiers) == 1 || r.urgent {
		return true
	}
	t := l.tiers[0]
	stuck := t.heldBytes + l.reservedBytes + r.bytes - min(t.heldBytes, t.cheap.bytes+t.costly.bytes+t.leavingBytes)
	headroom := max(l.config.SizeBytes/4, r.later)
	for _, e := range l.loads(r, true) {
		if e.busy == 0 {
			stuck += alloc.Rounded(e.bytes)
		}
	}
	if stuck+headroom > l.config.SizeBytes {
		return !l.othersGranted(r)
	}
	// order-free: a disjunction.
	for _, g := range l.reservations {
		if g != r && g.granted && g.holding() && stuck+g.later > l.config.SizeBytes {
			return false
		}
	}
	return true
}

// holding says whether a granted reservation keeps any memory.
func (r *reservation) holding() bool { return len(r.blocks)+len(r.holds)+len(r.building) > 0 }

// othersGranted says whether any reservation other than r has been granted memory.
func (l *Ledger) othersGranted(r *reservation) bool {
	// order-free: a disjunction.
	for _, g := range l.reservations {
		if g != r && g.granted && g.holding() {
			return true
		}
	}
	return false
}

// setAsideWith is like setAside, but also allocates places for extents. It allocates blocks and
// places in one order, the largest size first.
func (l *Ledger) setAsideWith(r *reservation, loads []*extent) (offsets []uint64, ok bool) {
	slices.SortStableFunc(loads, func(a, b *extent) int { return cmp.Compare(b.bytes, a.bytes) })
	offsets = make([]uint64, 0, len(loads))
	undo := func() {
		for _, off := range offsets {
			l.space.Free(off)
		}
		for _, b := range r.blocks {
			l.space.Free(b.Offset)
		}
		r.blocks = r.blocks[:0]
	}
	for n := 0; n < len(r.sizes) || len(offsets) < len(loads); {
		load := len(offsets) < len(loads) && (n == len(r.sizes) || loads[len(offsets)].bytes > r.sizes[n])
		bytes := uint64(0)
		if load {
			bytes = loads[len(offsets)].bytes
		} else {
			bytes = r.sizes[n]
		}
		off, fits := l.space.Alloc(bytes)
		switch {
		case !fits:
			undo()
			return nil, false
		case load:
			offsets = append(offsets, off)
		default:
			r.blocks = append(r.blocks, memory.Frame{Offset: off, Bytes: alloc.Rounded(bytes)})
			n++
		}
	}
	for i, off := range offsets {
		l.trim.touch(off, alloc.Rounded(loads[i].bytes), l.space.Used())
	}
	l.reservedBytes += r.bytes
	return offsets, true
}

// setAside takes all blocks of a reservation from the allocator, or none.
func (l *Ledger) setAside(r *reservation) bool {
	if r.bytes > l.space.Size()-l.space.Used() {
		return false
	}
	for _, n := range r.sizes {
		off, ok := l.space.Alloc(n)
		if !ok {
			for _, b := range r.blocks {
				l.space.Free(b.Offset)
			}
			r.blocks = r.blocks[:0]
			return false
		}
		r.blocks = append(r.blocks, memory.Frame{Offset: off, Bytes: alloc.Rounded(n)})
	}
	l.reservedBytes += r.bytes
	return true
}

// makeRoom makes room for a reservation that does not fit: it makes extents leave until the missing
// bytes are free or leaving. more says that some bytes are free now that were not, so that the
// caller should try again. Otherwise there may be room after a transfer; makeRoom begins one only
// if wait is true.
func (l *Ledger) makeRoom(r *reservation, wait bool, out []Effect) (more bool, effects []Effect) {
	t := l.tiers[0]
	if len(t.cheap.list) == 0 && (!wait || len(t.costly.list) == 0) {
		return false, out
	}
	l.clock++
	keep := l.clock
	need := r.bytes
	for _, e := range l.loads(r, false) {
		need += alloc.Rounded(e.bytes)
	}
	for _, e := range l.loads(r, true) {
		e.kept = keep
	}
	free, leaving := l.space.Size()-l.space.Used(), t.leavingBytes+t.discardBytes
	switch {
	case need > free+leaving:
		need -= free + leaving
	case leaving > 0:
		return false, out
	default:
		// Enough bytes are free, but in separate blocks: remove one victim at a time until a block
		// is large enough.
		need = 1
	}
	why := fmt.Sprintf("room for reservation %d of %s", r.id, r.holder)
	freed, begun, out := l.shed(0, need, keep, wait, why, out)
	if freed+begun == 0 && leaving == 0 {
		// Nothing else can leave, so its own inputs may. They are read back later, to other places.
		freed, _, out = l.shed(0, need, 0, wait, why, out)
	}
	return freed > 0, out
}

// serve grants waiting reservations from the head of the queue until one does not fit, and makes
// room for that one. It runs after each step that made room or changed the head of the queue.
func (l *Ledger) serve(out []Effect) []Effect {
	for len(l.waiting) > 0 {
		r := l.waiting[0]
		var ok bool
		if ok, out = l.tryGrant(r, true, out); !ok {
			break
		}
		l.waiting = slices.Delete(l.waiting, 0, 1)
		r.granted = true
		l.log.add("reserved after waiting", ObjectID{}, r.id, r.bytes)
		out = append(out, Granted{Reservation: r.id, Loading: r.loading > 0})
	}
	return l.spillEarly(out)
}

// Merge moves the unused blocks and the holds of a granted reservation into another one, whose task
// needs more than it reserved. It ends the first reservation.
func (l *Ledger) Merge(from, into ReservationID) error {
	a, b := l.reservations[from], l.reservations[into]
	switch {
	case a == nil || b == nil:
		return fmt.Errorf("ledger: merge of reservation %d into %d: %w; one of them was released", from, into, ErrUnknown)
	case a == b || !a.granted || !b.granted || len(a.building) > 0 || a.loading > 0:
		return fmt.Errorf("ledger: merge of reservation %d into %d: %w; they must be two granted reservations, and the first must not be building or loading objects", from, into, ErrState)
	}
	b.blocks = append(b.blocks, a.blocks...)
	b.bytes += a.bytes
	for _, o := range a.holds {
		if slices.Contains(b.holds, o) {
			l.unhold(o)
		} else {
			b.holds = append(b.holds, o)
		}
	}
	a.blocks, a.holds = nil, nil
	l.forgetReservation(a)
	l.log.add(fmt.Sprintf("merged into reservation %d", into), ObjectID{}, from, a.bytes)
	l.verify()
	return nil
}

// Hold keeps an object in the slab as if it were an input of a granted reservation. ErrAway means
// that the object is not in the slab.
func (l *Ledger) Hold(id ReservationID, oid ObjectID) error {
	r, o := l.reservations[id], l.objects[oid]
	switch {
	case r == nil || o == nil || o.state == Building:
		return fmt.Errorf("ledger: hold of object %s by reservation %d: %w", oid, id, ErrUnknown)
	case !r.granted:
		return fmt.Errorf("ledger: hold of object %s by reservation %d, which waits: %w", oid, id, ErrState)
	case !o.inSlab():
		return fmt.Errorf("ledger: hold of object %s by reservation %d: %w", oid, id, ErrAway)
	case !slices.Contains(r.holds, o):
		l.hold(o)
		r.holds = append(r.holds, o)
	}
	l.verify()
	return nil
}

// smallest returns the smallest block that has room for n bytes, -1 if none has.
func smallest(blocks []memory.Frame, n uint64) int {
	best := -1
	for i, b := range blocks {
		if n <= b.Bytes && (best < 0 || b.Bytes < blocks[best].Bytes) {
			best = i
		}
	}
	return best
}

// uncut undoes what Allocate did for frames.
func (l *Ledger) uncut(r *reservation, frames []memory.Frame, cuts []int) {
	for i, f := range frames {
		switch {
		case f.Bytes == 0:
		case cuts[i] < 0:
			l.space.Free(f.Offset)
		default:
			r.blocks[cuts[i]].Offset -= alloc.Rounded(f.Bytes)
			r.blocks[cuts[i]].Bytes += alloc.Rounded(f.Bytes)
		}
	}
}

// Allocate makes frames of a Building object out of a granted reservation, one per size. It creates
// the object if necessary; without sizes it does only that. A frame comes from the smallest block
// of the reservation that is large enough. If there is none, free memory beyond the reservation is
// used, before the waiting reservations get it, because a running task frees its memory sooner than
// a waiting one. If there is no such memory, ErrOutgrown names the largest holders. Either all
// frames are made or none.
func (l *Ledger) Allocate(id ReservationID, oid ObjectID, sizes ...uint64) ([]memory.Frame, error) {
	r, o, err := l.buildable(id, oid)
	if err != nil {
		return nil, err
	}
	frames := make([]memory.Frame, len(sizes))
	// cuts[i] is the block that frame i was cut from, -1 if it is beyond the reservation.
	cuts := make([]int, len(sizes))
	for i, n := range sizes {
		if n == 0 {
			continue
		}
		cuts[i] = smallest(r.blocks, n)
		if cuts[i] >= 0 {
			b := &r.blocks[cuts[i]]
			frames[i] = memory.Frame{Offset: b.Offset, Bytes: n}
			b.Offset += alloc.Rounded(n)
			b.Bytes -= alloc.Rounded(n)
			continue
		}
		off, ok := l.space.Alloc(n)
		if !ok {
			left := slices.Clone(r.blocks)
			l.uncut(r, frames[:i], cuts)
			return nil, l.outgrown(r, oid, n, left)
		}
		frames[i] = memory.Frame{Offset: off, Bytes: n}
	}
	// Each frame is split from the front of the block in use at its offset, in the order of the
	// cuts.
	emptied := false
	for i, f := range frames {
		if f.Bytes == 0 {
			continue
		}
		need := alloc.Rounded(f.Bytes)
		if cuts[i] >= 0 {
			l.space.Split(f.Offset, f.Bytes)
			l.reservedBytes -= need
			emptied = emptied || r.blocks[cuts[i]].Bytes == 0
		}
		l.trim.touch(f.Offset, need, l.space.Used())
	}
	if emptied {
		r.blocks = slices.DeleteFunc(r.blocks, func(b memory.Frame) bool { return b.Bytes == 0 })
	}
	if o == nil {
		o = l.build(r, oid)
	}
	for _, f := range frames {
		var e *extent
		if f.Bytes > 0 {
			e = &extent{bytes: f.Bytes}
			e.owners = e.one[:0]
			l.occupy(e, 0, f.Offset, Resident)
		}
		l.append(o, f, e)
		l.log.add("allocated", oid, id, f.Bytes)
	}
	l.verify()
	return frames, nil
}

// Adopt gives a Building object a new id and its reservation a new holder. It is used for memory
// that was reserved before the task was known.
// REQUIRES: no other party knows the object by its old id.
func (l *Ledger) Adopt(id ReservationID, oid, name ObjectID, h Holder) error {
	r, o, err := l.buildable(id, oid)
	switch {
	case err != nil:
		return err
	case o == nil:
		return fmt.Errorf("ledger: object %s as %s: %w; allocate it first", oid, name, ErrUnknown)
	case l.objects[name] != nil:
		return fmt.Errorf("ledger: object %s as %s, which is %s: %w; a new attempt needs its own generation", oid, name, l.objects[name].state, ErrDuplicate)
	}
	l.unpublish(o)
	delete(l.objects, oid)
	o.id, r.holder = name, h
	l.objects[name] = o
	l.log.add("in memory set aside before", name, id, 0)
	l.verify()
	return nil
}

// Rebuild removes a Building object, so that it can be built again. Its memory goes back to its
// reservation, except extents that other objects share, and blocks that readers may still read.
// It does nothing if there is no such object.
// REQUIRES: no party writes to it any more.
func (l *Ledger) Rebuild(id ReservationID, oid ObjectID) {
	r, o := l.reservations[id], l.objects[oid]
	if r == nil || o == nil || o.builder != r {
		return
	}
	r.building = slices.Delete(r.building, slices.Index(r.building, o), slices.Index(r.building, o)+1)
	l.unpublish(o)
	for _, e := range o.extents {
		if e != nil && e.refs == 1 {
			block := memory.Frame{Offset: e.places[0].offset, Bytes: alloc.Rounded(e.bytes)}
			l.clear(e, 0)
			// NB: a block that was published may still be read, even if its object no longer
			// exists. Then it does not go back to the reservation.
			if !l.recall(e, block) {
				r.blocks = append(r.blocks, block)
				l.reservedBytes += block.Bytes
			}
		}
	}
	l.log.add("built anew", oid, id, 0)
	l.free(o, nil)
	l.verify()
}

func (l *Ledger) outgrown(r *reservation, oid ObjectID, n uint64, left []memory.Frame) error {
	var rest uint64
	for _, b := range left {
		rest += b.Bytes
	}
	free := l.space.Stats()
	return fmt.Errorf("ledger: object %s: a frame of %s %w %d of %s (%s left), and of %s free the largest block has %s%s; declare the output's size, use smaller chunks or raise --memory-limit; largest holders: %s",
		oid, size(n), ErrOutgrown, r.id, size(r.bytes), size(rest), size(free.Free), size(free.LargestFree), l.describeTiers(), l.describeLargest())
}

// buildable returns the reservation and the object for Allocate or Alias. The object is nil if it
// does not exist yet.
func (l *Ledger) buildable(id ReservationID, oid ObjectID) (*reservation, *object, error) {
	r := l.reservations[id]
	switch {
	case r == nil:
		return nil, nil, fmt.Errorf("ledger: reservation %d for object %s: %w; it was released, refused or never made", id, oid, ErrUnknown)
	case !r.granted:
		return nil, nil, fmt.Errorf("ledger: reservation %d for object %s is still waiting: %w; allocate after it is granted", id, oid, ErrState)
	}
	o := l.objects[oid]
	if o != nil && (o.state != Building || o.builder != r) {
		return nil, nil, fmt.Errorf("ledger: object %s is %s: %w; a new attempt needs its own generation", oid, o.state, ErrDuplicate)
	}
	return r, o, nil
}

// Release ends a reservation, granted or waiting: the rest of its memory is freed, and objects that
// were built in it and not sealed are removed. Each run of a task ends with Release, after success
// or failure.
// REQUIRES: no party writes to those objects any more.
func (l *Ledger) Release(id ReservationID) ([]Effect, error) {
	r := l.reservations[id]
	if r == nil {
		return nil, fmt.Errorf("ledger: release of reservation %d: %w; it was released or refused before", id, ErrUnknown)
	}
	out := l.serve(l.release(r, nil))
	l.verify()
	return out, nil
}

// Forgo frees the memory of a granted reservation that was not allocated yet. Its inputs stay held.
// Later allocations take free memory, as those of a reservation that is too small. Without such
// memory Forgo does nothing.
func (l *Ledger) Forgo(id ReservationID) []Effect {
	r := l.reservations[id]
	if r == nil || len(r.blocks) == 0 {
		return nil
	}
	l.log.add("memory forgone", ObjectID{}, r.id, r.bytes)
	l.freeBlocks(r)
	out := l.serve(nil)
	l.verify()
	return out
}

// freeBlocks frees the memory of a reservation that was not allocated yet.
func (l *Ledger) freeBlocks(r *reservation) {
	for _, b := range r.blocks {
		l.space.Free(b.Offset)
		l.reservedBytes -= b.Bytes
	}
	r.blocks = nil
}

func (l *Ledger) release(r *reservation, out []Effect) []Effect {
	l.log.add("reservation released", ObjectID{}, r.id, r.bytes)
	l.freeBlocks(r)
	for _, o := range r.building {
		out = l.free(o, out)
	}
	r.building = nil
	for _, o := range r.holds {
		l.unhold(o)
		out = l.settle(o, out)
	}
	r.holds = nil
	if r.loading > 0 {
		// order-free: it is removed from each list.
		for _, x := range l.transfers {
			x.waiters = slices.DeleteFunc(x.waiters, func(w *reservation) bool { return w == r })
		}
		r.loading = 0
	}
	l.forgetReservation(r)
	return out
}

func (l *Ledger) forgetReservation(r *reservation) {
	delete(l.reservations, r.id)
	if i := slices.Index(l.waiting, r); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}
