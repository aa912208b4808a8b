package alarms

import (
	"cmp"
	"slices"
	"time"
)

// Standing is a route beside the comparable ones: those on which the same worker reads in the same
// relation. Two readers differ in their processors and their load, so that the routes of one say
// little about those of the other.
type Standing struct {
	Route
	// Median is the median rate of the comparable routes, UsualOrder the median place of their
	// paths, and Alike the number of these routes.
	Median     float64
	UsualOrder int
	Alike      int
	// Good: it is not slow, nor between slow and good.
	Good bool
}

// taken is about how long the reader has fetched on the route in all.
func (s *Standing) taken() time.Duration {
	return time.Duration(float64(s.Bytes) / s.BytesPerSecond * float64(time.Second))
}

// Comparison is what a look at all routes has found.
type Comparison struct {
	// Slowest has the route of each reader with the lowest rate beside its median; the slowest one
	// is the first. A reader without evidence is not there.
	Slowest []Standing
	// Doubtful are the routes that are slow or between slow and good.
	Doubtful []Standing
}

// Compare compares each route that has evidence of its rate with all on which the same worker reads
// in the same relation. It is the only judge of routes, for alarms and for the dashboard.
func (p Policy) Compare(routes []Route) Comparison {
	p = p.withDefaults()
	type group struct{ reader, relation string }
	groups := map[group][]*Route{}
	for i := range routes {
		if r := &routes[i]; p.shows(r) {
			of := group{r.Reader, r.Relation}
			groups[of] = append(groups[of], r)
		}
	}
	var out Comparison
	slowest := map[string]Standing{}
	var rates []float64
	var orders []int
	for of, alike := range groups { // sorted: below
		rates, orders = rates[:0], orders[:0]
		for _, r := range alike {
			rates, orders = append(rates, r.BytesPerSecond), append(orders, r.Order)
		}
		slices.Sort(rates)
		slices.Sort(orders)
		median, usual := rates[len(rates)/2], orders[len(orders)/2]
		for _, r := range alike {
			s := Standing{Route: *r, Median: median, UsualOrder: usual, Alike: len(alike), Good: r.BytesPerSecond > median*p.RouteGood}
			if !s.Good {
				out.Doubtful = append(out.Doubtful, s)
			}
			if known, has := slowest[of.reader]; !has || compareStandings(&s, &known) < 0 {
				slowest[of.reader] = s
			}
		}
	}
	for _, s := range slowest { // sorted: below
		out.Slowest = append(out.Slowest, s)
	}
	for _, list := range [][]Standing{out.Slowest, out.Doubtful} {
		slices.SortFunc(list, func(a, b Standing) int { return compareStandings(&a, &b) })
	}
	return out
}

// shows says whether what a route has carried is evidence of its rate.
func (p *Policy) shows(r *Route) bool {
	return r.Fetches >= p.RouteFetches && r.BytesPerSecond > 0 && r.Bytes/r.Fetches >= p.RouteObjectBytes
}

// compareStandings puts the slowest route beside its median first.
func compareStandings(a, b *Standing) int {
	return cmp.Or(cmp.Compare(a.BytesPerSecond/a.Median, b.BytesPerSecond/b.Median), cmp.Compare(a.BytesPerSecond, b.BytesPerSecond),
		cmp.Compare(a.Reader, b.Reader), cmp.Compare(a.Source, b.Source))
}
