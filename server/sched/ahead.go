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
// the start of the next. Such an attempt is "ahead" of its inputs. The worker starts it when its
// inputs exist there. It drops the attempt (OutcomeCancelled) as soon as an input ends in any other
// way; then the task waits for its inputs like any other task. task.missing counts the inputs that
// do not exist yet.

const (
	// maxAwaited is the largest number of missing inputs of a pre-assigned attempt. maxSkipped
	// bounds the dependents that are read to find the active one.
	maxAwaited = 4
	maxSkipped = 8
)

// follow assigns the only active dependent of a task to the worker that has the task, then the only
// dependent of that one, and so on. When the worker has enough attempts, follow notes the end of
// the chain in w.tails, and extend continues later.
func (m *Machine) follow(id ids.TaskID, t *task, w *worker) {
	if m.config.Followers < 0 {
		return
	}
	for t.unfinished == 1 {
		cid, cb, ct := m.onlyDependent(t)
		if ct == nil || !m.mayFollow(cb, ct, w) {
			return
		}
		if !m.roomAhead(w) {
			w.tails = append(w.tails, TaskRef{id, ids.Attempt(t.attempt)})
			return
		}
		m.send(cid, cb, ct, w)
		id, t = cid, ct
	}
}

// followOlder pre-assigns a task that was just submitted, if its last input is an older task that a
// worker has. REQUIRES: the task has inputs.
func (m *Machine) followOlder(b *block, t *task, first ids.TaskID) {
	in := b.edges[t.edge+t.inputs-1].input
	if in >= first {
		return
	}
	if _, p := m.at(in); p.state.assigned() {
		m.follow(in, p, m.workers[p.worker-1])
	}
}

// onlyDependent finds the one active dependent of a task. It gives up after maxSkipped dependents
// and then returns nil. REQUIRES: there is exactly one.
func (m *Machine) onlyDependent(t *task) (ids.TaskID, *block, *task) {
	n := 0
	for r := t.dependents; r != 0 && n < maxSkipped; n++ {
		id, b, ct, e := m.consumerOf(r)
		if ct.state.active() {
			return id, b, ct
		}
		r = e.next
	}
	return 0, nil, nil
}

// mayFollow reports whether a waiting task may be assigned to a worker before its inputs exist.
// Each input must be under way at that worker, or exist at that worker or inline at the scheduler,
// and the task must fit the worker.
func (m *Machine) mayFollow(b *block, t *task, w *worker) bool {
	if t.state != TaskWaiting || t.missing > maxAwaited || t.flags&flagTrouble != 0 || w.state != WorkerStateActive {
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

// roomAhead reports whether the worker should get another pre-assigned attempt.
func (m *Machine) roomAhead(w *worker) bool {
	slots := uint64(w.slots)
	if n := m.config.Followers; n > 0 {
		return uint64(w.ahead) < slots+uint64(n)
	}
	return uint64(w.ahead) < slots+minAhead || w.queuedMicros < aheadMicros*slots && w.ahead < maxAhead
}

// extend continues the chains for which follow found no room.
func (m *Machine) extend(w *worker) {
	for len(w.tails) > 0 && m.roomAhead(w) {
		r := w.tails[0]
		w.tails = w.tails[1:]
		if _, t := m.lookup(r.Task); t != nil && t.current(w, r.Attempt) {
			m.follow(r.Task, t, w)
		}
	}
	if len(w.tails) == 0 {
		w.tails = nil
	}
}

// caughtUp notes that one input of a pre-assigned attempt now exists. After the last one the
// attempt can run and takes its slots.
func (m *Machine) caughtUp(t *task) {
	if t.missing--; t.missing == 0 {
		w := m.workers[t.worker-1]
		w.ahead--
		w.usedSlots += uint64(max(m.options[t.options].Slots, 1))
	}
}
