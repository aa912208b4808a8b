package ipc

import (
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/memory/cuda"
)

const (
	// chunkBytes is the size of a post of a large frame. A fetch that is given up waits for its
	// posted chunks; each chunk costs 8 µs.
	chunkBytes = 128 << 20
	// window is the number of concurrent posts of each kind. With one the link would idle between
	// posts.
	window = 2
	// Frames of less than smallBytes are small: they are posted before larger ones and may be
	// gathered.
	smallBytes = 16 << 20
	// batchBytes bounds the bytes of one post of small frames.
	batchBytes = 64 << 20
	// maxCopies bounds the copies of one post by the copy engine: each takes the driver 3 µs,
	// during which nothing else can be posted.
	maxCopies = 64
)

// The two kinds of queues: small frames, and chunks of large frames.
const (
	small = iota
	large
)

// queue holds the pieces of one kind. Its posts end in order.
type queue struct {
	// pieces[next:] are not posted yet.
	pieces []piece
	next   int
	posted []*post
	// free are the unused places of the window.
	free []place
}

func (q *queue) len() int { return len(q.pieces) - q.next }

func (q *queue) first() *piece { return &q.pieces[q.next] }

// take moves n pieces to a post.
func (q *queue) take(p *post, n int) {
	for i := range q.pieces[q.next : q.next+n] {
		from := &q.pieces[q.next+i]
		p.pieces = append(p.pieces, *from)
		p.bytes += from.bytes
		p.copies += len(from.rows)
		*from = piece{}
	}
	if q.next += n; q.next == len(q.pieces) {
		q.pieces, q.next = q.pieces[:0], 0
	}
}

// post is a set of pieces that was submitted together, with one event behind it.
type post struct {
	pieces []piece
	bytes  uint64
	// copies is the number of rows.
	copies int
	place
	// slot is the table slot of a gather; -1 means the copy engine.
	slot int
	err  error
	// least is a time before which the post cannot be over. done: it is known to be over. unsure:
	// its event may still be that of an earlier post, so the event must not be queried.
	least  time.Time
	done   bool
	unsure bool
}

// copyQueue is the copy queue for one peer's memory. It has no goroutine: of the goroutines that
// wait for copies one polls the queue for all of them.
type copyQueue struct {
	gather *gather // nil: the copy engine only
	// copy makes one row a copy by the copy engine.
	copy func(to, from, bytes uint64) cuda.Copy
	// fastest is an upper bound of the link's rate, in bytes per second. 0: none is known.
	fastest float64
	// submit, now and sleep are toDevice, time.Now and preciseSleep, except in tests. quiet waits
	// until none of the posted copies runs any more. It returns an error if it could not find that
	// out. lost means that the device is lost, so that nothing runs on it.
	submit func(p *post) error
	now    func() time.Time
	sleep  func(time.Duration)
	quiet  func() (lost bool, err error)
	gateState

	mu sync.Mutex
	// All fields below are guarded by mu.
	queues  [2]queue
	tally   tally
	polling bool
	waiting []*group
	// moved is when a post last ended.
	moved time.Time
	// lost, if set, is the error after which nothing is posted: the driver could not tell when a
	// post is over. still: none of the posted copies runs any more. gone: the device is lost, so
	// the queue never works again. Otherwise the queue continues when all posted copies have ended.
	lost        error
	still, gone bool
	// spare are posts for reuse. copies is the reused list of one post's copies.
	spare  []*post
	copies []cuda.Copy
}

func newCopyQueue(places [2][]place) *copyQueue {
	cq := &copyQueue{copy: cuda.OnDevice, now: time.Now, sleep: preciseSleep, quiet: func() (bool, error) { return false, nil }}
	cq.submit = cq.toDevice
	for kind := range cq.queues {
		cq.queues[kind].free = places[kind]
	}
	return cq
}

// place is one position in a window: an event and a stream. All places for large pieces share one
// stream. With separate streams, two of the copies that run at a time would often read from the
// same source while other sources are idle.
type place struct {
	stream *cuda.Stream
	event  event
}

