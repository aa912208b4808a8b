package members

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// tombstoneTime is the longest time for which the memory of a dead worker is remembered. Survivors
// unmap it by themselves before that.
const tombstoneTime = time.Minute

// tombstone is the record of a lost worker whose memory other workers may have mapped.
type tombstone struct {
	peer        Peer
	incarnation string
	since       time.Time
	// mapped lists the survivors that have not yet reported that they unmapped the memory.
	mapped []ids.WorkerID
}

// bury makes a tombstone for a lost worker and returns the survivors that may have its memory
// mapped: workers of the same host that have fetched from it by a path that maps memory. If none
// has reported such a path yet, it returns the workers of the host that know its address. Each
// survivor checks for itself.
func (m *Machine) bury(dead *worker) []ids.WorkerID {
	if dead.seen.DataAddress == "" {
		return nil
	}
	var sure, possible []ids.WorkerID
	for _, w := range m.all {
		if w.session == 0 || w.seen.Worker.Host != dead.seen.Worker.Host {
			continue
		}
		if slices.Contains(w.maps, dead.id) {
			sure = append(sure, w.id)
		} else if w.knows.Has(uint64(dead.id)) {
			possible = append(possible, w.id)
		}
	}
	survivors := sure
	if len(sure) == 0 {
		survivors = possible
	}
	if len(survivors) == 0 {
		return nil
	}
	m.tombstones[dead.id] = &tombstone{peer: dead.peer(), incarnation: dead.seen.Worker.Incarnation, since: m.now, mapped: slices.Clone(survivors)}
	m.timers.add(timer{at: m.now.Add(tombstoneTime), worker: dead.id, tombstone: true})
	return survivors
}

// Tombstone returns the last address and the incarnation of a dead worker whose memory others may
// have mapped.
func (m *Machine) Tombstone(dead ids.WorkerID) (peer Peer, incarnation string, found bool) {
	t := m.tombstones[dead]
	if t == nil {
		return Peer{}, "", false
	}
	return t.peer, t.incarnation, true
}

func (m *Machine) unmapped(event Unmapped) {
	w, t := m.bySession[event.Session], m.tombstones[event.Dead]
	if w == nil || t == nil {
		return
	}
	if i := slices.Index(t.mapped, w.id); i >= 0 {
		if t.mapped = slices.Delete(t.mapped, i, i+1); len(t.mapped) == 0 {
			m.emit(Effect{Kind: EffectUnmapped, Peer: t.peer, Time: m.now.Sub(t.since)})
		}
	}
}
