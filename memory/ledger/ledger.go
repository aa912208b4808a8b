// Package ledger is a Machine: it knows which bytes lie in one slab and in the tiers below it, and
// which parties need them. It decides which request gets room and which bytes must leave to make
// that room. It owns the sub-allocators. It never touches a byte of the memory.
//
// # Objects
//
// An object is the result of one attempt of a task: an opaque header and frames. It is Building
// while its frames are written. It is Sealed when its frames can be read. It is Dropped when it is
// no longer wanted but pins or read leases still hold its bytes. An extent is the memory behind
// frames. It counts the frames that lie in it, so an object whose frames are parts of another
// object (a slice, a view, the very input) costs no extra memory and may outlive that object.
//
// # Tiers
//
// Tier 0 is the slab, where bytes can be used. The tiers below it, in order, are larger and slower
// (pinned memory, disk). Each tier has a capacity and a sub-allocator. An extent lies in one or
// several tiers: sealed bytes never change, so a copy below stays valid when the bytes are read
// back, and the next time they leave the slab without another write. In each tier an extent is
// absent, coming (its place is allocated and is being filled) or resident. A resident extent may be
// leaving: it is being written to the next tier and stays usable meanwhile. Each extent has at most
// one transfer in progress.
//
// Bytes leave a tier when a request needs the room. Bytes are also spilled early: when the bytes
// without a copy below exceed the tier's high watermark, they are written to the tier below until
// they are under the low watermark. That does not free the room; the room is taken only when it is
// needed. The victim is the extent that is needed last, by the ranks of the task graph: first the
// bytes that no task will need, then the bytes with unknown use, then by rank, the highest rank
// first. Among equals, the first victims are the bytes that leave at no cost (a copy of a peer's
// object is dropped; an extent with a copy below only gives up its place in this tier). Then come
// the bytes that are quick to compute again for their size, should they be lost (see Cost), then
// the bytes that were used longest ago. Bytes that are pinned, leased, held by a granted
// reservation or being built never leave.
//
// If a write fails, the bytes stay where they are, and nothing is written to the tier below for a
// while. If a read fails and no other tier has a copy, the objects are lost, which is reported.
//
// # Reservations, and why they cannot deadlock
//
// A caller asks for memory before it fetches, reads back or runs anything. It asks for all of it at
// once, together with the objects that must be in the slab meanwhile:
//   - A waiting reservation holds nothing. In one step it gets all its blocks, room for the inputs
//     that lie below, and a hold on the inputs that are in the slab; or it gets nothing. The pins
//     of waiting tasks (PinQueued) keep bytes from being freed, but not from leaving the slab.
//   - A granted reservation never waits for the ledger. Its inputs arrive by IO, which always ends,
//     with or without an error. Allocate takes from its blocks, which are really allocated, not
//     merely counted. A request that needs more than these blocks succeeds or fails at once.
//
// So no party holds memory while it waits for memory, and no cycle of waiters can form. Writing out
// of a tier needs no room in that tier, and a tier waits only for the tiers below it. Waiting
// reservations are served strictly in order of arrival, even if a later one would fit. So the
// reservation at the head of the queue cannot starve: it waits only for transfers and for holders
// that do not depend on it. A reservation that would not fit into an empty slab (this is tried, not
// estimated) is refused at once. If everything else has left and only the places of its own inputs
// are in the way, these leave too.
//
// Some bytes can be found by readers that do not ask the ledger (see ObjectIndex). Such bytes are
// given up like others, and their range is withheld until no reader uses it. The wait for that is
// like the wait for a transfer: it always ends, because the owner of the index revokes readers that
// do not make progress.
//
// There are two exceptions, which end by deadlines, as each wait does. First, a running task may
// find that it needs more memory (Urgent). Its request goes before the requests of all parties that
// hold nothing, because they may be the ones that wait for its memory; but two urgent requests may
// wait for each other. Second, objects may stay wanted for longer than any deadline while no tier
// below has room.
//
// # Use
//
// All methods belong to one owner goroutine. Times are passed in as values, measured on one clock.
// Methods that can make room or end a wait return effects, which the caller carries out in order.
// Errors are about the request. When a method returns an error, nothing has changed, with one
// exception: Reserve may already have made other bytes leave the slab, and then returns effects
// beside the error. Each error matches one of the sentinels with errors.Is.
package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
)

