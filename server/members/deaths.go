package members

import (
	"cmp"
	"slices"
)

const (
	// deathsKept bounds the deaths that are remembered per name, and deadNames the number of names
	// with deaths.
	deathsKept = 16
	deadNames  = 4096
)

// deaths remembers how the incarnations of workers ended. A reaped incarnation that is in it cannot
// register again.
type deaths struct {
	// byName holds the deaths of each name, newest first. The slices are never changed in place,
	// because readers keep them.
	byName map[string][]Death
	// order lists the names in the order of their last deaths.
	order []string
}

func newDeaths() deaths { return deaths{byName: map[string][]Death{}} }

// record stores a death, and forgets the name that has not died for the longest time if there are
// too many. The death replaces an earlier record of the same incarnation and keeps details that
// only that one has.
func (d *deaths) record(name string, death Death) {
	known, before := d.byName[name]
	if i := d.index(name, death.Incarnation); i >= 0 {
		if len(death.RunningKeys) == 0 {
			death.RunningKeys = known[i].RunningKeys
		}
		death.Reaped = death.Reaped || known[i].Reaped
		death.MemoryUsedBytes = cmp.Or(death.MemoryUsedBytes, known[i].MemoryUsedBytes)
		known = slices.Delete(slices.Clone(known), i, i+1)
	}
	d.byName[name] = append([]Death{death}, known[:min(len(known), deathsKept-1)]...)
	if before {
		i := slices.Index(d.order, name)
		d.order = slices.Delete(d.order, i, i+1)
	}
	if d.order = append(d.order, name); len(d.order) > deadNames {
		delete(d.byName, d.order[0])
		d.order = slices.Delete(d.order, 0, 1)
	}
}

func (d *deaths) index(name, incarnation string) int {
	return slices.IndexFunc(d.byName[name], func(k Death) bool { return k.Incarnation == incarnation })
}

// ran adds keys to the record of a death.
func (d *deaths) ran(event Ran) {
	if i := d.index(event.Name, event.Incarnation); i >= 0 && len(event.Keys) > 0 {
		list := slices.Clone(d.byName[event.Name])
		list[i].RunningKeys = event.Keys
		d.byName[event.Name] = list
	}
}

// record remembers a death, and shows it with the member that has the name.
func (m *Machine) record(name string, death Death) {
	if death.Time.IsZero() {
		death.Time = m.now
	}
	m.deaths.record(name, death)
	if w := m.byName[name]; w != nil {
		m.changed(w)
	}
}
