package ucx

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/millrace/millrace/transfer"
)

const (
	// chunkBytes bounds one read. Reads queued behind it wait that long.
	chunkBytes = 64 << 20
	// copiedChunkBytes is the bound on connections where our own thread copies. The thread answers
	// nobody during a copy, and larger copies are not faster.
	copiedChunkBytes = 4 << 20
	// messageChunkBytes is the bound on connections where reads are answered by messages: both
	// sides keep that much in memory.
	messageChunkBytes = 2 << 20
	// largePosted is how many large reads are posted per peer. One would leave the connection idle
	// between reads; more only delay later reads.
	largePosted = 2
	// smallBytes is the size up to which a read is posted before the large ones. smallPosted is how
	// many of these are posted per peer.
	smallBytes  = 1 << 20
	smallPosted = 64
	// spinFor is how long the progress thread polls for events before it blocks.
	spinFor = 50 * time.Microsecond
	// busyWait and idleWait bound a wait: if UCX missed a wake-up, the delay would not be longer.
	busyWait = 5 * time.Millisecond
	idleWait = 50 * time.Millisecond
	// askAfter is how long a peer may owe an answer before it is asked, over the control
	// connection, whether it still serves the connection. It is longer than answers usually take,
	// and short compared with StallTimeout.
	askAfter = 250 * time.Millisecond
)

// loop is the state of the progress thread. Nothing else may touch it.
type loop struct {
	c      *Context
	engine engine
	orders []op
	// conns are the connections by our token. A message with an unknown token is dropped.
	conns map[uint64]*conn
	// flights are the posted reads, indexed by tag. idle are the free tags.
	flights  []flight
	idle     []uint32
	posted   int
	stopping bool
	// mapped is the number of posted reads from one GPU to another. ends is the predicted time at
	// which the next of them ends.
	mapped int
	ends   time.Time
	// stager lends the slots of our ring to readers.
	stager stager
	// inFree are the free slots of the ring into which we read. queued are the pieces that wait for
	// one, in their order.
	inFree []int
	queued []*piece
}

// flight is a read that was posted, or that the peer was asked to answer.
type flight struct {
	conn  *conn
	read  *read
	small bool
}

// run is the progress thread: only it calls UCX.
func run(c *Context, ready chan<- error) {
	// The thread is unlocked at the end. Otherwise it would exit with the goroutine, and all child
	// processes that were started on it with a parent-death signal would be killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(c.ended)
	l := &loop{c: c, conns: make(map[uint64]*conn)}
	err := l.begin()
	ready <- err
	if err != nil {
		if l.engine != nil {
			l.engine.destroy()
		}
		return
	}
	for {
		c.mu.Lock()
		orders := c.orders
		c.orders, c.woken = nil, false
		done := l.stopping && len(l.conns) == 0
		if done {
			c.closed = true
		}
		c.mu.Unlock()
		for _, f := range orders {
			f(l)
		}
		if done && len(l.conns) == 0 {
			break
		}
		l.turn()
	}
	// Handle the last events, and free the remaining buffers.
	for len(l.orders) > 0 {
		events := l.engine.wait(l.orders, 0, 0, noNap)
		l.orders = l.orders[:0]
		for i := range events {
			l.handle(&events[i])
		}
	}
	l.engine.destroy()
}

func (l *loop) begin() error {
	var err error
	c := l.c
	if c.slab != nil {
		// Without a current CUDA context, UCX unpacks keys for slow emulation.
		if err := c.slab.Device().MakeCurrent(); err != nil {
			return err
		}
	}
	if l.engine, err = newEngine(c.config.settings()); err != nil {
		return err
	}
	c.engine, c.address = l.engine, l.engine.address()
	if err := c.register(l.engine); err != nil {
		return err
	}
	if c.slab != nil {
		l.stager.free, l.inFree = c.out.free(), c.in.free()
	}
	return nil
}

// turn posts the reads that are due, waits, and handles the events.
func (l *loop) turn() {
	outstanding, expected := l.posted > 0 || l.stopping, l.c.active.Load() > 0
	now := time.Now()
	for _, n := range l.conns {
		l.confirm(n)
		l.beginPieces(n)
		l.schedule(n)
		outstanding = outstanding || len(n.pieces) > 0
		if len(n.calls)+len(n.asked) > 0 {
			outstanding = true
			n.listen(now)
		} else {
			n.quiet = time.Time{}
		}
		expected = expected || len(n.leases) > 0
	}
	l.takeBackSlots(now)
	// If no event is expected, do not spin: other threads can use the core.
	spin, timeout := time.Duration(0), idleWait
	if outstanding || expected {
		spin = spinFor
	}
	if outstanding {
		timeout = busyWait
	}
	nap := noNap
	if l.mapped > 0 {
		nap = max(time.Until(l.ends)-spinAhead, 0)
	}
	events := l.engine.wait(l.orders, spin, timeout, nap)
	l.orders = l.orders[:0]
	for i := range events {
		l.handle(&events[i])
	}
}

