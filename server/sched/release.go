package sched

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// ending is an end that a task will get: inherited from an input, or ordered.
type ending struct {
	task  ids.TaskID
	state TaskState // FAILED or CANCELLED
	err   *TaskError
	// from is the input with that end; 0: ordered.
	from ids.TaskID
}

// rerun is a task that will run again.
type rerun struct {
	task ids.TaskID
	// retry says which failed and cancelled tasks run again with it: itself and its inputs.
	retry retry
}

// retry says which failed and cancelled tasks run again.
type retry uint8

const (
	retryNone   retry = iota
	retryUnheld       // those whose failure no client holds, and all cancelled ones
	retryAll
)

// includes reports whether a failed or cancelled task runs again.
func (r retry) includes(m *Machine, b *block, t *task) bool {
	return r == retryAll || r == retryUnheld && (t.state == TaskCancelled || !m.clientHolds(b, t))
}

// clientHolds reports whether a client holds a task.
func (m *Machine) clientHolds(b *block, t *task) bool {
	for i := t.holders; i != 0; i = b.links[i].next {
		if m.holders[b.links[i].value].kind == HolderClient {
			return true
		}
	}
	return false
}

// applyEnding ends a task, unless something has changed since: the task is not active any more, or
// the input does not have that state any more.
func (m *Machine) applyEnding(d ending) {
	b, t := m.lookup(d.task)
	if t == nil || !t.state.active() {
		return
	}
	if d.from != 0 {
		if _, p := m.lookup(d.from); p == nil || p.state != d.state {
			return
		}
	}
	if t.flags&flagPinned != 0 && !t.state.assigned() {
		return // It is recorded to have succeeded, so it had ended before.
	}
	if d.state == TaskFailed && t.state.assigned() {
		// It may have fetched the input before the input was lost. If not, it reports
		// INPUT_UNREACHABLE.
		return
	}
	if t.state.assigned() {
		w := m.workers[t.worker-1]
		attempt := t.attempt
		m.abandonAttempt(d.task, b, t)
		m.emitTo(EffectCancel, w, d.task, attempt)
	}
	m.end(d.task, b, t, d.state, d.err)
}

// inherit ends a task that needs a failed or cancelled one.
func (m *Machine) inherit(id, from ids.TaskID, p *task) {
	e := m.errors[from]
	if p.state == TaskFailed {
		e = m.inputFailed(from, e)
	}
	m.endings = append(m.endings, ending{task: id, state: p.state, err: e, from: from})
}

// inputFailed makes the error for the dependents of a failed task. All dependents share it, and it
// keeps the first failure as its origin.
func (m *Machine) inputFailed(from ids.TaskID, e *TaskError) *TaskError {
	if e != nil && e.Reason == "INPUT_FAILED" {
		return e
	}
	b, t := m.at(from)
	key := string(b.keyOf(t))
	if e == nil {
		e = &TaskError{Reason: "UNKNOWN", Message: "no cause was reported", OriginKey: key}
	}
	return &TaskError{
		Reason:    "INPUT_FAILED",
		Message:   fmt.Sprintf("input %s failed with %s: %s", key, e.Reason, e.Message),
		OriginKey: e.OriginKey,
		Worker:    e.Worker,
		Attempt:   e.Attempt,
		Attempts:  e.Attempts,
		Detail:    e.Detail,
	}
}

// end ends a task without an object: FAILED or CANCELLED. Its dependents will end, too. REQUIRES:
// no worker has it.
func (m *Machine) end(id ids.TaskID, b *block, t *task, state TaskState, err *TaskError) {
	m.dequeue(id, t)
	m.forgetLostData(id)
	active := t.undone()
	t.flags &^= flagBackoff | flagRunHold | flagPinned
	t.missing = 0
	m.keepError(id, err)
	m.setState(id, t, state)
	m.putEnd(id, t, state, err)
	var passed *TaskError
	if state == TaskFailed {
		m.totals.Failed++
		g := m.graphs[t.graph]
		if g.firstError == nil {
			g.firstError = err
		}
		if !g.failing {
			g.newError, g.failing = err, true
		}
		if t.dependents != 0 {
			passed = m.inputFailed(id, err)
		}
	} else {
		m.totals.Cancelled++
		passed = err
	}
	m.notify(id, b, t)
	if active {
		m.deactivate(b, t)
	}
	for r := t.dependents; r != 0; {
		cid, _, ct, e := m.consumerOf(r)
		if ct.state.active() {
			m.endings = append(m.endings, ending{task: cid, state: state, err: passed, from: id})
		}
		r = e.next
	}
	m.reconsider(id, t)
}

