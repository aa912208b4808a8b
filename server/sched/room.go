package sched

import "slices"

const (
	// queueMicros is the work, by learned run times, that a worker gets in advance for each slot,
	// to cover the round trip to the scheduler.
	queueMicros = 5000
	// minQueued and maxQueued bound the number of tasks in advance.
	minQueued, maxQueued = 2, 1024
)

// room reports whether the worker should get another task of the class now. extra is the number of
// tasks that it may have beyond the usual number; see extraRoom.
func (m *Machine) room(w *worker, c *class, extra uint64) bool {
	return m.queueRoom(w, extra) && (len(c.options.Resources) == 0 || w.hasFree(c))
}

// queueRoom is room for tasks that need no resources.
func (m *Machine) queueRoom(w *worker, extra uint64) bool {
	slots := uint64(w.slots) + extra
	if a := m.config.QueueDepth; a > 0 {
		return w.usedSlots < slots+uint64(a)
	}
	return w.usedSlots < slots+minQueued || w.queuedMicros < queueMicros*slots && w.usedSlots < slots+maxQueued
}

func (m *Machine) anyRoom(c *class, among []*worker, extra uint64) bool {
	return slices.ContainsFunc(among, func(w *worker) bool { return m.room(w, c, extra) })
}

// holderRoom is room for a worker that holds inputs of the task: its queue may be somewhat longer.
func (m *Machine) holderRoom(w *worker, c *class) bool {
	slots := uint64(w.slots)
	if w.usedSlots >= 2*slots+8 && (w.queuedMicros >= 4*queueMicros*slots || w.usedSlots >= slots+2*maxQueued) {
		return false
	}
	return len(c.options.Resources) == 0 || w.hasFree(c)
}

func (m *Machine) memoryFits(w *worker, b *block, t *task) bool {
	if w.memory == 0 {
		return true
	}
	need := m.options[t.options].ExpectedOutputBytes
	edges := b.edgesOf(t)
	for i := range edges {
		_, p := m.at(edges[i].input)
		need += edges[i].bytesOf(p)
	}
	return need <= w.memory
}

// nestedRoom is the number of tasks which tasks have submitted that a worker gets beyond the
// others. A worker runs what it has by rank: if the last ones were kept back because older ones
// fill its queue, then it would begin these, and they would wait in their turn.
const nestedRoom = 64

// extraRoom is nestedRoom for a task that a task has submitted, else 0.
func extraRoom(rank uint64) uint64 {
	if nested(rank) {
		return nestedRoom
	}
	return 0
}
