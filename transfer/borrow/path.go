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
// generation. Loans that last always have leases: a glance is for copies, and for kernels that
// read in place (Lend), which end soon, and delays whoever wants the memory. Whether a glance holds is told by its
// slot alone, which the peer closes when the connection ends, if it lives.
package borrow

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/board"
	"github.com/millrace/millrace/internal/dataproto"
	"github.com/millrace/millrace/internal/ids"
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
	// Lends, if set, says of what was opened whether it is for Lend. It is asked once.
	Lends func(Memory) bool
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