// The kinds of errors. Use errors.Is.
var (
	// ErrTooLarge: the request is larger than an empty slab.
	ErrTooLarge = errors.New("larger than the slab can hold")
	// ErrNoRoom: there is no room now, and waiting was not allowed or took too long.
	ErrNoRoom = errors.New("no room in the slab")
	// ErrOutgrown: an allocation beyond its reservation found no free memory.
	ErrOutgrown = errors.New("outgrew its reservation")
	// ErrUnknown: the object, lease or reservation does not exist, or no longer exists.
	ErrUnknown = errors.New("not held here")
	// ErrState: the object or reservation is in a state that forbids the request.
	ErrState = errors.New("wrong state")
	// ErrDuplicate: the id is in use.
	ErrDuplicate = errors.New("already there")
	// ErrAway: the object's bytes are not in the slab. Make a reservation with it as an input.
	ErrAway = errors.New("not in the slab")
	// ErrRange: the range does not lie in a frame of the object.
	ErrRange = errors.New("range outside of the object's frames")
)

// ObjectID names the result of one attempt of a task.
type ObjectID struct {
	Task ids.TaskID
	// Generation is the attempt that produced the bytes. The result of another attempt is a
	// different object, even if its bytes should be equal.
	Generation ids.Attempt
	// Item: the object is a copy of one item of that result, which is a list. 0: it is the result.
	Item ids.Item
}

// String returns task and attempt, as in t42/a1, and the item, if any, as in t42/a1/i3.
func (id ObjectID) String() string {
	return id.Task.String() + "/" + id.Generation.String() + id.Item.String()
}

// Whole names the object of which an object is an item; the object itself if it is none.
func (id ObjectID) Whole() ObjectID {
	id.Item = 0
	return id
}

// compare orders objects by task, generation and item.
func (id ObjectID) compare(b ObjectID) int {
	return cmp.Or(cmp.Compare(id.Task, b.Task), cmp.Compare(id.Generation, b.Generation), cmp.Compare(id.Item, b.Item))
}

// HolderKind is the kind of a party that keeps memory.
type HolderKind uint8

// The kinds of holders.
const (
	HolderTask HolderKind = iota + 1
	HolderWorker
	HolderClient
	HolderExecutor
)

// Holder is a party that keeps memory: a task with its ids.TaskID, a peer with its ids.WorkerID, an
// executor with the number that the worker assigned to it, or a client with the ids.TaskID of the
// object that it writes (0: it reads).
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

// Describe names the holder in error messages, as in "task t42" or "executor 1".
func (h Holder) Describe() string {
	switch {
	case h.Kind == HolderTask:
		return "task " + ids.TaskID(h.ID).String()
	case h.Kind == HolderWorker:
		return "worker " + ids.WorkerID(h.ID).String()
	case h.Kind == HolderExecutor:
		return fmt.Sprintf("executor %d", h.ID)
	case h.Kind == HolderClient && h.ID != 0:
		return "a client that writes " + ids.TaskID(h.ID).String()
	case h.Kind == HolderClient:
		return "a client"
	}
	return "an unknown holder"
}

// MaxTiers is the largest number of tiers of a ledger, including the slab.
const MaxTiers = 3

// Tier describes a tier below the slab.
type Tier struct {
	// Name is for log and error messages: "disk".
	Name string
	// SizeBytes is its capacity, a multiple of UnitBytes and at most alloc.MaxBytes.
	SizeBytes uint64
	// UnitBytes is the unit to which sizes are rounded in this tier: a power of two of at least
	// alloc.Granule. 0 means alloc.Granule.
	UnitBytes uint64
	// DiscardBytes is the size from which an unneeded copy is given back to the tier at once
	// (Discard). Smaller copies are given back together when the tier is empty. 0 means that no
	// copy is ever discarded.
	DiscardBytes uint64
}

