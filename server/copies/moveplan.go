package copies

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

const (
	// evenWithin is the distance from the mean fill, as a share of it, within which a worker counts
	// as even. Without it, a rebalance would move objects for ever smaller gains.
	evenWithin = 0.05
	// plannedMoves bounds the moves of one plan. A further plan follows.
	plannedMoves = 100_000
)

// move is the plan to copy an object to another worker and to drop it at its source.
type move struct {
	object     ids.TaskID
	generation ids.Attempt
	bytes      uint64
	from, to   ids.WorkerID
}

// share is a worker's part in a plan: the bytes that it holds and may hold.
type share struct {
	worker Worker
	// weight is its limit of memory, or 1 if some worker of the plan has no limit.
	weight float64
	// held are the bytes that it holds after the moves that are planned so far.
	held float64
	// room is the number of bytes that it can take.
	room float64
	// receives means that it can get objects.
	receives bool
	// staying are the bytes of its objects that may not move; known for givers only.
	staying uint64
}

// fill is the share of its memory that a worker uses for objects.
func (s *share) fill() float64 { return s.held / s.weight }

// movePlan plans the moves that even out the fill of workers.
type movePlan struct {
	m      *Machine
	shares []share
	mean   float64 // the fill of all workers together
	moves  []move
	// cut means that the plan has reached plannedMoves.
	cut bool
}

// planMoves plans moves between workers. It is proportional to the objects of the workers above the
// mean, and to the planned moves times the workers.
//
// First each worker above the mean gives away its largest objects that neither leave it below the
// mean nor lift the receiver above it, by more than evenWithin. Then objects that are larger than
// the difference may move, if the receiver is afterwards less full than the giver was before. Each
// move lowers the larger fill of the two workers, so a plan ends, and so do plans that follow each
// other.
func (m *Machine) planMoves(workers []Worker) *movePlan {
	p := &movePlan{m: m, shares: make([]share, len(workers))}
	limited := !slices.ContainsFunc(workers, func(w Worker) bool { return w.MemoryBytes == 0 })
	held, weights := 0.0, 0.0
	for i, w := range workers {
		s := &p.shares[i]
		*s = share{worker: w, weight: 1, held: float64(w.HeldBytes), room: w.Room, receives: w.Native}
		if limited {
			s.weight = float64(w.MemoryBytes)
		}
		held += s.held
		weights += s.weight
	}
	if held == 0 || len(workers) < 2 {
		return p
	}
	p.mean = held / weights
	givers := make([]int, 0, len(workers))
	for i := range p.shares {
		if p.shares[i].fill() > p.mean {
			givers = append(givers, i)
		}
	}
	slices.SortFunc(givers, func(x, y int) int {
		return cmp.Or(cmp.Compare(p.shares[y].fill(), p.shares[x].fill()), cmp.Compare(x, y))
	})
	left := make([][]move, len(p.shares))
	for _, i := range givers {
		left[i] = p.giveFitting(&p.shares[i], p.movable(&p.shares[i]))
	}
	for _, i := range givers {
		p.giveLarge(&p.shares[i], left[i])
	}
	return p
}

// movable lists the objects of a worker that may move, largest first, and counts the bytes of the
// others.
func (p *movePlan) movable(s *share) []move {
	var out []move
	movable := uint64(0)
	for _, id := range p.m.tables.Objects(s.worker.ID) {
		if o, _ := p.m.tables.Object(id); p.m.mayMove(id, &o) {
			out = append(out, move{object: id, generation: o.Generation, bytes: o.Bytes, from: s.worker.ID})
			movable += o.Bytes
		}
	}
	s.staying = s.worker.HeldBytes - movable
	slices.SortFunc(out, func(x, y move) int {
		if x.bytes != y.bytes {
			return cmp.Compare(y.bytes, x.bytes)
		}
		return cmp.Compare(x.object, y.object)
	})
	return out
}

// emptiest returns the least full worker that passes the test and has room for an object; nil if
// there is none.
func (p *movePlan) emptiest(giver *share, bytes float64, pass func(*share) bool) *share {
	var best *share
	for i := range p.shares {
		if s := &p.shares[i]; s != giver && s.receives && s.room >= bytes && pass(s) && (best == nil || s.fill() < best.fill()) {
			best = s
		}
	}
	return best
}

// uneven reports whether a worker is above the mean by more than evenWithin, or another one that
// can receive is below it by more.
func (p *movePlan) uneven(giver *share) bool {
	return giver.fill() > p.mean*(1+evenWithin) || slices.ContainsFunc(p.shares, func(s share) bool {
		return s.receives && s.room > 0 && s.fill() < p.mean*(1-evenWithin)
	})
}

// giveFitting plans the moves of objects that fit between a worker's surplus and the receiver's
// lack. It returns the objects that stay.
func (p *movePlan) giveFitting(giver *share, objects []move) []move {
	lowest, highest := p.mean*(1-evenWithin), p.mean*(1+evenWithin)
	// No receiver takes more than largest bytes.
	largest := 0.0
	measure := func() {
		largest = 0
		for i := range p.shares {
			if s := &p.shares[i]; s != giver && s.receives {
				largest = max(largest, min(highest*s.weight-s.held, s.room))
			}
		}
	}
	measure()
	var left []move
	for i, o := range objects {
		bytes := float64(o.bytes)
		if giver.fill() <= p.mean || !p.uneven(giver) || p.cut {
			return append(left, objects[i:]...)
		}
		if bytes > largest || giver.held-bytes < lowest*giver.weight {
			left = append(left, o)
			continue
		}
		to := p.emptiest(giver, bytes, func(s *share) bool {
			after := s.held + bytes
			return s.fill() < p.mean && after <= highest*s.weight && after/s.weight < giver.fill()
		})
		if to == nil {
			measure()
			left = append(left, o)
			continue
		}
		p.give(giver, to, o)
	}
	return left
}

// giveLarge plans the moves of objects that are larger than the difference from the mean: smallest
// first, because these come closest to it.
func (p *movePlan) giveLarge(giver *share, objects []move) {
	for _, o := range slices.Backward(objects) {
		if p.cut || giver.fill() <= p.mean || !p.uneven(giver) {
			return
		}
		bytes := float64(o.bytes)
		gain := giver.fill() - p.mean*evenWithin
		if to := p.emptiest(giver, bytes, func(s *share) bool { return (s.held+bytes)/s.weight < gain }); to != nil {
			p.give(giver, to, o)
		}
	}
}

func (p *movePlan) give(from, to *share, o move) {
	bytes := float64(o.bytes)
	from.held -= bytes
	to.held += bytes
	to.room -= bytes
	o.to = to.worker.ID
	p.moves = append(p.moves, o)
	p.cut = len(p.moves) >= plannedMoves
}

// mayMove reports whether an object may move to another worker. It stays if several workers have
// it, because a replica that was ordered and a cached copy are alike here; if the scheduler has it
// inline, because then no worker fetches it; and if a task needs it where it is.
func (m *Machine) mayMove(id ids.TaskID, o *Object) bool {
	if o.State != ObjectStored || !o.Wanted || o.Bytes == 0 || o.Inline || m.copyOf[id] != nil {
		return false
	}
	m.holders = m.tables.Holders(id, m.holders[:0])
	return len(m.holders) == 1 && !m.tables.Used(id, 0, true)
}
