package ledger

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
)

// Presence says whether an extent is in a tier.
type Presence uint8

// The presences.
const (
	Absent Presence = iota
	// Coming: its place is set aside and being filled.
	Coming
	// Resident: its bytes are there.
	Resident
)

// String returns the presence's name in small letters.
func (p Presence) String() string {
	switch p {
	case Absent:
		return "absent"
	case Coming:
		return "coming"
	case Resident:
		return "resident"
	}
	return "unknown"
}

// place is where an extent lies in one tier; offset means nothing while Absent.
type place struct {
	presence Presence
	offset   uint64
}

// extent is the memory behind frames: in each tier where it has a place, one
// block of the tier's allocator.
type extent struct {
	bytes  uint64 // as asked for, before rounding
	places [MaxTiers]place
	// sum is the checksum of its bytes, known once it was written out.
	sum uint32
	// refs is the number of frames, of all objects, that lie in it; owners are
	// those objects. refs is 0 only while a transfer keeps it.
	refs   int
	owners []*object
	// one has owners, mostly.
	one [1]*object
	// busy is how many of its frames belong to objects that are held: while it is
	// not 0, it does not leave the slab, nor the only place that it has.
	busy int
	// leases is how many of its frames belong to objects under lease, each as often
	// as it has leases: while it is not 0, no copy in any tier is given up.
	leases int
	// shown: objects in it are, or were, on the board while it lay where it lies in
	// the slab.
	shown bool
	// transfer is on its way, nil if none is.
	transfer *transfer
	// use is the lowest rank at which one of its objects is needed; touched says
	// when it was used last, in ledger time.
	use, touched uint64
	// effort is the highest of its objects'; see object.effort.
	effort int
	// kept is the number of the last search for victims that was to leave it.
	kept uint64
	// seen is the ledger time at which loads listed it last.
	seen uint64
	// victims[i] is the heap that it is in as a victim of tier i, at slot[i].
	victims [MaxTiers]*victims
	slot    [MaxTiers]int
}

// frame returns where it lies in a tier.
func (e *extent) frame(tier int) memory.Frame {
	return memory.Frame{Offset: e.places[tier].offset, Bytes: e.bytes}
}

// best returns the fastest tier in which its bytes are, -1 if they are lost.
func (e *extent) best() int {
	return slices.IndexFunc(e.places[:], func(p place) bool { return p.presence == Resident })
}

// clean says that a tier below i has a copy.
func (e *extent) clean(i int) bool {
	for _, p := range e.places[i+1:] {
		if p.presence == Resident {
			return true
		}
	}
	return false
}

// spare says that all its objects are copies of peers' that nobody waits for
// here.
func (e *extent) spare() bool {
	for _, o := range e.owners {
		if !o.copied || o.state != Sealed || len(o.pins) > 0 {
			return false
		}
	}
	return len(e.owners) > 0
}

// Ticket names an order of the ledger to move or discard bytes.
type Ticket uint64

// Region is a range of a tier; tier 0 is the slab.
type Region struct {
	Tier int
	memory.Frame
}

// transfer is a WriteOut or a ReadIn that has not ended.
type transfer struct {
	ticket   Ticket
	extent   *extent
	from, to int
	// waiters are the reservations that want it in the slab. Each is once in the
	// list for each transfer that it waits for.
	waiters []*reservation
}

// The limits of how long a tier stays closed after a failure.
const (
	firstBackoff   = time.Second
	longestBackoff = time.Minute
)

// tier is the state of one tier.
type tier struct {
	Tier
	space *alloc.Allocator
	// heldBytes are the blocks of all places; of these, cleanBytes have a
	// copy in a tier below, leavingBytes are being written there.
	heldBytes, cleanBytes, leavingBytes uint64
	// discardBytes are withheld until Discarded, in the slab until Recalled. Below littered, the system may keep
	// room for copies that were too small for that.
	discardBytes, littered uint64
	// strewn: some of that was really written, so that there is room when it is gone.
	strewn bool
	// cheap are the victims that leave for nothing, costly those that must be
	// written.
	cheap, costly victims
	// inBytes and outBytes were read from here and written here, ever.
	inBytes, outBytes uint64
	// failed is why nothing is written here, nil if it works; from retry on one
	// write at a time is tried.
	failed  error
	retry   time.Time
	backoff time.Duration
	trying  bool
	writes  int // on their way here
}

// open says whether something may be written here now.
func (t *tier) open() bool { return t.failed == nil || t.trying && t.writes == 0 }

