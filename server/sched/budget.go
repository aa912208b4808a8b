package sched

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/internal/ids"
)

// The scheduler's memory is bounded: if it ended for lack of memory, all state would be lost. Details for people
// (tracebacks, exceptions, last output) have bounds of their own, beyond which the oldest are dropped. The data that
// tasks need is counted, and submissions beyond Config.MemoryBytes are refused: clients try again later.
//
// Lineage is not cut: a record stays as long as a known task needs its result, since the result could have to be computed again. A chain of
// which only the head is held keeps some 300 bytes and its arguments for each step, which count; a program that goes on for ever has
// to take its state out (scatter it, or publish it) now and then.

const (
	// taskBytes is about what a task takes beside its key, arguments and inputs; inputBytes the same for each input.
	taskBytes, inputBytes = 260, 48
)

// heldBytes is about what a task takes.
func (t *task) heldBytes() uint64 {
	return taskBytes + uint64(t.keyLen) + uint64(t.argLen) + inputBytes*uint64(t.inputs)
}

// held is about what the machine holds.
func (m *Machine) held() uint64 {
	return m.totals.HeldBytes + m.totals.InlineBytes + m.totals.DetailBytes + m.totals.TailBytes
}

// recordRoom is how much the records of all tasks may take, those of a submission included.
func (m *Machine) recordRoom(beside uint64) uint64 {
	limit := m.config.MemoryBytes
	if limit == 0 {
		return math.MaxUint64
	}
	if other := m.held() - m.totals.HeldBytes + beside; other < limit {
		return limit - other
	}
	return 0
}

// noMemory is the error of a submission whose records do not fit. held is what was held before it.
func (m *Machine) noMemory(ev *GraphSubmitted, held uint64) *Error {
	limit := m.config.MemoryBytes
	var needs uint64
	for i := range ev.Tasks {
		s := &ev.Tasks[i]
		needs += taskBytes + uint64(len(s.Key)+len(s.Arguments)) + inputBytes*uint64(len(s.Inputs))
	}
	if needs > limit {
		return invalid("tasks", "the submission needs %d bytes of the scheduler's memory, which may use %d: submit less at once, and put large arguments into objects (scatter)",
			needs, limit)
	}
	return &Error{Kind: ErrFull, Object: "memory", Message: fmt.Sprintf(
		"the scheduler holds %d of %d bytes for %d tasks, and the submission needs %d: submit it again when tasks have ended and been released, pass large arguments as objects (scatter), or give the scheduler more memory",
		held+ev.Beside, limit, m.totals.Tasks, needs)}
}

// keepTail keeps what a task wrote last.
func (m *Machine) keepTail(id ids.TaskID, tail string) {
	m.dropTail(id)
	m.tails[id] = tail
	m.tailed = append(m.tailed, id)
	m.totals.TailBytes += uint64(len(tail))
	for m.totals.TailBytes > m.config.TailBytes {
		m.dropTail(m.tailed[0])
		m.tailed = m.tailed[1:]
	}
	if len(m.tailed) > 2*len(m.tails)+keptWork {
		m.tailed = still(m.tailed, func(id ids.TaskID) bool { return m.tails[id] != "" })
	}
}

func (m *Machine) dropTail(id ids.TaskID) {
	if len(m.tails) == 0 {
		return
	}
	if tail, ok := m.tails[id]; ok {
		m.totals.TailBytes -= uint64(len(tail))
		delete(m.tails, id)
	}
}

// keepError keeps why a task ended.
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
		m.detailed = still(m.detailed, func(id ids.TaskID) bool { return m.errors[id] != nil && m.errors[id].DetailBytes > 0 })
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

// dropDetails takes the oldest details away, until half of the bound is left, from the errors of the tasks that failed and of those that
// need them. Errors are replaced, not changed: others read them.
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
	// order-free: each is replaced by itself.
	for id, err := range m.errors {
		if err != nil && err.Detail != nil && gone[err.Detail] {
			bare := *err
			bare.Detail = nil
			m.errors[id] = &bare
		}
	}
}

// still is those of the tasks that pass, once each, in their order.
func still(tasks []ids.TaskID, pass func(ids.TaskID) bool) []ids.TaskID {
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
