// Package ledger is a Machine: it knows what is in one slab and who needs it,
// and it decides who gets room. It owns the sub-allocator; it never touches a
// byte of the memory.
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
// # Reservations, and why they cannot deadlock
//
// Memory is asked for before anything is fetched or run, all of it at once:
//   - A waiting reservation holds nothing: it gets all its blocks in one step
//     or none.
//   - A granted reservation never waits for the ledger. Allocate takes from its
//     blocks, which are really set aside, not merely counted; a request that
//     outgrows them succeeds or fails at once.
//
// So nobody holds memory while waiting for memory, and no circle of waiters can
// form. Waiting reservations are served strictly first come, first served, also
// when a later one would fit: the head cannot starve, and what it waits for are
// only holders that go on without it. A reservation that would not fit an empty
// slab (tried, not estimated) is refused at once, and each waiting one has a
// deadline, since sealed objects may be wanted for longer than anybody waits.
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

// Config is fixed for the life of a ledger.
type Config struct {
	// SizeBytes is the size of the slab, a multiple of alloc.Granule.
	SizeBytes uint64
	// HeaderBytes at offset 0 are never handed out; a host slab has
	// memory.HeaderBytes there.
	HeaderBytes uint64
}

// Ledger keeps the books of one slab. The zero value is not usable.
type Ledger struct {
	config  Config
	space   *alloc.Allocator
	objects map[ObjectID]*object
	// extentBytes is the sum of the blocks behind all extents, each once.
	extentBytes uint64

	reservations map[ReservationID]*reservation
	// waiting are exactly those reservations that are not granted, in order of
	// arrival.
	waiting []*reservation
	// reservedBytes is what granted reservations have not allocated yet.
	reservedBytes uint64

	leases    map[LeaseID]*lease
	deadlines leaseHeap
	lastLease LeaseID

	trim trimmer
	log  story
}

// New returns the ledger of an empty slab.
func New(c Config) (*Ledger, error) {
	space, err := emptySpace(c)
	if err != nil {
		return nil, err
	}
	l := &Ledger{
		config:       c,
		space:        space,
		objects:      make(map[ObjectID]*object),
		reservations: make(map[ReservationID]*reservation),
		leases:       make(map[LeaseID]*lease),
	}
	l.trim.init(c.SizeBytes)
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
	// Granted: the reservation's memory is set aside; go on.
	Granted struct{ Reservation ReservationID }
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
)

func (Granted) effect()      {}
func (Refused) effect()      {}
func (LeaseExpired) effect() {}
func (Freed) effect()        {}
func (PunchHoles) effect()   {}

// Stats describes the books at one moment. All sizes are in bytes of blocks,
// rounding included, so that HeldBytes + ReservedBytes + TrimmingBytes +
// FreeBytes is the slab without its header.
type Stats struct {
	SizeBytes uint64
	// HeldBytes are behind objects of any state, shared ones counted once.
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
		HeldBytes:        l.extentBytes,
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
	return at, ok
}

// Expire ends the leases and the waits whose deadline is not after now.
func (l *Ledger) Expire(now time.Time) []Effect {
	var out []Effect
	for len(l.deadlines) > 0 && !now.Before(l.deadlines[0].Deadline) {
		e := l.deadlines[0]
		out = append(out, LeaseExpired{Lease: e.ReadLease})
		out = l.endLease(e, "lease expired", out)
	}
	// Whoever can be served now is served, though its time be over as well.
	out = l.serve(out)
	var late []*reservation
	for _, r := range l.waiting {
		if !now.Before(r.deadline) {
			late = append(late, r)
		}
	}
	if len(late) > 0 {
		holders := l.describeLargest()
		for _, r := range late {
			l.forgetReservation(r)
			l.log.add("reservation timed out", ObjectID{}, r.id, r.bytes)
			out = append(out, Refused{Reservation: r.id, Err: fmt.Errorf(
				"ledger: reservation %d of %s for %s waited until its deadline: %w (%s of %s free); free or spill results, use fewer threads, or raise --memory-limit; largest holders: %s",
				r.id, size(r.bytes), r.holder, ErrNoRoom, size(l.space.Size()-l.space.Used()), size(l.config.SizeBytes), holders)})
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
		o.pins = dropPins(o.pins, h)
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
