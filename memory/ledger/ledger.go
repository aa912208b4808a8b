// Package ledger is a Machine: it knows what is in one slab and in the tiers
// below it, and who needs it, and it decides who gets room and what has to leave
// for that. It owns the sub-allocators; it never touches a byte of the memory.
//
// # Objects
//
// An object is the result of one attempt of a task: an opaque header and
// frames. It is Building while its frames are written, Sealed when they can be
// read, and Dropped when nobody asks for it any more but pins or read leases
// still hold its bytes. The bytes of a frame are an extent, counted by the
// frames that lie in it, so that an object whose frames are parts of another
// object's (a slice, a view, the very input) costs nothing and outlives it.
//
// # Tiers
//
// Tier 0 is the slab, where bytes can be used; those below it, in order, are
// larger and slower (pinned memory, disk). Each has a capacity and a
// sub-allocator. An extent lies in one or several of them: sealed bytes never
// change, so a copy below stays good when the bytes are read back, and the next
// time they leave the slab for nothing. In each tier an extent is absent, coming
// (the place is set aside and being filled) or resident; a resident one may be
// leaving (being written to the next tier, and usable all the while). At most one
// transfer of an extent is on its way.
//
// Bytes leave a tier when somebody needs its room, or are written ahead when
// those that have no copy below are above the tier's high watermark, until they
// are below the low one: the room itself is taken only when it is needed. The
// victim is what is needed last, as the ranks of the graph tell: first what
// nobody will need, then what nobody said anything about, then by rank, the
// highest first; among equals first what costs nothing to leave (a copy of a
// peer's object is dropped, one with a copy below is forgotten here), then what
// was quick to make, for its size, should it be lost (see Cost), then what was used
// longest ago. Bytes that are pinned, leased, held by a granted
// reservation or being built never leave.
//
// A write that fails leaves the bytes where they are and the tier below closed
// for a while; a read that fails loses the objects, which is reported.
//
// # Reservations, and why they cannot deadlock
//
// Memory is asked for before anything is fetched, read back or run, all of it at
// once, together with the objects that are to be in the slab meanwhile:
//   - A waiting reservation holds nothing: it gets all its blocks, room for the
//     inputs that lie below, and a hold on those that are in the slab in one step
//     or none. The pins of those who wait (PinQueued) keep bytes from being
//     forgotten, not from leaving the slab.
//   - A granted reservation never waits for the ledger. Its inputs arrive by IO,
//     which ends, well or not. Allocate takes from its blocks, which are really
//     set aside, not merely counted; a request that outgrows them succeeds or
//     fails at once.
//
// So nobody holds memory while waiting for memory, and no circle of waiters can
// form. Writing out needs no room in the tier it makes room in, and tiers wait
// only for those below them. Waiting reservations are served strictly first come,
// first served, also when a later one would fit: the head cannot starve, and what
// it waits for are only transfers, and holders that go on without it. A
// reservation that would not fit an empty slab (tried, not estimated) is refused
// at once; when everything else has left and only the places of its own inputs
// are in its way, these leave too.
//
// Bytes that readers find without asking (see Board) are given up like others, and
// their range is withheld until nobody reads it any more. That is one more transfer
// to wait for: it ends by itself, for whoever keeps the board revokes readers that do
// not go on.
//
// Two exceptions end by deadlines, as each wait does. A task that runs may find
// that it needs more (Urgent): it goes before all that hold nothing, whose memory
// it may be waiting for, but two such may wait for each other. And objects may be
// wanted for longer than anybody waits, with no tier below that has room.
//
// # Use
//
// All methods belong to one owner goroutine. Time comes in as values, measured
// on one clock. Methods that can make room or end a wait return effects, which
// the caller carries out in order. Errors are about the request: nothing has
// changed when one is returned, and each matches one of the sentinels with
// errors.Is.
package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
)

// The kinds of errors.
var (
	// ErrTooLarge: more than an empty slab could hold.
	ErrTooLarge = errors.New("larger than the slab can hold")
	// ErrNoRoom: no room now, and waiting was not allowed or took too long.
	ErrNoRoom = errors.New("no room in the slab")
	// ErrOutgrown: an allocation beyond its reservation found no free memory.
	ErrOutgrown = errors.New("outgrew its reservation")
	// ErrUnknown: no such object, lease or reservation, or no longer.
	ErrUnknown = errors.New("not held here")
	// ErrState: the object or reservation is in a state that forbids the request.
	ErrState = errors.New("wrong state")
	// ErrDuplicate: the id is in use.
	ErrDuplicate = errors.New("already there")
	// ErrAway: the object's bytes are not in the slab; reserve with it as input.
	ErrAway = errors.New("not in the slab")
	// ErrRange: a range that does not lie in a frame of the object.
	ErrRange = errors.New("range outside of the object's frames")
)

