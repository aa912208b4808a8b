package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
)

// State is the life-cycle of an object.
type State uint8

// The states, in order.
const (
	// Building: its frames are being written within a reservation.
	Building State = iota + 1
	// Sealed: it can be read, pinned and leased.
	Sealed
	// Dropped: not wanted any more; exactly those dropped objects are still
	// there that have a pin or a read lease.
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

// Reason says why a pin keeps an object.
type Reason uint8

// The reasons. Readers outside of the worker do not pin, they lease.
const (
	// PinInput: a task assigned here will read it.
	PinInput Reason = iota + 1
	// PinPublish: it is on its way out, or a client asked to keep it here.
	PinPublish
	// PinExecutor: an executor process has it open.
	PinExecutor
)

// String returns the reason's name in small letters.
func (r Reason) String() string {
	switch r {
	case PinInput:
		return "input"
	case PinPublish:
		return "publish"
	case PinExecutor:
		return "executor"
	}
	return "unknown"
}

// Pin keeps an object's bytes until it is taken off. One party has at most one
// pin per reason and attempt on an object.
type Pin struct {
	Reason Reason
	Holder Holder
	// Attempt tells the runs of one task apart: one that was cancelled may still
	// read its inputs when the next one has begun. 0 for other parties.
	Attempt ids.Attempt
}

// String returns reason, holder and attempt, as in "input t42/a1".
func (p Pin) String() string {
	if p.Attempt == 0 {
		return p.Reason.String() + " " + p.Holder.String()
	}
	return p.Reason.String() + " " + p.Holder.String() + "/" + p.Attempt.String()
}

// extent is the memory behind frames: one block of the allocator.
type extent struct {
	memory.Frame // as asked for, before rounding
	// refs is the number of frames, of all objects, that lie in it.
	refs int
}

type object struct {
	id     ObjectID
	state  State
	header []byte
	frames []memory.Frame
	// extents[i] is the memory of frames[i], nil exactly for empty frames.
	extents []*extent
	pins    []Pin
	leases  int
	// builder is the reservation, exactly while Building.
	builder *reservation
}

// Object is what the ledger knows of one object. Its slices belong to the
// ledger: read them, do not keep them across a step that may free the object.
type Object struct {
	ID     ObjectID
	State  State
	Header []byte
	Frames []memory.Frame
	Pins   []Pin
	Leases int
}

// Bytes returns the sum of the frames' lengths.
func (o Object) Bytes() (n uint64) {
	for _, f := range o.Frames {
		n += f.Bytes
	}
	return n
}

func (o *object) view() Object {
	return Object{ID: o.id, State: o.state, Header: o.header, Frames: o.frames, Pins: o.pins, Leases: o.leases}
}

// Lookup returns an object in any state.
func (l *Ledger) Lookup(id ObjectID) (Object, bool) {
	o := l.objects[id]
	if o == nil {
		return Object{}, false
	}
	return o.view(), true
}

// Objects returns all objects by task and generation; the sealed ones among
// them are the inventory that a worker reports when it reconnects.
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

// sortedKeys makes the order of a map that reaches effects a fixed one.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// build creates an object. REQUIRES: the id is free.
func (l *Ledger) build(r *reservation, id ObjectID) *object {
	o := &object{id: id, state: Building, builder: r}
	l.objects[id] = o
	r.building = append(r.building, o)
	l.log.add("building", id, r.id, 0)
	return o
}

// Alias makes frames of a Building object (created if it is not there) out of
// ranges of another one's: each range must lie in one frame of the source,
// which is sealed, or dropped and still held. The memory is shared: it is
// counted once and freed with the last object that has a frame in it. The
// reservation gives nothing; it is who builds the object.
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
	extents := make([]*extent, len(ranges))
	for i, f := range ranges {
		if f.Bytes == 0 {
			continue
		}
		j := slices.IndexFunc(src.frames, func(in memory.Frame) bool { return in.Contains(f) })
		if j < 0 {
			return fmt.Errorf("ledger: object %s as a part of %s: bytes [%d, +%d): %w; name a range inside of one frame", oid, source, f.Offset, f.Bytes, ErrRange)
		}
		extents[i] = src.extents[j]
	}
	if o == nil {
		o = l.build(r, oid)
	}
	for i, f := range ranges {
		if extents[i] != nil {
			extents[i].refs++
		} else {
			f = memory.Frame{}
		}
		o.frames = append(o.frames, f)
		o.extents = append(o.extents, extents[i])
		l.log.add("aliased "+source.String(), oid, id, f.Bytes)
	}
	l.verify()
	return nil
}

