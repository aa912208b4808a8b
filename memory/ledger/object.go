package ledger

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
)

// State is the stage of an object's life.
type State uint8

// The states, in order.
const (
	// Building: its frames are being written within a reservation.
	Building State = iota + 1
	// Sealed: it can be read, pinned and leased.
	Sealed
	// Dropped: it is no longer wanted, or lost. A dropped object stays in the ledger only while a
	// pin or a hold keeps it.
	Dropped
)

// String returns the state's name in small letters.
func (s State) String() string {
	switch s {
	case Building:
		return "building"
	case Sealed:
		return "sealed"
	case Dropped:
		return "dropped"
	}
	return "unknown"
}

// Reason is the reason why a pin keeps an object.
type Reason uint8

// The reasons. Readers outside of the worker do not pin objects. They take read leases.
const (
	// PinInput: a task assigned here will read it.
	PinInput Reason = iota + 1
	// PinExecutor: an executor process has it open.
	PinExecutor
	// PinQueued: a task assigned here waits to read it. Unlike the other reasons, this one does not
	// keep the bytes in the slab: see Request.Inputs.
	PinQueued
)

// String returns the reason's name in small letters.
func (r Reason) String() string {
	switch r {
	case PinInput:
		return "input"
	case PinExecutor:
		return "executor"
	case PinQueued:
		return "queued"
	}
	return "unknown"
}

// Pin keeps an object's bytes until it is removed. One party has at most one pin per reason and
// attempt on an object.
type Pin struct {
	Reason Reason
	Holder Holder
	// Attempt distinguishes the runs of one task: a cancelled run may still read its inputs when
	// the next run has begun. 0 for parties that are not tasks.
	Attempt ids.Attempt
	// Rank is, for PinQueued, the rank at which the task will run. It is not part of the pin's
	// identity.
	Rank uint64
}

func (p Pin) same(b Pin) bool {
	return p.Reason == b.Reason && p.Holder == b.Holder && p.Attempt == b.Attempt
}

func (p Pin) inPlace() bool { return p.Reason != PinQueued }

// Describe describes the pin in error messages, as in "input of task t42/a1".
func (p Pin) Describe() string {
	text := p.Reason.String() + " of " + p.Holder.Describe()
	if p.Reason == PinExecutor && p.Holder.Kind == HolderExecutor {
		text = p.Holder.Describe()
	}
	if p.Attempt != 0 {
		text += "/" + p.Attempt.String()
	}
	return text
}

// String returns reason, holder and attempt, as in "input t42/a1".
func (p Pin) String() string {
	if p.Attempt == 0 {
		return p.Reason.String() + " " + p.Holder.String()
	}
	return p.Reason.String() + " " + p.Holder.String() + "/" + p.Attempt.String()
}

type object struct {
	id     ObjectID
	state  State
	header []byte
	// frames are the ranges of the bytes in the slab. The frames of an extent that is not in the
	// slab begin at Away. If stale is true, view computes them again.
	frames []memory.Frame
	stale  bool
	// extents[i] is the memory of frames[i], nil exactly for empty frames. frames[i] begins
	// spans[i] bytes after the start of extents[i].
	extents []*extent
	spans   []uint64
	pins    []Pin
	leases  int
	// held counts the reasons to keep its bytes in their place: being built, pins in place, leases
	// and granted reservations.
	held int
	// published: readers find it in the shared object index, or follow it there while it is
	// built. Only sealed or building objects in the slab are published.
	published bool
	// next is the rank from Expect. copied is true after Copied. lost: its bytes cannot be read, or
	// are wrong; it is Dropped then.
	next         uint64
	copied, lost bool
	// took is the duration from Cost. known is true after Cost.
	took  time.Duration
	known bool
	// builder is the reservation in which it is built. It is nil unless the state is Building.
	builder *reservation
	// one has the backing arrays of the lists for an object with one frame and one pin, which saves
	// allocations.
	one struct {
		frame  [1]memory.Frame
		extent [1]*extent
		span   [1]uint64
		pin    [1]Pin
	}
}

// Away is the offset of frames that are not in the slab. It is beyond the end of any space.
const Away = 1 << 63

// use returns the lowest rank of the tasks that will need the object.
func (o *object) use() uint64 {
	use := o.next
	for _, p := range o.pins {
		if p.Reason == PinQueued {
			use = min(use, p.Rank)
		}
	}
	return use
}

// inSlab says whether all its bytes are in the slab.
func (o *object) inSlab() bool {
	for _, e := range o.extents {
		if e != nil && e.places[0].presence != Resident {
			return false
		}
	}
	return true
}

