package cuda

import (
	"fmt"
	"sync/atomic"
)

// Purpose selects one of the streams that a device has. Work of one stream runs in order; work of
// different streams may run at the same time.
type Purpose int

// The purposes. In is for copies to the device's slab from peers and from the host, Out for copies
// from the slab, Spill for copies between the tiers in the background.
const (
	Compute Purpose = iota
	In
	Out
	Spill
	purposes
)

// urgent says whether a task or a peer waits for the stream's work. That is so for inputs and
// outputs, but not for kernels and spills alone.
func (p Purpose) urgent() bool { return p == In || p == Out }

// Stream is a queue of work on a device. Its methods may be called from any goroutine. If two
// goroutines submit work at the same time, the order is not defined.
type Stream struct {
	device *Device
	handle uint64
	// own says that NewStream created it. Close leaves the other streams to Device.Close.
	own    bool
	closed atomic.Bool
}

// NewStream creates a stream in addition to the device's own streams, for example one per peer.
func (d *Device) NewStream(p Purpose) (*Stream, error) {
	if err := d.Health(); err != nil {
		return nil, err
	}
	if err := d.adopt(kindStream); err != nil {
		return nil, err
	}
	handle, r := d.api.streamCreate(d.context, p.urgent())
	if err := d.check("cuStreamCreateWithPriority", r); err != nil {
		d.forget(kindStream)
		return nil, err
	}
	return &Stream{device: d, handle: handle, own: true}, nil
}

// Handle returns the CUstream, for other packages with C code of their own.
func (s *Stream) Handle() uint64 { return s.handle }

// Close destroys a stream of NewStream. Work that was submitted still runs.
func (s *Stream) Close() error {
	if !s.own || !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	defer s.device.forget(kindStream)
	err := s.device.check("cuStreamDestroy", s.device.api.streamDestroy(s.device.context, s.handle))
	if s.device.lost.Load() != nil {
		return nil
	}
	return err
}

// Copy is one copy of a batch. Device addresses come from Slab.Pointer and Peer.Pointer, host
// addresses from Pinned.Address. The struct has the layout of mrc_copy.
type Copy struct {
	To, From, Bytes uint64
	kind            copyKind
	_               int32
}

// ToDevice copies from registered host memory to a device.
func ToDevice(to, from, bytes uint64) Copy {
	return Copy{To: to, From: from, Bytes: bytes, kind: hostToDevice}
}

// ToHost copies from a device to registered host memory.
func ToHost(to, from, bytes uint64) Copy {
	return Copy{To: to, From: from, Bytes: bytes, kind: deviceToHost}
}

// OnDevice copies between device memories: within the slab, or from or to the slab of a peer.
func OnDevice(to, from, bytes uint64) Copy {
	return Copy{To: to, From: from, Bytes: bytes, kind: deviceToDevice}
}

// Copy submits copies, in order, and returns at once. It makes one call of the shim for all of
// them. If after is not nil, it is recorded behind the last copy. If there is an error, some copies
// may have been submitted, and after was not recorded: call Sync before the memory is used again.
func (s *Stream) Copy(copies []Copy, after *Event) error {
	if err := s.device.Health(); err != nil {
		return err
	}
	var event uint64
	if after != nil {
		event = after.handle
	}
	n, r := s.device.api.copyBatch(s.device.context, s.handle, copies, event)
	if r == success {
		return nil
	}
	call := fmt.Sprintf("copy %d of %d", n+1, len(copies))
	if n == len(copies) {
		call = "cuEventRecord"
	}
	return s.device.check(call, r)
}

// Memset fills device memory with a byte, in the order of the stream.
func (s *Stream) Memset(pointer uint64, value byte, bytes uint64) error {
	if err := s.device.Health(); err != nil {
		return err
	}
	return s.device.check("cuMemsetD8Async", s.device.api.memset(s.device.context, s.handle, pointer, value, bytes))
}

// Sync blocks, with its thread, until the submitted work is done.
func (s *Stream) Sync() error {
	if err := s.device.Health(); err != nil {
		return err
	}
	return s.device.check("cuStreamSynchronize", s.device.api.streamSync(s.device.context, s.handle))
}
