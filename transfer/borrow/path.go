// Package borrow is an Adapter: the path between processes of one host. A worker
// listens on a unix socket, passes the descriptor of its memory once to each
// connection, and gives read leases in batches; the reader maps that memory once,
// for reading only, and uses objects where they are. There is no copy, and the
// pages outlive the peer: its death does not matter to whoever has a loan.
//
// Path.Borrow hands out such loans. Path.Fetch copies out of the mapping, for
// objects that shall be here to stay: still one copy less than any socket needs.
//
// # When a loan holds
//
// A loan's lease ends at a time that both sides know, and is renewed long before;
// clocks are the same on one host. So the reader can tell by itself whether the
// bytes were protected until now: the time has not come, and the connection is
// open (the peer closes it before it takes leases back) or broke because the peer
// died, after which nobody writes there any more. A reader that was stopped for
// so long that its leases ran out finds that out when it goes on.
//
// # The board
//
// To ask for leases is a message there and one back, and books for each object: more
// than what is small takes to copy. So a peer also shows on a board (package
// internal/board, which says why that is safe) what lies in the memory that it
// passed, and Glance finds objects there without any message. Fetch looks at the
// board first, and asks for leases on what is not on it, or was named without a
// generation. Loans that last always have leases: a glance is for copies, which end
// soon, and delays whoever wants the memory. Whether a glance holds is told by its
// slot alone, which the peer closes when the connection ends, if it lives.
package borrow

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/board"
	"github.com/millrace/millrace/internal/dataproto"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// Config is fixed for the life of a path.
type Config struct {
	// Worker is who reads. Nil: a client.
	Worker func() ids.WorkerID
	// Token authenticates us to peers.
	Token string
	// StallTimeout is how long a peer may take to answer. Default 5 s.
	StallTimeout time.Duration
	// LeaseTTL is how long a lease lasts without being renewed. Default 10 s: well
	// below what tasks of the peer wait for memory, or a reader that is stopped would
	// make them fail.
	LeaseTTL time.Duration
	// Received, if set, is told of the bytes that Fetch copies.
	Received func(bytes int)
	// Pinned: what is wanted is the host memory of peers whose slab lies on a GPU.
	Pinned bool
	// NoBoard: leases are always asked for.
	NoBoard bool
	// Linger is how long the memory of a peer that died stays mapped for Rescue, unless
	// Forget ends that before. Default 0: not at all.
	Linger time.Duration
	// Unmapped, if set, is told when a peer's memory is mapped by its connection no
	// more; dead says that its process had ended. It must not call the path.
	Unmapped func(at transfer.Peer, dead bool)
	// Spin is how long an answer is looked for before its reader sleeps. Default 0.
	Spin time.Duration
	// Open, if set, makes peers' memory usable here, in place of a mapping for the
	// processor; it also gets that which lies on a GPU, with a nil file. The file is
	// its to close if there is no error, and so is the turn, which is nil if the peer
	// has none.
	Open func(at transfer.Peer, welcome *millracev1.BorrowWelcome, file *os.File, turn *board.Turn) (Memory, error)
}

// Memory is a peer's memory in this process.
type Memory interface {
	memory.Space
	// Close ends the mapping; dead says that the peer's process is known to be. It
	// is called once, after the last loan has ended.
	Close(dead bool)
}

// Path is the reading side. It keeps one connection and one mapping per peer.
type Path struct {
	config Config

	mu sync.Mutex
	// peers by address, connected or being connected; guarded by mu, as is closed.
	peers  map[string]*peer
	closed bool
	// remains are the peers that died and are still mapped for Rescue, each with what
	// ends that; guarded by mu.
	remains map[*peer]chan struct{}
	wait    sync.WaitGroup
}

var (
	_ transfer.Path     = (*Path)(nil)
	_ transfer.Borrower = (*Path)(nil)
)

// New returns a path without connections.
func New(c Config) *Path {
	if c.StallTimeout <= 0 {
		c.StallTimeout = 5 * time.Second
	}
	if c.LeaseTTL <= 0 {
		c.LeaseTTL = 10 * time.Second
	}
	return &Path{config: c, peers: make(map[string]*peer), remains: make(map[*peer]chan struct{})}
}

// Name is part of transfer.Path.
func (p *Path) Name() string { return "borrow" }

