package ucx

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/transfer"
)

// grace is how long a cancelled fetch waits for its posted reads to end by themselves. After that
// it closes the connection, which other fetches use too.
const grace = 50 * time.Millisecond

// leaseTTL is how long the source keeps an object for a reader that has disappeared without notice.
const leaseTTL = 30 * time.Second

// mailbox carries calls from the progress thread to the goroutine of a fetch.
type mailbox struct {
	mu    sync.Mutex
	items []func() // guarded by mu
	ready chan struct{}
}

func (m *mailbox) post(f func()) {
	m.mu.Lock()
	m.items = append(m.items, f)
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// drain runs the calls that were posted.
func (m *mailbox) drain() {
	m.mu.Lock()
	items := m.items
	m.items = nil
	m.mu.Unlock()
	for _, f := range items {
		f()
	}
}

// object is one object of a fetch.
type object struct {
	grant grant
	// done says that Sink.Done was called for it.
	done bool
}

// fetch is a Fetch in progress. The goroutine that called Fetch owns all fields except those named
// below.
type fetch struct {
	path    *Path
	conn    *conn
	peer    transfer.Peer
	refs    []transfer.Ref
	sink    transfer.Sink
	objects []object
	// ask are the objects for which no lease was requested yet. placing are the objects that were
	// granted and have no place yet.
	ask, placing []int
	// message is the handle of the message with the bytes of the objects in placing; 0: none. There
	// is at most one, because no leases are requested while objects wait for their places.
	message uint64
	// left is the number of objects without Done.
	left int
	// asked says that a lease request has no answer yet.
	asked bool
	err   error
	box   mailbox
	// waiting is the lease request; owned by the progress thread.
	waiting *call
	// reading is the number of objects that something may still write to. The progress thread reads
	// and writes reading, cancelled and moved, too.
	reading   atomic.Int32
	cancelled atomic.Bool
	moved     atomic.Uint64
}

// Fetch is part of transfer.Path.
func (p *Path) Fetch(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	if len(refs) == 0 {
		return nil
	}
	if !p.enter() {
		return fmt.Errorf("ucx path: %w: closed", transfer.ErrPeerLost)
	}
	defer p.wait.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(fmt.Errorf("%w: the path was closed", transfer.ErrPeerLost)) })()
	n, err := p.conn(ctx, peer)
	if err != nil {
		return err
	}
	f := &fetch{
		path: p, conn: n, peer: peer, refs: refs, sink: sink, objects: make([]object, len(refs)), left: len(refs),
		ask: make([]int, len(refs)), box: mailbox{ready: make(chan struct{}, 1)},
	}
	for i := range f.ask {
		f.ask[i] = i
	}
	p.c.active.Add(1)
	defer p.c.active.Add(-1)
	defer f.freeMessage()
	if err := f.run(ctx); err != nil {
		f.abort(err)
		return fmt.Errorf("ucx path: %s: %w", peer, err)
	}
	return nil
}

func (f *fetch) run(ctx context.Context) error {
	stall := time.NewTimer(f.path.config.StallTimeout)
	defer stall.Stop()
	moved := f.moved.Load()
	for {
		f.box.drain()
		switch {
		case f.err != nil:
			return f.err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case f.left == 0:
			return nil
		}
		if len(f.placing) > 0 {
			i := f.placing[0]
			f.placing = f.placing[1:]
			f.place(ctx, i)
			stall.Reset(f.path.config.StallTimeout) // the peer did not cause that wait
			continue
		}
		f.freeMessage()
		if len(f.ask) > 0 && !f.asked {
			f.request()
		}
		select {
		case <-f.box.ready:
		case <-ctx.Done():
		case <-stall.C:
			now := f.moved.Load()
			if now == moved {
				err := fmt.Errorf("%w for %v", transfer.ErrStalled, f.path.config.StallTimeout)
				f.path.hangUp(f.conn, err)
				return err
			}
			moved = now
			stall.Reset(f.path.config.StallTimeout)
		}
	}
}

