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

// Presence is the state of an extent in one tier.
type Presence uint8

// The presences.
const (
	Absent Presence = iota
	// Coming: its place is allocated and is being filled.
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

// place is the place of an extent in one tier. offset has no meaning while Absent.
type place struct {
	presence Presence
	offset   uint64
}

// extent is the memory behind frames. In each tier where it is present, it has one block of the
// tier's allocator.
type extent struct {
	bytes  uint64 // as requested, before rounding
	places [MaxTiers]place
	// sum is the checksum of its bytes. It is known after the extent was written out once.
	sum uint32
	// refs is the number of frames, of all objects, that lie in it. owners are those objects. refs
	// is 0 only while a transfer still uses the extent.
	refs   int
	owners []*object
	// one is the backing array of owners, which usually has one element.
	one [1]*object
	// busy is the number of its frames that belong to held objects. While it is not 0, the extent
	// leaves neither the slab nor its only place below the slab.
	busy int
	// leases is the number of leases on its frames: each frame counts as often as its object has
	// leases. While it is not 0, no copy in any tier is given up.
	leases int
	// published: objects in it are, or were, in the index since the extent got its present place in
	// the slab. Readers may still read it.
	published bool
	// transfer is the transfer in progress, nil if there is none.
	transfer *transfer
	// use is the lowest rank at which one of its objects is needed. touched is the ledger's clock
	// at the last use.
	use, touched uint64
	// effort is the highest effort of its objects; see object.effort.
	effort int
	// kept is the number of the last search for victims that must not take this extent.
	kept uint64
	// seen is the ledger's clock when loads listed it last.
	seen uint64
	// victims[i] is the heap that contains it as a victim of tier i, at index slot[i].
	victims [MaxTiers]*victims
	slot    [MaxTiers]int
}

// frame returns its range in a tier.
func (e *extent) frame(tier int) memory.Frame {
	return memory.Frame{Offset: e.places[tier].offset, Bytes: e.bytes}
}

// best returns the fastest tier that has its bytes, or -1 if they are lost.
func (e *extent) best() int {
	return slices.IndexFunc(e.places[:], func(p place) bool { return p.presence == Resident })
}

// clean says whether a tier below i has a copy.
func (e *extent) clean(i int) bool {
	for _, p := range e.places[i+1:] {
		if p.presence == Resident {
			return true
		}
	}
	return false
}

// droppable says whether all its objects are unpinned copies of peers' objects, so that they can be
// dropped.
func (e *extent) droppable() bool {
	for _, o := range e.owners {
		if !o.copied || o.state != Sealed || len(o.pins) > 0 {
			return false
		}
	}
	return len(e.owners) > 0
}

// Ticket identifies an order of the ledger to move, discard or recall bytes.
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
	// waiters are the reservations that need the extent in the slab. Each is in the list once for
	// each transfer that it waits for.
	waiters []*reservation
}

// The limits of the time for which a tier stays closed after a failed write.
const (
	firstBackoff   = time.Second
	longestBackoff = time.Minute
)

// tier is the state of one tier.
type tier struct {
	Tier
	space *alloc.Allocator
	// heldBytes are the blocks of all places. cleanBytes of them have a copy in a tier below;
	// leavingBytes of them are being written to a tier below.
	heldBytes, cleanBytes, leavingBytes uint64
	// discardBytes are withheld until Discarded, or in the slab until Recalled. Copies smaller than
	// DiscardBytes are freed without a Discard, so the system may still keep room for them in the
	// range [0, dirtyEnd). sweep discards this range when the tier is empty.
	discardBytes, dirtyEnd uint64
	// dirtyWritten: some bytes in [0, dirtyEnd) were really written, so discarding the range gives
	// room back.
	dirtyWritten bool
	// cheap are the victims that leave without a write. costly are the victims that must be
	// written.
	cheap, costly victims
	// inBytes and outBytes are the totals of bytes read from this tier and written to it.
	inBytes, outBytes uint64
	// failed is the last write error, nil if the tier works. While it is set, nothing is written
	// here until retry. From then on, one write at a time is tried.
	failed  error
	retry   time.Time
	backoff time.Duration
	trying  bool
	writes  int // writes in progress to this tier
}