// hold keeps the object's bytes in their place. unhold ends one hold.
func (l *Ledger) hold(o *object) {
	if o.held++; o.held > 1 {
		return
	}
	for _, e := range o.extents {
		if e != nil {
			if e.busy++; e.busy == 1 {
				l.index(e)
			}
		}
	}
}

func (l *Ledger) unhold(o *object) {
	if o.held--; o.held > 0 {
		return
	}
	for _, e := range o.extents {
		if e != nil {
			if e.busy--; e.busy == 0 {
				l.index(e)
				l.touch(e)
			}
		}
	}
}

// append adds a frame to a Building object. It unpublishes the object, because the entry in the
// index no longer describes it.
func (l *Ledger) append(o *object, f memory.Frame, e *extent) {
	l.unpublish(o)
	if e == nil {
		f = memory.Frame{}
	}
	o.frames = append(o.frames, f)
	o.extents = append(o.extents, e)
	var span uint64
	if e != nil {
		span = f.Offset - e.places[0].offset
		e.refs++
		e.busy++
		if !slices.Contains(e.owners, o) {
			e.owners = append(e.owners, o)
		}
		l.index(e)
	}
	o.spans = append(o.spans, span)
}

// Object describes one object. Its slices belong to the ledger: read them, but do not keep them
// across a step that may free the object.
type Object struct {
	ID     ObjectID
	State  State
	Header []byte
	Frames []memory.Frame
	Pins   []Pin
	Leases int
	// InSlab: all its bytes are in the slab. They stay there only while it is pinned (with a reason
	// other than PinQueued), leased or held by a reservation.
	InSlab bool
}

// Bytes returns the sum of the frames' lengths.
func (o Object) Bytes() (n uint64) {
	for _, f := range o.Frames {
		n += f.Bytes
	}
	return n
}

func (o *object) view() Object {
	if o.stale {
		o.stale = false
		// Make a new list: a caller may still use the old one.
		frames := make([]memory.Frame, len(o.frames))
		for i, e := range o.extents {
			if e == nil {
				continue
			}
			frames[i] = memory.Frame{Offset: Away, Bytes: o.frames[i].Bytes}
			if e.places[0].presence == Resident {
				frames[i].Offset = e.places[0].offset + o.spans[i]
			}
		}
		o.frames = frames
	}
	return Object{ID: o.id, State: o.state, Header: o.header, Frames: o.frames, Pins: o.pins, Leases: o.leases, InSlab: o.inSlab()}
}

// Lookup returns an object in any state.
func (l *Ledger) Lookup(id ObjectID) (Object, bool) {
	o := l.objects[id]
	if o == nil {
		return Object{}, false
	}
	return o.view(), true
}

// Copies returns, for each frame of an object, the fastest tier that has its bytes, and the range
// there. A reader under a lease reads these ranges. Empty frames have an empty range of the slab.
// ok is false if the object does not exist, or its bytes are lost.
func (l *Ledger) Copies(id ObjectID) (copies []Copy, ok bool) {
	o := l.objects[id]
	if o == nil {
		return nil, false
	}
	copies = make([]Copy, len(o.extents))
	for i, e := range o.extents {
		if e == nil {
			continue
		}
		tier := e.best()
		if tier < 0 {
			return nil, false
		}
		f := e.frame(tier)
		copies[i] = Copy{
			Region: Region{tier, memory.Frame{Offset: f.Offset + o.spans[i], Bytes: o.frames[i].Bytes}},
			Whole:  f, Sum: e.sum,
		}
	}
	return copies, true
}

// Copy is the place of the bytes of one frame. Whole is the place of the extent that contains them.
// Sum is the checksum of Whole if the tier is below the slab.
type Copy struct {
	Region
	Whole memory.Frame
	Sum   uint32
}

// Objects returns all objects, ordered by task and generation. The sealed objects among them are
// the inventory that a worker reports when it reconnects.
func (l *Ledger) Objects() []Object {
	sorted := l.sorted()
	views := make([]Object, len(sorted))
	for i, o := range sorted {
		views[i] = o.view()
	}
	return views
}

func (l *Ledger) sorted() []*object {
	return slices.SortedFunc(maps.Values(l.objects), func(a, b *object) int { return a.id.compare(b.id) })
}

// build creates an object. REQUIRES: the id is free.
func (l *Ledger) build(r *reservation, id ObjectID) *object {
	o := &object{id: id, state: Building, builder: r, next: UnknownUse, held: 1}
	o.frames, o.extents, o.spans, o.pins = o.one.frame[:0], o.one.extent[:0], o.one.span[:0], o.one.pin[:0]
	l.objects[id] = o
	r.building = append(r.building, o)
	l.log.add("building", id, r.id, 0)
	return o
}

