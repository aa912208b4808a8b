package sched

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// A restart brings the machine back from its facts (ADR 29), in three parts:
//
//  1. Load, for each row. No decision is made.
//  2. Loaded. Then the machine waits for the workers that were known. Old tasks stand by: a worker
//     that is not back may run them, or have their objects. They are WAITING and are not assigned.
//     An object that a worker has completes its task, and attempts that a worker still has are
//     noted in returned. New tasks are assigned as soon as their inputs exist.
//  3. RestartEnded. The noted attempts go on where they are, and all tasks that are left are
//     assigned again.
//
// Not all that happened is recorded. So a number of a task or an attempt that was given out and not
// recorded is not given out again: both go on after a gap.

const (
	// restartTasks is the size of the gap in the numbers of tasks. Fewer new tasks than that may
	// wait to be recorded at any time.
	restartTasks = 1 << 22
	// UnrecordedTasks bounds the new tasks whose records are not durable: beyond it, the loop
	// refuses submissions. It is far below restartTasks, since a whole submission may exceed it.
	UnrecordedTasks = 1 << 20
	// restartAttempts is the number of attempts of a task that one start of the scheduler may make.
	restartAttempts = 1 << 12
)

// RestartEnded means that all workers that were known are back or lost.
type RestartEnded struct{}

func (RestartEnded) event() {}

// restart is the state of a restart.
type restart struct {
	// loading is the state of the rows before Loaded; nil: none was loaded.
	loading *loading
	// running means that old tasks are not assigned.
	running bool
	// first is the number from which on tasks are new.
	first ids.TaskID
	// attempts is the number after which new attempts are numbered: 0 before the first restart.
	attempts uint32
	// returned are attempts that workers still have. They are resumed at their next report, or when
	// the restart ends.
	returned map[ids.TaskID]returned
	// data are the scattered objects that were there before the restart.
	data []ids.TaskID
	// unusable counts the tasks that could not be brought back; firstUnusable is the message of
	// one.
	unusable      int
	firstUnusable string
}

// returned is an attempt that a worker has brought back.
type returned struct {
	worker  ids.WorkerID
	attempt uint32
}

// standsBy reports whether a task is not to be assigned yet: it is older than the restart, and not
// all workers are back that may have it.
func (m *Machine) standsBy(id ids.TaskID) bool {
	return m.restart.running && id < m.restart.first
}

// unpin takes the recorded success of a task back: it needs its inputs again.
func (m *Machine) unpin(b *block, t *task) {
	if t.undone() {
		return
	}
	t.flags &^= flagPinned
	m.activate(b, t)
	for i := range b.edgesOf(t) {
		id := b.edges[t.edge+uint32(i)].input
		if _, p := m.at(id); p.state == TaskReleased {
			m.reruns = append(m.reruns, rerun{task: id})
		}
	}
}

// mayReturn reports whether an attempt that a worker has can go on after a restart.
func (m *Machine) mayReturn(b *block, t *task, attempt ids.Attempt) bool {
	return m.restart.running && t != nil && (t.state == TaskWaiting || t.flags&flagBackoff != 0) &&
		uint32(attempt) >= t.attempt && m.ops[t.op].spec.Kind != OpData
}

// attemptReturned notes an attempt that a worker has brought back. Of two attempts of a task the
// later one counts, and the other is cancelled.
func (m *Machine) attemptReturned(w *worker, r TaskRef) {
	if other, ok := m.restart.returned[r.Task]; ok && other.attempt > uint32(r.Attempt) {
		m.emitTo(EffectCancel, w, r.Task, uint32(r.Attempt))
		return
	} else if ok {
		if o := m.workerOf(other.worker); o != nil {
			m.emitTo(EffectCancel, o, r.Task, other.attempt)
		}
	}
	m.restart.returned[r.Task] = returned{worker: w.id, attempt: uint32(r.Attempt)}
}

