package ledger

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
)

// reading is a reader that found objects in the index, with the expected bytes of their frames.
type reading struct {
	frames []memory.Frame
	want   [][]uint64
}

// Unpublish is part of ObjectIndex.
func (x *tester) Unpublish(id ObjectID) { delete(x.published, id) }

// Vacate is part of ObjectIndex: it waits for all present readers, whichever ranges they read.
func (x *tester) Vacate(ticket Ticket, block memory.Frame) bool {
	for id := range x.published {
		o := x.l.objects[id]
		for i := range o.extents {
			if f := o.frames[i]; f.Bytes > 0 && block.Contains(f) {
				x.t.Fatalf("object %s is in the index, and frame %d was given up", id, i)
			}
		}
	}
	if len(x.looks) == 0 {
		return true
	}
	x.recalls[ticket] = slices.Clone(x.looks)
	return false
}

// publish puts an object into the index, in whichever state it is.
func (x *tester) publish(id ObjectID) {
	x.published[id] = true
	x.l.Published(id)
	if o, ok := x.l.Lookup(id); x.published[id] != (ok && o.State != Dropped && o.InSlab) || x.published[id] != x.l.IsPublished(id) {
		x.t.Fatalf("object %s, which is %+v, is published: %v", id, o, x.published[id])
	}
}

// look begins to read everything that is published.
func (x *tester) look() {
	r := &reading{}
	for id := range x.published {
		o, _ := x.l.Lookup(id)
		for _, f := range o.Frames {
			if f.Bytes > 0 {
				r.frames = append(r.frames, f)
				r.want = append(r.want, slices.Clone(x.granules(0, f)))
			}
		}
	}
	x.looks = append(x.looks, r)
}

// checkLooks checks that no range was overwritten while it was read.
func (x *tester) checkLooks() {
	for _, r := range x.looks {
		for i, f := range r.frames {
			if !slices.Equal(x.granules(0, f), r.want[i]) {
				x.t.Fatalf("range [%d, +%d) was overwritten while it was read", f.Offset, f.Bytes)
			}
		}
	}
	for _, f := range x.l.recalls {
		if x.l.space.Bytes(f.Offset) != f.Bytes {
			x.t.Fatalf("range [%d, +%d) was to be withheld", f.Offset, f.Bytes)
		}
	}
	if len(x.recalls) != len(x.l.recalls) {
		x.t.Fatalf("%d ranges are withheld, and %d recalled", len(x.l.recalls), len(x.recalls))
	}
}

// endLook ends one reader, and reports the ranges that were withheld only for that reader.
func (x *tester) endLook(i int) {
	r := x.looks[i]
	x.looks = slices.Delete(x.looks, i, i+1)
	var over []Ticket
	for _, ticket := range slices.Sorted(maps.Keys(x.recalls)) {
		if x.recalls[ticket] = slices.DeleteFunc(x.recalls[ticket], func(o *reading) bool { return o == r }); len(x.recalls[ticket]) == 0 {
			delete(x.recalls, ticket)
			over = append(over, ticket)
		}
	}
	x.effects(x.l.Recalled(over...))
}

func TestOnlyMemoryThatIsReadIsWithheld(t *testing.T) {
	x := newTester(t, 4*mib)
	x.make(1, mib)
	x.make(2, mib)
	x.publish(obj(1))
	x.publish(obj(2))
	drop := func(n int) {
		t.Helper()
		out, err := x.l.Drop(obj(n))
		if err != nil {
			t.Fatal(err)
		}
		x.effects(out)
	}
	free := x.l.Stats().FreeBytes
	drop(1)
	if s := x.l.Stats(); s.FreeBytes != free+mib || len(x.l.recalls) != 0 {
		t.Errorf("nobody reads, and of %d bytes %d are free", free+mib, s.FreeBytes)
	}
	x.look()
	drop(2)
	if s := x.l.Stats(); s.FreeBytes != free+mib || s.HeldBytes != mib || s.Objects != 0 {
		t.Errorf("while it is read: %+v", s)
	}
	// A caller that does not wait is refused. A waiting caller is served when the reader has ended.
	if _, ok := x.reserve(task(1), 0, 2*mib, mib/2); ok {
		t.Error("what is read was reserved")
	}
	id, ok := x.reserve(task(2), time.Second, 2*mib, mib/2)
	if ok {
		t.Error("what is read was reserved")
	}
	// A waiting reservation is not refused at its deadline while the reader is only slow.
	x.now = x.now.Add(2 * time.Second)
	x.effects(x.l.Expire(x.now))
	if len(x.queue) != 1 {
		t.Fatal("it was refused, though what it waits for ends by itself")
	}
	// The reservation does not wait for a reader that comes later.
	x.look()
	x.endLook(0)
	if len(x.queue) != 0 || !slices.Contains(x.granted, id) {
		t.Errorf("queue %v, granted %v", x.queue, x.granted)
	}
	x.endLook(0)
}

