package lifecycle

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// runner is one kind of slots, all alike.
type runner struct {
	name  string
	slots []*slot
	// ready are the queued attempts that need one plain slot only.
	ready readyHeap
}

// slot is a place that runs attempts one after the other. There are as many as the worker has
// slots, and more while attempts wait for other tasks.
type slot struct {
	index int
	// running are the attempts handed to it, in order; the first is executing.
	running []*attempt
	// width is the number of slots of the worker that it uses up; 0 exactly if running is empty, or
	// if its first attempt has given its slots back (withoutSlots).
	width int
	// load is the sum of the estimates of running.
	load time.Duration
	// plain: all of running are short and need one plain slot only, so that more can be handed over
	// in advance.
	plain bool
	// since is the time when the first of running became the first, or went on after a wait for
	// other tasks.
	since time.Time
}

func (m *Machine) runner(name string) *runner {
	for _, r := range m.runners {
		if r.name == name {
			return r
		}
	}
	r := &runner{name: name, slots: make([]*slot, m.config.Slots)}
	for i := range r.slots {
		r.slots[i] = &slot{index: i}
	}
	m.runners = append(m.runners, r)
	return r
}

func (m *Machine) enqueue(a *attempt) {
	if a.special() {
		at, _ := slices.BinarySearchFunc(m.special, a, compareRank)
		m.special = slices.Insert(m.special, at, a)
		return
	}
	heap.Push(&m.runner(a.runner).ready, a)
}

func (m *Machine) dequeue(a *attempt) {
	if a.special() {
		m.special = slices.DeleteFunc(m.special, func(b *attempt) bool { return a == b })
		return
	}
	heap.Remove(&m.runner(a.runner).ready, a.heapIndex)
}

// dispatch hands queued attempts to slots, in the order of rank over all kinds, as far as slots and
// resources suffice. A special attempt that waits for slots blocks those behind it, which would
// otherwise take the slots one by one. An attempt that waits for a resource does not block others.
// Attempts that have begun and want to go on come first.
func (m *Machine) dispatch(now time.Time) {
	if m.resume(now) {
		return
	}
	for {
		r := m.next()
		a := m.nextSpecial()
		switch {
		case a != nil && (r == nil || compareRank(a, r.ready[0]) < 0):
			if a.slots > m.freeSlots {
				return
			}
			m.dequeue(a)
			// order-free: a subtraction for each name.
			for name, amount := range a.resources {
				m.free[name] -= amount
			}
			m.start(now, a, m.idle(m.runner(a.runner)))
		case r == nil:
			return
		default:
			s := m.slotFor(r)
			m.start(now, heap.Pop(&r.ready).(*attempt), s)
		}
	}
}

// next returns the runner with the first ready attempt by rank among the runners that have a slot
// for theirs.
func (m *Machine) next() (best *runner) {
	for _, r := range m.runners {
		if len(r.ready) > 0 && (best == nil || compareRank(r.ready[0], best.ready[0]) < 0) && m.slotFor(r) != nil {
			best = r
		}
	}
	return best
}

// nextSpecial returns the first special attempt whose resources are free.
func (m *Machine) nextSpecial() *attempt {
	for _, a := range m.special {
		if m.resourcesFree(a) {
			return a
		}
	}
	return nil
}

func (m *Machine) resourcesFree(a *attempt) bool {
	// order-free: a conjunction.
	for name, amount := range a.resources {
		// A worker whose total is less than the amount was given the attempt by mistake. The
		// attempt then runs when nothing else uses the resource, instead of never.
		if amount > m.free[name] && m.free[name] < m.config.Resources[name] {
			return false
		}
	}
	return true
}

// idle returns the first place without attempts, a new one if all have some. REQUIRES: a slot of
// the worker is free.
func (m *Machine) idle(r *runner) *slot {
	for _, s := range r.slots {
		if len(s.running) == 0 {
			return s
		}
	}
	s := &slot{index: len(r.slots)}
	r.slots = append(r.slots, s)
	return s
}

// slotFor returns the slot for a runner's first ready attempt: an idle one if the worker has a free
// slot, otherwise the least loaded one that can take it in advance, nil if there is none.
func (m *Machine) slotFor(r *runner) (best *slot) {
	if m.freeSlots > 0 {
		return m.idle(r)
	}
	a := r.ready[0]
	if a.estimate == 0 {
		return nil
	}
	for _, s := range r.slots {
		if len(s.running) > 0 && s.plain && len(s.running) < m.config.SlotDepth && s.load+a.estimate <= m.config.SlotWindow &&
			(best == nil || s.load < best.load) {
			best = s
		}
	}
	return best
}

func (m *Machine) start(now time.Time, a *attempt, s *slot) {
	if len(s.running) == 0 {
		s.width = a.slots
		s.since = now
		s.plain = true
		m.freeSlots -= s.width
	}
	s.plain = s.plain && !a.special() && a.estimate > 0
	s.load += a.estimate
	s.running = append(s.running, a)
	a.slot = s
	a.prepares = a.mayPrepare
	m.move(a, Running)
	e := StartRun{
		Ref: a.ref, Runner: a.runner, Slot: s.index, Roomy: a.roomy, Placed: a.placed, MoveLimit: a.moveLimit(),
		Fetching: a.fetching, Waiting: a.waiting, Loading: a.loading,
	}
	if a.reservation != nil {
		e.Reservation = a.reservation.id
	}
	m.do(e)
}

