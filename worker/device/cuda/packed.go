package cuda

import (
	"slices"

	"github.com/millrace/millrace/worker/ops"
)

// packed is a tensor for kernels that read its elements in C order and without gaps.
type packed struct {
	t *ops.Tensor
	// move copies the elements to scratch memory; nil: kernels read them in their place.
	move *move
}

// pack plans the copy of a tensor if its elements are not in C order, or do not begin at an address
// that is aligned for loads of 16 bytes. REQUIRES: the tensor has elements.
func (d *Device) pack(t *ops.Tensor) (packed, error) {
	if t.Contiguous() && (t.Far == nil || (t.Far.Address()+uint64(t.Offset))%16 == 0) {
		return packed{t: t}, nil
	}
	m, err := d.moveOf(t, 0)
	return packed{t, m}, err
}

// scratchBytes is the scratch memory that submission.packed takes.
func (p packed) scratchBytes(d *Device) uint64 {
	n := uploadBytes(p.t)
	if p.move != nil {
		return n + aligned(uint64(p.t.Bytes()))
	}
	return n + d.rereadBytes(p.t)
}

// packed returns the address of the elements. They may be read many times.
func (s *submission) packed(p packed) uint64 {
	if p.move == nil {
		return s.reread(p.t)
	}
	from, to := s.at(p.t), s.take(uint64(p.t.Bytes()))
	s.move(p.move, from, to)
	return to
}

// axisLast returns a view of t in which the axis is the last one, and the others are in order.
func axisLast(t *ops.Tensor, axis int) *ops.Tensor {
	view := *t
	view.Shape = append(slices.Delete(slices.Clone(t.Shape), axis, axis+1), t.Shape[axis])
	view.Strides = append(slices.Delete(slices.Clone(t.Strides), axis, axis+1), t.Strides[axis])
	return &view
}

// unpack plans the copy of elements in C order, in scratch memory, to the tensor t with gaps or in
// another order. It returns nil if t is contiguous: then the elements can be made in their place.
func (d *Device) unpack(t *ops.Tensor) (*move, error) {
	if t.Contiguous() {
		return nil, nil
	}
	return d.planMove(t.Shape, ops.ContiguousStrides(t.DType, t.Shape), t.Strides, t.DType.Size(), 0, t.Far.Address()+uint64(t.Offset))
}