func TestEvictionWaitsForReadersAndTakesNoMoreForThat(t *testing.T) {
	x := newTester(t, 8*mib, disk(64*mib))
	for n := 1; n <= 6; n++ {
		x.make(n, mib)
		x.publish(obj(n))
	}
	x.settle()
	x.look()
	id, ok := x.reserve(task(9), time.Hour, mib, mib, mib)
	for len(x.io) > 0 {
		x.carryOut(0, nil)
	}
	left := 0
	for n := 1; n <= 6; n++ {
		if o, _ := x.l.Lookup(obj(n)); !o.InSlab {
			left++
		}
	}
	if ok || left == 0 || left > 3 || len(x.recalls) != left {
		t.Errorf("granted %v, %d objects left the slab, %d ranges are withheld", ok, left, len(x.recalls))
	}
	x.endLook(0)
	if !slices.Contains(x.granted, id) {
		t.Errorf("it waits on: %v", x.queue)
	}
}

// A new frame is not written into the memory of an alias while the alias is read.
func TestMemoryThatWasSharedWithWhatIsReadIsNotBuiltInAnew(t *testing.T) {
	x := newTester(t, 4*mib)
	frames := x.make(1, mib)
	x.publish(obj(1))
	x.look()
	r, _ := x.reserve(task(2), 0, mib)
	if err := x.l.Alias(r, obj(2), obj(1), frames[0]); err != nil {
		t.Fatal(err)
	}
	x.want[obj(2)] = x.want[obj(1)]
	out, err := x.l.Drop(obj(1))
	if err != nil {
		t.Fatal(err)
	}
	x.effects(out)
	x.l.Rebuild(r, obj(2))
	delete(x.want, obj(2))
	for range 2 {
		if _, err := x.allocate(r, obj(2), mib); err != nil && !errors.Is(err, ErrOutgrown) {
			t.Fatal(err)
		}
	}
	x.check()
	x.endLook(0)
	x.release(r)
}

// An object that is followed while it is built is rebuilt in the same memory, unless a reader uses
// that memory: then it is rebuilt in other memory.
func TestAnObjectWithReadersIsBuiltAgainElsewhere(t *testing.T) {
	x := newTester(t, 4*mib)
	id, ok := x.reserve(task(1), 0, mib)
	if !ok {
		t.Fatal("no room")
	}
	build := func() memory.Frame {
		t.Helper()
		frames, err := x.allocate(id, obj(1), mib)
		if err != nil {
			t.Fatal(err)
		}
		x.publish(obj(1))
		return frames[0]
	}
	anew := func() {
		t.Helper()
		delete(x.want, obj(1))
		x.l.Rebuild(id, obj(1))
		if x.published[obj(1)] {
			t.Error("what was given up is still in the index")
		}
	}
	first := build()
	anew()
	if second := build(); second != first {
		t.Errorf("nobody reads, and it goes to %+v, not to %+v", second, first)
	}
	x.look()
	anew()
	if len(x.l.recalls) != 1 {
		t.Error("what is read is not withheld")
	}
	if third := build(); third == first {
		t.Error("it goes where it is being read")
	}
	x.checkLooks()
	x.endLook(0)
	if err := x.l.Seal(obj(1), nil); err != nil || !x.published[obj(1)] || !x.l.IsPublished(obj(1)) {
		t.Errorf("sealed, it is not in the index any more (%v)", err)
	}
	x.release(id)
	x.check()
}
