// Package ipc is an Adapter: the path from the memory of another process of this host to the slab
// of our GPU. The reader maps the peer's slab (CUDA IPC), gets read leases from the peer's object
// index or over its unix socket, and copies by itself. The source does no work for the copy.
//
// Leases and their validity checks are those of package borrow. There the processor reads the
// peer's memory in place; here the device copies from it. The host memory of workers without a GPU
// is reached in the same way.
//
// # Copy queues
//
// A copy queue has the copies from one peer. At most two chunks of 128 MiB are under way on it at a
// time, so that a small frame that comes later waits only for those. Frames of less than 16 MiB go
// first. Many of them are copied together by one launch of a kernel that reads a table (gather.cu),
// if that is faster by their number and size. A link is proved when the peer's memory is mapped:
// the header page must be that of the announced incarnation, and timed reads measure latency and
// bandwidth.
//
// # Waiting
//
// One of the goroutines that wait for copies polls for their end. It sleeps until the bytes could
// be here over the fastest link, polls for 200 µs, and then sleeps for 50 µs or more between polls.
//
// # Guarantees
//
// A region belongs to the fetch until the event behind its copies was reached. A copy on a device
// cannot be cancelled, so a fetch that is given up drops the pieces that are not posted and returns
// when the posted ones are over. An object is valid if its lease was valid after the last of its
// copies: copies from a killed or stopped process succeed like any other. When the connection to a
// peer has ended, its memory is unmapped after the last copy, so that the device gets the memory of
// a dead process back.
//
// # Reading in place
//
// Data that a kernel reads only once need not be copied: Lend returns at once the device address of
// an object in the peer's object index. A loan keeps the mapping as a copy does. At its end it
// reports whether the data that was read is valid.
package ipc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unsafe"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
)

const (
	// proofBytes is the size of the timed read, proofs the number of repetitions.
	proofBytes = 4 << 20
	proofs     = 3
	// pageableBytes is the chunk size of copies from host memory that is not registered. The driver
	// copies such memory through its own buffers and returns only afterwards.
	pageableBytes = 4 << 20
	// tables is the number of concurrent gathers over all copy queues. Beyond that, frames are
	// copied one by one.
	tables = 16
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
	// StallTimeout is the longest time that a peer may take to answer, and the longest time without
	// any ended copy. Default 5 s.
	StallTimeout time.Duration
	// LeaseTTL is the duration of a lease that is not renewed. Default 30 s.
	LeaseTTL time.Duration
	// NoIndex disables lookups in object indexes: leases are always requested by message.
	NoIndex bool
	// NoGather disables the gather kernel: the copy engine copies every frame.
	NoGather bool
	// Computing, if set, reports whether kernels of tasks run. Then the gather kernel uses only
	// ComputeBlocks blocks (0 means 48) and leaves the rest of the device to them.
	Computing     func() bool
	ComputeBlocks uint32
	// Received, if set, is called with the number of bytes that arrived.
	Received func(bytes int)
	// KeepDead is how long the memory of a dead peer stays mapped for Rescue, unless Forget ends
	// that before. Default 0: not at all. PeerUnmapped, if set, is called when a connection to a
	// peer, dead or alive, no longer needs its memory; another connection may (see Unmapped).
	KeepDead     time.Duration
	PeerUnmapped func(at transfer.Peer, dead bool)
	// Suspect, if set, returns the reason why the memory of a GPU must not be read, or nil. It is
	// called before each fetch, rescue and loan, and must be quick.
	Suspect func(gpu cuda.UUID) error
	// Unmapped, if set, is called when a peer's memory is no longer mapped here: the last of the
	// connections that share the mapping has closed it. dead means that the peer's process had
	// ended.
	Unmapped func(identity memory.Identity, dead bool)
	Log      *slog.Logger
}

// Path is the reading side. It keeps one connection and one mapping per peer.
type Path struct {
	config  Config
	lenders *borrow.Path
	gather  *gather // nil: no gather kernel, for the reason in noGather
	gate    chunkGate
	// noGather never changes after New.
	noGather string

	// opening serialises mapping, proving and unmapping. It is locked before mu and guards scratch.
	opening sync.Mutex
	scratch *cuda.Scratch

	// slab is the address of the slab's byte 0.
	slab uint64

	mu sync.Mutex
	// mappings is keyed by handle, peers by the peer's address. Both, and running, are guarded by
	// mu.
	mappings map[cuda.Handle]*mapping
	peers    map[string]*mapping
	// running has the cancel function of each running fetch. nil: the path is closed.
	running map[*context.CancelCauseFunc]struct{}
	fetches sync.WaitGroup
}

