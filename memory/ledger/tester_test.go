package ledger

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
)

const mib = 1 << 20

var epoch = time.Unix(1_000_000, 0)

func obj(n int) ObjectID { return ObjectID{Task: ids.TaskID(n), Generation: 1} }

func task(n int) Holder { return Holder{Kind: HolderTask, ID: uint64(n)} }

// tester drives a ledger. It fails the test if an effect or the bytes of objects contradict the
// requests.
type tester struct {
	l   *Ledger
	t   rapid.TB
	now time.Time
	// queue are the reservations that should wait, in order. granted are those that should be
	// granted.
	queue, granted []ReservationID
	leases         []LeaseID
	next           int
	trims          int
	// loading are the granted reservations whose inputs are still being read.
	loading map[ReservationID]bool
	// io are the orders to move bytes that are still to be carried out.
	io []Effect
	// bytes are the contents of the tiers: one number for each granule.
	bytes [MaxTiers][]uint64
	// want are the expected first numbers of the frames of each object.
	want   map[ObjectID][]uint64
	stamps uint64
	lost   map[ObjectID]bool
	// published are the objects in the index. looks are the readers of published objects. recalls
	// are the readers for which each range is withheld.
	published map[ObjectID]bool
	looks     []*reading
	recalls   map[Ticket][]*reading
}

func newTester(t rapid.TB, sizeBytes uint64, below ...Tier) *tester {
	x := &tester{
		t: t, now: epoch, loading: map[ReservationID]bool{}, want: map[ObjectID][]uint64{}, lost: map[ObjectID]bool{},
		published: map[ObjectID]bool{}, recalls: map[Ticket][]*reading{},
	}
	l, err := New(Config{SizeBytes: sizeBytes, HeaderBytes: memory.HeaderBytes, Below: below, Index: x})
	if err != nil {
		t.Fatal(err)
	}
	x.l = l
	x.bytes[0] = make([]uint64, sizeBytes/alloc.Granule)
	for i, b := range below {
		x.bytes[i+1] = make([]uint64, b.SizeBytes/alloc.Granule)
	}
	return x
}

// granules returns the contents of a range, which may begin inside of a granule.
func (x *tester) granules(tier int, f memory.Frame) []uint64 {
	return x.bytes[tier][f.Offset/alloc.Granule : (f.End()+alloc.Granule-1)/alloc.Granule]
}

// allocate makes frames and writes them.
func (x *tester) allocate(id ReservationID, o ObjectID, sizes ...uint64) ([]memory.Frame, error) {
	frames, err := x.l.Allocate(id, o, sizes...)
	for _, f := range frames {
		x.stamps += 1 << 32
		x.want[o] = append(x.want[o], x.stamps)
		for i := range x.granules(0, f) {
			x.granules(0, f)[i] = x.stamps + uint64(i)
		}
	}
	return frames, err
}

// contents checks that an object has the bytes that were written, in whichever tier they are.
func (x *tester) contents(o Object) {
	copies, ok := x.l.Copies(o.ID)
	if !ok {
		if !x.lost[o.ID] {
			x.t.Fatalf("object %s has no bytes and was not lost", o.ID)
		}
		return
	}
	for i, c := range copies {
		if c.Bytes == 0 {
			continue
		}
		if f := o.Frames[i]; o.InSlab && (c.Tier != 0 || c.Frame != f) || f.Bytes != c.Bytes || c.Tier > 0 && f.Offset != Away {
			x.t.Fatalf("object %s: frame %d is at %+v, its copy at %+v", o.ID, i, f, c)
		}
		if !c.Whole.Contains(c.Frame) {
			x.t.Fatalf("object %s: the copy %+v is not in what is whole", o.ID, c)
		}
		have := x.granules(c.Tier, c.Frame)
		for j, n := range have {
			if n != x.want[o.ID][i]+uint64(j) {
				x.t.Fatalf("object %s: granule %d of frame %d in tier %d is %x, want %x\n%s", o.ID, j, i, c.Tier, n, x.want[o.ID][i]+uint64(j), strings.Join(x.l.History(o.ID), "\n"))
			}
		}
	}
}