// runAgain starts a wanted task without an object again.
func (m *Machine) runAgain(r rerun) {
	b, t := m.lookup(r.task)
	if t == nil || !t.wanted() {
		return
	}
	switch t.state {
	case TaskReleased:
	case TaskFailed, TaskCancelled:
		if !r.retry.includes(m, b, t) {
			return
		}
		m.clearTrouble(r.task, t)
	case TaskWaiting, TaskReady, TaskAssigned, TaskRunning, TaskSucceeded, TaskRescuing:
		return
	}
	t.flags &^= flagPinned
	if m.ops[t.op].spec.Kind == OpData {
		if t.state != TaskReleased {
			m.setState(r.task, t, TaskReleased)
		}
		if m.dataAwaited(r.task) {
			m.setState(r.task, t, TaskWaiting)
			m.notify(r.task, b, t)
			return
		}
		m.end(r.task, b, t, TaskFailed, m.objectLost(r.task, b, t))
		return
	}
	m.setState(r.task, t, TaskWaiting)
	m.putAgain(r.task, t)
	m.notify(r.task, b, t)
	m.activate(b, t)
	m.start(r.task, b, t, r.retry, 0)
}

// objectLost is the error of scattered data whose bytes are gone: no task can compute them again.
func (m *Machine) objectLost(id ids.TaskID, b *block, t *task) *TaskError {
	key := string(b.keyOf(t))
	return &TaskError{Reason: "OBJECT_LOST", OriginKey: key, Attempt: ids.Attempt(t.attempt),
		Message: fmt.Sprintf("the bytes of %s came from a client and no worker holds them any more%s; scatter it again, to several workers if it must outlive one",
			key, m.whereLost(id))}
}

// start counts the missing inputs of an active task that no worker has, and has released inputs
// made again. If no input is missing, the task becomes ready, after the given delay.
func (m *Machine) start(id ids.TaskID, b *block, t *task, again retry, delay time.Duration) {
	t.missing = 0
	edges := b.edgesOf(t)
	for i := range edges {
		in := edges[i].input
		from, p := m.at(in)
		switch p.state {
		case TaskSucceeded:
			continue
		case TaskReleased:
			m.reruns = append(m.reruns, rerun{task: in, retry: again})
		case TaskFailed, TaskCancelled:
			if again.includes(m, from, p) {
				m.reruns = append(m.reruns, rerun{task: in, retry: again})
			} else {
				m.inherit(id, in, p)
			}
		case TaskWaiting, TaskReady, TaskAssigned, TaskRunning, TaskRescuing:
		}
		t.missing++
	}
	if t.missing == 0 && delay > 0 {
		if t.state != TaskReady {
			m.setState(id, t, TaskReady)
		}
		t.flags |= flagBackoff
		m.arm(timer{at: m.now.Add(delay), kind: timerRetry, id: uint64(id), attempt: t.attempt})
	} else if t.missing == 0 {
		m.makeReady(id, t)
	} else if t.state != TaskWaiting {
		m.setState(id, t, TaskWaiting)
	}
}

// requeue makes a task wait again after its attempt ended without an outcome. REQUIRES:
// abandonAttempt was called.
func (m *Machine) requeue(id ids.TaskID, b *block, t *task) {
	if !t.wanted() {
		m.reconsider(id, t)
	}
	m.start(id, b, t, retryNone, 0)
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

func (m *Machine) dropInline(b *block, index uint64) {
	if v := b.inlineOf(index); v != nil {
		m.totals.InlineBytes -= uint64(len(v))
		b.inline[index] = nil
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

// tasksReleased ends a client's holds.
func (m *Machine) tasksReleased(ev TasksReleased) {
	c := m.clients[ev.Client]
	if c == nil {
		return
	}
	for _, id := range ev.Tasks {
		m.unhold(c.holder, id)
	}
}