// tryAgain lets a closed tier be tried before its time: something was freed there,
// and it may have been full.
func (t *tier) tryAgain() { t.trying = t.failed != nil }

// block returns what n bytes occupy.
func (t *tier) block(n uint64) uint64 {
	if unit := t.UnitBytes; unit > alloc.Granule {
		n = (n + unit - 1) / unit * unit
	}
	return alloc.Rounded(n)
}

func (l *Ledger) initTiers() error {
	l.tiers = []*tier{{Tier: Tier{Name: "slab", SizeBytes: l.config.SizeBytes}, space: l.space}}
	if len(l.config.Below) >= MaxTiers {
		return fmt.Errorf("ledger: %d tiers below the slab: at most %d", len(l.config.Below), MaxTiers-1)
	}
	for _, c := range l.config.Below {
		space, err := alloc.New(c.SizeBytes)
		if err != nil {
			return fmt.Errorf("ledger: tier %s: %w", c.Name, err)
		}
		l.tiers = append(l.tiers, &tier{Tier: c, space: space})
	}
	return nil
}

// settlePlaces keeps the sum of clean bytes and the victims right after an
// extent's places, transfer, users or uses have changed. before is what
// cleanTiers returned before the change.
func (l *Ledger) settlePlaces(e *extent, before [MaxTiers]bool) {
	after := l.cleanTiers(e)
	for i, t := range l.tiers {
		if n := t.block(e.bytes); before[i] && !after[i] {
			t.cleanBytes -= n
		} else if after[i] && !before[i] {
			t.cleanBytes += n
		}
	}
	l.index(e)
}

func (l *Ledger) cleanTiers(e *extent) (clean [MaxTiers]bool) {
	for i := range l.tiers {
		clean[i] = e.places[i].presence != Absent && e.clean(i)
	}
	return clean
}

// occupy notes a block taken in a tier.
func (l *Ledger) occupy(e *extent, i int, offset uint64, p Presence) {
	before := l.cleanTiers(e)
	l.tiers[i].heldBytes += l.tiers[i].block(e.bytes)
	e.places[i] = place{presence: p, offset: offset}
	if i == 0 {
		l.moved(e)
	}
	l.settlePlaces(e, before)
}

// clear forgets a place whose block was given back.
func (l *Ledger) clear(e *extent, i int) {
	before := l.cleanTiers(e)
	l.tiers[i].heldBytes -= l.tiers[i].block(e.bytes)
	e.places[i] = place{}
	if i == 0 {
		l.moved(e)
	}
	l.settlePlaces(e, before)
}

// discard is a range that is being given back.
type discard struct {
	Region
	// unwritten: what was written there last could not be, so that there is no more
	// room now than before that.
	unwritten bool
}

// vacate gives a place up.
func (l *Ledger) vacate(e *extent, i int, out []Effect) []Effect {
	t := l.tiers[i]
	n := t.block(e.bytes)
	region := Region{i, memory.Frame{Offset: e.places[i].offset, Bytes: n}}
	unwritten := e.places[i].presence == Coming
	l.clear(e, i)
	if i == 0 && l.recall(e, region.Frame) {
		return out
	}
	if t.DiscardBytes == 0 {
		t.space.Free(region.Offset)
		return out
	}
	if n < t.DiscardBytes {
		t.space.Free(region.Offset)
		t.littered = max(t.littered, region.End())
		t.strewn = t.strewn || !unwritten
		return l.sweep(i, out)
	}
	t.discardBytes += n
	l.tickets++
	l.discards[l.tickets] = discard{region, unwritten}
	return append(out, Discard{Ticket: l.tickets, Region: region})
}

// sweep discards what small copies have left in a tier, once there is nothing else.
func (l *Ledger) sweep(i int, out []Effect) []Effect {
	t := l.tiers[i]
	if t.heldBytes > 0 || t.discardBytes > 0 || t.littered == 0 || !t.space.Claim(0, t.littered) {
		return out
	}
	region := Region{i, memory.Frame{Bytes: t.littered}}
	l.tickets++
	l.discards[l.tickets] = discard{region, !t.strewn}
	t.discardBytes, t.littered, t.strewn = t.littered, 0, false
	return append(out, Discard{Ticket: l.tickets, Region: region})
}

// moved makes the frames of an extent's objects be found anew.
func (l *Ledger) moved(e *extent) {
	for _, o := range e.owners {
		o.stale = true
	}
}

