package sched

import (
	"math"

	"github.com/millrace/millrace/internal/ids"
)

// The scheduler's memory is bounded, because a scheduler that dies for lack of memory loses all
// state. Details for people (tracebacks, exceptions, last output) have their own bounds; beyond
// them the oldest details are dropped. The data that tasks need is counted. A submission that would
// exceed Config.MemoryBytes is refused, and the client tries again later.
//
// Lineage is not cut: a record stays as long as a known task needs its result, because the result
// may have to be computed again. If a client holds only the last task of a chain, each earlier step
// still keeps about 300 bytes and its arguments, and these count. A program that runs for ever must
// therefore take its state out (scatter or publish it) from time to time.

// Held returns the approximate memory of everything that the machine holds.
func (m *Machine) Held() uint64 {
	return m.totals.HeldBytes + m.totals.InlineBytes + m.totals.DetailBytes + m.totals.TailBytes
}

// recordRoom is the number of bytes that the records of all tasks may use together, including those
// of the current submission. beside is memory that the caller uses for the submission.
func (m *Machine) recordRoom(beside uint64) uint64 {
	limit := m.config.MemoryBytes
	if limit == 0 {
		return math.MaxUint64
	}
	if other := m.Held() - m.totals.HeldBytes + beside; other < limit {
		return limit - other
	}
	return 0
}

// tail is the end of a task's output, and the worker where the task wrote it.
type tail struct {
	text   string
	worker ids.WorkerID
}

// keepTail stores the end of a task's output, and drops the oldest ones beyond Config.TailBytes.
func (m *Machine) keepTail(id ids.TaskID, kept tail) {
	m.dropTail(id)
	m.tails[id] = kept
	m.tailed = append(m.tailed, id)
	m.totals.TailBytes += uint64(len(kept.text))
	for m.totals.TailBytes > m.config.TailBytes {
		m.dropTail(m.tailed[0])
		m.tailed = m.tailed[1:]
	}
	if len(m.tailed) > 2*len(m.tails)+keptWork {
		m.tailed = distinctThat(m.tailed, func(id ids.TaskID) bool { return m.tails[id].text != "" })
	}
}

func (m *Machine) dropTail(id ids.TaskID) {
	if len(m.tails) == 0 {
		return
	}
	if kept, ok := m.tails[id]; ok {
		m.totals.TailBytes -= uint64(len(kept.text))
		delete(m.tails, id)
	}
}

// keepError stores the error of a task that ended without an object.
func (m *Machine) keepError(id ids.TaskID, err *TaskError) {
	m.errors[id] = err
	if err == nil || err.DetailBytes == 0 {
		return
	}
	m.totals.DetailBytes += err.DetailBytes
	m.detailed = append(m.detailed, id)
	if m.totals.DetailBytes > m.config.DetailBytes {
		m.dropDetails()
	}
	if len(m.detailed) > 2*len(m.errors)+keptWork {
		m.detailed = distinctThat(m.detailed, func(id ids.TaskID) bool { return m.errors[id] != nil && m.errors[id].DetailBytes > 0 })
	}
}

func (m *Machine) dropError(id ids.TaskID) {
	if len(m.errors) == 0 {
		return
	}
	if err := m.errors[id]; err != nil {
		m.totals.DetailBytes -= err.DetailBytes
	}
	delete(m.errors, id)
}

// dropDetails removes the oldest error details until half of the bound is left. It removes them
// from the tasks that failed and from their dependents, which share the same detail. Errors are
// replaced, never changed in place: other goroutines may still read them.
func (m *Machine) dropDetails() {
	gone := make(map[any]bool)
	for len(m.detailed) > 1 && m.totals.DetailBytes > m.config.DetailBytes/2 {
		if err := m.errors[m.detailed[0]]; err != nil && err.DetailBytes > 0 {
			gone[err.Detail] = true
			m.totals.DetailBytes -= err.DetailBytes
			bare := *err
			bare.Detail, bare.DetailBytes = nil, 0
			m.errors[m.detailed[0]] = &bare
		}
		m.detailed = m.detailed[1:]
	}
	// order-free: each error is replaced on its own.
	for id, err := range m.errors {
		if err != nil && err.Detail != nil && gone[err.Detail] {
			bare := *err
			bare.Detail = nil
			m.errors[id] = &bare
		}
	}
}

// distinctThat returns the tasks that pass the test, each once, in their order.
func distinctThat(tasks []ids.TaskID, pass func(ids.TaskID) bool) []ids.TaskID {
	seen := make(map[ids.TaskID]bool)
	var kept []ids.TaskID
	for _, id := range tasks {
		if !seen[id] && pass(id) {
			seen[id] = true
			kept = append(kept, id)
		}
	}
	return kept
}
