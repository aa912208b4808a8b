package lifecycle

import (
	"fmt"
	"slices"
	"time"
)

// waiting says whether a running attempt waits for other tasks, and what became of its slots.
type waiting uint8

const (
	// notWaiting: it does not wait, as far as is known.
	notWaiting waiting = iota
	// yielding: it waits, and gives its slots back as soon as the scheduler allows it.
	yielding
	// blocked: it waits, and has given its slots back.
	blocked
	// blockedInPlace: it waits and keeps its slots, because Config.MaxBlocked attempts have given
	// theirs back already.
	blockedInPlace
	// resuming: it does not wait any more, and needs its slots again to go on.
	resuming
)

// withoutSlots reports whether a running attempt occupies none of the worker's slots.
func (a *attempt) withoutSlots() bool { return a.waits == blocked || a.waits == resuming }

// toldBlocked reports whether the scheduler was told last that a running attempt waits.
func (a *attempt) toldBlocked() bool { return a.waits == yielding || a.withoutSlots() }

// onBlocked tells the scheduler that an attempt waits for other tasks. The attempt keeps its slots
// until the scheduler answers with SlotFreed: before that it sends what is to run in them.
// Otherwise older attempts would begin and wait in their turn, and more and more would wait.
func (m *Machine) onBlocked(e Blocked) {
	a := m.attempts[e.Ref]
	if a == nil || a.state != Running || a.cancelled || a.slot.running[0] != a {
		return
	}
	switch a.waits {
	case notWaiting:
	case resuming:
		// Another process has begun it again, and it waits again before it has got a slot.
		a.waits = blocked
		m.resuming = slices.DeleteFunc(m.resuming, func(b *attempt) bool { return a == b })
		return
	case yielding, blocked, blockedInPlace:
		return
	}
	a.waits = yielding
	a.slot.plain, a.started, a.prepares = false, true, false
	m.log.add(a.ref, "waits for tasks")
	m.do(Report{Ref: a.ref, Outcome: WaitsForTasks})
}

// onSlotFreed gives the slots of an attempt that waits to others. Its place stays its own; others
// run in other places. If too many wait already, the attempt keeps its slots, as long as another
// slot can still run what it waits for. Without such a slot the attempt fails: the worker could not
// go on.
func (m *Machine) onSlotFreed(e SlotFreed) {
	a := m.attempts[e.Ref]
	if a == nil || a.waits != yielding {
		return
	}
	s := a.slot
	for _, b := range s.running[1:] {
		if !b.returning && !b.cancelled {
			b.returning = true
			m.do(TakeBack{Ref: b.ref})
		}
	}
	switch {
	case m.blocked < m.config.MaxBlocked:
		a.waits = blocked
		m.blocked++
		m.freeSlots += s.width
		s.width = 0
		return
	case m.inPlace+s.width < m.config.Slots:
		a.waits = blockedInPlace
		m.inPlace += s.width
		m.log.add(a.ref, "keeps its slot: too many wait")
	default:
		a.waits = notWaiting
		m.log.add(a.ref, "stopped: too many wait")
		m.do(StopRun{Ref: a.ref, Reason: fmt.Sprintf("it waits for tasks, like %d other tasks of this worker, and no slot could run any: "+
			"let tasks return futures in place of waiting for them, or raise --max-waiting", m.blocked+m.inPlace)})
	}
	m.do(Report{Ref: a.ref, Outcome: GoesOn})
}

// onUnblocked lets an attempt go on: at once if it has kept its slots, otherwise when there are
// slots for it, before any attempt that has not begun.
func (m *Machine) onUnblocked(e Unblocked) {
	a := m.attempts[e.Ref]
	if a == nil || a.state != Running {
		return
	}
	switch a.waits {
	case notWaiting:
		m.do(Resume{Ref: a.ref})
	case yielding:
		a.waits = notWaiting
		m.do(Report{Ref: a.ref, Outcome: GoesOn})
		m.do(Resume{Ref: a.ref})
	case blockedInPlace:
		m.inPlace -= a.slot.width
		a.waits = notWaiting
		m.do(Resume{Ref: a.ref})
	case blocked:
		a.waits = resuming
		at, _ := slices.BinarySearchFunc(m.resuming, a, compareRank)
		m.resuming = slices.Insert(m.resuming, at, a)
	case resuming:
	}
}

// resume gives slots to attempts that want to go on, in the order of rank. It reports whether one
// of them still waits for slots: nothing else may take slots then.
func (m *Machine) resume(now time.Time) (short bool) {
	for len(m.resuming) > 0 {
		a := m.resuming[0]
		if a.slots > m.freeSlots {
			return true
		}
		s := a.slot
		m.freeSlots -= a.slots
		s.width, s.since = a.slots, now
		m.endBlocked(a)
		m.log.add(a.ref, "goes on")
		m.do(Report{Ref: a.ref, Outcome: GoesOn})
		m.do(Resume{Ref: a.ref})
	}
	return false
}

// endBlocked ends the wait of an attempt in the machine's records. The caller accounts for its
// slots.
func (m *Machine) endBlocked(a *attempt) {
	switch a.waits {
	case notWaiting, yielding:
	case blockedInPlace:
		m.inPlace -= a.slot.width
	case resuming:
		m.resuming = slices.DeleteFunc(m.resuming, func(b *attempt) bool { return a == b })
		m.blocked--
	case blocked:
		m.blocked--
	}
	a.waits = notWaiting
}

// repeatStarted tells the scheduler again which attempts have started, and which of them wait for
// tasks: a new session begins, and reports of the last one may be lost.
func (m *Machine) repeatStarted() {
	for _, r := range m.Attempts() {
		switch a := m.attempts[r]; {
		case a.toldBlocked():
			m.do(Report{Ref: r, Outcome: WaitsForTasks})
		case a.state == Running && a.started && !a.cancelled:
			m.do(Report{Ref: r, Outcome: Started})
		}
	}
}
