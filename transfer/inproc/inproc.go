// Package inproc is an Adapter: the transfer path between workers in one process. It copies from
// memory to memory. It is also the reference for the conformance suite that all paths must pass.
package inproc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// chunk is how much is copied between two checks for an interruption.
const chunk = 4 << 20

// Network connects the sources of one process by address.
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

// Path is the receiving side of one worker.
type Path struct {
	network *Network
	worker  ids.WorkerID
	// closed is closed once, by Close.
	closed chan struct{}
	once   sync.Once
}

var _ transfer.Path = (*Path)(nil)

// Path returns the path on which a worker reads.
func (n *Network) Path(worker ids.WorkerID) *Path {
	return &Path{network: n, worker: worker, closed: make(chan struct{})}
}

// Name is part of transfer.Path.
func (p *Path) Name() string { return "inproc" }

// Close is part of transfer.Path.
func (p *Path) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Fetch is part of transfer.Path. It cannot stall: there is no peer process.
func (p *Path) Fetch(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	e, ok := p.network.find(peer.Address)
	if !ok {
		return fmt.Errorf("inproc path: %s: %w", peer, transfer.ErrPeerLost)
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
			if err == nil {
				err = copyRegion(regions[f], from, func() error { return p.interrupted(ctx, peer, e) })
			}
		}
		if stopped := p.interrupted(ctx, peer, e); err != nil && stopped != nil {
			return stopped
		}
		sink.Done(i, err)
	}
	return nil
}

func (p *Path) interrupted(ctx context.Context, peer transfer.Peer, e entry) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("inproc path: %s: %w", peer, ctx.Err())
	case <-e.gone:
		return fmt.Errorf("inproc path: %s: %w: it was removed", peer, transfer.ErrPeerLost)
	case <-p.closed:
		return fmt.Errorf("inproc path: %s: %w: closed", peer, transfer.ErrPeerLost)
	default:
		return nil
	}
}

// copyRegion copies with the methods that both spaces offer. It calls goOn before each chunk, and
// stops if goOn returns an error.
func copyRegion(to, from transfer.Region, goOn func() error) error {
	put, finish := writer(to)
	err := read(from, func(p []byte) error {
		if err := goOn(); err != nil {
			return err
		}
		return put(p)
	})
	return errors.Join(err, finish())
}

// read passes the bytes of a region to put, in order.
func read(from transfer.Region, put func([]byte) error) error {
	switch space := from.Space.(type) {
	case memory.Staged:
		out := memory.NewOutflow(space, []memory.Frame{from.Frame}, chunk)
		defer out.Close()
		for {
			c, more, err := out.Next()
			if err == nil && more {
				err = put(c.Data)
			}
			if err != nil || !more {
				return err
			}
		}
	case memory.Reader:
		buffer := make([]byte, min(chunk, from.Frame.Bytes))
		for done := uint64(0); done < from.Frame.Bytes; {
			p := buffer[:min(uint64(len(buffer)), from.Frame.Bytes-done)]
			if err := space.ReadInto(from.Frame.Offset+done, p); err != nil {
				return err
			}
			if err := put(p); err != nil {
				return err
			}
			done += uint64(len(p))
		}
		return nil
	}
	for p := from.Bytes(); len(p) > 0; {
		n := min(chunk, len(p))
		if err := put(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// writer returns functions that write a region: put writes the next bytes, in order. All bytes are
// in place when finish has returned.
func writer(to transfer.Region) (put func([]byte) error, finish func() error) {
	done := uint64(0)
	staged, ok := to.Space.(memory.Staged)
	if !ok {
		into := to.Bytes()
		return func(p []byte) error {
			into = into[copy(into, p):]
			return nil
		}, func() error { return nil }
	}
	in := memory.NewInflow(staged)
	put = func(p []byte) error {
		for len(p) > 0 {
			room, err := in.Room(to.Frame.Offset+done, uint64(len(p)))
			if err != nil {
				return err
			}
			n := copy(room, p)
			p = p[n:]
			done += uint64(n)
		}
		return nil
	}
	return put, func() error {
		defer in.Close()
		return in.Flush()
	}
}