// carryOut carries out an order to move bytes.
func (x *tester) carryOut(i int, err error) {
	order := x.io[i]
	x.io = slices.Delete(x.io, i, i+1)
	switch e := order.(type) {
	case WriteOut:
		from := x.granules(e.From.Tier, e.From.Frame)
		if err == nil {
			copy(x.granules(e.To.Tier, e.To.Frame), from)
		}
		x.effects(x.l.WriteEnded(x.now, e.Ticket, uint32(from[0]>>32), err))
	case ReadIn:
		from := x.granules(e.From.Tier, e.From.Frame)
		if uint32(from[0]>>32) != e.Sum {
			x.t.Fatalf("what is read from %+v was overwritten", e.From)
		}
		if err == nil {
			copy(x.granules(0, e.To.Frame), from)
		}
		x.effects(x.l.ReadEnded(e.Ticket, err))
	case Discard:
		clear(x.granules(e.Region.Tier, e.Region.Frame))
		x.effects(x.l.Discarded(e.Ticket))
	}
}

// settle carries out all orders to move bytes.
func (x *tester) settle() {
	for n := 0; len(x.io)+len(x.looks) > 0; n++ {
		for len(x.looks) > 0 {
			x.endLook(0)
		}
		if len(x.io) == 0 {
			return
		}
		if n > 10_000 {
			x.t.Fatalf("bytes move for ever: %v\n%+v\nqueue %v", x.io, x.l.Tiers(), x.queue)
		}
		x.carryOut(0, nil)
	}
}

func (x *tester) effects(list []Effect) {
	for _, e := range list {
		switch e := e.(type) {
		case Granted:
			if len(x.queue) == 0 || x.queue[0] != e.Reservation {
				x.t.Fatalf("reservation %d was granted before its turn; the queue is %v", e.Reservation, x.queue)
			}
			x.queue = x.queue[1:]
			x.granted = append(x.granted, e.Reservation)
			if e.Loading {
				x.loading[e.Reservation] = true
			}
		case Loaded:
			if !x.loading[e.Reservation] {
				x.t.Fatalf("reservation %d is loaded and was not loading", e.Reservation)
			}
			delete(x.loading, e.Reservation)
		case LoadFailed:
			if !x.loading[e.Reservation] {
				x.t.Fatalf("reservation %d lost an input and was not loading", e.Reservation)
			}
		case Lost:
			x.lost[e.Object] = true
			if o, ok := x.l.Lookup(e.Object); ok && o.State == Sealed {
				x.t.Fatalf("object %s is lost and sealed", e.Object)
			}
		case CopyDropped:
			if o, ok := x.l.Lookup(e.Object); ok {
				x.t.Fatalf("object %s was dropped as a copy and is %s", e.Object, o.State)
			}
		case WriteOut, ReadIn, Discard:
			x.io = append(x.io, e)
		case TierFailed:
		case Refused:
			if !errors.Is(e.Err, ErrNoRoom) {
				x.t.Fatalf("refused for another reason: %v", e.Err)
			}
			x.queue = slices.DeleteFunc(x.queue, func(id ReservationID) bool { return id == e.Reservation })
		case LeaseExpired:
			if held, _ := x.l.EndLease(x.now, e.Lease.ID); held {
				x.t.Fatalf("lease %d expired and then held", e.Lease.ID)
			}
		case PunchHoles:
			x.trims++
		case Freed:
			delete(x.want, e.Object)
			delete(x.lost, e.Object)
			if _, ok := x.l.Lookup(e.Object); ok {
				x.t.Fatalf("object %s was freed and is there", e.Object)
			}
		}
	}
	x.check()
}

func (x *tester) check() {
	if err := x.l.Check(); err != nil {
		x.t.Fatal(err)
	}
	// If the first waiting reservation fits, it has missed its grant.
	if len(x.l.waiting) > 0 && len(x.l.waiting[0].inputs) == 0 && x.l.mayGrant(x.l.waiting[0]) && x.l.setAside(x.l.waiting[0]) {
		x.t.Fatalf("reservation %d waits although it fits", x.l.waiting[0].id)
	}
	x.checkLooks()
	// No byte belongs to two extents, in whichever state their objects are.
	var all []memory.Frame
	seen := map[*extent]bool{}
	for _, o := range x.l.sorted() {
		for _, e := range o.extents {
			if e != nil && !seen[e] && e.places[0].presence != Absent {
				seen[e] = true
				all = append(all, e.frame(0))
			}
		}
		x.contents(o.view())
	}
	for _, id := range x.granted {
		r := x.l.reservations[id]
		for _, o := range r.holds {
			if r.loading == 0 && !x.lost[o.id] && !o.inSlab() {
				x.t.Fatalf("object %s is held by reservation %d, which is ready, and not in the slab", o.id, id)
			}
		}
	}
	slices.SortFunc(all, func(a, b memory.Frame) int { return int(int64(a.Offset) - int64(b.Offset)) })
	end := uint64(memory.HeaderBytes)
	for _, f := range all {
		if f.Offset < end {
			x.t.Fatalf("frame at %d overlaps what ends at %d", f.Offset, end)
		}
		end = f.End()
	}
}

