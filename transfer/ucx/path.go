package ucx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// Path is the reading side. It keeps one connection per address.
type Path struct {
	c      *Context
	config PathConfig
	// ctx ends with the path. Then the goroutines that connect stop.
	ctx  context.Context //nolint:containedctx // the life of the path, not of a call
	stop context.CancelFunc

	mu sync.Mutex
	// conns are the connections by address, open or being opened. Guarded by mu.
	conns  map[string]*pending
	closed bool
	// wait counts the fetches and the goroutines that connect or use the control connection.
	wait sync.WaitGroup
}

var _ transfer.Path = (*Path)(nil)

// pending is a connection that is open or being opened. conn and err do not change once ready is
// closed.
type pending struct {
	ready chan struct{}
	conn  *conn
	err   error
}

// wireUpSteps: the answer to a wire-up may take this many times StallTimeout.
const wireUpSteps = 4

// NewPath returns a path without connections. The context must outlive it.
func NewPath(c *Context, config PathConfig) *Path {
	ctx, stop := context.WithCancel(context.Background())
	return &Path{c: c, config: config.withDefaults(), ctx: ctx, stop: stop, conns: make(map[string]*pending)}
}

// Capabilities is part of transfer.Path: the path has no optional ability.
func (*Path) Capabilities() transfer.Capabilities { return transfer.Capabilities{} }

// Name is part of transfer.Path.
func (p *Path) Name() string { return "ucx" }

// enter keeps the path open until wait.Done is called. It returns false if the path is closed.
func (p *Path) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wait.Add(1)
	return true
}

// Close is part of transfer.Path. It returns when all fetches have returned.
func (p *Path) Close() error {
	p.mu.Lock()
	conns := p.conns
	p.conns, p.closed = nil, true
	p.mu.Unlock()
	p.stop()
	p.wait.Wait()
	for _, entry := range conns {
		if entry.conn != nil {
			p.hangUp(entry.conn, fmt.Errorf("ucx: %w: the path was closed", transfer.ErrPeerLost))
			<-entry.conn.gone
		}
	}
	return nil
}

// Forget closes the connection to a peer that has left.
func (p *Path) Forget(address string) {
	p.mu.Lock()
	entry := p.conns[address]
	delete(p.conns, address)
	p.mu.Unlock()
	if entry == nil {
		return
	}
	<-entry.ready
	if n := entry.conn; n != nil {
		p.c.do(func(l *loop) {
			n.lost = true
			l.hangUp(n, fmt.Errorf("ucx: %w: forgotten", transfer.ErrPeerLost))
		})
	}
}

// hangUp starts to close a connection; n.gone is closed when that is done.
func (p *Path) hangUp(n *conn, why error) {
	p.c.do(func(l *loop) { l.hangUp(n, why) }) // if false, the thread has ended and all is gone
}

// Connect opens a connection if there is none, and returns its proved properties.
func (p *Path) Connect(ctx context.Context, peer transfer.Peer) (Connection, error) {
	n, err := p.conn(ctx, peer)
	if err != nil {
		return Connection{}, err
	}
	return n.route.description, nil
}

// Connection describes the open connection to an address; false if there is none.
func (p *Path) Connection(address string) (Connection, bool) {
	p.mu.Lock()
	entry := p.conns[address]
	p.mu.Unlock()
	if entry == nil {
		return Connection{}, false
	}
	select {
	case <-entry.ready:
		if entry.err == nil {
			return entry.conn.route.description, true
		}
	default:
	}
	return Connection{}, false
}

