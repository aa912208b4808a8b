package sched

import (
	"math"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// send creates a new attempt at a worker.
func (m *Machine) send(id ids.TaskID, b *block, t *task, w *worker) {
	t.attempt = max(t.attempt, m.restart.attempts) + 1
	if len(m.latest) > 0 {
		t.attempt = max(t.attempt, m.latest[id]+1)
		delete(m.latest, id)
	}
	if !nested(t.rank) {
		m.serve(m.graphs[t.graph].flow)
	}
	m.enlist(id, b, t, w)
	m.totals.Assigned++
	m.emit(Effect{Kind: EffectAssign, Worker: w.id, Task: id, Attempt: ids.Attempt(t.attempt)})
}

// enlist counts the current attempt of a task as one that the worker has.
func (m *Machine) enlist(id ids.TaskID, b *block, t *task, w *worker) {
	o := &m.options[t.options]
	t.worker = w.slot + 1
	t.runMicros = uint32(min(m.ops[t.op].estimate(), 1e9))
	m.setState(id, t, TaskAssigned)
	w.queue = append(w.queue, TaskRef{id, ids.Attempt(t.attempt)})
	w.assigned++
	if t.missing > 0 {
		w.preassigned++
	} else {
		w.usedSlots += uint64(max(o.Slots, 1))
	}
	w.queuedMicros += uint64(t.runMicros)
	// order-free: each name has its own sum.
	for name, amount := range o.Resources {
		if w.usedResources == nil {
			w.usedResources = make(map[string]float64)
		}
		w.usedResources[name] += amount
	}
	edges := b.edgesOf(t)
	for i := range edges {
		in := edges[i].input
		if w.objects.has(in) {
			continue
		}
		_, p := m.at(in)
		switch {
		case p.state != TaskSucceeded:
		case edges[i].item != 0:
			edges[i].expectFetch(p, w)
		default:
			m.expectFetch(in, p, w, t.missing == 0)
		}
	}
	if m.config.Preassigned >= 0 && m.notifiers > 0 && t.unfinished > 0 {
		m.makers = append(m.makers, TaskRef{id, ids.Attempt(t.attempt)})
	}
}

// started notes that the current attempt of a task runs.
func (m *Machine) started(id ids.TaskID, b *block, t *task, w *worker) {
	if t.state == TaskAssigned {
		m.setState(id, t, TaskRunning)
		m.starts[id] = m.now
		w.running++
		m.notify(id, b, t)
	}
}

// inputArrived notes that one input of a pre-assigned attempt now exists. After the last one the
// attempt can run and takes its slots.
func (m *Machine) inputArrived(id ids.TaskID, t *task) {
	if t.missing--; t.missing == 0 {
		t.readied = m.millis
		w := m.workers[t.worker-1]
		w.preassigned--
		if !w.blocked.has(id) {
			w.usedSlots += uint64(max(m.options[t.options].Slots, 1))
		}
	}
}

// attemptBlocked notes that a running attempt waits for other tasks, and that its worker has given
// its slots to others meanwhile. Its resources stay its own.
//
// The worker is told after this step's dispatch, so that it has what is to run in those slots
// before it uses them.
func (m *Machine) attemptBlocked(id ids.TaskID, t *task, w *worker) {
	m.freed = append(m.freed, Effect{Kind: EffectFreeSlot, Worker: w.id, Task: id, Attempt: ids.Attempt(t.attempt)})
	if !w.blocked.add(id) {
		return
	}
	if t.missing == 0 {
		w.usedSlots -= uint64(max(m.options[t.options].Slots, 1))
	}
	w.queuedMicros -= uint64(t.runMicros)
	t.runMicros = 0
}

// attemptGoesOn notes that an attempt which waited has its slots again.
func (m *Machine) attemptGoesOn(id ids.TaskID, t *task, w *worker) {
	if w.blocked.remove(id) && t.missing == 0 {
		w.usedSlots += uint64(max(m.options[t.options].Slots, 1))
	}
}

func (m *Machine) retract(w *worker, id ids.TaskID, t *task) {
	if t.flags&(flagRetracting|flagPinned) != 0 {
		return
	}
	t.flags |= flagRetracting
	w.retracting++
	m.totals.Retracted++
	m.emitTo(EffectRetract, w, id, t.attempt)
}

// setAttempt makes an attempt the current one that a worker has brought. It may be older than the
// last one, whose number is not given again.
func (m *Machine) setAttempt(id ids.TaskID, t *task, attempt uint32) {
	if last := max(m.latest[id], t.attempt); last > attempt {
		m.latest[id] = last
	} else {
		delete(m.latest, id)
	}
	t.attempt = attempt
}

// brings reports whether a client's object is the one that a task waits for.
func (m *Machine) brings(t *task, generation uint32) bool {
	return m.ops[t.op].spec.Kind == OpData && t.state == TaskWaiting && generation == 1
}

// wasGiven reports whether an attempt of this number may have been sent to a worker.
func (m *Machine) wasGiven(id ids.TaskID, t *task, attempt uint32) bool {
	return attempt > 0 && (attempt <= max(t.attempt, m.restart.attempts, m.latest[id]) || m.restart.running)
}

// underWay lists the attempts under way on a worker, in the order in which they were sent.
func (m *Machine) underWay(w *worker) []TaskRef {
	var refs []TaskRef
	for _, r := range w.queue {
		if _, t := m.lookup(r.Task); t != nil && t.current(w, r.Attempt) {
			refs = append(refs, r)
		}
	}
	return refs
}

// abandonAttempt ends the current attempt, which made no object, in the worker's counts. The caller
// sets the task's new state.
func (m *Machine) abandonAttempt(id ids.TaskID, b *block, t *task) {
	at := t.worker
	m.endAttempt(id, b, t)
	m.noteStranded(t, at)
}

// noteStranded notes the attempts at other workers that wait for an attempt that has ended without
// an object. propagate recalls them. Attempts at the same worker need no recall: that worker drops
// them itself.
func (m *Machine) noteStranded(t *task, at uint32) {
	if m.notifiers == 0 {
		return
	}
	for r := t.dependents; r != 0; {
		id, _, ct, e := m.consumerOf(r)
		if ct.state.assigned() && ct.missing > 0 && ct.worker != at {
			m.stranded = append(m.stranded, TaskRef{id, ids.Attempt(ct.attempt)})
		}
		r = e.next
	}
}

// endAttempt ends the current attempt, which may have made its object, in the worker's counts.
func (m *Machine) endAttempt(id ids.TaskID, b *block, t *task) {
	w := m.workers[t.worker-1]
	o := &m.options[t.options]
	w.assigned--
	if t.state == TaskRunning {
		w.running--
		delete(m.starts, id)
	}
	if t.missing > 0 {
		w.preassigned--
		t.missing = 0
	} else if !w.blocked.has(id) {
		w.usedSlots -= uint64(max(o.Slots, 1))
	}
	w.queuedMicros -= uint64(t.runMicros)
	w.blocked.remove(id)
	if t.flags&flagRetracting != 0 {
		w.retracting--
	}
	t.flags &^= flagRetracting | flagPinned
	if m.copier.Draining() {
		m.tell(copies.AttemptEnded{Worker: w.id})
	}
	t.worker = 0
	t.runMicros = 0
	if len(o.Resources) > 0 {
		m.freeResources(w, o.Resources)
	}
	if w.fetching.count > 0 || w.fetchingItems > 0 {
		edges := b.edgesOf(t)
		for i := range edges {
			_, p := m.at(edges[i].input)
			if edges[i].item != 0 {
				edges[i].fetchEnded(p, w)
			} else {
				m.fetchEnded(edges[i].input, p, w)
			}
		}
	}
	if w.assigned == 0 {
		w.queue, w.deferred, w.deferredCross = w.queue[:0], nil, nil
	} else if len(w.queue) > 2*w.assigned+64 {
		keep := w.queue[:0]
		for _, r := range w.queue {
			if _, t := m.lookup(r.Task); t != nil && t.current(w, r.Attempt) {
				keep = append(keep, r)
			}
		}
		w.queue = keep
	}
}

// freeResources subtracts a task's resources from those that its worker uses. Sums of whole numbers
// are exact. Other sums are computed again from the attempts under way, because floating-point
// subtraction does not restore a small amount that was added to a large one.
func (m *Machine) freeResources(w *worker, amounts map[string]float64) {
	exact := true
	// order-free: each name has its own sum.
	for name, amount := range amounts {
		used := w.usedResources[name]
		if exact = exact && used < 1<<53 && amount == math.Trunc(amount) && used == math.Trunc(used); !exact {
			break
		}
	}
	if exact {
		// order-free: each name has its own sum.
		for name, amount := range amounts {
			if w.usedResources[name] -= amount; w.usedResources[name] <= 0 {
				delete(w.usedResources, name)
			}
		}
		return
	}
	clear(w.usedResources)
	for _, r := range m.underWay(w) {
		_, t := m.at(r.Task)
		// order-free: each name has its own sum.
		for name, amount := range m.options[t.options].Resources {
			w.usedResources[name] += amount
		}
	}
}

// expectFetch notes that the worker will fetch an object: now, or (atOnce false) after a
// pre-assigned attempt's inputs exist.
func (m *Machine) expectFetch(id ids.TaskID, t *task, w *worker, atOnce bool) {
	if !w.fetching.add(id) {
		return
	}
	w.fetchingBytes += t.output
	if atOnce {
		m.joinChain(id, t, w)
	}
}

// fetchEnded notes that the worker has the object or will not fetch it. The object may have another
// size than at expectFetch, if it was made again in between.
func (m *Machine) fetchEnded(id ids.TaskID, t *task, w *worker) {
	if w.fetching.remove(id) {
		w.fetched(t.output)
		m.leaveChain(id, w)
	}
}
