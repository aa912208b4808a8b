package cuda

import (
	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// Kernels read inputs in the slabs of peers as they read those in ours: what differs is the
// address, and how fast it is. Nothing of that is kept in our caches, so what would be read
// again and again is copied first, to the memory between kernels.

var _ device.InPlace = (*Device)(nil)

// Reads is part of device.InPlace.
func (d *Device) Reads(name string) device.Reading {
	op, err := d.ops.Lookup(name)
	switch {
	case err != nil:
		return device.ReadsAgain // Prepare says so
	case op.Moves:
		return device.Moves
	case op.Once:
		return device.ReadsOnce
	}
	return device.ReadsAgain
}

// remote says whether a tensor lies in the memory of a peer.
func (d *Device) remote(t *ops.Tensor) bool {
	f, ok := t.Far.(*far)
	return ok && f.space != d.slab && t.Len() > 0
}

// againBytes is the scratch memory that again needs for a tensor.
func (d *Device) againBytes(t *ops.Tensor) uint64 {
	if !d.remote(t) {
		return 0
	}
	low, high := extent(t)
	return aligned(uint64(high-low) + scratchAlign)
}

// scratchAlign is to what addresses in the scratch memory are aligned.
const scratchAlign = 256

// again is at for kernels that read elements many times: what lies at a peer is copied. The
// address keeps what it is aligned to.
func (s *submission) again(t *ops.Tensor) uint64 {
	if !s.device.remote(t) {
		return s.at(t)
	}
	low, high := extent(t)
	n, from := uint64(high-low), t.Far.Address()+uint64(low)
	shift := from % scratchAlign
	to := s.take(n+shift) + shift
	s.copy(gpu.OnDevice(to, from, n))
	return to + uint64(t.Offset-low)
}
