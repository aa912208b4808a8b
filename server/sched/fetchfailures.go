package sched

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// When a fetch fails, the fault may be at the source or at the reader, so the scheduler changes
// both. An object whose fetch from one worker failed several times is given up there, and made
// again at another worker; if the worker's session has just broken, not before it is clear whether
// the worker died. And a task is not sent again to a worker where its inputs could not be
// fetched, if another worker is possible. If neither can move (two tasks that must run on two
// workers that cannot reach each other), the reading task fails.

const (
	// maxSourceFailures is the number of failed fetches after which an object is given up at a
	// worker.
	maxSourceFailures = 3
	// maxInputFailures is the number of failed attempts after which a task gives up an input that
	// it can only read at one worker.
	maxInputFailures = 24
)

// countSourceFailure counts a failed fetch of the task's object from a worker, and returns the new
// count. A worker that is gone counts as 0.
func (m *Machine) countSourceFailure(id ids.TaskID, t *task, at ids.WorkerID) int {
	if m.workerOf(at) == nil {
		return 0
	}
	tr := m.troubleOf(id, t)
	for i := range tr.sourceFailures {
		if tr.sourceFailures[i].worker == at {
			tr.sourceFailures[i].times++
			return tr.sourceFailures[i].times
		}
	}
	tr.sourceFailures = append(tr.sourceFailures, sourceFailure{at, 1})
	return 1
}

// mayHaveDied says whether a worker's session broke so recently that the report of its death may
// still come. Its objects are not given up before that, because survivors may be able to copy them
// (see server/copies). The wait is bounded by RescueTimeout, since the worker may only be cut off.
func (m *Machine) mayHaveDied(id ids.WorkerID) bool {
	w := m.workerOf(id)
	return w != nil && w.state == WorkerStateDisconnected && m.now.Sub(w.disconnectedAt) < m.config.RescueTimeout
}

// countInputFailures counts the failed fetches of one attempt at a reader.
func (m *Machine) countInputFailures(unreachable []Unreachable, id ids.TaskID, t *task, reader ids.WorkerID) {
	tr := m.troubleOf(id, t)
	for _, u := range unreachable {
		for _, source := range u.FailedAt {
			if m.workerOf(source) == nil {
				continue
			}
			i := slices.IndexFunc(tr.inputFailures, func(p inputFailure) bool { return p.source == source && p.reader == reader && p.input == u.Task })
			if i < 0 {
				i = len(tr.inputFailures)
				tr.inputFailures = append(tr.inputFailures, inputFailure{source: source, reader: reader, input: u.Task})
			}
			tr.inputFailures[i].times++
		}
	}
}

// wouldFail reports whether an attempt at a worker would fail for certain: one of its inputs exists
// only at holders from which this worker has failed to fetch it at least the given number of times.
func (m *Machine) wouldFail(tr *trouble, b *block, t *task, at *worker, times int) bool {
	if !slices.ContainsFunc(tr.inputFailures, func(p inputFailure) bool { return p.reader == at.id && p.times >= times }) {
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
			reached = reached || tr.inputFailuresAt(m.workers[pb.links[l].value].id, at.id, in) < times
		}
		if !reached {
			return true
		}
	}
	return false
}

// usable returns the workers of from at which an attempt makes sense. It leaves out a worker if the
// task's object could not be fetched from there before (made there again, it would be no easier to
// reach), or if the task's inputs could not be fetched there. If no preferred worker is left, it
// returns the others of the class. If those are also useless, it returns the workers at which the
// task has not failed maxInputFailures times; there may be none.
func (m *Machine) usable(c *class, from []*worker, id ids.TaskID, b *block, t *task, fits func(*worker) bool) []*worker {
	tr := m.troubleIf(id, t)
	if tr == nil || len(tr.sourceFailures) == 0 && len(tr.inputFailures) == 0 {
		return from
	}
	for _, among := range [][]*worker{from, c.others} {
		left := slices.DeleteFunc(slices.Clone(among), func(w *worker) bool {
			return tr.sourceFailuresAt(w.id) >= maxSourceFailures || m.wouldFail(tr, b, t, w, maxSourceFailures)
		})
		if slices.ContainsFunc(left, fits) {
			return left
		}
	}
	return slices.DeleteFunc(slices.Clone(from), func(w *worker) bool { return m.wouldFail(tr, b, t, w, maxInputFailures) })
}

// otherPlace reports whether an object that cannot be fetched could be made again at another
// worker.
func (m *Machine) otherPlace(id ids.TaskID, b *block, t *task) bool {
	if m.ops[t.op].spec.Kind == OpData {
		return false
	}
	tr := m.troubleOf(id, t)
	other := func(w *worker) bool { return tr.sourceFailuresAt(w.id) < maxSourceFailures && m.memoryFits(w, b, t) }
	c := m.classes[t.class]
	return slices.ContainsFunc(m.feasible(c), other) || slices.ContainsFunc(c.others, other)
}

// unreachableError is the error of a task that has no usable worker.
func (m *Machine) unreachableError(id ids.TaskID, b *block, t *task) *TaskError {
	key := string(b.keyOf(t))
	e := &TaskError{Reason: "INPUT_UNREACHABLE", OriginKey: key, Attempt: ids.Attempt(t.attempt)}
	name := func(id ids.WorkerID) string {
		if w := m.workerOf(id); w != nil {
			return w.name
		}
		return id.String()
	}
	for _, p := range m.trouble[id].inputFailures {
		if p.times < maxInputFailures {
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