// open says whether an extent may be written to this tier now.
func (t *tier) open() bool { return t.failed == nil || t.trying && t.writes == 0 }

// tryAgain allows a try to write to a closed tier before its retry time, because room was freed
// there and the tier may have failed because it was full.
func (t *tier) tryAgain() { t.trying = t.failed != nil }

// block returns the size of the block for n bytes.
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

// settlePlaces updates the sum of clean bytes and the victim heaps after a change of an extent's
// places, transfer, users or uses. before is the result of cleanTiers before the change.
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

// occupy records that an extent now has a block in a tier.
func (l *Ledger) occupy(e *extent, i int, offset uint64, p Presence) {
	before := l.cleanTiers(e)
	l.tiers[i].heldBytes += l.tiers[i].block(e.bytes)
	e.places[i] = place{presence: p, offset: offset}
	if i == 0 {
		l.moved(e)
	}
	l.settlePlaces(e, before)
}

// clear removes a place whose block was given back, or will be by the caller.
func (l *Ledger) clear(e *extent, i int) {
	before := l.cleanTiers(e)
	l.tiers[i].heldBytes -= l.tiers[i].block(e.bytes)
	e.places[i] = place{}
	if i == 0 {
		l.moved(e)
	}
	l.settlePlaces(e, before)
}

// discard is a range that is being given back to its tier.
type discard struct {
	Region
	// unwritten: the last write to the range did not happen, so that discarding it creates no room
	// for other writes.
	unwritten bool
}

// vacate gives up a place of an extent.
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
		t.dirtyEnd = max(t.dirtyEnd, region.End())
		t.dirtyWritten = t.dirtyWritten || !unwritten
		return l.sweep(i, out)
	}
	t.discardBytes += n
	l.tickets++
	l.discards[l.tickets] = discard{region, unwritten}
	return append(out, Discard{Ticket: l.tickets, Region: region})
}

// sweep discards the range of small copies in a tier (see dirtyEnd) when the tier is empty.
func (l *Ledger) sweep(i int, out []Effect) []Effect {
	t := l.tiers[i]
	if t.heldBytes > 0 || t.discardBytes > 0 || t.dirtyEnd == 0 || !t.space.Claim(0, t.dirtyEnd) {
		return out
	}
	region := Region{i, memory.Frame{Bytes: t.dirtyEnd}}
	l.tickets++
	l.discards[l.tickets] = discard{region, !t.dirtyWritten}
	t.discardBytes, t.dirtyEnd, t.dirtyWritten = t.dirtyEnd, 0, false
	return append(out, Discard{Ticket: l.tickets, Region: region})
}

// moved marks the frames of an extent's objects as stale.
func (l *Ledger) moved(e *extent) {
	for _, o := range e.owners {
		o.stale = true
	}
}

// Discarded reports the end of a Discard. It makes no difference to the ledger if the discard
// failed.
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

// begin records a new transfer and returns it. The caller has allocated its place in the target.
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

// writeOut starts to write an extent to a tier below. offset is its allocated place there.
func (l *Ledger) writeOut(e *extent, from, to int, offset uint64, why string, out []Effect) []Effect {
	x := l.begin(e, from, to, offset)
	l.logEach(e, "leaving "+l.tiers[from].Name+" for "+l.tiers[to].Name+": "+why)
	return append(out, WriteOut{Ticket: x.ticket, From: Region{from, e.frame(from)}, To: Region{to, e.frame(to)}})
}

// readIn starts to read an extent into the slab. offset is its allocated place there.
func (l *Ledger) readIn(e *extent, offset uint64, out []Effect) []Effect {
	from := e.best()
	x := l.begin(e, from, 0, offset)
	l.logEach(e, "coming from "+l.tiers[from].Name)
	return append(out, ReadIn{Ticket: x.ticket, From: Region{from, e.frame(from)}, To: Region{0, e.frame(0)}, Sum: e.sum})
}

