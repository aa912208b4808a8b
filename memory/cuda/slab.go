package cuda

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/memory"
)

// maxThrowaways is the largest number of small allocations before a slab. Each of them increases
// the driver's next buffer id by one. UCX uses the buffer id to distinguish mappings that have the
// pid and the address of a dead incarnation.
const maxThrowaways = 1024

// SlabConfig says which slab to make.
type SlabConfig struct {
	// Size is the size of the slab. The zero Size means DefaultFraction of all of the device's
	// memory.
	Size Size
	// Identity is written to the header page.
	Identity memory.Identity
	// throwaways is the number of small allocations before the slab, for tests that need equal
	// buffer ids; 0 means a random number.
	throwaways int
}

// Slab is one allocation of a device's memory. It is a memory.Staged space.
type Slab struct {
	device   *Device
	pointer  uint64
	size     uint64
	identity memory.Identity
	stage    stage
	closed   atomic.Bool

	exporting sync.Mutex
	// handle is the handle with which other processes map the slab, once exported is true. Both are
	// guarded by exporting.
	handle   Handle
	exported bool
}

var _ memory.Staged = (*Slab)(nil)

// NewSlab allocates a slab and writes the header page. Before that it makes a random number of
// small allocations and frees them again. The memory after the header page is not cleared. If there
// is not enough free memory, the error matches ErrOutOfMemory.
func (d *Device) NewSlab(c SlabConfig) (*Slab, error) {
	free, total, err := d.Memory()
	if err != nil {
		return nil, err
	}
	size := c.Size.Of(total)
	if size < slabGranule {
		return nil, fmt.Errorf("cuda: slab of %s on %s: less than %d bytes; raise --device-memory-limit", c.Size, d.name, slabGranule)
	}
	if err := d.adopt(kindSlab); err != nil {
		return nil, err
	}
	s := &Slab{device: d, size: size, identity: c.Identity}
	s.stage.free = make(chan *buffer, stageMost)
	throwaways := c.throwaways
	if throwaways == 0 {
		throwaways = 1 + rand.IntN(maxThrowaways)
	}
	pointer, r := d.api.alloc(d.context, size, throwaways)
	if err := d.check("cuMemAlloc", r); err != nil {
		d.forget(kindSlab)
		return nil, fmt.Errorf("cuda: slab of %s, with %s of %s free: %w", humanize.IBytes(size), humanize.IBytes(free), humanize.IBytes(total), err)
	}
	s.pointer = pointer
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Slab) prepare() error {
	page := make([]byte, memory.HeaderBytes)
	memory.Header{Identity: s.identity, SizeBytes: s.size}.Write(page)
	if err := s.WriteFrom(0, page); err != nil {
		return fmt.Errorf("cuda: write the header page: %w", err)
	}
	return nil
}

// The waits of AwaitSlab. They need not be shorter, because a failed attempt costs the driver 0.3 s
// with 100 GiB.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
)

// AwaitSlab is NewSlab for a restarted worker. While there is no room, because peers have not yet
// unmapped the slab of the last incarnation, it tries again until the context ends. If refused is
// not nil, it is called with the error of each failed attempt.
func (d *Device) AwaitSlab(ctx context.Context, c SlabConfig, refused func(error)) (*Slab, error) {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		s, err := d.NewSlab(c)
		if err == nil || !errors.Is(err, ErrOutOfMemory) {
			return s, err
		}
		if refused != nil {
			refused(err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w: gave up waiting for it: %w; is a peer slow to unmap the slab of a dead worker, or does another program use the device?", err, context.Cause(ctx))
		}
	}
}

// Size is part of memory.Space.
func (s *Slab) Size() uint64 { return s.size }

// Identity is part of memory.Space.
func (s *Slab) Identity() memory.Identity { return s.identity }

// Bytes is part of memory.Space. It returns nil, because the processor cannot address the memory.
func (s *Slab) Bytes(off, n uint64) []byte {
	s.mustContain(off, n)
	return nil
}

// FD is part of memory.Space. It returns -1, because another process maps the slab with Export.
func (s *Slab) FD() int { return -1 }

// Device returns the device with the memory.
func (s *Slab) Device() *Device { return s.device }

// Pointer returns the device address of [off, off+n).
// REQUIRES: as for Bytes.
func (s *Slab) Pointer(off, n uint64) uint64 {
	s.mustContain(off, n)
	return s.pointer + off
}

func (s *Slab) mustContain(off, n uint64) {
	if !(memory.Frame{Offset: off, Bytes: n}).Within(s.size) {
		panic(fmt.Sprintf("cuda: [%d, +%d) is outside of the slab of %d bytes", off, n, s.size))
	}
}

// ReadInto is part of memory.Reader. It blocks, with its thread, and is meant for small reads. Use
// Stream.Copy to pinned memory for large ones. It is not ordered with other streams: the writer of
// the bytes must be done.
func (s *Slab) ReadInto(off uint64, p []byte) error {
	if err := s.device.Health(); err != nil {
		return err
	}
	from := s.Pointer(off, uint64(len(p)))
	return s.device.check("cuMemcpyDtoHAsync", s.device.api.read(s.device.context, s.device.control, p, from))
}

// WriteFrom writes p at off. The rules of ReadInto apply.
func (s *Slab) WriteFrom(off uint64, p []byte) error {
	if err := s.device.Health(); err != nil {
		return err
	}
	to := s.Pointer(off, uint64(len(p)))
	return s.device.check("cuMemcpyHtoDAsync", s.device.api.write(s.device.context, s.device.control, to, p))
}

// Export returns the information that a peer or an executor needs to map the slab. On some systems
// the memory of a device cannot be shared (WSL, some virtual GPUs, Tegra): then the error matches
// ErrNotShared, and this process can still use the slab.
func (s *Slab) Export() (Export, error) {
	s.exporting.Lock()
	defer s.exporting.Unlock()
	if !s.exported {
		if err := s.device.Health(); err != nil {
			return Export{}, err
		}
		h, r := s.device.api.ipcExport(s.device.context, s.pointer)
		if err := s.device.check("cuIpcGetMemHandle", r); err != nil {
			return Export{}, fmt.Errorf("%w: %w", ErrNotShared, err)
		}
		s.handle, s.exported = h, true
	}
	return Export{Handle: s.handle, SizeBytes: s.size, Device: s.device.info.UUID, Identity: s.identity}, nil
}

// Close frees the memory, unless it was exported. If the owner frees memory while another process
// reads it, the behaviour is undefined, and this process cannot know whether all readers are done.
// So the memory of an exported slab is freed only when this process ends, which does not affect the
// mappings of other processes. Until then the device's context stays, too.
// REQUIRES: nothing that runs on the device uses the slab.
func (s *Slab) Close() error {
	if !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	defer s.device.forget(kindSlab)
	err := s.stage.close(s.device)
	s.exporting.Lock()
	defer s.exporting.Unlock()
	if s.exported {
		s.device.keepsContext.Store(true)
	} else {
		err = errors.Join(err, s.device.check("cuMemFree", s.device.api.free(s.device.context, s.pointer)))
	}
	if s.device.lost.Load() != nil {
		return nil
	}
	return err
}