// ObjectID names the result of one attempt of a task.
type ObjectID struct {
	Task ids.TaskID
	// Generation is the attempt that produced the bytes: those of another
	// attempt are another object, though they should be equal.
	Generation ids.Attempt
}

// String returns task and attempt, as in t42/a1.
func (id ObjectID) String() string { return id.Task.String() + "/" + id.Generation.String() }

// compare orders objects by task and generation.
func (id ObjectID) compare(b ObjectID) int {
	switch {
	case id.Task != b.Task:
		if id.Task < b.Task {
			return -1
		}
		return 1
	case id.Generation < b.Generation:
		return -1
	case id.Generation > b.Generation:
		return 1
	}
	return 0
}

// HolderKind says what kind of party keeps memory.
type HolderKind uint8

// The kinds of holders.
const (
	HolderTask HolderKind = iota + 1
	HolderWorker
	HolderClient
	HolderExecutor
)

// Holder is a party that keeps memory: a task by its ids.TaskID, a peer by its
// ids.WorkerID, a client by its ids.ClientID, an executor by the number that
// the worker gave it.
type Holder struct {
	Kind HolderKind
	ID   uint64
}

// String returns the kind's letter and the number, as in t42 or x1.
func (h Holder) String() string {
	const letters = "?twcx"
	kind := h.Kind
	if int(kind) >= len(letters) {
		kind = 0
	}
	return fmt.Sprintf("%c%d", letters[kind], h.ID)
}

// MaxTiers is how many tiers a ledger can have, the slab among them.
const MaxTiers = 3

// Tier describes a tier below the slab.
type Tier struct {
	// Name is for people: "disk".
	Name string
	// SizeBytes is its capacity, a multiple of UnitBytes and at most
	// alloc.MaxBytes.
	SizeBytes uint64
	// UnitBytes is what sizes are rounded to there, a power of two of at least
	// alloc.Granule; 0 means that.
	UnitBytes uint64
	// DiscardBytes: copies of so many bytes or more are given back to the tier
	// when they are not needed (Discard), smaller ones when nothing is left in it.
	// 0 means none.
	DiscardBytes uint64
}

// Config is fixed for the life of a ledger.
type Config struct {
	// SizeBytes is the size of the slab, a multiple of alloc.Granule.
	SizeBytes uint64
	// HeaderBytes at offset 0 are never handed out; a host slab has
	// memory.HeaderBytes there.
	HeaderBytes uint64
	// HighBytes and LowBytes are the watermarks of the tiers that have another
	// one below: when more than HighBytes have no copy below, they are written
	// until it is LowBytes. 0 means seven eighths and three quarters of the slab.
	HighBytes, LowBytes uint64
	// Below are the tiers under the slab, fastest first; none by default.
	Below []Tier
	// Observe, if set, is told of what is taken of the slab and given back.
	Observe func(alloc.Step)
	// Board is needed by those who call Shown, and not otherwise.
	Board Board
}

// Ledger keeps the books of one slab. The zero value is not usable.
type Ledger struct {
	config  Config
	space   *alloc.Allocator // that of tier 0
	tiers   []*tier
	objects map[ObjectID]*object

	reservations map[ReservationID]*reservation
	// waiting are exactly those reservations that are not granted: urgent ones
	// first, and in order of arrival.
	waiting []*reservation
	// reservedBytes is what granted reservations have not allocated yet.
	reservedBytes uint64

	leases    map[LeaseID]*lease
	deadlines leaseHeap
	lastLease LeaseID

	// transfers are on their way, discards being carried out.
	transfers map[Ticket]*transfer
	discards  map[Ticket]discard
	// recalls are ranges of the slab that were given up and may still be read;
	// tiers[0].discardBytes is their sum.
	recalls map[Ticket]memory.Frame
	tickets Ticket
	// clock counts uses, to tell what was used longest ago.
	clock uint64

	trim trimmer
	log  story
}