func (l *loop) handle(e *event) {
	switch e.kind {
	case eventGet:
		f := l.flights[e.tag]
		l.flights[e.tag] = flight{}
		l.idle = append(l.idle, uint32(e.tag))
		l.posted--
		f.conn.ended(f.small)
		if f.conn.route.mapped() {
			l.mapped--
			f.conn.pace.ended(f.read, time.Now())
		}
		var err error
		if e.status != 0 {
			err = fmt.Errorf("%w: read of %d bytes: %s", transfer.ErrPeerLost, f.read.length, l.engine.statusText(e.status))
			l.fail(f.conn, err)
		}
		f.read.batch.ended(l, err)
		l.settle(f.conn)
	case eventMessage:
		l.message(e)
	case eventEndpointError:
		if n := l.conns[e.tag]; n != nil {
			n.lost = true
			l.fail(n, fmt.Errorf("%w: %s", transfer.ErrPeerLost, l.engine.statusText(e.status)))
		}
	case eventClosed:
		if n := l.conns[e.tag]; n != nil {
			n.closed = true
			l.settle(n)
		}
	}
}

// connect makes the endpoint of n. The other fields of n are already set. For a source it returns
// the routes by which the source can be read, the most direct first.
func (l *loop) connect(n *conn, address []byte) ([]route, error) {
	if l.stopping {
		return nil, fmt.Errorf("ucx: %w: closed", transfer.ErrPeerLost)
	}
	n.asked = make(map[uint64]flight)
	n.calls, n.leases, n.gone = make(map[uint64]*call), make(map[transfer.LeaseID]bool), make(chan struct{})
	endpoint, err := l.engine.connect(address, n.token)
	if err != nil {
		return nil, fmt.Errorf("ucx: %s: %w: %w", n.peer, ErrNoConnection, err)
	}
	n.endpoint = endpoint
	l.conns[n.token] = n
	if n.serves() {
		return nil, nil
	}
	routes, err := l.unpack(n, l.c.routes(n.offer, l.engine.transports(endpoint)))
	if err != nil {
		err = fmt.Errorf("ucx: %s: %w: %w", n.peer, ErrNoConnection, err)
		l.fail(n, err)
	}
	return routes, err
}

// unpack gives the endpoint the keys of the routes, and returns the routes whose keys are usable.
func (l *loop) unpack(n *conn, routes []route) (usable []route, err error) {
	var errs [2]error
	if slices.ContainsFunc(routes, func(r route) bool { return !r.stagedSource }) {
		errs[keySlab] = l.engine.unpack(n.endpoint, keySlab, n.offer.key)
	}
	if n.offer.onDevice() {
		errs[keyRing] = l.engine.unpack(n.endpoint, keyRing, n.offer.ringKey)
	}
	for _, r := range routes {
		key := keySlab
		if r.stagedSource {
			key = keyRing
		}
		if errs[key] == nil {
			usable = append(usable, r)
		}
	}
	if len(usable) == 0 {
		return nil, errors.Join(errs[:]...)
	}
	return usable, nil
}

// listen is called in each turn while the peer owes an answer. It measures how long the peer has
// been silent, and calls onSilence after askAfter.
func (n *conn) listen(now time.Time) {
	switch {
	case n.quiet.IsZero():
		n.quiet = now
	case now.Sub(n.quiet) >= askAfter && !n.asking && n.onSilence != nil:
		n.quiet, n.asking = now, true
		n.onSilence()
	}
}

// fail ends a connection. From now on nothing is posted, and queued reads fail at once. Posted
// reads fail when UCX calls back; the close of the endpoint makes it do so soon.
func (l *loop) fail(n *conn, err error) {
	if n.failure != nil {
		return
	}
	n.failure = err
	if n.onFailure != nil {
		n.onFailure()
	}
	l.c.config.Log.Debug("ucx connection ended", "peer", n.peer, "error", err)
	l.orders = append(l.orders, op{kind: opClose, endpoint: n.endpoint, tag: n.token})
	for _, q := range [][]*read{n.small, n.large} {
		for _, r := range q {
			r.batch.ended(l, err)
		}
	}
	n.small, n.large = nil, nil
	asked := n.asked
	n.asked = nil
	for _, f := range asked {
		n.ended(f.small)
		f.read.batch.ended(l, err)
	}
	calls := n.calls
	n.calls = nil
	unconfirmed := n.unconfirmed
	n.unconfirmed = nil
	for _, c := range unconfirmed {
		c.held(false, err)
	}
	for _, c := range calls {
		if c != nil && c.answer != nil {
			c.answer(answer{}, err)
		}
	}
	l.failPieces(n, err)
	l.forgetLeases(n)
	l.stager.forget(n)
	l.loadNext()
}

// forgetLeases releases the leases of a reader that has gone. The reader can never get a
// confirmation that a lease held, so nothing that it still reads counts.
func (l *loop) forgetLeases(n *conn) {
	if len(n.leases) == 0 {
		return
	}
	leases := make([]transfer.LeaseID, 0, len(n.leases))
	for id := range n.leases {
		leases = append(leases, id)
	}
	n.leases = nil
	slices.Sort(leases)
	l.serve(func() { l.c.config.Source.Release(leases) })
}

