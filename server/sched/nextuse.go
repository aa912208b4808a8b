package sched

import (
	"math"

	"github.com/millrace/millrace/internal/ids"
)

// NextUse tells a worker how soon an object will be needed.
type NextUse struct {
	Task       ids.TaskID
	Generation ids.Attempt
	// Rank is the lowest rank of the tasks that will read it, as in Assignment; NeverUsed if none
	// is known.
	Rank uint64
}

const (
	// NeverUsed is the rank of an object that no task needs.
	NeverUsed = math.MaxUint64
	// maxObjectsRead bounds the objects that NextUses reads, maxNextUses those that it returns,
	// maxReaders the readers of each object. The scheduling goroutine calls it about once a second
	// for each worker whose memory is nearly full, so it must be quick.
	maxObjectsRead = 100_000
	maxNextUses    = 10_000
	maxReaders     = 1_000
	// nextUseBytes is the size below which an object's next use does not matter for memory.
	nextUseBytes = 4 << 10
)

// NextUses returns how soon the objects on a worker will be needed, appended to out. It is computed
// only on request, while the worker's memory is nearly full; nothing is kept up to date for it.
func (m *Machine) NextUses(worker ids.WorkerID, out []NextUse) []NextUse {
	w := m.workerOf(worker)
	if w == nil {
		return out
	}
	n := 0
	for read, id := range w.objects.members(nil) {
		if read == maxObjectsRead {
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