// Config is fixed for the life of a ledger.
type Config struct {
	// SizeBytes is the size of the slab, a multiple of alloc.Granule.
	SizeBytes uint64
	// HeaderBytes is the size of the header at offset 0, which is never allocated. A host slab has
	// memory.HeaderBytes there.
	HeaderBytes uint64
	// HighBytes and LowBytes are the slab's watermarks for early spilling: when more than HighBytes
	// have no copy below, bytes are written until only LowBytes have none. 0 means seven eighths
	// and three quarters of the slab. The other tiers with a tier below always use these fractions
	// of their own size.
	HighBytes, LowBytes uint64
	// Below are the tiers under the slab, fastest first; none by default.
	Below []Tier
	// Observe, if set, is called for each block that is taken from the slab or given back.
	Observe func(alloc.Step)
	// Index is required if Published is called, and not used otherwise.
	Index ObjectIndex
}

// Ledger keeps the books of one slab. The zero value is not usable.
type Ledger struct {
	config  Config
	space   *alloc.Allocator // that of tier 0
	tiers   []*tier
	objects map[ObjectID]*object

	reservations map[ReservationID]*reservation
	// waiting has exactly the reservations that are not granted: urgent ones first, each group in
	// order of arrival.
	waiting []*reservation
	// reservedBytes is the memory that granted reservations have not allocated yet.
	reservedBytes uint64

	leases    map[LeaseID]*lease
	deadlines leaseHeap
	lastLease LeaseID

	// transfers are the transfers in progress. discards are the Discard effects in progress.
	transfers map[Ticket]*transfer
	discards  map[Ticket]discard
	// recalls are ranges of the slab that were given up and may still be read.
	// tiers[0].discardBytes is their sum.
	recalls map[Ticket]memory.Frame
	tickets Ticket
	// clock counts uses. It orders extents by their last use.
	clock uint64

	trim trimmer
	log  history
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

// Effect is an order to the caller that runs the ledger.
type Effect interface{ effect() }

type (
	// Granted: the reservation's memory is allocated. If Loading is true, some of its inputs are
	// still being read back, and Loaded or LoadFailed follows.
	Granted struct {
		Reservation ReservationID
		Loading     bool
	}
	// Loaded: all inputs of a reservation are in the slab. They stay there until it is released.
	Loaded struct{ Reservation ReservationID }
	// LoadFailed: an input is lost. The reservation is still granted, and the caller must release
	// it.
	LoadFailed struct {
		Reservation ReservationID
		Object      ObjectID
		Err         error
	}
	// Refused: the reservation waited until its deadline and was removed. Err matches ErrNoRoom and
	// names the largest holders.
	Refused struct {
		Reservation ReservationID
		Err         error
	}
	// LeaseExpired: the reader did not end the lease in time. The bytes are no longer protected,
	// and a later EndLease returns held = false.
	LeaseExpired struct{ Lease ReadLease }
	// Freed: the object is gone and its memory is given up.
	Freed struct{ Object ObjectID }
	// PunchHoles: give the pages of these ranges back to the system, then call Punched. The ranges
	// are withheld until then.
	PunchHoles struct{ Ranges []memory.Frame }
	// WriteOut: copy bytes to a tier below, then call WriteEnded. Both places are withheld until
	// then.
	WriteOut struct {
		Ticket   Ticket
		From, To Region
	}
	// ReadIn: copy bytes into the slab, compare them with the checksum that WriteEnded reported,
	// then call ReadEnded.
	ReadIn struct {
		Ticket   Ticket
		From, To Region
		Sum      uint32
	}
	// Discard: a range of a tier is not needed. Give it back, then call Discarded. The range is
	// withheld until then.
	Discard struct {
		Ticket Ticket
		Region Region
	}
	// CopyDropped: a copy of a peer's object was dropped to make room. A Freed effect is emitted as
	// well.
	CopyDropped struct{ Object ObjectID }
	// Lost: an object could not be read back and cannot be used any more. Freed follows when its
	// last pin is gone.
	Lost struct {
		Object ObjectID
		Err    error
	}
	// TierFailed: writes to a tier failed with Err. Nothing is written to it until Retry, when
	// Expire allows another try. A nil Err means that the tier works again.
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
func (CopyDropped) effect()  {}
func (Lost) effect()         {}
func (TierFailed) effect()   {}

// Stats describes the memory of the slab at one moment. All sizes are in bytes of blocks, after
// rounding, so that HeldBytes + ReservedBytes + TrimmingBytes + FreeBytes is the size of the slab
// without its header.
type Stats struct {
	SizeBytes uint64
	// HeldBytes are the blocks of objects in any state, shared blocks counted once, plus the blocks
	// that were given up and may still be read (see ObjectIndex).
	HeldBytes uint64
	// ReservedBytes are granted and not yet allocated to objects.
	ReservedBytes uint64
	// TrimmingBytes are withheld while their pages go back to the system.
	TrimmingBytes    uint64
	FreeBytes        uint64
	LargestFreeBytes uint64
	// WaitingBytes is the sum of the requests of the waiting reservations.
	WaitingBytes uint64

	Objects, Leases, Waiting int
}

// Pressed says that memory is short: reservations wait, or more is in use than the low mark of
// eviction is by default (Config.LowBytes).
func (s *Stats) Pressed() bool { return s.Waiting > 0 || s.FreeBytes < s.SizeBytes/4 }

// Stats describes the slab. Its cost grows with the number of waiting reservations.
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

// Waits says whether any reservation waits for room.
func (l *Ledger) Waits() bool { return len(l.waiting) > 0 }

// UrgentWait returns how long the first urgent reservation has waited for room, 0 if there is none.
func (l *Ledger) UrgentWait(now time.Time) time.Duration {
	if len(l.waiting) == 0 || !l.waiting[0].urgent {
		return 0
	}
	return now.Sub(l.waiting[0].since)
}

// NextDeadline returns the earliest time at which Expire has something to do. ok is false when
// there is no deadline.
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

// recheck is the extra time that a reservation waits after its deadline while transfers, recalls or
// other granted reservations are still in progress.
const recheck = time.Second

// Expire ends the leases and the waits whose deadline is not after now, and allows another try to
// write to a tier that failed.
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
	// A reservation that can be granted now is granted, even if its deadline has passed. When the
	// first reservation is refused, those behind it may be granted.
	out = l.serve(out)
	holders := ""
	for i := 0; i < len(l.waiting); {
		r := l.waiting[i]
		switch {
		case now.Before(r.deadline):
			i++
			continue
		case !r.urgent && (len(l.transfers)+len(l.recalls) > 0 || l.othersGranted(r)):
			// It waits for parties that make progress and will give up their memory in time.
			r.deadline = now.Add(recheck)
			i++
			continue
		}
		if holders == "" {
			holders = l.describeLargest()
		}
		l.forgetReservation(r)
		l.log.add("reservation timed out", ObjectID{}, r.id, r.bytes)
		out = append(out, Refused{Reservation: r.id, Err: fmt.Errorf(
			"ledger: reservation %d of %s for %s waited until its deadline: %w (%s of %s free%s); free results, use fewer threads, or raise --memory-limit; largest holders: %s",
			r.id, size(r.bytes), r.holder.Describe(), ErrNoRoom, size(l.space.Size()-l.space.Used()), size(l.config.SizeBytes), l.describeTiers(), holders)})
		if i == 0 {
			out = l.serve(out)
		}
	}
	l.verify()
	return out
}

// verify panics when a step broke an invariant. It does nothing unless invariant.Enabled.
func (l *Ledger) verify() {
	if !invariant.Enabled {
		return
	}
	if err := l.Check(); err != nil {
		panic(err)
	}
}
