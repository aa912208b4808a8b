package sched

import (
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// maxClasses bounds the classes that one dispatch considers without finding room. With at most that
// many classes, tasks are sent in the order of their ranks. With more, successive dispatches cover
// all classes in rounds. There may be one class per task, because each different amount of a
// resource makes a class.
const maxClasses = 256

// dispatchDelay is the delay after which a search through very many classes continues if no event
// comes before.
const dispatchDelay = time.Millisecond

// dispatch sends ready tasks to workers, lowest rank first, until all workers are full or no ready
// task is left.
func (m *Machine) dispatch() {
	if m.ready == 0 {
		return
	}
	l := &m.classQueue
	if l.version != m.workerVersion || len(l.waiting) == 0 || l.round <= 0 || len(l.waiting)+len(l.passed) <= maxClasses {
		m.newRound()
	}
	m.stamp++
	stamp := m.stamp
	for visits := 0; m.ready > 0 && len(l.waiting) > 0; {
		c := l.waiting[0]
		if c.ready == 0 {
			l.remove(c)
			continue
		}
		if visits == maxClasses {
			m.dispatchLater()
			return
		}
		r, _, t := m.head(c)
		if t != nil && r.rank > c.lowest {
			c.lowest = r.rank
			l.down(0)
			continue
		}
		if t != nil {
			m.fill(c, m.second(), stamp)
		}
		if t == nil || c.blocked == stamp {
			visits++
			m.reads.classes++
			l.round--
			l.pass(c)
		}
	}
	l.round = 0
}

// newRound starts a new round: all classes will be considered again.
func (m *Machine) newRound() {
	l := &m.classQueue
	if l.version != m.workerVersion {
		l.version = m.workerVersion
		for len(l.waiting) > 0 {
			l.pass(l.waiting[len(l.waiting)-1])
		}
		for _, c := range l.passed {
			m.feasible(c)
		}
	}
	for _, c := range l.passed {
		l.push(c)
	}
	clear(l.passed)
	l.passed = l.passed[:0]
	l.round = 2*len(l.waiting) + maxClasses
}

// dispatchLater sets a timer to continue the search through the classes. It sets none if all
// workers are full, because then the next report of a worker continues it.
func (m *Machine) dispatchLater() {
	open := func(w *worker) bool { return w.state == WorkerStateActive && m.queueRoom(w, 0) }
	if !m.dispatchArmed && slices.ContainsFunc(m.order, open) {
		m.dispatchArmed = true
		m.arm(timer{at: m.now.Add(dispatchDelay), kind: timerDispatch})
	}
}

// second returns the lowest rank among the first tasks of all classes but the first.
func (m *Machine) second() uint64 {
	l := &m.classQueue
	lowest := uint64(math.MaxUint64)
	for _, i := range [...]int{1, 2} {
		for i < len(l.waiting) {
			c := l.waiting[i]
			r, _, t := m.head(c)
			switch {
			case c.ready == 0:
				l.remove(c)
				continue
			case t == nil:
				l.pass(c)
				continue
			case r.rank > c.lowest:
				c.lowest = r.rank
				l.down(i)
				continue
			}
			lowest = min(lowest, r.rank)
			break
		}
	}
	return lowest
}

// fill assigns tasks of a class while their rank is at most limit. It marks the class as blocked if
// no worker has room.
func (m *Machine) fill(c *class, limit, stamp uint64) {
	from := m.feasible(c)
	if len(from) == 0 {
		c.blocked = stamp
		if c.options.NoWait {
			m.failUnfit(c)
		}
		return
	}
	var aside []readyTask
	share := 0
	for c.ready > 0 {
		r, b, t := m.head(c)
		if t == nil || r.rank > limit || len(aside) >= maxAside {
			break
		}
		extra := extraRoom(r.rank)
		if t.inputs == 0 && t.flags&flagTrouble == 0 && m.outputBytes(t) == 0 {
			w, open := m.leastLoaded(from, c, extra, 0, nil)
			if w == nil {
				c.blocked = stamp
				break
			}
			if share == 0 {
				share = max(1, c.ready/open)
			}
			m.batch(c, w, extra, limit, share)
			continue
		}
		if c.full == r.task && c.fullVersion == m.workerVersion && !m.anyRoom(c, from, extra) {
			c.blocked = stamp
			break
		}
		w, verdict := m.choose(c, from, extra, r.task, b, t)
		switch verdict {
		case placeHere:
			c.queue.pop()
			c.full = 0
			m.assign(r.task, b, t, w)
		case placeLater:
			c.queue.pop()
			aside = append(aside, r)
		case placeNowhere:
			c.queue.pop()
			if c.options.NoWait {
				m.dequeue(r.task, t)
				m.end(r.task, b, t, TaskFailed, m.unfitError(r.task, b, t))
			} else {
				c.parked = append(c.parked, r)
			}
		case placeUnreachable:
			c.queue.pop()
			m.dequeue(r.task, t)
			m.end(r.task, b, t, TaskFailed, m.unreachableError(r.task, b, t))
		case placeFull:
			c.blocked = stamp
			c.full, c.fullVersion = r.task, m.workerVersion
		}
		if verdict == placeFull {
			break
		}
	}
	if len(aside) > 0 {
		c.blocked = stamp
		if c.ready > 0 {
			for _, r := range aside {
				c.queue.push(r)
			}
		}
	}
}

// maxAside bounds the tasks that one call of fill passes over because their memory does not fit the
// workers with room.
const maxAside = 16

// batch gives one worker up to n consecutive ready tasks without inputs. Tasks with neighbouring
// ranks are likely to be needed together. extra is that of room.
func (m *Machine) batch(c *class, w *worker, extra, limit uint64, n int) {
	for ; n > 0 && m.room(w, c, extra); n-- {
		r, b, t := m.head(c)
		if t == nil || r.rank > limit || t.inputs != 0 || t.flags&flagTrouble != 0 || m.outputBytes(t) != 0 {
			return
		}
		c.queue.pop()
		m.assign(r.task, b, t, w)
	}
}

// assign sends a ready task to a worker as a new attempt, and pre-assigns its dependents where
// possible.
func (m *Machine) assign(id ids.TaskID, b *block, t *task, w *worker) {
	m.dequeue(id, t)
	m.send(id, b, t, w)
	m.preassign(id, t, w)
}
