package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Scratch is memory beside the slab, for the workspace of kernels and libraries, tables and checks.
// One part is on the device, and one in pinned host memory, which the processor and kernels
// address.
type Scratch struct {
	device  *Device
	pointer uint64
	bytes   uint64
	host    []byte
	mapped  uint64 // the address of host for kernels
	closed  atomic.Bool
}

// NewScratch allocates scratch memory. A size of 0 means no such part. The host size is rounded up
// to pages.
func (d *Device) NewScratch(deviceBytes, hostBytes uint64) (*Scratch, error) {
	if err := d.Health(); err != nil {
		return nil, err
	}
	if err := d.adopt(kindScratch); err != nil {
		return nil, err
	}
	s := &Scratch{device: d, bytes: deviceBytes}
	if err := s.allocate(hostBytes); err != nil {
		return nil, errors.Join(fmt.Errorf("cuda: %d bytes beside the slab, %d of them pinned: %w", deviceBytes+hostBytes, hostBytes, err), s.Close())
	}
	return s, nil
}

func (s *Scratch) allocate(hostBytes uint64) error {
	d := s.device
	if s.bytes > 0 {
		pointer, r := d.api.alloc(d.context, s.bytes, 0)
		if err := d.check("cuMemAlloc", r); err != nil {
			return err
		}
		s.pointer = pointer
	}
	if hostBytes == 0 {
		return nil
	}
	page := uint64(unix.Getpagesize())
	host, err := unix.Mmap(-1, 0, int((hostBytes+page-1)/page*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	if err := d.check("cuMemHostRegister", d.api.register(d.context, host, false)); err != nil {
		return errors.Join(err, unix.Munmap(host))
	}
	s.host = host
	mapped, r := d.api.hostPointer(d.context, host)
	s.mapped = mapped
	return d.check("cuMemHostGetDevicePointer", r)
}

// Size returns the size of the device part. It is 0 for a nil Scratch.
func (s *Scratch) Size() uint64 {
	if s == nil {
		return 0
	}
	return s.bytes
}

// Pointer returns the device address of [off, off+n).
// REQUIRES: the range lies within the device part.
func (s *Scratch) Pointer(off, n uint64) uint64 {
	if n > s.bytes || off > s.bytes-n {
		panic(fmt.Sprintf("cuda: [%d, +%d) is outside of the scratch memory of %d bytes", off, n, s.bytes))
	}
	return s.pointer + off
}

// ReadInto copies from the device part, and waits until the copy is done.
func (s *Scratch) ReadInto(off uint64, p []byte) error {
	if err := s.device.Health(); err != nil {
		return err
	}
	d := s.device
	return d.check("cuMemcpyDtoHAsync", d.api.read(d.context, d.control, p, s.Pointer(off, uint64(len(p)))))
}

// Host returns the pinned part, nil if there is none.
func (s *Scratch) Host() []byte { return s.host }

// Mapped returns the address at which kernels find the byte at off of the pinned part.
// REQUIRES: off lies within the pinned part.
func (s *Scratch) Mapped(off uint64) uint64 { return s.mapped + off }

// Close frees the memory. A nil Scratch has nothing to free.
// REQUIRES: nothing that runs on the device uses it.
func (s *Scratch) Close() error {
	if s == nil || !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	d := s.device
	defer d.forget(kindScratch)
	var errs []error
	undo := func(call string, r result) {
		if err := d.check(call, r); err != nil && d.lost.Load() == nil {
			errs = append(errs, err)
		}
	}
	if s.host != nil {
		undo("cuMemHostUnregister", d.api.unregister(d.context, s.host))
		errs = append(errs, unix.Munmap(s.host))
	}
	if s.pointer != 0 {
		undo("cuMemFree", d.api.free(d.context, s.pointer))
	}
	return errors.Join(errs...)
}