// Alias makes frames of a Building object out of ranges of another object, the source. It creates
// the object if necessary. Each range must lie in one frame of the source. The source must be
// sealed, or dropped and still held, and in the slab. The memory is shared: it is counted once and
// freed with the last object that has a frame in it. The reservation gives no memory; it is only
// the builder of the object.
func (l *Ledger) Alias(id ReservationID, oid, source ObjectID, ranges ...memory.Frame) error {
	r, o, err := l.buildable(id, oid)
	if err != nil {
		return err
	}
	src := l.objects[source]
	switch {
	case src == nil:
		return fmt.Errorf("ledger: object %s as a part of %s: the latter is %w", oid, source, ErrUnknown)
	case src.state == Building:
		return fmt.Errorf("ledger: object %s as a part of %s: the latter is %s: %w; seal it first", oid, source, src.state, ErrState)
	}
	src.view() // computes the frames if stale
	extents := make([]*extent, len(ranges))
	for i, f := range ranges {
		if f.Bytes == 0 {
			continue
		}
		j := slices.IndexFunc(src.frames, func(in memory.Frame) bool { return in.Contains(f) })
		if j < 0 {
			return fmt.Errorf("ledger: object %s as a part of %s: bytes [%d, +%d): %w; name a range inside of one frame", oid, source, f.Offset, f.Bytes, ErrRange)
		}
		if extents[i] = src.extents[j]; extents[i].places[0].presence != Resident {
			return fmt.Errorf("ledger: object %s as a part of %s: %w; reserve with the latter as input", oid, source, ErrAway)
		}
	}
	if o == nil {
		o = l.build(r, oid)
	}
	for i, f := range ranges {
		l.append(o, f, extents[i])
		l.log.add("aliased "+source.String(), oid, id, f.Bytes)
	}
	l.verify()
	return nil
}

// Seal makes a Building object readable. The ledger keeps the header, but does not read or change
// it.
func (l *Ledger) Seal(id ObjectID, header []byte) error {
	o := l.objects[id]
	if o == nil {
		return fmt.Errorf("ledger: seal of object %s: %w; allocate it first", id, ErrUnknown)
	}
	if o.state != Building {
		return fmt.Errorf("ledger: seal of object %s, which is %s: %w; it is written once", id, o.state, ErrState)
	}
	b := o.builder.building
	o.builder.building = slices.Delete(b, slices.Index(b, o), slices.Index(b, o)+1)
	// The builder keeps the object in its place until the reservation ends.
	o.builder.holds = append(o.builder.holds, o)
	o.builder = nil
	o.state = Sealed
	o.header = header
	l.log.add("sealed", id, 0, o.view().Bytes())
	if o.known {
		l.reindex(o)
	}
	l.verify()
	return nil
}

// Drop says that an object is no longer wanted. Its bytes are freed when no pin and no lease holds
// them; the effect Freed reports that.
func (l *Ledger) Drop(id ObjectID) ([]Effect, error) {
	o, err := l.sealed(id)
	if err != nil {
		return nil, fmt.Errorf("ledger: drop: %w", err)
	}
	o.state = Dropped
	l.unpublish(o)
	l.log.add("dropped", id, 0, 0)
	out := l.serve(l.settle(o, nil))
	l.verify()
	return out, nil
}

// Restore makes a dropped object Sealed again that pins or leases still hold: it is wanted again,
// and its bytes are here. It is not a copy (see Copied) any more. Lost objects are not restored.
func (l *Ledger) Restore(id ObjectID) error {
	switch o := l.objects[id]; {
	case o == nil:
		return fmt.Errorf("ledger: object %s to be restored: %w", id, ErrUnknown)
	case o.state != Dropped || o.lost:
		return fmt.Errorf("ledger: object %s to be restored is %s, its bytes lost: %v: %w", id, o.state, o.lost, ErrState)
	default:
		o.state, o.copied = Sealed, false
		l.reindex(o)
		l.log.add("restored", id, 0, 0)
	}
	l.verify()
	return nil
}

