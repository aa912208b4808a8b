package store

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
)

// Admit finds the inputs of an attempt and pins them for it until Unpin. Inputs that are not here
// have no ID in the result. If this withholds little memory from others, the inputs are pinned in
// the slab and the attempt can run. Otherwise loose is true: they may be moved, and the attempt
// first needs a reservation with these inputs. waits says that the attempt must wait for memory
// anyway; then the result is loose too, because an attempt that waits must not hold memory. Without
// a tier below the slab, loose is always false: nothing can be moved.
//
// An object that is several inputs, or of which the attempt needs several items, counts once.
//
// Of an item, the whole object is pinned if it is in the slab, as the ID in the result says. A list
// that is in a tier below is not found, and neither are lists if the slab has little room, or if
// they are too large together, or if copies is true: the attempt needs a copy of its items, so that
// the lists may leave. The result is appended to into.
func (s *Store) Admit(task ids.TaskID, attempt ids.Attempt, rank uint64, inputs []ledger.ObjectID, waits, copies bool, into []Object) (objects []Object, loose bool) {
	objects = append(into, make([]Object, len(inputs))...)
	s.mu.Lock()
	defer s.mu.Unlock()
	loose = waits
	var bytes, lists uint64
	var counted objectSet
	spacious := s.ledger.Spacious() && !copies
	for i, id := range inputs {
		o, ok := s.find(id)
		whole := o.ID.Item != id.Item // the list of which the attempt needs an item
		again := ok && counted.has(o.ID)
		if whole && !again && len(s.below) > 0 {
			ok = ok && o.InSlab && spacious && s.ledger.KeepsLists(lists+o.Placed())
		}
		if !ok {
			loose = true
			continue
		}
		objects[i] = o
		if !again {
			counted.add(o.ID)
			bytes += o.Placed()
			if whole {
				lists += o.Placed()
			}
		}
		loose = loose || !o.InSlab
	}
	loose = len(s.below) > 0 && (loose || !s.ledger.PinsAtOnce(bytes))
	p := inputPin(task, attempt)
	if loose {
		p = queuedPin(task, attempt, rank)
	}
	for i := range objects {
		if o := &objects[i]; o.HasPlace() && s.ledger.Pin(o.ID, p) != nil {
			*o = Object{}
		}
	}
	return objects, loose
}

// objectSet is a set of objects: a list while they are few, so that most attempts need no map.
type objectSet struct {
	few  [8]ledger.ObjectID
	n    int
	many map[ledger.ObjectID]bool
}

func (x *objectSet) has(id ledger.ObjectID) bool {
	return slices.Contains(x.few[:x.n], id) || x.many[id]
}

func (x *objectSet) add(id ledger.ObjectID) {
	if x.n < len(x.few) {
		x.few[x.n] = id
		x.n++
		return
	}
	if x.many == nil {
		x.many = make(map[ledger.ObjectID]bool)
	}
	x.many[id] = true
}

// Queue finds a sealed object and pins it for an attempt that will run at a rank. The object may be
// in any tier until a reservation with it as input is granted.
func (s *Store) Queue(id ledger.ObjectID, task ids.TaskID, attempt ids.Attempt, rank uint64) (Object, bool) {
	return s.pin(id, queuedPin(task, attempt, rank))
}

// Loosen allows an object that is pinned for an attempt to leave the slab.
func (s *Store) Loosen(id ledger.ObjectID, task ids.TaskID, attempt ids.Attempt, rank uint64) {
	var calls []func()
	s.mu.Lock()
	defer func() {
		s.mu.Unlock()
		run(calls)
	}()
	if len(s.below) == 0 || s.ledger.Pin(id, queuedPin(task, attempt, rank)) != nil {
		return
	}
	effects, err := s.ledger.Unpin(id, inputPin(task, attempt))
	if err == nil {
		calls = s.apply(effects)
	}
}

// Unpin removes the pins of an attempt. Small headers have none.
func (s *Store) Unpin(id ledger.ObjectID, task ids.TaskID, attempt ids.Attempt) {
	s.mu.Lock()
	var calls []func()
	for _, p := range [...]ledger.Pin{inputPin(task, attempt), queuedPin(task, attempt, 0)} {
		if !s.ledger.Pinned(id, p) {
			continue
		}
		if effects, err := s.ledger.Unpin(id, p); err == nil {
			calls = append(calls, s.apply(effects)...)
		}
	}
	s.mu.Unlock()
	run(calls)
}

func (s *Store) pin(id ledger.ObjectID, p ledger.Pin) (Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.lookup(id)
	if ok && o.HasPlace() {
		ok = s.ledger.Pin(o.ID, p) == nil
	}
	return o, ok
}

func inputPin(task ids.TaskID, attempt ids.Attempt) ledger.Pin {
	return ledger.Pin{Reason: ledger.PinInput, Holder: TaskHolder(task), Attempt: attempt}
}

func queuedPin(task ids.TaskID, attempt ids.Attempt, rank uint64) ledger.Pin {
	return ledger.Pin{Reason: ledger.PinQueued, Holder: TaskHolder(task), Attempt: attempt, Rank: rank}
}

// Held returns an object that is pinned, whether it is sealed or has been dropped since. Its frames
// stay in place if a pin or a reservation keeps them there.
func (s *Store) Held(id ledger.ObjectID) (o Object, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if header, ok := s.small[id]; ok {
		return Object{ID: id, Header: header, InSlab: true}, true
	}
	v, ok := s.ledger.Lookup(id)
	if _, have := s.ledger.Copies(id); !ok || !have || v.State == ledger.Building {
		return Object{}, false
	}
	return objectOf(v), true
}

// Hold keeps an object in the slab for a granted reservation, as if it had been one of the inputs.
// It returns false if the bytes are not in the slab.
func (s *Store) Hold(r ledger.ReservationID, id ledger.ObjectID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.small[id]; ok {
		return true
	}
	return s.ledger.Hold(r, id) == nil
}

// Use is the rank at which an object will be needed; see ledger.Expect.
type Use struct {
	ID   ledger.ObjectID
	Rank uint64
}

// Expect records when objects will be needed.
func (s *Store) Expect(uses []Use) {
	s.mu.Lock()
	for _, u := range uses {
		s.ledger.Expect(u.ID, u.Rank)
	}
	s.mu.Unlock()
}

// TaskHolder is a task as the holder of memory or of an object.
func TaskHolder(task ids.TaskID) ledger.Holder {
	return ledger.Holder{Kind: ledger.HolderTask, ID: uint64(task)}
}
