package sched

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// The machine copies an object to a chosen worker when its only holder is to leave (drain.go). Each
// copy is a task of its own, with the object as its input. The task is sent to that worker, which
// fetches the object as it fetches all inputs, once it has room: bytes are never sent to a worker
// that has not asked for them. So copies are retried, cancelled and explained like other tasks.

const (
	// maxCopies bounds the copies under way to one worker.
	maxCopies = 64
	// maxCopyTries bounds the failed copies of one object before the machine waits for copyRetry.
	maxCopyTries = 3
	copyRetry    = 30 * time.Second
)

// copyOp is an op that does nothing. After it has run, its inputs are at its worker.
const copyOp = "core.replicate"

// copying is the wish to have one more copy of an object.
type copying struct {
	object ids.TaskID
	task   ids.TaskID   // the last task that copies it; 0: none yet
	to     ids.WorkerID // the worker of that task
	tries  int          // copies that failed in a row
	// why is the error of the last failed copy. again is when the next one may start after too many
	// failures.
	why   string
	again time.Time
}

// target is a worker that may take copies.
type target struct {
	*worker
	free   float64 // bytes that are free or can be made free, as far as is known
	copies int     // copies under way
}

// underCopy reports whether a task is copying the object now.
func (m *Machine) underCopy(c *copying) bool {
	_, t := m.lookup(c.task)
	return t != nil && t.state.active()
}

// stopCopy forgets the current task of a copy. If the task has not ended, it is dropped.
func (m *Machine) stopCopy(c *copying) {
	if m.copies[c.task] != c {
		return
	}
	delete(m.copies, c.task)
	if m.copyOf[c.object] == c {
		delete(m.copyOf, c.object)
	}
	_, t := m.at(c.task)
	m.copied = append(m.copied, m.graphs[t.graph].id)
}

// abandonCopy gives up a copy whose worker is lost or is not active any more. Its task may run at
// no other worker and would wait for ever. This says nothing about the object, so it does not count
// as a failure.
func (m *Machine) abandonCopy(c *copying) {
	to := m.workerOf(c.to)
	if !m.underCopy(c) || to != nil && to.state == WorkerStateActive {
		return
	}
	m.stopCopy(c)
	c.task, c.to = 0, 0
}

// copyEnded handles the end of a task that copies an object.
func (m *Machine) copyEnded(id ids.TaskID) {
	c := m.copies[id]
	if c == nil {
		return
	}
	m.stopCopy(c)
	why := "the worker has not reported it"
	if err := m.errors[id]; err != nil {
		why = err.Message
	}
	// If the worker does report it, the object needs no further copy, and this is forgotten.
	c.failed(m.now, fmt.Sprintf("the last at %s: %s", m.nameOf(c.to), why))
	m.checkWaitingDrains()
	m.moveChanged(c.object)
}

// failed counts a copy that did not succeed.
func (c *copying) failed(now time.Time, why string) {
	c.why = why
	if c.tries++; c.tries >= maxCopyTries {
		c.again = now.Add(copyRetry)
	}
}

// nameOf returns a worker's name, or its number if it is lost.
func (m *Machine) nameOf(id ids.WorkerID) string {
	if w := m.workerOf(id); w != nil {
		return w.name
	}
	return id.String()
}

// copyTargets lists the workers that may take copies, with their room and the copies under way to
// them.
func (m *Machine) copyTargets() []target {
	var targets []target
	for _, w := range m.order {
		if w.state == WorkerStateActive && slices.Contains(w.executors, "native") {
			targets = append(targets, target{worker: w, free: w.room()})
		}
	}
	// order-free: the copies are only counted.
	for id := range m.copies {
		if _, t := m.lookup(id); t != nil && t.worker != 0 {
			for i := range targets {
				if t.worker == targets[i].slot+1 {
					targets[i].copies++
				}
			}
		}
	}
	return targets
}

// takeRoom picks the worker with the most room for an object. If none has room, why says so, and
// ever reports whether one could have room at another time. If to is nil and why is empty, all that
// have room are busy with other copies.
func takeRoom(targets []target, bytes uint64) (to *worker, why string, ever bool) {
	best, most, largest := -1, -1, -1
	room := false
	for i := range targets {
		t := &targets[i]
		if largest < 0 || t.memory == 0 || targets[largest].memory > 0 && t.memory > targets[largest].memory {
			largest = i
		}
		if most < 0 || t.free > targets[most].free {
			most = i
		}
		if t.free < float64(bytes) {
			continue
		}
		room = true
		if t.copies < maxCopies && (best < 0 || t.free > targets[best].free) {
			best = i
		}
	}
	switch {
	case best >= 0:
		targets[best].copies++
		targets[best].free -= float64(bytes)
		return targets[best].worker, "", true
	case room:
		return nil, "", true
	case largest < 0:
		return nil, "no other worker is active", false
	case targets[largest].memory > 0 && targets[largest].memory < bytes:
		return nil, fmt.Sprintf("it has %d bytes, and the largest other worker, %s, has %d bytes of memory", bytes, targets[largest].name, targets[largest].memory), false
	}
	return nil, fmt.Sprintf("it has %d bytes, and the worker with the most room, %s, has room for %.0f", bytes, targets[most].name, max(targets[most].free, 0)), true
}

// dropCopied drops the graphs of copies that have ended or are not wanted. The result of a copy is
// not wanted: only the replica of its input is. A client that holds the copy all the same gets its
// cancellation, because the copy could wait for ever for a worker that is lost.
func (m *Machine) dropCopied() {
	for _, id := range m.copied {
		g := m.graphOf(id)
		if g == nil || g.dropped {
			continue
		}
		m.dropGraph(g)
		m.eachTask(g, func(id ids.TaskID, _ *block, t *task) bool {
			if t.state.active() && t.wanted() {
				m.endings = append(m.endings, ending{task: id, state: TaskCancelled, err: cancelError("the copy is not wanted any more")})
			}
			return true
		})
	}
	m.copied = m.copied[:0]
}

// copyTo makes a worker fetch an object by a new task. The task is assigned at once even if the
// worker is busy: only the fetch matters, and inputs are fetched while other tasks run.
func (m *Machine) copyTo(to *worker, c *copying, b *block, t *task, why string) {
	m.copyKeys++
	result, err := m.submit(GraphSubmitted{
		Namespace: m.graphs[t.graph].ns.name, Name: why,
		Ops:     []OpSpec{{Kind: OpNative, Name: copyOp}},
		Options: []Options{{Workers: []WorkerSelector{{Worker: to.id}}, Priority: math.MaxInt16}},
		Tasks:   []TaskSpec{{Key: fmt.Sprintf("millrace.copy/%d", m.copyKeys), Options: 1, Inputs: []string{string(b.keyOf(t))}, Hold: true}},
	})
	if err != nil {
		c.failed(m.now, err.Message)
		return
	}
	c.task, c.to = result.Tasks[0], to.id
	m.copies[c.task], m.copyOf[c.object] = c, c
	if cb, ct := m.at(c.task); ct.state == TaskReady {
		m.assign(c.task, cb, ct, to)
	}
}