func (f *fetch) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// request asks for leases.
func (f *fetch) request() {
	n := min(len(f.ask), maxRefs)
	asked := f.ask[:n:n]
	f.ask = f.ask[n:]
	payload := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+refBytes*n), uint32(leaseTTL.Milliseconds()))
	for _, i := range asked {
		payload = binary.LittleEndian.AppendUint64(payload, uint64(f.refs[i].Task))
		payload = binary.LittleEndian.AppendUint32(payload, uint32(f.refs[i].Generation))
		payload = binary.LittleEndian.AppendUint32(payload, uint32(f.refs[i].Item))
	}
	f.asked = true
	answered := func(a answer, err error) {
		f.moved.Add(1)
		if err == nil {
			*a.keep = true
		}
		f.box.post(func() { f.granted(asked, a, err) })
	}
	ok := f.path.c.do(func(l *loop) { f.waiting = l.request(f.conn, messageLease, n, payload, answered) })
	if !ok {
		f.fail(fmt.Errorf("%w: closed", transfer.ErrPeerLost))
	}
}

// granted handles the answer to a lease request.
func (f *fetch) granted(asked []int, a answer, err error) {
	f.asked = false
	if err != nil {
		f.fail(err)
		return
	}
	f.message = a.handle
	r := &reader{b: a.payload}
	var later []int
	for _, i := range asked {
		g := r.grant(f.conn.bytes)
		if r.err != nil {
			f.fail(fmt.Errorf("%w: %w", transfer.ErrProtocol, r.err))
			return
		}
		if g.kind == grantLater {
			later = append(later, i)
			continue
		}
		f.objects[i].grant = g
		f.placing = append(f.placing, i)
	}
	if len(later) == len(asked) {
		f.fail(fmt.Errorf("%w: the peer answered for no object", transfer.ErrProtocol))
	}
	f.ask = append(later, f.ask...)
}

// freeMessage frees the message whose objects have been placed.
func (f *fetch) freeMessage() {
	if handle := f.message; handle != 0 {
		f.message = 0
		f.path.c.later(func(l *loop) { l.free(handle) })
	}
}

func (f *fetch) done(i int, err error) {
	o := &f.objects[i]
	o.done, o.grant.bytes = true, nil
	f.left--
	f.sink.Done(i, err)
}

// place provides memory for a granted object and begins to read it.
func (f *fetch) place(ctx context.Context, i int) {
	g := &f.objects[i].grant
	want := f.refs[i]
	switch g.kind {
	case grantMissing:
		f.done(i, fmt.Errorf("%s on %s: %w", want, f.peer, transfer.ErrNotHere))
		return
	case grantError:
		f.done(i, fmt.Errorf("%s on %s: %w: %s", want, f.peer, transfer.ErrPeerLost, g.text))
		return
	case grantElsewhere:
		f.done(i, fmt.Errorf("%s on %s: %w: %s", want, f.peer, transfer.ErrUnreachable, g.text))
		return
	case grantLease, grantInline, grantLater:
	}
	if !g.head.Ref.Answers(want) {
		f.fail(fmt.Errorf("%w: %s was asked for, %s came", transfer.ErrProtocol, want, g.head.Ref))
		return
	}
	f.path.c.active.Add(-1) // it may take long
	regions, err := f.sink.Place(ctx, i, g.head)
	f.path.c.active.Add(1)
	if err == nil {
		err = f.check(regions, g)
	}
	if err != nil {
		f.forget(i)
		f.done(i, err)
		return
	}
	if g.kind == grantInline {
		for _, r := range regions {
			g.bytes = g.bytes[copy(r.Bytes(), g.bytes):]
		}
		f.path.config.Received(int(g.head.Bytes()))
		f.done(i, nil)
		return
	}
	f.get(i, regions)
}

// check verifies that the regions match the frames. If the object is to be read by UCX, they must
// lie in our registered slab; if its bytes came in a message, in memory of the processor.
func (f *fetch) check(regions []transfer.Region, g *grant) error {
	if len(regions) != len(g.head.FrameBytes) {
		return fmt.Errorf("%w: %d regions for %d frames", transfer.ErrProtocol, len(regions), len(g.head.FrameBytes))
	}
	for k, r := range regions {
		if r.Frame.Bytes != g.head.FrameBytes[k] {
			return fmt.Errorf("%w: region %d has %d bytes for a frame of %d", transfer.ErrProtocol, k, r.Frame.Bytes, g.head.FrameBytes[k])
		}
		if g.kind == grantLease && r.Frame.Bytes > 0 && (r.Space != f.path.c.config.Space || !r.Frame.Within(r.Space.Size())) {
			return fmt.Errorf("%w: region %d does not lie in our registered slab", ErrNoConnection, k)
		}
		if g.kind == grantInline && r.Frame.Bytes > 0 && r.Bytes() == nil {
			return fmt.Errorf("%w: the bytes of region %d came in a message, and it lies on a device", transfer.ErrProtocol, k)
		}
	}
	return nil
}