// logEach adds a line to the history of each object of an extent.
func (l *Ledger) logEach(e *extent, verb string) {
	for _, o := range e.owners {
		l.log.add(verb, o.id, 0, e.bytes)
	}
}

// WriteEnded reports the end of a WriteOut, with the checksum of the bytes. If err is not nil, the
// bytes stay where they are, and nothing more is written to that tier for a while.
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
		l.logEach(e, "stays: could not be written to "+t.Name)
		// Other writes that were in progress when the first one failed do not extend the backoff.
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

// ReadEnded reports the end of a ReadIn. If err is not nil, the read failed for good: that copy of
// the bytes is lost, and if it was the only copy, so are the objects.
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
		l.logEach(e, "could not be read from "+l.tiers[x.from].Name)
		out = l.vacate(e, x.from, out)
		if e.refs > 0 && e.best() > 0 {
			// Another tier has a copy, too. Use the same place in the slab for the second read.
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

// arrive ends a transfer: it notifies the waiting reservations, and frees the extent if no object
// needs it any more.
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

// Lose reports that a reader found an object's bytes to be broken.
func (l *Ledger) Lose(id ObjectID, err error) []Effect {
	o := l.objects[id]
	if o == nil || o.state != Sealed {
		return nil
	}
	o.state, o.lost = Dropped, true
	l.unpublish(o)
	l.log.add("lost to a reader", id, 0, 0)
	out := l.settle(o, []Effect{Lost{Object: id, Err: err}})
	out = l.serve(out)
	l.verify()
	return out
}

// lose marks the objects of an extent as lost, because its bytes are gone.
func (l *Ledger) lose(e *extent, x *transfer, err error, out []Effect) []Effect {
	for _, o := range slices.Clone(e.owners) {
		o.lost = true
		if o.state == Sealed {
			o.state = Dropped
			l.unpublish(o)
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

// freeExtent gives up all places of an extent. If a transfer is in progress, arrive does that when
// the transfer ends.
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

// The values of use that are not ranks.
const (
	// NeverUsed: no task will need the object.
	NeverUsed = math.MaxUint64
	// UnknownUse: it is not known whether a task will need the object.
	UnknownUse = NeverUsed - 1
)

// Expect sets the use of an object: the lowest rank of the tasks that will need it, NeverUsed or
// UnknownUse. Pins of waiting tasks (PinQueued) count in addition.
func (l *Ledger) Expect(id ObjectID, rank uint64) {
	if o := l.objects[id]; o != nil && o.next != rank {
		o.next = rank
		l.reindex(o)
	}
}

// Cost sets the time that it took to compute an object. Among victims that are needed at the same
// time, or never, the object that is quickest to compute again leaves first. An object without a
// Cost counts as one that cannot be computed again.
func (l *Ledger) Cost(id ObjectID, took time.Duration) {
	if o := l.objects[id]; o != nil && (!o.known || o.took != took) {
		o.took, o.known = max(took, 0), true
		l.log.took(id, o.took)
		l.reindex(o)
	}
}

// maxEffort is the effort of an object that cannot be computed again.
const maxEffort = 64

// effort returns a measure of the time to compute the object again for each MiB that this frees.
// One step is a factor of four, so that random differences of run time do not override the order by
// last use.
func (o *object) effort() int {
	if !o.known || o.state == Building {
		return maxEffort
	}
	var bytes uint64
	for _, f := range o.frames {
		bytes += f.Bytes
	}
	return bits.Len64(uint64(o.took)/max(bytes>>10, 1)<<10) / 2
}

// Keep takes back Copied: no peer keeps the object any more, or not for long. It reports whether
// the object is here.
func (l *Ledger) Keep(id ObjectID) bool {
	o := l.objects[id]
	if o == nil || o.state != Sealed {
		return false
	}
	if o.copied {
		o.copied = false
		l.reindex(o)
	}
	return true
}

// Copied says that an object is a copy of an object that a peer keeps. To make room, it may be
// dropped rather than written out.
func (l *Ledger) Copied(id ObjectID) {
	if o := l.objects[id]; o != nil && !o.copied {
		o.copied = true
		l.reindex(o)
	}
}
