// Package borrow is an Adapter: the path between processes of one host. A worker listens on a unix
// socket, passes the descriptor of its memory once to each connection, and gives read leases in
// batches. The reader maps that memory once, for reading only, and uses objects in place. There is
// no copy. The pages outlive the peer, so the holder of a loan is not affected by the peer's death.
//
// Path.Borrow gives such loans. Path.Fetch copies objects out of the mapping, for callers that need
// a copy of their own; this is still one copy less than with any socket.
//
// # When a loan holds
//
// The lease of a loan ends at a time that both sides know, and is renewed long before. All
// processes of a host share the clock. So the reader can decide alone whether the bytes were
// protected until now. Two conditions must hold: the lease has not expired, and the connection is
// open, or it broke because the peer died. (The peer closes the connection before it takes leases
// back; after its death nobody writes to its memory.) A reader that was stopped until its leases
// expired finds this out when it continues.
//
// # The shared object index
//
// A request for leases takes a message in each direction and bookkeeping for each object. For small
// objects that takes longer than the copy. So a peer also publishes the objects in an index in
// shared memory (package transfer/objindex explains why reading it is safe). A ReadGuard is an
// epoch guard of one reader: it finds objects in the index without any message. Fetch looks into
// the index first. It asks for leases on objects that are not in it, or that were named without a
// generation.
//
// Loans for a longer time always have leases. A guard is for copies and for kernels that read in
// place (Lend): both end soon, and until then they delay the peer if it needs the memory. The state
// of its reader slot alone says whether a guard holds; when the connection ends, a peer that is
// alive closes the slot.
package borrow

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/dataproto"
	"github.com/millrace/millrace/transfer/objindex"
)

// Config is fixed for the life of a path.
type Config struct {
	// Worker returns the worker that reads. Nil: the reader is a client.
	Worker func() ids.WorkerID
	// Token authenticates us to peers.
	Token string
	// StallTimeout is how long a peer may take to answer. Default 5 s.
	StallTimeout time.Duration
	// LeaseTTL is how long a lease lasts without renewal. Default 10 s. That is well below the time
	// for which tasks of the peer wait for memory; otherwise a stopped reader would make them fail.
	LeaseTTL time.Duration
	// Received, if set, is called with the number of bytes that Fetch has copied or Read reported.
	Received func(bytes int)
	// Pinned asks for the host memory of peers whose slab lies on a GPU.
	Pinned bool
	// NoIndex disables the shared object index: the path asks for a lease on each object.
	NoIndex bool
	// KeepDead is how long the memory of a dead peer stays mapped for Rescue; Forget ends it
	// earlier. Default 0: it is unmapped at once.
	KeepDead time.Duration
	// Unmapped, if set, is called when the memory of a peer is no longer mapped by its connection;
	// dead says that the peer's process had ended. The function must not call the path.
	Unmapped func(at transfer.Peer, dead bool)
	// Spin is how long a call polls for its answer before it blocks. Default 0: it blocks at once.
	Spin time.Duration
	// Open, if set, makes a peer's memory usable here; the default is to map it for the CPU. Open
	// also gets memory that lies on a GPU; file is nil then. token is nil if the peer has no egress
	// token. If Open returns no error, it owns file and token and must close them.
	Open func(at transfer.Peer, welcome *hostv1.BorrowWelcome, file *os.File, token *objindex.EgressToken) (Memory, error)
	// Lends, if set, says whether memory that Open returned may be used by Lend. It is called once.
	Lends func(Memory) bool
}

// Memory is a peer's memory as it is mapped in this process.
type Memory interface {
	memory.Space
	// Close ends the mapping; dead says that the peer's process is known to have ended. It is
	// called once, after the last loan has ended.
	Close(dead bool)
}

// Path is the reading side. It keeps one connection and one mapping per peer.
type Path struct {
	config Config

	mu sync.Mutex
	// peers has the connections by address, open or being opened. mu guards peers and closed.
	peers  map[string]*peer
	closed bool
	// deadPeers has the dead peers that are still mapped for Rescue, each with a channel whose
	// close ends that; guarded by mu.
	deadPeers map[*peer]chan struct{}
	wait      sync.WaitGroup
}

