// Package store is an Interface to a worker's memory: a space, the tiers below it, and the ledger
// that keeps their records, behind one lock. Device, executors, paths and loop share it. It knows
// the space and the tiers only through the interfaces memory.Space and memory.Tier.
//
// The ledger is a machine and needs one owner. Here the owner is a lock instead of a goroutine:
// operations, streams of peers and executors need the answer to a request before they can continue,
// and a lock is an order of magnitude cheaper than a message and its answer. The store adds what IO
// needs: waiting, leases for readers without a process, and the release of free pages.
//
// Results without frames are kept as a header in the Go heap. A large header is stored in the slab
// as the only frame of its object, so that it counts against the worker's limit and can move to the
// tiers below like other objects. Readers get it as a header nevertheless: it is copied into the
// heap for each reader.
package store

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
)

// forever is the duration of leases that end with their holder in this process.
const forever = 100 * 365 * 24 * time.Hour

// headerLease is the ID of all leases on objects without bytes in the slab, which need no
// protection. The ledger's own lease IDs count up from 1.
const headerLease transfer.LeaseID = 1 << 63

// Store is safe for concurrent use. It calls no callbacks under its lock, except the functions
// passed to AllocateAll and SealCopies.
type Store struct {
	space memory.Space
	below []memory.Tier
	log   *slog.Logger

	mu sync.Mutex
	// The fields below are guarded by mu.
	ledger *ledger.Ledger
	// trace is nil unless allocations are traced; see TraceEnv.
	trace *trace
	// latest is the newest generation of each task's result here.
	latest map[ids.TaskID]ids.Attempt
	// small are the headers of objects without frames that are in the heap.
	small      map[ledger.ObjectID][]byte
	smallBytes uint64
	// written are objects of clients that the scheduler has not accepted yet: they cannot be read.
	written map[ledger.ObjectID]bool
	// callbacks has the callbacks of the reservations that are not ready.
	callbacks       map[ledger.ReservationID]func(ReservationResult)
	lastReservation ledger.ReservationID
	// bringing are the objects that come into the slab for readers; see bring.
	bringing      map[ledger.ObjectID]bool
	lastTemporary uint64
	// gone is called for objects that the store has given up by itself. short is called while a
	// request waits for room; asked is the time of its last call.
	gone  func(ledger.ObjectID, error)
	short []func(stuck bool)
	asked time.Time
	mover
	// waited is called by a goroutine that has waited for memory, before it goes on.
	waited func(ledger.ReservationID)
	// index is the shared object index, nil if readers must request leases. recalling are the
	// ranges that its readers may still be reading, and watching says that a goroutine waits for
	// these readers.
	index     Index
	recalling []recalling
	watching  bool
	// working counts goroutines that move bytes, release pages or wait for readers; Close waits for
	// them.
	working sync.WaitGroup
	closed  bool
}

// New returns an empty store on a space and the tiers below it, fastest first.
func New(space memory.Space, log *slog.Logger, below ...memory.Tier) (*Store, error) {
	c := ledger.Config{SizeBytes: space.Size(), HeaderBytes: memory.HeaderBytes}
	for _, t := range below {
		c.Below = append(c.Below, ledger.Tier{Name: t.Name(), SizeBytes: t.Size(), UnitBytes: t.UnitBytes(), DiscardBytes: t.DiscardBytes()})
	}
	steps, err := openTrace()
	if err != nil {
		return nil, err
	}
	if steps != nil {
		c.Observe = steps.step
	}
	s := &Store{
		trace: steps,
		space: space, below: below, log: log,
		latest:    make(map[ids.TaskID]ids.Attempt),
		small:     make(map[ledger.ObjectID][]byte),
		written:   make(map[ledger.ObjectID]bool),
		callbacks: make(map[ledger.ReservationID]func(ReservationResult)), bringing: make(map[ledger.ObjectID]bool),
		gone: func(ledger.ObjectID, error) {}, waited: func(ledger.ReservationID) {},
	}
	c.Index = ledgerIndex{s}
	if s.ledger, err = ledger.New(c); err != nil {
		return nil, err
	}
	return s, nil
}

// OnGone sets the function that is called for objects that the store has given up without a Drop:
// with an error if their bytes are lost, with nil if they were copies that had to make room. It
// must be set before anything is stored.
func (s *Store) OnGone(gone func(ledger.ObjectID, error)) { s.gone = gone }

// OnWaited sets the function that a goroutine calls when its wait for a reservation is over, before
// it goes on: a simulation decides there which of several such goroutines goes on first. It must be
// set before anything is stored.
func (s *Store) OnWaited(waited func(ledger.ReservationID)) { s.waited = waited }

// Space returns the slab.
func (s *Store) Space() memory.Space { return s.space }

// Close waits for bytes that are being moved and pages that are being released. Reservations that
// are not ready are refused.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	callbacks := s.callbacks
	s.callbacks = make(map[ledger.ReservationID]func(ReservationResult))
	s.mover.queues = [2][]order{}
	s.mu.Unlock()
	for _, callback := range callbacks {
		callback(ReservationResult{Err: fmt.Errorf("store: the worker is stopping: %w", ledger.ErrNoRoom)})
	}
	s.working.Wait()
	if s.trace == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.trace.close(); err != nil {
		s.log.Error("the trace of allocations is not whole", "error", err)
	}
	s.trace = nil
}

