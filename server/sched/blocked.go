package sched

import "github.com/millrace/millrace/internal/ids"

// attemptBlocked notes that a running attempt waits for other tasks, and that its worker has given
// its slots to others meanwhile. Its resources stay its own.
//
// The worker is told after this step's dispatch, so that it has what is to run in those slots
// before it uses them.
func (m *Machine) attemptBlocked(id ids.TaskID, t *task, w *worker) {
	m.freed = append(m.freed, Effect{Kind: EffectFreeSlot, Worker: w.id, Task: id, Attempt: ids.Attempt(t.attempt)})
	if !w.blocked.add(id) {
		return
	}
	if t.missing == 0 {
		w.usedSlots -= uint64(max(m.options[t.options].Slots, 1))
	}
	w.queuedMicros -= uint64(t.runMicros)
	t.runMicros = 0
}

// attemptGoesOn notes that an attempt which waited has its slots again.
func (m *Machine) attemptGoesOn(id ids.TaskID, t *task, w *worker) {
	if w.blocked.remove(id) && t.missing == 0 {
		w.usedSlots += uint64(max(m.options[t.options].Slots, 1))
	}
}

// nestedRank returns the lowest rank, without a priority, of n tasks that a task has submitted.
// They come before all tasks that programs have submitted: a task that waits for them can end then,
// and gives its memory back. The last ones come first, so that recursion goes into the depth, and
// few tasks wait at a time.
func (m *Machine) nestedRank(n int) uint64 {
	m.lowestNested -= uint64(n)
	return m.lowestNested
}

// firstRank is the rank, without a priority, of the first task that a program submits. Those that
// tasks submit have lower ones.
const firstRank = 1 << 47

// nested reports whether a task has submitted the task of a rank.
func nested(rank uint64) bool { return rank&firstRank == 0 }

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
