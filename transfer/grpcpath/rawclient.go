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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/transfer"
)

const (
	// maxRawConns is how many bare streams we open to one peer. Further fetches use gRPC.
	maxRawConns = 8
	// rawPingEvery is how often we send rawPing during a fetch. A fetch may wait for memory for a
	// long time without reading; see Server.ReaderTimeout.
	rawPingEvery = 2 * time.Second
	// readAhead is the size of the buffer in which the records between the data arrive. Reads that
	// are larger go past it.
	readAhead = 8 << 10
	// notifyIdle is the silence of a connection for notifications after which keep-alives begin,
	// notifyProbe the time between two of them. After notifyProbes without an answer, in 5 s
	// altogether, the peer cannot be reached any more.
	notifyIdle   = 2 * time.Second
	notifyProbe  = time.Second
	notifyProbes = 3
)

// rawConn is a bare stream that carries one fetch at a time.
type rawConn struct {
	net.Conn
	rawReader
	// raw is for system calls on the connection; nil if it has none.
	raw syscall.RawConn
	// held interrupts a read that keeps buffers for too long, brief the wait for a record while
	// objects that have come are not stored. See resume.
	held, brief *silence
}

func newRawConn(conn net.Conn) *rawConn {
	interrupt := func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) } // it fails if the connection is closed
	var raw syscall.RawConn
	if c, ok := conn.(syscall.Conn); ok {
		raw, _ = c.SyscallConn() // it fails if the connection is closed
	}
	return &rawConn{
		Conn:      conn,
		raw:       raw,
		rawReader: rawReader{in: bufio.NewReaderSize(conn, readAhead), codec: rawframe.NewCodec()},
		held:      newSilence(holdFor, holdFor, interrupt),
		brief:     newSilence(landWithin, landWithin, interrupt),
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
	alive := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: notifyIdle, Interval: notifyProbe, Count: notifyProbes}}
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
			return records, f.placeQueue(ctx)
		}
		if err != nil {
			return records, lost(err)
		}
		f.stall.Reset(f.path.config.StallTimeout)
		m.Data.Free() // the data of a bare stream follows the message
		if err := f.record(ctx, c, &m.Message, n); err != nil {
			return records + 1, err
		}
	}
}

// record handles one record, which n bytes of data follow.
func (f *fetch) record(ctx context.Context, c *rawConn, m *rawframe.Message, n int) error {
	if int(m.Index) >= len(f.objects) || m.Error != nil || m.Head == nil && !f.objects[m.Index].begun {
		if err := f.placeQueue(ctx); err != nil {
			return err
		}
		return f.handle(ctx, m)
	}
	if m.Head != nil {
		if err := f.begin(m); err != nil {
			return err
		}
	}
	if n == 0 {
		return nil // it is placed with those that follow
	}
	return f.fill(ctx, c, m, n)
}

// await waits for the next record if the stream holds buffers meanwhile. If that takes longer than
// landWithin, it stores what has come, and gives them back. Errors are those of the next read.
func (f *fetch) await(ctx context.Context, c *rawConn) {
	if !f.land.holds() || c.in.Buffered() > 0 {
		return
	}
	c.brief.begin()
	_, _ = c.in.Peek(1)
	if c.brief.end() && c.resume(ctx) {
		_ = f.land.flush() // its error is that of the objects
	}
}

// maxRooms is the number of regions that one system call fills.
const maxRooms = 256

// fill reads the data of a record into the regions of its object, and of those that follow.
func (f *fetch) fill(ctx context.Context, c *rawConn, m *rawframe.Message, n int) error {
	index := m.Index
	if err := f.objects[index].expects(m.Frame, m.Offset); err != nil {
		return f.violation(index, "%v", err)
	}
	for n > 0 {
		o := &f.objects[index]
		if o.complete() {
			if index++; int(index) == len(f.objects) || !f.objects[index].begun {
				return f.violation(index-1, "more data than its frames hold")
			}
			continue
		}
		for !o.placed {
			if err := f.place(ctx); err != nil {
				return err
			}
		}
		if o.done {
			begin, end := o.bounds()
			dropped := min(n, int(end-begin-o.offset))
			if err := f.drain(c, dropped); err != nil {
				return err
			}
			o.offset += uint64(dropped)
			n -= dropped
			continue
		}
		into, err := f.land.rooms(f.next(index, n))
		if err != nil {
			f.unplaced(index, err)
			continue
		}
		filled, err := f.read(ctx, c, into)
		if err != nil {
			return lost(err)
		}
		n -= filled
		index = f.advance(index, filled)
	}
	return nil
}