// apply carries out effects and returns the callbacks, which must be called without the lock.
func (s *Store) apply(effects []ledger.Effect) (calls []func()) {
	for _, e := range effects {
		switch e := e.(type) {
		case ledger.Granted:
			if callback := s.callbacks[e.Reservation]; callback != nil {
				if !e.Loading {
					delete(s.callbacks, e.Reservation)
				}
				calls = append(calls, func() { callback(ReservationResult{Granted: true, Ready: !e.Loading}) })
			}
		case ledger.Loaded:
			if callback := s.callbacks[e.Reservation]; callback != nil {
				delete(s.callbacks, e.Reservation)
				calls = append(calls, func() { callback(ReservationResult{Granted: true, Ready: true}) })
			}
		case ledger.LoadFailed:
			if callback := s.callbacks[e.Reservation]; callback != nil {
				calls = append(calls, func() { callback(ReservationResult{Granted: true, Lost: e.Object, Err: e.Err}) })
			}
		case ledger.Refused:
			if callback := s.callbacks[e.Reservation]; callback != nil {
				delete(s.callbacks, e.Reservation)
				calls = append(calls, func() { callback(ReservationResult{Err: e.Err}) })
			}
		case ledger.Lost:
			delete(s.written, e.Object)
			s.log.Error("spilled object is lost", "object", e.Object.String(), "error", e.Err)
			s.forgetLatest(e.Object)
			calls = append(calls, func() { s.gone(e.Object, e.Err) })
		case ledger.CopyDropped:
			calls = append(calls, func() { s.gone(e.Object, nil) })
		case ledger.TierFailed:
			s.tierFailed(e)
		case ledger.WriteOut, ledger.Discard:
			s.move(writes, e)
		case ledger.ReadIn:
			s.move(reads, e)
		case ledger.LeaseExpired:
			s.log.Warn("read lease expired", "object", e.Lease.Object.String(), "holder", e.Lease.Holder.String())
		case ledger.Freed:
			s.forgetLatest(e.Object)
		case ledger.PunchHoles:
			s.working.Add(1)
			go s.punch(e.Ranges)
		}
	}
	return calls
}

func (s *Store) forgetLatest(id ledger.ObjectID) {
	if id.Item == 0 && s.latest[id.Task] == id.Generation {
		delete(s.latest, id.Task)
	}
}

func run(calls []func()) {
	for _, call := range calls {
		call()
	}
}

func (s *Store) punch(ranges []memory.Frame) {
	defer s.working.Done()
	err := s.space.(memory.Puncher).Punch(ranges)
	if err != nil {
		s.log.Error("free memory stays resident", "error", err)
	}
	s.mu.Lock()
	calls := s.apply(s.ledger.Punched(err == nil))
	s.mu.Unlock()
	run(calls)
}

// Tick expires leases and requests past their deadline, and asks for room again if a request waits.
// It must be called a few times a second.
func (s *Store) Tick(now time.Time) {
	s.mu.Lock()
	var calls []func()
	if at, ok := s.ledger.NextDeadline(); ok && !now.Before(at) {
		calls = s.apply(s.ledger.Expire(now))
	}
	if s.ledger.Waits() && now.Sub(s.asked) >= askEvery {
		calls = append(calls, s.askForRoom(now)...)
	}
	s.mu.Unlock()
	run(calls)
}

// Trim returns the pages of free memory to the system, except keep bytes and the memory that was in
// use since the last call. Once a second is often enough.
func (s *Store) Trim(keep uint64) {
	s.mu.Lock()
	var calls []func()
	if _, can := s.space.(memory.Puncher); can && !s.closed {
		calls = s.apply(s.ledger.Trim(keep))
	}
	s.mu.Unlock()
	run(calls)
}

// Lookup finds a sealed object. Generation 0 means the newest one here.
func (s *Store) Lookup(id ledger.ObjectID) (Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookup(id)
}

// find finds a sealed object or, of an item, the whole list or a copy of the item. REQUIRES: mu.
func (s *Store) find(id ledger.ObjectID) (Object, bool) {
	if id.Item != 0 {
		if o, ok := s.lookup(id.Whole()); ok {
			return o, true
		}
	}
	return s.lookup(id)
}

func (s *Store) lookup(id ledger.ObjectID) (Object, bool) {
	if id.Generation == 0 {
		if id.Generation = s.latest[id.Task]; id.Generation == 0 {
			return Object{}, false
		}
	}
	if s.written[id] {
		return Object{}, false
	}
	if header, ok := s.small[id]; ok {
		return Object{ID: id, Header: header, InSlab: true}, true
	}
	o, ok := s.ledger.Lookup(id)
	if !ok || o.State != ledger.Sealed {
		return Object{}, false
	}
	return objectOf(o), true
}

