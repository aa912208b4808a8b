package alarms

import (
	"cmp"
	"slices"
)

// Standing is a route beside the comparable ones: those in the same relation that carry objects of
// a size that shows their rates.
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

// Comparison is what a look at all routes has found.
type Comparison struct {
	// Slowest is the route with the lowest rate beside its median; nil: there is no route whose
	// rate counts.
	Slowest *Standing
	// Doubtful are the routes that are slow or between slow and good.
	Doubtful []Standing
}

// Compare compares each route with all that connect workers in the same relation. It is the only
// judge of routes: alarms and the dashboard show what it finds.
func (p Policy) Compare(routes []Route) Comparison {
	p = p.withDefaults()
	byRelation := map[string][]*Route{}
	for i := range routes {
		if r := &routes[i]; r.Fetches > 0 && r.BytesPerSecond > 0 && r.Bytes/r.Fetches >= p.RouteObjectBytes {
			byRelation[r.Relation] = append(byRelation[r.Relation], r)
		}
	}
	var out Comparison
	for _, alike := range byRelation { // sorted: below
		rates, orders := make([]float64, len(alike)), make([]int, len(alike))
		for i, r := range alike {
			rates[i], orders[i] = r.BytesPerSecond, r.Order
		}
		slices.Sort(rates)
		slices.Sort(orders)
		median, usual := rates[len(rates)/2], orders[len(orders)/2]
		for _, r := range alike {
			s := Standing{Route: *r, Median: median, UsualOrder: usual, Alike: len(alike), Good: r.BytesPerSecond > median*p.RouteGood}
			if !s.Good {
				out.Doubtful = append(out.Doubtful, s)
			}
			if out.Slowest == nil || compareStandings(&s, out.Slowest) < 0 {
				out.Slowest = &s
			}
		}
	}
	slices.SortFunc(out.Doubtful, func(a, b Standing) int { return compareStandings(&a, &b) })
	return out
}

// compareStandings puts the slowest route beside its median first.
func compareStandings(a, b *Standing) int {
	return cmp.Or(cmp.Compare(a.BytesPerSecond/a.Median, b.BytesPerSecond/b.Median), cmp.Compare(a.BytesPerSecond, b.BytesPerSecond),
		cmp.Compare(a.Reader, b.Reader), cmp.Compare(a.Source, b.Source))
}
