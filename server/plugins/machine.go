// Package plugins is a Machine: it decides which plugins the executors of all workers have, and
// when a registration has ended.
//
// Each change of the list gets a revision and is ordered from every connected worker. A
// registration ends when all workers that were connected have carried out its revision or are gone.
// If its setup has failed on any of them, the plugin is removed again, by a further revision.
package plugins

import (
	"fmt"
	"slices"
	"strings"
)

// Plugin is one registered plugin.
type Plugin struct {
	Name string
	// Version is the number of its registration, from 1. Later ones have higher numbers.
	Version uint64
	// Body is its definition, which the machine does not read.
	Body []byte
}

// Follower is the number of a worker's connection, from 1. A worker that connects again has another
// number.
type Follower uint64

// Ticket is the number of a call that waits for its end, from 1.
type Ticket uint64

// Outcome is what a worker has done with a plugin. Failures are its failed calls, which the machine
// does not read; nil: none has failed.
type Outcome struct {
	Worker   string
	Failures any
}

// EffectKind is the kind of an Effect.
type EffectKind uint8

// Kinds of effects.
const (
	// EffectOrder: send Plugins, with their Revision, to Follower.
	EffectOrder EffectKind = iota + 1
	// EffectAnswer: the call with Ticket has ended with Outcomes. Kept: the plugin stays.
	EffectAnswer
	// EffectChanged: the durable row Changed has changed. An answer in the same step is true as
	// soon as that is durable.
	EffectChanged
)

// Effect is an order of the machine.
type Effect struct {
	Kind     EffectKind
	Follower Follower
	Revision uint64
	Plugins  []Plugin
	Ticket   Ticket
	Kept     bool
	Outcomes []Outcome
	Changed  *PluginChanged
}

// Limits of the number of plugins, and of their bodies in bytes. Each process of an executor sets
// all of them up before its first run.
const (
	MaxPlugins     = 1000
	MaxPluginBytes = 16 << 20
	MaxTotalBytes  = 256 << 20
)

// Machine keeps the plugins. It is not safe for concurrent use.
type Machine struct {
	// plugins are in the order of their versions.
	plugins []Plugin
	// rows are the durable plugins, by name.
	rows      map[string]Plugin
	version   uint64
	revision  uint64
	followers map[Follower]*follower
	calls     []*call
}

type follower struct {
	worker string
	// done is the revision that it has carried out.
	done uint64
}

// call is a registration or an unregistration that has not ended.
type call struct {
	// ticket is 0 if the call was given up.
	ticket Ticket
	// revision is the one that carries it out, version that of its plugin.
	revision, version uint64
	waiting           []Follower
	outcomes          []Outcome
}

// New returns a machine without plugins. Their versions are numbered after the given one: those of
// two starts of the scheduler must differ, because processes of workers outlive it and compare
// versions only.
func New(after uint64) *Machine {
	return &Machine{version: after, rows: make(map[string]Plugin), followers: make(map[Follower]*follower)}
}

// Plugins returns the plugins, in order. The caller must not change them.
func (m *Machine) Plugins() []Plugin { return m.plugins }

// Find returns the plugin of a name.
func (m *Machine) Find(name string) (Plugin, bool) {
	i := slices.IndexFunc(m.plugins, func(p Plugin) bool { return p.Name == name })
	if i < 0 {
		return Plugin{}, false
	}
	return m.plugins[i], true
}

// Full says that there are as many plugins as there may be, and none of a name that a further one
// would replace.
func (m *Machine) Full(name string) bool {
	_, known := m.Find(name)
	return !known && len(m.plugins) >= MaxPlugins
}

// Bytes returns the size of all plugins but the one of a name.
func (m *Machine) Bytes(without string) (n int) {
	for _, p := range m.plugins {
		if p.Name != without {
			n += len(p.Body)
		}
	}
	return n
}

// Register adds a plugin, or replaces the one of this name.
func (m *Machine) Register(ticket Ticket, name string, body []byte) []Effect {
	m.remove(func(p Plugin) bool { return p.Name == name })
	m.version++
	m.plugins = append(slices.Clip(m.plugins), Plugin{Name: name, Version: m.version, Body: body})
	return m.begin(ticket, m.version)
}

// Unregister removes a plugin. REQUIRES: it exists.
func (m *Machine) Unregister(ticket Ticket, name string) []Effect {
	p, _ := m.Find(name)
	m.remove(func(p Plugin) bool { return p.Name == name })
	return append(m.drop(name), m.begin(ticket, p.Version)...)
}

// GiveUp means that nobody waits for the answer to a call any more. Its orders are carried out
// nevertheless: if the setup of its plugin fails, the plugin is removed.
func (m *Machine) GiveUp(ticket Ticket) {
	for _, c := range m.calls {
		if c.ticket == ticket {
			c.ticket = 0
		}
	}
	m.forget()
}

// forget drops the calls of which no answer is awaited, and no plugin depends.
func (m *Machine) forget() {
	m.calls = slices.DeleteFunc(m.calls, func(c *call) bool { return c.ticket == 0 && !m.here(c) })
}

// here reports whether the plugin of a call is in the list.
func (m *Machine) here(c *call) bool {
	return slices.ContainsFunc(m.plugins, func(p Plugin) bool { return p.Version == c.version })
}

// Join adds a worker's connection, and orders the present list from it.
func (m *Machine) Join(id Follower, worker string) []Effect {
	m.followers[id] = &follower{worker: worker}
	return []Effect{{Kind: EffectOrder, Follower: id, Revision: m.revision, Plugins: m.plugins}}
}