var _ transfer.Path = (*Path)(nil)

// Capabilities is part of transfer.Path.
func (p *Path) Capabilities() transfer.Capabilities {
	return transfer.Capabilities{Lend: p, Rescue: p, Pipelined: p, Prepare: p, Prompt: p}
}

var errClosed = fmt.Errorf("ipc: %w: closed", transfer.ErrPeerLost)

// New returns a path without connections. It fails if the device fails. If only the gather kernel
// is not available, the path works without it.
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
	if c.ComputeBlocks == 0 {
		c.ComputeBlocks = 48
	}
	if c.Received == nil {
		c.Received = func(int) {}
	}
	p := &Path{config: c, mappings: make(map[cuda.Handle]*mapping), peers: make(map[string]*mapping), running: make(map[*context.CancelCauseFunc]struct{})}
	p.slab = c.Slab.Pointer(0, c.Slab.Size())
	p.lenders = borrow.New(borrow.Config{
		Worker: c.Worker, Token: c.Token, StallTimeout: c.StallTimeout, LeaseTTL: c.LeaseTTL, NoIndex: c.NoIndex, Open: p.open, Spin: spinFor,
		KeepDead: c.KeepDead, Unmapped: c.PeerUnmapped, Received: c.Received, Lends: lends,
	})
	if c.NoGather {
		p.noGather = "switched off"
		return p, nil
	}
	g, err := newGather(c.Device, tables, c.ComputeBlocks, c.Computing)
	switch {
	case err == nil:
		p.gather = g
	case c.Device.Health() != nil:
		return nil, errors.Join(fmt.Errorf("ipc: %w", err), p.lenders.Close())
	default:
		p.noGather = err.Error()
		c.Log.Warn("small frames are copied one by one", "error", err)
	}
	return p, nil
}

// Name is part of transfer.Path.
func (p *Path) Name() string { return "ipc" }

// Forget ends the connection to a peer that is gone. The peer's memory is unmapped after the last
// copy.
func (p *Path) Forget(address string) { p.lenders.Forget(address) }

// Links describes the mapped peers, by address.
func (p *Path) Links() map[string]Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	queues := make(map[string]Link, len(p.peers))
	for at, m := range p.peers {
		link := m.proof
		m.queue.mu.Lock()
		link.Now, link.GatherNow = m.queue.tally.rates[byEngine], m.queue.tally.rates[byKernel]
		m.queue.mu.Unlock()
		queues[at] = link
	}
	return queues
}

// Lane describes the mechanisms that carry the bytes of a peer's objects, with their current rates.
// It is empty if the peer's memory is not mapped.
func (p *Path) Lane(at string) transfer.Lane {
	link, ok := p.Links()[at]
	if !ok {
		return transfer.Lane{}
	}
	return transfer.Lane{Transport: link.carried(), BytesPerSecond: link.BytesPerSecond}
}

// Connect maps a peer's memory, unless it is mapped already, and describes how it is read.
func (p *Path) Connect(ctx context.Context, at transfer.Peer) (Link, error) {
	if err := p.lenders.Connect(ctx, at); err != nil {
		return Link{}, err
	}
	return p.Links()[at.Address], nil
}

// Prepare is part of transfer.Preparer: it maps the peer's memory and proves the link.
func (p *Path) Prepare(ctx context.Context, at transfer.Peer) (transfer.Measured, error) {
	link, err := p.Connect(ctx, at)
	if err != nil {
		return transfer.Measured{}, fmt.Errorf("ipc: %w", err)
	}
	return transfer.Measured{Latency: link.Latency, BytesPerSecond: link.BytesPerSecond}, nil
}

// Close is part of transfer.Path. It returns when no copy is under way.
func (p *Path) Close() error {
	p.mu.Lock()
	running := p.running
	p.running = nil
	for cancel := range running {
		(*cancel)(errClosed)
	}
	p.mu.Unlock()
	if running == nil {
		return nil
	}
	p.fetches.Wait()
	errs := []error{p.lenders.Close()}
	if p.gather != nil {
		errs = append(errs, p.gather.Close())
	}
	if p.scratch != nil {
		errs = append(errs, p.scratch.Close())
	}
	return errors.Join(errs...)
}

