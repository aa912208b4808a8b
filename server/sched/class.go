package sched

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/millrace/millrace/internal/ids"
)

// class is a set of tasks that the same workers may run: same executor, same resources, same
// preferred workers. Each class has its own queue, so that tasks that wait for one worker never
// block others.
type class struct {
	slot    uint32
	key     classKey
	options Options // only the fields that restrict placement matter
	tasks   uint64
	queue   readyQueue
	// ready counts the valid entries in queue and parked.
	ready int
	// list is the list of the class queue that the class is in, and at its index there; see
	// classQueue.
	list list
	at   int
	// lowest is a lower bound of the first task's rank. order decides between classes with equal
	// lowest: the one that was added first comes first.
	lowest, order uint64
	// full is the first task, if choose found that no worker has room for it. It is valid while the
	// workers have version fullVersion. It avoids reading all inputs of that task again in each
	// step.
	full        ids.TaskID
	fullVersion uint64
	// parked are ready tasks whose memory fits no registered worker. They are queued again when the
	// workers change.
	parked []readyTask
	// blocked is the stamp of the last dispatch that found no room for this class.
	blocked uint64

	// workers are the active workers that may run the class, as of the worker version in version.
	// others may run it too, but the class prefers workers. Both are valid only if known is set.
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
	// Plain tasks without placement options need their class again soon, so it stays.
	if c.tasks > 0 || c.key.place == m.options[0].place {
		return
	}
	m.classQueue.remove(c)
	delete(m.classIndex, c.key)
	m.classes[i] = nil
	m.freeClasses = append(m.freeClasses, i)
}

// fits reports whether a worker could ever run tasks of the class; if not, the text says why.
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

// named reports whether the class names this worker as a preferred one.
func (c *class) named(w *worker) bool {
	return slices.ContainsFunc(c.options.Workers, func(s WorkerSelector) bool { return s.selects(w) })
}

// wanted lists the preferred workers for people, each text once.
func (c *class) wanted() []string {
	var texts []string
	for _, s := range c.options.Workers {
		if text := s.String(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return texts
}

// feasible lists the active workers that may run the class now, by id. The result is cached until
// the workers change; then parked tasks are queued again.
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
		m.classQueue.lower(c, r.rank)
	}
	c.parked = c.parked[:0]
	return c.workers
}

// failUnfit fails every ready task of a class that has NoWait set, because no worker fits.
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
