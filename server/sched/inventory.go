package sched

import (
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// objectsReported handles objects that a worker gained or lost in another way than by running
// tasks.
func (m *Machine) objectsReported(ev ObjectsReported) {
	w := m.workerOf(ev.Worker)
	if w == nil {
		return
	}
	for i := range ev.Gained {
		m.adopt(w, ev.Gained[i])
	}
	var lost []ids.TaskID
	for _, r := range ev.Lost {
		_, t := m.lookup(r.Task)
		if t != nil && t.state == TaskSucceeded && t.attempt == uint32(r.Generation) && w.objects.has(r.Task) && m.replicaLost(r.Task, w) {
			lost = append(lost, r.Task)
		}
	}
	m.recover(lost)
}

// adopt records an object that a worker holds, or tells the worker to release it if it is of no
// use.
func (m *Machine) adopt(w *worker, s Stored) {
	b, t := m.lookup(s.Task)
	generation := uint32(s.Generation)
	switch {
	case t == nil:
	case s.Written && !m.mayWrite(w, s.Task, t, generation):
	case t.state == TaskSucceeded && t.attempt == generation:
		isNew := w.gain(s.Task, t)
		if isNew {
			b.push(&t.replicas, w.slot)
			m.fetchEnded(s.Task, t, w)
		} else if s.Kept {
			b.moveToEnd(&t.replicas, w.slot)
		}
		if m.copier.Watching() {
			m.tell(copies.ObjectReported{Object: s.Task, Worker: w.id, New: isNew, Kept: s.Kept})
		}
		if s.Written {
			m.emitTo(EffectAccept, w, s.Task, generation)
		}
		return
	case t.state == TaskRescuing && t.attempt == generation:
		m.rescued(s.Task, b, t, w)
		return
	case m.ops[t.op].spec.Kind == OpData:
		if t.state == TaskFailed && t.attempt == generation && !s.Written && t.wanted() && m.errors[s.Task].Reason == "OBJECT_LOST" {
			// The object was given up as lost, and the worker is back after all.
			m.clearTrouble(s.Task, t)
			m.setState(s.Task, t, TaskWaiting)
		}
		if m.brings(t, generation) {
			t.attempt = 1
			m.emitTo(EffectAccept, w, s.Task, generation)
			m.complete(s.Task, b, t, w, s.Bytes, s.Inline, 0)
			if !s.Written {
				m.tell(copies.KeeperLost{Object: s.Task})
			}
			return
		}
	case t.current(w, s.Generation):
		m.endAttempt(s.Task, b, t)
		m.complete(s.Task, b, t, w, s.Bytes, s.Inline, 0)
		return
	case t.state.assigned() && m.wasGiven(s.Task, t, generation):
		// The task runs again, because this worker was away for too long.
		m.takeBack(s.Task, b, t)
		m.propagate() // Attempts that wait for this one are taken back while it has no object.
		m.adopt(w, s)
		return
	case (t.state == TaskWaiting || t.state == TaskReady) && m.wasGiven(s.Task, t, generation):
		// The attempt was given up, but it did finish. This worker may have a copy of its object.
		// Or the scheduler was started again, and the attempt is from before that.
		m.setAttempt(s.Task, t, generation)
		m.complete(s.Task, b, t, w, s.Bytes, s.Inline, 0)
		m.tell(copies.KeeperLost{Object: s.Task})
		return
	}
	m.emitTo(EffectRelease, w, s.Task, generation)
	if t != nil && t.state == TaskSucceeded && t.attempt == generation && w.objects.has(s.Task) {
		// A client wrote over the object that the worker already held. It is not known which of the
		// two is there now.
		if m.replicaLost(s.Task, w) {
			m.recover([]ids.TaskID{s.Task})
		}
	}
}

// mayWrite reports whether a client may have written a task's object to a worker. Clients write the
// bytes of DATA tasks, each once; they cannot replace a computed result or bytes that are already
// there. A worker whose connection broke reports the same object again, and that is allowed.
func (m *Machine) mayWrite(w *worker, id ids.TaskID, t *task, generation uint32) bool {
	if m.ops[t.op].spec.Kind != OpData {
		return false
	}
	return t.state == TaskWaiting || t.state == TaskSucceeded && t.attempt == generation && w.objects.has(id)
}
