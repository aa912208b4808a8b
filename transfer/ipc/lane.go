package ipc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

const (
	// chunkBytes is how much is posted at a time: a fetch that is given up waits for
	// what is posted, and each chunk costs 8 µs.
	chunkBytes = 128 << 20
	// window is how many of each kind are posted: one leaves the link idle between two.
	window = 2
	// smallBytes is up to which size a frame goes before larger ones, and may be
	// gathered.
	smallBytes = 16 << 20
	// batchBytes is how much is copied by one launch, or one row of copies.
	batchBytes = 64 << 20
	// maxCopies bounds the copies of a post by the copy engine: each costs the
	// driver 3 µs, in which nothing else can be posted.
	maxCopies = 64
)

// The waiter: what is over within spinFor is waited for by asking, all else by
// short sleeps until spinAhead before the time that the rates predict. Where another
// post keeps the link busy, slack behind it is soon enough. A wait is no longer than
// longest.
const (
	spinFor   = 200 * time.Microsecond
	spinAhead = 60 * time.Microsecond
	slack     = 60 * time.Microsecond
	longest   = 500 * time.Microsecond
)

// piece is a range of a frame that is copied at once.
type piece struct {
	to, from, bytes uint64
	group           *group
	object          int
	// order counts the pieces of a forwarded object. step: it is smaller than it need
	// be, so that somebody who waits for it gets it soon.
	order int
	step  bool
}

// group are the objects of a fetch that are on their way on one lane. All but wake
// is guarded by lane.mu.
type group struct {
	// left are the pieces of each object that are not over, and errs what went wrong
	// first with those that have an entry.
	left []int32
	errs map[int]error
	// ended are the objects without pieces left that the fetch has not seen yet, seen
	// those that it saw last.
	ended, seen []int
	// open counts the objects with pieces left.
	open int
	// forwarded are the objects of which somebody is told how far they have come.
	forwarded map[int]*progress
	// moved is when a piece last ended, or the first began to wait.
	moved time.Time
	// wake is told when something ended, or when the group should drive. It has room
	// for one.
	wake chan struct{}
}

func newGroup(objects int) *group {
	return &group{left: make([]int32, objects), ended: make([]int, 0, objects), wake: make(chan struct{}, 1)}
}

func (g *group) notify() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// A queue is that of the frames that are small or of the pieces of larger ones.
const (
	small = iota
	large
)

// queue are pieces of one kind. Its posts end in their order.
type queue struct {
	pieces []piece
	posted []*post
	// free are the places of the window that are not in use.
	free []place
}

// post is what was submitted together, behind one event.
type post struct {
	pieces []piece
	bytes  uint64
	place
	// slot is that of the gather's tables, -1 for the copy engine.
	slot int
	err  error
	// began is when it had the link for itself, ends when it should be over.
	began, ends time.Time
}

// lane copies from one peer's memory. It has no goroutine: of those who wait for
// copies one drives, for all of them.
type lane struct {
	gather *gather // nil: the copy engine only
	copies func(p []piece) []cuda.Copy
	ingress

	mu sync.Mutex
	// All below is guarded by mu.
	queues  [2]queue
	rates   rates
	driving bool
	waiting []*group
	// lost is why nothing is posted any more.
	lost error
}

func newLane(places [2][]place) *lane {
	l := &lane{rates: assumed, copies: onDevice}
	for kind := range l.queues {
		l.queues[kind].free = places[kind]
	}
	return l
}

// place is one of a window: an event, and a stream, which those of large pieces
// share. With streams of their own, of the copies of several lanes it is often two
// of the same source that run, and other sources are idle.
type place struct {
	stream *cuda.Stream
	event  *cuda.Event
}

func onDevice(pieces []piece) []cuda.Copy {
	copies := make([]cuda.Copy, len(pieces))
	for i, p := range pieces {
		copies[i] = cuda.OnDevice(p.to, p.from, p.bytes)
	}
	return copies
}

// add queues pieces, which are the lane's from then on, and posts what may be posted.
func (l *lane) add(pieces []piece) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	most := 0
	for i := range pieces {
		p := &pieces[i]
		g := p.group
		if g.left[p.object]++; g.left[p.object] == 1 {
			g.open++
		}
		if p.bytes >= smallBytes {
			most++
		}
	}
	pieces[0].group.moved = now // they are all of one
	q := &l.queues[small]
	switch {
	case most == 0 && len(q.pieces) == 0:
		q.pieces = pieces[:len(pieces):len(pieces)] // nobody else's get in there
	case most == 0:
		q.pieces = append(q.pieces, pieces...)
	default:
		for _, p := range pieces {
			kind := small
			if p.bytes >= smallBytes {
				kind = large
			}
			l.queues[kind].pieces = append(l.queues[kind].pieces, p)
		}
	}
	if len(q.posted) == window && !l.driving {
		l.poll(now) // whoever adds may not wait for a while yet
		return
	}
	l.fill(now)
}