// begin registers a fetch whose context cancel ends. It returns false if the path is closed.
func (p *Path) begin(cancel *context.CancelCauseFunc) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return false
	}
	p.fetches.Add(1)
	p.running[cancel] = struct{}{}
	return true
}

func (p *Path) end(cancel *context.CancelCauseFunc) {
	p.mu.Lock()
	delete(p.running, cancel)
	p.mu.Unlock()
	p.fetches.Done()
}

// Prompt is part of transfer.Prompter: it reports whether the peer's memory is mapped and the peer
// has an object index.
func (p *Path) Prompt(at transfer.Peer) bool { return p.lenders.Prompt(at) }

// Fetch is part of transfer.Path.
func (p *Path) Fetch(ctx context.Context, at transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	if len(refs) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !p.begin(&cancel) {
		return errClosed
	}
	defer p.end(&cancel)
	if err := p.trusted(at); err != nil {
		return err
	}
	if !p.Prompt(at) {
		transfer.Waits(sink)
	}
	missed, err := p.fetchIndexed(ctx, at, refs, sink)
	if err != nil {
		return fmt.Errorf("ipc from %s: %w", at, err)
	}
	if missed == nil {
		return nil
	}
	transfer.Waits(sink)
	rest := make([]transfer.Ref, len(missed))
	for n, i := range missed {
		rest[n] = refs[i]
	}
	return p.fetchLent(ctx, cancel, at, rest, missed, sink)
}

// fetchIndexed fetches the objects that are in the peer's object index and returns the indices of
// the others.
func (p *Path) fetchIndexed(ctx context.Context, at transfer.Peer, refs []transfer.Ref, sink transfer.Sink) (missed []int, err error) {
	g, err := p.lenders.Pin(ctx, at, len(refs))
	if err != nil {
		return nil, err
	}
	if g == nil {
		for i := range refs {
			missed = append(missed, i)
		}
		return missed, nil
	}
	defer g.End()
	f := p.newFetch(sink, g.Memory)
	defer f.close()
	f.guard, f.refs = g, refs
	if err = f.run(ctx); err != nil {
		return nil, err
	}
	return f.missed, nil
}

// fetchLent fetches the objects at the given indices under leases that the peer grants by message.
func (p *Path) fetchLent(ctx context.Context, cancel context.CancelCauseFunc, at transfer.Peer, refs []transfer.Ref, indices []int, sink transfer.Sink) error {
	size := partRefs
	if len(refs) <= 2*partRefs {
		size = len(refs)
	}
	// The peer handles the request for the next part while this part is copied.
	next := p.ask(ctx, at, refs[:size])
	for first := 0; first < len(refs); first += size {
		got := <-next
		if got.err != nil {
			return fmt.Errorf("ipc: %w", got.err)
		}
		if rest := refs[min(first+size, len(refs)):]; len(rest) > 0 {
			next = p.ask(ctx, at, rest[:min(size, len(rest))])
		}
		f := p.newFetch(sink, got.batch.Memory)
		f.batch, f.indices = got.batch, indices[first:]
		err := f.run(ctx)
		f.close()
		if err != nil {
			if first+size < len(refs) {
				cancel(err)
				if got := <-next; got.err == nil {
					got.batch.EndAll()
				}
			}
			return fmt.Errorf("ipc from %s: %w", at, err)
		}
	}
	return nil
}

// partRefs is the number of objects in one lease request, if there are more than twice as many.
const partRefs = 250

// asked is the answer to a lease request.
type asked struct {
	batch *borrow.Batch
	err   error
}

func (p *Path) ask(ctx context.Context, at transfer.Peer, refs []transfer.Ref) <-chan asked {
	answer := make(chan asked, 1)
	if len(refs) < partRefs {
		batch, err := p.lenders.Batch(ctx, at, refs)
		answer <- asked{batch, err}
		return answer
	}
	go func() {
		batch, err := p.lenders.Batch(ctx, at, refs)
		answer <- asked{batch, err}
	}()
	return answer
}

func address(data []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(data)))) }