// Discarded says that a Discard was carried out, or could not be, which makes no
// difference to the books.
func (l *Ledger) Discarded(ticket Ticket) []Effect {
	r, ok := l.discards[ticket]
	if !ok {
		return nil
	}
	delete(l.discards, ticket)
	l.tiers[r.Tier].discardBytes -= r.Bytes
	l.tiers[r.Tier].space.Free(r.Offset)
	if !r.unwritten {
		l.tiers[r.Tier].tryAgain()
	}
	out := l.serve(l.sweep(r.Tier, nil))
	l.verify()
	return out
}

// begin notes a transfer and returns it. Its place in the target is set aside.
func (l *Ledger) begin(e *extent, from, to int, offset uint64) *transfer {
	l.tickets++
	x := &transfer{ticket: l.tickets, extent: e, from: from, to: to}
	l.transfers[x.ticket] = x
	e.transfer = x
	l.occupy(e, to, offset, Coming)
	if to > from {
		l.tiers[from].leavingBytes += l.tiers[from].block(e.bytes)
		l.tiers[to].writes++
	}
	return x
}

// writeOut starts to write an extent to a tier below, where its place is.
func (l *Ledger) writeOut(e *extent, from, to int, offset uint64, why string, out []Effect) []Effect {
	x := l.begin(e, from, to, offset)
	l.tell(e, "leaving "+l.tiers[from].Name+" for "+l.tiers[to].Name+": "+why)
	return append(out, WriteOut{Ticket: x.ticket, From: Region{from, e.frame(from)}, To: Region{to, e.frame(to)}})
}

// readIn starts to read an extent into the slab, where its place is.
func (l *Ledger) readIn(e *extent, offset uint64, out []Effect) []Effect {
	from := e.best()
	x := l.begin(e, from, 0, offset)
	l.tell(e, "coming from "+l.tiers[from].Name)
	return append(out, ReadIn{Ticket: x.ticket, From: Region{from, e.frame(from)}, To: Region{0, e.frame(0)}, Sum: e.sum})
}

// tell writes a line into the story of each object of an extent.
func (l *Ledger) tell(e *extent, verb string) {
	for _, o := range e.owners {
		l.log.add(verb, o.id, 0, e.bytes)
	}
}

// WriteEnded says that a WriteOut is done, with the checksum of the bytes, or has
// failed: then the bytes stay where they are, and nothing more is written to that
// tier for a while.
func (l *Ledger) WriteEnded(now time.Time, ticket Ticket, sum uint32, err error) []Effect {
	x := l.transfers[ticket]
	if x == nil || x.to < x.from {
		return nil
	}
	e, t := x.extent, l.tiers[x.to]
	var out []Effect
	delete(l.transfers, ticket)
	e.transfer = nil
	l.tiers[x.from].leavingBytes -= l.tiers[x.from].block(e.bytes)
	t.writes--
	if err != nil {
		out = l.vacate(e, x.to, out)
		l.tell(e, "stays: could not be written to "+t.Name)
		// Those that were on their way with the first one tell nothing new.
		if t.failed == nil || t.trying {
			t.backoff = min(max(2*t.backoff, firstBackoff), longestBackoff)
			t.failed, t.retry, t.trying = err, now.Add(t.backoff), false
			out = append(out, TierFailed{Tier: x.to, Retry: t.retry, Err: err})
		}
	} else {
		before := l.cleanTiers(e)
		e.sum = sum
		e.places[x.to].presence = Resident
		l.settlePlaces(e, before)
		t.outBytes += e.bytes
		if t.trying {
			t.failed, t.backoff, t.trying = nil, 0, false
			out = append(out, TierFailed{Tier: x.to})
		}
	}
	out = l.arrive(x, out)
	out = l.serve(out)
	l.verify()
	return out
}

// ReadEnded says that a ReadIn is done, or has failed for good: that copy of the
// bytes is lost, and if it was the only one, so are the objects.
func (l *Ledger) ReadEnded(ticket Ticket, err error) []Effect {
	x := l.transfers[ticket]
	if x == nil || x.to > x.from {
		return nil
	}
	e := x.extent
	var out []Effect
	delete(l.transfers, ticket)
	e.transfer = nil
	if err == nil {
		before := l.cleanTiers(e)
		e.places[0].presence = Resident
		l.moved(e)
		l.settlePlaces(e, before)
		l.tiers[x.from].inBytes += e.bytes
	} else {
		l.tell(e, "could not be read from "+l.tiers[x.from].Name)
		out = l.vacate(e, x.from, out)
		if e.refs > 0 && e.best() > 0 {
			// Another tier has it too. The place in the slab goes over.
			offset := e.places[0].offset
			l.tiers[0].heldBytes -= l.tiers[0].block(e.bytes)
			e.places[0] = place{}
			out = l.readIn(e, offset, out)
			e.transfer.waiters = x.waiters
			l.verify()
			return out
		}
		out = l.vacate(e, 0, out)
		out = l.lose(e, x, err, out)
		x.waiters = nil
	}
	out = l.arrive(x, out)
	out = l.serve(out)
	l.verify()
	return out
}

