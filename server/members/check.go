package members

import (
	"errors"
	"fmt"
	"slices"
)

// Check returns an error if an invariant is broken.
func (m *Machine) Check() error {
	var problems []error
	fail := func(format string, args ...any) { problems = append(problems, fmt.Errorf("members: "+format, args...)) }
	sessions := 0
	for i, w := range m.all {
		name, incarnation := w.seen.Worker.Name, w.seen.Worker.Incarnation
		if w.id == 0 || w.id > m.last || i > 0 && w.id <= m.all[i-1].id {
			fail("worker %d follows worker %d; the last number is %d", w.id, m.all[max(i-1, 0)].id, m.last)
		}
		if m.byName[name] != w {
			fail("worker %d is not found by its name %q", w.id, name)
		}
		if w.session != 0 {
			sessions++
			if m.bySession[w.session] != w {
				fail("worker %d is not found by its session %d", w.id, w.session)
			}
		}
		if j := m.deaths.index(name, incarnation); j >= 0 && m.deaths.byName[name][j].Reaped {
			fail("worker %d is a member, and its incarnation %s was declared dead", w.id, incarnation)
		}
		if !slices.ContainsFunc(m.timers, func(t timer) bool { return t.worker == w.id && !t.tombstone && t.at.Equal(w.timer) }) {
			fail("worker %d has no timer at %v", w.id, w.timer)
		}
		if at := m.deadline(w); w.timer.After(at) {
			fail("worker %d has a timer at %v, after its deadline %v", w.id, w.timer, at)
		}
	}
	if len(m.byName) != len(m.all) || len(m.bySession) != sessions {
		fail("%d members with %d sessions have %d names and %d sessions", len(m.all), sessions, len(m.byName), len(m.bySession))
	}
	// order-free: the order changes only the order of the problems.
	for id, t := range m.tombstones {
		if m.get(id) != nil || t.peer.Worker != id {
			fail("worker %d has a tombstone, of worker %d", id, t.peer.Worker)
		}
		if !slices.ContainsFunc(m.timers, func(t timer) bool { return t.worker == id && t.tombstone }) {
			fail("the tombstone of worker %d has no timer", id)
		}
	}
	return errors.Join(append(problems, m.deaths.check()...)...)
}

func (d *deaths) check() (problems []error) {
	if len(d.order) != len(d.byName) || len(d.order) > deadNames {
		problems = append(problems, fmt.Errorf("members: %d names with deaths are in a list of %d", len(d.byName), len(d.order)))
	}
	for _, name := range d.order {
		list := d.byName[name]
		if len(list) == 0 || len(list) > deathsKept {
			problems = append(problems, fmt.Errorf("members: %d deaths of %s are remembered", len(list), name))
		}
		for i := range list {
			if d.index(name, list[i].Incarnation) != i {
				problems = append(problems, fmt.Errorf("members: incarnation %s of %s has died twice", list[i].Incarnation, name))
			}
		}
	}
	return problems
}
