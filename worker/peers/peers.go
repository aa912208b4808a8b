// Package peers is an Adapter: it gets objects from other workers by the worker's path, and knows
// how these workers are reached. The owner of the worker's loop calls the methods of Peers, which
// do not wait. The goroutines that they start tell the worker what has become of it.
package peers

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
	"github.com/millrace/millrace/worker/store"
)

// Config is fixed for the life of a worker.
type Config struct {
	// Name is the name of this worker.
	Name  string
	Store *store.Store
	// Path is the path to peers. Nil: the worker has no peers.
	Path transfer.Path
	// MemoryWait is how long an object that is larger than announced waits for memory.
	MemoryWait time.Duration
	// BorrowWait limits the time of a request for leases.
	BorrowWait time.Duration
	// Go calls a function in a goroutine of its own. Nil: at once.
	Go func(func())
	// Tell passes an event to the owner. A goroutine that is idle has nothing else to do: it may
	// step the worker's machine itself.
	Tell func(e Event, idle bool)
	Log  *slog.Logger
}

// Event is a fact that the goroutines of Peers tell: Outcomes, Gained or Rescued.
type Event interface{ event() }

// Peers are the other workers of the cluster.
type Peers struct {
	config Config
	// started counts the goroutines.
	started sync.WaitGroup
	fetches book
	// lender lends objects to kernels, nil if the path cannot.
	lender transfer.Lender

	// The fields below belong to the owner.
	all map[ids.WorkerID]transfer.Peer
	// rescuing are the objects that are being copied out of the memory of dead peers.
	rescuing map[ledger.ObjectID]bool
	// reported are the routes as they were last returned by Routes.
	reported []flow.Route
	// ctx is the context of everything that belongs to one life of the scheduler.
	ctx    context.Context //nolint:containedctx // for the goroutines that Wait waits for
	cancel context.CancelFunc
}

// New returns the peers of a worker that knows none yet.
func New(c Config) *Peers {
	if c.Go == nil {
		c.Go = func(do func()) { go do() }
	}
	p := &Peers{config: c, all: make(map[ids.WorkerID]transfer.Peer), rescuing: make(map[ledger.ObjectID]bool)}
	p.lender = p.Capabilities().Lend
	return p
}

// Begin makes a new context for what belongs to one life of the scheduler. Cancel ends it.
func (p *Peers) Begin(ctx context.Context) { p.ctx, p.cancel = context.WithCancel(ctx) }

// Cancel ends everything that was started since Begin.
func (p *Peers) Cancel() { p.cancel() }

// Wait waits until everything that was started has ended.
func (p *Peers) Wait() { p.started.Wait() }

// Go calls a function in a goroutine that Wait waits for.
func (p *Peers) Go(do func(ctx context.Context)) {
	ctx := p.ctx
	p.begin(func() { do(ctx) })
}

// begin calls a function in a goroutine that Wait waits for.
func (p *Peers) begin(do func()) {
	p.started.Add(1)
	p.config.Go(func() {
		defer p.started.Done()
		do()
	})
}

// Capabilities are the optional abilities of the path; none without a path.
func (p *Peers) Capabilities() transfer.Capabilities {
	if p.config.Path == nil {
		return transfer.Capabilities{}
	}
	return p.config.Path.Capabilities()
}

// Peer returns a worker; without an address if it is gone, or was never named.
func (p *Peers) Peer(id ids.WorkerID) transfer.Peer { return p.all[id] }

// Known counts the workers of a list that can be asked.
func (p *Peers) Known(holders []ids.WorkerID) (n int) {
	for _, h := range holders {
		if p.all[h].Address != "" {
			n++
		}
	}
	return n
}

// Set records the address of a worker, or that the worker is gone (an empty address).
func (p *Peers) Set(pb *workerv1.Peer) {
	id := ids.WorkerID(pb.GetWorkerId())
	old := p.all[id]
	if pb.GetDataAddress() == "" {
		delete(p.all, id)
	} else {
		p.all[id] = transfer.Peer{Worker: id, Name: pb.GetName(), Address: pb.GetDataAddress(), OnGPU: pb.GetDevice() == millracev1.DeviceKind_DEVICE_KIND_CUDA}
	}
	path, ok := p.config.Path.(routed)
	if ok && old.Address != "" && old.Address != pb.GetDataAddress() {
		p.begin(func() { path.Forget(old.Address) })
	}
	if pb.GetSameHost() {
		p.prepare(p.all[id])
	}
}

// Forget records that all workers are gone.
func (p *Peers) Forget() {
	// order-free: each is forgotten independently.
	for id := range p.all {
		p.Set(&workerv1.Peer{WorkerId: uint32(id)})
	}
}

// prepare sets up the connection to a peer in the background, so that the first fetch from it need
// not wait for that.
func (p *Peers) prepare(peer transfer.Peer) {
	path := p.Capabilities().Prepare
	if path == nil {
		return
	}
	p.Go(func(ctx context.Context) {
		_, err := path.Prepare(ctx, peer)
		if err != nil && ctx.Err() == nil && !errors.Is(err, transfer.ErrUnreachable) {
			p.config.Log.Info("a worker near this one is not prepared for", "peer", peer.String(), "error", err)
		}
	})
}

// routed is a path that reports its routes to peers. A peer is identified by its address.
type routed interface {
	Routes() []flow.Route
	Forget(address string)
}

// Routes returns the routes to all peers if they have changed since the last call, and nil
// otherwise.
func (p *Peers) Routes() []*millracev1.Route {
	path, ok := p.config.Path.(routed)
	if !ok {
		return nil
	}
	now := path.Routes()
	if slices.Equal(now, p.reported) {
		return nil
	}
	p.reported = now
	// A worker that is dead may have the same address as the one that was started after it. Workers
	// are numbered in the order of their starts, so the one with the highest number lives.
	peers := make(map[string]transfer.Peer, len(p.all))
	// order-free: the highest number of each address.
	for _, peer := range p.all {
		if peer.Worker > peers[peer.Address].Worker {
			peers[peer.Address] = peer
		}
	}
	var out []*millracev1.Route
	for _, l := range now {
		peer, known := peers[l.Peer]
		if !known {
			continue
		}
		route := &millracev1.Route{
			PeerWorkerId: uint32(peer.Worker), Peer: peer.Name, Path: pathNumber(l.Path), State: millracev1.RouteState(l.State + 1), Reason: l.Why,
			BytesPerSecond: l.Rate, ReceivedBytes: l.Bytes, SucceededFetches: l.Succeeded, FailedFetches: l.Failed,
			Transport: l.Transport, Staged: l.Staged, ConnectBytesPerSecond: l.ConnectRate, ConnectionReason: l.ConnectionWhy,
		}
		if l.Latency > 0 {
			route.Latency = durationpb.New(l.Latency)
		}
		out = append(out, route)
	}
	slices.SortStableFunc(out, func(a, b *millracev1.Route) int { return int(a.GetPeerWorkerId()) - int(b.GetPeerWorkerId()) })
	return out
}

// RepeatRoutes makes the next call of Routes return all of them.
func (p *Peers) RepeatRoutes() { p.reported = nil }

// pathNumber returns the API's number of a path; 0 if the API does not know the path.
func pathNumber(name string) millracev1.TransferPath {
	return millracev1.TransferPath(millracev1.TransferPath_value["TRANSFER_PATH_"+strings.ToUpper(name)])
}
