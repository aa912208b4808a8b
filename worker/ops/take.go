package ops

import (
	"context"
	"fmt"
	"slices"
	"unsafe"
)

func planTake(c *call) (*Planned, error) {
	x, indices := c.tensor("x"), c.tensor("indices")
	if indices.DType.kind() != intKind {
		return nil, c.bad("indices", "expected integers, got %s", describe(indices))
	}
	axis, err := c.axisOrAll(x)
	if err != nil {
		return nil, err
	}
	length, shape := x.Len(), indices.Shape
	if axis >= 0 {
		length, shape = x.Shape[axis], slices.Concat(x.Shape[:axis], indices.Shape, x.Shape[axis+1:])
	}
	w := &Taking{X: x, Indices: indices, Axis: axis, Outside: func(position, index int64) error {
		along := "x made flat"
		if axis >= 0 {
			along = fmt.Sprintf("axis %d", axis)
		}
		return Failure(c.op.Name, "index %d at position %d of indices is outside of %s with length %d", index, position, along, length)
	}}
	return single(x.DType, shape, w, func(ctx context.Context, out *Tensor) error { return takeInto(ctx, out, w) }), nil
}

// takeInto checks all indices, and then copies the elements.
func takeInto(ctx context.Context, out *Tensor, w *Taking) error {
	t, err := inType(ctx, w.Indices, Int64)
	if err != nil {
		return err
	}
	indices := elements[int64](t)
	// The elements of x are outer times length rows of inner elements.
	outer, length, inner := int64(1), w.X.Len(), int64(1)
	if w.Axis >= 0 {
		outer, _ = countElements(w.X.Shape[:w.Axis])
		length = w.X.Shape[w.Axis]
		inner, _ = countElements(w.X.Shape[w.Axis+1:])
	}
	for i, index := range indices {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if index < -length || index >= length {
			return w.Outside(int64(i), index)
		}
	}
	if out.Len() == 0 {
		return nil
	}
	x, err := inType(ctx, w.X, w.X.DType)
	if err != nil {
		return err
	}
	row := inner * x.DType.Size()
	to := out.base()
	for i := range outer {
		from := unsafe.Add(x.base(), i*length*row)
		for j, index := range indices {
			if j%checkEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			if index < 0 {
				index += length
			}
			copy(block[byte](unsafe.Add(to, (i*int64(len(indices))+int64(j))*row), int(row)), block[byte](unsafe.Add(from, index*row), int(row)))
		}
	}
	return nil
}
