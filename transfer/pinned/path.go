// Package pinned is an Adapter: the path from another GPU's worker on this host by way of its
// pinned host memory directly into the slab of our GPU. The reader maps that memory, pins the parts
// that it reads for its own device, and lets the device copy them. No byte passes a processor.
//
// Objects get there in one of two ways:
//
//   - The other GPU had no room for them. Then the source does no work.
//   - They lie on the other GPU, and no better path brings them: our GPU cannot map that GPU's
//     memory (consumer GPUs, MIG instances, GPUs apart by ACS). Then the source's GPU copies them
//     there part by part, on request ("staged", Batch.Stage of package borrow). The reader keeps
//     several parts in flight, so that the copies of both GPUs run at the same time: the slower of
//     the two links is the limit. Small frames share a part.
//
// Leases and their validity checks are those of package borrow, over a separate connection: the
// connection of package ipc lends the slab. Objects that lie elsewhere, and those for which the
// source has no room, are refused one by one and come by another path.
package pinned

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/objindex"
)

// Config is fixed for the life of a path.
type Config struct {
	// Device is the GPU of this process. Slab is its memory, in which fetches place objects.
	Device *cuda.Device
	Slab   *cuda.Slab
	// Worker returns the id of the reading worker. nil: the reader is a client.
	Worker func() ids.WorkerID
	// Token authenticates this process to peers.
	Token string
	// StallTimeout is the longest time that a peer may take to answer. Default 5 s.
	StallTimeout time.Duration
	// LeaseTTL is the duration of a lease that is not renewed. Default 30 s.
	LeaseTTL time.Duration
	// Received, if set, is called with the number of bytes that arrived.
	Received func(bytes int)
	Log      *slog.Logger
}

// Path is the reading side. It keeps one connection and one mapping per peer.
type Path struct {
	config  Config
	lenders *borrow.Path
	// copier makes the copies of all fetches, since they share one link.
	copier *cuda.Copier

	mu sync.Mutex
	// running has the cancel function of each running fetch; nil: the path is closed. Guarded by
	// mu.
	running map[*fetch]context.CancelCauseFunc
	// mappings are the mapped peers, by address; guarded by mu.
	mappings map[string]*mapping
	fetches  sync.WaitGroup
}

var _ transfer.Path = (*Path)(nil)

var errClosed = fmt.Errorf("pinned: %w: closed", transfer.ErrPeerLost)

// New returns a path without connections. It fails if the device fails.
func New(c Config) (*Path, error) {
	if c.StallTimeout <= 0 {
		c.StallTimeout = transfer.DefaultStallTimeout
	}
	if c.LeaseTTL <= 0 {
		c.LeaseTTL = transfer.DefaultLeaseTTL
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Received == nil {
		c.Received = func(int) {}
	}
	p := &Path{config: c, running: make(map[*fetch]context.CancelCauseFunc), mappings: make(map[string]*mapping)}
	var err error
	if p.copier, err = c.Device.NewCopier(cuda.In); err != nil {
		return nil, fmt.Errorf("pinned: %w", err)
	}
	p.lenders = borrow.New(borrow.Config{
		Worker: c.Worker, Token: c.Token, StallTimeout: c.StallTimeout, LeaseTTL: c.LeaseTTL, Open: p.open, Pinned: true, NoIndex: true,
	})
	return p, nil
}

// Capabilities is part of transfer.Path: the path has no optional ability.
func (*Path) Capabilities() transfer.Capabilities { return transfer.Capabilities{} }

// Name is part of transfer.Path.
func (p *Path) Name() string { return "pinned" }

// Forget ends the connection to a peer that is gone.
func (p *Path) Forget(address string) { p.lenders.Forget(address) }

// Lane describes how the objects of a peer come: staged at both ends if any came from its GPU. It
// is the zero value if they came from where they lay in its pinned memory, or if there is no
// connection.
func (p *Path) Lane(address string) (l transfer.Lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.mappings[address]; m != nil && m.staged.Load() {
		l = transfer.Lane{Transport: "shared memory", Staged: "both"}
	}
	return l
}

// Close is part of transfer.Path. It returns when no copy is under way.
func (p *Path) Close() error {
	p.mu.Lock()
	running := p.running
	p.running = nil
	for _, cancel := range running {
		cancel(errClosed)
	}
	p.mu.Unlock()
	if running == nil {
		return nil
	}
	p.fetches.Wait()
	return errors.Join(p.lenders.Close(), p.copier.Close())
}

// mapping is a peer's memory in this process.
type mapping struct {
	path     *Path
	address  string
	identity memory.Identity
	data     []byte
	file     *os.File
	lent     *cuda.Lent
	// told makes sure that the warning about unpinned memory is logged once.
	told sync.Once
	// staged says that bytes came from the peer's GPU.
	staged atomic.Bool
}

var _ borrow.Memory = (*mapping)(nil)

// Size is part of memory.Space.
func (m *mapping) Size() uint64 { return uint64(len(m.data)) }

// Identity is part of memory.Space.
func (m *mapping) Identity() memory.Identity { return m.identity }

// Bytes is part of memory.Space. It returns nil: only the device accesses this memory.
func (m *mapping) Bytes(uint64, uint64) []byte { return nil }

// FD is part of memory.Space.
func (m *mapping) FD() int { return -1 }

// Close is part of borrow.Memory. Whether the peer is dead makes no difference to its pages.
func (m *mapping) Close(bool) {
	m.path.mu.Lock()
	if m.path.mappings[m.address] == m {
		delete(m.path.mappings, m.address)
	}
	m.path.mu.Unlock()
	if err := errors.Join(m.lent.Close(), slabshare.Unmap(m.data), m.file.Close()); err != nil {
		m.path.config.Log.Error("a peer's pinned memory could not be unmapped", "error", err)
	}
}

// open is borrow.Config.Open.
func (p *Path) open(at transfer.Peer, welcome *hostv1.BorrowWelcome, file *os.File, token *objindex.EgressToken) (borrow.Memory, error) {
	if file == nil || token != nil {
		return nil, fmt.Errorf("pinned: %w: what was lent is not host memory", transfer.ErrProtocol)
	}
	data, err := slabshare.Map(file, welcome, false)
	if err != nil {
		return nil, err
	}
	m := &mapping{path: p, address: at.Address, identity: borrow.Identity(welcome), data: data, file: file, lent: p.config.Device.NewLent(data)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mappings[at.Address] = m
	return m, nil
}

// Fetch is part of transfer.Path.
func (p *Path) Fetch(ctx context.Context, at transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	key := new(fetch)
	p.mu.Lock()
	if p.running == nil {
		p.mu.Unlock()
		return errClosed
	}
	p.running[key] = cancel
	p.fetches.Add(1)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.running, key)
		p.mu.Unlock()
		p.fetches.Done()
	}()
	for first := 0; first < len(refs); first += partRefs {
		if err := p.fetchPart(ctx, at, refs[first:min(first+partRefs, len(refs))], first, sink); err != nil {
			return fmt.Errorf("pinned from %s: %w", at, err)
		}
	}
	return nil
}

func (p *Path) fetchPart(ctx context.Context, at transfer.Peer, refs []transfer.Ref, first int, sink transfer.Sink) error {
	batch, err := p.lenders.Batch(ctx, at, refs)
	if err != nil {
		return err
	}
	f := &fetch{path: p, sink: sink, batch: batch, memory: batch.Memory.(*mapping), first: first, next: new(post), refused: make(map[int]error)}
	err = f.run(ctx)
	batch.EndAll()
	return err
}