// New returns the ledger of an empty slab.
func New(c Config) (*Ledger, error) {
	space, err := emptySpace(c)
	if err != nil {
		return nil, err
	}
	if c.HighBytes == 0 {
		c.HighBytes, c.LowBytes = c.SizeBytes/8*7, c.SizeBytes/4*3
	}
	l := &Ledger{
		config:       c,
		space:        space,
		objects:      make(map[ObjectID]*object),
		reservations: make(map[ReservationID]*reservation),
		leases:       make(map[LeaseID]*lease),
		transfers:    make(map[Ticket]*transfer),
		discards:     make(map[Ticket]discard),
		recalls:      make(map[Ticket]memory.Frame),
	}
	if err := l.initTiers(); err != nil {
		return nil, err
	}
	l.trim.init(c.SizeBytes)
	if c.Observe != nil {
		c.Observe(alloc.Step{Kind: alloc.Claimed, Bytes: c.HeaderBytes})
		space.Observe(c.Observe)
	}
	return l, nil
}

func emptySpace(c Config) (*alloc.Allocator, error) {
	space, err := alloc.New(c.SizeBytes)
	if err != nil {
		return nil, fmt.Errorf("ledger: slab: %w", err)
	}
	if c.HeaderBytes > 0 && !space.Claim(0, c.HeaderBytes) {
		return nil, fmt.Errorf("ledger: slab of %s has no room for its header of %d bytes: %w; make it larger",
			size(c.SizeBytes), c.HeaderBytes, ErrTooLarge)
	}
	return space, nil
}

// Effect is an order to whoever runs the ledger.
type Effect interface{ effect() }

type (
	// Granted: the reservation's memory is set aside. With Loading, some of its
	// inputs are still being read back, and Loaded or LoadFailed follows.
	Granted struct {
		Reservation ReservationID
		Loading     bool
	}
	// Loaded: all inputs of a reservation are in the slab, and stay there until it
	// is released.
	Loaded struct{ Reservation ReservationID }
	// LoadFailed: an input is lost. The reservation is granted all the same, and
	// it is the caller's to release.
	LoadFailed struct {
		Reservation ReservationID
		Object      ObjectID
		Err         error
	}
	// Refused: the reservation waited until its deadline and is gone. Err
	// matches ErrNoRoom and names the largest holders.
	Refused struct {
		Reservation ReservationID
		Err         error
	}
	// LeaseExpired: the reader did not release in time. Its bytes are no longer
	// protected, and ending the lease later says so.
	LeaseExpired struct{ Lease ReadLease }
	// Freed: the object is gone, its bytes belong to nobody.
	Freed struct{ Object ObjectID }
	// PunchHoles: give the pages of these ranges back to the system, then report
	// with Punched. The ranges are withheld until then.
	PunchHoles struct{ Ranges []memory.Frame }
	// WriteOut: copy bytes to a tier below, then report with WriteEnded. Both
	// places are withheld until then.
	WriteOut struct {
		Ticket   Ticket
		From, To Region
	}
	// ReadIn: copy bytes into the slab and compare them with the sum that their
	// WriteEnded said, then report with ReadEnded.
	ReadIn struct {
		Ticket   Ticket
		From, To Region
		Sum      uint32
	}
	// Discard: a tier's range is not needed; give it back, then report with
	// Discarded. It is withheld until then.
	Discard struct {
		Ticket Ticket
		Region Region
	}
	// Evicted: a copy of a peer's object was dropped to make room. Freed was said
	// as well.
	Evicted struct{ Object ObjectID }
	// Lost: an object could not be read back and cannot be used any more. Freed
	// follows when its last pin is gone.
	Lost struct {
		Object ObjectID
		Err    error
	}
	// TierFailed: a tier is closed until the time at which Expire tries again,
	// because of Err; with a nil Err it works again.
	TierFailed struct {
		Tier  int
		Retry time.Time
		Err   error
	}
)

func (Granted) effect()      {}
func (Loaded) effect()       {}
func (LoadFailed) effect()   {}
func (Refused) effect()      {}
func (LeaseExpired) effect() {}
func (Freed) effect()        {}
func (PunchHoles) effect()   {}
func (WriteOut) effect()     {}
func (ReadIn) effect()       {}
func (Discard) effect()      {}
func (Evicted) effect()      {}
func (Lost) effect()         {}
func (TierFailed) effect()   {}

// Stats describes the books at one moment. All sizes are in bytes of blocks,
// rounding included, so that HeldBytes + ReservedBytes + TrimmingBytes +
// FreeBytes is the slab without its header.
type Stats struct {
	SizeBytes uint64
	// HeldBytes are behind objects of any state, shared ones counted once, and what
	// was behind some and may still be read.
	HeldBytes uint64
	// ReservedBytes are set aside and not yet allocated.
	ReservedBytes uint64
	// TrimmingBytes are withheld while their pages go back to the system.
	TrimmingBytes    uint64
	FreeBytes        uint64
	LargestFreeBytes uint64
	// WaitingBytes is what the waiting reservations ask for.
	WaitingBytes uint64

	Objects, Leases, Waiting int
}

