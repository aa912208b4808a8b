package sched

import (
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// propagate empties the work lists: failures reach dependents, wanted tasks without an object start
// again, attempts whose inputs will not come are recalled, and tasks that are not wanted any more
// are dropped or released.
func (m *Machine) propagate() {
	for {
		switch {
		case len(m.endings) > 0:
			d := m.endings[len(m.endings)-1]
			m.endings = m.endings[:len(m.endings)-1]
			m.applyEnding(d)
		case len(m.reruns) > 0:
			r := m.reruns[len(m.reruns)-1]
			m.reruns = m.reruns[:len(m.reruns)-1]
			m.runAgain(r)
		case len(m.stranded) > 0:
			r := m.stranded[len(m.stranded)-1]
			m.stranded = m.stranded[:len(m.stranded)-1]
			m.recall(r)
		case len(m.settling) > 0:
			id := m.settling[len(m.settling)-1]
			m.settling = m.settling[:len(m.settling)-1]
			m.settle(id)
		case len(m.copied) > 0:
			m.dropCopied()
		default:
			return
		}
	}
}

// settle drops an unwanted task: one that has not ended becomes RELEASED, the object of one that
// has succeeded is freed, and the record is forgotten if no known task depends on it. A wanted task
// whose scattered bytes cannot come any more fails.
func (m *Machine) settle(id ids.TaskID) {
	b, t := m.lookup(id)
	if t == nil {
		return
	}
	t.flags &^= flagSettling
	if t.wanted() {
		if m.orphaned(t) && !m.dataAwaited(id) {
			m.endings = append(m.endings, ending{task: id, state: TaskFailed, err: m.objectLost(id, b, t)})
		}
		return
	}
	switch t.state {
	case TaskWaiting, TaskReady, TaskAssigned, TaskRunning:
		m.dequeue(id, t)
		active := t.undone()
		t.flags &^= flagBackoff | flagPinned
		if t.state.assigned() {
			w := m.workers[t.worker-1]
			m.abandonAttempt(id, b, t)
			m.emitTo(EffectCancel, w, id, t.attempt)
		}
		t.missing = 0
		m.setState(id, t, TaskReleased)
		if active {
			m.deactivate(b, t)
		}
	case TaskSucceeded:
		m.releaseObject(id, b, t)
		if m.restart.running { // Dependents that are recorded to have succeeded wait for their workers.
			m.withdraw(id, t, TaskReleased)
		} else {
			m.setState(id, t, TaskReleased)
		}
	case TaskRescuing:
		m.tell(copies.RescueEnded{Object: id})
		m.setState(id, t, TaskReleased)
	case TaskFailed, TaskCancelled, TaskReleased:
	}
	if t.dependents == 0 {
		m.forget(id, b, t)
	}
}

// forget frees the record of a task that nothing holds and no known task depends on.
func (m *Machine) forget(id ids.TaskID, b *block, t *task) {
	edges := b.edgesOf(t)
	for i := range edges {
		in := edges[i].input
		_, p := m.at(in)
		m.unlinkEdge(&edges[i], p)
		if p.dependents == 0 {
			m.reconsider(in, p)
		}
	}
	g := m.graphs[t.graph]
	if t.state != TaskReleased {
		m.setState(id, t, TaskReleased)
	}
	m.clearTrouble(id, t)
	m.forgetLostData(id)
	delete(m.latest, id)
	m.history.add(m, id, TaskReleased, 0, t.attempt, 0)
	g.ns.keys.remove(m, hashKeyBytes(b.keyOf(t)), id)
	m.totals.Counts[TaskReleased]--
	m.totals.Tasks--
	m.totals.Forgotten++
	if g.live--; g.live == 0 {
		m.touch(t.graph, g)
	}
	m.putForgotten(id)
	m.emit(Effect{Kind: EffectTaskForgotten, Task: id, Graph: g.id})
	m.totals.HeldBytes -= t.heldBytes()
	g.ns.remove(t)
	c := t.class
	m.classes[c].tasks--
	m.freeUnusedClass(c)
	m.options[t.options].tasks--
	m.freeUnusedOptions(t.options)
	m.unuseOp(t.op)
	if t.flags&flagBlob != 0 {
		b.blobs[id&blockMask] = nil
	}
	*t = task{}
	if b.live--; b.live > 0 {
		return
	}
	if b != m.current {
		m.tasks.remove(b)
		return
	}
	b.bytes, b.edges, b.links, b.free = b.bytes[:0], b.edges[:1], b.links[:1], 0
	b.inline, b.blobs = nil, nil
}
