package plugins_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/server/plugins"
)

// carrier is a worker's connection: it carries out lists some time after they were ordered.
type carrier struct {
	id     plugins.Follower
	orders []plugins.Effect
	// has are the plugins that it has set up.
	has []plugins.Plugin
}

// world is a machine with workers and callers.
type world struct {
	t        *testing.T
	random   *rand.Rand
	machine  *plugins.Machine
	carriers []*carrier
	last     uint64
	// open are the calls without an answer, by ticket, with the name that each registers; "": it
	// unregisters.
	open map[plugins.Ticket]string
	kept map[plugins.Ticket]bool
	// log are the changes of durable rows.
	log []plugins.PluginChanged
	// size is added to the size of each plugin.
	size int
}

func (w *world) carryOut(effects []plugins.Effect) {
	w.t.Helper()
	for _, e := range effects {
		switch e.Kind {
		case plugins.EffectOrder:
			if i := slices.IndexFunc(w.carriers, func(c *carrier) bool { return c.id == e.Follower }); i >= 0 {
				w.carriers[i].orders = append(w.carriers[i].orders, e)
			}
		case plugins.EffectChanged:
			w.log = append(w.log, *e.Changed)
		case plugins.EffectAnswer:
			if _, waits := w.open[e.Ticket]; !waits {
				w.t.Fatalf("an answer to call %d, which has one or was never made", e.Ticket)
			}
			delete(w.open, e.Ticket)
			w.kept[e.Ticket] = e.Kept
			for _, o := range e.Outcomes {
				if o.Failures != nil && e.Kept {
					w.t.Fatalf("a plugin stays that failed on %s", o.Worker)
				}
			}
		}
	}
	if err := w.machine.Check(); err != nil {
		w.t.Fatal(err)
	}
}

// bad reports whether the setup of a plugin fails on a worker.
func bad(p plugins.Plugin, id plugins.Follower) bool {
	return len(p.Body) > 0 && p.Body[0] == byte(id%5)
}

// carry makes a worker carry out the last of the lists that have arrived.
func (w *world) carry(c *carrier) {
	e := c.orders[len(c.orders)-1]
	c.orders = nil
	var failures []plugins.Failure
	has := c.has
	c.has = nil
	for _, p := range e.Plugins {
		known := slices.ContainsFunc(has, func(x plugins.Plugin) bool { return x.Version == p.Version })
		if !known && bad(p, c.id) {
			failures = append(failures, plugins.Failure{Version: p.Version, Failures: "failed"})
			continue
		}
		c.has = append(c.has, p)
	}
	w.carryOut(w.machine.Report(c.id, e.Revision, failures))
}

func (w *world) step() {
	w.last++
	name := fmt.Sprint("p", w.random.IntN(4))
	switch ticket := plugins.Ticket(w.last); w.random.IntN(8) {
	case 0, 1:
		w.open[ticket] = name
		w.carryOut(w.machine.Register(ticket, name, append([]byte{byte(w.random.IntN(20)), 0}, make([]byte, w.size)...)))
	case 2:
		if _, known := w.machine.Find(name); known {
			w.open[ticket] = ""
			w.carryOut(w.machine.Unregister(ticket, name))
		}
	case 3:
		c := &carrier{id: plugins.Follower(w.last)}
		w.carriers = append(w.carriers, c)
		w.carryOut(w.machine.Join(c.id, fmt.Sprint("w", c.id)))
	case 4:
		for _, ticket := range slices.Sorted(maps.Keys(w.open)) {
			if w.random.IntN(4) == 0 {
				delete(w.open, ticket)
				w.machine.GiveUp(ticket)
			}
		}
		if len(w.carriers) > 0 {
			i := w.random.IntN(len(w.carriers))
			gone := w.carriers[i].id
			w.carriers = slices.Delete(w.carriers, i, i+1)
			w.carryOut(w.machine.Leave(gone))
			w.carryOut(w.machine.Report(gone, 1, nil)) // late, and without effect
		}
	default:
		if len(w.carriers) > 0 {
			if c := w.carriers[w.random.IntN(len(w.carriers))]; len(c.orders) > 0 {
				w.carry(c)
			}
		}
	}
}

