package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/ops"
)

// pointed is a memory space that the device can address: a slab, or the mapped slab of a peer.
type pointed interface {
	Pointer(off, n uint64) uint64
}

// far is a frame in memory that the device can address.
type far struct {
	space memory.Space
	frame memory.Frame
	at    uint64
}

// Address is part of ops.Memory.
func (f *far) Address() uint64 { return f.at }

// Size is part of ops.Memory.
func (f *far) Size() int64 { return int64(f.frame.Bytes) }

// Read is part of ops.Memory.
func (f *far) Read(offset int64, p []byte) error {
	r, ok := f.space.(memory.Reader)
	if !ok {
		return errors.New("cuda: the memory cannot be read by the processor")
	}
	return r.ReadInto(f.frame.Offset+uint64(offset), p)
}

// view is a wire.View.
func view(space memory.Space, f memory.Frame, t *ops.Tensor) {
	if p, ok := space.(pointed); ok {
		t.Far = &far{space, f, p.Pointer(f.Offset, f.Bytes)}
		return
	}
	t.Data = space.Bytes(f.Offset, f.Bytes)
}

// extent returns the range of bytes that a tensor's elements occupy, relative to the tensor's
// memory. REQUIRES: the tensor has elements.
func extent(t *ops.Tensor) (low, high int64) {
	low, high = t.Offset, t.Offset
	for i, stride := range t.Strides {
		last := (t.Shape[i] - 1) * stride
		low, high = low+min(0, last), high+max(0, last)
	}
	return low, high + t.DType.Size()
}

// onHost returns the tensor in the CPU's memory; it copies the elements if necessary.
func onHost(t *ops.Tensor) (*ops.Tensor, error) {
	if t.Far == nil {
		return t, nil
	}
	near := *t
	near.Far = nil
	if t.Len() == 0 {
		near.Data = []byte{}
		near.Offset = 0
		return &near, nil
	}
	low, high := extent(t)
	// Begin at an address that is aligned for all types, as NewTensor does.
	low -= low % 16
	room, err := ops.NewTensor(ops.Uint8, []int64{high - low})
	if err != nil {
		return nil, err
	}
	if err := t.Far.Read(low, room.Data); err != nil {
		return nil, err
	}
	near.Data, near.Offset = room.Data, t.Offset-low
	return &near, nil
}

// argsOnHost copies the tensors among the arguments to the CPU's memory.
func argsOnHost(args ops.Args) (ops.Args, error) {
	var copied func(v any) (any, error)
	copied = func(v any) (any, error) {
		switch v := v.(type) {
		case *ops.Tensor:
			return onHost(v)
		case []any:
			list := make([]any, len(v))
			for i, x := range v {
				var err error
				if list[i], err = copied(x); err != nil {
					return nil, err
				}
			}
			return list, nil
		case map[string]any:
			m := make(map[string]any, len(v))
			for k, x := range v {
				var err error
				if m[k], err = copied(x); err != nil {
					return nil, err
				}
			}
			return m, nil
		}
		return v, nil
	}
	var out ops.Args
	list, err := copied(args.Positional)
	if err != nil {
		return out, err
	}
	named, err := copied(args.Named)
	if err != nil {
		return out, err
	}
	out.Positional, _ = list.([]any)
	out.Named, _ = named.(map[string]any)
	return out, nil
}

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

// addressOfBytes returns the address of the first byte of a slice in the CPU's memory.
func addressOfBytes(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
