package loop

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/server/schedapi"
)

const (
	// deathsKept bounds the deaths that are remembered per worker name, and deadNames the number of
	// names with deaths.
	deathsKept = 16
	deadNames  = 4096
)

// deaths remembers how the incarnations of workers ended. A reaped incarnation that is in it cannot
// register again.
type deaths struct {
	// byName holds the deaths of each name, newest first. Catalogue rows share the slices, so they
	// are never changed in place.
	byName map[string][]schedapi.Death
	// order lists the names in the order of their last deaths.
	order []string
}

func newDeaths() deaths { return deaths{byName: map[string][]schedapi.Death{}} }

// of returns the deaths of a name, newest first.
func (d *deaths) of(name string) []schedapi.Death { return d.byName[name] }

// record stores a death, and forgets the name that has not died for the longest time if there are
// too many. The death replaces an earlier record of the same incarnation and keeps details that
// only that one has.
func (d *deaths) record(name string, death schedapi.Death) {
	known, before := d.byName[name]
	if i := slices.IndexFunc(known, func(k schedapi.Death) bool { return k.Incarnation == death.Incarnation }); i >= 0 {
		if len(death.RunningKeys) == 0 {
			death.RunningKeys = known[i].RunningKeys
		}
		death.Reaped = death.Reaped || known[i].Reaped
		death.MemoryUsedBytes = cmp.Or(death.MemoryUsedBytes, known[i].MemoryUsedBytes)
		known = slices.Delete(slices.Clone(known), i, i+1)
	}
	d.byName[name] = append([]schedapi.Death{death}, known[:min(len(known), deathsKept-1)]...)
	if before {
		i := slices.Index(d.order, name)
		d.order = slices.Delete(d.order, i, i+1)
	}
	if d.order = append(d.order, name); len(d.order) > deadNames {
		delete(d.byName, d.order[0])
		d.order = slices.Delete(d.order, 0, 1)
	}
}

// recordDeath remembers a death and shows it with the worker that has the name.
func (l *Loop) recordDeath(name string, death schedapi.Death) {
	if death.Time.IsZero() {
		death.Time = l.now
	}
	l.workers.deaths.record(name, death)
	if w := l.workers.byName[name]; w != nil {
		l.dirty.worker(w, l.now)
	}
}