func (x *tester) reserve(h Holder, wait time.Duration, sizes ...uint64) (ReservationID, bool) {
	return x.ask(Request{Holder: h, Bytes: sizes}, wait)
}

func (x *tester) ask(q Request, wait time.Duration) (ReservationID, bool) {
	x.next++
	id := ReservationID(x.next)
	q.ID, q.Deadline = id, x.now.Add(wait)
	progress, out, err := x.l.Reserve(x.now, q)
	switch {
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrNoRoom) && wait <= 0:
		x.effects(out)
		return 0, false
	case err != nil:
		x.t.Fatal(err)
	case progress != Waiting:
		x.granted = append(x.granted, id)
		if progress == Loading {
			x.loading[id] = true
		}
	case q.Urgent:
		i := 0
		for i < len(x.queue) && x.l.reservations[x.queue[i]].urgent {
			i++
		}
		x.queue = slices.Insert(x.queue, i, id)
	default:
		x.queue = append(x.queue, id)
	}
	x.effects(out)
	return id, progress != Waiting
}

func (x *tester) release(id ReservationID) {
	x.granted = slices.DeleteFunc(x.granted, func(g ReservationID) bool { return g == id })
	x.queue = slices.DeleteFunc(x.queue, func(g ReservationID) bool { return g == id })
	delete(x.loading, id)
	out, err := x.l.Release(id)
	if err != nil {
		x.t.Fatal(err)
	}
	x.effects(out)
}

func (x *tester) make(n int, sizes ...uint64) []memory.Frame {
	id, ok := x.reserve(task(n), 0, sizes...)
	if !ok {
		x.t.Fatalf("no room for object %d", n)
	}
	frames, err := x.allocate(id, obj(n), sizes...)
	if err != nil {
		x.t.Fatal(err)
	}
	if err := x.l.Seal(obj(n), []byte("header")); err != nil {
		x.t.Fatal(err)
	}
	x.release(id)
	return frames
}

func (x *tester) unpin(id ObjectID, p Pin) {
	out, err := x.l.Unpin(id, p)
	if err != nil {
		x.t.Fatal(err)
	}
	x.effects(out)
}

// holderGone ends all that a party keeps: its leases, its pins and its reservations.
func (x *tester) holderGone(h Holder) {
	for _, id := range slices.Sorted(maps.Keys(x.l.leases)) {
		if e := x.l.leases[id]; e.Holder == h {
			_, out := x.l.EndLease(x.now, id)
			x.effects(out)
		}
	}
	for _, o := range x.l.Objects() {
		for _, p := range slices.Clone(o.Pins) {
			if p.Holder == h {
				x.unpin(o.ID, p)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(x.l.reservations)) {
		if r := x.l.reservations[id]; r != nil && r.holder == h {
			x.release(id)
		}
	}
}

// drain lets every holder finish, and no deadline passes. At the end, every waiting reservation
// must have been served and the slab must be empty.
func (x *tester) drain() {
	x.effects(x.l.Punched(true))
	x.settle()
	for rounds := 0; len(x.l.reservations)+len(x.l.objects) > 0; rounds++ {
		before := len(x.queue)
		for len(x.granted) > 0 {
			x.release(x.granted[0])
		}
		for _, o := range x.l.Objects() {
			for _, p := range slices.Clone(o.Pins) {
				x.unpin(o.ID, p)
			}
			x.settle()
			if o, ok := x.l.Lookup(o.ID); ok && o.State == Sealed {
				out, err := x.l.Drop(o.ID)
				if err != nil {
					x.t.Fatal(err)
				}
				x.effects(out)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(x.l.leases)) {
			_, out := x.l.EndLease(x.now, id)
			x.effects(out)
		}
		if before > 0 && len(x.queue) == before {
			x.t.Fatalf("everyone finished and the queue %v did not move", x.queue)
		}
	}
	x.settle()
	for _, tier := range x.l.Tiers()[1:] {
		if tier.UsedBytes != 0 {
			x.t.Fatalf("an empty ledger has %+v", tier)
		}
	}
	if s := x.l.Stats(); s.HeldBytes+s.ReservedBytes+s.TrimmingBytes != 0 || s.FreeBytes != s.LargestFreeBytes {
		x.t.Fatalf("an empty ledger has %+v", s)
	}
}