var _ transfer.Path = (*Path)(nil)

// Capabilities is part of transfer.Path.
func (p *Path) Capabilities() transfer.Capabilities {
	return transfer.Capabilities{Borrow: p, Lend: p, Rescue: p, Prompt: p}
}

// defaultLoan is the default of Config.LeaseTTL. It must stay well below the time for which tasks
// of the peer wait for memory (lifecycle.DefaultMemoryWait).
const defaultLoan = 10 * time.Second

// New returns a path without connections.
func New(c Config) *Path {
	if c.StallTimeout <= 0 {
		c.StallTimeout = transfer.DefaultStallTimeout
	}
	if c.LeaseTTL <= 0 {
		c.LeaseTTL = defaultLoan
	}
	return &Path{config: c, peers: make(map[string]*peer), deadPeers: make(map[*peer]chan struct{})}
}

// Name is part of transfer.Path.
func (p *Path) Name() string { return "borrow" }

// Close ends all connections. The memory of a peer stays mapped until the last loan of its objects
// has ended.
func (p *Path) Close() error {
	p.mu.Lock()
	peers := p.peers
	p.peers, p.closed = nil, true
	p.unneedAll(func(*peer) bool { return true })
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

// Forget ends the connection to a peer that has left, and no longer keeps its memory for Rescue.
func (p *Path) Forget(address string) {
	p.mu.Lock()
	known := p.peers[address]
	delete(p.peers, address)
	if known != nil {
		known.unneeded = true
	}
	p.unneedAll(func(c *peer) bool { return c.at.Address == address })
	p.mu.Unlock()
	if known == nil {
		return
	}
	<-known.ready
	if known.conn != nil {
		_ = known.conn.Close()
	}
}

// loan is one object under a lease of its own.
type loan struct {
	lease
	peer *peer
}

// connected returns the connection to a peer. It opens one if necessary, and waits for it.
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
		c = &peer{path: p, at: at, ready: make(chan struct{}), wake: make(chan struct{}, 1), loans: make(map[*loan]struct{}), batches: make(map[*Batch]struct{}), stages: make(chan struct{}, stagesMost)}
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
		delete(p.peers, at.Address) // the next call tries again
	}
	p.mu.Unlock()
	return nil, fmt.Errorf("borrow from %s: %w", at, c.err)
}

// Connect opens the connection to a peer if there is none.
func (p *Path) Connect(ctx context.Context, at transfer.Peer) error {
	_, err := p.connected(ctx, at)
	return err
}

// Lends is part of transfer.Borrower. It is always true: without a request the path cannot know.
func (p *Path) Lends(transfer.Peer) bool { return true }

// Borrow is part of transfer.Borrower.
func (p *Path) Borrow(ctx context.Context, at transfer.Peer, refs []transfer.Ref, needs bool) ([]transfer.Loan, error) {
	return p.borrow(ctx, at, refs, transfer.Reader{Keeps: true, Needs: needs})
}

// borrow requests leases. Of the reader, it says what the leases are for.
func (p *Path) borrow(ctx context.Context, at transfer.Peer, refs []transfer.Ref, reader transfer.Reader) ([]transfer.Loan, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	c, err := p.connected(ctx, at)
	if err != nil {
		return nil, err
	}
	request := &hostv1.BorrowAcquire{
		Objects: dataproto.RefsTo(refs), TtlMillis: uint64(p.config.LeaseTTL / time.Millisecond), Keeps: reader.Keeps, Needs: reader.Needs,
	}
	if p.config.Worker != nil {
		request.ReaderWorkerId = uint32(p.config.Worker())
	}
	asked := time.Now()
	response, err := c.call(ctx, &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Acquire{Acquire: request}}, c.decline)
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
	missed, err := p.fetchIndexed(ctx, at, refs, sink)
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
	loans, err := p.borrow(ctx, at, refs, transfer.Reader{})
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

// fetchOne copies one object. Its error ends the fetch; an error of this object alone goes to the
// sink.
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