// forgetReturned removes the noted attempts of a worker, which reports them anew.
func (m *Machine) forgetReturned(w *worker) {
	// order-free: each is removed independently.
	for id, r := range m.restart.returned {
		if r.worker == w.id {
			delete(m.restart.returned, id)
		}
	}
}

// isReturned reports whether a report is about a noted attempt of its worker.
func (m *Machine) isReturned(w *worker, id ids.TaskID, attempt ids.Attempt) bool {
	r, ok := m.restart.returned[id]
	return ok && r.worker == w.id && r.attempt == uint32(attempt)
}

// resume lets a noted attempt go on at its worker, if that is possible.
func (m *Machine) resume(id ids.TaskID) {
	r := m.restart.returned[id]
	delete(m.restart.returned, id)
	w := m.workerOf(r.worker)
	b, t := m.lookup(id)
	if w == nil {
		return
	}
	if !m.mayReturn(b, t, ids.Attempt(r.attempt)) {
		m.emitTo(EffectCancel, w, id, r.attempt)
		return
	}
	m.dequeue(id, t)
	m.recordRerun(id, t)
	m.unpin(b, t)
	t.flags &^= flagBackoff
	m.setAttempt(id, t, r.attempt)
	m.enlist(id, b, t, w)
}

// inputsUnderWay reports whether each missing input of a task is being made.
func (m *Machine) inputsUnderWay(b *block, t *task) bool {
	for i := range b.edgesOf(t) {
		_, p := m.at(b.edges[t.edge+uint32(i)].input)
		if p.state != TaskSucceeded && !p.state.assigned() {
			return false
		}
	}
	return true
}

// startLeft starts a task whose object no worker has brought back, or that has not run before.
func (m *Machine) startLeft(id ids.TaskID, b *block, t *task) {
	if t.flags&flagPinned != 0 {
		m.recordRerun(id, t)
		m.unpin(b, t)
		m.totals.Recomputed++
	}
	switch spec := &m.ops[t.op].spec; {
	case t.state != TaskWaiting || spec.Kind == OpData:
	case m.isCopy(b, t):
		m.endings = append(m.endings, unwantedCopy(id)) // The order for which it was made is forgotten.
	default:
		m.start(id, b, t, retryNone, 0)
	}
}

// restartEnded lets noted attempts go on and begins to assign. Attempts are resumed in the order of
// their tasks, so that the makers of inputs mostly come first. One whose inputs nobody has or makes
// is cancelled; its task starts again when they exist.
func (m *Machine) restartEnded() {
	if !m.restart.running {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(m.restart.returned)) {
		if b, t := m.lookup(id); t != nil && t.missing > 0 && !m.inputsUnderWay(b, t) {
			r := m.restart.returned[id]
			delete(m.restart.returned, id)
			if w := m.workerOf(r.worker); w != nil {
				m.emitTo(EffectCancel, w, id, r.attempt)
			}
			continue
		}
		m.resume(id)
	}
	m.restart.running = false
	m.tasks.each(0, func(b *block) bool {
		for i := range b.tasks {
			if t := &b.tasks[i]; t.state == TaskWaiting {
				m.startLeft(ids.TaskID(b.number<<blockBits|uint64(i)), b, t)
			}
		}
		return true
	})
	until := m.now.Add(m.config.DataGrace)
	for _, id := range m.restart.data {
		if lost, ok := m.lostData[id]; ok {
			lost.until = until
			m.lostData[id] = lost
		}
	}
	m.arm(timer{at: until, kind: timerLostData})
	m.restart.returned, m.restart.data = nil, nil
}

// recordRerun reports that a task which is recorded to have succeeded runs again, because no worker
// has brought its object. Scattered bytes may still come.
func (m *Machine) recordRerun(id ids.TaskID, t *task) {
	if t.flags&flagPinned != 0 && m.ops[t.op].spec.Kind != OpData {
		m.putAgain(id, t)
	}
}
