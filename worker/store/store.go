// Package store is an Interface to a worker's memory: a space and the ledger that
// keeps its books, behind one lock, as device, executors, paths and loop share
// them. Of the space it knows only memory.Space.
//
// The ledger is a machine and wants one owner. Here the owner is a lock instead
// of a goroutine, because those who need room or bytes (operations, streams of
// peers, executors) need the answer before they can go on, and a lock is an order
// of magnitude cheaper than a message there and back. The store adds what IO
// needs: waiting, leases without a process behind them, pages given back.
//
// Results without frames never touch the slab: they are kept as what they are, a
// header in the Go heap.
package store

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
)

// forever is the deadline of leases that end with their holder in this process.
const forever = 100 * 365 * 24 * time.Hour

// headerLease marks leases on objects that have no bytes in the slab, and so
// need no protection; the ledger's own count up from 1.
const headerLease transfer.LeaseID = 1 << 63

// Store is safe for concurrent use. Nothing is called back under its lock.
type Store struct {
	space memory.Space
	log   *slog.Logger

	mu sync.Mutex
	// All below is guarded by mu.
	ledger *ledger.Ledger
	// latest is the newest generation here of each task.
	latest map[ids.TaskID]ids.Attempt
	// small are the headers of the objects without frames.
	small      map[ledger.ObjectID][]byte
	smallBytes uint64
	// waiting are the reservations in the ledger's queue and whom to tell.
	waiting         map[ledger.ReservationID]func(error)
	lastReservation ledger.ReservationID
	lastTemporary   uint64
	// punching is whether a goroutine is giving pages back; Close waits for it.
	punching sync.WaitGroup
	closed   bool
}

// Object is what a reader needs of a sealed object. Its header and frame list
// never change; the bytes stay while they are pinned or leased.
type Object struct {
	ID     ledger.ObjectID
	Header []byte
	Frames []memory.Frame
}

// Bytes is the size that the scheduler counts: frames and header.
func (o Object) Bytes() (n uint64) {
	for _, f := range o.Frames {
		n += f.Bytes
	}
	return n + uint64(len(o.Header))
}

// New returns an empty store over a space.
func New(space memory.Space, log *slog.Logger) (*Store, error) {
	l, err := ledger.New(ledger.Config{SizeBytes: space.Size(), HeaderBytes: memory.HeaderBytes})
	if err != nil {
		return nil, err
	}
	return &Store{
		space: space, log: log, ledger: l,
		latest:  make(map[ids.TaskID]ids.Attempt),
		small:   make(map[ledger.ObjectID][]byte),
		waiting: make(map[ledger.ReservationID]func(error)),
	}, nil
}

// Space returns the slab.
func (s *Store) Space() memory.Space { return s.space }

// Close waits for pages being given back. Waiting reservations are refused.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	waiting := s.waiting
	s.waiting = make(map[ledger.ReservationID]func(error))
	s.mu.Unlock()
	for _, tell := range waiting {
		tell(fmt.Errorf("store: the worker is stopping: %w", ledger.ErrNoRoom))
	}
	s.punching.Wait()
}

// apply carries effects out and returns the calls to make without the lock.
func (s *Store) apply(effects []ledger.Effect) (calls []func()) {
	for _, e := range effects {
		switch e := e.(type) {
		case ledger.Granted:
			if tell := s.waiting[e.Reservation]; tell != nil {
				delete(s.waiting, e.Reservation)
				calls = append(calls, func() { tell(nil) })
			}
		case ledger.Refused:
			if tell := s.waiting[e.Reservation]; tell != nil {
				delete(s.waiting, e.Reservation)
				calls = append(calls, func() { tell(e.Err) })
			}
		case ledger.LeaseExpired:
			s.log.Warn("read lease expired", "object", e.Lease.Object.String(), "holder", e.Lease.Holder.String())
		case ledger.Freed:
			if s.latest[e.Object.Task] == e.Object.Generation {
				delete(s.latest, e.Object.Task)
			}
		case ledger.PunchHoles:
			s.punching.Add(1)
			go s.punch(e.Ranges)
		}
	}
	return calls
}