// get queues the reads of all frames of an object at once.
func (f *fetch) get(i int, regions []transfer.Region) {
	g := &f.objects[i].grant
	b := &batch{cancelled: &f.cancelled, moved: &f.moved}
	f.reading.Add(1)
	// The progress thread gives the lease back itself, without a switch to this goroutine.
	lease := g.lease
	g.lease = 0
	b.done = func(l *loop, err error) {
		// The order matters: abort sets cancelled before it checks reading.
		f.reading.Add(-1)
		if f.cancelled.Load() {
			f.box.post(func() {})
		}
		if err == nil {
			// After a failure no release is sent any more, so nothing can confirm the lease.
			err = f.conn.failure
		}
		if err == nil {
			f.conn.unconfirmed = append(f.conn.unconfirmed, confirmation{lease, func(held bool, err error) { f.box.post(func() { f.read(i, held, err) }) }})
			return
		}
		l.giveBack(f.conn, []transfer.LeaseID{lease})
		f.box.post(func() { f.read(i, false, err) })
	}
	c := f.path.c
	reads := make([]*read, 0, len(regions))
	for k, r := range regions {
		reads = appendReads(reads, b, c.base+r.Frame.Offset, f.conn.base+g.offsets[k], r.Frame.Bytes, f.conn.route.readChunk(), c.slabMemory)
	}
	if !c.do(func(l *loop) { l.take(f.conn, b, reads) }) {
		f.reading.Add(-1)
		f.fail(fmt.Errorf("%w: closed", transfer.ErrPeerLost))
	}
}

// read handles the end of the reads of an object; held says whether its lease held during them.
func (f *fetch) read(i int, held bool, err error) {
	switch {
	case err != nil:
		f.fail(err)
	case !held:
		// The object was freed at the peer, or we were too slow. A new request finds out which.
		f.done(i, fmt.Errorf("%s on %s: %w: its lease ended while it was read", f.refs[i], f.peer, transfer.ErrPeerLost))
	default:
		f.path.config.Received(int(f.objects[i].grant.head.Bytes()))
		f.done(i, nil)
	}
}

// forget gives back a lease under which nothing is read.
func (f *fetch) forget(i int) {
	if id := f.objects[i].grant.lease; id != 0 {
		f.objects[i].grant.lease = 0
		// If the thread has ended, the connection and its leases have ended as well.
		f.path.c.do(func(l *loop) { l.giveBack(f.conn, []transfer.LeaseID{id}) })
	}
}

// abort ends the work in progress. It returns when nothing writes to any region.
func (f *fetch) abort(why error) {
	n := f.conn
	f.cancelled.Store(true)
	// After the progress thread has done this, no more answers come. If the thread has ended, all
	// reads have ended already.
	_, _ = ask(f.path.c, func(l *loop) struct{} {
		if f.waiting != nil {
			f.waiting.answer = nil
		}
		l.drop(n, &f.cancelled)
		return struct{}{}
	})
	timeout := time.NewTimer(grace)
	defer timeout.Stop()
	for f.reading.Load() > 0 {
		select {
		case <-f.box.ready:
			f.box.drain()
		case <-timeout.C:
			f.path.hangUp(n, fmt.Errorf("%w: a fetch was given up and its reads did not end: %w", transfer.ErrPeerLost, why))
		}
	}
	f.box.drain() // grants that came in the meantime
	var leases []transfer.LeaseID
	for i := range f.objects {
		if id := f.objects[i].grant.lease; id != 0 {
			leases = append(leases, id)
		}
	}
	f.path.c.do(func(l *loop) {
		for part := range slices.Chunk(leases, maxRefs) {
			l.giveBack(n, part)
		}
		if n.failure != nil {
			f.path.dropConn(f.peer.Address, n)
		}
	})
}

// drop ends the reads of a fetch that are queued and not posted.
func (l *loop) drop(n *conn, cancelled *atomic.Bool) {
	keep := func(q []*read) []*read {
		return slices.DeleteFunc(q, func(r *read) bool {
			if r.batch.cancelled != cancelled {
				return false
			}
			r.batch.ended(l, errDropped)
			return true
		})
	}
	n.small, n.large = keep(n.small), keep(n.large)
	l.dropPieces(n, cancelled)
}
