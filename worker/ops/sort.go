package ops

import (
	"cmp"
	"context"
	"slices"
	"unsafe"
)

func planSort(c *call) (*Planned, error) {
	x := c.tensor("x")
	axis, err := c.axisOrAll(x)
	if err != nil {
		return nil, err
	}
	shape := x.Shape
	if axis < 0 {
		shape = []int64{x.Len()}
	}
	w := &Sorting{X: x, Axis: axis, Descending: c.bool("descending")}
	return single(x.DType, shape, w, func(ctx context.Context, out *Tensor) error { return sortInto(ctx, out, w) }), nil
}

// sortInto sorts lanes of out in place. If the axis is not the last one, the lanes are gathered in
// working memory.
func sortInto(ctx context.Context, out *Tensor, w *Sorting) error {
	if out.Len() == 0 {
		return ctx.Err()
	}
	last := w.X.NDim() - 1
	if w.Axis < 0 || w.Axis == last {
		if err := copyInto(ctx, out, w.X); err != nil {
			return err
		}
		return sortLanes(ctx, out, w.Descending)
	}
	lanes, err := contiguousIn(ctx, axisLast(w.X, w.Axis), w.X.DType)
	if err != nil {
		return err
	}
	if err := sortLanes(ctx, lanes, w.Descending); err != nil {
		return err
	}
	return copyInto(ctx, out, axisFromLast(lanes, w.Axis))
}

// axisLast returns a view of t in which the axis is the last one, and the others are in order.
func axisLast(t *Tensor, axis int) *Tensor {
	view := *t
	view.Shape = append(without(t.Shape, axis), t.Shape[axis])
	view.Strides = append(without(t.Strides, axis), t.Strides[axis])
	return &view
}

// axisFromLast returns a view of t in which the last axis has moved to another place.
func axisFromLast(t *Tensor, axis int) *Tensor {
	view, last := *t, t.NDim()-1
	view.Shape = slices.Insert(slices.Clone(t.Shape[:last]), axis, t.Shape[last])
	view.Strides = slices.Insert(slices.Clone(t.Strides[:last]), axis, t.Strides[last])
	return &view
}

// sortLanes sorts the elements along the last axis of t, which is contiguous.
func sortLanes(ctx context.Context, t *Tensor, descending bool) error {
	length := t.Len()
	if t.NDim() > 0 {
		length = t.Shape[t.NDim()-1]
	}
	for i := range t.Len() / length {
		if err := ctx.Err(); err != nil {
			return err
		}
		sortLane(t.DType, unsafe.Add(t.base(), i*length*t.DType.Size()), int(length), descending)
	}
	return nil
}

func sortLane(dtype DType, p unsafe.Pointer, n int, descending bool) {
	switch dtype {
	case Bool, Uint8:
		slices.Sort(block[uint8](p, n))
	case Int32:
		slices.Sort(block[int32](p, n))
	case Int64:
		slices.Sort(block[int64](p, n))
	case Float32:
		sortFloats(block[float32](p, n), keyOfFloat32, float32OfKey)
	case Float64:
		sortFloats(block[float64](p, n), keyOfFloat64, float64OfKey)
	case Complex64:
		sortComplex(block[complex64](p, n))
	default:
		sortComplex(block[complex128](p, n))
	}
	if descending {
		reverse(dtype, p, n)
	}
}

func sortFloats[T floating, K cmp.Ordered](a []T, key func(T) K, value func(K) T) {
	keys := block[K](slicePointer(a), len(a))
	for i, x := range a {
		keys[i] = key(x)
	}
	slices.Sort(keys)
	for i, k := range keys {
		a[i] = value(k)
	}
}

func sortComplex[T complex_](a []T) {
	slices.SortFunc(a, func(x, y T) int {
		return compareComplex(complex128(x), complex128(y))
	})
	for i, x := range a {
		a[i] = T(keyOfComplex(complex128(x)).value())
	}
}

// compareComplex compares by the parts that are NaN, then by values, then by the signs of zeros.
func compareComplex(x, y complex128) int {
	k, l := keyOfComplex(x+0), keyOfComplex(y+0) // adding 0 turns -0.0 into 0.0
	if m, n := k.undefined(), l.undefined(); m != n {
		return m - n
	}
	if c := k.compare(l); c != 0 {
		return c
	}
	return keyOfComplex(x).compare(keyOfComplex(y))
}

func reverse(dtype DType, p unsafe.Pointer, n int) {
	switch dtype.Size() {
	case 1:
		slices.Reverse(block[uint8](p, n))
	case 4:
		slices.Reverse(block[uint32](p, n))
	case 8:
		slices.Reverse(block[uint64](p, n))
	default:
		slices.Reverse(block[complex128](p, n))
	}
}
