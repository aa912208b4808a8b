package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
)

// ReservationID names a reservation. The caller chooses it, never again for the
// life of the ledger.
type ReservationID uint64

// Request asks for memory, all or nothing.
type Request struct {
	ID ReservationID
	// Holder is who will use it, for error messages and HolderGone.
	Holder Holder
	// Bytes are the sizes of the blocks: one per frame that is expected.
	Bytes []uint64
	// Deadline is until when to wait in the queue. The zero time means not to
	// wait.
	Deadline time.Time
}

type reservation struct {
	id       ReservationID
	holder   Holder
	sizes    []uint64 // largest first, none of them 0
	bytes    uint64   // sum of sizes, each rounded to granules
	deadline time.Time
	granted  bool
	// blocks are what is left of the memory set aside, each a block in use of
	// the allocator.
	blocks []memory.Frame
	// building are exactly those Building objects allocated here.
	building []*object
}

// Reserve sets memory aside. granted says that it is there; otherwise the
// request stands in the queue and Granted or Refused will follow. A request for
// no bytes needs no memory and is granted at once.
func (l *Ledger) Reserve(now time.Time, q Request) (granted bool, err error) {
	if _, taken := l.reservations[q.ID]; taken {
		return false, fmt.Errorf("ledger: reservation %d for %s: %w; ids must not be reused", q.ID, q.Holder, ErrDuplicate)
	}
	r := &reservation{id: q.ID, holder: q.Holder, deadline: q.Deadline}
	for _, n := range q.Bytes {
		if n == 0 {
			continue
		}
		if n > l.config.SizeBytes || r.bytes > l.config.SizeBytes {
			return false, l.tooLarge(q)
		}
		r.sizes = append(r.sizes, n)
		r.bytes += alloc.Rounded(n)
	}
	slices.SortFunc(r.sizes, func(a, b uint64) int { return cmp.Compare(b, a) })
	if !l.fitsEmpty(r) {
		return false, l.tooLarge(q)
	}
	switch {
	case r.bytes == 0 || len(l.waiting) == 0 && l.setAside(r):
		r.granted = true
		l.log.add("reserved", ObjectID{}, r.id, r.bytes)
	case !now.Before(q.Deadline):
		return false, fmt.Errorf("ledger: reservation %d of %s for %s: %w now (%s of %s free, %d waiting); largest holders: %s",
			q.ID, size(r.bytes), q.Holder, ErrNoRoom, size(l.space.Size()-l.space.Used()), size(l.config.SizeBytes), len(l.waiting), l.describeLargest())
	default:
		l.waiting = append(l.waiting, r)
		l.log.add("waits for room", ObjectID{}, r.id, r.bytes)
	}
	l.reservations[r.id] = r
	l.verify()
	return r.granted, nil
}

func (l *Ledger) tooLarge(q Request) error {
	var sum, most uint64
	for _, n := range q.Bytes {
		if sum += n; sum < n {
			sum = 1<<64 - 1
		}
		most = max(most, n)
	}
	return fmt.Errorf("ledger: reservation %d for %s: %s in %d blocks, the largest %s: %w of %s even when it is empty (blocks of %s or more are aligned to that); use smaller chunks or raise --memory-limit",
		q.ID, q.Holder, size(sum), len(q.Bytes), size(most), ErrTooLarge, size(l.config.SizeBytes), size(alloc.BigBytes))
}

