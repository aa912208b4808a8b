package transfertest

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
)

// chunk is the number of bytes that a NetworkPath copies between two checks for an interruption.
const chunk = 4 << 20

// Network connects sources of the test's process by address. It is for tests of code above the
// paths. All memory must be addressable by the CPU.
type Network struct {
	mu sync.Mutex
	// sources has the sources by address, guarded by mu. Each has the channel that Remove closes.
	sources map[string]entry
}

type entry struct {
	source transfer.Source
	gone   chan struct{}
}

// NewNetwork returns an empty network.
func NewNetwork() *Network { return &Network{sources: make(map[string]entry)} }

// Add makes a source reachable.
func (n *Network) Add(address string, source transfer.Source) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sources[address] = entry{source, make(chan struct{})}
}

// Remove makes a source unreachable, and fails fetches from it.
func (n *Network) Remove(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e, ok := n.sources[address]; ok {
		close(e.gone)
		delete(n.sources, address)
	}
}

func (n *Network) find(address string) (entry, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok := n.sources[address]
	return e, ok
}

// NetworkPath is a transfer.Path over a Network: the receiving side of one worker.
type NetworkPath struct {
	network *Network
	worker  ids.WorkerID
	// closed is closed once, by Close.
	closed chan struct{}
	once   sync.Once
}

var _ transfer.Path = (*NetworkPath)(nil)

// Path returns the path on which a worker reads.
func (n *Network) Path(worker ids.WorkerID) *NetworkPath {
	return &NetworkPath{network: n, worker: worker, closed: make(chan struct{})}
}

// Capabilities is part of transfer.Path: the path has no optional ability.
func (*NetworkPath) Capabilities() transfer.Capabilities { return transfer.Capabilities{} }

// Name is part of transfer.Path.
func (p *NetworkPath) Name() string { return "network" }

// Close is part of transfer.Path.
func (p *NetworkPath) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Fetch is part of transfer.Path. It cannot stall: there is no peer process.
func (p *NetworkPath) Fetch(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	e, ok := p.network.find(peer.Address)
	if !ok {
		return fmt.Errorf("test network: %s: %w", peer, transfer.ErrPeerLost)
	}
	leased := e.source.Lease(transfer.Reader{Worker: p.worker}, refs, 0)
	var leases []transfer.LeaseID
	for _, l := range leased {
		if l.Lease != 0 {
			leases = append(leases, l.Lease)
		}
	}
	defer e.source.Release(leases)
	for i := range leased {
		if err := p.interrupted(ctx, peer, e); err != nil {
			return err
		}
		if err := leased[i].Err; err != nil {
			sink.Done(i, err)
			continue
		}
		regions, err := sink.Place(ctx, i, leased[i].Head)
		if err == nil {
			err = leased[i].Head.Fits(regions)
		}
		if err != nil {
			sink.Done(i, err)
			continue
		}
		for f, from := range leased[i].Regions {
			to := regions[f].Bytes()
			for left := from.Bytes(); len(left) > 0; {
				if err := p.interrupted(ctx, peer, e); err != nil {
					return err
				}
				n := copy(to, left[:min(chunk, len(left))])
				to, left = to[n:], left[n:]
			}
		}
		sink.Done(i, nil)
	}
	return nil
}

func (p *NetworkPath) interrupted(ctx context.Context, peer transfer.Peer, e entry) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("test network: %s: %w", peer, ctx.Err())
	case <-e.gone:
		return fmt.Errorf("test network: %s: %w: it was removed", peer, transfer.ErrPeerLost)
	case <-p.closed:
		return fmt.Errorf("test network: %s: %w: closed", peer, transfer.ErrPeerLost)
	default:
		return nil
	}
}
