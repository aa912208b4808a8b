package alarms_test

import (
	"testing"

	"github.com/millrace/millrace/server/alarms"
)

// Routes are compared in their relation, by objects of a size that shows the rate.
func TestRoutesAreComparedInTheirRelation(t *testing.T) {
	route := func(reader, source, relation string, rate float64, bytes, fetches uint64) alarms.Route {
		return alarms.Route{Reader: reader, Source: source, Relation: relation, BytesPerSecond: rate, Bytes: bytes, Fetches: fetches}
	}
	const mib = 1 << 20
	for name, test := range map[string]struct {
		routes   []alarms.Route
		slowest  string // and its median
		median   float64
		doubtful int
	}{
		"none":                    {},
		"small objects":           {routes: []alarms.Route{route("a", "b", "x", 1, 1000*mib, 100_000)}},
		"no rate yet":             {routes: []alarms.Route{route("a", "b", "x", 0, mib, 1)}},
		"one alone is its median": {[]alarms.Route{route("a", "b", "x", 5, mib, 1)}, "a b", 5, 0},
		"slow beside its like": {[]alarms.Route{
			route("a", "b", "x", 100, mib, 1), route("a", "c", "x", 24, mib, 1), route("b", "a", "x", 90, mib, 1), route("b", "c", "x", 50, mib, 1),
		}, "a c", 90, 1},
		"hosts are slower than a host": {[]alarms.Route{
			route("a", "b", "host", 100, mib, 1), route("b", "a", "host", 60, mib, 1), route("a", "c", "hosts", 10, mib, 1), route("c", "a", "hosts", 10, mib, 1),
		}, "b a", 100, 0},
	} {
		got := alarms.Policy{}.Compare(test.routes)
		if len(got.Doubtful) != test.doubtful {
			t.Errorf("%s: doubtful %+v", name, got.Doubtful)
		}
		switch s := got.Slowest; {
		case s == nil && test.slowest != "":
			t.Errorf("%s: none is the slowest, want %s", name, test.slowest)
		case s != nil && (s.Reader+" "+s.Source != test.slowest || s.Median != test.median):
			t.Errorf("%s: the slowest is %+v, want %s beside %v", name, *s, test.slowest, test.median)
		}
	}
}