// conn returns the connection to a peer. It opens one if necessary. The connection is for all
// callers: it does not end if the fetch that wanted it first ends.
func (p *Path) conn(ctx context.Context, peer transfer.Peer) (*conn, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, fmt.Errorf("ucx path: %w: closed", transfer.ErrPeerLost)
	}
	entry := p.conns[peer.Address]
	if entry == nil {
		entry = &pending{ready: make(chan struct{})}
		p.conns[peer.Address] = entry
		p.wait.Go(func() {
			entry.conn, entry.err = p.dial(peer)
			if entry.err != nil {
				p.drop(peer.Address, entry)
			}
			close(entry.ready)
		})
	}
	p.mu.Unlock()
	select {
	case <-entry.ready:
		return entry.conn, entry.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// reportClosed reports to the source, over the control connection, that a connection has ended, so
// that the source releases its leases. UCX does not always report that: we cannot know which of two
// endpoints between two workers fails together with which. A source that has gone needs no report,
// nor does one when the path is closing.
func (p *Path) reportClosed(peer transfer.Peer, n *conn) {
	// A failure is harmless: the leases expire.
	p.control(peer, &workerv1.ConnectRequest{Request: &workerv1.ConnectRequest_CloseToken{CloseToken: n.theirs}}, func(*workerv1.ConnectResponse, error) {})
}

// askServed asks a source that has been silent for a while, over the control connection, whether it
// still serves the connection, and ends the connection if not. The source's endpoint may have
// failed because a connection in the other direction was closed, while our endpoint works. UCX
// reports nothing then, and our messages get no answer.
func (p *Path) askServed(peer transfer.Peer, n *conn) {
	p.control(peer, &workerv1.ConnectRequest{Request: &workerv1.ConnectRequest_CheckToken{CheckToken: n.theirs}}, func(response *workerv1.ConnectResponse, err error) {
		if errors.Is(err, ErrNoConnection) {
			// The source does not know this request, so it is not asked again. A fetch whose
			// messages are lost there stalls.
			return
		}
		p.c.do(func(l *loop) {
			n.asking = false
			if response.GetEnded() {
				l.fail(n, fmt.Errorf("%w: it does not serve this connection any more, whose endpoint failed or was closed there", transfer.ErrPeerLost))
			}
		})
	})
}

// control sends a request about a connection over the control connection. It returns at once, and
// passes the answer to answered. It sends nothing when the path is closing.
func (p *Path) control(peer transfer.Peer, request *workerv1.ConnectRequest, answered func(*workerv1.ConnectResponse, error)) {
	if !p.enter() {
		return
	}
	go func() {
		defer p.wait.Done()
		ctx, cancel := context.WithTimeout(p.ctx, p.config.StallTimeout)
		defer cancel()
		response, err := p.config.Connect(ctx, peer, request)
		if err != nil {
			err = dialError(ctx, err)
		}
		answered(response, err)
	}()
}

// drop removes a connection that can no longer be used.
func (p *Path) drop(address string, entry *pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns[address] == entry {
		delete(p.conns, address)
	}
}

// dropConn is drop for a connection.
func (p *Path) dropConn(address string, n *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if entry := p.conns[address]; entry != nil {
		select {
		case <-entry.ready:
			if entry.conn == n {
				delete(p.conns, address)
			}
		default:
		}
	}
}

// dial opens a connection and proves it. A direct read of the memory of a GPU may end the whole
// connection, where a driver promises more than the devices can do; then a second connection reads
// through the rings only.
func (p *Path) dial(peer transfer.Peer) (*conn, error) {
	n, again, err := p.open(peer, false)
	if again {
		p.c.config.Log.Info("a direct read of the memory of a GPU ended the ucx connection; the next one goes through host memory", "peer", peer.Name, "error", err)
		n, _, err = p.open(peer, true)
	}
	if err != nil {
		return nil, fmt.Errorf("ucx path: %s: %w", peer, err)
	}
	d := n.route.description
	p.c.config.Log.Info("ucx connection", "peer", peer.Name, "connection", d.String(), "transports", d.Transports)
	return n, nil
}

// open is one attempt of dial; staged allows only the most staged route. Each step has a timeout of
// its own. The first step has a longer one, because the peer may have to open its library first,
// which takes seconds on hosts with many devices. again says that another attempt with only that
// route may succeed.
func (p *Path) open(peer transfer.Peer, staged bool) (_ *conn, again bool, err error) {
	token := newToken()
	ctx, cancel := context.WithTimeout(p.ctx, wireUpSteps*p.config.StallTimeout)
	defer cancel()
	response, err := p.config.Connect(ctx, peer, &workerv1.ConnectRequest{
		Request: &workerv1.ConnectRequest_Reader{Reader: p.c.local(token)}, ReaderWorkerId: uint32(p.config.Worker()),
	})
	if err != nil {
		return nil, false, dialError(ctx, err)
	}
	source := response.GetSource()
	address, offer, err := p.c.version.offered(source)
	if err != nil {
		return nil, false, err
	}
	n := &conn{token: token, theirs: source.GetToken(), peer: peer.String(), base: source.GetMemoryBase(), bytes: source.GetMemoryBytes(), offer: offer}
	n.onFailure = func() {
		p.dropConn(peer.Address, n)
		p.reportClosed(peer, n)
	}
	n.onSilence = func() { p.askServed(peer, n) }
	var routes []route
	connected, closed := ask(p.c, func(l *loop) (err error) {
		routes, err = l.connect(n, address)
		return err
	})
	if err := errors.Join(closed, connected); err != nil {
		return nil, false, err
	}
	if staged {
		routes = routes[len(routes)-1:]
	}
	if err := p.choose(n, source, routes); err != nil {
		failed, _ := ask(p.c, func(*loop) bool { return n.failure != nil })
		p.hangUp(n, err)
		return nil, failed && len(routes) > 1 && p.ctx.Err() == nil, err
	}
	return n, false, nil
}

// clearlyFaster is the ratio of rates from which on a more staged route is better than a direct
// one, which uses no copies of the GPUs.
const clearlyFaster = 1.1

// choose proves the routes, and leaves the connection with the fastest one. Reads of mapped memory
// are the fastest, and other routes are not tried then. Its error is that of the last route.
func (p *Path) choose(n *conn, source *workerv1.Endpoint, routes []route) error {
	best, failure := -1, error(nil)
	for i := range routes {
		if failure = p.prove(n, &routes[i], source); failure != nil {
			if lost, closed := ask(p.c, func(*loop) bool { return n.failure != nil }); lost || closed != nil {
				return failure
			}
			continue
		}
		if best < 0 || routes[i].description.BytesPerSecond > clearlyFaster*routes[best].description.BytesPerSecond {
			best = i
		}
		if routes[i].mapped() {
			break
		}
	}
	if best < 0 {
		return failure
	}
	return p.use(n, routes[best])
}

// use makes a connection read by a route.
func (p *Path) use(n *conn, r route) error {
	failure, closed := ask(p.c, func(*loop) error {
		n.route = r
		return n.failure
	})
	return errors.Join(closed, failure)
}

// dialError converts a gRPC status of the wire-up into an error of this package or of transfer.
func dialError(ctx context.Context, err error) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.Unimplemented, codes.FailedPrecondition:
		return fmt.Errorf("%w: %s", ErrNoConnection, s.Message())
	case codes.Unauthenticated, codes.PermissionDenied:
		return fmt.Errorf("%w: %s", transfer.ErrDenied, s.Message())
	case codes.Canceled, codes.DeadlineExceeded:
		if errors.Is(transfer.ContextErr(ctx), context.DeadlineExceeded) {
			return fmt.Errorf("%w: no answer to the wire-up", transfer.ErrStalled)
		}
	}
	return fmt.Errorf("%w: %s: %s", transfer.ErrPeerLost, s.Code(), s.Message())
}