// Rename gives new ids to dropped objects that are still held: each gets the id that name returns,
// and its old id is free for another object.
// REQUIRES: name returns ids that are free, each once, or the same id to leave an object as it is.
func (l *Ledger) Rename(name func(ObjectID) ObjectID) {
	renamed := make(map[ObjectID]ObjectID)
	for _, o := range l.sorted() {
		if o.state != Dropped {
			continue
		}
		to := name(o.id)
		if to == o.id {
			continue
		}
		l.log.add("renamed", o.id, 0, uint64(to.Task))
		renamed[o.id] = to
		delete(l.objects, o.id)
		o.id = to
		l.objects[to] = o
	}
	// order-free: each lease is changed independently.
	for _, e := range l.leases {
		if to, ok := renamed[e.Object]; ok {
			e.Object = to
		}
	}
	l.verify()
}

// Pin keeps a sealed object's bytes for a party. To pin twice has the same effect as to pin once.
func (l *Ledger) Pin(id ObjectID, p Pin) error {
	o, err := l.sealed(id)
	if err != nil {
		return fmt.Errorf("ledger: pin %s: %w", p, err)
	}
	if p.inPlace() && o.held == 0 && !o.inSlab() {
		return fmt.Errorf("ledger: pin %s of object %s: %w", p, id, ErrAway)
	}
	if !slices.ContainsFunc(o.pins, p.same) {
		o.pins = append(o.pins, p)
		l.log.pin("pinned", p, id)
		if p.inPlace() {
			l.hold(o)
		} else {
			l.reindex(o)
		}
	}
	l.verify()
	return nil
}

// Pinned says whether a party has this pin on an object.
func (l *Ledger) Pinned(id ObjectID, p Pin) bool {
	o := l.objects[id]
	return o != nil && slices.ContainsFunc(o.pins, p.same)
}

// Unpin removes a pin. ErrUnknown means that the pin did not exist, or no longer existed; a late
// message may cause that.
func (l *Ledger) Unpin(id ObjectID, p Pin) ([]Effect, error) {
	o := l.objects[id]
	i := -1
	if o != nil {
		i = slices.IndexFunc(o.pins, p.same)
	}
	if i < 0 {
		return nil, fmt.Errorf("ledger: unpin %s of object %s: %w", p, id, ErrUnknown)
	}
	l.dropPin(o, i)
	l.log.pin("unpinned", p, id)
	out := l.serve(l.settle(o, nil))
	l.verify()
	return out, nil
}

func (l *Ledger) dropPin(o *object, i int) {
	inPlace := o.pins[i].inPlace()
	o.pins = slices.Delete(o.pins, i, i+1)
	if inPlace {
		l.unhold(o)
	} else {
		l.reindex(o)
	}
}

// sealed returns an object, or an error if it is not Sealed.
func (l *Ledger) sealed(id ObjectID) (*object, error) {
	o := l.objects[id]
	if o == nil {
		return nil, fmt.Errorf("object %s is %w; ask the scheduler who has it", id, ErrUnknown)
	}
	if o.state != Sealed {
		return nil, fmt.Errorf("object %s is %s: %w; only sealed objects can be used", id, o.state, ErrState)
	}
	return o, nil
}

// settle frees a dropped object when no pin, lease or other hold is left.
func (l *Ledger) settle(o *object, out []Effect) []Effect {
	if o.state != Dropped || len(o.pins) > 0 || o.leases > 0 {
		return out
	}
	if o.held > 0 && o.inSlab() {
		l.endHolds(o)
	}
	if o.held > 0 {
		return out
	}
	return l.free(o, out)
}

// endHolds removes a dropped object from the holds of granted reservations, so that it can be freed
// at once. A reservation may live on after its task, while a transfer into it is in progress.
// Meanwhile the object may be wanted and fetched again, and then its id must be free.
func (l *Ledger) endHolds(o *object) {
	// order-free: each reservation loses the same object.
	for _, r := range l.reservations {
		if i := slices.Index(r.holds, o); i >= 0 {
			r.holds = slices.Delete(r.holds, i, i+1)
			l.unhold(o)
		}
	}
}

// free removes an object from the ledger and frees the extents that no other object uses.
func (l *Ledger) free(o *object, out []Effect) []Effect {
	delete(l.objects, o.id)
	l.unpublish(o)
	l.log.add("freed", o.id, 0, o.view().Bytes())
	out = append(out, Freed{Object: o.id})
	for _, e := range o.extents {
		if e == nil {
			continue
		}
		if o.held > 0 {
			e.busy--
		}
		if i := slices.Index(e.owners, o); i >= 0 {
			e.owners = slices.Delete(e.owners, i, i+1)
		}
		if e.refs--; e.refs == 0 {
			out = l.freeExtent(e, out)
		} else {
			l.index(e)
		}
	}
	o.extents = nil
	return out
}
