package sched

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// doom is an outcome that a task inherits or is ordered to have.
type doom struct {
	task  ids.TaskID
	state TaskState // FAILED or CANCELLED
	err   *TaskError
	// from is the input whose outcome it is; 0: ordered.
	from ids.TaskID
}

// revival is a task to be run again.
type revival struct {
	task ids.TaskID
	// retry also runs failed and cancelled tasks again, and their failed and cancelled inputs.
	retry bool
}

// carryOut ends a doomed task unless that is overtaken.
func (m *Machine) carryOut(d doom) {
	b, t := m.lookup(d.task)
	if t == nil || !t.state.active() {
		return
	}
	if d.from != 0 {
		if _, p := m.lookup(d.from); p == nil || p.state != d.state {
			return
		}
	}
	if d.state == TaskFailed && t.state.assigned() {
		// It may have fetched the input before that was lost; if not, it comes back with INPUT_UNREACHABLE.
		return
	}
	if t.state.assigned() {
		w := m.workers[t.worker-1]
		attempt := t.attempt
		m.leave(b, t)
		m.tell(EffectCancel, w, d.task, attempt)
	}
	m.end(d.task, b, t, d.state, d.err)
}

// inherit dooms a task that needs one that failed or was cancelled.
func (m *Machine) inherit(id, from ids.TaskID, p *task) {
	e := m.errors[from]
	if p.state == TaskFailed {
		e = m.inputFailed(from, e)
	}
	m.doomed = append(m.doomed, doom{task: id, state: p.state, err: e, from: from})
}

// inputFailed is the error of the tasks that need a failed one: all share it, and the first failure stays its origin.
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

// end gives a task an outcome without an object. REQUIRES: no worker has it.
func (m *Machine) end(id ids.TaskID, b *block, t *task, state TaskState, err *TaskError) {
	m.dequeue(id, t)
	m.found(id)
	active := t.state.active()
	t.flags &^= flagBackoff | flagRunHold
	t.missing = 0
	m.keepError(id, err)
	m.setState(id, t, state)
	var passed *TaskError
	if state == TaskFailed {
		m.totals.Failed++
		if g := m.graphs[t.graph]; g.firstError == nil {
			g.firstError = err
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
			m.doomed = append(m.doomed, doom{task: cid, state: state, err: passed, from: id})
		}
		r = e.next
	}
	m.reconsider(id, t)
}

// absolve forgets what went wrong with a task.
func (m *Machine) absolve(id ids.TaskID, t *task) {
	m.dropError(id)
	m.dropTail(id)
	if t.flags&flagTrouble != 0 {
		t.flags &^= flagTrouble
		delete(m.trouble, id)
	}
}

// revive starts a task without an object again, if it is wanted.
func (m *Machine) revive(r revival) {
	b, t := m.lookup(r.task)
	if t == nil || !t.wanted() {
		return
	}
	switch t.state {
	case TaskReleased:
	case TaskFailed, TaskCancelled:
		if !r.retry {
			return
		}
		m.absolve(r.task, t)
	case TaskWaiting, TaskReady, TaskAssigned, TaskRunning, TaskSucceeded, TaskRescuing:
		return
	}
	if m.ops[t.op].spec.Kind == OpData {
		if t.state != TaskReleased {
			m.setState(r.task, t, TaskReleased)
		}
		if m.awaited(r.task) {
			m.setState(r.task, t, TaskWaiting)
			m.notify(r.task, b, t)
			return
		}
		m.end(r.task, b, t, TaskFailed, m.objectLost(r.task, b, t))
		return
	}
	m.setState(r.task, t, TaskWaiting)
	m.notify(r.task, b, t)
	m.activate(b, t)
	m.start(r.task, b, t, r.retry, 0)
}

// objectLost is the error of scattered data whose bytes are gone: nothing can compute it again.
func (m *Machine) objectLost(id ids.TaskID, b *block, t *task) *TaskError {
	key := string(b.keyOf(t))
	return &TaskError{Reason: "OBJECT_LOST", OriginKey: key, Attempt: ids.Attempt(t.attempt),
		Message: fmt.Sprintf("the bytes of %s came from a client and no worker holds them any more%s; scatter it again, to several workers if it must outlive one",
			key, m.whereLost(id))}
}

// start counts the missing inputs of an active task without a worker, has them made, and readies it after a delay if
// there are none.
func (m *Machine) start(id ids.TaskID, b *block, t *task, retry bool, delay time.Duration) {
	t.missing = 0
	edges := b.edgesOf(t)
	for i := range edges {
		in := edges[i].input
		_, p := m.at(in)
		switch p.state {
		case TaskSucceeded:
			continue
		case TaskReleased:
			m.reviving = append(m.reviving, revival{task: in, retry: retry})
		case TaskFailed, TaskCancelled:
			if retry {
				m.reviving = append(m.reviving, revival{task: in, retry: true})
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

// requeue puts a task back whose attempt ended without an outcome. REQUIRES: leave was called.
func (m *Machine) requeue(id ids.TaskID, b *block, t *task) {
	if !t.wanted() {
		m.reconsider(id, t)
	}
	m.start(id, b, t, false, 0)
}

// settle lets go of a task that is not wanted: drops it if it has not ended, releases its object if it has, and forgets it
// if no known task could ever need it again.
func (m *Machine) settle(id ids.TaskID) {
	b, t := m.lookup(id)
	if t == nil {
		return
	}
	t.flags &^= flagSettling
	if t.wanted() {
		if m.orphaned(t) && !m.awaited(id) {
			m.doomed = append(m.doomed, doom{task: id, state: TaskFailed, err: m.objectLost(id, b, t)})
		}
		return
	}
	switch t.state {
	case TaskWaiting, TaskReady, TaskAssigned, TaskRunning:
		m.dequeue(id, t)
		t.flags &^= flagBackoff
		if t.state.assigned() {
			w := m.workers[t.worker-1]
			m.leave(b, t)
			m.tell(EffectCancel, w, id, t.attempt)
		}
		t.missing = 0
		m.setState(id, t, TaskReleased)
		m.deactivate(b, t)
	case TaskSucceeded:
		m.releaseObject(id, b, t)
		m.setState(id, t, TaskReleased)
	case TaskRescuing:
		m.saved(id)
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
		m.tell(EffectRelease, w, id, t.attempt)
		w.objects.remove(id)
		b.drop(&t.replicas, w.slot)
	}
	m.dropInline(b, uint64(id&blockMask))
}

func (m *Machine) dropInline(b *block, index uint64) {
	if v := b.inlineOf(index); v != nil {
		m.totals.InlineBytes -= uint64(len(v))
		b.inline[index] = nil
	}
}

// forget frees the record of a task that nobody holds and no known task depends on.
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
	m.absolve(id, t)
	m.found(id)
	m.story.add(m, id, TaskReleased, 0, t.attempt, 0)
	g.ns.keys.remove(m, hashKeyBytes(b.keyOf(t)), id)
	m.totals.Counts[TaskReleased]--
	m.totals.Tasks--
	m.totals.Forgotten++
	if g.live--; g.live == 0 {
		m.touch(t.graph, g)
	}
	m.emit(Effect{Kind: EffectTaskForgotten, Task: id, Graph: g.id})
	m.totals.HeldBytes -= t.heldBytes()
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

// tasksReleased gives up a client's holds.
func (m *Machine) tasksReleased(ev TasksReleased) {
	c := m.clients[ev.Client]
	if c == nil {
		return
	}
	for _, id := range ev.Tasks {
		m.unhold(c.holder, id)
	}
}
