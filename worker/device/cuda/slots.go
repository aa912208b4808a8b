package cuda

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/memory"
)

// slots are pieces of pinned memory, one for each call in progress, each with a piece of device
// memory of the same size. Small inputs that came with the call are copied to the device through a
// slot. Kernels write small results directly to the pinned memory.
type slots struct {
	host   pages
	pinned *gpu.Pinned
	device *gpu.Scratch
	free   chan int // has room for all slots; never closed
	runs   [slotCount]run
}

const (
	slotCount = 32
	// slotBytes is the size of a slot. Inputs are placed from the front, results and flags at the
	// end.
	slotBytes = 64 << 10
	// resultBytes is the part at the end of a slot that is reserved for results and flags.
	resultBytes = 4 << 10
)

func newSlots(dev *gpu.Device) (*slots, error) {
	bytes, err := unix.Mmap(-1, 0, slotCount*slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("cuda: map %d bytes: %w", slotCount*slotBytes, err)
	}
	s := &slots{host: bytes, free: make(chan int, slotCount)}
	if s.pinned, err = dev.Register(s.host, gpu.RegisterConfig{}); err != nil {
		return nil, errors.Join(err, unix.Munmap(bytes))
	}
	if s.device, err = dev.NewScratch(slotCount*slotBytes, 0); err != nil {
		return nil, errors.Join(err, s.pinned.Close(), unix.Munmap(bytes))
	}
	for i := range slotCount {
		s.free <- i
	}
	return s, nil
}

func (s *slots) close() error {
	return errors.Join(s.device.Close(), s.pinned.Close(), unix.Munmap(s.host))
}

// pages is a memory.Space of ordinary memory pages.
type pages []byte

// Size is part of memory.Space.
func (p pages) Size() uint64 { return uint64(len(p)) }

// Identity is part of memory.Space.
func (pages) Identity() memory.Identity { return memory.Identity{} }

// Bytes is part of memory.Space.
func (p pages) Bytes(off, n uint64) []byte { return p[off : off+n : off+n] }

// FD is part of memory.Space.
func (pages) FD() int { return -1 }
