package ipc

import "time"

// span is a range of contiguous objects of a fetch that ended together.
type span struct {
	first, count int
	bytes        uint64
	err          error
}

// group is the set of a fetch's objects that are being copied on one copy queue. All fields but
// waits, reportedWait and wake are guarded by copyQueue.mu.
type group struct {
	// open counts the pieces that are not over.
	open int
	// parts are the objects with several pieces, in the order of their first pieces.
	parts []part
	// ended are the finished objects that the fetch has not received yet. seen is the list that it
	// received last, kept for reuse.
	ended, seen []span
	// forwarded has the objects whose progress is reported to downstream readers.
	forwarded map[int]*progress
	// moved is when a piece last ended, or when pieces were last added.
	moved time.Time
	// waits, if not nil, is called by the waiting goroutine with the expected duration of the wait:
	// before the wait, and again if it takes longer. reportedWait is the longest duration reported
	// so far.
	waits        func(left time.Duration)
	reportedWait time.Duration
	// wake, with a capacity of 1, is signalled when something ended, or when a waiter of this group
	// should poll the queue.
	wake chan struct{}
}

// part is an object with several pieces that end separately.
type part struct {
	object int
	// left is the number of pieces that are not over, bytes the size of the pieces that are over,
	// err the first error.
	left  int
	bytes uint64
	err   error
}

func newGroup() *group { return &group{wake: make(chan struct{}, 1)} }

// reset prepares the group for reuse. REQUIRES: it has no open pieces and no waiters.
func (g *group) reset() {
	clear(g.parts)
	clear(g.ended)
	clear(g.seen)
	g.open, g.parts, g.ended, g.seen, g.forwarded, g.waits, g.reportedWait = 0, g.parts[:0], g.ended[:0], g.seen[:0], nil, nil, 0
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

// part returns the state of an object. The latest object is requested most often.
func (g *group) part(object int) *part {
	for i := len(g.parts) - 1; i >= 0; i-- {
		if g.parts[i].object == object {
			return &g.parts[i]
		}
	}
	g.parts = append(g.parts, part{object: object})
	return &g.parts[len(g.parts)-1]
}

// add registers a piece that is being queued. REQUIRES: copyQueue.mu.
func (g *group) add(p *piece) {
	g.open++
	if p.part {
		g.part(p.object).left++
	}
}

// end registers that a piece is over. REQUIRES: copyQueue.mu.
func (g *group) end(p *piece, err error, now time.Time) {
	g.moved = now
	g.open--
	if !p.part {
		g.over(span{p.object, p.count, p.bytes, err})
		return
	}
	o := g.part(p.object)
	if err != nil && o.err == nil {
		o.err = err
	}
	o.bytes += p.bytes
	if f := g.forwarded[p.object]; f != nil && o.err == nil {
		f.end(p.order)
	}
	if o.left--; o.left == 0 {
		g.over(span{p.object, 1, o.bytes, o.err})
	}
}

func (g *group) over(s span) {
	g.ended = append(g.ended, s)
	if len(g.ended) == 1 {
		g.notify()
	}
}
