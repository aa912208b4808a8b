package sim

import "testing"

// A run that fails because of two kinds of faults and of large graphs keeps these, and loses all
// others.
func TestShrinkKeepsWhatARunNeedsToFail(t *testing.T) {
	o := options{seed: 1}
	whole, _, err := planOf(o)
	if err != nil {
		t.Fatal(err)
	}
	whole.crashEvery, whole.drop, whole.tasks, whole.clients = 1, 0.01, 80, 3
	tries := 0
	fails := func(names []string) bool {
		tries++
		p := whole
		if err := p.reduce(names); err != nil {
			t.Fatal(err)
		}
		return p.crashEvery > 0 && p.drop > 0 && p.tasks > 10
	}
	left := whole
	if err := left.reduce(shrink(whole, 1000, fails)); err != nil {
		t.Fatal(err)
	}
	if left.crashEvery == 0 || left.drop == 0 || left.tasks != 20 || left.clients != 1 || left.actions != 1 || left.workers != machines {
		t.Errorf("it shrinks to %v", left)
	}
	for _, r := range faults {
		p := left
		if r.of(&p); p != left && r.name != "crash" && r.name != "drop" {
			t.Errorf("%s is left in %v", r.name, left)
		}
	}
	if tries > 100 {
		t.Errorf("it takes %d runs", tries)
	}
	tries = 0
	if shrink(whole, 7, fails); tries != 7 {
		t.Errorf("%d runs, 7 were allowed", tries)
	}
	if names := shrink(whole, 1000, func([]string) bool { return false }); len(names) > 0 {
		t.Errorf("a run that does not fail again shrinks by %v", names)
	}
}

// A reduced run is a function of its seed and its reductions, and a name that does not exist is an
// error.
func TestAReducedRunIsARun(t *testing.T) {
	o := options{seed: 3, checkEvery: 200, smaller: []string{"clients", "clients", "actions", "actions", "workers", "time", "time", "crash", "restart"}}
	r, err := simulate(t, o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := simulate(t, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Hash != again.Hash || r.Lines == 0 {
		t.Errorf("%d lines with hash %016x, then %d with %016x", r.Lines, r.Hash, again.Lines, again.Hash)
	}
	o.smaller = []string{"crush"}
	if _, err := simulate(t, o); err == nil {
		t.Error("an unknown reduction is accepted")
	}
}
