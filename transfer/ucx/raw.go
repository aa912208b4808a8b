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
// meaning.
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
	took := make([]time.Duration, 0, times)
	for range times {
		t, err := p.await(ctx, n, remote.Bytes, func(l *loop, b *batch) {
			l.take(n, b, appendReads(nil, b, p.c.base+into.Frame.Offset, n.base+remote.Offset, remote.Bytes, n.route.readChunk(), p.c.slabMemory))
		})
		if err != nil {
			return took, fmt.Errorf("ucx path: %s: raw read: %w", peer, err)
		}
		took = append(took, t)
	}
	return took, nil
}
