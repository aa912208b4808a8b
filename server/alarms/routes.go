package alarms

import (
	"cmp"
	"math/bits"
	"slices"
	"time"
)

// Standing is a route beside the comparable ones: those on which the same worker reads in the same
// relation. Two readers differ in their processors and their load, so that the routes of one say
// little about a single one of the other; Reading compares all routes of one with other readers.
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

// Reading is a worker whose routes of one relation are all slow beside those of other readers.
type Reading struct {
	// Best is the fastest of its Routes, and Taken the time that it has fetched on all of them.
	Best   Route
	Routes int
	Taken  time.Duration
	// Median is the median of what the comparable readers have, UsualOrder the median place of
	// their paths, and Alike the number of these readers, itself among them.
	Median     float64
	UsualOrder int
	Alike      int
}

// Comparison is what a look at all routes has found.
type Comparison struct {
	// Slowest has the route of each reader with the lowest rate beside its median; the slowest one
	// is the first. A reader without evidence is not there.
	Slowest []Standing
	// Doubtful are the routes that are slow or between slow and good.
	Doubtful []Standing
	// Readers are the workers that are slow, or between slow and good, on all their routes of one
	// relation.
	Readers []Reading
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
	readers := map[string][]reader{}
	for of, alike := range groups { // sorted: below
		rates, orders = rates[:0], orders[:0]
		for _, r := range alike {
			rates, orders = append(rates, r.BytesPerSecond), append(orders, r.Order)
		}
		slices.Sort(rates)
		slices.Sort(orders)
		median, usual := rates[len(rates)/2], orders[len(orders)/2]
		readers[of.relation] = append(readers[of.relation], reader{alike, median, usual})
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
	for _, alike := range readers { // sorted: below
		out.Readers = p.compareReaders(out.Readers, alike)
	}
	slices.SortFunc(out.Readers, func(a, b Reading) int {
		return cmp.Or(cmp.Compare(a.Best.BytesPerSecond/a.Median, b.Best.BytesPerSecond/b.Median), cmp.Compare(a.Best.Reader, b.Best.Reader),
			cmp.Compare(a.Best.Relation, b.Best.Relation))
	})
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

// reader has the routes of one reader in one relation.
type reader struct {
	routes []*Route
	median float64
	usual  int
}

// size is the class of the mean object that the reader has fetched: each class is four times the
// one before it. A path that copies nothing has a higher rate for a larger object, so that readers
// of different objects are not compared.
func (r *reader) size() int {
	var carried, fetches uint64
	for _, x := range r.routes {
		carried, fetches = carried+x.Bytes, fetches+x.Fetches
	}
	return bits.Len64(carried/fetches) / 2
}

// compareReaders appends the readers of one relation that are not good.
func (p *Policy) compareReaders(found []Reading, relation []reader) []Reading {
	classes := map[int][]*reader{}
	for i := range relation {
		class := relation[i].size()
		classes[class] = append(classes[class], &relation[i])
	}
	fastest := map[string]pace{}
	for i := range relation {
		for _, x := range relation[i].routes {
			fastest[x.Source] = fastest[x.Source].with(x)
		}
	}
	var medians []float64
	var orders []int
	for _, alike := range classes { // order-free: Compare sorts what is found
		medians, orders = medians[:0], orders[:0]
		for _, r := range alike {
			medians, orders = append(medians, r.median), append(orders, r.usual)
		}
		slices.Sort(medians)
		slices.Sort(orders)
		median, usual := medians[len(medians)/2], orders[len(orders)/2]
		for _, r := range alike {
			best := slices.MaxFunc(r.routes, func(a, b *Route) int {
				return cmp.Or(cmp.Compare(a.BytesPerSecond, b.BytesPerSecond), cmp.Compare(b.Source, a.Source))
			})
			if best.BytesPerSecond > median*p.ReaderGood || len(r.routes) < p.ReaderRoutes || p.sourcesAreSlow(r, fastest, median) {
				continue
			}
			one := Reading{Best: *best, Routes: len(r.routes), Median: median, UsualOrder: usual, Alike: len(alike)}
			for _, x := range r.routes {
				one.Taken += (&Standing{Route: *x}).taken()
			}
			found = append(found, one)
		}
	}
	return found
}

// sourcesAreSlow says whether a reader is not to blame: others read from its sources, and none of
// them does so at a good rate.
func (p *Policy) sourcesAreSlow(r *reader, fastest map[string]pace, median float64) bool {
	shared := false
	for _, x := range r.routes {
		other := fastest[x.Source].without(x.Reader)
		if other > median*p.ReaderGood {
			return false
		}
		shared = shared || other > 0
	}
	return shared
}

// pace has the two highest rates at which different workers read from one source.
type pace struct {
	reader       string
	best, second float64
}

func (s pace) with(x *Route) pace {
	if x.BytesPerSecond > s.best {
		return pace{x.Reader, x.BytesPerSecond, s.best}
	}
	s.second = max(s.second, x.BytesPerSecond)
	return s
}

// without is the highest rate of another worker; 0: there is none.
func (s pace) without(reader string) float64 {
	if s.reader == reader {
		return s.second
	}
	return s.best
}
