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

// lane is the copy queue for one peer's memory. It has no goroutine: of the goroutines that wait
// for copies one drives the lane for all of them.
type lane struct {
	gather *gather // nil: the copy engine only
	// copy makes one row a copy by the copy engine.
	copy func(to, from, bytes uint64) cuda.Copy
	// fastest is an upper bound of the link's rate, in bytes per second. 0: none is known.
	fastest float64
	// submit, now and nap are toDevice, time.Now and nap, except in tests. quiet waits until none
	// of the posted copies runs any more. It returns an error if it could not find that out. lost
	// means that the device is lost, so that nothing runs on it.
	submit func(p *post) error
	now    func() time.Time
	nap    func(time.Duration)
	quiet  func() (lost bool, err error)
	ingress

	mu sync.Mutex
	// All fields below are guarded by mu.
	queues  [2]queue
	tally   tally
	driving bool
	waiting []*group
	// moved is when a post last ended.
	moved time.Time
	// lost, if set, is the error after which nothing is posted: the driver could not tell when a
	// post is over. still: none of the posted copies runs any more. gone: the device is lost, so
	// the lane never works again. Otherwise the lane continues when all posted copies have ended.
	lost        error
	still, gone bool
	// spare are posts for reuse. copies is the reused list of one post's copies.
	spare  []*post
	copies []cuda.Copy
}

func newLane(places [2][]place) *lane {
	l := &lane{copy: cuda.OnDevice, now: time.Now, nap: nap, quiet: func() (bool, error) { return false, nil }}
	l.submit = l.toDevice
	for kind := range l.queues {
		l.queues[kind].free = places[kind]
	}
	return l
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
// caller again, but the rows of the pieces belong to the lane.
func (l *lane) add(pieces []piece) {
	if len(pieces) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	g := pieces[0].group
	g.moved = now
	for i := range pieces {
		p := &pieces[i]
		g.add(p)
		q := &l.queues[p.kind()]
		q.pieces = append(q.pieces, *p)
	}
	if len(l.queues[small].posted) == window && !l.driving {
		l.poll(now) // the caller may not wait yet, so perhaps no other goroutine polls
		return
	}
	l.fill(now)
}

// fill posts as many pieces as the windows allow. REQUIRES: mu.
func (l *lane) fill(now time.Time) {
	if l.lost != nil {
		l.flush()
		if l.gone || !l.still || !l.idle() {
			return
		}
		l.lost, l.still = nil, false
	}
	for q := &l.queues[small]; len(q.posted) < window && q.len() > 0; {
		l.post(now, q, l.nextSmall())
	}
	q := &l.queues[large]
	for len(q.posted) < window && q.len() > 0 && l.enter(now, q) {
		p := l.newPost()
		q.take(p, 1)
		l.post(now, q, p)
	}
	l.leave(q)
}

// pieceRows returns the maximum number of rows of a piece of small objects.
func (l *lane) pieceRows() int {
	if l.gather == nil {
		return maxCopies
	}
	return pieceRows
}

func (l *lane) newPost() *post {
	if n := len(l.spare); n > 0 {
		p := l.spare[n-1]
		l.spare = l.spare[:n-1]
		return p
	}
	return &post{slot: -1}
}

// forget keeps an ended post for reuse.
func (l *lane) forget(p *post) {
	clear(p.pieces)
	*p = post{slot: -1, pieces: p.pieces[:0]}
	l.spare = append(l.spare, p)
}

// nextSmall takes the small pieces of the next post and selects the gather kernel or the copy
// engine. REQUIRES: mu, and a queued piece.
func (l *lane) nextSmall() *post {
	p, q := l.newPost(), &l.queues[small]
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
	if l.gather != nil && rows <= tableRows && (len(l.queues[large].posted) > 0 || gathers(copies, bytes)) {
		p.slot = l.gather.take()
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
func (l *lane) post(now time.Time, q *queue, p *post) {
	last := len(q.free) - 1
	p.place, q.free = q.free[last], q.free[:last]
	l.tally.add(p, now, l.idle())
	if err := l.submit(p); err != nil {
		l.lost, p.unsure = err, true
	}
	p.least = now.Add(l.floor(p))
	q.posted = append(q.posted, p)
}

// idle reports whether nothing is posted. REQUIRES: mu.
func (l *lane) idle() bool { return len(l.queues[small].posted)+len(l.queues[large].posted) == 0 }

// floor returns a lower bound of the time that a post takes on the link.
func (l *lane) floor(p *post) time.Duration {
	if l.fastest == 0 {
		return 0
	}
	return over(p.bytes, l.fastest)
}

// toDevice submits a post. It returns an error only if the end of the post cannot be detected; an
// error of the copies themselves goes to p.err. REQUIRES: mu.
func (l *lane) toDevice(p *post) error {
	m := p.event.(*marker)
	if p.slot >= 0 {
		p.err = l.gather.launch(p.stream, p)
	} else {
		m.recorded()
		l.copies = copies(l.copies[:0], p.pieces, l.copy)
		p.err = p.stream.Copy(l.copies, m.event)
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
func (l *lane) poll(now time.Time) {
	for kind := range l.queues {
		q := &l.queues[kind]
		for len(q.posted) > 0 && l.over(q.posted[0], now) {
			p := q.posted[0]
			q.free = append(q.free, p.place)
			n := copy(q.posted, q.posted[1:])
			q.posted[n] = nil
			if q.posted = q.posted[:n]; n > 0 {
				l.follow(kind, q.posted[0], now)
			}
			l.forget(p)
		}
	}
	if l.idle() {
		l.tally.end(now)
	}
	l.fill(now)
}

// follow updates a post when the end of the one before it is noticed, up to a nap late. Chunks of
// large frames come one after the other, posts of small frames side by side.
func (l *lane) follow(kind int, p *post, now time.Time) {
	least := now.Add(-napFor)
	if kind == large {
		least = least.Add(l.floor(p))
	}
	if least.After(p.least) {
		p.least = least
	}
}

// over reports whether a post has ended, and then ends its pieces. REQUIRES: mu.
func (l *lane) over(p *post, now time.Time) bool {
	if !p.done {
		done, err := false, error(nil)
		if !p.unsure {
			done, err = p.event.Query()
		}
		if err != nil && l.lost == nil {
			l.lost = err
		}
		if !done && (l.lost == nil || !l.stopped()) {
			return false
		}
	}
	l.moved = now
	if p.slot >= 0 {
		l.gather.give(p.slot)
	}
	err := p.err
	if err == nil {
		err = l.lost
	}
	if err != nil {
		l.tally.drop()
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
func (l *lane) stopped() bool {
	if !l.still {
		lost, err := l.quiet()
		l.gone = l.gone || lost
		l.still = lost || err == nil
	}
	return l.still
}

// flush fails all pieces that are not posted yet. REQUIRES: mu is held.
func (l *lane) flush() { l.drop(func(*piece) bool { return true }, l.lost) }

// cancel drops the pieces of a group that are not posted. Posted pieces end only when their event
// has been reached.
func (l *lane) cancel(g *group, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(func(p *piece) bool { return p.group == g }, why)
}

// drop ends the selected pieces that are not posted. REQUIRES: mu.
func (l *lane) drop(which func(*piece) bool, why error) {
	for kind := range l.queues {
		q := &l.queues[kind]
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
