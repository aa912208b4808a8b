// Package ipc is an Adapter: the path from the memory of another process of this
// host to the slab of our GPU. The reader maps the peer's slab (CUDA IPC), takes
// read leases over the peer's unix socket, and copies by itself: nobody at the
// source does anything.
//
// Leases, and how their holding is told, are those of package borrow, of which this
// is another use: there the processor reads the peer's memory in place, here the
// device copies from it. Memory of workers without a GPU is reached as well.
//
// # Lanes
//
// Copies from one peer are a lane, on which two chunks of at most 64 MiB are under
// way at a time, so that what is small and comes later waits for no
// more than those. Frames below 16 MiB go first, many of them together by one launch
// of a kernel that reads a table (gather.cu), where that is faster by the rates that
// were measured. A lane is proved when the peer's memory is mapped: the header page
// must be that of the incarnation that was announced, and timed reads give the
// first rates.
//
// # What holds
//
// A region belongs to the fetch until the event behind its copies was reached: a
// fetch that is given up drops what is not posted, and returns when the rest is
// over, for a copy on a device cannot be called back. An object is valid if its
// lease held after the last of its copies; copies from a process that was killed or
// stopped succeed like any other. The mapping of a peer whose connection ended is
// given up after the last copy, so that the device gets the memory of the dead back.
//
// # In place
//
// What a kernel is to read once need not be copied: Lend gives the device's address of what a
// peer shows, at once. A loan keeps the mapping as a copy does, and says at its end whether
// what was read is worth anything.
package ipc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
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
	// proofBytes is the size of the timed read, proofs how often it is done.
	proofBytes = 4 << 20
	proofs     = 3
	// pageableBytes is the chunk of copies from host memory that is not registered:
	// the driver copies that by way of its own buffers, and returns when it has.
	pageableBytes = 4 << 20
	// tables is how many gathers can be under way, over all lanes; beyond that, frames
	// are copied one by one.
	tables = 16
)

// Config is fixed for the life of a path.
type Config struct {
	// Device is ours, Slab its memory, where fetches place.
	Device *cuda.Device
	Slab   *cuda.Slab
	// Worker is who reads. Nil: a client.
	Worker func() ids.WorkerID
	// Token authenticates us to peers.
	Token string
	// StallTimeout is how long a peer may take to answer, and how long no copy may
	// end. Default 5 s.
	StallTimeout time.Duration
	// LeaseTTL is how long a lease lasts without being renewed. Default 30 s.
	LeaseTTL time.Duration
	// NoBoard: leases are always asked for.
	NoBoard bool
	// NoGather: every frame is copied by the copy engine.
	NoGather bool
	// Computing, if set, says whether kernels of tasks run: then the gather kernel
	// uses ComputeBlocks blocks, 48 if that is 0, and leaves the rest to them.
	Computing     func() bool
	ComputeBlocks uint32
	// Received, if set, is told of the bytes that arrived.
	Received func(bytes int)
	// Linger is how long the memory of a peer that died stays mapped for Rescue, unless
	// Forget ends that before. Default 0: not at all. PeerUnmapped, if set, is told when
	// it is not mapped any more, of live peers as well.
	Linger       time.Duration
	PeerUnmapped func(at transfer.Peer, dead bool)
	// Suspect, if set, says why the memory of a GPU must not be read, nil if it may be. It is asked before each
	// fetch, rescue and loan, and must be quick.
	Suspect func(gpu cuda.UUID) error
	// Unmapped, if set, is told when a peer's memory is mapped here no more; dead
	// says that its process had ended.
	Unmapped func(identity memory.Identity, dead bool)
	Log      *slog.Logger
}

// Lane is how a peer's memory is read.
type Lane struct {
	// Device is the GPU that it lies on; Host: on none.
	Device cuda.UUID
	Host   bool
	// Latency of a read of 4 KiB and BytesPerSecond of one of 4 MiB by the copy
	// engine, when the lane was proved. GatherBytesPerSecond is that of 4 MiB in
	// 64 frames by the gather kernel, 0 if it is not used: Why says why not.
	Latency              time.Duration
	BytesPerSecond       float64
	GatherBytesPerSecond float64
	Why                  string
	// Now are the rates as they were learnt since: of large copies, and of gathers.
	Now, GatherNow float64
}

// String is one line for people.
func (l Lane) String() string {
	from := "GPU " + l.Device.String()
	if l.Host {
		from = "host memory"
	}
	s := fmt.Sprintf("%s, copy engine %.1f GB/s, %v", from, l.BytesPerSecond/1e9, l.Latency.Round(100*time.Nanosecond))
	if l.GatherBytesPerSecond > 0 {
		s += fmt.Sprintf(", gather %.1f GB/s", l.GatherBytesPerSecond/1e9)
	} else if l.Why != "" {
		s += ", no gather: " + l.Why
	}
	return s
}

// gigabytes has two digits of a rate: what is only noise is not to be told again.
func gigabytes(rate float64) string {
	rate = max(rate/1e9, 0.01)
	digit := math.Pow(10, math.Floor(math.Log10(rate))-1)
	return strconv.FormatFloat(math.Round(rate/digit)*digit, 'f', max(0, -int(math.Floor(math.Log10(digit)))), 64)
}