// get reads remote memory and waits for the read, as await does.
func (p *Path) get(ctx context.Context, n *conn, r read) (time.Duration, error) {
	return p.await(ctx, n, r.length, func(l *loop, b *batch) {
		reads := appendReads(nil, b, r.local, r.remote, r.length, n.route.chunk(), r.memory)
		for _, x := range reads {
			x.key = r.key
		}
		l.queue(n, b, reads)
	})
}

// await waits for the reads of a batch, which submit submits, for at most StallTimeout. When it
// returns, they write to no memory any more.
func (p *Path) await(ctx context.Context, n *conn, bytes uint64, submit func(*loop, *batch)) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.StallTimeout)
	defer cancel()
	done := make(chan error, 1)
	var cancelled atomic.Bool
	b := &batch{done: func(_ *loop, err error) { done <- err }, cancelled: &cancelled, moved: new(atomic.Uint64)}
	begun := time.Now()
	if !p.c.do(func(l *loop) { submit(l, b) }) {
		return 0, fmt.Errorf("ucx: %w: closed", transfer.ErrPeerLost)
	}
	select {
	case err := <-done:
		return time.Since(begun), err
	case <-ctx.Done():
	}
	cancelled.Store(true)
	err := fmt.Errorf("%w: no answer to a read of %d bytes", transfer.ErrStalled, bytes)
	p.hangUp(n, err)
	return 0, errors.Join(err, <-done)
}

