package lifecycle

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// This file decides where the inputs of an attempt that are not here are used: in the memory of a
// peer, or as copies.
//
// A kernel can READ an input IN PLACE, in the mapped memory of a peer's GPU. Fetching a small input
// costs ten times as much as reading it: memory is reserved, copied to and recorded, and goroutines
// hand the work to each other. An input may be read in place if all of the following holds:
//
//   - The operation reads each byte about once (ReadsOnce), and the input has at most inPlaceBytes.
//     Or the operation only moves bytes (Moves): then the size of the input does not matter, since
//     the operation reads no more than it writes. But if both the inputs and the result are larger
//     than inPlaceMoved, the inputs are fetched: reading in place gains nothing then, and the copy
//     engine leaves the multiprocessors to other work, while a kernel would occupy all of them and
//     wait for the link.
//   - It is a whole object, and not an item of a list.
//   - It is not part of a broadcast chain: neither does this worker have an upstream for it, nor
//     will another worker read it here.
//   - The attempt has at most inPlaceInputs inputs: each input is leased separately, while fetches
//     are batched.
//   - This worker has read less than inPlaceTimes its size of it in place so far. An object that is
//     used more often becomes a replica, which the scheduler can take into account.
//
// The first holder that publishes it in memory that is mapped here is read. Nothing is leased
// before the attempt is handed to a slot: a lease delays the frees of its lender, and the attempt
// may have to wait for memory itself until then. If the object cannot be leased at that moment (it
// was moved to another tier, or too many readers are active there), the attempt is admitted anew
// and fetches the object.
//
// Any attempt on the same host can LEASE an input from its holder before it is admitted. An input
// may be leased if it has at least leaseBytes and was leased less than leaseTimes.
//
// If copies of the inputs do not fit into the slab, the size of an input and the number of its uses
// do not matter; see large.go.
const (
	// inPlaceBytes is 4 MiB, and room for the header.
	inPlaceBytes  = 4<<20 + 4<<10
	inPlaceMoved  = 64 << 20
	inPlaceTimes  = 4
	inPlaceInputs = 1000
	// leaseBytes is the smallest input that is leased rather than copied: to copy a smaller one
	// costs no more than the request for a lease, and yields a replica.
	leaseBytes = 64 << 10
	// leaseTimes is how often one object is leased. An object that is used more often becomes a
	// replica, which the scheduler can take into account.
	leaseTimes = 4
	// leasesKnown is the number of objects whose leases are counted. All counts are dropped when it
	// is reached.
	leasesKnown = 10_000
	// readsKnown bounds the size of the table of reads in place to 96 KiB.
	readsKnown = 4096
)

// Reading says how an operation reads its inputs.
type Reading uint8

// The values of Reading.
const (
	// ReadsAgain: it reads some bytes many times, or this is not known, or it cannot read in place.
	ReadsAgain Reading = iota
	// ReadsOnce: it reads each byte about once.
	ReadsOnce
	// Moves: it reads, about once, only the bytes that its result is made of.
	Moves
)

// Way says how an input may be used that is not here.
type Way struct {
	// Lease: leases may be requested for it. Read: it may be read in place.
	Lease, Read bool
}

// usage counts how often objects were used at peers.
type usage struct {
	leases map[Object]int
	// reads counts the bytes of an object that were read in place or will be. The entry is chosen
	// by task number modulo readsKnown, and a new object overwrites the old one: tasks with
	// consecutive numbers have different entries. It is nil until something is read.
	reads []reads
}

type reads struct {
	object Object
	bytes  uint64
}

// read returns the counter of the bytes of an object. The pointer is valid until the next call.
func (u *usage) read(o Object) *uint64 {
	if u.reads == nil {
		u.reads = make([]reads, readsKnown)
	}
	r := &u.reads[o.Task%readsKnown]
	if r.object != o {
		*r = reads{object: o}
	}
	return &r.bytes
}

func (u *usage) leased(o Object) {
	if u.leases == nil || len(u.leases) >= leasesKnown {
		u.leases = make(map[Object]int)
	}
	u.leases[o]++
}

// ways returns how the inputs of an attempt may be used that are not here, by input; nil: all of
// them are fetched. The result is valid until the next step.
func (m *Machine) ways(a *attempt) []Way {
	lease := m.config.Leases && !a.copies && !a.replicates && !a.leased
	read := m.readsInPlace(a) && !a.copies && !a.leased && (len(a.inputs) <= inPlaceInputs || a.large != nil)
	if !lease && !read {
		return nil
	}
	first, some := len(m.waysOut), false
	for i := range a.inputs {
		in := &a.inputs[i]
		w := Way{Lease: lease && m.mayLease(a, in), Read: read && m.mayRead(a, in)}
		some = some || w.Lease || w.Read
		m.waysOut = append(m.waysOut, w)
	}
	if !some {
		return nil
	}
	return m.waysOut[first:len(m.waysOut):len(m.waysOut)]
}

// readsInPlace says whether the operation of an attempt can read inputs in the mapped memory of
// peers.
func (m *Machine) readsInPlace(a *attempt) bool {
	return m.config.ReadsInPlace && a.reads != ReadsAgain
}

func (m *Machine) mayLease(a *attempt, in *Input) bool {
	if in.Inline {
		return false
	}
	if a.large != nil {
		return in.Size() > 0
	}
	return in.Size() >= leaseBytes && m.usage.leases[in.Object] < leaseTimes
}

