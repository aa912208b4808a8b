package sim

import (
	"fmt"
	"slices"
	"time"
)

// A failing run is shrunk before it is reported: its plan is reduced as long as the run still
// fails. A smaller plan draws other random numbers, so its run may fail for another reason; the
// report says which.

// reduction makes a plan smaller in one way. Applied again, it may make the plan still smaller.
type reduction struct {
	name string
	of   func(p *plan)
}

// sizes reduce how much is done, faults leave out one kind of fault each.
var (
	sizes = []reduction{
		{"clients", func(p *plan) { p.clients -= p.clients / 2 }},
		{"actions", func(p *plan) { p.actions -= p.actions / 2 }},
		{"tasks", func(p *plan) { p.tasks -= p.tasks / 2 }},
		{"calls", func(p *plan) { p.coordinations /= 2 }},
		{"time", func(p *plan) { p.chaos = max(p.chaos/2, min(p.chaos, time.Second)) }},
		{"workers", func(p *plan) { p.workers = max(p.workers/2, min(p.workers, machines)) }},
	}
	faults = []reduction{
		{"drop", func(p *plan) { p.drop = 0 }},
		{"duplicate", func(p *plan) { p.duplicate = 0 }},
		{"slow", func(p *plan) { p.slow = 0 }},
		{"register", func(p *plan) { p.lateRegister = 0 }},
		{"crash", func(p *plan) { p.crashEvery = 0 }},
		{"stop", func(p *plan) { p.stopEvery = 0 }},
		{"leave", func(p *plan) { p.leaveEvery = 0 }},
		{"lose", func(p *plan) { p.loseEvery = 0 }},
		{"gone", func(p *plan) { p.clientCrashEvery = 0 }},
		{"drain", func(p *plan) { p.drainEvery = 0 }},
		{"restart", func(p *plan) { p.restartEvery, p.fillEvery = 0, 0 }},
		{"fill", func(p *plan) { p.fillEvery = 0 }},
		{"executor", func(p *plan) { p.executorDies = 0 }},
		{"room", func(p *plan) { p.noRoom = 0 }},
		{"block", func(p *plan) { p.blocks = 0 }},
		{"item", func(p *plan) { p.items = false }},
		{"loan", func(p *plan) { p.breakLoans = 0 }},
		{"large", func(p *plan) { p.large = 0 }},
		{"long", func(p *plan) { p.longRuns = 0 }},
		{"map", func(p *plan) { p.mapped = false }},
		{"rescue", func(p *plan) { p.rescueFails = 0 }},
		{"spill", func(p *plan) { p.spillFails = 0 }},
		{"disk", func(p *plan) { p.slowDisk = 0 }},
	}
)

// reduce applies reductions by their names.
func (p *plan) reduce(names []string) error {
	all := slices.Concat(sizes, faults)
	for _, name := range names {
		i := slices.IndexFunc(all, func(r reduction) bool { return r.name == name })
		if i < 0 {
			return fmt.Errorf("no reduction of a plan is named %q", name)
		}
		all[i].of(p)
	}
	return nil
}

// shrink returns the names of reductions of a plan under which a run still fails. It calls fails,
// which runs the reduced plan, at most tries times.
func shrink(p plan, tries int, fails func(names []string) bool) (names []string) {
	try := func(group []reduction) bool {
		smaller, more := p, slices.Clone(names)
		for _, r := range group {
			before := smaller
			if r.of(&smaller); smaller != before {
				more = append(more, r.name)
			}
		}
		if len(more) == len(names) || tries == 0 {
			return false
		}
		if tries--; !fails(more) {
			return false
		}
		p, names = smaller, more
		return true
	}
	// Many kinds of faults are left out at once, if possible, and sizes are halved.
	for n := len(faults); n > 0; n /= 2 {
		for i := range sizes {
			for try(sizes[i : i+1]) {
			}
		}
		for group := range slices.Chunk(faults, n) {
			try(group)
		}
	}
	return names
}
