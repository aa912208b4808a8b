package ipc

import "time"

// span are objects of a fetch, side by side, that ended together.
type span struct {
	first, count int
	bytes        uint64
	err          error
}

// group are the objects of a fetch that are on their way on one lane. All but waits, told and wake
// is guarded by lane.mu.
type group struct {
	// open counts the pieces that are not over.
	open int
	// parts are the objects that have several, in the order in which they came.
	parts []part
	// ended are the objects without pieces left that the fetch has not seen yet, seen
	// those that it saw last.
	ended, seen []span
	// forwarded are the objects of which somebody is told how far they have come.
	forwarded map[int]*progress
	// moved is when a piece last ended, or the first began to wait.
	moved time.Time
	// waits, if not nil, is called by who waits: before that with how long it should take, which is told then, and
	// once more if it takes longer.
	waits func(left time.Duration)
	told  time.Duration
	// wake is told when something ended, or when the group should drive. It has room
	// for one.
	wake chan struct{}
}

// part is an object of which each piece ends by itself.
type part struct {
	object int
	// left are its pieces that are not over, bytes those that have come, and err what went
	// wrong first.
	left  int
	bytes uint64
	err   error
}

func newGroup() *group { return &group{wake: make(chan struct{}, 1)} }

// reset makes it as good as new. REQUIRES: nothing of it is under way, and nobody waits.
func (g *group) reset() {
	clear(g.parts)
	clear(g.ended)
	clear(g.seen)
	g.open, g.parts, g.ended, g.seen, g.forwarded, g.waits, g.told = 0, g.parts[:0], g.ended[:0], g.seen[:0], nil, nil, 0
	select {
	case <-g.wake:
	default:
	}
}

func (g *group) notify() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// part returns the books of an object. Those that came last are asked for most.
func (g *group) part(object int) *part {
	for i := len(g.parts) - 1; i >= 0; i-- {
		if g.parts[i].object == object {
			return &g.parts[i]
		}
	}
	g.parts = append(g.parts, part{object: object})
	return &g.parts[len(g.parts)-1]
}

// add takes note of a piece that is to come. REQUIRES: lane.mu.
func (g *group) add(p *piece) {
	g.open++
	if p.part {
		g.part(p.object).left++
	}
}

// end takes note that a piece is over. REQUIRES: lane.mu.
func (g *group) end(p *piece, err error, now time.Time) {
	g.moved = now
	g.open--
	if !p.part {
		g.over(span{p.object, p.count, p.bytes, err})
		return
	}
	books := g.part(p.object)
	if err != nil && books.err == nil {
		books.err = err
	}
	books.bytes += p.bytes
	if f := g.forwarded[p.object]; f != nil && books.err == nil {
		f.end(p.order)
	}
	if books.left--; books.left == 0 {
		g.over(span{p.object, 1, books.bytes, books.err})
	}
}

func (g *group) over(s span) {
	g.ended = append(g.ended, s)
	if len(g.ended) == 1 {
		g.notify()
	}
}

// forward has somebody told of how far an object has come, whose pieces are given.
func (l *lane) forward(g *group, object int, on forwarding, pieces []piece) {
	if on.arrived == nil {
		return
	}
	f := &progress{arrived: on.arrived, ends: make([]uint64, len(pieces)), over: make([]bool, len(pieces))}
	at := uint64(0)
	for i := range pieces {
		at += pieces[i].bytes
		f.ends[i], pieces[i].order = at, i
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.forwarded == nil {
		g.forwarded = make(map[int]*progress)
	}
	g.forwarded[object] = f
}

// progress is how far an object has come.
type progress struct {
	arrived func(bytes uint64)
	// ends are where in the object its pieces end, over those that have come; the first
	// next of them all have.
	ends []uint64
	over []bool
	next int
}

// end takes note that a piece has come, and tells if what has come without a gap is more.
func (p *progress) end(order int) {
	p.over[order] = true
	if order != p.next {
		return
	}
	for p.next < len(p.over) && p.over[p.next] {
		p.next++
	}
	p.arrived(p.ends[p.next-1])
}
