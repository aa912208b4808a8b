package sched

import (
	"math"

	"github.com/millrace/millrace/internal/ids"
)

// NextUse says when an object will be needed.
type NextUse struct {
	Task       ids.TaskID
	Generation ids.Attempt
	// Rank is the lowest of the tasks that will read it, as in Assignment; NeverUsed if none is known.
	Rank uint64
}

const (
	// NeverUsed is the rank of an object that no task needs.
	NeverUsed = math.MaxUint64
	// maxLooked bounds the objects that NextUses looks at, maxNextUses those that it returns, maxReaders the readers of each:
	// it is asked for once a second for each worker in need, by the goroutine that schedules.
	maxLooked   = 100_000
	maxNextUses = 10_000
	maxReaders  = 1_000
	// nextUseBytes is from where on it matters to a worker's memory when an object is needed.
	nextUseBytes = 4 << 10
)

// NextUses returns when the objects on a worker will be needed, appended to out. It is asked for while the worker's memory
// is nearly full, and costs nothing else: nobody keeps it up to date.
func (m *Machine) NextUses(worker ids.WorkerID, out []NextUse) []NextUse {
	w := m.workerOf(worker)
	if w == nil {
		return out
	}
	n := 0
	for looked, id := range w.objects.members(nil) {
		if looked == maxLooked {
			break
		}
		_, t := m.at(id)
		if t.output < nextUseBytes || t.state != TaskSucceeded {
			continue
		}
		if n++; n > maxNextUses {
			break
		}
		use := NextUse{Task: id, Generation: ids.Attempt(t.attempt), Rank: NeverUsed}
		readers := 0
		for r := t.dependents; r != 0 && readers < maxReaders; readers++ {
			_, _, reader, e := m.consumerOf(r)
			if reader.state.active() {
				use.Rank = min(use.Rank, reader.rank)
			}
			r = e.next
		}
		out = append(out, use)
	}
	return out
}
