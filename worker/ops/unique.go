package ops

import (
	"cmp"
	"context"
	"math"
	"slices"
)

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
	x, err := inType(ctx, w.X, w.X.DType)
	if err != nil {
		return nil, err
	}
	switch x.DType {
	case Bool, Uint8:
		return distinctOf(ctx, w, alloc, elements[uint8](x), func(x uint8) uint64 { return uint64(x) }, cmp.Compare, func(k uint64) uint8 { return uint8(k) })
	case Int32:
		return distinctOf(ctx, w, alloc, elements[int32](x), keyOfInt32, cmp.Compare, func(k uint32) int32 { return int32(k ^ 1<<31) })
	case Int64:
		return distinctOf(ctx, w, alloc, elements[int64](x), keyOfInt64, cmp.Compare, func(k uint64) int64 { return int64(k ^ 1<<63) })
	case Float32:
		return distinctOf(ctx, w, alloc, elements[float32](x), func(x float32) uint32 { return keyOfFloat32(x + 0) }, cmp.Compare, float32OfKey)
	case Float64:
		return distinctOf(ctx, w, alloc, elements[float64](x), func(x float64) uint64 { return keyOfFloat64(x + 0) }, cmp.Compare, float64OfKey)
	case Complex64:
		return distinctOf(ctx, w, alloc, elements[complex64](x), func(x complex64) pairKey { return distinctKey(complex128(x)) }, pairKey.compare,
			func(k pairKey) complex64 { return complex64(k.value()) })
	default:
		return distinctOf(ctx, w, alloc, elements[complex128](x), distinctKey, pairKey.compare, pairKey.value)
	}
}

// distinctKey returns equal keys for numbers that array.unique treats as equal. Adding 0 turns -0.0
// into 0.0.
func distinctKey(x complex128) pairKey {
	if real(x) != real(x) || imag(x) != imag(x) {
		return pairKey{math.MaxUint64, math.MaxUint64}
	}
	return pairKey{keyOfFloat64(real(x) + 0), keyOfFloat64(imag(x) + 0)}
}

// placed is a key with the index of its element.
type placed[K any] struct {
	key   K
	index int64
}

func distinctOf[T any, K comparable](ctx context.Context, w *Distinct, alloc Allocator, xs []T, key func(T) K, compare func(a, b K) int, value func(K) T) ([]*Tensor, error) {
	order := make([]placed[K], len(xs))
	for i, x := range xs {
		order[i] = placed[K]{key(x), int64(i)}
	}
	slices.SortFunc(order, func(a, b placed[K]) int { return compare(a.key, b.key) })
	many := int64(0)
	for i := range order {
		if i == 0 || order[i].key != order[i-1].key {
			many++
		}
	}
	values, err := allocate(alloc, w.X.DType, []int64{many})
	if err != nil {
		return nil, err
	}
	outs := []*Tensor{values}
	var inverse, counts []int64
	if w.Inverse {
		t, err := allocate(alloc, Int64, w.X.Shape)
		if err != nil {
			return nil, err
		}
		outs, inverse = append(outs, t), elements[int64](t)
	}
	if w.Counts {
		t, err := allocate(alloc, Int64, []int64{many})
		if err != nil {
			return nil, err
		}
		outs, counts = append(outs, t), elements[int64](t)
		clear(counts)
	}
	at := -1
	for i, o := range order {
		if i == 0 || o.key != order[i-1].key {
			at++
			elements[T](values)[at] = value(o.key)
		}
		if w.Inverse {
			inverse[o.index] = int64(at)
		}
		if w.Counts {
			counts[at]++
		}
	}
	return outs, nil
}
