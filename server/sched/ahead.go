package sched

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// A task that is needed by one other task only, as in a chain or in a reduction of neighbours, mostly has that one run
// where its own result is. So the worker gets it at once, behind the tasks that make its inputs, and no message lies
// between the end of one and the start of the next. Such an attempt is ahead of its inputs: the worker begins it when they
// are made there, and drops it (OutcomeCancelled) as soon as one of them ends otherwise, whatever the reason; then it waits
// for its inputs like any other task. In its record missing counts the inputs that are still to be made.

const (
	// maxAwaited bounds the inputs that an attempt may be ahead of, and maxSkipped the dependents looked at for the one
	// that is active.
	maxAwaited = 4
	maxSkipped = 8
)

// follow assigns a task's only dependent to the worker that has the task, then that one's, and so on. Where the worker has
// enough, it notes the end, to go on from there as the first ones are done.
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

// followOlder lets a task that was just submitted follow an older one that a worker has. REQUIRES: it has inputs.
func (m *Machine) followOlder(b *block, t *task, first ids.TaskID) {
	in := b.edges[t.edge+t.inputs-1].input
	if in >= first {
		return
	}
	if _, p := m.at(in); p.state.assigned() {
		m.follow(in, p, m.workers[p.worker-1])
	}
}

// onlyDependent finds the active one of a task's dependents. REQUIRES: there is exactly one.
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

// mayFollow says whether a waiting task may be assigned to a worker ahead of its inputs: all of them are there, or are being
// made there, and nothing else speaks against it.
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

// roomAhead says whether the worker should get another task ahead of its inputs.
func (m *Machine) roomAhead(w *worker) bool {
	slots := uint64(w.slots)
	if n := m.config.Followers; n > 0 {
		return uint64(w.ahead) < slots+uint64(n)
	}
	return uint64(w.ahead) < slots+minAhead || w.queuedMicros < aheadMicros*slots && w.ahead < maxAhead
}

// extend goes on where follow found no room.
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

// caughtUp notes that an input of an attempt that is ahead was made.
func (m *Machine) caughtUp(t *task) {
	if t.missing--; t.missing == 0 {
		w := m.workers[t.worker-1]
		w.ahead--
		w.usedSlots += uint64(max(m.options[t.options].Slots, 1))
	}
}
