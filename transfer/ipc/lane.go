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
	// chunkBytes is how much is posted at a time: what comes later and is small
	// waits for the posted ones, whatever stream or priority it has.
	chunkBytes = 64 << 20
	// window is how many are posted: one leaves the link idle between two.
	window = 2
	// smallBytes is up to which size a frame goes before larger ones, and may be
	// gathered.
	smallBytes = 16 << 20
	// maxCopies bounds the copies of a post by the copy engine: each costs the
	// driver 3 µs, in which nothing else can be posted.
	maxCopies = 64
	// turns is how many posts of small frames go before one of large ones that waits.
	turns = 4
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
}

// group are the objects of a fetch that are on their way on one lane. All but wake
// is guarded by lane.mu.
type group struct {
	// left are the pieces of each object that are not over, and errs what went wrong
	// with it first.
	left []int
	errs []error
	// ended are the objects without pieces left that the fetch has not seen yet.
	ended []int
	// open counts the objects with pieces left.
	open int
	// moved is when a piece last ended, or the first began to wait.
	moved time.Time
	// wake is told when something ended, or when the group should drive. It has room
	// for one.
	wake chan struct{}
}

func newGroup(objects int) *group {
	return &group{left: make([]int, objects), errs: make([]error, objects), wake: make(chan struct{}, 1)}
}

func (g *group) notify() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
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

// lane copies from one peer's memory, in the order of its posts. It has no goroutine: of those who wait for
// copies one drives, for all of them.
type lane struct {
	gather *gather // nil: the copy engine only
	copies func(p []piece) []cuda.Copy

	mu sync.Mutex
	// All below is guarded by mu.
	small, large []piece
	posted       []*post
	// row counts the posts of small pieces since the last one of a large.
	row int
	// free are the places of the window that are not in use.
	free    []place
	rates   rates
	driving bool
	waiting []*group
	// lost is why nothing is posted any more.
	lost error
}

func newLane(places []place) *lane {
	return &lane{free: places, rates: assumed, copies: onDevice}
}

// place is one of the window: what is posted has a stream and an event for itself.
// On a single stream the next copy begins 10 to 20 µs after the one before.
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

// add queues pieces and posts what may be posted. Frames that are small come with
// one piece each.
func (l *lane) add(pieces []piece) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, p := range pieces {
		if p.group.left[p.object]++; p.group.left[p.object] == 1 {
			p.group.open++
		}
		p.group.moved = now
		if p.bytes < smallBytes {
			l.small = append(l.small, p)
		} else {
			l.large = append(l.large, p)
		}
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

// fill posts as much as the window allows. REQUIRES: mu.
func (l *lane) fill(now time.Time) {
	if l.lost != nil {
		l.flush()
		return
	}
	for len(l.posted) < window && len(l.small)+len(l.large) > 0 {
		l.post(now, l.next())
	}
}

// next takes what is to be posted next. REQUIRES: mu, and that there is something.
func (l *lane) next() *post {
	p := &post{slot: -1}
	if len(l.small) == 0 || len(l.large) > 0 && l.row >= turns {
		l.row = 0
		p.pieces, l.large = l.large[:1:1], l.large[1:]
		p.bytes = p.pieces[0].bytes
		return p
	}
	l.row++
	n, rows := 0, 0
	for n < len(l.small) && (n == 0 || p.bytes+l.small[n].bytes <= chunkBytes) && rows+gatherRows(l.small[n].bytes) <= tableRows {
		p.bytes += l.small[n].bytes
		rows += gatherRows(l.small[n].bytes)
		n++
	}
	if l.gather != nil && l.rates.gathers(n, p.bytes) {
		p.slot = l.gather.take()
	}
	if p.slot < 0 && n > maxCopies {
		n, p.bytes = maxCopies, 0
		for _, s := range l.small[:n] {
			p.bytes += s.bytes
		}
	}
	p.pieces, l.small = l.small[:n:n], l.small[n:]
	return p
}

// post submits. REQUIRES: mu.
func (l *lane) post(now time.Time, p *post) {
	last := len(l.free) - 1
	p.place, l.free = l.free[last], l.free[:last]
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
	if n := len(l.posted); n > 0 && l.posted[n-1].ends.After(now) {
		p.began = l.posted[n-1].ends
	}
	p.ends = p.began.Add(l.rates.predict(p))
	l.posted = append(l.posted, p)
}

// poll looks which posts are over, and posts more. REQUIRES: mu.
func (l *lane) poll(now time.Time) {
	for len(l.posted) > 0 {
		p := l.posted[0]
		done, err := p.event.Query()
		if err != nil && l.lost == nil {
			l.lost = err
		}
		if !done && l.lost == nil {
			break
		}
		// NB: of a device that is lost nothing runs any more.
		l.posted = l.posted[1:]
		l.free = append(l.free, p.place)
		if p.slot >= 0 {
			l.gather.give(p.slot)
		}
		err = p.err
		if err == nil {
			err = l.lost
		}
		if err == nil {
			l.rates.learn(p, now)
		}
		if len(l.posted) > 0 {
			l.posted[0].began = now
		}
		for _, piece := range p.pieces {
			l.end(piece, err, now)
		}
	}
	l.fill(now)
}

// end takes note that a piece is over. REQUIRES: mu.
func (l *lane) end(p piece, err error, now time.Time) {
	g := p.group
	g.moved = now
	if err != nil && g.errs[p.object] == nil {
		g.errs[p.object] = err
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
	pieces := append(l.small, l.large...)
	l.small, l.large = nil, nil
	for _, p := range pieces {
		l.end(p, l.lost, time.Now())
	}
}

// cancel drops what a group has not posted. What is posted is over when its event
// has been reached, and not before.
func (l *lane) cancel(g *group, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, queue := range []*[]piece{&l.small, &l.large} {
		var dropped []piece
		*queue = slices.DeleteFunc(*queue, func(p piece) bool {
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
// the group has none left. After an error of the context, or stall without any
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
	ended, g.ended = g.ended, nil
	select {
	case <-g.wake:
	default:
	}
	if !l.driving && len(l.posted) > 0 && len(l.waiting) > 0 {
		l.waiting[0].notify() // it drives from now on
	}
	return ended, err
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

// pause passes the time until it is worth asking again. REQUIRES: mu, which it gives
// up meanwhile.
func (l *lane) pause() {
	if len(l.posted) == 0 {
		return
	}
	event := l.posted[0].event
	left := time.Until(l.posted[0].ends)
	nap, spin := max(left-spinAhead, 0), spinFor
	if left < -spinFor {
		nap, spin = longest, 0 // late for a reason that the rates do not know
	}
	if len(l.posted) == window && len(l.small) == 0 {
		// What is behind it keeps the link busy.
		nap, spin = max(left, 0)+slack, 0
	}
	l.mu.Unlock()
	defer l.mu.Lock()
	// Others may have small frames to post before long. What it says, the next poll
	// hears too.
	_, _ = event.Await(min(nap, longest), spin)
}