// Copied marks an object as a copy of one that another worker keeps: it may be dropped to make
// room. It does nothing for an item, which is dropped with its last reader.
func (s *Store) Copied(id ledger.ObjectID) {
	s.mu.Lock()
	s.copied(id)
	s.mu.Unlock()
}

// copied is Copied. REQUIRES: mu.
func (s *Store) copied(id ledger.ObjectID) {
	if id.Item == 0 {
		s.ledger.Copied(id)
	}
}

// Keep takes back Copied. It returns the object if it is here.
func (s *Store) Keep(id ledger.ObjectID) (Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Keep(id)
	return s.lookup(id)
}

// Cost records how long it took to make an object that is here; see ledger.Cost.
func (s *Store) Cost(id ledger.ObjectID, took time.Duration) {
	s.mu.Lock()
	s.ledger.Cost(id, took)
	s.mu.Unlock()
}

// Here says whether an object exists, even if it cannot be read yet.
func (s *Store) Here(id ledger.ObjectID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.here(id)
}

func (s *Store) here(id ledger.ObjectID) bool {
	_, small := s.small[id]
	_, ok := s.ledger.Lookup(id)
	return small || ok
}

// SealWritten is Seal for an object that a client wrote: it cannot be read before Accept.
func (s *Store) SealWritten(id ledger.ObjectID, header []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.ledger.Seal(id, header)
	if err == nil {
		s.written[id] = true
	}
	return err
}

// Accept makes an object that a client wrote readable. It does nothing if the object is not here.
func (s *Store) Accept(id ledger.ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.written[id] {
		return
	}
	delete(s.written, id)
	s.latest[id.Task] = max(s.latest[id.Task], id.Generation)
	if o, ok := s.ledger.Lookup(id); ok && o.InSlab {
		s.publish(id)
	}
}

// Drop removes an object that is not needed any more. It returns whether the object was here.
func (s *Store) Drop(id ledger.ObjectID) bool {
	s.mu.Lock()
	s.forgetLatest(id)
	delete(s.written, id)
	if header, ok := s.small[id]; ok {
		s.smallBytes -= uint64(len(header))
		delete(s.small, id)
		s.mu.Unlock()
		return true
	}
	effects, err := s.ledger.Drop(id)
	if o, held := s.ledger.Lookup(id); id.Task >= temporaryTasks && err == nil && held && len(o.Pins) > 0 {
		// Its last pin is the pin of SealTemporary.
		more, _ := s.ledger.Unpin(id, o.Pins[0])
		effects = append(effects, more...)
	}
	calls := s.apply(effects)
	s.mu.Unlock()
	run(calls)
	return err == nil
}

// Forget drops all objects, including those that clients wrote and those with read leases. Leased
// objects keep their bytes, but not their numbers, which other objects may then get. Memory of
// executors stays allocated.
func (s *Store) Forget() {
	s.mu.Lock()
	all := s.inventory()
	s.mu.Unlock()
	for _, o := range all {
		s.Drop(o.ID)
	}
	s.mu.Lock()
	written := slices.Collect(maps.Keys(s.written))
	s.mu.Unlock()
	for _, id := range written {
		s.Drop(id)
	}
	s.mu.Lock()
	clear(s.latest)
	s.ledger.Rename(func(id ledger.ObjectID) ledger.ObjectID {
		if id.Task >= temporaryTasks {
			return id
		}
		s.lastTemporary++
		return ledger.ObjectID{Task: temporaryTasks + ids.TaskID(s.lastTemporary), Generation: 1}
	})
	s.mu.Unlock()
}

// Inventory returns all objects that can be read, sorted by task. Objects that clients wrote are
// included once they are accepted. Copies of items are not included: only the attempts that fetched
// them use them.
func (s *Store) Inventory() []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(s.inventory(), func(o Object) bool { return o.ID.Item != 0 })
}

// inventory is Inventory with the copies of items. REQUIRES: mu.
func (s *Store) inventory() (out []Object) {
	for _, o := range s.ledger.Objects() {
		if o.State == ledger.Sealed && o.ID.Task < temporaryTasks && !s.written[o.ID] {
			out = append(out, objectOf(o))
		}
	}
	for id, header := range s.small {
		if s.written[id] {
			continue
		}
		out = append(out, Object{ID: id, Header: header, InSlab: true})
	}
	slices.SortFunc(out, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.ID.Task, b.ID.Task), cmp.Compare(a.ID.Generation, b.ID.Generation))
	})
	return out
}

// Stats returns the ledger's statistics, and the number and bytes of the objects in the heap.
func (s *Store) Stats() (books ledger.Stats, small int, smallBytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Stats(), len(s.small), s.smallBytes
}

// Check returns the first broken invariant.
func (s *Store) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Check()
}

// Tiers describes the tiers, the slab first.
func (s *Store) Tiers() []ledger.TierState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Tiers()
}

// Snapshot describes the tiers, the n largest holders and pins, and the reservations.
func (s *Store) Snapshot(n int) ledger.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Snapshot(n)
}

// History returns the remembered history of a task's result: of its newest generation here, or of
// the first if there is none.
func (s *Store) History(task ids.TaskID) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.History(ledger.ObjectID{Task: task, Generation: max(s.latest[task], 1)})
}
