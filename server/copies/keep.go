package copies

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// A worker may drop an object that it fetched, unless it was told to keep it. So when the worker
// that keeps an object is lost or drained, another one is told to. The order of the holders says
// which one that is: the last one made the object, or was the last to answer that it keeps it.

// orders are objects by worker, of which the worker was told something.
type orders map[ids.WorkerID]map[ids.TaskID]struct{}

// add adds an object and reports whether it is new.
func (o orders) add(worker ids.WorkerID, object ids.TaskID) bool {
	if o.has(worker, object) {
		return false
	}
	if o[worker] == nil {
		o[worker] = make(map[ids.TaskID]struct{})
	}
	o[worker][object] = struct{}{}
	return true
}

func (o orders) remove(worker ids.WorkerID, object ids.TaskID) {
	if of := o[worker]; of != nil {
		if delete(of, object); len(of) == 0 {
			delete(o, worker)
		}
	}
}

func (o orders) has(worker ids.WorkerID, object ids.TaskID) bool {
	_, has := o[worker][object]
	return has
}

// AskedToKeep reports whether a worker was asked to keep an object and has not answered.
func (m *Machine) AskedToKeep(worker ids.WorkerID, object ids.TaskID) bool {
	return m.keeps.has(worker, object)
}

// holdersOf returns the last holder of an object, and the last one among the active workers; 0 if
// there is none.
func (m *Machine) holdersOf(id ids.TaskID) (last, active ids.WorkerID) {
	m.holders = m.tables.Holders(id, m.holders[:0])
	for _, holder := range m.holders {
		last = holder
		if w, _ := m.tables.Worker(holder); w.State == WorkerStateActive {
			active = holder
		}
	}
	return last, active
}

// keeperLost asks holders of an object to keep it, after another holder has lost it. If the last
// one is not active, an active one keeps the object, too, because the last one may not be back.
func (m *Machine) keeperLost(id ids.TaskID) {
	last, active := m.holdersOf(id)
	m.keepAt(last, id)
	m.keepAt(active, id)
}

// keepAt asks a worker to keep an object, unless its answer is under way. If its connection is
// broken, it is asked when it is back.
func (m *Machine) keepAt(worker ids.WorkerID, id ids.TaskID) {
	if worker != 0 && m.keeps.add(worker, id) {
		m.emit(Effect{Kind: EffectKeep, Worker: worker, Object: id})
	}
}

// sessionOpened forgets what a worker was asked in the session before, when the request or the
// answer may have been lost. The drains and moves ask again.
func (m *Machine) sessionOpened(worker ids.WorkerID) {
	delete(m.dropped, worker)
	m.workersChanged()
	for _, of := range slices.Sorted(maps.Keys(m.drains)) {
		keepers := m.drains[of].keepers
		// order-free: each entry is examined alone.
		for id, k := range keepers {
			if k.worker == worker {
				delete(keepers, id)
			}
		}
	}
	m.askMovesAgain(worker)
	m.asked = slices.Sorted(maps.Keys(m.keeps[worker]))
}

// inventoryRead repeats the requests of the session before to keep objects that the worker still
// has.
func (m *Machine) inventoryRead(worker ids.WorkerID) {
	for _, id := range m.asked {
		if m.keeps.has(worker, id) {
			m.emit(Effect{Kind: EffectKeep, Worker: worker, Object: id})
		}
	}
	m.asked = nil
}

// objectReported handles the report of an object that exists by a worker that holds it.
func (m *Machine) objectReported(ev ObjectReported) {
	if ev.New {
		m.checkDrainsOf(ev.Object)
		m.moveChanged(ev.Object)
		if m.dropped.has(ev.Worker, ev.Object) {
			// The report may be older than the order.
			m.emit(Effect{Kind: EffectKeep, Worker: ev.Worker, Object: ev.Object})
			return
		}
	}
	if ev.Kept {
		m.keeps.remove(ev.Worker, ev.Object)
		m.keepConfirmed(ev.Object, ev.Worker)
		m.moveKept(ev.Object, ev.Worker)
	}
}

// objectGone handles the loss or release of a worker's object.
func (m *Machine) objectGone(ev ObjectGone) {
	m.keeps.remove(ev.Worker, ev.Object)
	m.moveChanged(ev.Object)
	m.checkDrainSoon(ev.Worker)
	if ev.Remains {
		m.checkDrainsOf(ev.Object)
	}
}

// dropAt makes a worker drop an object that another one keeps.
func (m *Machine) dropAt(worker ids.WorkerID, id ids.TaskID) {
	m.dropped.add(worker, id)
	m.emit(Effect{Kind: EffectDrop, Worker: worker, Object: id})
}
