package ucx

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory/cuda"
)

// scratch is memory of the same kind as the slab, outside of it.
type scratch struct {
	host   []byte
	device *cuda.Scratch
}

func newScratch(slab *cuda.Slab) (s scratch, err error) {
	if slab != nil {
		s.device, err = slab.Device().NewScratch(proofs*proofBytes, 0)
		return s, err
	}
	s.host, err = unix.Mmap(-1, 0, proofs*proofBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	return s, err
}

func (s scratch) base() uint64 {
	if s.device != nil {
		return s.device.Pointer(0, 0)
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.host))))
}

// read returns the n bytes from offset at.
func (s scratch) read(at, n uint64) ([]byte, error) {
	if s.device == nil {
		return s.host[at : at+n], nil
	}
	p := make([]byte, n)
	return p, s.device.ReadInto(at, p)
}

// tidy gives the pages of a slot back to the system.
func (s scratch) tidy(at uint64) {
	if s.host != nil {
		_ = unix.Madvise(s.host[at:at+proofBytes], unix.MADV_DONTNEED) // it only frees memory
	}
}

func (s scratch) close() error {
	if s.device != nil {
		return s.device.Close()
	}
	return unix.Munmap(s.host)
}
