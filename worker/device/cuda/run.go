package cuda

import (
	"context"
	"fmt"

	gpu "github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/wire"
	"github.com/millrace/millrace/worker/ops"
)

// run is one call under way. There is one for each slot, which the next call in the slot
// uses again.
type run struct {
	device *Device
	op     string
	slot   int
	used   uint64 // bytes of the slot taken by inputs
	// sent is how many of them were submitted: small inputs go together, in front of
	// the first kernel that may read them.
	sent  uint64
	kept  uint64 // bytes at its end taken by results
	event *gpu.Event
	// ahead: what is submitted is not waited for. open: so it was. Then flag is what is to
	// be looked at afterwards, unless it is nil: negative is the error if a kernel has set
	// it. about is what errors are said to be of.
	ahead, open bool
	over        bool // somebody has seen that it is
	flag        []byte
	negative    func() error
	about       string
	submission  submission
	// release, if set, is called when the call is over: then its kernel's code may be unloaded.
	release func()

	planned *ops.Planned
	outs    []*ops.Tensor
	// made is the result, once its header was asked for.
	made device.Result
	out  wire.Encoder
	// first has the first of outs, most calls having one.
	first struct {
		list    [1]*ops.Tensor
		tensor  ops.Tensor
		strides [4]int64
		far     far
		small   small
	}
}

// flagged looks at a flag of the kernels when the submission is over.
func (r *run) flagged(flag []byte, negative func() error) error {
	if r.open {
		r.flag, r.negative = flag, negative
		return nil
	}
	return checkFlag(flag, negative)
}

func checkFlag(flag []byte, negative func() error) error {
	if negative != nil && le.Uint32(flag) != 0 {
		return negative()
	}
	return nil
}

func (r *run) explain(err error) error {
	if r.about == "" {
		return err
	}
	return fmt.Errorf("%s: %w", r.about, err)
}

// small is a result in a slot.
type small struct {
	at    uint64
	bytes []byte
}

// Address is part of ops.Memory.
func (s *small) Address() uint64 { return s.at }

// Size is part of ops.Memory.
func (s *small) Size() int64 { return int64(len(s.bytes)) }

// Read is part of ops.Memory.
func (s *small) Read(offset int64, p []byte) error { copy(p, s.bytes[offset:]); return nil }

func (d *Device) begin(ctx context.Context, op string) (*run, error) {
	select {
	case slot := <-d.slots.free:
		return d.beginIn(slot, op)
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", op, ctx.Err())
	}
}

// tryBegin is begin that returns nil if it would wait.
func (d *Device) tryBegin(op string) (*run, error) {
	select {
	case slot := <-d.slots.free:
		return d.beginIn(slot, op)
	default:
		return nil, nil
	}
}

func (d *Device) beginIn(slot int, op string) (*run, error) {
	r := &d.slots.runs[slot]
	r.device, r.op, r.slot = d, op, slot
	if r.event == nil {
		var err error
		if r.event, err = d.gpu.NewPolledEvent(); err != nil {
			d.slots.free <- slot
			return nil, err
		}
	}
	return r, nil
}

// Computing says whether kernels of an operation run, or are about to.
func (d *Device) Computing() bool { return len(d.slots.free) < cap(d.slots.free) }

// end gives the slot to others, and the run with it, which keeps nothing of the call.
func (r *run) end() {
	free, slot := r.device.slots.free, r.slot
	if r.release != nil {
		r.release()
	}
	*r = run{event: r.event}
	free <- slot
}

// pinned takes pinned memory at the end of the slot.
func (r *run) pinned(n uint64) (address uint64, bytes []byte) {
	r.kept += (n + 15) &^ 15
	if r.kept > resultBytes {
		panic(fmt.Sprintf("cuda: %s wants %d bytes of small results", r.op, r.kept))
	}
	at := uint64(r.slot+1)*slotBytes - r.kept
	return r.device.slots.pinned.Address(at, n), r.device.slots.host.Bytes(at, n)
}

// output takes memory for a result: what is small comes back inside the header.
func (r *run) output(i int, want *ops.Output) (*ops.Tensor, error) {
	n := want.Bytes()
	o := &r.first
	if i > 0 {
		if !r.out.Inline(n) {
			return r.out.Frame(want.DType, want.Shape)
		}
		at, bytes := r.pinned(uint64(n))
		return &ops.Tensor{DType: want.DType, Shape: want.Shape, Strides: ops.ContiguousStrides(want.DType, want.Shape), Far: &small{at, bytes}}, nil
	}
	o.tensor = ops.Tensor{DType: want.DType, Shape: want.Shape, Strides: ops.AppendStrides(o.strides[:0], want.DType, want.Shape)}
	if r.out.Inline(n) {
		o.small.at, o.small.bytes = r.pinned(uint64(n))
		o.tensor.Far = &o.small
		return &o.tensor, nil
	}
	f, err := r.out.Take(uint64(n), &o.tensor)
	if err != nil {
		return nil, err
	}
	o.far = far{r.device.slab, f, r.device.slab.Pointer(f.Offset, f.Bytes)}
	o.tensor.Far = &o.far
	return &o.tensor, nil
}

// takeSmall makes the small results tensors of the processor's memory, until the run
// ends.
func (r *run) takeSmall(outs []*ops.Tensor) {
	for _, t := range outs {
		if s, ok := t.Far.(*small); ok {
			t.Data, t.Far = s.bytes, nil
		}
	}
}