// serve runs f, which calls the source: on this thread if the source is quick, else on a new
// goroutine.
func (l *loop) serve(f func()) {
	if l.c.config.SourceIsQuick {
		f()
		return
	}
	l.c.serving.Add(1)
	go func() {
		defer l.c.serving.Done()
		f()
	}()
}

// settle frees an endpoint once it is closed and nothing is outstanding.
func (l *loop) settle(n *conn) {
	if n.closed && n.smallPosted+n.largePosted+len(n.pieces)+n.copying == 0 && l.conns[n.token] == n {
		l.engine.release(n.endpoint)
		delete(l.conns, n.token)
		if n.unmap != nil {
			l.unmapPeer(n)
		}
		close(n.gone)
	}
}

// deathTakes is how long unmapPeer waits for the process of a lost peer to end: a process with much
// GPU memory ends slowly.
const deathTakes = 2500 * time.Millisecond

// unmapPeer unmaps the memory of a peer. If the peer was lost, it first waits for the end of its
// process. Only after that end may UCX's own mapping of the memory be closed too: while the process
// is alive, UCX could still use it for reads.
func (l *loop) unmapPeer(n *conn) {
	if !n.lost || n.watch == nil || l.stopping {
		n.unmap(n.watch.ended(0))
		n.watch.close()
		return
	}
	l.c.serving.Add(1)
	go func() {
		defer l.c.serving.Done()
		dead := n.watch.ended(deathTakes)
		n.watch.close()
		if !l.c.do(func(*loop) { n.unmap(dead) }) {
			<-l.c.ended
			n.unmap(dead) // UCX is closed
		}
	}()
}

func (l *loop) stop() {
	l.stopping = true
	for _, n := range l.conns {
		l.hangUp(n, fmt.Errorf("ucx: %w: closed here", transfer.ErrPeerLost))
	}
}

// hangUp ends a connection that works, and notifies the peer.
func (l *loop) hangUp(n *conn, why error) {
	if n.failure == nil {
		l.send(n, preamble{token: n.theirs, kind: messageBye}, 0, nil)
	}
	l.fail(n, why)
}

// send composes a message in C memory, which the engine frees after it was sent.
func (l *loop) send(n *conn, p preamble, bytes int, compose func([]byte) []byte) {
	if n.failure == nil {
		l.sendComposed(n, composed(l.engine, p, bytes, compose))
	}
}

// outgoing is a message in C memory that was not posted yet.
type outgoing struct {
	header header
	handle uint64
	bytes  int
}

// composed returns a message whose payload of the given size compose writes.
func composed(e engine, p preamble, bytes int, compose func([]byte) []byte) outgoing {
	if bytes == 0 {
		return outgoing{header: p.header()}
	}
	b, handle := e.buffer(bytes)
	if out := compose(b[:0]); len(out) != bytes {
		panic(fmt.Sprintf("ucx: a message of %d bytes was announced as %d", len(out), bytes))
	}
	return outgoing{p.header(), handle, bytes}
}

// discard frees a message that will not be posted.
func (m outgoing) discard(e engine) {
	if m.handle != 0 {
		e.discard(m.handle)
	}
}

func (l *loop) sendComposed(n *conn, m outgoing) {
	if n.failure != nil {
		m.discard(l.engine)
		return
	}
	l.orders = append(l.orders, op{
		kind: opSend, endpoint: n.endpoint, header: m.header, local: m.handle, length: uint64(m.bytes), remote: m.handle,
	})
}

// schedule posts the next reads of a connection, small ones first.
func (l *loop) schedule(n *conn) {
	for len(n.small) > 0 && n.smallPosted < smallPosted {
		r := n.small[0]
		n.small[0] = nil
		n.small = n.small[1:]
		if r.batch.dropped(l) {
			continue
		}
		n.smallPosted++
		l.post(n, r, true)
	}
	for len(n.large) > 0 && n.largePosted < largePosted {
		r := n.large[0]
		n.large[0] = nil
		n.large = n.large[1:]
		if r.batch.dropped(l) {
			continue
		}
		n.largePosted++
		l.post(n, r, false)
	}
}

func (l *loop) post(n *conn, r *read, small bool) {
	if n.route.byMessage() {
		l.ask(n, r, small)
		return
	}
	var tag uint32
	if k := len(l.idle); k > 0 {
		tag, l.idle = l.idle[k-1], l.idle[:k-1]
	} else {
		tag = uint32(len(l.flights))
		l.flights = append(l.flights, flight{})
	}
	l.flights[tag] = flight{n, r, small}
	l.posted++
	if n.route.mapped() {
		l.mapped++
		// With several peers, ends is the earliest time.
		if ends := n.pace.posted(r, time.Now()); l.mapped == 1 || ends.Before(l.ends) || l.ends.Before(time.Now()) {
			l.ends = ends
		}
	}
	l.orders = append(l.orders, op{
		kind: opGet, endpoint: n.endpoint, memory: r.memory, key: r.key, tag: uint64(tag), local: r.local, remote: r.remote, length: r.length,
	})
}
