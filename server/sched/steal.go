package sched

import (
	"slices"
	"time"
)

const (
	// minMoveMicros is the queue length below which a busy worker keeps its tasks: they would be
	// done before they could be moved.
	minMoveMicros = 4000
	// stuckAfter is the silence after which the waiting tasks of a busy worker may move to an idle
	// one in spite of short estimates. The silence must also be at least as long as the idle worker
	// would need to fetch their inputs.
	stuckAfter = 10 * time.Millisecond
	// maxFailedSearches bounds the idle workers for which one step searches without success.
	maxFailedSearches = 4
	// maxScan bounds the tasks that are read from the end of one queue. Tasks with more than
	// maxCounted inputs are considered only from time to time, the less often the more inputs they
	// have (see Machine.wideAt).
	maxScan = 64
)

// stealTasks is work stealing: it asks busy workers to give back tasks that they have not started,
// for idle workers. A worker may refuse. If it is too early to tell whether a queue makes progress,
// a timer repeats the check. Without an idle worker there is no timer.
func (m *Machine) stealTasks() {
	pending := 0
	idle, busy := false, false
	for _, w := range m.order {
		pending += w.retracting
		idle = idle || w.state == WorkerStateActive && w.usedSlots < uint64(w.slots)
		busy = busy || w.state == WorkerStateActive && w.usedSlots > uint64(w.slots)
	}
	if !idle || !busy {
		return
	}
	again := false
	// Idle workers are mostly alike: if several get nothing, the others would get nothing either.
	vain := 0
	for _, w := range m.order {
		if vain >= maxFailedSearches {
			break
		}
		if w.state != WorkerStateActive || w.usedSlots >= uint64(w.slots) {
			continue
		}
		free := int(uint64(w.slots) - w.usedSlots)
		if taken := min(free, pending); taken > 0 {
			// Tasks that are being retracted will fill these slots.
			pending -= taken
			free -= taken
		}
		for free > 0 {
			moved, early := m.steal(w, free)
			again = again || early
			if moved == 0 {
				vain++
				break
			}
			free -= moved
		}
	}
	if again && !m.stealArmed {
		m.stealArmed = true
		m.arm(timer{at: m.now.Add(stuckAfter), kind: timerSteal})
	}
}

// steal retracts up to n tasks for an idle worker from the worker with the longest queue. early
// means that some tasks may be worth moving later.
func (m *Machine) steal(to *worker, n int) (moved int, early bool) {
	var victim *worker
	surplus := 0
	for _, w := range m.order {
		if w.state != WorkerStateActive || w.usedSlots <= uint64(w.slots) {
			continue
		}
		// s counts the attempts that could be given back. At least one attempt counts as running,
		// because the report of its start may be on its way.
		s := w.assigned - w.preassigned - max(w.running, 1) - w.retracting
		if s <= 0 {
			continue
		}
		if victim == nil || w.load() > victim.load() {
			victim, surplus = w, s
		}
	}
	if victim == nil {
		return 0, false
	}
	stuck := m.now.Sub(victim.reportedAt) >= stuckAfter
	n = min(n, (surplus+1)/2) // the victim needs tasks, too
	for i, scanned := len(victim.queue)-1, 0; i >= 0 && scanned < maxScan && moved < n; i-- {
		ref := victim.queue[i]
		b, t := m.lookup(ref.Task)
		if t == nil || !t.current(victim, ref.Attempt) {
			continue
		}
		scanned++
		if t.state != TaskAssigned || t.missing > 0 || t.flags&(flagRetracting|flagPinned) != 0 {
			continue
		}
		if t.inputs > maxCounted {
			if m.now.Before(m.wideAt) {
				early = true
				continue
			}
			m.wideAt = m.now.Add(max(stuckAfter, time.Duration(t.inputs)*time.Microsecond))
		}
		m.reads.inputs += uint64(t.inputs)
		c := m.classes[t.class]
		fits := func(w *worker) bool { return m.memoryFits(w, b, t) }
		if !m.room(to, c, 0) || !slices.Contains(m.usable(c, m.feasible(c), ref.Task, b, t, fits), to) || !fits(to) {
			continue
		}
		_, fetch := m.fetchMicros(to, b.edgesOf(t))
		// long means that the task would wait longer at the victim than its move takes, or that
		// this is not known, because no task of its op has ended yet.
		long := m.ops[t.op].samples == 0 || victim.load() >= minMoveMicros+fetch
		if !long && !(stuck && float64(m.now.Sub(victim.reportedAt).Microseconds()) >= fetch) {
			early = true
			continue
		}
		m.retract(victim, ref.Task, t)
		moved++
	}
	return moved, early
}
