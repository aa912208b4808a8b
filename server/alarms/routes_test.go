package alarms_test

import (
	"testing"

	"github.com/millrace/millrace/server/alarms"
)

// Routes are compared with those of the same reader in their relation, by enough objects of a size
// that shows the rate.
func TestRoutesAreComparedForEachReader(t *testing.T) {
	route := func(reader, source, relation string, rate float64, bytes, fetches uint64) alarms.Route {
		return alarms.Route{Reader: reader, Source: source, Relation: relation, BytesPerSecond: rate, Bytes: bytes, Fetches: fetches}
	}
	const mib = 1 << 20
	at := func(reader, source, relation string, rate float64) alarms.Route {
		return route(reader, source, relation, rate, 4*mib, 4)
	}
	type slowest struct {
		pair   string
		median float64
		good   bool
	}
	for name, test := range map[string]struct {
		routes   []alarms.Route
		slowest  []slowest
		doubtful int
	}{
		"none":                    {},
		"small objects":           {routes: []alarms.Route{route("a", "b", "x", 1, 1000*mib, 100_000)}},
		"few fetches":             {routes: []alarms.Route{route("a", "b", "x", 1, 1000*mib, 3)}},
		"no rate yet":             {routes: []alarms.Route{at("a", "b", "x", 0)}},
		"one alone is its median": {[]alarms.Route{at("a", "b", "x", 5)}, []slowest{{"a b", 5, true}}, 0},
		"slow beside its like": {
			[]alarms.Route{at("a", "b", "x", 100), at("a", "c", "x", 24), at("a", "d", "x", 90)}, []slowest{{"a c", 90, false}}, 1,
		},
		"a slow reader beside others": {
			[]alarms.Route{at("a", "b", "x", 24), at("a", "c", "x", 20), at("b", "a", "x", 100), at("b", "c", "x", 90), at("c", "a", "x", 100)},
			[]slowest{{"a c", 24, true}, {"b c", 100, true}, {"c a", 100, true}}, 0,
		},
		"hosts are slower than a host": {
			[]alarms.Route{at("a", "b", "host", 100), at("a", "c", "host", 60), at("a", "d", "hosts", 10), at("a", "e", "hosts", 10)},
			[]slowest{{"a c", 100, true}}, 0,
		},
	} {
		got := alarms.Policy{}.Compare(test.routes)
		if len(got.Doubtful) != test.doubtful {
			t.Errorf("%s: doubtful %+v", name, got.Doubtful)
		}
		if len(got.Slowest) != len(test.slowest) {
			t.Errorf("%s: slowest %+v, want %+v", name, got.Slowest, test.slowest)
			continue
		}
		for i, want := range test.slowest {
			if s := got.Slowest[i]; s.Reader+" "+s.Source != want.pair || s.Median != want.median || s.Good != want.good {
				t.Errorf("%s: %+v, want %+v", name, s, want)
			}
		}
	}
}