// prove makes a connection read by a route, compares the header page that it finds with the
// identity that the peer sent over the control connection, and times some reads.
func (p *Path) prove(n *conn, r *route, source *workerv1.Endpoint) error {
	c := p.c
	ctx, cancel := context.WithTimeout(p.ctx, p.config.StallTimeout)
	defer cancel()
	var slot int
	select {
	case slot = <-c.slots:
	case <-ctx.Done():
		return fmt.Errorf("%w: other connections are being proved", transfer.ErrStalled)
	}
	if err := p.use(n, *r); err != nil {
		c.slots <- slot
		return err
	}
	at := uint64(slot) * proofBytes
	into := &c.scratch
	if c.slab != nil && !r.stagedReader {
		into = &c.deviceScratch
	}
	defer func() {
		into.tidy(at)
		c.slots <- slot
	}()
	if r.mapped() {
		if err := c.mapOurselves(n, source); err != nil {
			return err
		}
	}
	header := read{local: into.base() + at, memory: into.memory, remote: n.base, length: memory.HeaderBytes}
	size := n.bytes
	if r.stagedSource {
		header.remote, header.key, size = n.offer.ringBase, keyRing, n.offer.ringBytes
	}
	if _, err := p.get(p.ctx, n, header); err != nil {
		return err
	}
	if r.writesToGPU(c) {
		if err := c.slab.Device().FlushWrites(); err != nil {
			return err
		}
	}
	page, err := into.read(at, memory.HeaderBytes)
	if err != nil {
		return err
	}
	if err := proven(page, source, size); err != nil {
		return err
	}
	return p.measure(n, &r.description, read{local: header.local, memory: header.memory})
}

// proven compares a header page with the identity that the peer sent over the control connection,
// and with the size of the memory that begins with the page.
func proven(page []byte, source *workerv1.Endpoint, size uint64) error {
	var said memory.Identity
	copy(said.WorkerUUID[:], source.GetWorkerUuid())
	copy(said.Incarnation[:], source.GetIncarnation())
	said.Nonce = source.GetNonce()
	found, err := memory.ParseHeader(page)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrProof, err)
	case found.Identity != said || found.SizeBytes != size:
		return fmt.Errorf("%w: incarnation %x and nonce %x were found, %x and %x expected", ErrProof,
			found.Identity.Incarnation, found.Identity.Nonce, said.Incarnation, said.Nonce)
	case !bytes.Equal(source.GetWorkerUuid(), found.Identity.WorkerUUID[:]):
		return fmt.Errorf("%w: worker %x", ErrProof, found.Identity.WorkerUUID)
	}
	return nil
}

// measure times reads of the slab by the route of the connection, into the given memory.
func (p *Path) measure(n *conn, d *Connection, into read) error {
	large, short := into, into
	large.remote, large.length = n.base, min(proofBytes, n.bytes)
	short.remote, short.length = n.base, 8
	// The first read is not counted: it also causes page faults, or maps memory.
	took, err := p.timed(n, large, 1)
	if err != nil {
		return err
	}
	rounds, reads := 3, 1
	if n.route.staged() {
		// Several reads at once, because the copies and the network work at the same time.
		if rounds = 1; took < slowProof {
			reads = proofPieces
		}
	}
	for range rounds {
		if took, err = p.timed(n, large, reads); err != nil {
			return err
		}
		d.BytesPerSecond = max(d.BytesPerSecond, float64(uint64(reads)*large.length)/took.Seconds())
	}
	for range 4 {
		if took, err = p.timed(n, short, 1); err != nil {
			return err
		}
		if d.Latency == 0 || took < d.Latency {
			d.Latency = took
		}
	}
	return nil
}

// timed reads a range of the slab several times at once.
func (p *Path) timed(n *conn, r read, times int) (time.Duration, error) {
	return p.await(p.ctx, n, uint64(times)*r.length, func(l *loop, b *batch) {
		var reads []*read
		for range times {
			reads = appendReads(reads, b, r.local, r.remote, r.length, n.route.readChunk(), r.memory)
		}
		l.take(n, b, reads)
	})
}
