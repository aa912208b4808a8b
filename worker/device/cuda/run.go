package cuda

import (
	"context"
	"fmt"

	gpu "github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/device/wire"
	"github.com/millrace/millrace/worker/ops"
)

// run is one call under way.
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
	// ahead: what is submitted is not waited for. open: so it was. Then check is what is to
	// be looked at afterwards, unless it is nil, and about what errors are said to be of.
	ahead, open bool
	check       func() error
	about       string
}

// then looks at what a submission has left, when it is over.
func (r *run) then(check func() error) error {
	if r.open {
		r.check = check
		return nil
	}
	return check()
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
	r := &run{device: d, op: op, slot: slot}
	d.mu.Lock()
	if n := len(d.idle); n > 0 {
		r.event, d.idle = d.idle[n-1], d.idle[:n-1]
	}
	d.mu.Unlock()
	if r.event == nil {
		var err error
		if r.event, err = d.gpu.NewPolledEvent(); err != nil {
			d.slots.free <- r.slot
			return nil, err
		}
	}
	return r, nil
}

// Computing says whether kernels of an operation run, or are about to.
func (d *Device) Computing() bool { return len(d.slots.free) < cap(d.slots.free) }

func (r *run) end() {
	d := r.device
	d.mu.Lock()
	d.idle = append(d.idle, r.event)
	d.mu.Unlock()
	d.slots.free <- r.slot
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
func (r *run) output(e *wire.Encoder, want ops.Output) (*ops.Tensor, error) {
	n := want.Bytes()
	if !e.Inline(n) {
		return e.Frame(want.DType, want.Shape)
	}
	t := &ops.Tensor{DType: want.DType, Shape: want.Shape, Strides: ops.ContiguousStrides(want.DType, want.Shape)}
	at, bytes := r.pinned(uint64(n))
	t.Far = &small{at, bytes}
	return t, nil
}

// takeSmall makes the small results tensors of the heap.
func (r *run) takeSmall(outs []*ops.Tensor) {
	for _, t := range outs {
		if s, ok := t.Far.(*small); ok {
			t.Data, t.Far = append([]byte{}, s.bytes...), nil
		}
	}
}
