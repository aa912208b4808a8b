package grpcpath

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
)

const (
	// maxRawConns is how many bare streams we open to one peer. Further fetches use gRPC.
	maxRawConns = 8
	// rawPingEvery is how often we send rawPing during a fetch. A fetch may wait for memory for a
	// long time without reading; see Server.ReaderTimeout.
	rawPingEvery = 2 * time.Second
)

// rawConn is a bare stream that carries one fetch at a time.
type rawConn struct {
	net.Conn
	rawReader
	// held interrupts a read that keeps buffers for too long. See resume.
	held *silence
}

func newRawConn(conn net.Conn) *rawConn {
	interrupt := func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) } // it fails if the connection is closed
	return &rawConn{
		Conn:      conn,
		rawReader: rawReader{in: bufio.NewReaderSize(conn, 8<<10), codec: rawframe.NewCodec()},
		held:      newSilence(holdFor, holdFor, interrupt),
	}
}

// resume makes a connection readable again that held has interrupted. It returns false if the fetch
// has ended: then the connection stays interrupted.
func (c *rawConn) resume(ctx context.Context) bool {
	_ = c.SetReadDeadline(time.Time{}) // it fails if the connection is closed
	if ctx.Err() == nil {
		return true
	}
	_ = c.SetReadDeadline(time.Unix(1, 0)) // what the end of ctx did, perhaps before the call above
	return false
}

// rawPeer holds the bare streams to one address; guarded by Path.mu.
type rawPeer struct {
	// refused says that the peer speaks only gRPC.
	refused bool
	dialing int
	open    map[*rawConn]struct{}
	idle    []*rawConn
}

func (r *rawPeer) close() {
	for c := range r.open {
		_ = c.Close() // the fetch that uses it gets an error
	}
}

// rawTake returns a bare stream for one fetch, or nil if it gets none. Then the fetch uses gRPC,
// and if there is a problem the error comes from there.
func (p *Path) rawTake(ctx context.Context, address string) *rawConn {
	if len(p.config.DialOptions) > 0 || len(p.config.Token) > math.MaxUint16 {
		return nil
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	peer := p.raws[address]
	if peer == nil {
		peer = &rawPeer{open: make(map[*rawConn]struct{})}
		p.raws[address] = peer
	}
	if n := len(peer.idle); n > 0 {
		c := peer.idle[n-1]
		peer.idle = peer.idle[:n-1]
		p.mu.Unlock()
		return c
	}
	if peer.refused || len(peer.open)+peer.dialing >= maxRawConns {
		p.mu.Unlock()
		return nil
	}
	peer.dialing++
	p.mu.Unlock()
	conn, err := dialBeside(ctx, new(net.Dialer), rawMagic, address, p.config.Token)
	var c *rawConn
	if err == nil {
		c = newRawConn(conn)
	}
	refused := errors.Is(err, errBeside)
	p.mu.Lock()
	defer p.mu.Unlock()
	peer.dialing--
	peer.refused = peer.refused || refused
	switch {
	case c == nil:
		return nil
	case p.closed || p.raws[address] != peer:
		_ = c.Close() // the peer was forgotten, or the path closed, while we dialed
		return nil
	}
	peer.open[c] = struct{}{}
	return c
}

// errBeside: the other side certainly does not support connections beside gRPC.
var errBeside = errors.New("it does not know what is beside gRPC")

// DialNotify opens a connection to a peer's Server.Notify, for completion notifications.
func (p *Path) DialNotify(ctx context.Context, address string) (net.Conn, error) {
	if len(p.config.Token) > math.MaxUint16 {
		return nil, errBeside
	}
	// The reader of notifications sends nothing, so only keep-alives find out that the peer cannot
	// be reached any more.
	alive := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3}}
	return dialBeside(ctx, &alive, notifyMagic, address, p.config.Token)
}

func dialBeside(ctx context.Context, dialer *net.Dialer, magic, address, token string) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	answer := make([]byte, len(magic))
	_, err = conn.Write(appendHello(nil, magic, token))
	if err == nil {
		_, err = io.ReadFull(conn, answer)
	}
	if err == nil && string(answer) != magic {
		err = errBeside
	}
	if !stop() {
		err = cmp.Or(err, ctx.Err())
	}
	if err != nil {
		_ = conn.Close() // it is useless
		return nil, err
	}
	return conn, nil
}

// rawPut takes a bare stream back. It keeps the stream for the next fetch, or closes it if it is
// broken.
func (p *Path) rawPut(address string, c *rawConn, broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer := p.raws[address]
	if peer != nil {
		if _, ok := peer.open[c]; ok && !broken {
			peer.idle = append(peer.idle, c)
			return
		}
		delete(peer.open, c)
	}
	_ = c.Close() // nothing can be lost any more
}