// Leave removes a worker's connection. Calls do not wait for it any more.
func (m *Machine) Leave(id Follower) []Effect {
	delete(m.followers, id)
	for _, c := range m.calls {
		c.waiting = slices.DeleteFunc(c.waiting, func(f Follower) bool { return f == id })
	}
	return m.settle()
}

// Failure is a plugin of which calls have failed on a worker.
type Failure struct {
	Version  uint64
	Failures any
}

// Report handles the report of a worker that it has carried out a revision. Reports of unknown
// connections are ignored.
func (m *Machine) Report(id Follower, revision uint64, failures []Failure) []Effect {
	f := m.followers[id]
	if f == nil || revision > m.revision {
		return nil
	}
	f.done = max(f.done, revision)
	for _, c := range m.calls {
		i := slices.Index(c.waiting, id)
		if i < 0 {
			continue
		}
		// A failure may come with a report of an earlier revision: two of them were carried out at
		// the same time.
		failed := slices.IndexFunc(failures, func(x Failure) bool { return x.Version == c.version })
		if c.revision > revision && failed < 0 {
			continue
		}
		c.waiting = slices.Delete(c.waiting, i, i+1)
		outcome := Outcome{Worker: f.worker}
		if failed >= 0 {
			outcome.Failures = failures[failed].Failures
		}
		c.outcomes = append(c.outcomes, outcome)
	}
	return m.settle()
}

func (m *Machine) remove(which func(Plugin) bool) {
	// Lists that were ordered refer to the old slice.
	m.plugins = slices.DeleteFunc(slices.Clone(m.plugins), which)
	m.forget()
}

// begin orders the list from all workers, and lets a call wait for them.
func (m *Machine) begin(ticket Ticket, version uint64) []Effect {
	effects := m.order()
	c := &call{ticket: ticket, revision: m.revision, version: version}
	for _, e := range effects {
		c.waiting = append(c.waiting, e.Follower)
	}
	m.calls = append(m.calls, c)
	return append(effects, m.settle()...)
}

// order makes a revision and orders it from all workers.
func (m *Machine) order() (effects []Effect) {
	m.revision++
	for _, id := range m.connected() {
		effects = append(effects, Effect{Kind: EffectOrder, Follower: id, Revision: m.revision, Plugins: m.plugins})
	}
	return effects
}

func (m *Machine) connected() []Follower {
	list := make([]Follower, 0, len(m.followers))
	// sorted: below.
	for id := range m.followers {
		list = append(list, id)
	}
	slices.Sort(list)
	return list
}

// settle ends the calls that wait for nobody.
func (m *Machine) settle() (effects []Effect) {
	ended := slices.Collect(func(yield func(*call) bool) {
		for _, c := range m.calls {
			if len(c.waiting) == 0 && !yield(c) {
				return
			}
		}
	})
	m.calls = slices.DeleteFunc(m.calls, func(c *call) bool { return len(c.waiting) == 0 })
	for _, c := range ended {
		failed := slices.ContainsFunc(c.outcomes, func(o Outcome) bool { return o.Failures != nil })
		i := slices.IndexFunc(m.plugins, func(p Plugin) bool { return p.Version == c.version })
		here := i >= 0
		switch {
		case here && failed:
			effects = append(effects, m.drop(m.plugins[i].Name)...)
			m.remove(func(p Plugin) bool { return p.Version == c.version })
			effects = append(effects, m.order()...)
		case here:
			effects = append(effects, m.put(m.plugins[i])...)
		}
		if c.ticket == 0 {
			continue
		}
		slices.SortFunc(c.outcomes, func(a, b Outcome) int { return strings.Compare(a.Worker, b.Worker) })
		effects = append(effects, Effect{Kind: EffectAnswer, Ticket: c.ticket, Kept: here && !failed, Outcomes: c.outcomes})
	}
	return effects
}

// Check returns an error if an invariant is broken.
func (m *Machine) Check() error {
	for i, p := range m.plugins {
		if p.Version == 0 || p.Version > m.version || i > 0 && p.Version <= m.plugins[i-1].Version {
			return fmt.Errorf("plugin %q has version %d, out of order", p.Name, p.Version)
		}
		if slices.ContainsFunc(m.plugins[:i], func(other Plugin) bool { return other.Name == p.Name }) {
			return fmt.Errorf("two plugins are named %q", p.Name)
		}
	}
	for _, p := range m.plugins { // A plugin without a row is being registered, and the reverse.
		row, known := m.rows[p.Name]
		if under := slices.ContainsFunc(m.calls, func(c *call) bool { return c.version == p.Version }); !under && (!known || row.Version != p.Version) {
			return fmt.Errorf("plugin %q has version %d, and its row %d", p.Name, p.Version, row.Version)
		}
	}
	// order-free: any one is a problem.
	for name := range m.rows {
		if _, known := m.Find(name); !known {
			return fmt.Errorf("plugin %q has a row, and is not there", name)
		}
	}
	for _, c := range m.calls {
		if len(c.waiting) == 0 {
			return fmt.Errorf("call %d waits for nobody", c.ticket)
		}
		if c.ticket == 0 && !m.here(c) {
			return fmt.Errorf("a call that was given up, for version %d of a plugin that is gone, is kept", c.version)
		}
		for _, id := range c.waiting {
			if f := m.followers[id]; f == nil || f.done >= c.revision {
				return fmt.Errorf("call %d waits for worker %d, which is gone or has done it", c.ticket, id)
			}
		}
	}
	return nil
}