// arrive ends a transfer: whoever waited for it goes on, and what nobody needs
// any more is freed.
func (l *Ledger) arrive(x *transfer, out []Effect) []Effect {
	for _, r := range x.waiters {
		if r.loading--; r.loading == 0 {
			out = append(out, Loaded{Reservation: r.id})
		}
	}
	if x.extent.refs == 0 {
		return l.freeExtent(x.extent, out)
	}
	l.index(x.extent)
	return out
}

// Lose says that an object's bytes were found to be broken by a reader.
func (l *Ledger) Lose(id ObjectID, err error) []Effect {
	o := l.objects[id]
	if o == nil || o.state != Sealed {
		return nil
	}
	o.state = Dropped
	l.hide(o)
	l.log.add("lost to a reader", id, 0, 0)
	out := l.settle(o, []Effect{Lost{Object: id, Err: err}})
	out = l.serve(out)
	l.verify()
	return out
}

// lose takes objects out whose bytes are gone.
func (l *Ledger) lose(e *extent, x *transfer, err error, out []Effect) []Effect {
	for _, o := range slices.Clone(e.owners) {
		if o.state == Sealed {
			o.state = Dropped
			l.hide(o)
			l.log.add("lost", o.id, 0, e.bytes)
			out = append(out, Lost{Object: o.id, Err: fmt.Errorf("ledger: object %s of %s is lost: %w", o.id, size(o.view().Bytes()), err)})
		}
		for _, r := range x.waiters {
			if slices.Contains(r.holds, o) {
				out = append(out, LoadFailed{Reservation: r.id, Object: o.id, Err: err})
			}
		}
		out = l.settle(o, out)
	}
	return out
}

// freeExtent gives all places of an extent up, or leaves that to the end of its
// transfer.
func (l *Ledger) freeExtent(e *extent, out []Effect) []Effect {
	if e.transfer != nil {
		l.index(e)
		return out
	}
	for i := range l.tiers {
		if e.places[i].presence != Absent {
			out = l.vacate(e, i, out)
			l.tiers[i].tryAgain()
		}
	}
	return out
}

// The uses that are not ranks.
const (
	// NeverUsed: no task will need it.
	NeverUsed = math.MaxUint64
	// UnknownUse: nobody said.
	UnknownUse = NeverUsed - 1
)

// Expect says when an object will be needed: the lowest rank of the tasks that
// will, NeverUsed or UnknownUse. Pins of tasks that wait here count anyway.
func (l *Ledger) Expect(id ObjectID, rank uint64) {
	if o := l.objects[id]; o != nil && o.next != rank {
		o.next = rank
		l.reindex(o)
	}
}

// Cost says how long it took to make an object: among victims that are needed at
// the same time, or never, what is quickly made again leaves first. An object of
// which nobody said so counts as one that cannot be made again.
func (l *Ledger) Cost(id ObjectID, took time.Duration) {
	if o := l.objects[id]; o != nil && (!o.known || o.took != took) {
		o.took, o.known = max(took, 0), true
		l.log.took(id, o.took)
		l.reindex(o)
	}
}

// dearest is the effort of what cannot be made again.
const dearest = 64

// effort says how long the object takes to make for each MiB that this frees, in
// steps of four times, so that chance in a run's time does not put what was used
// longest ago in disorder.
func (o *object) effort() int {
	if !o.known || o.state == Building {
		return dearest
	}
	var bytes uint64
	for _, f := range o.frames {
		bytes += f.Bytes
	}
	return bits.Len64(uint64(o.took)/max(bytes>>10, 1)<<10) / 2
}

// Copied says that an object is a copy of one that its worker keeps: it may be
// dropped, rather than written, to make room.
func (l *Ledger) Copied(id ObjectID) {
	if o := l.objects[id]; o != nil && !o.copied {
		o.copied = true
		l.reindex(o)
	}
}