// event is a *marker, except in tests.
type event interface {
	Query() (bool, error)
	Await(spin time.Duration) (bool, error)
}

// add queues pieces of one group and posts as many as possible. Afterwards the list belongs to the
// caller again, but the rows of the pieces belong to the queue.
func (c *copyQueue) add(pieces []piece) {
	if len(pieces) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	g := pieces[0].group
	g.moved = now
	for i := range pieces {
		p := &pieces[i]
		g.add(p)
		q := &c.queues[p.kind()]
		q.pieces = append(q.pieces, *p)
	}
	if len(c.queues[small].posted) == window && !c.polling {
		c.poll(now) // the caller may not wait yet, so perhaps no other goroutine polls
		return
	}
	c.fill(now)
}

// fill posts as many pieces as the windows allow. REQUIRES: mu.
func (c *copyQueue) fill(now time.Time) {
	if c.lost != nil {
		c.flush()
		if c.gone || !c.still || !c.idle() {
			return
		}
		c.lost, c.still = nil, false
	}
	for q := &c.queues[small]; len(q.posted) < window && q.len() > 0; {
		c.post(now, q, c.nextSmall())
	}
	q := &c.queues[large]
	for len(q.posted) < window && q.len() > 0 && c.admitLarge(now, q) {
		p := c.newPost()
		q.take(p, 1)
		c.post(now, q, p)
	}
	c.endLarge(q)
}

// pieceRows returns the maximum number of rows of a piece of small objects.
func (c *copyQueue) pieceRows() int {
	if c.gather == nil {
		return maxCopies
	}
	return pieceRows
}

func (c *copyQueue) newPost() *post {
	if n := len(c.spare); n > 0 {
		p := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return p
	}
	return &post{slot: -1}
}

// forget keeps an ended post for reuse.
func (c *copyQueue) forget(p *post) {
	clear(p.pieces)
	*p = post{slot: -1, pieces: p.pieces[:0]}
	c.spare = append(c.spare, p)
}

// nextSmall takes the small pieces of the next post and selects the gather kernel or the copy
// engine. REQUIRES: mu, and a queued piece.
func (c *copyQueue) nextSmall() *post {
	p, q := c.newPost(), &c.queues[small]
	n, rows, copies, bytes := 0, 0, 0, uint64(0)
	for _, s := range q.pieces[q.next:] {
		if n > 0 && (bytes+s.bytes > batchBytes || rows+s.tableRows() > tableRows) {
			break
		}
		bytes += s.bytes
		rows += s.tableRows()
		copies += len(s.rows)
		n++
	}
	// The copy engine carries out one copy after the other, so behind a large copy it would be
	// late.
	if c.gather != nil && rows <= tableRows && (len(c.queues[large].posted) > 0 || gathers(copies, bytes)) {
		p.slot = c.gather.take()
	}
	if p.slot < 0 && copies > maxCopies {
		n, copies = 0, 0
		for _, s := range q.pieces[q.next:] {
			if copies += len(s.rows); n > 0 && copies > maxCopies {
				break
			}
			n++
		}
	}
	q.take(p, n)
	return p
}

// post submits a post. REQUIRES: mu.
func (c *copyQueue) post(now time.Time, q *queue, p *post) {
	last := len(q.free) - 1
	p.place, q.free = q.free[last], q.free[:last]
	c.tally.add(p, now, c.idle())
	if err := c.submit(p); err != nil {
		c.lost, p.unsure = err, true
	}
	p.least = now.Add(c.floor(p))
	q.posted = append(q.posted, p)
}

// idle reports whether nothing is posted. REQUIRES: mu.
func (c *copyQueue) idle() bool { return len(c.queues[small].posted)+len(c.queues[large].posted) == 0 }

// floor returns a lower bound of the time that a post takes on the link.
func (c *copyQueue) floor(p *post) time.Duration {
	if c.fastest == 0 {
		return 0
	}
	return durationOf(p.bytes, c.fastest)
}

