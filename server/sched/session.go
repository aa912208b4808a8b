package sched

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

func (m *Machine) workerRegistered(ev WorkerRegistered) {
	w := m.workerOf(ev.Worker)
	if w == nil {
		w = &worker{id: ev.Worker}
		if k := len(m.freeWorkers); k > 0 {
			w.slot = m.freeWorkers[k-1]
			m.freeWorkers = m.freeWorkers[:k-1]
			m.workers[w.slot] = w
		} else {
			w.slot = uint32(len(m.workers))
			m.workers = append(m.workers, w)
		}
		m.workerIndex[ev.Worker] = w.slot
		at, _ := slices.BinarySearchFunc(m.order, ev.Worker, func(w *worker, id ids.WorkerID) int {
			return int(int64(w.id) - int64(id))
		})
		m.order = slices.Insert(m.order, at, w)
	}
	w.name, w.incarnation, w.host = ev.Name, ev.Incarnation, ev.Host
	w.state, w.supervised = WorkerStateActive, ev.Supervised
	m.silent.drop(ev.Incarnation)
	w.slots = max(ev.Slots, 1)
	w.resources, w.memory = ev.Resources, ev.MemoryBytes
	w.linalg = ev.Linalg
	w.executors, w.pipelined = ev.Executors, ev.PipelinedReads
	if w.notifies != ev.Notifies {
		w.notifies = ev.Notifies
		m.countNotifiers()
	}
	w.reportedAt = m.now
	m.workerVersion++
	m.tell(copies.SessionOpened{Worker: w.id})
	m.reconcile(w, &ev)
}

// reconcile compares the inventory and attempts that a worker reports with the machine's records.
// The worker is right about its objects and attempts; the machine is right about which of them are
// wanted.
func (m *Machine) reconcile(w *worker, ev *WorkerRegistered) {
	held := make(map[ids.TaskID]bool, len(ev.Inventory))
	for _, r := range ev.Inventory {
		m.adopt(w, Stored{Replica: r})
		if _, t := m.lookup(r.Task); t != nil && t.attempt == uint32(r.Generation) {
			held[r.Task] = true // a replica of another generation does not count
		}
	}
	for _, r := range ev.Written {
		// If it was accepted, that message was lost. It is repeated now, before the worker gets
		// tasks that need the object.
		if _, t := m.lookup(r.Task); t != nil && t.attempt == uint32(r.Generation) && m.ops[t.op].spec.Kind == OpData && w.objects.has(r.Task) {
			held[r.Task] = true
			m.emitTo(EffectAccept, w, r.Task, t.attempt)
		}
	}
	var lost []ids.TaskID
	for _, id := range w.objects.members(nil) {
		if !held[id] && m.replicaLost(id, w) {
			lost = append(lost, id)
		}
	}
	m.tell(copies.InventoryRead{Worker: w.id})
	works := make(map[TaskRef]bool, len(ev.Running))
	m.forgetReturned(w)
	for _, r := range ev.Running {
		works[r] = true
		if b, t := m.lookup(r.Task); m.mayReturn(b, t, r.Attempt) {
			m.attemptReturned(w, r)
		} else if t == nil || !t.current(w, r.Attempt) {
			m.emitTo(EffectCancel, w, r.Task, uint32(r.Attempt))
		}
	}
	for _, r := range m.underWay(w) {
		b, t := m.at(r.Task)
		if !works[r] {
			m.abandonAttempt(r.Task, b, t)
			m.requeue(r.Task, b, t)
			continue
		}
		if t.flags&flagRetracting != 0 {
			// The answer to the retract request may have been lost with the session.
			t.flags &^= flagRetracting
			w.retracting--
		}
		m.attemptGoesOn(r.Task, t, w) // the worker reports again which attempts wait
	}
	m.recover(lost)
	m.tell(copies.WorkerReturned{Worker: w.id})
}

func (m *Machine) workerDisconnected(ev WorkerDisconnected) {
	w := m.workerOf(ev.Worker)
	if w == nil {
		return
	}
	w.state, w.disconnectedAt = WorkerStateDisconnected, m.now
	m.workerVersion++
	m.tell(copies.WorkersChanged{})
}

func (m *Machine) workerMeasured(ev WorkerMeasured) {
	if w := m.workerOf(ev.Worker); w != nil {
		w.memoryUsed, w.memoryEvictable = ev.MemoryUsedBytes, min(ev.MemoryEvictableBytes, ev.MemoryUsedBytes)
		w.added = 0
		m.tell(copies.WorkerMeasured{})
	}
}

func (m *Machine) countNotifiers() {
	m.notifiers = 0
	for _, w := range m.order {
		if w.notifies {
			m.notifiers++
		}
	}
}