func run(calls []func()) {
	for _, call := range calls {
		call()
	}
}

func (s *Store) punch(ranges []memory.Frame) {
	defer s.punching.Done()
	err := s.space.(memory.Puncher).Punch(ranges)
	if err != nil {
		s.log.Error("free memory stays resident", "error", err)
	}
	s.mu.Lock()
	calls := s.apply(s.ledger.Punched(err == nil))
	s.mu.Unlock()
	run(calls)
}

// Tick ends what has run out of time, and gives the pages of free memory back
// beyond keep bytes. It is called a few times a second.
func (s *Store) Tick(now time.Time, keep uint64) {
	s.mu.Lock()
	var effects []ledger.Effect
	if at, ok := s.ledger.NextDeadline(); ok && !now.Before(at) {
		effects = s.ledger.Expire(now)
	}
	if _, can := s.space.(memory.Puncher); can && !s.closed {
		effects = append(effects, s.ledger.Trim(keep)...)
	}
	calls := s.apply(effects)
	s.mu.Unlock()
	run(calls)
}

// Lookup finds a sealed object. Generation 0 is the newest one here.
func (s *Store) Lookup(id ledger.ObjectID) (Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookup(id)
}

func (s *Store) lookup(id ledger.ObjectID) (Object, bool) {
	if id.Generation == 0 {
		if id.Generation = s.latest[id.Task]; id.Generation == 0 {
			return Object{}, false
		}
	}
	if header, ok := s.small[id]; ok {
		return Object{ID: id, Header: header}, true
	}
	o, ok := s.ledger.Lookup(id)
	if !ok || o.State != ledger.Sealed {
		return Object{}, false
	}
	return Object{ID: id, Header: o.Header, Frames: o.Frames}, true
}

// Pin finds a sealed object and keeps its bytes for an attempt.
func (s *Store) Pin(id ledger.ObjectID, task ids.TaskID, attempt ids.Attempt) (Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.lookup(id)
	if ok && len(o.Frames) > 0 {
		ok = s.ledger.Pin(o.ID, inputPin(task, attempt)) == nil
	}
	return o, ok
}

// Unpin ends what Pin did. Objects without frames have no pins.
func (s *Store) Unpin(id ledger.ObjectID, task ids.TaskID, attempt ids.Attempt) {
	s.mu.Lock()
	effects, err := s.ledger.Unpin(id, inputPin(task, attempt))
	var calls []func()
	if err == nil {
		calls = s.apply(effects)
	}
	s.mu.Unlock()
	run(calls)
}

func inputPin(task ids.TaskID, attempt ids.Attempt) ledger.Pin {
	return ledger.Pin{Reason: ledger.PinInput, Holder: ledger.Holder{Kind: ledger.HolderTask, ID: uint64(task)}, Attempt: attempt}
}

// PutSmall stores an object without frames.
func (s *Store) PutSmall(id ledger.ObjectID, header []byte) {
	s.mu.Lock()
	s.smallBytes += uint64(len(header)) - uint64(len(s.small[id]))
	s.small[id] = header
	s.latest[id.Task] = max(s.latest[id.Task], id.Generation)
	s.mu.Unlock()
}

// Drop says that an object is not wanted any more. It returns whether it was
// here.
func (s *Store) Drop(id ledger.ObjectID) bool {
	s.mu.Lock()
	if s.latest[id.Task] == id.Generation {
		delete(s.latest, id.Task)
	}
	if header, ok := s.small[id]; ok {
		s.smallBytes -= uint64(len(header))
		delete(s.small, id)
		s.mu.Unlock()
		return true
	}
	effects, err := s.ledger.Drop(id)
	calls := s.apply(effects)
	s.mu.Unlock()
	run(calls)
	return err == nil
}

// Inventory returns all objects that can be read, by task.
func (s *Store) Inventory() []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Object
	for _, o := range s.ledger.Objects() {
		if o.State == ledger.Sealed && o.ID.Task < temporaryTasks {
			out = append(out, Object{ID: o.ID, Header: o.Header, Frames: o.Frames})
		}
	}
	for id, header := range s.small {
		out = append(out, Object{ID: id, Header: header})
	}
	slices.SortFunc(out, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.ID.Task, b.ID.Task), cmp.Compare(a.ID.Generation, b.ID.Generation))
	})
	return out
}

