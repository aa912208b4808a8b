package sched

import (
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// replicaLost is removeReplica for an object that a worker has lost by itself, or that is given up
// there. If the worker was the one that keeps the object, or was asked to keep it, another worker
// is asked to keep its own.
func (m *Machine) replicaLost(id ids.TaskID, w *worker) bool {
	_, t := m.at(id)
	ask := m.keeps(w, id) || m.copier.AskedToKeep(w.id, id)
	if m.removeReplica(id, w) {
		return true
	}
	if ask && t.replicas != 0 {
		m.tell(copies.KeeperLost{Object: id})
	}
	return false
}

// replicaDropped removes a replica that a worker drops because others have the object, too. If it
// was the one that is kept, another worker is asked to keep its own.
func (m *Machine) replicaDropped(id ids.TaskID, w *worker) {
	ask := m.keeps(w, id)
	m.removeReplica(id, w)
	if ask {
		m.tell(copies.KeeperLost{Object: id})
	}
}

// keeps reports whether a worker is the one that keeps an object: see task.replicas.
func (m *Machine) keeps(w *worker, id ids.TaskID) bool {
	b, t := m.at(id)
	last := t.replicas
	for l := last; l != 0; l = b.links[l].next {
		last = l
	}
	return m.workers[b.links[last].value] == w
}

// removeReplica removes a worker's replica. It returns true if the object is lost with it: then the
// task is RELEASED, and the caller must call recover.
func (m *Machine) removeReplica(id ids.TaskID, w *worker) bool {
	b, t := m.at(id)
	w.part(id, t)
	b.drop(&t.replicas, w.slot)
	remains := t.replicas != 0 || b.inlineOf(uint64(id&blockMask)) != nil
	m.replicaGone(id, w, remains)
	if remains {
		return false
	}
	m.withdraw(id, t, TaskReleased)
	return true
}

// withdraw makes the dependents of an object wait again after its last replica was removed. to is
// RELEASED or RESCUING.
func (m *Machine) withdraw(id ids.TaskID, t *task, to TaskState) {
	m.setState(id, t, to)
	for r := t.dependents; r != 0; {
		cid, _, ct, e := m.consumerOf(r)
		switch ct.state {
		case TaskWaiting:
			ct.missing++
		case TaskReady:
			m.dequeue(cid, ct)
			ct.flags &^= flagBackoff
			ct.missing = 1
			m.setState(cid, ct, TaskWaiting)
		case TaskAssigned, TaskRunning:
			if ct.missing > 0 {
				ct.missing++ // a pre-assigned attempt waits for this input as well
			}
		case TaskSucceeded, TaskFailed, TaskCancelled, TaskReleased, TaskRescuing:
		}
		r = e.next
	}
}

// releaseObject frees all replicas and the inline copy.
func (m *Machine) releaseObject(id ids.TaskID, b *block, t *task) {
	for t.replicas != 0 {
		w := m.workers[b.links[t.replicas].value]
		m.emitTo(EffectRelease, w, id, t.attempt)
		w.part(id, t)
		b.drop(&t.replicas, w.slot)
		m.replicaGone(id, w, false)
	}
	m.dropInline(b, uint64(id&blockMask))
}

// keepInline stores a small result if the budget allows it.
func (m *Machine) keepInline(id ids.TaskID, b *block, inline []byte) {
	if !m.fitsInline(inline) {
		return
	}
	if b.inline == nil {
		b.inline = make([][]byte, blockTasks)
	}
	m.dropInline(b, uint64(id&blockMask))
	b.inline[id&blockMask] = inline
	m.totals.InlineBytes += uint64(len(inline))
}

// fitsInline reports whether the machine keeps a result.
func (m *Machine) fitsInline(inline []byte) bool {
	n := uint64(len(inline))
	return inline != nil && n <= m.config.InlineResultBytes && m.totals.InlineBytes+n <= m.config.InlineBudgetBytes
}

func (m *Machine) dropInline(b *block, index uint64) {
	if v := b.inlineOf(index); v != nil {
		m.totals.InlineBytes -= uint64(len(v))
		b.inline[index] = nil
	}
}
