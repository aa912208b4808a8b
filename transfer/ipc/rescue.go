package ipc

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// Rescue is part of transfer.Rescuer. The mapping of a dead peer's slab keeps it allocated, and the
// peer's object index says where in it the objects are.
func (p *Path) Rescue(ctx context.Context, at transfer.Peer, incarnation [16]byte, refs []transfer.Ref, sink transfer.Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !p.begin(&cancel) {
		return errClosed
	}
	defer p.end(&cancel)
	g, err := p.lenders.PinDead(ctx, at, incarnation, len(refs))
	if err != nil {
		return fmt.Errorf("ipc: %w", err)
	}
	defer g.End()
	m := g.Memory.(*mapping)
	if why := m.suspect(); why != nil {
		return fmt.Errorf("ipc: rescue from %s: %w: %w", at, transfer.ErrUnreachable, why)
	}
	if err := m.verify(); err != nil {
		return fmt.Errorf("ipc: rescue from %s: %w: %w", at, transfer.ErrUnreachable, err)
	}
	kept := &copied{Sink: sink}
	f := p.newFetch(kept, g.Memory)
	defer f.close()
	f.guard, f.refs = g, refs
	err = f.run(ctx)
	if err == nil {
		if proof := m.verify(); proof != nil {
			err = fmt.Errorf("ipc: rescue from %s: %w: %w", at, transfer.ErrPeerLost, proof)
		}
	}
	if err != nil {
		return err
	}
	for _, i := range kept.whole {
		sink.Done(i, nil)
	}
	for _, i := range f.missed {
		sink.Done(i, fmt.Errorf("%s on %s: %w", refs[i], at, transfer.ErrNotHere))
	}
	return nil
}

// copied holds arrived objects back until the memory is proved a second time.
type copied struct {
	transfer.Sink
	whole []int
}

// Capabilities is part of transfer.Sink: every object comes through Done.
func (c *copied) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

// Done is part of transfer.Sink.
func (c *copied) Done(index int, err error) {
	if err != nil {
		c.Sink.Done(index, err)
		return
	}
	c.whole = append(c.whole, index)
}

// verify returns an error if the memory is no longer the mapped incarnation. REQUIRES: an
// epoch guard keeps the mapping.
func (m *mapping) verify() error {
	if m.peer != nil {
		return m.peer.Prove()
	}
	head, err := memory.ParseHeader(m.data[:memory.HeaderBytes])
	if err == nil && head.Identity != m.identity {
		err = errors.New("the memory of another incarnation")
	}
	return err
}
