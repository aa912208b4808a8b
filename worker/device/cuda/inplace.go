package cuda

import (
	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// Kernels read inputs in the slabs of peers in the same way as inputs in our own slab: only the
// address and the speed differ. The caches of our GPU keep nothing of a peer's memory, so an input
// that a kernel reads many times is first copied to the scratch memory.

var _ device.InPlace = (*Device)(nil)

// Reads is part of device.InPlace.
func (d *Device) Reads(name string) device.Reading {
	op, err := d.ops.Lookup(name)
	switch {
	case err != nil:
		return device.ReadsAgain // Prepare returns the error
	case op.Moves:
		return device.Moves
	case op.ReadsOnce:
		return device.ReadsOnce
	}
	return device.ReadsAgain
}

// remote reports whether a tensor lies in the memory of a peer.
func (d *Device) remote(t *ops.Tensor) bool {
	f, ok := t.Far.(*far)
	return ok && f.space != d.slab && t.Len() > 0
}

// rereadBytes is the scratch memory that reread takes for a tensor.
func (d *Device) rereadBytes(t *ops.Tensor) uint64 {
	if !d.remote(t) {
		return 0
	}
	low, high := extent(t)
	return aligned(uint64(high-low) + scratchAlign)
}

// scratchAlign is the alignment of addresses in the scratch memory.
const scratchAlign = 256

// reread is like at, for kernels that read elements many times: a tensor in the memory of a peer is
// copied first. The copy's address has the same alignment as the original.
func (s *submission) reread(t *ops.Tensor) uint64 {
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
