package borrow

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// The index entries of a killed process stay in the shared object index, and its bytes stay in
// memory, as long as both are mapped here. An entry was made, or was marked as whole, after its
// object was sealed, and was removed before the memory was used again. So the objects of a dead
// peer can be found and copied like those of a live one; but nobody can be asked for objects that
// are not in the index.

// keepMapped keeps the memory of a peer mapped after the connection has ended (the peer is dead or
// about to die), until Forget or Close is called or the time Config.KeepDead is over. run calls it.
func (c *peer) keepMapped() {
	p := c.path
	if c.index == nil || p.config.KeepDead <= 0 {
		return
	}
	over := make(chan struct{})
	p.mu.Lock()
	if p.closed || c.unneeded {
		p.mu.Unlock()
		return
	}
	p.deadPeers[c] = over
	p.mu.Unlock()
	timer := time.NewTimer(p.config.KeepDead)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	}
	p.mu.Lock()
	delete(p.deadPeers, c)
	p.mu.Unlock()
}

// unneedAll ends the wait of keepMapped for the peers that which selects. REQUIRES: mu.
func (p *Path) unneedAll(which func(*peer) bool) {
	for c, over := range p.deadPeers {
		if which(c) {
			delete(p.deadPeers, c)
			close(over)
		}
	}
}

// deadPeer finds the connection to one incarnation of a peer. The connection has ended or will end
// soon; nil if there is none. (The memory that it keeps is the tombstone of the peer.)
func (p *Path) deadPeer(at transfer.Peer, incarnation [16]byte) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.deadPeers {
		if c.space.Identity().Incarnation == incarnation {
			return c
		}
	}
	c := p.peers[at.Address]
	if c == nil {
		return nil
	}
	select {
	case <-c.ready:
	default:
		return nil
	}
	if c.err != nil || c.space.Identity().Incarnation != incarnation {
		return nil
	}
	return c
}

const (
	// slotWait is the longest wait for a free reader slot: readers were busy when the peer died.
	slotWait = 100 * time.Millisecond
	// slotPoll is the time between two attempts to get one. It must be short beside slotWait.
	slotPoll = time.Millisecond
)

// PinDead is Pin for one incarnation of a peer that has died, for about the given number of
// objects. Its error matches transfer.ErrUnreachable if there is nothing to read.
func (p *Path) PinDead(ctx context.Context, at transfer.Peer, incarnation [16]byte, objects int) (*ReadGuard, error) {
	no := func(why string) error { return fmt.Errorf("rescue from %s: %w: %s", at, transfer.ErrUnreachable, why) }
	c := p.deadPeer(at, incarnation)
	switch {
	case c == nil:
		return nil, no("its memory is not mapped here")
	case c.index == nil:
		return nil, no("it gave us no object index")
	}
	for began := time.Now(); ; {
		c.mu.Lock()
		if c.unmapped {
			c.mu.Unlock()
			return nil, no("its memory has just been unmapped")
		}
		slot, ok := c.index.Pin()
		if ok {
			c.guards++
		}
		c.mu.Unlock()
		if ok {
			g := c.newGuard(slot, math.MaxUint64, objects)
			if !c.conn.Exited() {
				g.End()
				return nil, no("its process has not ended")
			}
			return g, nil
		}
		if time.Since(began) > slotWait {
			return nil, no("too many read it")
		}
		select {
		case <-time.After(slotPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("rescue from %s: %w", at, context.Cause(ctx))
		}
	}
}

// Rescue is part of transfer.Rescuer.
func (p *Path) Rescue(ctx context.Context, at transfer.Peer, incarnation [16]byte, refs []transfer.Ref, sink transfer.Sink) error {
	g, err := p.PinDead(ctx, at, incarnation, len(refs))
	if err != nil {
		return err
	}
	defer g.End()
	var lent Lent
	for i, r := range refs {
		if !g.Find(r, &lent) {
			sink.Done(i, fmt.Errorf("%s on %s: %w", r, at, transfer.ErrNotHere))
			continue
		}
		from := make([]transfer.Region, len(lent.Frames))
		for n, f := range lent.Frames {
			from[n] = transfer.Region{Space: g.Memory, Frame: f}
		}
		into, err := sink.Place(ctx, i, lent.Head)
		if err == nil {
			err = p.copy(ctx, into, from)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("rescue from %s: %w", at, context.Cause(ctx))
		}
		if err == nil {
			err = g.proof()
		}
		sink.Done(i, err)
	}
	return nil
}

// proof checks that the copied bytes came from the incarnation that was asked for.
func (g *ReadGuard) proof() error {
	head, err := memory.ParseHeader(g.Memory.Bytes(0, memory.HeaderBytes))
	if err != nil {
		return fmt.Errorf("rescue from %s: the header page: %w", g.peer.at, err)
	}
	if head.Identity != g.Memory.Identity() || !g.Held() {
		return fmt.Errorf("rescue from %s: %w: its memory is not what it was", g.peer.at, transfer.ErrPeerLost)
	}
	return nil
}