// carried is String's short form, with the rates of today.
func (l Lane) carried() string {
	s := "copies"
	if l.Host {
		s += " from host memory"
	}
	s += " " + gigabytes(l.Now) + " GB/s"
	switch {
	case l.GatherBytesPerSecond > 0:
		s += ", gather " + gigabytes(l.GatherNow) + " GB/s"
	case l.Why != "":
		s += ", no gather: " + l.Why
	}
	return s
}

// Path is the reading side. It keeps one connection and one mapping per peer.
type Path struct {
	config   Config
	lenders  *borrow.Path
	gather   *gather // nil: none, and noGather says why
	entrance entrance
	// noGather is fixed.
	noGather string

	// opening makes mapping, proving and unmapping one step each. It is locked before
	// mu, and guards scratch.
	opening sync.Mutex
	scratch *cuda.Scratch

	// slab is the address of the slab's byte 0.
	slab uint64

	mu sync.Mutex
	// mappings by handle, and lanes by the address of the peer; guarded by mu, as is
	// running.
	mappings map[cuda.Handle]*mapping
	lanes    map[string]*mapping
	// running are the fetches, with what ends them; nil once closed.
	running map[*context.CancelCauseFunc]struct{}
	fetches sync.WaitGroup
}

var (
	_ transfer.Path     = (*Path)(nil)
	_ transfer.Preparer = (*Path)(nil)
	_ transfer.Prompt   = (*Path)(nil)
)

var errClosed = fmt.Errorf("ipc: %w: closed", transfer.ErrPeerLost)

// New returns a path without connections. It fails if the device does; where the
// gather kernel cannot be had, it does without.
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
	if c.ComputeBlocks == 0 {
		c.ComputeBlocks = 48
	}
	if c.Received == nil {
		c.Received = func(int) {}
	}
	p := &Path{config: c, mappings: make(map[cuda.Handle]*mapping), lanes: make(map[string]*mapping), running: make(map[*context.CancelCauseFunc]struct{})}
	p.slab = c.Slab.Pointer(0, c.Slab.Size())
	p.lenders = borrow.New(borrow.Config{
		Worker: c.Worker, Token: c.Token, StallTimeout: c.StallTimeout, LeaseTTL: c.LeaseTTL, NoBoard: c.NoBoard, Open: p.open, Spin: spinFor,
		Linger: c.Linger, Unmapped: c.PeerUnmapped, Received: c.Received, Lends: lends,
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

// Forget ends the connection to a peer that is gone; its memory is unmapped after
// the last copy.
func (p *Path) Forget(address string) { p.lenders.Forget(address) }

// Lanes are those of the peers that are mapped, by address.
func (p *Path) Lanes() map[string]Lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	lanes := make(map[string]Lane, len(p.lanes))
	for at, m := range p.lanes {
		lane := m.proof
		m.lane.mu.Lock()
		lane.Now, lane.GatherNow = m.lane.rates.engineRate, m.lane.rates.gatherRate
		m.lane.mu.Unlock()
		lanes[at] = lane
	}
	return lanes
}

// Transport says what carries the bytes of a peer's objects, and how fast each of it does as it was learnt; empty if its
// memory is not mapped. Which of them a batch takes is decided by these rates (rates.go).
func (p *Path) Transport(at string) string {
	lane, ok := p.Lanes()[at]
	if !ok {
		return ""
	}
	return lane.carried()
}

// Connect maps a peer's memory, if it is not, and says how it is read.
func (p *Path) Connect(ctx context.Context, at transfer.Peer) (Lane, error) {
	if err := p.lenders.Connect(ctx, at); err != nil {
		return Lane{}, err
	}
	return p.Lanes()[at.Address], nil
}

// Prepare is part of transfer.Preparer: the peer's memory is mapped, and the way there proved.
func (p *Path) Prepare(ctx context.Context, at transfer.Peer) (transfer.Measured, error) {
	lane, err := p.Connect(ctx, at)
	if err != nil {
		return transfer.Measured{}, fmt.Errorf("ipc: %w", err)
	}
	return transfer.Measured{Latency: lane.Latency, BytesPerSecond: lane.BytesPerSecond}, nil
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
		errs = append(errs, p.gather.close())
	}
	if p.scratch != nil {
		errs = append(errs, p.scratch.Close())
	}
	return errors.Join(errs...)
}

// begin counts a fetch, whose context cancel ends; false: the path is closed.
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

// Prompt is part of transfer.Prompt: the peer's memory is mapped, and it shows what lies there.
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
	missed, err := p.fetchShown(ctx, at, refs, sink)
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

// fetchShown fetches what the peer shows on its board, and returns the indices of
// the rest.
func (p *Path) fetchShown(ctx context.Context, at transfer.Peer, refs []transfer.Ref, sink transfer.Sink) (missed []int, err error) {
	g, err := p.lenders.Glance(ctx, at, len(refs))
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
	f.glance, f.refs = g, refs
	if err = f.run(ctx); err != nil {
		return nil, err
	}
	return f.missed, nil
}

// fetchLent fetches the objects at the indices under leases.
func (p *Path) fetchLent(ctx context.Context, cancel context.CancelCauseFunc, at transfer.Peer, refs []transfer.Ref, indices []int, sink transfer.Sink) error {
	size := partRefs
	if len(refs) <= 2*partRefs {
		size = len(refs)
	}
	// The peer answers for the next part while this one is copied.
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

// partRefs is how many objects are asked for at once, when there are more than
// twice as many.
const partRefs = 250

// asked is what a peer answered.
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