// After all lists have been carried out, each call has its answer, and each worker that did not
// fail has exactly the plugins of the machine.
func TestRandomWorlds(t *testing.T) {
	for seed := range uint64(300) {
		w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), machine: plugins.New(0), open: make(map[plugins.Ticket]string), kept: make(map[plugins.Ticket]bool)}
		for range 200 {
			w.step()
		}
		for more := true; more; {
			more = false
			for _, c := range w.carriers {
				if len(c.orders) > 0 {
					w.carry(c)
					more = true
				}
			}
		}
		if len(w.open) > 0 {
			t.Fatalf("seed %d: calls without an answer: %v", seed, w.open)
		}
		for _, c := range w.carriers {
			want := slices.DeleteFunc(slices.Clone(w.machine.Plugins()), func(p plugins.Plugin) bool { return bad(p, c.id) })
			if !slices.EqualFunc(c.has, want, func(a, b plugins.Plugin) bool { return a.Version == b.Version }) {
				t.Fatalf("seed %d: worker %d has %v, want %v", seed, c.id, c.has, want)
			}
		}
	}
}

func answers(effects []plugins.Effect) (list []plugins.Effect) {
	for _, e := range effects {
		if e.Kind == plugins.EffectAnswer {
			list = append(list, e)
		}
	}
	return list
}

func TestRegistrationWaitsForAllWorkers(t *testing.T) {
	m := plugins.New(0)
	if got := answers(m.Register(1, "a", nil)); len(got) != 1 || !got[0].Kept {
		t.Errorf("without workers: %v", got)
	}
	m.Join(10, "w10")
	m.Join(11, "w11")
	order := m.Register(2, "b", nil)
	if len(order) != 2 || len(order[0].Plugins) != 2 || len(answers(order)) != 0 {
		t.Fatalf("orders: %v", order)
	}
	if got := m.Report(10, order[0].Revision, nil); len(got) != 0 {
		t.Errorf("one of two workers has reported: %v", got)
	}
	if got := answers(m.Leave(11)); len(got) != 1 || !got[0].Kept || len(got[0].Outcomes) != 1 || got[0].Outcomes[0].Worker != "w10" {
		t.Errorf("the other one is gone: %v", got)
	}
	if got := m.Report(10, 99, nil); got != nil {
		t.Errorf("a revision that was never ordered: %v", got)
	}
}

func TestFailedPluginIsRemovedEverywhere(t *testing.T) {
	m := plugins.New(0)
	m.Join(10, "w10")
	m.Join(11, "w11")
	order := m.Register(1, "a", nil)
	m.Report(10, order[0].Revision, nil)
	version := order[0].Plugins[0].Version
	got := m.Report(11, order[1].Revision, []plugins.Failure{{Version: version, Failures: "no"}})
	if len(got) != 3 || len(got[0].Plugins) != 0 || len(got[1].Plugins) != 0 || got[2].Kept || got[2].Outcomes[1].Failures != "no" {
		t.Errorf("effects: %v", got)
	}
	if _, known := m.Find("a"); known {
		t.Error("it is registered")
	}
}

// TestPluginsAreLimited: beyond the limit, a plugin can only replace one of its name.
func TestPluginsAreLimited(t *testing.T) {
	m := plugins.New(0)
	for i := range plugins.MaxPlugins {
		name := fmt.Sprint(i)
		if m.Full(name) {
			t.Fatalf("there is no room for plugin %d", i)
		}
		m.Register(plugins.Ticket(i+1), name, nil)
	}
	if !m.Full("one more") {
		t.Error("there is room for one more")
	}
	if m.Full("7") {
		t.Error("a plugin cannot be replaced")
	}
}

// A plugin whose registration was given up goes if its setup fails, as otherwise, and nothing is
// kept of calls that were given up and superseded.
func TestCallsThatWereGivenUpAreForgotten(t *testing.T) {
	m := plugins.New(0)
	m.Join(1, "w")
	for ticket := range plugins.Ticket(100) {
		m.Register(ticket+1, "p", []byte{1})
		m.GiveUp(ticket + 1)
	}
	if n := m.Calls(); n != 1 {
		t.Errorf("%d calls are kept", n)
	}
	last, _ := m.Find("p")
	m.Report(1, 100, []plugins.Failure{{Version: last.Version, Failures: "failed"}})
	if _, stays := m.Find("p"); stays || m.Calls() != 0 {
		t.Errorf("it stays: %t, and %d calls are kept", stays, m.Calls())
	}
}
