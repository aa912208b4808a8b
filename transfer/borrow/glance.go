package borrow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/millrace/millrace/internal/board"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

const (
	// glanceBytes bounds what is found in one glance: so much is copied long before
	// the peer may revoke it.
	glanceBytes = 4 << 30
	// Fetch looks every so many objects, or bytes, whether what it copied is valid.
	tellObjects = 256
	tellBytes   = 16 << 20
)

// see opens the board that came with a connection, if one did, and the turn. Without
// it, objects are asked for.
func see(conn *slabshare.Conn) (*board.View, *board.Turn) {
	if conn.Board == nil {
		return nil, nil
	}
	view, err := board.Open(conn.Board, conn.Slots)
	_ = conn.Board.Close() // nothing was written
	_ = conn.Slots.Close() // nor here
	turn, turnErr := board.OpenTurn(conn.Turn, rand.Uint64())
	_ = conn.Turn.Close()
	conn.Board, conn.Slots, conn.Turn = nil, nil, nil
	if err != nil {
		view = nil
	}
	if turnErr != nil {
		turn = nil
	}
	return view, turn
}

// Glance finds objects of one peer where they lie, and protects them all until it
// ends. Its methods belong to one goroutine at a time.
type Glance struct {
	// Memory is where the frames lie.
	Memory Memory

	peer  *peer
	slot  board.Glance
	found board.Found
	bytes uint64
	// limit bounds bytes.
	limit uint64
}

// glances are to be used again: their lists are as long as batches are.
var glances = sync.Pool{New: func() any { return new(Glance) }}

// Glance begins to look at what a peer shows, for about so many objects. It returns
// nil if the peer shows nothing to us, or too many look already.
func (p *Path) Glance(ctx context.Context, at transfer.Peer, objects int) (*Glance, error) {
	c, err := p.connected(ctx, at)
	if err != nil {
		return nil, err
	}
	if c.view == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unmapped {
		return nil, fmt.Errorf("borrow from %s: %w", at, transfer.ErrPeerLost)
	}
	slot, ok := c.view.Look()
	if !ok {
		return nil, nil
	}
	c.glances++
	return c.glance(slot, glanceBytes, objects), nil
}

// glance makes one of a slot that was taken.
func (c *peer) glance(slot board.Glance, limit uint64, objects int) *Glance {
	g := glances.Get().(*Glance)
	g.Memory, g.peer, g.slot, g.bytes, g.limit = c.space, c, slot, 0, limit
	g.found.Begin(objects)
	return g
}

// Find looks an object up. If it returns false, the peer may have it all the same.
// The frames are a list of the glance, which ends with it.
func (g *Glance) Find(ref transfer.Ref, into *Lent) bool {
	if ref.Generation == 0 {
		return false
	}
	o, ok := g.slot.Find(ref, g.Memory.Size(), &g.found)
	return ok && g.take(ref, o, into)
}

// FindAll is Find for many objects: heads has those that are found, each in the place of its
// ref, and a zero Ref for the others. frames are theirs, one behind the other; the list is good
// until the next call.
func (g *Glance) FindAll(refs []transfer.Ref, heads []transfer.Head) (frames []memory.Frame, sum board.Sum) {
	frames, sum = g.slot.FindAll(refs, g.Memory.Size(), &g.found, heads)
	if sum.Bytes <= g.limit-g.bytes {
		g.bytes += sum.Bytes
		return frames, sum
	}
	// Some are too many for one glance.
	all := frames
	frames, sum = frames[:0], board.Sum{}
	for i := range refs {
		h := &heads[i]
		if h.Ref.Generation == 0 {
			continue
		}
		own := all[:len(h.FrameBytes)]
		all = all[len(own):]
		if n := h.Bytes(); n <= g.limit-g.bytes {
			g.bytes += n
			sum.Bytes += n
			sum.Objects++
			if len(own) == 1 {
				sum.Single++
			}
			frames = append(frames, own...) // never beyond where it was read
		} else {
			h.Ref = transfer.Ref{}
		}
	}
	return frames, sum
}

// FindArriving is Find for what the peer has or is fetching; the watch says how far that
// has come, and is good until the glance ends.
func (g *Glance) FindArriving(ref transfer.Ref, into *Lent) (watch board.Watch, ok bool) {
	if ref.Generation == 0 {
		return watch, false
	}
	o, watch, ok := g.slot.FindArriving(ref, g.Memory.Size(), &g.found)
	return watch, ok && g.take(ref, o, into)
}

func (g *Glance) take(ref transfer.Ref, o board.Object, into *Lent) bool {
	bytes := uint64(0)
	for _, n := range o.Sizes {
		bytes += n
	}
	if bytes > g.limit-g.bytes {
		return false
	}
	g.bytes += bytes
	into.Head = transfer.Head{Ref: ref, Header: o.Header, FrameBytes: o.Sizes}
	into.Frames = o.Frames
	into.Err = nil
	return true
}

// Held says whether the bytes of all objects that were found were theirs until now.
func (g *Glance) Held() bool { return g.slot.Held() }

// Left says whether the connection has ended: whoever is not dead has taken the slots
// away, and nothing is shown any more that was not.
func (g *Glance) Left() bool { return g.peer.conn.Err() != nil }

// End ends the glance, once, and says what Held would.
func (g *Glance) End() bool {
	c := g.peer
	held := g.slot.End(g.bytes)
	c.mu.Lock()
	c.glances--
	c.unmapIfUnused()
	c.mu.Unlock()
	g.Memory, g.peer = nil, nil
	glances.Put(g)
	return held
}

// fetchShown fetches what the peer shows, and returns the indices of the rest.
func (p *Path) fetchShown(ctx context.Context, at transfer.Peer, refs []transfer.Ref, sink transfer.Sink) (missed []int, err error) {
	if len(refs) == 0 {
		return nil, nil
	}
	g, err := p.Glance(ctx, at, len(refs))
	if err != nil {
		return nil, err
	}
	if g == nil {
		missed = make([]int, len(refs))
		for i := range missed {
			missed[i] = i
		}
		return missed, nil
	}
	defer g.End()
	// ready are copied, and may be told when the glance is found to hold.
	var ready []int
	bytes := uint64(0)
	tell := func() error {
		switch {
		case len(ready) == 0:
			return nil
		case !g.Held():
			return fmt.Errorf("borrow from %s: %d objects: %w: they were not protected", at, len(ready), transfer.ErrPeerLost)
		}
		for _, i := range ready {
			sink.Done(i, nil)
		}
		ready, bytes = ready[:0], 0
		return nil
	}
	var lent Lent
	var from []transfer.Region
	for i, r := range refs {
		if !g.Find(r, &lent) {
			missed = append(missed, i)
			continue
		}
		from = from[:0]
		for _, f := range lent.Frames {
			from = append(from, transfer.Region{Space: g.Memory, Frame: f})
		}
		into, err := sink.Place(ctx, i, lent.Head)
		if err == nil {
			err = p.copy(ctx, into, from)
		}
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("borrow from %s: %w", at, context.Cause(ctx))
		case err != nil:
			sink.Done(i, err)
		default:
			ready = append(ready, i)
			bytes += lent.Head.Bytes()
		}
		if len(ready) >= tellObjects || bytes >= tellBytes {
			if err := tell(); err != nil {
				return nil, err
			}
		}
	}
	return missed, tell()
}
