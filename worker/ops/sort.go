package ops

import (
	"context"
	"runtime"
	"slices"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

func sortOps() []*Op {
	return []*Op{{
		Name: "array.sort",
		Doc:  "Sorts the elements along an axis.",
		Details: "The order of floats is that of their values, -0.0 is before 0.0, and NaN is last; each NaN of the result has the " +
			"same bits. Complex numbers are ordered by their real parts, then by their imaginary parts, then by the signs of zeros. " +
			"Those with NaN are last: those with NaN in the imaginary part only, then in the real part only, then in both.",
		Params: []Param{
			{Name: "x", Type: TensorType, Required: true, Doc: "of any dtype and shape"},
			{Name: "axis", Type: IntType, Default: int64(-1), Null: true, Doc: "the axis to sort along; a negative one counts from the end. Null: `x` is made flat first"},
			{Name: "descending", Type: BoolType, Default: false, Doc: "in the opposite order: the largest first, and NaN before it"},
		},
		Result:    "a tensor of the dtype of `x`, and of its shape unless `axis` is null",
		Errors:    []string{"INVALID_ARGUMENT if `x` has no axes and `axis` is not null"},
		Libraries: []string{"nvrtc"},
		Example:   Example{[]string{`{"key": "sort", "op": "array.sort", "args": [[[3, 1, 2], [9, 7, 8]]]}`}, "[[1, 2, 3], [7, 8, 9]]"},
		plan:      planSort,
	}}
}

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

// sortInto sorts lanes of out. If the axis is not the last one, the lanes are gathered in working
// memory.
func sortInto(ctx context.Context, out *Tensor, w *Sorting) error {
	if out.Len() == 0 {
		return ctx.Err()
	}
	last := w.X.NDim() - 1
	if w.Axis < 0 || w.Axis == last {
		if w.X.Contiguous() {
			return sortLanes(ctx, out, w.X, w.Descending)
		}
		if err := copyInto(ctx, out, w.X); err != nil {
			return err
		}
		return sortLanes(ctx, out, out, w.Descending)
	}
	lanes, err := contiguousIn(ctx, axisLast(w.X, w.Axis), w.X.DType)
	if err != nil {
		return err
	}
	if err := sortLanes(ctx, lanes, lanes, w.Descending); err != nil {
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

// sortPiece is the number of elements that a piece of a sort has, about. It takes less than a
// millisecond.
const sortPiece = 1 << 15

// sortLanes sorts the elements along the last axis of from into to. Both are contiguous, and have
// the same number of elements; they may be the same.
func sortLanes(ctx context.Context, to, from *Tensor, descending bool) error {
	length := int(to.Shape[to.NDim()-1])
	switch to.DType {
	case Int32, Float32:
		return sortReal[int32](ctx, to, from, length, descending)
	case Int64, Float64:
		return sortReal[int64](ctx, to, from, length, descending)
	case Bool, Uint8:
		return sortBytes(ctx, elements[uint8](to), elements[uint8](from), length, descending)
	case Complex64:
		return sortComplex(ctx, elements[complex64](to), elements[complex64](from), length, descending)
	default:
		return sortComplex(ctx, elements[complex128](to), elements[complex128](from), length, descending)
	}
}

// sortReal sorts lanes by their keys: several lanes in each piece, or if a lane is long, in several
// pieces.
func sortReal[K keyType](ctx context.Context, to, from *Tensor, length int, descending bool) error {
	keys, size := elements[K](to), to.DType.Size()
	flip := int64(0)
	if descending {
		flip = -1
	}
	pool := &scratchPool{ctx: ctx}
	if length > 2*sortPiece {
		room, err := pool.take(int64(length) * size)
		if err != nil {
			return err
		}
		if err := inPieces(ctx, len(keys), func(i, n int) {
			keysOf(to.DType, n, slicePointer(keys[i:]), unsafe.Add(from.base(), int64(i)*size), false, flip)
		}); err != nil {
			return err
		}
		for i := 0; i < len(keys); i += length {
			if err := sortKeys(ctx, keys[i:i+length], block[K](slicePointer(room), length)); err != nil {
				return err
			}
		}
		return inPieces(ctx, len(keys), func(i, n int) {
			valuesOf(to.DType, n, slicePointer(keys[i:]), slicePointer(keys[i:]), flip)
		})
	}
	each := max(1, sortPiece/length) * length
	return eachPiece(ctx, len(keys), each, func(first, end int) error {
		room, err := pool.take(int64(length) * size)
		if err != nil {
			return err
		}
		defer pool.put(room)
		lanes := keys[first:end]
		keysOf(to.DType, len(lanes), slicePointer(lanes), unsafe.Add(from.base(), int64(first)*size), false, flip)
		for i := 0; i < len(lanes); i += length {
			sortFew(lanes[i:i+length], block[K](slicePointer(room), length))
		}
		valuesOf(to.DType, len(lanes), slicePointer(lanes), slicePointer(lanes), flip)
		return nil
	})
}

// inPieces calls f for parts of n elements, each from i on and with a number of them.
func inPieces(ctx context.Context, n int, f func(i, n int)) error {
	return eachPiece(ctx, n, sortPiece, func(from, to int) error {
		f(from, to-from)
		return nil
	})
}

func isWide[K keyType]() bool { return unsafe.Sizeof(K(0)) == 8 }

func segmentOf[K keyType](keys, other []K) simd.Segment {
	return simd.NewSegment(slicePointer(keys), slicePointer(other), len(keys))
}

// sortFew sorts keys at once; other is working memory of the same length.
func sortFew[K keyType](keys, other []K) {
	if set := simd.Best(); set.Sorts() {
		s := segmentOf(keys, other)
		set.Sort(isWide[K](), &s)
		runtime.KeepAlive(keys)
		runtime.KeepAlive(other)
		return
	}
	if len(keys) < 256 {
		slices.Sort(keys)
		return
	}
	// The context of the call is checked between pieces.
	_ = radixSort(context.Background(), keys, other, func(k K) K { return k })
}

// sortKeys sorts keys; other is working memory of the same length. It splits them by pivots until
// there are enough pieces, whose number depends on that of the keys alone.
func sortKeys[K keyType](ctx context.Context, keys, other []K) error {
	set, wide := simd.Best(), isWide[K]()
	if !set.Sorts() {
		return radixSort(ctx, keys, other, func(k K) K { return k })
	}
	limit := int64(min(max(2*sortPiece, len(keys)/16), 1<<22))
	segments := []simd.Segment{segmentOf(keys, other)}
	long := func(s *simd.Segment) bool { return s.N > limit && s.Depth > 0 }
	for slices.ContainsFunc(segments, func(s simd.Segment) bool { return long(&s) }) {
		more := make([]simd.Segment, len(segments))
		if err := parallel(ctx, len(segments), func(i int) error {
			if long(&segments[i]) {
				set.Split(wide, &segments[i], &more[i])
			}
			return nil
		}); err != nil {
			return err
		}
		segments = slices.DeleteFunc(append(segments, more...), func(s simd.Segment) bool { return s.N == 0 })
	}
	err := parallel(ctx, len(segments), func(i int) error {
		set.Sort(wide, &segments[i])
		return nil
	})
	runtime.KeepAlive(keys)
	runtime.KeepAlive(other)
	return err
}

// digitBits is the number of bits that a pass of a radix sort looks at.
const digitBits = 11

// radixSort sorts elements by their keys, from the lowest digit to the highest; equal keys stay in
// order. other is working memory of the same length.
func radixSort[K keyType, T any](ctx context.Context, a, other []T, key func(T) K) error {
	bits := 8 * int(unsafe.Sizeof(K(0)))
	from, to := a, other
	for shift := 0; shift < bits; shift += digitBits {
		// The sign inverts the order of the highest digit.
		flip := uint64(0)
		if shift+digitBits >= bits {
			flip = 1 << (bits - 1 - shift)
		}
		mask := uint64(1)<<min(digitBits, bits-shift) - 1
		digit := func(x T) uint64 { return uint64(key(x))>>shift&mask ^ flip }
		var starts [1<<digitBits + 1]int
		for i := 0; i < len(from); i += checkEvery {
			if err := ctx.Err(); err != nil {
				return err
			}
			for _, x := range from[i:min(i+checkEvery, len(from))] {
				starts[digit(x)+1]++
			}
		}
		if len(from) == 0 || starts[digit(from[0])+1] == len(from) {
			continue // all have the same digit
		}
		for d := range mask {
			starts[d+1] += starts[d]
		}
		for i := 0; i < len(from); i += checkEvery {
			if err := ctx.Err(); err != nil {
				return err
			}
			for _, x := range from[i:min(i+checkEvery, len(from))] {
				d := digit(x)
				to[starts[d]] = x
				starts[d]++
			}
		}
		from, to = to, from
	}
	if len(a) > 0 && &from[0] != &a[0] {
		copy(a, from)
	}
	return nil
}

// sortBytes counts how often each byte occurs.
func sortBytes(ctx context.Context, to, from []uint8, length int, descending bool) error {
	each := max(1, sortPiece/length) * length
	return eachPiece(ctx, len(to), each, func(first, end int) error {
		for lane := first; lane < end; lane += length {
			counts, err := countBytes(ctx, from[lane:lane+length])
			if err != nil {
				return err
			}
			rest := to[lane : lane+length]
			for i := range counts {
				b := i
				if descending {
					b = len(counts) - 1 - i
				}
				run := rest[:counts[b]]
				for i := range run {
					run[i] = uint8(b)
				}
				rest = rest[counts[b]:]
			}
		}
		return nil
	})
}

// countBytes returns how often each byte occurs. Neighbours are counted apart, since equal ones
// would wait for each other.
func countBytes(ctx context.Context, a []uint8) (total [256]int, err error) {
	var counts [4][256]int
	for i := 0; i < len(a); i += checkEvery {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		part := a[i:min(i+checkEvery, len(a))]
		for ; len(part) >= 4; part = part[4:] {
			counts[0][part[0]]++
			counts[1][part[1]]++
			counts[2][part[2]]++
			counts[3][part[3]]++
		}
		for _, b := range part {
			counts[0][b]++
		}
	}
	for i := range total {
		total[i] = counts[0][i] + counts[1][i] + counts[2][i] + counts[3][i]
	}
	return total, nil
}

func sortComplex[T complex_](ctx context.Context, to, from []T, length int, descending bool) error {
	copy(to, from)
	room, err := scratchBytes(ctx, int64(length)*int64(unsafe.Sizeof(from[0])))
	if err != nil {
		return err
	}
	compare := func(x, y T) int { return compareComplex(complex128(x), complex128(y)) }
	for i := 0; i < len(to); i += length {
		lane := to[i : i+length]
		if err := mergeSort(ctx, lane, block[T](slicePointer(room), length), compare); err != nil {
			return err
		}
		for i, x := range lane {
			lane[i] = T(keyOfComplex(complex128(x)).value())
		}
		if descending {
			slices.Reverse(lane)
		}
	}
	return nil
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

// mergeSort sorts blocks, and then merges neighbours until there is one block. other is working
// memory of the same length. The order of equal elements is arbitrary.
func mergeSort[T any](ctx context.Context, a, other []T, compare func(a, b T) int) error {
	const least = sortPiece / 4
	if err := eachPiece(ctx, len(a), least, func(first, end int) error {
		slices.SortFunc(a[first:end], compare)
		return nil
	}); err != nil {
		return err
	}
	from, to := a, other
	for width := least; width < len(a); width *= 2 {
		if err := parallel(ctx, pieces(len(a), 2*width), func(i int) error {
			low, middle, high := 2*i*width, min((2*i+1)*width, len(a)), min((2*i+2)*width, len(a))
			return merge(ctx, to[low:high], from[low:middle], from[middle:high], compare)
		}); err != nil {
			return err
		}
		from, to = to, from
	}
	if len(a) > 0 && &from[0] != &a[0] {
		copy(a, from)
	}
	return nil
}

func merge[T any](ctx context.Context, to, a, b []T, compare func(a, b T) int) error {
	for i := range to {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if len(b) == 0 || len(a) > 0 && compare(a[0], b[0]) <= 0 {
			to[i], a = a[0], a[1:]
		} else {
			to[i], b = b[0], b[1:]
		}
	}
	return nil
}