// fitsEmpty says whether an empty slab could grant the reservation, by trying:
// grants use the same order of sizes, and an allocator with everything freed is
// in the same state as a new one, so the answer is exact.
func (l *Ledger) fitsEmpty(r *reservation) bool {
	// Alignment at most doubles a block, and the header costs one alignment, so
	// an eighth always fits.
	if r.bytes <= l.config.SizeBytes/8 && l.config.HeaderBytes <= l.config.SizeBytes/8 {
		return true
	}
	if r.bytes > l.config.SizeBytes-l.config.HeaderBytes {
		return false
	}
	empty, err := emptySpace(l.config)
	if err != nil {
		return false
	}
	for _, n := range r.sizes {
		if _, ok := empty.Alloc(n); !ok {
			return false
		}
	}
	return true
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

// serve grants waiting reservations from the head on until one does not fit. It
// runs after each step that made room or changed the head.
func (l *Ledger) serve(out []Effect) []Effect {
	for len(l.waiting) > 0 && l.setAside(l.waiting[0]) {
		r := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		r.granted = true
		l.log.add("reserved after waiting", ObjectID{}, r.id, r.bytes)
		out = append(out, Granted{Reservation: r.id})
	}
	return out
}

// Allocate makes frames of a Building object out of a granted reservation, one
// per size, and creates the object if it is not there; without sizes it only
// does that. A frame comes from the smallest block of the reservation that
// holds it. When none does, free memory beyond the reservation is tried, past
// the queue: whoever runs already frees its memory sooner than anyone waiting.
// If there is none, ErrOutgrown names the largest holders. All frames are made
// or none.
func (l *Ledger) Allocate(id ReservationID, oid ObjectID, sizes ...uint64) ([]memory.Frame, error) {
	r, o, err := l.buildable(id, oid)
	if err != nil {
		return nil, err
	}
	// Plan on a copy, so that failing half-way leaves no trace.
	left := slices.Clone(r.blocks)
	frames := make([]memory.Frame, len(sizes))
	var grown []int
	for i, n := range sizes {
		if n == 0 {
			continue
		}
		need := alloc.Rounded(n)
		best := -1
		for j, b := range left {
			if n <= b.Bytes && (best < 0 || b.Bytes < left[best].Bytes) {
				best = j
			}
		}
		if best >= 0 {
			frames[i] = memory.Frame{Offset: left[best].Offset, Bytes: n}
			left[best].Offset += need
			if left[best].Bytes -= need; left[best].Bytes == 0 {
				left = slices.Delete(left, best, best+1)
			}
			continue
		}
		off, ok := l.space.Alloc(n)
		if !ok {
			for _, g := range grown {
				l.space.Free(frames[g].Offset)
			}
			return nil, l.outgrown(r, oid, n, left)
		}
		frames[i] = memory.Frame{Offset: off, Bytes: n}
		grown = append(grown, i)
	}
	// Carry the plan out: each frame is cut from the front of the block in use
	// at its offset, in the order of the plan.
	for i, f := range frames {
		if f.Bytes == 0 {
			continue
		}
		need := alloc.Rounded(f.Bytes)
		if len(grown) > 0 && grown[0] == i {
			grown = grown[1:]
		} else {
			l.space.Split(f.Offset, f.Bytes)
			l.reservedBytes -= need
		}
		l.extentBytes += need
		l.trim.touch(f.Offset, need)
	}
	r.blocks = left
	if o == nil {
		o = l.build(r, oid)
	}
	for _, f := range frames {
		var e *extent
		if f.Bytes > 0 {
			e = &extent{Frame: f, refs: 1}
		}
		o.frames = append(o.frames, f)
		o.extents = append(o.extents, e)
		l.log.add("allocated", oid, id, f.Bytes)
	}
	l.verify()
	return frames, nil
}

func (l *Ledger) outgrown(r *reservation, oid ObjectID, n uint64, left []memory.Frame) error {
	var rest uint64
	for _, b := range left {
		rest += b.Bytes
	}
	free := l.space.Stats()
	return fmt.Errorf("ledger: object %s: a frame of %s %w %d of %s (%s left), and of %s free the largest block has %s; declare the output's size, use smaller chunks or raise --memory-limit; largest holders: %s",
		oid, size(n), ErrOutgrown, r.id, size(r.bytes), size(rest), size(free.Free), size(free.LargestFree), l.describeLargest())
}

// buildable finds the reservation and the object of an Allocate or Alias; the
// object is nil when it is still to be made.
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

// Release ends a reservation, granted or waiting: what is left of its memory is
// free again, and objects that were allocated in it and not sealed are gone. It
// is how a task's run ends, well or not.
// REQUIRES: nobody writes to those objects any more.
func (l *Ledger) Release(id ReservationID) ([]Effect, error) {
	r := l.reservations[id]
	if r == nil {
		return nil, fmt.Errorf("ledger: release of reservation %d: %w; it was released or refused before", id, ErrUnknown)
	}
	out := l.serve(l.release(r, nil))
	l.verify()
	return out, nil
}

func (l *Ledger) release(r *reservation, out []Effect) []Effect {
	l.log.add("reservation released", ObjectID{}, r.id, r.bytes)
	for _, b := range r.blocks {
		l.space.Free(b.Offset)
		l.reservedBytes -= b.Bytes
	}
	r.blocks = nil
	for _, o := range r.building {
		out = l.free(o, out)
	}
	r.building = nil
	l.forgetReservation(r)
	return out
}

func (l *Ledger) forgetReservation(r *reservation) {
	delete(l.reservations, r.id)
	if i := slices.Index(l.waiting, r); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}
