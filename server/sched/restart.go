package sched

import (
	"fmt"
	"math"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// A restart brings the machine back from the journal (ADR 24), in three parts:
//
//  1. RestartBegan. Then the machine gets the recorded events, with the times at which they
//     happened first. There are no workers, so nothing is assigned.
//  2. RecordsReplayed. Then the machine waits for the workers that were known. Old tasks stand by:
//     a worker that is not back may run them, or have their objects. They are WAITING and are not
//     assigned. An object that a worker has completes its task, and attempts that a worker still
//     has are noted in returned. New tasks are assigned as soon as their inputs exist.
//  3. RestartEnded. The noted attempts go on where they are, and all tasks that are left are
//     assigned again.
//
// A recorded submission that is refused now, for whatever reason, stops no start: its tasks fail
// (GraphUnrestored).
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

// RestartBegan means that recorded events follow.
type RestartBegan struct{}

// RecordsReplayed means that all recorded events were given. Now the workers come back.
type RecordsReplayed struct {
	// Restarts counts the restarts of the scheduler with this journal, including this one.
	Restarts uint64
}

// RestartEnded means that all workers that were known are back or lost.
type RestartEnded struct{}

// TaskEnded is the recorded end of a task: SUCCEEDED or FAILED, by this attempt. WAITING means that
// the task runs again, because its object was lost or nobody had wanted it.
type TaskEnded struct {
	Task    ids.TaskID
	Attempt ids.Attempt
	State   TaskState
	// Err is set if the state is FAILED.
	Err *TaskError
}

// GraphUnrestored is a recorded submission that is refused now. Its new tasks fail with the cause.
type GraphUnrestored struct {
	GraphSubmitted
	Cause string
}

func (RestartBegan) event()    {}
func (RecordsReplayed) event() {}
func (RestartEnded) event()    {}
func (TaskEnded) event()       {}
func (GraphUnrestored) event() {}

// restart is the state of a restart.
type restart struct {
	// running means that old tasks are not assigned; replaying, that events are recorded ones,
	// which were accepted before and are accepted again.
	running, replaying bool
	// first is the number from which on tasks are new, once the records are replayed.
	first ids.TaskID
	// unrestored are the tasks of refused submissions. Their recorded ends do not count.
	unrestored map[ids.TaskID]struct{}
	// attempts is the number after which new attempts are numbered: 0 before the first restart.
	attempts uint32
	// returned are attempts that workers still have. They are resumed at their next report, or when
	// the restart ends.
	returned map[ids.TaskID]returned
	// data are the scattered objects that were there before the restart.
	data []ids.TaskID
}

// returned is an attempt that a worker has brought back.
type returned struct {
	worker  ids.WorkerID
	attempt uint32
}

func (m *Machine) restartBegan() {
	m.restart.running, m.restart.replaying = true, true
	m.restart.returned = make(map[ids.TaskID]returned)
	m.restart.unrestored = make(map[ids.TaskID]struct{})
}

// standsBy reports whether a task is not to be assigned yet: it is older than the restart, and not
// all workers are back that may have it.
func (m *Machine) standsBy(id ids.TaskID) bool {
	return m.restart.running && (m.restart.replaying || id < m.restart.first)
}

// recordsReplayed leaves the gaps in the numbers.
func (m *Machine) recordsReplayed(ev RecordsReplayed) {
	m.restart.replaying = false
	m.restart.attempts = uint32(min(ev.Restarts*restartAttempts, math.MaxUint32-restartAttempts))
	m.skipTo((m.nextID + restartTasks) | blockMask + 1)
	m.restart.first = m.nextID
	// order-free: each lease is extended independently.
	for _, c := range m.clients {
		c.expires = m.now.Add(c.ttl)
	}
}

// NextTask returns the number that the next new task gets.
func (m *Machine) NextTask() ids.TaskID { return m.nextID }

// skipTo gives up the numbers of tasks before one.
func (m *Machine) skipTo(next ids.TaskID) {
	if next <= m.nextID {
		return
	}
	if b := m.current; b != nil && uint64(next)>>blockBits != b.number {
		m.retireCurrent()
	}
	m.nextID = next
}

// taskEnded notes a recorded end. A task that has succeeded stays WAITING or READY, in the attempt
// that made its object, until a worker brings the object.
func (m *Machine) taskEnded(ev TaskEnded) {
	b, t := m.lookup(ev.Task)
	if _, unrestored := m.restart.unrestored[ev.Task]; t == nil || unrestored {
		return
	}
	if ev.State == TaskWaiting {
		if t.flags&flagPinned != 0 && t.state.active() {
			m.unpin(b, t)
			m.start(ev.Task, b, t, retryNone, 0) // An input may have been cancelled.
		}
		return
	}
	if ev.State == TaskFailed {
		if t.state.active() {
			t.attempt = max(t.attempt, uint32(ev.Attempt))
			if ev.Err == nil {
				// It was forgotten in the step in which it failed.
				ev.Err = &TaskError{Reason: "UNKNOWN", OriginKey: string(b.keyOf(t)), Message: "it failed before the scheduler was started again, and nothing needed it"}
			}
			m.end(ev.Task, b, t, TaskFailed, ev.Err)
		}
		return
	}
	if t.state == TaskFailed || t.state == TaskCancelled {
		// It was under way when its input failed, and has succeeded nevertheless.
		m.clearTrouble(ev.Task, t)
		m.setState(ev.Task, t, TaskWaiting)
		m.activate(b, t)
		m.start(ev.Task, b, t, retryNone, 0)
	}
	if !t.state.active() {
		return
	}
	t.attempt = max(t.attempt, uint32(ev.Attempt))
	t.flags &^= flagRunHold
	if t.undone() {
		t.flags |= flagPinned
		m.deactivate(b, t)
	}
	if m.ops[t.op].spec.Kind == OpData {
		m.lostData[ev.Task] = lostData{name: "unknown", cause: "the scheduler was started again, and no worker brought them back", until: m.now.Add(1000 * time.Hour)}
		m.restart.data = append(m.restart.data, ev.Task)
	}
	m.reconsider(ev.Task, t)
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
	t.attempt = r.attempt
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
	if t.state == TaskWaiting && m.ops[t.op].spec.Kind != OpData {
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
	for _, id := range sortedKeys(m.restart.returned) {
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
	m.restart.returned, m.restart.unrestored, m.restart.data = nil, nil, nil
}

func differs(format string, args ...any) *Error {
	return invalid("tasks", "it comes out differently: "+format, args...)
}

// graphUnrestored makes the new tasks of a refused submission, as scattered data, which nothing can
// compute, and fails them. Joined tasks that are known are held.
func (m *Machine) graphUnrestored(ev GraphUnrestored) *Error {
	ns, holder := m.namespaces[ev.Namespace], uint32(0)
	if ev.Client != 0 {
		c := m.clients[ev.Client]
		if c == nil {
			return unknownClient(ev.Client) // Nobody is left who could ask for the tasks.
		}
		ns, holder = c.ns, c.holder
	}
	find := func(key string) ids.TaskID {
		if ns == nil {
			return 0
		}
		return ns.keys.find(m, key, hashKey(key))
	}
	lost := ev.GraphSubmitted
	lost.RequestID, lost.Options, lost.EndTask = "", nil, 0
	if g := m.graphOf(lost.Graph); lost.Graph != 0 && (g == nil || g.dropped || g.client != ev.Client) {
		lost.Graph, lost.NewGraph = 0, lost.Graph
	}
	if m.graphOf(lost.NewGraph) != nil {
		lost.NewGraph = 0
	}
	lost.Ops = make([]OpSpec, len(ev.Ops))
	for i := range ev.Ops {
		lost.Ops[i] = OpSpec{Kind: OpData, Name: ev.Ops[i].Name}
	}
	lost.Tasks, lost.Recorded = nil, []ids.TaskID{}
	var joined []ids.TaskID
	next := ev.FirstTask
	for i := range ev.Tasks {
		spec := TaskSpec{Key: ev.Tasks[i].Key, Op: ev.Tasks[i].Op, Hold: ev.Tasks[i].Hold}
		known := find(spec.Key)
		number := known
		if ev.Recorded != nil {
			number = ev.Recorded[i]
		} else if known == 0 && next < ev.EndTask {
			number = next
			next++
		}
		if number < ev.FirstTask {
			if _, t := m.lookup(number); t != nil && spec.Hold {
				joined = append(joined, number)
			}
			continue
		}
		if known != 0 {
			spec.Key = fmt.Sprintf("%.1000s (%s)", spec.Key, number)
		}
		lost.Tasks, lost.Recorded = append(lost.Tasks, spec), append(lost.Recorded, number)
	}
	result, err := m.submit(lost)
	if err != nil {
		return err
	}
	if ev.RequestID != "" {
		request := requestKey{ev.Client, "", ev.RequestID}
		if ev.Client == 0 {
			request.namespace = ev.Namespace
		}
		m.requests.add(request, answered{SubmitResult{Graph: result.Graph, Tasks: ev.Recorded}, bodyOf(&ev.GraphSubmitted)})
	}
	if holder == 0 {
		holder = m.graphOf(result.Graph).holder
	}
	if holder != 0 {
		m.holdAll(holder, joined)
	}
	for i, id := range result.Tasks {
		m.restart.unrestored[id] = struct{}{}
		b, t := m.at(id)
		m.end(id, b, t, TaskFailed, &TaskError{Reason: "OBJECT_LOST", OriginKey: lost.Tasks[i].Key, Message: fmt.Sprintf(
			"task %s was accepted before the scheduler was started again, and cannot be brought back: %s; release it, and submit it again", lost.Tasks[i].Key, ev.Cause)})
	}
	return nil
}

// recordEnd reports the end of a task for the journal, or that an ended task runs again.
func (m *Machine) recordEnd(id ids.TaskID, t *task) {
	if m.config.RecordEnds && (t.state == TaskSucceeded || t.state == TaskFailed || t.state == TaskWaiting) {
		m.emit(Effect{Kind: EffectTaskEnded, Task: id, Attempt: ids.Attempt(t.attempt), State: t.state})
	}
}

// recordRerun records that a task which is recorded to have succeeded runs again, because no worker
// has brought its object.
func (m *Machine) recordRerun(id ids.TaskID, t *task) {
	if m.config.RecordEnds && t.flags&flagPinned != 0 {
		m.emit(Effect{Kind: EffectTaskEnded, Task: id, Attempt: ids.Attempt(t.attempt), State: TaskWaiting})
	}
}
