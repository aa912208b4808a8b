package ops

import (
	"context"
	"math"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

func uniqueOps() []*Op {
	return []*Op{{
		Name: "array.unique",
		Doc:  "Finds the distinct values of a tensor.",
		Details: "0.0 and -0.0 are equal: the result has 0.0. All NaNs are equal, and complex numbers with NaN in either part, too: the " +
			"result has one of them.",
		Params: []Param{
			{Name: "x", Type: TensorType, Required: true, Doc: "of any dtype and shape"},
			{Name: "inverse", Type: BoolType, Default: false, Doc: "return the index of the value of each element, too"},
			{Name: "counts", Type: BoolType, Default: false, Doc: "return how often each value occurs, too"},
		},
		Result: "a tensor with one axis: the values, in the order of `array.sort` and of the dtype of `x`. With `inverse` or `counts`, a list: " +
			"the values; with `inverse`, an int64 tensor of the shape of `x`; with `counts`, an int64 tensor as long as the values",
		Libraries: []string{"nvrtc"},
		Example:   Example{[]string{`{"key": "unique", "op": "array.unique", "args": [[3, 1, 3]], "kwargs": {"inverse": true, "counts": true}}`}, "[[1, 3], [1, 0, 1], [1, 2]]"},
		plan:      planUnique,
	}}
}

func planUnique(c *call) (*Planned, error) {
	w := &Distinct{X: c.tensor("x"), Inverse: c.bool("inverse"), Counts: c.bool("counts")}
	p := &Planned{Late: true, Work: w, Result: onlyOf, runLate: func(ctx context.Context, alloc Allocator) ([]*Tensor, error) {
		return distinct(ctx, w, alloc)
	}}
	if w.Inverse || w.Counts {
		p.Result = listOf
	}
	return p, nil
}

// distinct returns the values, and the inverse and the counts if they are wanted.
func distinct(ctx context.Context, w *Distinct, alloc Allocator) ([]*Tensor, error) {
	d := distinction{ctx: ctx, w: w, alloc: alloc}
	x, err := inType(ctx, w.X, w.X.DType)
	if err != nil {
		return nil, err
	}
	switch x.DType {
	case Bool, Uint8:
		return d.bytes(elements[uint8](x))
	case Int32, Float32:
		return distinctReal[int32](&d, x)
	case Int64, Float64:
		return distinctReal[int64](&d, x)
	case Complex64:
		return distinctComplex(&d, elements[complex64](x))
	default:
		return distinctComplex(&d, elements[complex128](x))
	}
}

// distinction is a call of array.unique.
type distinction struct {
	ctx   context.Context //nolint:containedctx // it lives as long as the call
	w     *Distinct
	alloc Allocator
	// inverse and counts are nil unless they are wanted.
	inverse, counts []int64
}

// outputs allocates the outputs for a number of values. The counts are zero.
func (d *distinction) outputs(values int) ([]*Tensor, error) {
	many := []int64{int64(values)}
	t, err := allocate(d.alloc, d.w.X.DType, many)
	if err != nil {
		return nil, err
	}
	outs := []*Tensor{t}
	more := func(wanted bool, shape []int64) []int64 {
		if !wanted || err != nil {
			return nil
		}
		if t, err = allocate(d.alloc, Int64, shape); err != nil {
			return nil
		}
		outs = append(outs, t)
		return elements[int64](t)
	}
	d.inverse = more(d.w.Inverse, d.w.X.Shape)
	d.counts = more(d.w.Counts, many)
	clear(d.counts)
	return outs, err
}

func (d *distinction) bytes(xs []uint8) ([]*Tensor, error) {
	counts, err := countBytes(d.ctx, xs)
	if err != nil {
		return nil, err
	}
	var ranks [256]int64
	var values []uint8
	for b, n := range counts {
		if n > 0 {
			ranks[b] = int64(len(values))
			values = append(values, uint8(b))
		}
	}
	outs, err := d.outputs(len(values))
	if err != nil {
		return nil, err
	}
	copy(elements[uint8](outs[0]), values)
	for i, b := range values {
		if d.w.Counts {
			d.counts[i] = int64(counts[b])
		}
	}
	if !d.w.Inverse {
		return outs, nil
	}
	return outs, inPieces(d.ctx, len(xs), func(i, n int) {
		for k, b := range xs[i : i+n] {
			d.inverse[i+k] = ranks[b]
		}
	})
}

// placed is a key with the index of its element.
type placed[K any] struct {
	key   K
	index int64
}

func distinctReal[K keyType](d *distinction, x *Tensor) ([]*Tensor, error) {
	n, size := int(x.Len()), x.DType.Size()
	keys, err := scratchElements[K](d.ctx, n)
	if err != nil {
		return nil, err
	}
	if err := inPieces(d.ctx, n, func(i, n int) {
		keysOf(x.DType, n, slicePointer(keys[i:]), unsafe.Add(slicePointer(x.Data), x.Offset+int64(i)*size), true, 0)
	}); err != nil {
		return nil, err
	}
	if d.w.Inverse {
		order, err := placedKeys(d.ctx, keys)
		if err != nil {
			return nil, err
		}
		return ranked(d, order, func(values, keys []K) { valuesOf(x.DType, len(keys), slicePointer(values), slicePointer(keys), 0) })
	}
	other, err := scratchElements[K](d.ctx, n)
	if err != nil {
		return nil, err
	}
	if err := sortKeys(d.ctx, keys, other); err != nil {
		return nil, err
	}
	return distinctSorted(d, x.DType, keys)
}

// placedKeys returns the keys in order, with the indices of their elements.
func placedKeys[K keyType](ctx context.Context, keys []K) ([]placed[K], error) {
	order, err := scratchElements[placed[K]](ctx, len(keys))
	if err != nil {
		return nil, err
	}
	other, err := scratchElements[placed[K]](ctx, len(keys))
	if err != nil {
		return nil, err
	}
	if err := inPieces(ctx, len(keys), func(from, n int) {
		for i := from; i < from+n; i++ {
			order[i] = placed[K]{keys[i], int64(i)}
		}
	}); err != nil {
		return nil, err
	}
	return order, radixSort(ctx, order, other, func(p placed[K]) K { return p.key })
}

// distinctSorted returns the distinct ones of sorted keys as values, and the counts if they are
// wanted. The pieces first count their values; so each knows the place of its own.
func distinctSorted[K keyType](d *distinction, dtype DType, keys []K) ([]*Tensor, error) {
	starts := make([]int, pieces(len(keys), sortPiece)+1)
	// part returns the keys of a piece, without those that are equal to the last key before it.
	part := func(i int) []K {
		from, to := i, min(i+sortPiece, len(keys))
		for from > 0 && from < to && keys[from] == keys[from-1] {
			from++
		}
		return keys[from:to]
	}
	if err := inPieces(d.ctx, len(keys), func(i, _ int) {
		starts[i/sortPiece+1] = compact(nil, part(i))
	}); err != nil {
		return nil, err
	}
	for i := range starts[1:] {
		starts[i+1] += starts[i]
	}
	many := starts[len(starts)-1]
	outs, err := d.outputs(many)
	if err != nil {
		return nil, err
	}
	values := elements[K](outs[0])
	if err := inPieces(d.ctx, len(keys), func(i, _ int) {
		to := values[starts[i/sortPiece]:starts[i/sortPiece+1]]
		compact(to, part(i))
		valuesOf(dtype, len(to), slicePointer(to), slicePointer(to), 0)
	}); err != nil || !d.w.Counts {
		return outs, err
	}
	at := -1
	for i, k := range keys {
		if i%checkEvery == 0 && d.ctx.Err() != nil {
			return nil, d.ctx.Err()
		}
		if i == 0 || k != keys[i-1] {
			at++
		}
		d.counts[at]++
	}
	return outs, nil
}

// compact copies the keys that differ from the one before them to to, unless that is nil, and
// returns their number.
func compact[K keyType](to, keys []K) (many int) {
	if set := simd.Best(); set.Sorts() {
		return set.Distinct(isWide[K](), len(keys), slicePointer(to), slicePointer(keys))
	}
	for i, k := range keys {
		if i == 0 || k != keys[i-1] {
			if to != nil {
				to[many] = k
			}
			many++
		}
	}
	return many
}

// ranked returns the outputs for keys in order, with the indices of their elements. store converts
// keys to values, which have the same size.
func ranked[K comparable, T any](d *distinction, order []placed[K], store func(values []T, keys []K)) ([]*Tensor, error) {
	many := 0
	for i := range order {
		if i%checkEvery == 0 && d.ctx.Err() != nil {
			return nil, d.ctx.Err()
		}
		if i == 0 || order[i].key != order[i-1].key {
			many++
		}
	}
	outs, err := d.outputs(many)
	if err != nil {
		return nil, err
	}
	values, at := elements[T](outs[0]), -1
	for i := range order {
		if i%checkEvery == 0 && d.ctx.Err() != nil {
			return nil, d.ctx.Err()
		}
		if i == 0 || order[i].key != order[i-1].key {
			at++
			store(values[at:at+1], []K{order[i].key})
		}
		if d.inverse != nil {
			d.inverse[order[i].index] = int64(at)
		}
		if d.counts != nil {
			d.counts[at]++
		}
	}
	return outs, nil
}

func distinctComplex[T complex_](d *distinction, xs []T) ([]*Tensor, error) {
	order, err := scratchElements[placed[pairKey]](d.ctx, len(xs))
	if err != nil {
		return nil, err
	}
	other, err := scratchElements[placed[pairKey]](d.ctx, len(xs))
	if err != nil {
		return nil, err
	}
	if err := inPieces(d.ctx, len(xs), func(from, n int) {
		for i := from; i < from+n; i++ {
			order[i] = placed[pairKey]{distinctKey(complex128(xs[i])), int64(i)}
		}
	}); err != nil {
		return nil, err
	}
	if err := mergeSort(d.ctx, order, other, func(a, b placed[pairKey]) int { return a.key.compare(b.key) }); err != nil {
		return nil, err
	}
	return ranked(d, order, func(values []T, keys []pairKey) { values[0] = T(keys[0].value()) })
}

// distinctKey returns equal keys for numbers that array.unique treats as equal. Adding 0 turns -0.0
// into 0.0.
func distinctKey(x complex128) pairKey {
	if real(x) != real(x) || imag(x) != imag(x) {
		return pairKey{math.MaxInt64, math.MaxInt64}
	}
	return keyOfComplex(x + 0)
}
