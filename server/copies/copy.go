package copies

import (
	"fmt"
	"maps"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// A drain or a move has an object copied to a chosen worker. Each copy is a task of its own, with
// the object as its input. The task is sent to that worker, which fetches the object as it fetches
// all inputs, once it has room: bytes are never sent to a worker that has not asked for them. So
// copies are retried, cancelled and explained like other tasks.

const (
	// maxCopies bounds the copies under way to one worker.
	maxCopies = 64
	// maxCopyTries bounds the failed copies of one object before the machine waits for copyRetry.
	maxCopyTries = 3
	copyRetry    = 30 * time.Second
)

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
	Worker
	free   float64 // bytes that are free or can be made free, as far as is known
	copies int     // copies under way
}

// underCopy reports whether a task is copying the object now.
func (m *Machine) underCopy(c *copying) bool {
	active, _ := m.tables.Attempt(c.task)
	return active
}

// copyTo orders the copy of an object to a worker. why is a text for people.
func (m *Machine) copyTo(to ids.WorkerID, c *copying, why string) {
	m.copyNumber++
	m.ordered[m.copyNumber] = c
	m.emit(Effect{Kind: EffectCopy, Copy: m.copyNumber, Object: c.object, Worker: to, Why: why})
}

// copyBegan records the task of a copy that was ordered.
func (m *Machine) copyBegan(ev CopyBegan) {
	c := m.ordered[ev.Copy]
	delete(m.ordered, ev.Copy)
	c.task, c.to = ev.Task, ev.Worker
	m.copies[c.task], m.copyOf[c.object] = c, c
}

// copyRefused records that a copy that was ordered has no task.
func (m *Machine) copyRefused(ev CopyRefused) {
	m.ordered[ev.Copy].failed(m.now, ev.Why)
	delete(m.ordered, ev.Copy)
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
	if len(m.stopped) >= m.mostStopped { // A drain that ends stops thousands at once.
		maps.DeleteFunc(m.stopped, func(_, task ids.TaskID) bool { active, _ := m.tables.Attempt(task); return !active })
		m.mostStopped = 2*len(m.stopped) + maxCopies
	}
	if m.underCopy(c) {
		m.stopped[c.object] = c.task
	}
	m.emit(Effect{Kind: EffectDropCopy, Object: c.task})
}

// neededByStopped reports whether nothing but a copy that was stopped needs the object, so that it
// is about to be released.
func (m *Machine) neededByStopped(id ids.TaskID, o *Object) bool {
	task, was := m.stopped[id]
	active, _ := m.tables.Attempt(task)
	return was && active && o.neededByOneTask()
}

// abandonCopy gives up a copy whose worker is lost or is not active any more. Its task may run at
// no other worker and would wait for ever. This says nothing about the object, so it does not count
// as a failure.
func (m *Machine) abandonCopy(c *copying) {
	to, known := m.tables.Worker(c.to)
	if !m.underCopy(c) || known && to.State == WorkerStateActive {
		return
	}
	m.stopCopy(c)
	c.task, c.to = 0, 0
}

// copyEnded handles the end of a task that copies an object.
func (m *Machine) copyEnded(ev CopyEnded) {
	c := m.copies[ev.Task]
	if c == nil {
		return
	}
	m.stopCopy(c)
	why := ev.Error
	if why == "" {
		why = "the worker has not reported it"
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
	if w, known := m.tables.Worker(id); known {
		return w.Name
	}
	return id.String()
}

// copyTargets lists the workers that may take copies, with their room and the copies under way to
// them.
func (m *Machine) copyTargets() []target {
	var targets []target
	for _, w := range m.tables.Workers() {
		if w.State == WorkerStateActive && w.Native {
			targets = append(targets, target{Worker: w, free: w.Room})
		}
	}
	// order-free: the copies are only counted.
	for id := range m.copies {
		if _, at := m.tables.Attempt(id); at != 0 {
			for i := range targets {
				if at == targets[i].ID {
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
func takeRoom(targets []target, bytes uint64) (to *target, why string, ever bool) {
	best, most, largest := -1, -1, -1
	room := false
	for i := range targets {
		t := &targets[i]
		if largest < 0 || t.MemoryBytes == 0 || targets[largest].MemoryBytes > 0 && t.MemoryBytes > targets[largest].MemoryBytes {
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
		return &targets[best], "", true
	case room:
		return nil, "", true
	case largest < 0:
		return nil, "no other worker is active", false
	case targets[largest].MemoryBytes > 0 && targets[largest].MemoryBytes < bytes:
		return nil, fmt.Sprintf("it has %d bytes, and the largest other worker, %s, has %d bytes of memory", bytes, targets[largest].Name, targets[largest].MemoryBytes), false
	}
	return nil, fmt.Sprintf("it has %d bytes, and the worker with the most room, %s, has room for %.0f", bytes, targets[most].Name, max(targets[most].free, 0)), true
}
