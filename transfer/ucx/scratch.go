package ucx

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory/cuda"
)

// scratch is registered memory into which the reads of proofs go, in slots of proofBytes: host
// memory, or memory of a GPU outside of the slab.
type scratch struct {
	host   []byte
	device *cuda.Scratch
	// pinned says that devices know the pages of host.
	pinned bool
	// memory is the index of the registration.
	memory int32
}

// newHostScratch makes host memory. pinned says that its registration gives its pages to devices,
// which keep them: RDMA devices, or a GPU.
func newHostScratch(pinned bool) (s scratch, err error) {
	s.pinned = pinned
	s.host, err = unix.Mmap(-1, 0, proofs*proofBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	return s, err
}

func newDeviceScratch(device *cuda.Device) (s scratch, err error) {
	s.device, err = device.NewScratch(proofs*proofBytes, 0)
	return s, err
}

func (s *scratch) base() uint64 {
	if s.device != nil {
		return s.device.Pointer(0, 0)
	}
	return address(s.host)
}

// address returns the address of memory outside of Go's heap.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// read returns the n bytes from offset at.
func (s *scratch) read(at, n uint64) ([]byte, error) {
	if s.device == nil {
		return s.host[at : at+n], nil
	}
	p := make([]byte, n)
	return p, s.device.ReadInto(at, p)
}

// tidy gives the pages of a slot back to the system. Not if devices know them: they would go on to
// write to pages that are not in this memory any more.
func (s *scratch) tidy(at uint64) {
	if s.host != nil && !s.pinned {
		_ = unix.Madvise(s.host[at:at+proofBytes], unix.MADV_DONTNEED) // it only frees memory
	}
}

func (s *scratch) close() error {
	if s.device != nil {
		return s.device.Close()
	}
	if s.host == nil {
		return nil
	}
	return unix.Munmap(s.host)
}
