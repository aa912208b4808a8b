package borrow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/objindex"
)

const (
	// guardBytes bounds the bytes found under one epoch guard (ReadGuard). The reader can copy that
	// much long before the peer may revoke the guard.
	guardBytes = 4 << 30
	// Fetch checks after this many objects or bytes whether its copies are valid, and reports them.
	reportObjects = 256
	reportBytes   = 16 << 20
)

// openIndex maps the shared object index, the reader slots and the egress token that came
// with a connection. index and token are nil if they did not come or cannot be mapped. Without
// an index, the path asks the peer for each object.
func openIndex(conn *slabshare.Conn) (*objindex.Reader, *objindex.EgressToken) {
	if conn.Index == nil {
		return nil, nil
	}
	index, err := objindex.Open(conn.Index, conn.Slots)
	_ = conn.Index.Close() // nothing was written
	_ = conn.Slots.Close() // nor here
	token, tokenErr := objindex.OpenEgressToken(conn.EgressToken, rand.Uint64())
	_ = conn.EgressToken.Close()
	conn.Index, conn.Slots, conn.EgressToken = nil, nil, nil
	if err != nil {
		index = nil
	}
	if tokenErr != nil {
		token = nil
	}
	return index, token
}

// ReadGuard is an epoch guard on the shared object index of one peer: it finds objects in the
// peer's memory, and protects all of them until End. Its methods must be called by one goroutine at
// a time.
type ReadGuard struct {
	// Memory is the peer's memory; it contains the frames.
	Memory Memory

	peer  *peer
	guard objindex.ReadGuard
	found objindex.Found
	bytes uint64
	// limit is the upper bound of bytes.
	limit uint64
}

// guards is a pool: guards are used again because their lists grow to the length of a batch.
var guards = sync.Pool{New: func() any { return new(ReadGuard) }}

// Pin begins to read a peer's shared object index, for about the given number of objects. It
// returns nil without an error if the peer gave us no index, or if all reader slots are in use.
func (p *Path) Pin(ctx context.Context, at transfer.Peer, objects int) (*ReadGuard, error) {
	c, err := p.connected(ctx, at)
	if err != nil {
		return nil, err
	}
	if c.index == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unmapped {
		return nil, fmt.Errorf("borrow from %s: %w", at, transfer.ErrPeerLost)
	}
	slot, ok := c.index.Pin()
	if !ok {
		return nil, nil
	}
	c.guards++
	return c.newGuard(slot, guardBytes, objects), nil
}

// newGuard builds a ReadGuard from a reader slot that was taken.
func (c *peer) newGuard(slot objindex.ReadGuard, limit uint64, objects int) *ReadGuard {
	g := guards.Get().(*ReadGuard)
	g.Memory, g.peer, g.guard, g.bytes, g.limit = c.space, c, slot, 0, limit
	g.found.Begin(objects)
	return g
}

// Find looks an object up. If it returns false, the peer may still have the object. The frames are
// in a list of the ReadGuard, and are valid until End.
func (g *ReadGuard) Find(ref transfer.Ref, into *Lent) bool {
	if ref.Generation == 0 || ref.Item != 0 {
		return false
	}
	o, ok := g.guard.Find(ref, g.Memory.Size(), &g.found)
	return ok && g.take(ref, o, into)
}

// FindAll is Find for many objects. It sets heads[i] for each ref i that it finds, and a zero Ref
// in heads[i] for the others. frames are the frames of the objects found, object after object; they
// are valid until the next call.
func (g *ReadGuard) FindAll(refs []transfer.Ref, heads []transfer.Head) (frames []memory.Frame, sum objindex.Sum) {
	frames, sum = g.guard.FindAll(refs, g.Memory.Size(), &g.found, heads)
	if sum.Bytes <= g.limit-g.bytes {
		g.bytes += sum.Bytes
		return frames, sum
	}
	// They are more than one guard allows: keep the objects that fit, and drop the others.
	all := frames
	frames, sum = frames[:0], objindex.Sum{}
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
			frames = append(frames, own...) // written never ahead of the position that is read
		} else {
			h.Ref = transfer.Ref{}
		}
	}
	return frames, sum
}

// FindArriving is Find for objects that the peer has or is fetching. watch reports how far the
// object has arrived; it is valid until End.
func (g *ReadGuard) FindArriving(ref transfer.Ref, into *Lent) (watch objindex.Watch, ok bool) {
	if ref.Generation == 0 {
		return watch, false
	}
	o, watch, ok := g.guard.FindArriving(ref, g.Memory.Size(), &g.found)
	return watch, ok && g.take(ref, o, into)
}

func (g *ReadGuard) take(ref transfer.Ref, o objindex.Object, into *Lent) bool {
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

// Held says whether the bytes of all objects found have belonged to these objects until now.
func (g *ReadGuard) Held() bool { return g.guard.Held() }

// Left says whether the connection has ended. A peer that is alive has then closed our reader
// slots, and its index no longer gains entries that we could use.
func (g *ReadGuard) Left() bool { return g.peer.conn.Err() != nil }

// End ends the guard, and returns the result of Held. It must be called once.
func (g *ReadGuard) End() bool {
	c := g.peer
	held := g.guard.End(g.bytes)
	c.mu.Lock()
	c.guards--
	c.unmapIfUnused()
	c.mu.Unlock()
	g.Memory, g.peer = nil, nil
	guards.Put(g)
	return held
}

// fetchIndexed fetches the objects in the peer's index, and returns the indices of the others.
func (p *Path) fetchIndexed(ctx context.Context, at transfer.Peer, refs []transfer.Ref, sink transfer.Sink) (missed []int, err error) {
	if len(refs) == 0 {
		return nil, nil
	}
	g, err := p.Pin(ctx, at, len(refs))
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
	// ready are the objects that are copied. They are reported as done after a check of Held.
	var ready []int
	bytes := uint64(0)
	report := func() error {
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
		if len(ready) >= reportObjects || bytes >= reportBytes {
			if err := report(); err != nil {
				return nil, err
			}
		}
	}
	return missed, report()
}