// split appends a frame as pieces.
func split(pieces []piece, to, from, bytes, chunk uint64, g *group, object int) []piece {
	for at := uint64(0); at < bytes; at += chunk {
		pieces = append(pieces, piece{to: to + at, from: from + at, bytes: min(chunk, bytes-at), group: g, object: object})
	}
	return pieces
}

// fill posts as much as the windows allow. REQUIRES: mu.
func (l *lane) fill(now time.Time) {
	if l.lost != nil {
		l.flush()
		return
	}
	for q := &l.queues[small]; len(q.posted) < window && len(q.pieces) > 0; {
		l.post(now, q, l.nextSmall())
	}
	q := &l.queues[large]
	for len(q.posted) < window && len(q.pieces) > 0 && l.enter(now, q) {
		p := &post{slot: -1, pieces: q.pieces[:1:1], bytes: q.pieces[0].bytes}
		q.pieces = q.pieces[1:]
		l.post(now, q, p)
	}
	l.leave(q)
}

// nextSmall takes what is to be posted next. REQUIRES: mu, and that there is something.
func (l *lane) nextSmall() *post {
	p, q := &post{slot: -1}, &l.queues[small]
	n, rows := 0, 0
	for n < len(q.pieces) && (n == 0 || p.bytes+q.pieces[n].bytes <= batchBytes) && rows+gatherRows(q.pieces[n].bytes) <= tableRows {
		p.bytes += q.pieces[n].bytes
		rows += gatherRows(q.pieces[n].bytes)
		n++
	}
	// The copy engine does one copy after the other: behind a large one it is late.
	if l.gather != nil && (len(l.queues[large].posted) > 0 || l.rates.gathers(n, p.bytes)) {
		p.slot = l.gather.take()
	}
	if p.slot < 0 && n > maxCopies {
		n, p.bytes = maxCopies, 0
		for _, s := range q.pieces[:n] {
			p.bytes += s.bytes
		}
	}
	p.pieces, q.pieces = q.pieces[:n:n], q.pieces[n:]
	return p
}

// post submits. REQUIRES: mu.
func (l *lane) post(now time.Time, q *queue, p *post) {
	last := len(q.free) - 1
	p.place, q.free = q.free[last], q.free[:last]
	if p.slot >= 0 {
		p.err = l.gather.launch(p.stream, p)
	} else {
		p.err = p.stream.Copy(l.copies(p.pieces), p.event)
	}
	if p.err != nil {
		// Some of it may run: it is over when the stream has got here.
		if err := p.event.Record(p.stream); err != nil {
			l.lost = errors.Join(p.err, err)
		}
	}
	p.began = now
	if n := len(q.posted); n > 0 && q.posted[n-1].ends.After(now) {
		p.began = q.posted[n-1].ends
	}
	p.ends = p.began.Add(l.rates.predict(p))
	q.posted = append(q.posted, p)
}

// poll looks which posts are over, and posts more. REQUIRES: mu.
func (l *lane) poll(now time.Time) {
	alone := len(l.queues[small].posted) == 0 || len(l.queues[large].posted) == 0
	for kind := range l.queues {
		q := &l.queues[kind]
		for len(q.posted) > 0 && l.over(q.posted[0], now, alone) {
			q.free = append(q.free, q.posted[0].place)
			if q.posted = q.posted[1:]; len(q.posted) > 0 {
				q.posted[0].began = now
			}
		}
	}
	l.fill(now)
}

// over says whether a post is, and ends its pieces then. If it was alone, its time
// tells a rate. REQUIRES: mu.
func (l *lane) over(p *post, now time.Time, alone bool) bool {
	done, err := p.event.Query()
	if err != nil && l.lost == nil {
		l.lost = err
	}
	if !done && l.lost == nil {
		return false
	}
	// NB: of a device that is lost nothing runs any more.
	if p.slot >= 0 {
		l.gather.give(p.slot)
	}
	err = p.err
	if err == nil {
		err = l.lost
	}
	if err == nil && alone && !p.pieces[0].step {
		l.rates.learn(p, now)
	}
	for _, piece := range p.pieces {
		l.end(piece, err, now)
	}
	return true
}

// end takes note that a piece is over. REQUIRES: mu.
func (l *lane) end(p piece, err error, now time.Time) {
	g := p.group
	g.moved = now
	if err != nil && g.errs[p.object] == nil {
		if g.errs == nil {
			g.errs = make(map[int]error)
		}
		g.errs[p.object] = err
	}
	if f := g.forwarded[p.object]; f != nil && g.errs[p.object] == nil {
		f.end(p.order)
	}
	if g.left[p.object]--; g.left[p.object] == 0 {
		g.open--
		g.ended = append(g.ended, p.object)
		if len(g.ended) == 1 {
			g.notify()
		}
	}
}

