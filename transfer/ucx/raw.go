package ucx

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// Raw reads remote, any range of the peer's slab, into a region of ours. It repeats that as often
// as times says, one read after the other, and returns the duration of each read. This is the speed
// of a connection without leases and objects, to compare fetches with. The bytes read have no
// meaning. At a staged end UCX does not read the slab: as many bytes of the source's ring are read
// instead, or memory of ours beside the slab is read into, without the copies from and to the
// slabs.
func (p *Path) Raw(ctx context.Context, peer transfer.Peer, remote memory.Frame, into transfer.Region, times int) ([]time.Duration, error) {
	if !p.enter() {
		return nil, fmt.Errorf("ucx path: %w: closed", transfer.ErrPeerLost)
	}
	defer p.wait.Done()
	n, err := p.conn(ctx, peer)
	if err != nil {
		return nil, err
	}
	if !remote.Within(n.bytes) || into.Frame.Bytes < remote.Bytes || into.Space != p.c.config.Space || !into.Frame.Within(into.Space.Size()) {
		return nil, fmt.Errorf("ucx path: %s: raw read of [%d, +%d) into [%d, +%d): one of them is outside of its slab, or the first is larger",
			peer, remote.Offset, remote.Bytes, into.Frame.Offset, into.Frame.Bytes)
	}
	p.c.active.Add(1)
	defer p.c.active.Add(-1)
	whole := read{local: p.c.base + into.Frame.Offset, remote: n.base + remote.Offset, length: remote.Bytes, memory: p.c.slabMemory}
	submit := func(l *loop, b *batch) {
		l.take(n, b, appendReads(nil, b, whole.local, whole.remote, whole.length, n.route.readChunk(), whole.memory))
	}
	// A peer sends only those slots of its ring that it has lent, so messages are asked for as
	// fetches ask for them.
	if n.route.staged() && !n.route.byMessage() {
		var slot int
		select {
		case slot = <-p.c.slots:
		case <-ctx.Done():
			return nil, fmt.Errorf("ucx path: %s: raw read: connections are being proved: %w", peer, ctx.Err())
		}
		at := uint64(slot) * proofBytes
		defer func() {
			p.c.scratch.tidy(at)
			p.c.slots <- slot
		}()
		submit = func(l *loop, b *batch) { l.queue(n, b, p.c.rawReads(n, b, whole, p.c.scratch.base()+at)) }
	}
	took := make([]time.Duration, 0, times)
	for range times {
		t, err := p.await(ctx, n, remote.Bytes, submit)
		if err != nil {
			return took, fmt.Errorf("ucx path: %s: raw read: %w", peer, err)
		}
		took = append(took, t)
	}
	return took, nil
}

// rawReads returns reads of a staged route by the network alone. They use the slots of the source's
// ring one after the other, and here proofBytes of scratch memory again and again.
func (c *Context) rawReads(n *conn, b *batch, whole read, scratch uint64) (reads []*read) {
	slots := (n.offer.ringBytes - min(n.offer.ringBytes, memory.HeaderBytes)) / memory.StageBytes
	for at := uint64(0); at < whole.length; at += proofBytes {
		r := &read{batch: b, local: whole.local + at, remote: whole.remote + at, length: min(proofBytes, whole.length-at), memory: whole.memory}
		if n.route.stagedSource {
			r.remote, r.key = n.offer.ringBase+memory.HeaderBytes+at/proofBytes%slots*memory.StageBytes, keyRing
		}
		if n.route.stagedReader {
			r.local, r.memory = scratch, c.scratch.memory
		}
		reads = append(reads, r)
	}
	return reads
}
