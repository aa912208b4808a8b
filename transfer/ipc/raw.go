package ipc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

// Raw copies a range of the memory of a peer with a GPU, with any contents, into a region of our
// slab. It repeats the copy and returns the time of each. This is the speed of the mapping without
// leases and objects, to compare fetches with. Before each copy it rests: a copy directly after
// other work is faster than one that begins on an idle processor and device. The region's bytes are
// meaningless afterwards.
func (p *Path) Raw(ctx context.Context, at transfer.Peer, remote memory.Frame, into transfer.Region, times int, rest time.Duration) (took []time.Duration, err error) {
	if _, err := p.Connect(ctx, at); err != nil {
		return nil, err
	}
	p.mu.Lock()
	m := p.peers[at.Address]
	p.mu.Unlock()
	if m == nil || m.peer == nil || !m.peer.Acquire() {
		return nil, fmt.Errorf("ipc from %s: raw copy: its memory is not mapped here, or is not on a GPU", at)
	}
	defer m.peer.Release()
	slab := p.config.Slab
	if !remote.Within(m.export.SizeBytes) || into.Frame.Bytes < remote.Bytes || into.Space != memory.Space(slab) || !into.Frame.Within(slab.Size()) {
		return nil, fmt.Errorf("ipc from %s: raw copy of [%d, +%d) to [%d, +%d): one of them is outside of its slab, or the first is larger",
			at, remote.Offset, remote.Bytes, into.Frame.Offset, into.Frame.Bytes)
	}
	stream, err := p.config.Device.NewStream(cuda.In)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	event, err := p.config.Device.NewPolledEvent()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, event.Close()) }()
	copies := []cuda.Copy{cuda.OnDevice(slab.Pointer(into.Frame.Offset, remote.Bytes), m.base+remote.Offset, remote.Bytes)}
	for range times {
		if err := ctx.Err(); err != nil {
			return took, err
		}
		time.Sleep(rest)
		began := time.Now()
		if err := stream.Copy(copies, event); err != nil {
			return took, errors.Join(err, stream.Sync())
		}
		for done := false; !done; {
			if done, err = event.Query(); err != nil {
				return took, errors.Join(err, stream.Sync())
			}
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}