// leaveSlot takes an attempt out of its slot.
func (m *Machine) leaveSlot(now time.Time, a *attempt) {
	s := a.slot
	if a.toldBlocked() {
		m.do(Report{Ref: a.ref, Outcome: GoesOn})
	}
	m.endBlocked(a)
	if s.running[0] == a {
		s.since = now
		s.running = s.running[1:]
	} else {
		s.running = slices.DeleteFunc(s.running, func(b *attempt) bool { return a == b })
	}
	s.load -= a.estimate
	a.slot = nil
	a.returning = false
	switch {
	case len(s.running) == 0:
		m.freeSlots += s.width
		s.width, s.running = 0, nil
	case s.width == 0 && !s.running[0].withoutSlots():
		// The attempts behind one that waited were asked to come back, and may begin before they
		// do. So the place takes a slot, even if none is free.
		s.width = 1
		m.freeSlots--
	}
	// order-free: an addition for each name.
	for name, amount := range a.resources {
		m.free[name] += amount
	}
}

func (m *Machine) onRunEnded(now time.Time, e RunEnded) {
	a := m.attempts[e.Ref]
	if a == nil || a.state != Running {
		return
	}
	m.leaveSlot(now, a)
	m.countMoved(a, e.Moved)
	switch {
	case a.cancelled:
		m.log.add(a.ref, "ended after it was cancelled")
		if e.Succeeded {
			m.do(Discard{Ref: a.ref})
		}
		m.do(Report{Ref: a.ref, Outcome: Dropped})
	case e.Succeeded:
		m.log.add(a.ref, "succeeded")
		m.do(Publish{Ref: a.ref, To: m.takeSubscribers(a)})
		a.succeeded = true
	default:
		m.log.add(a.ref, e.Outcome.String())
		m.do(Report{Ref: a.ref, Outcome: e.Outcome})
	}
	m.forget(a)
}

func (m *Machine) onCalled(e Called) {
	if a := m.attempts[e.Ref]; a != nil && a.state == Running {
		a.prepares = false
	}
}

func (m *Machine) onRunReturned(now time.Time, e RunReturned) {
	a := m.attempts[e.Ref]
	if a == nil || a.state != Running {
		return
	}
	// An attempt that did not begin in time is not handed over in advance again.
	a.estimate, a.slot.load = 0, a.slot.load-a.estimate
	m.leaveSlot(now, a)
	if a.cancelled {
		m.log.add(a.ref, "returned after it was cancelled")
		m.do(Report{Ref: a.ref, Outcome: Dropped})
		m.forget(a)
		return
	}
	m.move(a, Queued)
	m.enqueue(a)
}

func (m *Machine) onNoRoom(now time.Time, e NoRoom) {
	a := m.attempts[e.Ref]
	if a == nil || a.state != Running {
		return
	}
	m.leaveSlot(now, a)
	if a.cancelled {
		m.do(Report{Ref: a.ref, Outcome: Dropped})
		m.forget(a)
		return
	}
	// The memory reserved for it was too small.
	m.loosen(a)
	a.output, a.roomy = e.Bytes, true
	m.bringIn(a)
}

// onTicked reports attempts that have run for long as started, and takes back the attempts behind
// them while slots are free. It ends waits whose time is over.
func (m *Machine) onTicked(now time.Time) {
	m.expireFunctions()
	m.endPauses()
	for _, r := range m.runners {
		for _, s := range r.slots {
			if len(s.running) == 0 {
				continue
			}
			ran := now.Sub(s.since)
			if first := s.running[0]; ran >= m.config.StartedAfter && !first.started && !first.prepares && !first.cancelled {
				first.started = true
				m.log.add(first.ref, "reported as started")
				m.do(Report{Ref: first.ref, Outcome: Started})
			}
			if ran >= 2*m.config.SlotWindow {
				for _, a := range s.running[1:] {
					if !a.returning && !a.cancelled && m.freeSlots > 0 {
						a.returning = true
						m.do(TakeBack{Ref: a.ref})
					}
				}
			}
		}
	}
}

// compareRank orders by rank, and equal ranks by task and attempt, so that the order is total.
func compareRank(a, b *attempt) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), a.ref.compare(b.ref))
}

// readyHeap is a heap with the attempt of the lowest rank at index 0.
type readyHeap []*attempt

// Len is part of heap.Interface.
func (h readyHeap) Len() int { return len(h) }

// Less is part of heap.Interface.
func (h readyHeap) Less(i, j int) bool { return compareRank(h[i], h[j]) < 0 }

// Swap is part of heap.Interface.
func (h readyHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}

// Push is part of heap.Interface.
func (h *readyHeap) Push(x any) {
	a := x.(*attempt)
	a.heapIndex = len(*h)
	*h = append(*h, a)
}

// Pop is part of heap.Interface.
func (h *readyHeap) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	a.heapIndex = -1
	*h = old[:len(old)-1]
	return a
}