// Close ends all connections. The memory of peers stays mapped until the last
// loan on it has ended.
func (p *Path) Close() error {
	p.mu.Lock()
	peers := p.peers
	p.peers, p.closed = nil, true
	p.buryAll(func(*peer) bool { return true })
	p.mu.Unlock()
	for _, peer := range peers {
		<-peer.ready
		if peer.conn != nil {
			_ = peer.conn.Close()
		}
	}
	p.wait.Wait()
	return nil
}

// Forget ends the connection to a peer that is gone.
func (p *Path) Forget(address string) {
	p.mu.Lock()
	known := p.peers[address]
	delete(p.peers, address)
	if known != nil {
		known.buried = true
	}
	p.buryAll(func(c *peer) bool { return c.at.Address == address })
	p.mu.Unlock()
	if known == nil {
		return
	}
	<-known.ready
	if known.conn != nil {
		_ = known.conn.Close()
	}
}

// space is a peer's memory in this process.
type space struct {
	data     []byte
	identity memory.Identity
	// file is what data maps, opened for reading only.
	file *os.File
}

var _ Memory = (*space)(nil)

// mapped is Config.Open for what the processor addresses.
func mapped(_ transfer.Peer, welcome *millracev1.BorrowWelcome, file *os.File, turn *board.Turn) (Memory, error) {
	if file == nil {
		return nil, errors.New("its memory lies on a GPU")
	}
	data, err := slabshare.Map(file, welcome, false)
	if err != nil {
		return nil, err
	}
	if turn != nil {
		_ = turn.Close() // processors need not take turns
	}
	return &space{data: data, file: file, identity: Identity(welcome)}, nil
}

// Identity is what a welcome says.
func Identity(welcome *millracev1.BorrowWelcome) memory.Identity {
	id := memory.Identity{Nonce: welcome.GetNonce()}
	copy(id.WorkerUUID[:], welcome.GetWorkerUuid())
	copy(id.Incarnation[:], welcome.GetIncarnation())
	return id
}

// Close is part of Memory. The pages of the dead are as good as others.
func (s *space) Close(bool) {
	_ = slabshare.Unmap(s.data) // nothing could be done about it
	_ = s.file.Close()          // nothing was written
}

// Size is part of memory.Space.
func (s *space) Size() uint64 { return uint64(len(s.data)) }

// Identity is part of memory.Space.
func (s *space) Identity() memory.Identity { return s.identity }

// Bytes is part of memory.Space, but for reading only.
func (s *space) Bytes(off, n uint64) []byte { return s.data[off : off+n : off+n] }

// FD is part of memory.Space. It cannot be mapped for writing, and stays open as
// long as a loan lasts.
func (s *space) FD() int { return int(s.file.Fd()) }

// peer is a connection that is made or being made. conn, space, view and err are
// fixed once ready is closed.
type peer struct {
	path  *Path
	at    transfer.Peer // fixed
	ready chan struct{}
	conn  *slabshare.Conn
	space Memory
	// view is on the peer's board, nil if it has none.
	view *board.View
	err  error
	// wake tells run of loans that ended. It has room for one.
	wake chan struct{}
	// buried: nothing is wanted from it once it is dead; guarded by path.mu.
	buried bool

	mu sync.Mutex
	// All below is guarded by mu. ended are leases to give back.
	loans map[*loan]struct{}
	ended []uint64
	// batches are those with leases that have not ended.
	batches map[*Batch]struct{}
	// glances counts those that have not ended.
	glances int
	// gone: the connection has ended, and who ends the last loan unmaps. dead: the
	// peer's process is known to have ended as well.
	gone, dead bool
	unmapped   bool
}

// lease is one on an object.
type lease struct {
	// id is fixed; 0 none.
	id uint64
	// limit is when the lease ends by itself, in UnixNano: it moves on as the lease
	// is renewed. 0: it did not hold.
	limit atomic.Int64
	// open: of a batch, and not ended; guarded by peer.mu.
	open bool
}

// loan is one object.
type loan struct {
	lease
	peer *peer
}

// connected returns the connection to a peer, making it if need be.
func (p *Path) connected(ctx context.Context, at transfer.Peer) (*peer, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, fmt.Errorf("borrow: %w: closed", transfer.ErrPeerLost)
	}
	c := p.peers[at.Address]
	if c != nil && c.over() {
		c = nil
	}
	if c == nil {
		c = &peer{path: p, at: at, ready: make(chan struct{}), wake: make(chan struct{}, 1), loans: make(map[*loan]struct{}), batches: make(map[*Batch]struct{})}
		p.peers[at.Address] = c
		p.wait.Add(1)
		go c.run(at)
	}
	p.mu.Unlock()
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if c.err == nil {
		return c, nil
	}
	p.mu.Lock()
	if p.peers[at.Address] == c {
		delete(p.peers, at.Address) // The next one tries anew.
	}
	p.mu.Unlock()
	return nil, fmt.Errorf("borrow from %s: %w", at, c.err)
}

