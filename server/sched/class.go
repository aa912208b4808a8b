package sched

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/millrace/millrace/internal/ids"
)

// class is a set of tasks that the same workers may run: same executor, same resources, same wishes. Each has a queue of
// its own, so that tasks that must wait for one worker never hold up others.
type class struct {
	slot    uint32
	key     classKey
	options Options // only what restricts placement counts
	tasks   uint64
	queue   readyQueue
	// ready counts valid entries in queue and parked.
	ready int
	// list is where it waits, and at its place there; see line.
	list list
	at   int
	// lowest is at most the rank of its first task, order the place of classes whose ranks are equal.
	lowest, order uint64
	// full is the first task of which a worker version said that no worker has room for it, after all its inputs were looked at.
	full        ids.TaskID
	fullVersion uint64
	// parked are ready tasks whose memory fits no registered worker; they are queued again when the workers change.
	parked []readyTask
	// blocked is the stamp of the dispatch in which no worker could take more.
	blocked uint64

	// workers may run it, by the worker version at which that was found out; others could as well, but the class prefers
	// these.
	workers []*worker
	others  []*worker
	version uint64
	known   bool
}

type classKey struct{ needs, place string }

func (m *Machine) internClass(opSlot, optionSlot uint32) uint32 {
	key := classKey{m.ops[opSlot].needs, m.options[optionSlot].place}
	if i, ok := m.classIndex[key]; ok {
		return i
	}
	c := &class{key: key, options: m.options[optionSlot].Options}
	if k := len(m.freeClasses); k > 0 {
		c.slot = m.freeClasses[k-1]
		m.freeClasses = m.freeClasses[:k-1]
		m.classes[c.slot] = c
	} else {
		c.slot = uint32(len(m.classes))
		m.classes = append(m.classes, c)
	}
	m.classIndex[key] = c.slot
	return c.slot
}

func (m *Machine) freeUnusedClass(i uint32) {
	c := m.classes[i]
	// The class of plain tasks of an executor is used again soon.
	if c.tasks > 0 || c.key.place == m.options[0].place {
		return
	}
	m.line.remove(c)
	delete(m.classIndex, c.key)
	m.classes[i] = nil
	m.freeClasses = append(m.freeClasses, i)
}

// fits says whether a worker could ever run tasks of the class, and if not, why.
func (c *class) fits(w *worker) (bool, string) {
	if c.key.needs != "" && !slices.Contains(w.executors, c.key.needs) {
		return false, fmt.Sprintf("executor %s: not offered, has %v", c.key.needs, w.executors)
	}
	if s := c.options.Slots; s > w.slots {
		return false, fmt.Sprintf("slots: needs %d, has %d", s, w.slots)
	}
	for _, name := range sortedKeys(c.options.Resources) {
		if need, has := c.options.Resources[name], w.resources[name]; need > has {
			return false, fmt.Sprintf("resource %s: needs %s, has %s", name, number(need), number(has))
		}
	}
	return true, ""
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// named says whether the class's wish for workers names this one.
func (c *class) named(w *worker) bool {
	return slices.Contains(c.options.Workers, w.name) || slices.Contains(c.options.Workers, w.host) ||
		slices.Contains(c.options.Workers, w.id.String())
}

// feasible lists the active workers that may run the class now, by id.
func (m *Machine) feasible(c *class) []*worker {
	if c.known && c.version == m.workerVersion {
		return c.workers
	}
	c.known, c.version = true, m.workerVersion
	c.workers, c.others = c.workers[:0], nil
	var named []*worker
	for _, w := range m.order {
		if w.state != WorkerStateActive {
			continue
		}
		if ok, _ := c.fits(w); !ok {
			continue
		}
		c.workers = append(c.workers, w)
		if len(c.options.Workers) > 0 && c.named(w) {
			named = append(named, w)
		}
	}
	if len(c.options.Workers) > 0 && (len(named) > 0 || !c.options.AllowOtherWorkers) {
		if c.options.AllowOtherWorkers {
			for _, w := range c.workers {
				if !c.named(w) {
					c.others = append(c.others, w)
				}
			}
		}
		c.workers = append(c.workers[:0], named...)
	}
	for _, r := range c.parked {
		c.queue.push(r)
		m.line.lower(c, r.rank)
	}
	c.parked = c.parked[:0]
	return c.workers
}

// failUnfit fails every ready task of a class whose tasks do not want to wait for a worker that fits.
func (m *Machine) failUnfit(c *class) {
	for {
		r, b, t := m.head(c)
		if t == nil {
			return
		}
		c.queue.pop()
		m.dequeue(r.task, t)
		m.end(r.task, b, t, TaskFailed, m.unfitError(r.task, b, t))
	}
}

func (m *Machine) unfitError(id ids.TaskID, b *block, t *task) *TaskError {
	key := string(b.keyOf(t))
	e, _ := m.Explain(m.now, id)
	return &TaskError{Reason: "NO_WORKER_FITS", Message: fmt.Sprintf("task %s: %s", key, e.Text), OriginKey: key, Attempt: ids.Attempt(t.attempt)}
}
