package sched

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// What cannot be fetched is mended from both ends. An object that was not to be had from a worker several times is given up
// there, to be made again at another one; and a task does not go again where its inputs did not come, if it may go elsewhere.
// When neither end may move, as with two tasks that must run on two workers that do not reach each other, the one that reads
// fails.

const (
	// maxUnread is after how many failed fetches an object is no longer expected from a worker.
	maxUnread = 3
	// maxBlind is after how many failed attempts a task gives up to read an input at a worker where it has to be.
	maxBlind = 24
)

// unread counts how often an object could not be fetched from a worker.
type unread struct {
	worker ids.WorkerID
	times  int
}

// blind counts how often a task could not fetch an input from one worker at another one.
type blind struct {
	source, reader ids.WorkerID
	input          ids.TaskID
	times          int
}

// unreadAt is how often the task's object could not be fetched from a worker.
func (tr *trouble) unreadAt(at ids.WorkerID) int {
	for _, u := range tr.unread {
		if u.worker == at {
			return u.times
		}
	}
	return 0
}

// blindAt is how often the task could not fetch an input from one worker at another one.
func (tr *trouble) blindAt(source, reader ids.WorkerID, input ids.TaskID) int {
	for _, p := range tr.blind {
		if p.source == source && p.reader == reader && p.input == input {
			return p.times
		}
	}
	return 0
}

// countUnread counts a failed fetch of the task's object from a worker.
func (m *Machine) countUnread(id ids.TaskID, t *task, at ids.WorkerID) int {
	if m.workerOf(at) == nil {
		return 0
	}
	tr := m.troubleOf(id, t)
	for i := range tr.unread {
		if tr.unread[i].worker == at {
			tr.unread[i].times++
			return tr.unread[i].times
		}
	}
	tr.unread = append(tr.unread, unread{at, 1})
	return 1
}

// countBlind counts what an attempt could not fetch at a reader.
func (m *Machine) countBlind(unreachable []Unreachable, id ids.TaskID, t *task, reader ids.WorkerID) {
	tr := m.troubleOf(id, t)
	for _, u := range unreachable {
		for _, source := range u.FailedAt {
			if m.workerOf(source) == nil {
				continue
			}
			i := slices.IndexFunc(tr.blind, func(p blind) bool { return p.source == source && p.reader == reader && p.input == u.Task })
			if i < 0 {
				i = len(tr.blind)
				tr.blind = append(tr.blind, blind{source: source, reader: reader, input: u.Task})
			}
			tr.blind[i].times++
		}
	}
}

// inVain says whether a task need not be tried at a worker: one of its inputs is nowhere but where it could not be fetched
// from so many times.
func (m *Machine) inVain(tr *trouble, b *block, t *task, at *worker, times int) bool {
	if !slices.ContainsFunc(tr.blind, func(p blind) bool { return p.reader == at.id && p.times >= times }) {
		return false
	}
	edges := b.edgesOf(t)
	for i := range edges {
		in := edges[i].input
		pb, p := m.at(in)
		if p.replicas == 0 || at.objects.has(in) || pb.inlineOf(uint64(in&blockMask)) != nil {
			continue
		}
		reached := false
		for l := p.replicas; l != 0; l = pb.links[l].next {
			reached = reached || tr.blindAt(m.workers[pb.links[l].value].id, at.id, in) < times
		}
		if !reached {
			return true
		}
	}
	return false
}

// usable leaves those workers out at which a task would be in vain: its object could not be fetched from there before, and made
// there again it would be no easier to reach; or its inputs could not be fetched there. A wish for certain workers ends
// where only others are left. Where none is, the task may go to any at which it has not failed for good; there may be none.
func (m *Machine) usable(c *class, from []*worker, id ids.TaskID, b *block, t *task, fits func(*worker) bool) []*worker {
	tr := m.troubleIf(id, t)
	if tr == nil || len(tr.unread) == 0 && len(tr.blind) == 0 {
		return from
	}
	for _, among := range [][]*worker{from, c.others} {
		left := slices.DeleteFunc(slices.Clone(among), func(w *worker) bool {
			return tr.unreadAt(w.id) >= maxUnread || m.inVain(tr, b, t, w, maxUnread)
		})
		if slices.ContainsFunc(left, fits) {
			return left
		}
	}
	return slices.DeleteFunc(slices.Clone(from), func(w *worker) bool { return m.inVain(tr, b, t, w, maxBlind) })
}

// elsewhere says whether an object that cannot be fetched could be made again at another worker.
func (m *Machine) elsewhere(id ids.TaskID, b *block, t *task) bool {
	if m.ops[t.op].spec.Kind == OpData {
		return false
	}
	tr := m.troubleOf(id, t)
	other := func(w *worker) bool { return tr.unreadAt(w.id) < maxUnread && m.memoryFits(w, b, t) }
	c := m.classes[t.class]
	return slices.ContainsFunc(m.feasible(c), other) || slices.ContainsFunc(c.others, other)
}

// unreachableError is why a task fails for which no worker is usable.
func (m *Machine) unreachableError(id ids.TaskID, b *block, t *task) *TaskError {
	key := string(b.keyOf(t))
	e := &TaskError{Reason: "INPUT_UNREACHABLE", OriginKey: key, Attempt: ids.Attempt(t.attempt)}
	name := func(id ids.WorkerID) string {
		if w := m.workerOf(id); w != nil {
			return w.name
		}
		return id.String()
	}
	for _, p := range m.trouble[id].blind {
		if p.times < maxBlind {
			continue
		}
		input := p.input.String()
		if ib, it := m.lookup(p.input); it != nil {
			input = string(ib.keyOf(it))
		}
		e.Worker = name(p.reader)
		e.Message = fmt.Sprintf("task %s: worker %s could not fetch input %s from worker %s in %d attempts, and neither can be anywhere else; look at the network between them (`millrace topo`), or relax the tasks' constraints, then retry the task",
			key, e.Worker, input, name(p.source), p.times)
	}
	return e
}