// over says whether a connection that was made has ended.
func (c *peer) over() bool {
	select {
	case <-c.ready:
		return c.err != nil || c.conn.Err() != nil
	default:
		return false
	}
}

func (c *peer) connect(at transfer.Peer) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), c.path.config.StallTimeout, transfer.ErrStalled)
	defer cancel()
	hello := &millracev1.BorrowHello{Token: c.path.config.Token, Device: c.path.config.Open != nil, Board: !c.path.config.NoBoard, Pinned: c.path.config.Pinned}
	if c.path.config.Worker != nil {
		hello.ReaderWorkerId = uint32(c.path.config.Worker())
	}
	conn, welcome, file, err := slabshare.Dial(ctx, at.Address, hello)
	if err != nil {
		if errors.Is(err, slabshare.ErrRefused) {
			return fmt.Errorf("%w: %w", transfer.ErrNoWay, err)
		}
		if errors.Is(err, slabshare.ErrNotHere) {
			// Another host, or dead: from here these look the same.
			return fmt.Errorf("%w: %w: %w", transfer.ErrNoWay, transfer.ErrPeerLost, err)
		}
		return fmt.Errorf("%w: %w", transfer.ErrPeerLost, err)
	}
	view, turn := see(conn)
	open := c.path.config.Open
	if open == nil {
		open = mapped
	}
	space, err := open(at, welcome, file, turn)
	if err != nil {
		if file != nil {
			_ = file.Close() // nothing was written
		}
		_ = conn.Close()
		conn.Free()
		if view != nil {
			_ = view.Close() // nothing could be done about it
		}
		if turn != nil {
			_ = turn.Close() // nor about this
		}
		return fmt.Errorf("%w: %w", transfer.ErrNoWay, err)
	}
	if slabshare.Spins() {
		conn.Spin = c.path.config.Spin
	}
	c.conn, c.space, c.view = conn, space, view
	return nil
}

// giveBackEvery is how long a lease that ended may wait for others that do.
const giveBackEvery = time.Millisecond

// run connects, gives leases back and renews them, until the connection ends.
func (c *peer) run(at transfer.Peer) {
	defer c.path.wait.Done()
	c.err = c.connect(at)
	close(c.ready)
	if c.err != nil {
		return
	}
	every := c.path.config.LeaseTTL / 3
	timer := time.NewTimer(every)
	defer timer.Stop()
	pause := time.NewTimer(giveBackEvery)
	defer pause.Stop()
	for {
		select {
		case <-c.wake:
			c.giveBack()
			// Who fetches one object after the other must not wake us for each.
			pause.Reset(giveBackEvery)
			select {
			case <-pause.C:
			case <-c.conn.Done():
			}
		case <-timer.C:
			c.renew()
			timer.Reset(every)
		case <-c.conn.Done():
			// NB: a process that has much memory on a GPU is there for a while after its
			// sockets have gone.
			c.linger()
			dead := c.conn.Exited()
			c.mu.Lock()
			c.gone, c.dead = true, dead
			c.unmapIfUnused()
			c.mu.Unlock()
			return
		}
	}
}

func (c *peer) giveBack() {
	c.mu.Lock()
	ended := c.ended
	c.ended = nil
	c.mu.Unlock()
	if len(ended) == 0 {
		return
	}
	// A connection that breaks gives everything back.
	_ = c.conn.Send(&millracev1.BorrowRequest{Order: &millracev1.BorrowRequest_Release{
		Release: &millracev1.ReleaseReadLeasesRequest{LeaseIds: ended},
	}})
}

