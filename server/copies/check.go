package copies

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// checker collects the invariants that are broken.
type checker struct {
	m        *Machine
	problems []error
}

func (k *checker) fail(format string, args ...any) {
	if len(k.problems) < 10 {
		k.problems = append(k.problems, fmt.Errorf("copies: "+format, args...))
	}
}

// Check returns an error if an invariant is broken. It may be called when the owner has recorded an
// event with all its consequences.
func (m *Machine) Check() error {
	k := &checker{m: m}
	k.rescues()
	k.drains()
	k.copies()
	k.moves()
	return errors.Join(k.problems...)
}

// rescues checks the state of rescues.
func (k *checker) rescues() {
	m := k.m
	left := make(map[ids.WorkerID]int)
	bytes := make(map[ids.WorkerID][]uint64)
	for _, id := range slices.Sorted(maps.Keys(m.rescuing)) {
		s := m.rescuing[id]
		o, _ := m.tables.Object(id)
		r := m.rescues[s.dead]
		if o.State != ObjectRescuing || r == nil || s.tried&(1<<s.by) == 0 || s.bytes != o.Bytes {
			k.fail("%s is rescued from %s and is not RESCUING", id, s.dead)
			continue
		}
		left[s.dead]++
		if bytes[s.dead] == nil {
			bytes[s.dead] = make([]uint64, len(r.survivors))
		}
		bytes[s.dead][s.by] += s.bytes + rescueOverhead
	}
	for _, dead := range slices.Sorted(maps.Keys(m.rescues)) {
		r := m.rescues[dead]
		if _, alive := m.tables.Worker(dead); alive || r.left == 0 || r.left != left[dead] {
			k.fail("%d objects of %s are to be rescued, not %d", left[dead], dead, r.left)
			continue
		}
		for i, s := range r.survivors {
			if s.bytes != bytes[dead][i] {
				k.fail("%s is to copy %d bytes of %s, not %d", s.worker, bytes[dead][i], dead, s.bytes)
			}
		}
	}
}

// drains checks the drains. A drained worker can end without a loss.
func (k *checker) drains() {
	m := k.m
	if m.Pending() || len(m.unchecked)+len(m.ordered)+len(m.asked)+len(m.taken) > 0 || m.concluding {
		k.fail("work is left over: %d drains to check, %d copies to begin", len(m.unchecked), len(m.ordered))
	}
	found := 0
	for _, w := range m.tables.Workers() {
		d := m.drains[w.ID]
		draining := w.State == WorkerStateDraining || w.State == WorkerStateDrained
		if draining && d == nil || w.State == WorkerStateActive && d != nil {
			k.fail("%s is %s, its drain is %v", w.ID, w.State, d)
		}
		for _, id := range slices.Sorted(maps.Keys(m.keeps[w.ID])) {
			if !m.tables.Holds(w.ID, id) {
				k.fail("%s is asked to keep %s, which it does not have", w.ID, id)
			}
		}
		if d != nil {
			found++
		}
		if w.State != WorkerStateDrained || d == nil {
			continue
		}
		if w.Assigned > 0 {
			k.fail("%s is drained and has %d tasks", w.ID, w.Assigned)
		}
		for _, id := range m.tables.Objects(w.ID) {
			if o, _ := m.tables.Object(id); m.isolated(id, &o) || !m.kept(d, id, &o) {
				k.fail("%s is drained and alone keeps %s", w.ID, id)
			}
		}
	}
	if found != len(m.drains) {
		k.fail("%d drains of %d workers", len(m.drains), found)
	}
}

// copies checks the copies that are under way.
func (k *checker) copies() {
	m := k.m
	if len(m.copies) != len(m.copyOf) {
		k.fail("%d copies of %d objects", len(m.copies), len(m.copyOf))
	}
	for _, id := range slices.Sorted(maps.Keys(m.copies)) {
		c := m.copies[id]
		if c.task != id || m.copyOf[c.object] != c || !m.underCopy(c) {
			k.fail("copy %s of %s is by %s, under way %v", id, c.object, c.task, m.underCopy(c))
		}
	}
}

// moves checks the rebalance in progress.
func (k *checker) moves() {
	r := k.m.rebalance
	if r == nil {
		return
	}
	left := uint64(len(r.moving))
	for _, s := range r.sources {
		left += uint64(len(s.moves))
	}
	if i := &r.info; i.PlannedObjects != i.MovedObjects+i.FailedObjects+left {
		k.fail("%d moves are planned: %d have ended, %d failed, %d are left", i.PlannedObjects, i.MovedObjects, i.FailedObjects, left)
	}
	under := make(map[ids.WorkerID]int)
	for _, id := range slices.Sorted(maps.Keys(r.moving)) {
		x := r.moving[id]
		under[x.from]++
		under[x.to]++
		_, known := k.m.tables.Worker(x.to)
		if holds := k.m.tables.Holds(x.to, id); x.object != id || !known || x.kept && (!x.asked || !holds) {
			k.fail("%s moves to %s, which has it %v", id, x.to, holds)
		}
		if under[x.from] > maxMoves || under[x.to] > maxMoves {
			k.fail("more than %d moves of %s or %s are under way", maxMoves, x.from, x.to)
		}
	}
	if !k.m.movesArmed {
		k.fail("a rebalance is in progress, and nothing will look at it")
	}
}