// Stats returns the ledger's books, and the objects and bytes beside the slab.
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

// Reserve sets memory aside for a holder. If it has to wait, until the deadline,
// tell is called once, from any goroutine, when it is decided; otherwise tell is
// not called and granted is true.
func (s *Store) Reserve(holder ledger.Holder, bytes []uint64, deadline time.Time, tell func(error)) (id ledger.ReservationID, granted bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, false, fmt.Errorf("store: the worker is stopping: %w", ledger.ErrNoRoom)
	}
	s.lastReservation++
	id = s.lastReservation
	granted, err = s.ledger.Reserve(time.Now(), ledger.Request{ID: id, Holder: holder, Bytes: bytes, Deadline: deadline})
	if err != nil {
		return 0, false, err
	}
	if !granted {
		s.waiting[id] = tell
	}
	return id, granted, nil
}

// ReserveWait is Reserve for those who can wait in place.
func (s *Store) ReserveWait(ctx context.Context, holder ledger.Holder, bytes []uint64, wait time.Duration) (ledger.ReservationID, error) {
	decided := make(chan error, 1)
	id, granted, err := s.Reserve(holder, bytes, time.Now().Add(wait), func(err error) { decided <- err })
	if granted || err != nil {
		return id, err
	}
	select {
	case err := <-decided:
		return id, err
	case <-ctx.Done():
		s.Release(id)
		return 0, context.Cause(ctx)
	}
}

// Release ends a reservation with all that was built in it and not sealed.
// REQUIRES: nobody writes there any more.
func (s *Store) Release(id ledger.ReservationID) {
	if id == 0 {
		return
	}
	s.mu.Lock()
	delete(s.waiting, id)
	effects, err := s.ledger.Release(id)
	var calls []func()
	if err == nil {
		calls = s.apply(effects)
	}
	s.mu.Unlock()
	run(calls)
}

// Allocate makes frames of an object that is being built.
func (s *Store) Allocate(r ledger.ReservationID, id ledger.ObjectID, sizes ...uint64) ([]memory.Frame, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Allocate(r, id, sizes...)
}

// Alias makes frames of an object that is being built out of another one's.
func (s *Store) Alias(r ledger.ReservationID, id, source ledger.ObjectID, ranges ...memory.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Alias(r, id, source, ranges...)
}

// Seal makes an object readable. An object of which no frame was ever allocated
// is to be put with PutSmall instead.
func (s *Store) Seal(id ledger.ObjectID, header []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.ledger.Seal(id, header)
	if err == nil && id.Task < temporaryTasks {
		s.latest[id.Task] = max(s.latest[id.Task], id.Generation)
	}
	return err
}

// temporaryTasks is where the numbers of Temporary begin: far beyond those that
// a scheduler hands out.
const temporaryTasks ids.TaskID = 1 << 62

// Temporary names an object that is only a step in building another one, and
// never seen outside.
func (s *Store) Temporary() ledger.ObjectID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastTemporary++
	return ledger.ObjectID{Task: temporaryTasks + ids.TaskID(s.lastTemporary), Generation: 1}
}

// View returns the bytes of a frame in place.
func (s *Store) View(f memory.Frame) []byte {
	if f.Bytes == 0 {
		return nil
	}
	return s.space.Bytes(f.Offset, f.Bytes)
}

// Views returns the bytes of frames in place.
func (s *Store) Views(frames []memory.Frame) [][]byte {
	if len(frames) == 0 {
		return nil
	}
	out := make([][]byte, len(frames))
	for i, f := range frames {
		out[i] = s.View(f)
	}
	return out
}

// Regions returns frames for a transfer path.
func (s *Store) Regions(frames []memory.Frame) []transfer.Region {
	out := make([]transfer.Region, len(frames))
	for i, f := range frames {
		out[i] = transfer.Region{Space: s.space, Frame: f}
	}
	return out
}