func (c *peer) renew() {
	c.mu.Lock()
	var leases []*lease
	for l := range c.loans {
		leases = append(leases, &l.lease)
	}
	for b := range c.batches {
		for i := range b.leases {
			if l := &b.leases[i]; l.open {
				leases = append(leases, l)
			}
		}
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(context.Background(), c.path.config.StallTimeout, transfer.ErrStalled)
	defer cancel()
	for part := range slices.Chunk(leases, maxRefs) {
		numbers := make([]uint64, len(part))
		for i, l := range part {
			numbers[i] = l.id
		}
		asked := time.Now()
		response, err := c.conn.Call(ctx, &millracev1.BorrowRequest{Order: &millracev1.BorrowRequest_Renew{
			Renew: &millracev1.BorrowRenew{LeaseIds: numbers, TtlMillis: uint64(c.path.config.LeaseTTL / time.Millisecond)},
		}}, nil)
		if err != nil {
			return // They run out, or the next time is in time.
		}
		held := response.GetRenewed().GetHeld()
		for i, l := range part {
			if i < len(held) && held[i] {
				l.limit.Store(asked.Add(c.path.config.LeaseTTL).UnixNano())
			} else {
				l.limit.Store(0)
			}
		}
	}
}

// unmapIfUnused ends the mapping after the last loan. REQUIRES: mu.
func (c *peer) unmapIfUnused() {
	if c.gone && len(c.loans) == 0 && len(c.batches) == 0 && c.glances == 0 && !c.unmapped {
		c.unmapped = true
		if c.view != nil {
			_ = c.view.Close() // nothing could be done about it
		}
		c.space.Close(c.dead)
		c.conn.Free()
		if c.path.config.Unmapped != nil {
			c.path.config.Unmapped(c.at, c.dead)
		}
	}
}

// end is Loan.End.
func (l *loan) end() bool {
	c := l.peer
	limit := l.limit.Load()
	held := limit != 0 && c.conn.Held(time.Unix(0, limit))
	c.mu.Lock()
	delete(c.loans, l)
	c.ended = append(c.ended, l.id)
	c.unmapIfUnused()
	c.mu.Unlock()
	c.wakeUp()
	return held
}

// wakeUp has run look for ended leases.
func (c *peer) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Connect makes the connection to a peer, if there is none.
func (p *Path) Connect(ctx context.Context, at transfer.Peer) error {
	_, err := p.connected(ctx, at)
	return err
}

// Lends is part of transfer.Borrower. What is not known is worth asking.
func (p *Path) Lends(transfer.Peer) bool { return true }

// Borrow is part of transfer.Borrower.
func (p *Path) Borrow(ctx context.Context, at transfer.Peer, refs []transfer.Ref) ([]transfer.Loan, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	c, err := p.connected(ctx, at)
	if err != nil {
		return nil, err
	}
	request := &millracev1.AcquireReadLeasesRequest{
		Objects: dataproto.RefsTo(refs), TtlMillis: uint64(p.config.LeaseTTL / time.Millisecond),
	}
	if p.config.Worker != nil {
		request.ReaderWorkerId = uint32(p.config.Worker())
	}
	asked := time.Now()
	response, err := c.acquire(ctx, at, &millracev1.BorrowRequest{Order: &millracev1.BorrowRequest_Acquire{Acquire: request}})
	if err != nil {
		return nil, err
	}
	leases := response.GetAcquired().GetLeases()
	if len(leases) != len(refs) {
		return nil, fmt.Errorf("borrow from %s: %w: %d leases for %d objects", at, transfer.ErrProtocol, len(leases), len(refs))
	}
	loans := make([]transfer.Loan, len(refs))
	for i, pb := range leases {
		loans[i] = c.lent(at, refs[i], pb, asked.Add(p.config.LeaseTTL))
	}
	return loans, nil
}

// acquire asks for leases.
func (c *peer) acquire(ctx context.Context, at transfer.Peer, request *millracev1.BorrowRequest) (*millracev1.BorrowResponse, error) {
	limited, cancel := context.WithTimeoutCause(ctx, c.path.config.StallTimeout, transfer.ErrStalled)
	defer cancel()
	response, err := c.conn.Call(limited, request, c.decline)
	if err == nil {
		return response, nil
	}
	if ctx.Err() == nil && errors.Is(err, transfer.ErrStalled) {
		// What it grants after all is given back with the connection.
		_ = c.conn.Close()
	}
	if ctx.Err() != nil || errors.Is(err, transfer.ErrStalled) {
		return nil, fmt.Errorf("borrow from %s: %w", at, err)
	}
	return nil, fmt.Errorf("borrow from %s: %w: %w", at, transfer.ErrPeerLost, err)
}

// decline gives back what was granted when nobody waited for it any more.
func (c *peer) decline(r *millracev1.BorrowResponse) {
	c.mu.Lock()
	for _, l := range r.GetAcquired().GetLeases() {
		if l.GetLeaseId() != 0 {
			c.ended = append(c.ended, l.GetLeaseId())
		}
	}
	for _, id := range r.GetAcquiredMany().GetLeaseIds() {
		if id != 0 {
			c.ended = append(c.ended, id)
		}
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// lent makes a loan of what the peer said.
func (c *peer) lent(at transfer.Peer, ref transfer.Ref, pb *millracev1.ReadLease, limit time.Time) transfer.Loan {
	if pb.GetLeaseId() == 0 {
		err := transfer.ErrNotHere
		if pb.GetRefusal() == reasonElsewhere {
			err = transfer.ErrNoWay
		}
		return transfer.Loan{Err: fmt.Errorf("%s on %s: %w", ref, at, err)}
	}
	l := &loan{peer: c}
	l.id = pb.GetLeaseId()
	l.limit.Store(limit.UnixNano())
	c.mu.Lock()
	unmapped := c.unmapped
	c.loans[l] = struct{}{}
	c.mu.Unlock()
	out := transfer.Loan{Head: dataproto.HeadFrom(pb.GetHead()), End: l.end}
	switch {
	case unmapped:
		out.Err = transfer.ErrPeerLost
	case out.Head.Ref.Task != ref.Task || ref.Generation != 0 && out.Head.Ref.Generation != ref.Generation,
		len(pb.GetFrames()) != len(out.Head.FrameBytes):
		out.Err = fmt.Errorf("%w: another object, %s with %d of %d frames", transfer.ErrProtocol, out.Head.Ref, len(pb.GetFrames()), len(out.Head.FrameBytes))
	}
	for i, f := range pb.GetFrames() {
		frame := memory.Frame{Offset: f.GetOffset(), Bytes: f.GetBytes()}
		if out.Err == nil && (!frame.Within(c.space.Size()) || frame.Bytes != out.Head.FrameBytes[i]) {
			out.Err = fmt.Errorf("%w: frame %d is [%d, +%d) of %d bytes", transfer.ErrProtocol, i, frame.Offset, frame.Bytes, c.space.Size())
		}
		out.Regions = append(out.Regions, transfer.Region{Space: c.space, Frame: frame})
	}
	if out.Err != nil {
		l.end()
		return transfer.Loan{Err: fmt.Errorf("%s on %s: %w", ref, at, out.Err)}
	}
	return out
}

// copyBytes is how much Fetch copies between two looks at the context.
const copyBytes = 4 << 20

// Fetch is part of transfer.Path.
func (p *Path) Fetch(ctx context.Context, at transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	missed, err := p.fetchShown(ctx, at, refs, sink)
	if err != nil || len(missed) == 0 {
		return err
	}
	if len(missed) < len(refs) {
		rest := make([]transfer.Ref, len(missed))
		for n, i := range missed {
			rest[n] = refs[i]
		}
		refs = rest
	}
	loans, err := p.Borrow(ctx, at, refs)
	if err != nil {
		return err
	}
	for n := range loans {
		l, i := &loans[n], missed[n]
		switch {
		case l.Err != nil && err == nil:
			sink.Done(i, l.Err)
		case l.Err != nil:
		case err != nil:
			l.End()
		default:
			err = p.fetchOne(ctx, at, i, l, sink)
		}
	}
	return err
}

// fetchOne copies one object. Its error ends the fetch; one of the object alone
// goes to the sink.
func (p *Path) fetchOne(ctx context.Context, at transfer.Peer, index int, l *transfer.Loan, sink transfer.Sink) error {
	into, err := sink.Place(ctx, index, l.Head)
	if err == nil {
		err = p.copy(ctx, into, l.Regions)
	}
	held := l.End()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("borrow from %s: %w", at, context.Cause(ctx))
	case err == nil && !held:
		return fmt.Errorf("borrow from %s: %s: %w: its lease did not hold", at, l.Head.Ref, transfer.ErrPeerLost)
	}
	sink.Done(index, err)
	return nil
}

func (p *Path) copy(ctx context.Context, into, from []transfer.Region) error {
	if len(into) != len(from) {
		return fmt.Errorf("%d regions for %d frames", len(into), len(from))
	}
	for i := range from {
		if into[i].Frame.Bytes != from[i].Frame.Bytes {
			return fmt.Errorf("region %d has %d bytes for a frame of %d", i, into[i].Frame.Bytes, from[i].Frame.Bytes)
		}
		to, source := into[i].Bytes(), from[i].Bytes()
		for len(source) > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := copy(to, source[:min(len(source), copyBytes)])
			to, source = to[n:], source[n:]
			if p.config.Received != nil {
				p.config.Received(n)
			}
		}
	}
	return nil
}
