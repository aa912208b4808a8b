package members

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// timer is the time at which a worker's lease or grace may be over, or at which a tombstone is
// removed. Timers are never cancelled: one that is not needed any more has no effect.
type timer struct {
	at        time.Time
	worker    ids.WorkerID
	tombstone bool
}

// timers is a heap, earliest first.
type timers []timer

// Len is part of heap.Interface.
func (t timers) Len() int { return len(t) }

// Less is part of heap.Interface. The number decides between equal times, so that the order does
// not depend on how the heap was built.
func (t timers) Less(i, j int) bool {
	if c := t[i].at.Compare(t[j].at); c != 0 {
		return c < 0
	}
	return t[i].worker < t[j].worker
}

// Swap is part of heap.Interface.
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }

// Push is part of heap.Interface.
func (t *timers) Push(x any) { *t = append(*t, x.(timer)) }

// Pop is part of heap.Interface.
func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	*t = old[:len(old)-1]
	return last
}

func (t *timers) add(one timer) { heap.Push(t, one) }

// NextDeadline returns the time at which TimePassed has something to do; false: never.
func (m *Machine) NextDeadline() (time.Time, bool) {
	if len(m.timers) == 0 {
		return time.Time{}, false
	}
	return m.timers[0].at, true
}

// Due appends the sessions whose leases may be over to out. TimePassed must say when they were last
// heard from.
func (m *Machine) Due(now time.Time, out []Session) []Session {
	return m.due(0, now, out)
}

func (m *Machine) due(i int, now time.Time, out []Session) []Session {
	if i >= len(m.timers) || m.timers[i].at.After(now) {
		return out
	}
	if t := m.timers[i]; !t.tombstone {
		if w := m.get(t.worker); w != nil && w.session != 0 && w.timer.Equal(t.at) {
			out = append(out, w.session)
		}
	}
	return m.due(2*i+2, now, m.due(2*i+1, now, out))
}

// deadline is the time at which a worker is lost unless something happens before.
func (m *Machine) deadline(w *worker) time.Time {
	if w.session != 0 {
		return w.heard.Add(m.config.Lease)
	}
	return w.disconnectedAt.Add(cmp.Or(w.grace, m.config.Grace))
}

// watch makes sure that a timer of a worker is due at its deadline, or before.
func (m *Machine) watch(w *worker) {
	if at := m.deadline(w); w.timer.IsZero() || at.Before(w.timer) {
		w.timer = at
		m.timers.add(timer{at: at, worker: w.id})
	}
}

func (m *Machine) timePassed(event TimePassed) {
	for _, heard := range event.Heard {
		if w := m.bySession[heard.Session]; w != nil && heard.At.After(w.heard) {
			w.heard = heard.At
		}
	}
	for len(m.timers) > 0 && !m.timers[0].at.After(m.now) {
		m.fire(heap.Pop(&m.timers).(timer))
	}
}

func (m *Machine) fire(t timer) {
	if t.tombstone {
		delete(m.tombstones, t.worker)
		return
	}
	w := m.get(t.worker)
	if w == nil || !w.timer.Equal(t.at) {
		return
	}
	w.timer = time.Time{}
	if m.deadline(w).After(m.now) {
		m.watch(w)
	} else {
		m.silent(w)
	}
}

// stoodStill lets all leases and graces begin anew.
func (m *Machine) stoodStill() {
	for _, w := range m.all {
		w.heard = m.now
		if w.session == 0 {
			w.disconnectedAt = m.now
		}
	}
}
