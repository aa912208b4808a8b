package sched

import (
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// orderRescues tells that a worker is lost, and carries out all effects but the orders to rescue
// its objects. It returns these, in the order of the objects.
func (m *Machine) orderRescues(ev copies.WorkerLost) []copies.Effect {
	effects := m.copier.Step(m.now, ev, nil)
	for i, e := range effects {
		if e.Kind == copies.EffectRescue {
			return effects[i:]
		}
		m.carryOut(effects[i : i+1])
	}
	return nil
}

// awaitRescue records that an object of a lost worker is to be copied out of its memory.
func (m *Machine) awaitRescue(id ids.TaskID, dead *worker) {
	b, t := m.at(id)
	dead.part(id, t)
	b.drop(&t.replicas, dead.slot)
	m.replicaGone(id, dead, false)
	m.withdraw(id, t, TaskRescuing)
	m.notify(id, b, t)
}

// rescued records the copy of an object that was lost with a worker, by any worker that made one.
func (m *Machine) rescued(id ids.TaskID, b *block, t *task, w *worker) {
	m.tell(copies.RescueEnded{Object: id})
	m.forgetLostData(id)
	w.gain(id, t)
	b.push(&t.replicas, w.slot)
	m.totals.Rescued++
	m.setState(id, t, TaskSucceeded)
	m.notify(id, b, t)
	m.arrived(t)
	if m.copier.Draining() {
		m.tell(copies.ObjectStoredAt{Object: id})
	}
	m.tell(copies.KeeperLost{Object: id}) // the worker may have had a copy already
}

// rescueFailed handles a survivor's report that it could not copy objects.
func (m *Machine) rescueFailed(ev RescueFailed) {
	for _, o := range ev.Objects {
		m.tell(copies.RescueFailed{Worker: ev.Worker, Dead: ev.Dead, Object: o.Task, Generation: o.Generation})
	}
}
