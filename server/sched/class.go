package sched

import (
	"fmt"
	"maps"
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
	for _, name := range slices.Sorted(maps.Keys(c.options.Resources)) {
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

func (s WorkerSelector) selects(w *worker) bool {
	switch {
	case s.Worker != 0:
		return s.Worker == w.id
	case s.Name != "":
		return s.Name == w.name
	default:
		return s.Host != "" && s.Host == w.host
	}
}

// classQueue holds the classes with ready tasks, in rounds. In a round, waiting has the classes
// that have not been considered yet, and passed those that were considered and found no room. A
// round ends when all classes have been considered, or when it has considered far more classes than
// there were at its start, because new ones keep coming.
type classQueue struct {
	waiting []*class // a binary heap, see class.before
	passed  []*class
	// round is the number of classes that this round may still consider. 0 or less: it has ended.
	round int
	// version is the worker version at the start of the last round.
	version uint64
	added   uint64
}

// list says in which list of the queue a class is; 0: in none.
type list uint8

const (
	listWaiting list = iota + 1
	listPassed
)

// before orders classes by the ranks of their first tasks. Among equals, the class that was added
// first comes first.
func (c *class) before(d *class) bool {
	return c.lowest < d.lowest || c.lowest == d.lowest && c.order < d.order
}

// add puts a class that is in no list into the heap.
func (l *classQueue) add(c *class, lowest uint64) {
	l.added++
	c.lowest, c.order = lowest, l.added
	l.push(c)
}

// lower notes that a task with the given rank came into the queue of a class, which may be in any
// list or in none.
func (l *classQueue) lower(c *class, rank uint64) {
	if rank >= c.lowest {
		return
	}
	if c.lowest = rank; c.list == listWaiting {
		l.up(c.at)
	}
}

// push puts a class into the heap. The class may still be marked as passed.
func (l *classQueue) push(c *class) {
	c.list, c.at = listWaiting, len(l.waiting)
	l.waiting = append(l.waiting, c)
	l.up(c.at)
}

// pass moves a class from the heap to the passed list, until the next round. A class that is not in
// the heap stays as it is.
func (l *classQueue) pass(c *class) {
	if c.list != listWaiting {
		return
	}
	l.remove(c)
	c.list, c.at = listPassed, len(l.passed)
	l.passed = append(l.passed, c)
}

// remove removes a class from its list, if it is in one.
func (l *classQueue) remove(c *class) {
	switch c.list {
	case listWaiting:
		last := l.waiting[len(l.waiting)-1]
		l.waiting[len(l.waiting)-1] = nil
		if l.waiting = l.waiting[:len(l.waiting)-1]; last != c {
			l.set(c.at, last)
			l.down(c.at)
			l.up(c.at)
		}
	case listPassed:
		last := l.passed[len(l.passed)-1]
		l.passed[len(l.passed)-1] = nil
		l.passed = l.passed[:len(l.passed)-1]
		if last != c {
			l.passed[c.at], last.at = last, c.at
		}
	}
	c.list = 0
}

func (l *classQueue) set(i int, c *class) { l.waiting[i], c.at = c, i }

func (l *classQueue) up(i int) {
	c := l.waiting[i]
	for ; i > 0 && c.before(l.waiting[(i-1)/2]); i = (i - 1) / 2 {
		l.set(i, l.waiting[(i-1)/2])
	}
	l.set(i, c)
}

func (l *classQueue) down(i int) {
	c := l.waiting[i]
	for {
		next := 2*i + 1
		if next >= len(l.waiting) {
			break
		}
		if next+1 < len(l.waiting) && l.waiting[next+1].before(l.waiting[next]) {
			next++
		}
		if !l.waiting[next].before(c) {
			break
		}
		l.set(i, l.waiting[next])
		i = next
	}
	l.set(i, c)
}