// durationOf returns how long bytes take at a rate in bytes per second.
func durationOf(bytes uint64, rate float64) time.Duration {
	return time.Duration(float64(bytes) / rate * float64(time.Second))
}

// toDevice submits a post. It returns an error only if the end of the post cannot be detected; an
// error of the copies themselves goes to p.err. REQUIRES: mu.
func (c *copyQueue) toDevice(p *post) error {
	m := p.event.(*marker)
	if p.slot >= 0 {
		p.err = c.gather.launch(p.stream, p)
	} else {
		m.recorded()
		c.copies = copies(c.copies[:0], p.pieces, c.copy)
		p.err = p.stream.Copy(c.copies, m.event)
	}
	if p.err == nil {
		return nil
	}
	// Some of the copies may run. They are over when the stream reaches this record.
	if err := m.event.Record(p.stream); err != nil {
		return errors.Join(p.err, err)
	}
	return nil
}

// poll handles the posts that are over and then posts more. REQUIRES: mu.
func (c *copyQueue) poll(now time.Time) {
	for kind := range c.queues {
		q := &c.queues[kind]
		for len(q.posted) > 0 && c.over(q.posted[0], now) {
			p := q.posted[0]
			q.free = append(q.free, p.place)
			n := copy(q.posted, q.posted[1:])
			q.posted[n] = nil
			if q.posted = q.posted[:n]; n > 0 {
				c.raiseLeast(kind, q.posted[0], now)
			}
			c.forget(p)
		}
	}
	if c.idle() {
		c.tally.end(now)
	}
	c.fill(now)
}

// raiseLeast updates a post when the end of the one before it is noticed, up to a sleep late.
// Chunks of large frames come one after the other, posts of small frames side by side.
func (c *copyQueue) raiseLeast(kind int, p *post, now time.Time) {
	least := now.Add(-pollInterval)
	if kind == large {
		least = least.Add(c.floor(p))
	}
	if least.After(p.least) {
		p.least = least
	}
}

// over reports whether a post has ended, and then ends its pieces. REQUIRES: mu.
func (c *copyQueue) over(p *post, now time.Time) bool {
	if !p.done {
		done, err := false, error(nil)
		if !p.unsure {
			done, err = p.event.Query()
		}
		if err != nil && c.lost == nil {
			c.lost = err
		}
		if !done && (c.lost == nil || !c.stopped()) {
			return false
		}
	}
	c.moved = now
	if p.slot >= 0 {
		c.gather.give(p.slot)
	}
	err := p.err
	if err == nil {
		err = c.lost
	}
	if err != nil {
		c.tally.drop()
	}
	for i := range p.pieces {
		p.pieces[i].group.end(&p.pieces[i], err, now)
	}
	return true
}

// stopped waits until none of the posted copies runs any more, and reports whether that is certain.
// A failed driver call does not stop the copies: they still write, and their memory must not be
// given to another object before they end. On a lost device nothing runs. REQUIRES: mu is held, and
// lost is set.
func (c *copyQueue) stopped() bool {
	if !c.still {
		lost, err := c.quiet()
		c.gone = c.gone || lost
		c.still = lost || err == nil
	}
	return c.still
}

// flush fails all pieces that are not posted yet. REQUIRES: mu is held.
func (c *copyQueue) flush() { c.drop(func(*piece) bool { return true }, c.lost) }

// cancel drops the pieces of a group that are not posted. Posted pieces end only when their event
// has been reached.
func (c *copyQueue) cancel(g *group, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(func(p *piece) bool { return p.group == g }, why)
}

// drop ends the selected pieces that are not posted. REQUIRES: mu.
func (c *copyQueue) drop(which func(*piece) bool, why error) {
	for kind := range c.queues {
		q := &c.queues[kind]
		pieces := q.pieces[q.next:]
		kept := q.pieces[:0]
		q.next = 0
		for i := range pieces {
			if p := pieces[i]; which(&p) {
				p.group.end(&p, why, p.group.moved)
			} else {
				kept = append(kept, p)
			}
		}
		clear(q.pieces[len(kept):])
		q.pieces = kept
	}
}
