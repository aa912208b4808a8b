package sched

import (
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// This machine owns that of copies (server/copies): it tells it facts and carries out its effects.

// tell steps the machine of copies.
func (m *Machine) tell(ev copies.Event) { m.carryOut(m.copier.Step(m.now, ev, nil)) }

// carryOut carries out effects of the machine of copies, in order.
func (m *Machine) carryOut(effects []copies.Effect) {
	for _, e := range effects {
		switch e.Kind {
		case copies.EffectRescue:
			_, t := m.at(e.Object)
			m.emit(Effect{Kind: EffectRescue, Worker: e.Worker, Dead: e.Dead, Task: e.Object, Attempt: ids.Attempt(t.attempt)})
		case copies.EffectGiveUp:
			_, t := m.at(e.Object)
			m.setState(e.Object, t, TaskReleased)
			m.recover([]ids.TaskID{e.Object})
		case copies.EffectUnmap:
			m.emit(Effect{Kind: EffectUnmap, Worker: e.Worker, Dead: e.Dead})
		case copies.EffectWake:
			m.arm(timer{at: e.At, kind: timerCopies, wake: e.Wake.Kind, id: uint64(e.Wake.Worker)})
		}
	}
}

// awaitRescue records that an object of a lost worker is to be copied out of its memory.
func (m *Machine) awaitRescue(id ids.TaskID, dead *worker) {
	b, t := m.at(id)
	dead.part(id, t)
	m.moveChanged(id)
	b.drop(&t.replicas, dead.slot)
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
	m.checkDrainsOf(id, b, t)
	m.askToKeep(id, b, t) // it may have had a copy already
}

// rescueFailed handles a survivor's report that it could not copy objects.
func (m *Machine) rescueFailed(ev RescueFailed) {
	for _, o := range ev.Objects {
		m.tell(copies.RescueFailed{Worker: ev.Worker, Dead: ev.Dead, Object: o.Task, Generation: o.Generation})
	}
}

// tables are the tables as the machine of copies reads them.
type tables struct{ m *Machine }

// Object is part of copies.Tables.
func (s tables) Object(id ids.TaskID) (copies.Object, bool) {
	b, t := s.m.lookup(id)
	if t == nil {
		return copies.Object{}, false
	}
	o := copies.Object{
		Wanted: t.wanted(), Inline: b.inlineOf(uint64(id&blockMask)) != nil,
		Generation: ids.Attempt(t.attempt), Bytes: t.output,
	}
	switch t.state {
	case TaskSucceeded:
		o.State = copies.ObjectStored
	case TaskRescuing:
		o.State = copies.ObjectRescuing
	case TaskWaiting, TaskReady, TaskAssigned, TaskRunning, TaskFailed, TaskCancelled, TaskReleased:
	}
	return o, true
}

// Holders is part of copies.Tables.
func (s tables) Holders(id ids.TaskID, out []ids.WorkerID) []ids.WorkerID {
	b, t := s.m.lookup(id)
	if t == nil {
		return out
	}
	for l := t.replicas; l != 0; l = b.links[l].next {
		out = append(out, s.m.workers[b.links[l].value].id)
	}
	return out
}

// Worker is part of copies.Tables.
func (s tables) Worker(id ids.WorkerID) (copies.Worker, bool) {
	w := s.m.workerOf(id)
	if w == nil {
		return copies.Worker{}, false
	}
	return copies.Worker{
		ID: w.id, Name: w.name, Active: w.state == WorkerStateActive, Reachable: w.reachable(),
		MemoryBytes: w.memory, ClaimedBytes: w.memoryUsed + w.fetchingBytes,
	}, true
}

// Objects is part of copies.Tables.
func (s tables) Objects(id ids.WorkerID) []ids.TaskID {
	if w := s.m.workerOf(id); w != nil {
		return w.objects.members(nil)
	}
	return nil
}

// BytesPerMicro is part of copies.Tables.
func (s tables) BytesPerMicro(from, to ids.WorkerID) float64 { return s.m.rate(from, to).bytesPerMicro }