func (m *Machine) mayRead(a *attempt, in *Input) bool {
	if in.Inline || in.Bytes == 0 || in.Object.Item != 0 {
		return false
	}
	return a.large != nil || in.Upstream == 0 && !in.Downstream && (a.reads == Moves || in.Bytes <= inPlaceBytes) &&
		*m.usage.read(in.Object) < inPlaceTimes*in.Bytes
}

// MovesTooMuch says whether InPlaceFailed is the answer: both what the attempt would read in place
// and its result are larger than MoveLimit. The size of the result is asked for only if it matters.
func (e *StartRun) MovesTooMuch(read uint64, result func() uint64) bool {
	return e.MoveLimit > 0 && read > e.MoveLimit && result() > e.MoveLimit
}

// moveLimit is StartRun.MoveLimit of an attempt.
func (a *attempt) moveLimit() uint64 {
	if a.large == nil && a.reads == Moves {
		return inPlaceMoved
	}
	return 0
}

// countMoved counts the bytes that a run has read in place, of which its result is made.
func (m *Machine) countMoved(a *attempt, bytes uint64) {
	for i := range a.inputs {
		if in := &a.inputs[i]; in.use == useInPlace && a.reads == Moves {
			*m.usage.read(in.Object) += min(in.Bytes, bytes)
		}
	}
}

// use says how the machine uses an input.
type use uint8

const (
	// useNone: it is not known, or it came with the assignment.
	useNone use = iota
	// useCopy: it was not here, and a copy is fetched or was fetched.
	useCopy
	// useHere: it is here. useWhole: its list is here and pinned.
	useHere
	useWhole
	// useInPlace: it is read in place. useLease: there is a lease of it.
	useInPlace
	useLease
)

// onLeasesRequested notes that the answer to Admit waits for leases.
func (m *Machine) onLeasesRequested(e LeasesRequested) {
	a := m.attempts[e.Ref]
	if a == nil || a.state != Admitting {
		return // Leased finds out that the attempt has ended
	}
	if a.large != nil {
		a.large.rounds++
	}
	m.move(a, Leasing)
}

func (m *Machine) onLeased(e *Leased) {
	a := m.attempts[e.Ref]
	if a == nil || a.state != Leasing {
		m.do(EndLeases{Ref: e.Ref})
		return
	}
	a.leased = true
	for i := range e.Answers {
		if e.Answers[i].Granted {
			a.inputs[i].use = useLease
			m.usage.leased(a.inputs[i].Object)
		}
	}
	if l := a.large; l != nil {
		l.answers = slices.Clone(e.Answers)
		if l.given != nil {
			m.regained(a)
			return
		}
	}
	m.admit(a)
}

// uses says whether an attempt uses any of its inputs in one of the ways.
func (a *attempt) uses(ways ...use) bool {
	return slices.ContainsFunc(a.inputs, func(in Input) bool { return slices.Contains(ways, in.use) })
}

// endLeases ends the leases of an attempt.
func (m *Machine) endLeases(a *attempt) {
	if !a.leased {
		return
	}
	a.leased = false
	m.do(EndLeases{Ref: a.ref})
}

// giveUpPlaces makes an attempt that has to wait for memory need less of it: it ends the leases of
// the attempt, which fetches copies after that, also of items of lists that are here. With leases,
// attempts of two workers could wait for each other: each keeps objects of the other worker in the
// slab whose room the other attempt needs. And whole lists would have to be brought into the slab
// for one item each. It returns false if the attempt needs copies of all such inputs anyway, or if
// it is large.
func (a *attempt) giveUpPlaces() bool {
	if a.copies || a.large != nil || !a.uses(useLease, useWhole) {
		return false
	}
	a.copies = true
	return true
}

// onReserveWaits makes an attempt that waits for memory keep nothing of peers meanwhile.
func (m *Machine) onReserveWaits(e ReserveWaits) {
	r := m.reserved[e.Reservation]
	if r == nil || r.granted || r.attempt == nil {
		return
	}
	a := r.attempt
	if a.giveUpPlaces() {
		m.readmit(a)
		return
	}
	m.giveUpLeases(a)
}

// onInPlaceFailed admits an attempt anew whose inputs cannot be read in place. It fetches copies
// then, unless copies do not fit.
func (m *Machine) onInPlaceFailed(now time.Time, e InPlaceFailed) {
	a := m.attempts[e.Ref]
	if a == nil || a.state != Running || m.notBegun(now, a) {
		return
	}
	if a.large != nil && now.Before(a.large.until) {
		m.pause(a)
		return
	}
	a.copies = true
	m.readmit(a)
}

// readmit puts an attempt back into its state before admission, and admits it anew.
func (m *Machine) readmit(a *attempt) {
	m.giveBack(a)
	m.admit(a)
}

// giveBack releases everything that an attempt has got since its admission.
func (m *Machine) giveBack(a *attempt) {
	m.endFetches(a)
	for _, o := range a.pinned {
		m.do(Unpin{Ref: a.ref, Object: o})
	}
	a.pinned, a.loose, a.output, a.roomy = nil, false, nil, false
	m.giveUp(a)
	m.endLeases(a)
	for i := range a.inputs {
		a.inputs[i].use = useNone
	}
}

// Lender returns the holder of an input that is asked for a lease in a round; 0: none is. That is
// the first one, from number round on, that lends. A large attempt, whose inputs cannot be copied,
// asks the first one that is known: a holder that does not lend now may do so later.
func Lender(holders []ids.WorkerID, round int, large bool, of func(ids.WorkerID) (known, lends bool)) ids.WorkerID {
	for n := range holders {
		holder := holders[(n+round)%len(holders)]
		if known, lends := of(holder); known && (large || lends) {
			return holder
		}
	}
	return 0
}