// flush ends all that is not posted: the device is lost. REQUIRES: mu.
func (l *lane) flush() {
	for kind := range l.queues {
		pieces := l.queues[kind].pieces
		l.queues[kind].pieces = nil
		for _, p := range pieces {
			l.end(p, l.lost, time.Now())
		}
	}
}

// cancel drops what a group has not posted. What is posted is over when its event
// has been reached, and not before.
func (l *lane) cancel(g *group, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind := range l.queues {
		q := &l.queues[kind]
		var dropped []piece
		q.pieces = slices.DeleteFunc(q.pieces, func(p piece) bool {
			if p.group == g {
				dropped = append(dropped, p)
			}
			return p.group == g
		})
		for _, p := range dropped {
			l.end(p, why, g.moved)
		}
	}
}

// wait returns the objects of a group that have ended, at least one, or none if
// the group has none left; the list is good until the next call. After an error of the context, or stall without any
// progress, it drops what is not posted, waits for the rest and returns that error.
func (l *lane) wait(ctx context.Context, g *group, stall time.Duration) (ended []int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(g.ended) == 0 && g.open > 0 {
		if err == nil {
			if err = l.givenUp(ctx, g, stall); err != nil {
				l.mu.Unlock()
				l.cancel(g, err)
				l.mu.Lock()
				continue
			}
		}
		if l.driving {
			l.waiting = append(l.waiting, g)
			l.mu.Unlock()
			await(ctx, g, err == nil, stall)
			l.mu.Lock()
			l.waiting = slices.DeleteFunc(l.waiting, func(w *group) bool { return w == g })
			continue
		}
		l.driving = true
		l.poll(time.Now())
		if len(g.ended) == 0 && g.open > 0 {
			l.pause()
		}
		l.driving = false
	}
	ended, g.ended, g.seen = g.ended, g.seen[:0], g.ended
	select {
	case <-g.wake:
	default:
	}
	if !l.driving && l.busy() && len(l.waiting) > 0 {
		l.waiting[0].notify() // it drives from now on
	}
	return ended, err
}

// look is wait without waiting, for a group with one object that gets more and more
// pieces: it says whether some of them are not over, when the last was, and what went
// wrong. Who looks sees to it that the lane goes on.
func (l *lane) look(g *group) (open bool, moved time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.driving {
		l.poll(time.Now())
	}
	g.ended = g.ended[:0]
	return g.open > 0, g.moved, g.errs[0]
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

// givenUp says why a group should not wait any longer. REQUIRES: mu.
func (l *lane) givenUp(ctx context.Context, g *group, stall time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if quiet := time.Since(g.moved); quiet > stall {
		return fmt.Errorf("%w: no copy ended for %v", transfer.ErrStalled, quiet.Round(time.Millisecond))
	}
	return nil
}

// await waits until somebody has news for the group.
func await(ctx context.Context, g *group, impatient bool, stall time.Duration) {
	if !impatient {
		<-g.wake
		return
	}
	timer := time.NewTimer(stall)
	defer timer.Stop()
	select {
	case <-g.wake:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// busy says whether something is under way, or waits for its turn. REQUIRES: mu.
func (l *lane) busy() bool {
	return len(l.queues[small].posted) > 0 || len(l.queues[large].posted) > 0 || len(l.queues[large].pieces) > 0
}

// pause passes the time until it is worth asking again. REQUIRES: mu, which it gives
// up meanwhile.
func (l *lane) pause() {
	var next *queue
	for kind := range l.queues {
		q := &l.queues[kind]
		if len(q.posted) > 0 && (next == nil || q.posted[0].ends.Before(next.posted[0].ends)) {
			next = q
		}
	}
	// Who has no more than one chunk under way looks for a turn.
	waits := len(l.queues[large].pieces) > 0 && len(l.queues[large].posted) < window
	if next == nil {
		if waits {
			l.mu.Unlock()
			nap(turnPoll)
			l.mu.Lock()
		}
		return
	}
	event := next.posted[0].event
	left := time.Until(next.posted[0].ends)
	sleep, spin := max(left-spinAhead, 0), spinFor
	if left < -spinFor {
		sleep, spin = longest, 0 // late for a reason that the rates do not know
	}
	if next == &l.queues[large] && len(next.posted) == window && !l.queuesSmall() && !next.posted[0].pieces[0].step {
		// What is behind it keeps the link busy.
		sleep, spin = max(left, 0)+slack, 0
	}
	if waits {
		sleep, spin = min(sleep, turnPoll), min(spin, turnPoll)
	}
	l.mu.Unlock()
	defer l.mu.Lock()
	// Others may have small frames to post before long. What it says, the next poll
	// hears too.
	_, _ = event.Await(min(sleep, longest), spin)
}

func (l *lane) queuesSmall() bool {
	return len(l.queues[small].pieces)+len(l.queues[small].posted) > 0
}
