package sched

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// A worker that is to leave gets nothing new, gives back what it has not begun, and finishes what it runs. Meanwhile
// other workers copy the wanted objects that only it has: each copy is a task of its own that takes the object as its
// input and is sent to one worker, which fetches it as it fetches all inputs, once it has room (law 5). So copies are
// retried, cancelled and explained like other tasks. When it has no such object any more, or no worker can take the
// rest, the worker is told that it may leave.

const (
	// leaveEvery is how often it is looked whether a worker may leave, at most; each of its objects adds a microsecond.
	leaveEvery = 10 * time.Millisecond
	// maxCopies bounds the copies on their way to one worker, and maxCopyTries how often one object is tried.
	maxCopies    = 64
	maxCopyTries = 3
)

// leaving is what is known of the departure of a worker.
type leaving struct {
	// copies are the objects that are, or were, to be copied.
	copies map[ids.TaskID]*copying
	// told: it knows that it may leave.
	told bool
}

// copying is one object that only the worker has.
type copying struct {
	task  ids.TaskID   // that copies it last; 0: none yet
	to    ids.WorkerID // where that task is sent
	tries int
}

// copyOp is the op that does nothing: where it runs its inputs are.
const copyOp = "core.replicate"

// target is a worker that may take copies.
type target struct {
	*worker
	free   float64 // bytes, as far as is known
	copies int     // on their way
}

// leaveDue orders the copies that are missing, and lets the worker go if nothing holds it.
func (m *Machine) leaveDue(id ids.WorkerID) {
	w := m.workerOf(id)
	if w == nil || w.state != WorkerStateDraining || w.leaving == nil || w.leaving.told {
		return
	}
	holds := w.assigned
	targets := m.copyTargets(w.leaving)
	for _, id := range w.objects.members(nil) {
		b, t := m.at(id)
		c := w.leaving.copies[id]
		if !m.isolated(id, b, t) {
			if c != nil {
				m.stopCopy(c)
				delete(w.leaving.copies, id)
			}
			continue
		}
		if c == nil {
			c = &copying{}
			w.leaving.copies[id] = c
		}
		m.abandonCopy(c)
		if m.underCopy(c) != nil {
			holds++
			continue
		}
		if c.tries >= maxCopyTries || m.config.NoCopies {
			continue
		}
		to, possible := takeRoom(targets, t.output)
		if possible {
			holds++
		}
		if to != nil {
			m.copyTo(to, w, c, id, b, t)
		}
	}
	if holds == 0 {
		w.leaving.told = true
		m.emit(Effect{Kind: EffectDrained, Worker: w.id})
		return
	}
	m.arm(timer{at: m.now.Add(leaveEvery + time.Duration(w.objects.count)*time.Microsecond), kind: timerLeave, id: uint64(w.id)})
}

// isolated says whether an object is wanted and only workers that leave have it. An object whose bytes the scheduler
// holds is not isolated.
func (m *Machine) isolated(id ids.TaskID, b *block, t *task) bool {
	if t.state != TaskSucceeded || !t.wanted() || b.inlineOf(uint64(id&blockMask)) != nil {
		return false
	}
	for l := t.replicas; l != 0; l = b.links[l].next {
		if m.workers[b.links[l].value].state == WorkerStateActive {
			return false
		}
	}
	return true
}

// underCopy is the task that copies an object now, or nil.
func (m *Machine) underCopy(c *copying) *task {
	if _, t := m.lookup(c.task); t != nil && t.state.active() {
		return t
	}
	return nil
}

func (m *Machine) stopCopy(c *copying) {
	if m.underCopy(c) != nil {
		m.doomed = append(m.doomed, doom{task: c.task, state: TaskCancelled, err: cancelError("the copy is there, or is not wanted any more")})
	}
}

// abandonCopy gives up a copy whose worker has gone, or is to leave itself: its task may run nowhere else, and would wait for ever. That
// says nothing of the object, so it does not count as a try.
func (m *Machine) abandonCopy(c *copying) {
	to := m.workerOf(c.to)
	if m.underCopy(c) == nil || to != nil && to.state == WorkerStateActive {
		return
	}
	m.doomed = append(m.doomed, doom{task: c.task, state: TaskCancelled, err: cancelError("the worker that was to copy it is not there any more")})
	c.task, c.to = 0, 0
	c.tries--
}

// copyTargets lists the workers that may take copies.
func (m *Machine) copyTargets(l *leaving) []target {
	var targets []target
	for _, w := range m.order {
		if w.state == WorkerStateActive && slices.Contains(w.executors, "native") {
			free := math.Inf(1)
			if w.memory > 0 {
				free = float64(w.memory) - float64(w.memoryUsed) - float64(w.comingBytes)
			}
			targets = append(targets, target{worker: w, free: free})
		}
	}
	// order-free: they are counted.
	for _, c := range l.copies {
		t := m.underCopy(c)
		for i := range targets {
			if t != nil && t.worker == targets[i].slot+1 {
				targets[i].copies++
			}
		}
	}
	return targets
}

// takeRoom picks the worker with the most free memory for an object; one without enough makes room, by spilling. possible says whether
// some worker could have it, now or later.
func takeRoom(targets []target, bytes uint64) (to *worker, possible bool) {
	best := -1
	for i := range targets {
		t := &targets[i]
		if t.memory > 0 && bytes > t.memory {
			continue
		}
		possible = true
		if t.copies < maxCopies && (best < 0 || t.free > targets[best].free) {
			best = i
		}
	}
	if best < 0 {
		return nil, possible
	}
	targets[best].copies++
	targets[best].free -= float64(bytes)
	return targets[best].worker, true
}

// copyTo has a worker fetch an object. The task goes there at once, whatever else is there: it is the fetch that counts, and inputs
// are fetched while other tasks run.
func (m *Machine) copyTo(to, from *worker, c *copying, id ids.TaskID, b *block, t *task) {
	m.copied++
	result, err := m.submit(GraphSubmitted{
		Namespace: m.graphs[t.graph].ns.name, Name: "copy for the leave of " + from.name,
		Ops:     []OpSpec{{Kind: OpNative, Name: copyOp}},
		Options: []Options{{Workers: []string{to.id.String()}, Priority: math.MaxInt16}},
		Tasks:   []TaskSpec{{Key: fmt.Sprintf("millrace.copy/%d", m.copied), Options: 1, Inputs: []string{string(b.keyOf(t))}, Hold: true}},
	})
	c.tries++
	if err != nil {
		return
	}
	c.task, c.to = result.Tasks[0], to.id
	if cb, ct := m.at(c.task); ct.state == TaskReady {
		m.assign(c.task, cb, ct, to)
	}
}