// Stats costs a look at the largest free blocks and the queue.
func (l *Ledger) Stats() Stats {
	a := l.space.Stats()
	s := Stats{
		SizeBytes:        a.Size,
		HeldBytes:        l.tiers[0].heldBytes + l.tiers[0].discardBytes,
		ReservedBytes:    l.reservedBytes,
		TrimmingBytes:    l.trim.withheld(),
		FreeBytes:        a.Free,
		LargestFreeBytes: a.LargestFree,
		Objects:          len(l.objects),
		Leases:           len(l.leases),
		Waiting:          len(l.waiting),
	}
	for _, r := range l.waiting {
		s.WaitingBytes += r.bytes
	}
	return s
}

// Waits says whether a reservation waits for room.
func (l *Ledger) Waits() bool { return len(l.waiting) > 0 }

// NextDeadline returns when Expire has something to do at the earliest; ok is
// false when nothing has a deadline.
func (l *Ledger) NextDeadline() (at time.Time, ok bool) {
	if len(l.deadlines) > 0 {
		at, ok = l.deadlines[0].Deadline, true
	}
	for _, r := range l.waiting {
		if !ok || r.deadline.Before(at) {
			at, ok = r.deadline, true
		}
	}
	for _, t := range l.tiers {
		if t.failed != nil && !t.trying && (!ok || t.retry.Before(at)) {
			at, ok = t.retry, true
		}
	}
	return at, ok
}

// recheck is how long a reservation whose deadline has passed waits on while others
// are at work with what they were granted.
const recheck = time.Second

// Expire ends the leases and the waits whose deadline is not after now, and lets
// a tier that failed be tried again.
func (l *Ledger) Expire(now time.Time) []Effect {
	var out []Effect
	for len(l.deadlines) > 0 && !now.Before(l.deadlines[0].Deadline) {
		e := l.deadlines[0]
		out = append(out, LeaseExpired{Lease: e.ReadLease})
		out = l.endLease(e, "lease expired", out)
	}
	for _, t := range l.tiers {
		if t.failed != nil && !now.Before(t.retry) {
			t.trying = true
		}
	}
	// Whoever can be served now is served, though its time be over as well.
	out = l.serve(out)
	var late []*reservation
	for _, r := range l.waiting {
		switch {
		case now.Before(r.deadline):
		case !r.urgent && (len(l.transfers)+len(l.recalls) > 0 || l.othersGranted(r)):
			// It waits for those who go on, and will be through in their own time.
			r.deadline = now.Add(recheck)
		default:
			late = append(late, r)
		}
	}
	if len(late) > 0 {
		holders := l.describeLargest()
		for _, r := range late {
			l.forgetReservation(r)
			l.log.add("reservation timed out", ObjectID{}, r.id, r.bytes)
			out = append(out, Refused{Reservation: r.id, Err: fmt.Errorf(
				"ledger: reservation %d of %s for %s waited until its deadline: %w (%s of %s free%s); free results, use fewer threads, or raise --memory-limit; largest holders: %s",
				r.id, size(r.bytes), r.holder, ErrNoRoom, size(l.space.Size()-l.space.Used()), size(l.config.SizeBytes), l.describeTiers(), holders)})
		}
		out = l.serve(out)
	}
	l.verify()
	return out
}

// HolderGone ends everything that a party kept: its pins, its read leases and
// its reservations with what was being built in them. It is called when an
// executor died, a peer was declared lost or a client left.
// REQUIRES: the party can no longer write to the slab.
func (l *Ledger) HolderGone(h Holder) []Effect {
	var out []Effect
	// sorted: by id.
	for _, id := range sortedKeys(l.leases) {
		if e := l.leases[id]; e.Holder == h {
			out = l.endLease(e, "lease holder gone", out)
		}
	}
	for _, o := range l.sorted() {
		before := len(o.pins)
		l.dropPins(o, h)
		if len(o.pins) != before {
			l.log.add("pin holder gone", o.id, 0, h.ID)
			out = l.settle(o, out)
		}
	}
	for _, id := range sortedKeys(l.reservations) {
		if r := l.reservations[id]; r.holder == h {
			out = l.release(r, out)
		}
	}
	out = l.serve(out)
	l.verify()
	return out
}

// verify panics when a step broke an invariant, in builds that check.
func (l *Ledger) verify() {
	if !invariant.Enabled {
		return
	}
	if err := l.Check(); err != nil {
		panic(err)
	}
}
