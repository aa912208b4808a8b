package sched

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// Pre-assignment: a task is sent to a worker before its inputs, which the same worker makes, exist.
//
// A task with only one active dependent is common, as in a chain or in a reduction of neighbours,
// and the dependent mostly runs where its input was made. So the worker gets the dependent at once,
// behind the tasks that make its inputs, and no message is needed between the end of one task and
// the start of the next. The worker starts such an attempt when its inputs exist there. It drops
// the attempt (OutcomeCancelled) as soon as an input ends in any other way; then the task waits for
// its inputs like any other task. task.missing counts the inputs that do not exist yet.

const (
	// maxMissing is the largest number of missing inputs of a pre-assigned attempt. maxDependents
	// bounds the dependents that are read to find the active one.
	maxMissing    = 4
	maxDependents = 8
)

// preassign assigns the only active dependent of a task to the worker that has the task, then the
// only dependent of that one, and so on. When the worker has enough attempts, preassign notes the
// last one in w.deferred, and retryPreassign continues there later.
func (m *Machine) preassign(id ids.TaskID, t *task, w *worker) {
	if m.config.Preassigned < 0 {
		return
	}
	for t.unfinished == 1 {
		cid, cb, ct := m.onlyDependent(t)
		if ct == nil || m.standsBy(cid) || !m.mayPreassign(cb, ct, w) {
			return
		}
		if !m.preassignRoom(w) {
			w.deferred = append(w.deferred, TaskRef{id, ids.Attempt(t.attempt)})
			return
		}
		m.send(cid, cb, ct, w)
		id, t = cid, ct
	}
}

// preassignNew pre-assigns a task that was just submitted, if its last input is an older task that
// a worker has. REQUIRES: the task has inputs.
func (m *Machine) preassignNew(b *block, t *task, first ids.TaskID) {
	in := b.edges[t.edge+t.inputs-1].input
	if in >= first {
		return
	}
	if _, p := m.at(in); p.state.assigned() {
		m.preassign(in, p, m.workers[p.worker-1])
	}
}

// onlyDependent finds the one active dependent of a task. It gives up after maxDependents
// dependents and then returns nil. REQUIRES: there is exactly one.
func (m *Machine) onlyDependent(t *task) (ids.TaskID, *block, *task) {
	n := 0
	for r := t.dependents; r != 0 && n < maxDependents; n++ {
		id, b, ct, e := m.consumerOf(r)
		if ct.state.active() {
			return id, b, ct
		}
		r = e.next
	}
	return 0, nil, nil
}

// mayPreassign reports whether a waiting task may be assigned to a worker before its inputs exist.
// Each input must be under way at that worker, or exist at that worker or inline at the scheduler,
// and the task must fit the worker.
func (m *Machine) mayPreassign(b *block, t *task, w *worker) bool {
	if t.state != TaskWaiting || t.missing > maxMissing || t.flags&flagTrouble != 0 || w.state != WorkerStateActive {
		return false
	}
	c := m.classes[t.class]
	if m.ops[t.op].spec.Kind == OpData || c.options.Slots > 1 || len(c.options.Resources) > 0 {
		return false
	}
	edges := b.edgesOf(t)
	for i := range edges {
		in := edges[i].input
		pb, p := m.at(in)
		if p.state.assigned() && p.worker == w.slot+1 && p.flags&flagRetracting == 0 {
			continue
		}
		if p.state != TaskSucceeded || !w.objects.has(in) && pb.inlineOf(uint64(in&blockMask)) == nil {
			return false
		}
	}
	return slices.Contains(m.feasible(c), w) && m.memoryFits(w, b, t)
}

// preassignRoom reports whether the worker should get another pre-assigned attempt.
func (m *Machine) preassignRoom(w *worker) bool {
	slots := uint64(w.slots)
	if n := m.config.Preassigned; n > 0 {
		return uint64(w.preassigned) < slots+uint64(n)
	}
	return uint64(w.preassigned) < slots+minQueued || w.queuedMicros < queueMicros*slots && w.preassigned < maxQueued
}

// retryPreassign continues behind the attempts for whose dependents preassign found no room.
func (m *Machine) retryPreassign(w *worker) {
	for len(w.deferred) > 0 && m.preassignRoom(w) {
		r := w.deferred[0]
		w.deferred = w.deferred[1:]
		if _, t := m.lookup(r.Task); t != nil && t.current(w, r.Attempt) {
			m.preassign(r.Task, t, w)
		}
	}
	if len(w.deferred) == 0 {
		w.deferred = nil
	}
}
