package cuda

import (
	"context"
	"fmt"

	gpu "github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/wire"
	"github.com/millrace/millrace/worker/ops"
)

// run is the state of one call in progress. There is one run for each slot; the next call in the
// slot uses it again.
type run struct {
	device *Device
	op     string
	slot   int
	used   uint64 // bytes of the slot that inputs take
	// sent is how many of these bytes were submitted. The small inputs of a call are copied
	// together, before the first kernel that may read them.
	sent  uint64
	kept  uint64 // bytes at the end of the slot that results take
	event *gpu.Event
	// If ahead is set, submit does not wait for the end of the submission. It sets open instead,
	// and Finish waits. Then Finish checks flag, unless it is nil: if a kernel has set it, the
	// error is that of negative. about is the prefix of errors of the call; "" adds none.
	ahead, open bool
	over        bool // a poll has found that the call has ended
	flag        []byte
	negative    func() error
	about       string
	submission  submission
	// release, if set, is called when the call has ended: after it the code of the call's kernel
	// may be unloaded.
	release func()
	// generation is that in which the run began.
	generation *generation

	planned *ops.Planned
	outs    []*ops.Tensor
	// frames provides memory for what only a part of the call reads; nil: there is none.
	frames device.Scratch
	// made is the result, if Header has computed it.
	made device.Result
	out  wire.Encoder
	// first has room for the first of outs, since most calls have only one.
	first struct {
		list    [1]*ops.Tensor
		tensor  ops.Tensor
		strides [4]int64
		far     far
		small   small
	}
}

// flagged checks a flag of the kernels when the submission is over. If the submission is still
// open, it leaves the check to Finish.
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

// small is a small result, in the pinned memory of a slot.
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

// tryBegin is begin, but returns nil if it would have to wait.
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
	r.generation = d.code.begin()
	return r, nil
}

// Computing reports whether a call is in progress: kernels of it run or will be submitted.
func (d *Device) Computing() bool { return len(d.slots.free) < cap(d.slots.free) }

// end releases the slot together with the run, which keeps nothing of the call.
func (r *run) end() {
	free, slot := r.device.slots.free, r.slot
	if r.release != nil {
		r.release()
	}
	r.device.code.end(r.generation)
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

// output allocates the memory for a result. A small result lies in the slot and is returned in the
// header.
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

// takeSmall changes the small results to tensors in the CPU's memory. They are valid until the run
// ends.
func (r *run) takeSmall(outs []*ops.Tensor) {
	for _, t := range outs {
		if s, ok := t.Far.(*small); ok {
			t.Data, t.Far = s.bytes, nil
		}
	}
}
