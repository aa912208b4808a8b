package sched

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
	"github.com/millrace/millrace/server/copies"
)

// next returns the states that a state leads to; 0 stands for the submission. docs/states/task.md
// shows them.
func (s TaskState) next() []TaskState {
	switch s {
	case 0:
		return []TaskState{TaskWaiting}
	case TaskWaiting:
		return []TaskState{TaskReady, TaskAssigned, TaskSucceeded, TaskFailed, TaskCancelled, TaskReleased}
	case TaskReady:
		return []TaskState{TaskWaiting, TaskAssigned, TaskSucceeded, TaskFailed, TaskCancelled, TaskReleased}
	case TaskAssigned:
		return []TaskState{TaskWaiting, TaskReady, TaskRunning, TaskSucceeded, TaskFailed, TaskCancelled, TaskReleased}
	case TaskRunning:
		return []TaskState{TaskWaiting, TaskReady, TaskSucceeded, TaskFailed, TaskCancelled, TaskReleased}
	case TaskSucceeded:
		return []TaskState{TaskWaiting, TaskReleased, TaskRescuing}
	case TaskFailed, TaskCancelled:
		return []TaskState{TaskWaiting, TaskReleased}
	case TaskReleased:
		return []TaskState{TaskWaiting, TaskFailed, TaskCancelled}
	case TaskRescuing:
		return []TaskState{TaskSucceeded, TaskReleased}
	}
	return nil
}

// setState moves a task to another state and updates all counts by state.
func (m *Machine) setState(id ids.TaskID, t *task, to TaskState) {
	from := t.state
	if invariant.Enabled && from != to && !slices.Contains(from.next(), to) {
		panic(fmt.Sprintf("sched: task %s goes from %s to %s", id, from, to))
	}
	m.count(t, to)
	if to == TaskReady {
		t.readied = m.millis
	}
	m.history.add(m, id, from, to, t.attempt, t.worker)
	if m.copier.Copying() && !to.unended() {
		ended := copies.CopyEnded{Task: id}
		if err := m.errors[id]; err != nil {
			ended.Error = err.Message
		}
		m.tell(ended)
	}
}

// count sets the state of a task with all counts that follow from it.
func (m *Machine) count(t *task, to TaskState) {
	g := m.graphs[t.graph]
	p := &g.summaries[t.summary]
	from := t.state
	t.state = to
	g.counts[from]--
	g.counts[to]++
	p.Counts[from]--
	p.Counts[to]++
	m.totals.Counts[from]--
	m.totals.Counts[to]++
	if to == TaskAssigned && m.restart.attempts > 0 {
		g.endedBefore = time.Time{}
	}
	if from.unended() != to.unended() {
		if to.unended() {
			g.begin(1)
		} else {
			g.endOne()
		}
	}
	m.touch(t.graph, g)
}

// notify sends the task's state to the clients that hold the task.
func (m *Machine) notify(id ids.TaskID, b *block, t *task) {
	for i := t.holders; i != 0; i = b.links[i].next {
		if h := &m.holders[b.links[i].value]; h.kind == HolderClient {
			m.emit(Effect{Kind: EffectNotify, Task: id, Client: h.client, State: t.state, Attempt: ids.Attempt(t.attempt)})
		}
	}
}

func (m *Machine) notifyOne(id ids.TaskID, t *task, c ids.ClientID) {
	m.emit(Effect{Kind: EffectNotify, Task: id, Client: c, State: t.state, Attempt: ids.Attempt(t.attempt)})
}

// ended reports whether the task has an outcome to notify clients of.
func ended(s TaskState) bool { return s == TaskSucceeded || s == TaskFailed || s == TaskCancelled }

// activate counts the task as a user of its inputs; deactivate takes that back.
func (m *Machine) activate(b *block, t *task) {
	for i := range b.edgesOf(t) {
		_, p := m.at(b.edges[t.edge+uint32(i)].input)
		p.unfinished++
	}
}

func (m *Machine) deactivate(b *block, t *task) {
	edges := b.edgesOf(t)
	for i := range edges {
		id := edges[i].input
		_, p := m.at(id)
		if p.unfinished--; p.unfinished == 0 {
			m.reconsider(id, p)
		}
	}
}

// reconsider queues a task that is perhaps not wanted any more.
func (m *Machine) reconsider(id ids.TaskID, t *task) {
	if t.flags&flagSettling == 0 && !t.wanted() {
		t.flags |= flagSettling
		m.settling = append(m.settling, id)
	}
}