// Seal makes a Building object readable. The header is opaque to the ledger,
// which keeps it and does not change it.
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
	o.builder = nil
	o.state = Sealed
	o.header = header
	l.log.add("sealed", id, 0, o.view().Bytes())
	l.verify()
	return nil
}

// Drop says that an object is not wanted any more. Its bytes are free once no
// pin and no lease holds them; Freed tells.
func (l *Ledger) Drop(id ObjectID) ([]Effect, error) {
	o, err := l.sealed(id, "drop")
	if err != nil {
		return nil, err
	}
	o.state = Dropped
	l.log.add("dropped", id, 0, 0)
	out := l.serve(l.settle(o, nil))
	l.verify()
	return out, nil
}

// Pin keeps a sealed object's bytes for a party. Doing it twice is doing it
// once.
func (l *Ledger) Pin(id ObjectID, p Pin) error {
	o, err := l.sealed(id, "pin "+p.String())
	if err != nil {
		return err
	}
	if !slices.Contains(o.pins, p) {
		o.pins = append(o.pins, p)
		l.log.add("pinned "+p.String(), id, 0, 0)
	}
	l.verify()
	return nil
}

// Unpin takes a pin off. ErrUnknown means that it was not there (any more),
// which a late message may cause.
func (l *Ledger) Unpin(id ObjectID, p Pin) ([]Effect, error) {
	o := l.objects[id]
	i := -1
	if o != nil {
		i = slices.Index(o.pins, p)
	}
	if i < 0 {
		return nil, fmt.Errorf("ledger: unpin %s of object %s: %w", p, id, ErrUnknown)
	}
	o.pins = slices.Delete(o.pins, i, i+1)
	l.log.add("unpinned "+p.String(), id, 0, 0)
	out := l.serve(l.settle(o, nil))
	l.verify()
	return out, nil
}

func dropPins(pins []Pin, h Holder) []Pin {
	return slices.DeleteFunc(pins, func(p Pin) bool { return p.Holder == h })
}

// sealed finds an object that must be Sealed for what is to be done.
func (l *Ledger) sealed(id ObjectID, what string) (*object, error) {
	o := l.objects[id]
	if o == nil {
		return nil, fmt.Errorf("ledger: %s: object %s is %w; ask the scheduler who has it", what, id, ErrUnknown)
	}
	if o.state != Sealed {
		return nil, fmt.Errorf("ledger: %s: object %s is %s: %w; only sealed objects can be used", what, id, o.state, ErrState)
	}
	return o, nil
}

// settle frees a dropped object that nothing holds any more.
func (l *Ledger) settle(o *object, out []Effect) []Effect {
	if o.state != Dropped || len(o.pins) > 0 || o.leases > 0 {
		return out
	}
	return l.free(o, out)
}

// free forgets an object and gives back the extents that were its alone.
func (l *Ledger) free(o *object, out []Effect) []Effect {
	for _, e := range o.extents {
		if e == nil {
			continue
		}
		if e.refs--; e.refs == 0 {
			l.space.Free(e.Offset)
			l.extentBytes -= alloc.Rounded(e.Bytes)
		}
	}
	delete(l.objects, o.id)
	l.log.add("freed", o.id, 0, o.view().Bytes())
	return append(out, Freed{Object: o.id})
}
