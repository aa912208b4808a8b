// Package pinned is an Adapter: the path from the pinned host memory of another GPU's worker on
// this host directly into the slab of our GPU. Such memory holds results for which the other GPU
// has no room. The reader maps that memory, pins the parts that it reads for its own device, and
// lets the device copy them: the source does no work, and no byte passes a processor or the other
// GPU.
//
// Leases and their validity checks are those of package borrow, over a separate connection: the
// connection of package ipc lends the slab. Objects that are not in pinned memory are refused one
// by one and come by another path.
package pinned

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
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
	// stream carries the copies of all fetches, since they share one link.
	stream *cuda.Stream

	mu sync.Mutex
	// running has the cancel function of each running fetch; nil: the path is closed. spares are
	// unused events. mu guards both.
	running map[*fetch]context.CancelCauseFunc
	spares  []*cuda.Event
	fetches sync.WaitGroup
}

var _ transfer.Path = (*Path)(nil)

var errClosed = fmt.Errorf("pinned: %w: closed", transfer.ErrPeerLost)

// New returns a path without connections. It fails if the device fails.
func New(c Config) (*Path, error) {
	if c.StallTimeout <= 0 {
		c.StallTimeout = 5 * time.Second
	}
	if c.LeaseTTL <= 0 {
		c.LeaseTTL = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Received == nil {
		c.Received = func(int) {}
	}
	p := &Path{config: c, running: make(map[*fetch]context.CancelCauseFunc)}
	var err error
	if p.stream, err = c.Device.NewStream(cuda.In); err != nil {
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
	errs := []error{p.lenders.Close()}
	for _, e := range p.spares {
		errs = append(errs, e.Close())
	}
	return errors.Join(append(errs, p.stream.Close())...)
}

// mapping is a peer's memory in this process.
type mapping struct {
	path     *Path
	identity memory.Identity
	data     []byte
	file     *os.File
	lent     *cuda.Lent
	// told makes sure that the warning about unpinned memory is logged once.
	told sync.Once
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
	if err := errors.Join(m.lent.Close(), slabshare.Unmap(m.data), m.file.Close()); err != nil {
		m.path.config.Log.Error("a peer's pinned memory could not be unmapped", "error", err)
	}
}

// open is borrow.Config.Open.
func (p *Path) open(_ transfer.Peer, welcome *hostv1.BorrowWelcome, file *os.File, token *objindex.EgressToken) (borrow.Memory, error) {
	if file == nil || token != nil {
		return nil, fmt.Errorf("pinned: %w: what was lent is not host memory", transfer.ErrProtocol)
	}
	data, err := slabshare.Map(file, welcome, false)
	if err != nil {
		return nil, err
	}
	return &mapping{path: p, identity: borrow.Identity(welcome), data: data, file: file, lent: p.config.Device.NewLent(data)}, nil
}

// event returns an unused event or creates one.
func (p *Path) event() (*cuda.Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.spares); n > 0 {
		e := p.spares[n-1]
		p.spares = p.spares[:n-1]
		return e, nil
	}
	return p.config.Device.NewEvent()
}

func (p *Path) giveBack(e *cuda.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spares = append(p.spares, e)
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
	f := &fetch{path: p, sink: sink, batch: batch, memory: batch.Memory.(*mapping), first: first}
	err = f.run(ctx)
	batch.EndAll()
	return err
}
