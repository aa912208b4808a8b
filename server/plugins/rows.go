package plugins

import (
	"cmp"
	"slices"
)

// PluginChanged is a durable row that was put, in place of an earlier one of the name, or one that
// is Gone: then only its name counts. A plugin is durable from the end of its registration on.
type PluginChanged struct {
	Plugin
	Gone bool
}

// pieceBytes bounds the bodies in a piece of Rows; a single one may be larger.
const pieceBytes = 1 << 20

// Rows calls put, with a *PluginChanged, for a piece of the durable plugins: those from the cursor
// on. That is 0 for the first piece and then what the call before has returned. It returns false
// after the last piece. Between two pieces the machine may go on: plugins that change meanwhile may
// be in a piece or not.
func (m *Machine) Rows(cursor uint64, put func(row any)) (next uint64, more bool) {
	bytes := 0
	for _, p := range m.durable() {
		if p.Version < cursor {
			continue
		}
		if bytes > pieceBytes {
			return cursor, true
		}
		put(&PluginChanged{Plugin: p})
		bytes += len(p.Body)
		cursor = p.Version + 1
	}
	return cursor, false
}

// durable returns the plugins that have rows, in the order of their versions.
func (m *Machine) durable() []Plugin {
	list := make([]Plugin, 0, len(m.rows))
	// sorted: below.
	for _, p := range m.rows {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b Plugin) int { return cmp.Compare(a.Version, b.Version) })
	return list
}

// Load keeps a plugin of an earlier start of the scheduler, or removes it. Workers that come back
// have it already, with its version. REQUIRES: no worker has joined, and nothing is registered.
func (m *Machine) Load(c PluginChanged) {
	if c.Gone {
		delete(m.rows, c.Name)
	} else {
		m.rows[c.Name] = c.Plugin
		m.version = max(m.version, c.Version)
	}
	m.plugins = m.durable()
}

// put makes a plugin durable, and drop ends that.
func (m *Machine) put(p Plugin) []Effect {
	m.rows[p.Name] = p
	return []Effect{{Kind: EffectChanged, Changed: &PluginChanged{Plugin: p}}}
}

func (m *Machine) drop(name string) []Effect {
	if _, known := m.rows[name]; !known {
		return nil
	}
	delete(m.rows, name)
	return []Effect{{Kind: EffectChanged, Changed: &PluginChanged{Plugin: Plugin{Name: name}, Gone: true}}}
}
