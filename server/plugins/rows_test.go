package plugins_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/server/plugins"
)

// pluginsOf returns the durable plugins of a machine, as text.
func pluginsOf(m *plugins.Machine) (list []string) {
	for cursor, more := uint64(0), true; more; {
		cursor, more = m.Rows(cursor, func(row any) {
			c := row.(*plugins.PluginChanged)
			list = append(list, fmt.Sprintf("%s %d %v", c.Name, c.Version, c.Body[:2]))
		})
	}
	return list
}

// A machine that has loaded all changes, or a snapshot taken piece by piece and the changes since
// its beginning, has the durable plugins of the machine that went on. It orders just these from
// workers that come back, with their versions, and never gives a version twice.
func TestPluginsAreLoadedAsTheyWere(t *testing.T) {
	for seed := range uint64(200) {
		w := &world{t: t, random: rand.New(rand.NewPCG(seed, 2)), machine: plugins.New(0), open: make(map[plugins.Ticket]string), kept: make(map[plugins.Ticket]bool)}
		w.size = 600 << 10 // Two plugins are a piece.
		for range 100 {
			w.step()
		}
		from := len(w.log)
		const later = 1_000_000 // Each start begins at the time of its clock.
		snapshot := plugins.New(later)
		for cursor, more := uint64(0), true; more; w.step() {
			cursor, more = w.machine.Rows(cursor, func(row any) { snapshot.Load(*row.(*plugins.PluginChanged)) })
		}
		whole := plugins.New(later)
		for i, c := range w.log {
			whole.Load(c)
			if i >= from {
				snapshot.Load(c)
			}
		}
		want := pluginsOf(w.machine)
		for name, m := range map[string]*plugins.Machine{"the log": whole, "the snapshot": snapshot} {
			if got := pluginsOf(m); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %s has %v, not %v", seed, name, got, want)
			}
			if err := m.Check(); err != nil {
				t.Fatalf("seed %d: %s: %v", seed, name, err)
			}
			order := m.Join(1, "w")
			if len(order) != 1 || len(order[0].Plugins) != len(want) {
				t.Fatalf("seed %d: a worker that comes back is ordered to have %d plugins of %d", seed, len(order[0].Plugins), len(want))
			}
			for _, p := range order[0].Plugins {
				if !slices.Contains(want, fmt.Sprintf("%s %d %v", p.Name, p.Version, p.Body[:2])) {
					t.Fatalf("seed %d: a worker that comes back is ordered to have %s with version %d", seed, p.Name, p.Version)
				}
			}
			m.Register(1, "new", make([]byte, 2))
			if p, _ := m.Find("new"); slices.ContainsFunc(w.log, func(c plugins.PluginChanged) bool { return c.Version >= p.Version }) {
				t.Fatalf("seed %d: version %d is given again", seed, p.Version)
			}
		}
	}
}

// A plugin becomes durable when its registration has ended: what no caller was told may be lost,
// and a setup that fails leaves nothing.
func TestAPluginIsDurableWhenItIsRegistered(t *testing.T) {
	m := plugins.New(0)
	changed := func(effects []plugins.Effect) (list []string) {
		for _, e := range effects {
			if e.Kind == plugins.EffectChanged {
				list = append(list, fmt.Sprint(e.Changed.Name, " ", e.Changed.Version, " ", e.Changed.Gone))
			}
		}
		return list
	}
	expect := func(effects []plugins.Effect, want ...string) {
		t.Helper()
		if got := changed(effects); !slices.Equal(got, want) {
			t.Errorf("the rows change by %q, not %q", got, want)
		}
	}
	m.Join(1, "w")
	expect(m.Register(1, "a", nil))
	expect(m.Report(1, 1, nil), "a 1 false")
	expect(m.Register(2, "a", nil)) // A restart would still have the first one.
	expect(m.Report(1, 2, nil), "a 2 false")
	expect(m.Register(3, "a", nil))
	expect(m.Report(1, 3, []plugins.Failure{{Version: 3, Failures: "no"}}), "a 0 true")
	expect(m.Register(4, "a", nil))
	expect(m.Unregister(5, "a"))
	expect(m.Report(1, 6, nil))
	expect(m.Register(6, "a", nil))
	expect(m.Leave(1), "a 5 false")
	expect(m.Unregister(7, "a"), "a 0 true")
}
