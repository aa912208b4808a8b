package sched

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// A worker that is to leave gets no new tasks, gives back the tasks that it has not begun, and
// finishes those that run. Meanwhile other workers copy the wanted objects that only it has. Each
// copy is a task of its own, with the object as its input. The task is sent to one worker, which
// fetches the object as it fetches all inputs, once it has room (Law 5). So copies are retried,
// cancelled and explained like other tasks. The worker is told that it may leave when no such
// object is left, or when no worker can take the rest.

const (
	// leaveEvery is the shortest time between two checks whether a worker may leave. Each of its
	// objects adds a microsecond, because a check visits all of them.
	leaveEvery = 10 * time.Millisecond
	// maxCopies bounds the copies under way to one worker. maxCopyTries bounds the tries for one
	// object.
	maxCopies    = 64
	maxCopyTries = 3
)

// leaving is the state of a worker's departure.
type leaving struct {
	// copies are the objects that are being copied or still have to be copied.
	copies map[ids.TaskID]*copying
	// announced means that EffectDrained was sent.
	announced bool
}

// copying is the copy of one object that only the leaving worker has.
type copying struct {
	task  ids.TaskID   // the last task that copies it; 0: none yet
	to    ids.WorkerID // the worker of that task
	tries int
}

// copyOp is an op that does nothing. After it has run, its inputs are at its worker.
const copyOp = "core.replicate"

// target is a worker that may take copies.
type target struct {
	*worker
	free   float64 // free bytes, as far as is known
	copies int     // copies under way
}

// leaveDue orders the copies that are missing, and tells the worker that it may leave if nothing is
// left to wait for. Otherwise it sets a timer for the next check.
func (m *Machine) leaveDue(id ids.WorkerID) {
	w := m.workerOf(id)
	if w == nil || w.state != WorkerStateDraining || w.leaving == nil || w.leaving.announced {
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
		w.leaving.announced = true
		m.emit(Effect{Kind: EffectDrained, Worker: w.id})
		return
	}
	m.arm(timer{at: m.now.Add(leaveEvery + time.Duration(w.objects.count)*time.Microsecond), kind: timerLeave, id: uint64(w.id)})
}

// isolated reports whether an object is wanted and has no replica on an active worker. An object
// that the scheduler holds inline is not isolated.
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

// underCopy returns the task that is copying an object now; nil if there is none.
func (m *Machine) underCopy(c *copying) *task {
	if _, t := m.lookup(c.task); t != nil && t.state.active() {
		return t
	}
	return nil
}

func (m *Machine) stopCopy(c *copying) {
	if m.underCopy(c) != nil {
		m.endings = append(m.endings, ending{task: c.task, state: TaskCancelled, err: cancelError("the copy is there, or is not wanted any more")})
	}
}

// abandonCopy gives up a copy whose worker is lost or is not active any more. Its task may run at
// no other worker and would wait for ever. This says nothing about the object, so it does not count
// as a try.
func (m *Machine) abandonCopy(c *copying) {
	to := m.workerOf(c.to)
	if m.underCopy(c) == nil || to != nil && to.state == WorkerStateActive {
		return
	}
	m.endings = append(m.endings, ending{task: c.task, state: TaskCancelled, err: cancelError("the worker that was to copy it is not there any more")})
	c.task, c.to = 0, 0
	c.tries--
}

// copyTargets lists the workers that may take copies, with their free memory and the copies under
// way to them.
func (m *Machine) copyTargets(l *leaving) []target {
	var targets []target
	for _, w := range m.order {
		if w.state == WorkerStateActive && slices.Contains(w.executors, "native") {
			free := math.Inf(1)
			if w.memory > 0 {
				free = float64(w.memory) - float64(w.memoryUsed) - float64(w.fetchingBytes)
			}
			targets = append(targets, target{worker: w, free: free})
		}
	}
	// order-free: the copies are only counted.
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

// takeRoom picks the worker with the most free memory for an object. A worker without enough free
// memory is allowed: it makes room by spilling. possible reports whether some worker could take the
// object now or later.
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

// copyTo makes a worker fetch an object by a new task. The task is assigned at once even if the
// worker is busy: only the fetch matters, and inputs are fetched while other tasks run.
func (m *Machine) copyTo(to, from *worker, c *copying, id ids.TaskID, b *block, t *task) {
	m.copied++
	result, err := m.submit(GraphSubmitted{
		Namespace: m.graphs[t.graph].ns.name, Name: "copy for the leave of " + from.name,
		Ops:     []OpSpec{{Kind: OpNative, Name: copyOp}},
		Options: []Options{{Workers: []WorkerSelector{{Worker: to.id}}, Priority: math.MaxInt16}},
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
