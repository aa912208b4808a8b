package sched

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