// overRaw fetches by a bare stream. It returns false if nothing has happened yet and the fetch must
// use gRPC.
func (f *fetch) overRaw(ctx context.Context, request *millracev1.ReadObjectsRequest) (ok bool, err error) {
	if len(f.refs) > maxObjects {
		return false, nil
	}
	c := f.path.rawTake(ctx, f.peer.Address)
	if c == nil {
		return false, nil
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // it fails if the connection is closed
	quiet := c.ping()
	records, err := f.receiveRaw(ctx, c, request)
	quiet()
	undisturbed := stop()
	f.path.rawPut(f.peer.Address, c, err != nil || !undisturbed)
	switch {
	case err == nil:
		return true, nil
	case records == 0 && ctx.Err() == nil:
		// The peer was restarted after this stream was last used, or is about to stop: gRPC returns
		// the precise error.
		return false, nil
	case ctx.Err() != nil:
		return true, ctx.Err()
	}
	return true, err
}

// ping sends rawPing from time to time, until stop is called, to show the server that we are alive.
func (c *rawConn) ping() (stop func()) {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(rawPingEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if _, err := c.Write([]byte{rawPing}); err != nil {
					return // the next read fails as well
				}
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// receiveRaw sends the request and handles the records of the answer. It returns how many came.
func (f *fetch) receiveRaw(ctx context.Context, c *rawConn, request *millracev1.ReadObjectsRequest) (records int, err error) {
	ask, err := appendAsk(nil, request)
	if err != nil {
		return 0, err
	}
	if _, err := c.Write(ask); err != nil {
		return 0, lost(err)
	}
	for m := new(rawframe.ReadResponse); ; records++ {
		f.await(ctx, c)
		n, err := c.next(m)
		if errors.Is(err, io.EOF) {
			return records, nil
		}
		if err != nil {
			return records, lost(err)
		}
		f.stall.Reset(f.path.config.StallTimeout)
		m.Data.Free() // the data of a bare stream follows the message
		if err := f.handle(ctx, &m.Message); err != nil {
			return records + 1, err
		}
		if err := f.fill(ctx, c, &m.Message, n); err != nil {
			return records + 1, err
		}
	}
}

// await waits for the next record if an object holds buffers meanwhile, and gives them back if that
// takes longer than holdFor. Errors are those of the next read.
func (f *fetch) await(ctx context.Context, c *rawConn) {
	o := &f.objects[f.last]
	if !o.holds() || c.in.Buffered() > 0 {
		return
	}
	c.held.begin()
	_, _ = c.in.Peek(1)
	if c.held.end() && c.resume(ctx) {
		o.park()
	}
}

// fill reads the data of a record into its regions.
func (f *fetch) fill(ctx context.Context, c *rawConn, m *rawframe.Message, n int) error {
	if n == 0 {
		return nil
	}
	o := &f.objects[m.Index]
	if o.done {
		return f.drain(c, n)
	}
	region, err := o.next(m.Frame, m.Offset, uint64(n))
	if err != nil {
		return f.violation(m.Index, "%v", err)
	}
	for n > 0 {
		into, err := o.room(region)
		if err != nil {
			f.unplaced(m.Index, err)
			return f.drain(c, n)
		}
		filled, err := f.read(ctx, c, o, into)
		if err != nil {
			return lost(err)
		}
		n -= filled
		region.Frame = memory.Frame{Offset: region.Frame.Offset + uint64(filled), Bytes: uint64(n)}
	}
	f.settle(m.Index)
	return nil
}

// read fills into, the room of an object, and returns how much has come. If the room is a buffer,
// and that takes longer than holdFor, it gives the buffer back with what has come, and waits for
// more without one.
func (f *fetch) read(ctx context.Context, c *rawConn, o *incoming, into []byte) (filled int, err error) {
	if !o.holds() {
		return f.readFull(c, into)
	}
	c.held.begin()
	filled, err = f.readFull(c, into)
	if !c.held.end() || !c.resume(ctx) || !errors.Is(err, os.ErrDeadlineExceeded) {
		return filled, err
	}
	o.flow.Park(uint64(len(into) - filled))
	_, err = c.in.Peek(1)
	return filled, err
}

// readFull fills into, and returns how much has come, also if there is an error.
func (f *fetch) readFull(c *rawConn, into []byte) (filled int, err error) {
	for filled < len(into) {
		got, err := c.in.Read(into[filled:])
		if filled += got; got > 0 {
			f.stall.Reset(f.path.config.StallTimeout)
			if f.path.config.Received != nil {
				f.path.config.Received(got)
			}
		}
		if err != nil && filled < len(into) {
			return filled, err
		}
	}
	return filled, nil
}

// drain reads and drops data that has no place.
func (f *fetch) drain(c *rawConn, n int) error {
	for n > 0 {
		dropped, err := c.in.Discard(min(n, c.in.Size()))
		if err != nil {
			return lost(err)
		}
		f.stall.Reset(f.path.config.StallTimeout)
		n -= dropped
	}
	return nil
}
