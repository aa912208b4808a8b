package sched

import "github.com/millrace/millrace/internal/ids"

// readyQueue orders ready tasks by rank. Tasks mostly become ready in rank order; those go to the
// end of a sorted run, from which the first is taken at no cost. The others go to a heap. An entry
// counts only if its task still has flagQueued; otherwise it is stale.
type readyQueue struct {
	run  []readyTask
	head int
	heap []readyTask // a 4-ary heap
}

type readyTask struct {
	rank uint64
	task ids.TaskID
}

func (q *readyQueue) push(r readyTask) {
	if n := len(q.run); n == q.head || r.rank >= q.run[n-1].rank {
		if q.head > 1024 && q.head > n/2 {
			n = copy(q.run, q.run[q.head:])
			q.run, q.head = q.run[:n], 0
		}
		q.run = append(q.run, r)
		return
	}
	h := append(q.heap, r)
	i := len(h) - 1
	for i > 0 {
		p := (i - 1) / 4
		if h[p].rank <= r.rank {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = r
	q.heap = h
}

// first returns the entry with the lowest rank.
func (q *readyQueue) first() (readyTask, bool) {
	inRun, inHeap := q.head < len(q.run), len(q.heap) > 0
	switch {
	case inRun && (!inHeap || q.run[q.head].rank <= q.heap[0].rank):
		return q.run[q.head], true
	case inHeap:
		return q.heap[0], true
	}
	return readyTask{}, false
}

// pop removes the entry that first returned.
func (q *readyQueue) pop() {
	if q.head < len(q.run) && (len(q.heap) == 0 || q.run[q.head].rank <= q.heap[0].rank) {
		if q.head++; q.head == len(q.run) {
			q.head = 0
			if q.run = q.run[:0]; cap(q.run) > 1<<14 {
				q.run = nil
			}
		}
		return
	}
	n := len(q.heap) - 1
	r := q.heap[n]
	h := q.heap[:n]
	q.heap = h
	if n == 0 {
		if cap(h) > 1<<14 {
			q.heap = nil
		}
		return
	}
	i := 0
	for {
		c := 4*i + 1
		if c >= n {
			break
		}
		least := c
		for k := c + 1; k < min(c+4, n); k++ {
			if h[k].rank < h[least].rank {
				least = k
			}
		}
		if h[least].rank >= r.rank {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = r
}

// reset drops all entries. REQUIRES: all are stale.
func (q *readyQueue) reset() {
	*q = readyQueue{run: q.run[:0], heap: q.heap[:0]}
	if cap(q.run) > 1<<14 {
		q.run = nil
	}
	if cap(q.heap) > 1<<14 {
		q.heap = nil
	}
}

// enqueue puts a task into the queue of its class. REQUIRES: its state is READY, and it is not
// queued.
func (m *Machine) enqueue(id ids.TaskID, t *task) {
	c := m.classes[t.class]
	t.flags |= flagQueued
	c.queue.push(readyTask{t.rank, id})
	if c.ready++; c.list == 0 {
		m.classQueue.add(c, t.rank)
	} else {
		m.classQueue.lower(c, t.rank)
	}
	m.ready++
}

// dequeue removes a task from its queue. Its entry stays there and is stale.
func (m *Machine) dequeue(id ids.TaskID, t *task) {
	if t.flags&flagQueued == 0 {
		return
	}
	t.flags &^= flagQueued
	c := m.classes[t.class]
	m.ready--
	if t.inputs > maxCounted {
		delete(m.wide, id)
	}
	if c.ready--; c.ready == 0 {
		c.queue.reset()
		c.parked = c.parked[:0]
	}
}

// head returns the ready task of the class with the lowest rank, and drops the stale entries before
// it.
func (m *Machine) head(c *class) (readyTask, *block, *task) {
	for {
		r, ok := c.queue.first()
		if !ok {
			return r, nil, nil
		}
		if b, t := m.lookup(r.task); t != nil && t.flags&flagQueued != 0 && t.rank == r.rank {
			return r, b, t
		}
		c.queue.pop()
	}
}

// makeReady moves a task whose inputs all exist into the queue.
func (m *Machine) makeReady(id ids.TaskID, t *task) {
	if m.standsBy(id) {
		if t.state != TaskWaiting {
			m.setState(id, t, TaskWaiting)
		}
		return
	}
	if t.state != TaskReady {
		m.setState(id, t, TaskReady)
	}
	m.enqueue(id, t)
}
