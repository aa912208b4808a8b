package sched

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
