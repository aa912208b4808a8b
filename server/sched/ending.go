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

// complete ends a task with an object. REQUIRES: no worker has the task; its state is active.
func (m *Machine) complete(id ids.TaskID, b *block, t *task, w *worker, bytes uint64, inline []byte, run time.Duration) {
	m.dequeue(id, t)
	active := t.undone()
	t.flags &^= flagBackoff | flagRunHold | flagPinned
	if tr := m.troubleIf(id, t); tr != nil {
		tr.unreachable, tr.inputFailures, tr.streak = 0, nil, 0
	}
	t.missing = 0
	t.output = bytes
	t.runMicros = uint32(min(max(run.Microseconds(), 0), 1<<32-1))
	w.finished++
	w.gain(id, t)
	b.push(&t.replicas, w.slot)
	m.keepInline(id, b, inline)
	if o := &m.ops[t.op]; o.spec.Kind != OpData {
		o.learn(run, bytes)
	} else {
		m.forgetLostData(id)
	}
	p := &m.graphs[t.graph].summaries[t.summary]
	p.RunTime += run
	p.OutputBytes += bytes
	m.setState(id, t, TaskSucceeded)
	m.putSuccess(id, b, t)
	m.totals.Succeeded++
	m.notify(id, b, t)
	if active {
		m.deactivate(b, t)
	}
	m.arrived(t)
	m.reconsider(id, t)
	if m.copier.Draining() {
		m.tell(copies.ObjectStoredAt{Object: id})
	}
}

// arrived updates the tasks that need an object: the object now exists.
func (m *Machine) arrived(t *task) {
	for r := t.dependents; r != 0; {
		cid, _, ct, e := m.consumerOf(r)
		switch {
		case ct.state == TaskWaiting:
			if ct.missing--; ct.missing == 0 {
				m.makeReady(cid, ct)
			}
		case ct.missing > 0:
			m.inputArrived(cid, ct)
		}
		r = e.next
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

func cancelError(reason string) *TaskError {
	if reason == "" {
		reason = "cancelled by request"
	}
	return &TaskError{Reason: "CANCELLED", Message: reason}
}
