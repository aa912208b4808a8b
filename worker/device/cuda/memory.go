package cuda

import (
	"errors"
	"unsafe"

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
		case *ops.Table:
			near := *v
			near.Frames = make([]*ops.Tensor, len(v.Frames))
			for i, f := range v.Frames {
				var err error
				if near.Frames[i], err = onHost(f); err != nil {
					return nil, err
				}
			}
			return &near, nil
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

// addressOfBytes returns the address of the first byte of a slice in the CPU's memory.
func addressOfBytes(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
