package sched

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

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
	if t.state == TaskReleased && m.isCopy(b, t) {
		x := unwantedCopy(r.task) // the order for which it was made is done
		m.end(r.task, b, t, x.state, x.err)
		return
	}
	m.setState(r.task, t, TaskWaiting)
	m.putAgain(r.task, t)
	m.notify(r.task, b, t)
	m.activate(b, t)
	m.start(r.task, b, t, r.retry, 0)
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

// retryDue ends a back-off.
func (m *Machine) retryDue(id ids.TaskID, attempt uint32) {
	_, t := m.lookup(id)
	if t == nil || t.flags&flagBackoff == 0 || t.attempt != attempt {
		return
	}
	t.flags &^= flagBackoff
	m.makeReady(id, t)
}

// recover computes wanted lost objects again.
func (m *Machine) recover(lost []ids.TaskID) {
	for _, id := range lost {
		_, t := m.lookup(id)
		if t == nil || t.state != TaskReleased {
			continue
		}
		if t.wanted() {
			m.totals.Recomputed++
			m.reruns = append(m.reruns, rerun{task: id})
		} else {
			m.reconsider(id, t)
		}
	}
}

// objectLost is the error of scattered data whose bytes are gone: no task can compute them again.
func (m *Machine) objectLost(id ids.TaskID, b *block, t *task) *TaskError {
	key := string(b.keyOf(t))
	return &TaskError{Reason: "OBJECT_LOST", OriginKey: key, Attempt: ids.Attempt(t.attempt),
		Message: fmt.Sprintf("the bytes of %s came from a client and no worker holds them any more%s; scatter it again, to several workers if it must outlive one",
			key, m.whereLost(id))}
}