// next returns the regions of the next n bytes, from the current position of an object on, as far
// as objects have places.
func (f *fetch) next(index uint32, n int) (regions []transfer.Region) {
	for left := uint64(n); left > 0 && int(index) < len(f.objects) && len(regions) < maxRooms; index++ {
		o := f.objects[index]
		if !o.placed || o.done && !o.complete() {
			break
		}
		for left > 0 && !o.complete() {
			r := o.rest(left)
			regions = append(regions, r)
			o.offset += r.Frame.Bytes
			left -= r.Frame.Bytes
		}
	}
	return regions
}

// advance notes that the next n bytes have come, from the current position of an object on. It
// returns the object at which they end.
func (f *fetch) advance(index uint32, n int) uint32 {
	first := index
	for left := uint64(n); ; index++ {
		o := &f.objects[index]
		for left > 0 && !o.complete() {
			k := o.rest(left).Frame.Bytes
			o.offset += k
			left -= k
		}
		if left == 0 {
			break
		}
	}
	var reached []uint32
	for i := first; i <= index; i++ {
		reached = append(reached, i)
	}
	f.settle(reached...)
	return index
}

// read fills into, the rooms of objects, and returns how much has come. Without a buffer it waits
// only for the first bytes, so that objects which have come are reported before it waits again. If
// the rooms are in a buffer, it waits for all of them. If that takes too long, it stores what has
// come, gives the buffer back, and waits for more without one. The limit is holdFor, or landWithin
// while objects wait to be stored.
func (f *fetch) read(ctx context.Context, c *rawConn, into [][]byte) (filled int, err error) {
	if !f.land.holds() {
		return f.readFull(c, into, false)
	}
	limit := c.held
	if len(f.land.arrived) > 0 {
		limit = c.brief
	}
	size := 0
	for _, b := range into {
		size += len(b)
	}
	limit.begin()
	filled, err = f.readFull(c, into, true)
	if !limit.end() || !c.resume(ctx) || !errors.Is(err, os.ErrDeadlineExceeded) {
		return filled, err
	}
	f.land.park(uint64(size - filled))
	_ = f.land.flush() // its error is that of the objects, and of the next room
	_, err = c.in.Peek(1)
	return filled, err
}

// readFull fills into, and returns how much has come, also if there is an error. Unless patient, it
// returns also when it would have to wait for more than the first bytes.
func (f *fetch) readFull(c *rawConn, into [][]byte, patient bool) (filled int, err error) {
	for len(into) > 0 {
		got, err := c.readSome(into, patient || filled == 0)
		if filled += got; got > 0 {
			f.stall.Reset(f.path.config.StallTimeout)
			if f.path.config.Received != nil {
				f.path.config.Received(got)
			}
		}
		for len(into) > 0 && got >= len(into[0]) {
			got -= len(into[0])
			into = into[1:]
		}
		switch {
		case len(into) == 0:
			return filled, nil
		case errors.Is(err, unix.EAGAIN):
			return filled, nil
		case err != nil:
			return filled, err
		}
		into[0] = into[0][got:]
	}
	return filled, nil
}

// readSome reads into several slices, at least one byte: with one system call into all of them, if
// nothing is buffered. Unless it may wait, it returns EAGAIN instead.
func (c *rawConn) readSome(into [][]byte, wait bool) (n int, err error) {
	if wait && len(into) == 1 || c.in.Buffered() > 0 || c.raw == nil {
		return c.in.Read(into[0])
	}
	var failed error
	err = c.raw.Read(func(fd uintptr) bool {
		for {
			if n, failed = unix.Readv(int(fd), into); !errors.Is(failed, unix.EINTR) {
				return !wait || !errors.Is(failed, unix.EAGAIN)
			}
		}
	})
	switch err = cmp.Or(err, failed); {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
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
