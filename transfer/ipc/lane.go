package ipc

import (
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/memory/cuda"
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
	// looseAfter is how well known the time should be when a post was over.
	looseAfter = 10 * time.Microsecond
)

// A queue is that of the frames that are small or of the pieces of larger ones.
const (
	small = iota
	large
)

// queue are pieces of one kind. Its posts end in their order.
type queue struct {
	// pieces are queued from next on.
	pieces []piece
	next   int
	posted []*post
	// free are the places of the window that are not in use.
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

// post is what was submitted together, behind one event.
type post struct {
	pieces []piece
	bytes  uint64
	// copies counts the rows.
	copies int
	place
	// slot is that of the gather's tables, -1 for the copy engine.
	slot int
	err  error
	// began is when it had the link for itself, or a post before it of which nobody saw when it
	// was over; carried are the bytes of such. ends is when it should be over.
	began, ends time.Time
	carried     uint64
	// base is what its time has that is not its bytes', and that of what is carried; queued:
	// it was submitted while another one was under way.
	base   time.Duration
	queued bool
	// asked is when it was last known not to be over. done: it is known to be. loose: that may
	// have been for some time. unsure: its event may be that of the post before, so it tells nothing.
	asked       time.Time
	done, loose bool
	unsure      bool
}

// lane copies from one peer's memory. It has no goroutine: of those who wait for
// copies one drives, for all of them.
type lane struct {
	gather *gather // nil: the copy engine only
	// copy is one by the copy engine.
	copy func(to, from, bytes uint64) cuda.Copy
	// submit is toDevice, and now is time.Now; tests replace them. quiet waits until no copy that was posted runs any
	// more. It returns an error if it could not find that out; lost says that the device is lost, so that nothing runs
	// on it.
	submit func(p *post) error
	now    func() time.Time
	quiet  func() (lost bool, err error)
	ingress

	mu sync.Mutex
	// All below is guarded by mu.
	queues  [2]queue
	rates   rates
	alarm   alarm
	driving bool
	waiting []*group
	// moved is when a post was last over.
	moved time.Time
	// lost, if set, is the error after which nothing is posted: the driver could not tell when a post is over. still:
	// no copy that was posted runs any more. gone: the device is lost, so the lane never works again. Otherwise it
	// continues when all posted copies have ended.
	lost        error
	still, gone bool
	// spare are posts, and copies the list of one, to be used again.
	spare  []*post
	copies []cuda.Copy
}

func newLane(places [2][]place) *lane {
	l := &lane{rates: assumed, alarm: assumedAlarm, copy: cuda.OnDevice, now: time.Now, quiet: func() (bool, error) { return false, nil }}
	l.submit = l.toDevice
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
	event  event
}

// event is a *marker, but in tests.
type event interface {
	Query() (bool, error)
	Await(nap, spin time.Duration) (cuda.Waited, error)
}

// add queues pieces of one group, and posts what may be posted. The pieces are the caller's
// again, what they are made of is the lane's.
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
		l.poll(now) // whoever adds may not wait for a while yet
		return
	}
	l.fill(now)
}

// fill posts as much as the windows allow. REQUIRES: mu.
func (l *lane) fill(now time.Time) {
	if l.lost != nil {
		l.flush()
		if l.gone || !l.still || len(l.queues[small].posted)+len(l.queues[large].posted) > 0 {
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

// pieceRows is how many rows a piece of small objects should have at most.
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

// forget keeps a post that is over, to be used again.
func (l *lane) forget(p *post) {
	clear(p.pieces)
	*p = post{slot: -1, pieces: p.pieces[:0]}
	l.spare = append(l.spare, p)
}

// nextSmall takes what is to be posted next. REQUIRES: mu, and that there is something.
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
	// The copy engine does one copy after the other: behind a large one it is late.
	if l.gather != nil && rows <= tableRows && (len(l.queues[large].posted) > 0 || l.rates.gathers(copies, bytes)) {
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

// post submits. REQUIRES: mu.
func (l *lane) post(now time.Time, q *queue, p *post) {
	last := len(q.free) - 1
	p.place, q.free = q.free[last], q.free[:last]
	if err := l.submit(p); err != nil {
		l.lost, p.unsure = err, true
	}
	p.began, p.asked = now, now
	if n := len(q.posted); n > 0 && q.posted[n-1].ends.After(now) {
		p.began, p.queued = q.posted[n-1].ends, true
	}
	p.base = l.rates.base(p, p.queued)
	p.ends = p.began.Add(l.rates.predict(p))
	q.posted = append(q.posted, p)
}

// toDevice submits a post. Its error is that nobody will find out when it is over. REQUIRES: mu.
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
	// Some of it may run: it is over when the stream has got here.
	if err := m.event.Record(p.stream); err != nil {
		return errors.Join(p.err, err)
	}
	return nil
}

// poll looks which posts are over, and posts more. REQUIRES: mu.
func (l *lane) poll(now time.Time) {
	alone := len(l.queues[small].posted) == 0 || len(l.queues[large].posted) == 0
	for kind := range l.queues {
		q := &l.queues[kind]
		for len(q.posted) > 0 && l.over(q.posted[0], now, alone) {
			p := q.posted[0]
			q.free = append(q.free, p.place)
			n := copy(q.posted, q.posted[1:])
			q.posted[n] = nil
			if q.posted = q.posted[:n]; n > 0 {
				q.posted[0].follow(p, now, &l.rates)
			}
			l.forget(p)
		}
	}
	l.fill(now)
}

// follow takes note that a post has the link for itself since the one before it is over.
func (p *post) follow(before *post, now time.Time, r *rates) {
	if before.loose {
		p.began, p.carried, p.base = before.began, before.carried+before.bytes, before.base+p.base
		return
	}
	p.began, p.ends = now, now.Add(r.predict(p))
}

// over says whether a post is, and ends its pieces then. If it was alone, its time
// tells a rate. REQUIRES: mu.
func (l *lane) over(p *post, now time.Time, alone bool) bool {
	if !p.done {
		done, err := false, error(nil)
		if !p.unsure {
			done, err = p.event.Query()
		}
		if err != nil && l.lost == nil {
			l.lost = err
		}
		if !done && (l.lost == nil || !l.stopped()) {
			p.asked = now
			return false
		}
		p.loose = now.Sub(p.asked) > looseAfter
	}
	l.moved = now
	if p.slot >= 0 {
		l.gather.give(p.slot)
	}
	err := p.err
	if err == nil {
		err = l.lost
	}
	if err == nil && alone && !p.pieces[0].step {
		l.rates.learn(p, now)
	}
	for i := range p.pieces {
		p.pieces[i].group.end(&p.pieces[i], err, now)
	}
	return true
}

// stopped waits until no posted copy runs any more, and says whether that is known. A driver call that failed does not
// stop the copies: they still write, and their memory must not be given to another object before they end. On a lost
// device nothing runs. REQUIRES: mu is held, and lost is set.
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

// cancel drops what a group has not posted. What is posted is over when its event
// has been reached, and not before.
func (l *lane) cancel(g *group, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(func(p *piece) bool { return p.group == g }, why)
}

// drop ends pieces that are not posted. REQUIRES: mu.
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
