package ops

import (
	"cmp"
	"math"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

// orderOps returns the operations that order and select elements.
func orderOps() []*Op {
	return []*Op{
		{
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
		},
		{
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
		},
		{
			Name: "array.take",
			Doc:  "Selects elements along an axis by their indices.",
			Params: []Param{
				{Name: "x", Type: TensorType, Required: true, Doc: "of any dtype and shape"},
				{Name: "indices", Type: TensorType, Required: true, Doc: "integers, of any shape; a negative one counts from the end"},
				{Name: "axis", Type: IntType, Doc: "the axis to select along; a negative one counts from the end. Null: `x` is made flat first"},
			},
			Result: "a tensor of the dtype of `x`; its shape is that of `x`, with the axes of `indices` in place of the axis",
			Errors: []string{
				"INVALID_ARGUMENT if `indices` are no integers",
				"OP_FAILED, with the first position, if an index is out of the axis",
			},
			Libraries: []string{"nvrtc"},
			Example:   Example{[]string{`{"key": "take", "op": "array.take", "args": [[[1, 2], [3, 4], [5, 6]], [2, -3]], "kwargs": {"axis": 0}}`}, "[[5, 6], [1, 2]]"},
			plan:      planTake,
		},
	}
}

// axisOrAll returns the value of the parameter axis: -1 if it is null, for all elements in C order.
func (c *call) axisOrAll(x *Tensor) (int, error) {
	if !c.has("axis") {
		return -1, nil
	}
	return c.axis("axis", c.int("axis"), x.NDim())
}

// The key of a real number is a signed integer: the keys are in the order of the numbers. All NaNs
// have the largest key. A key determines the number's bits, except those of NaN.

// nan32 and nan64 are the bits of each NaN in a result, on every device.
const (
	nan32 = 0x7fc00000
	nan64 = 0x7ff8000000000001
)

// keyType is the type of the keys of numbers of 32 or 64 bits.
type keyType interface{ int32 | int64 }

func keyOfFloat32(x float32) int32 {
	if x != x {
		return math.MaxInt32
	}
	b := int32(math.Float32bits(x))
	return b ^ b>>31&math.MaxInt32
}

func keyOfFloat64(x float64) int64 {
	if x != x {
		return math.MaxInt64
	}
	b := int64(math.Float64bits(x))
	return b ^ b>>63&math.MaxInt64
}

func float32OfKey(k int32) float32 {
	if k == math.MaxInt32 {
		return math.Float32frombits(nan32)
	}
	return math.Float32frombits(uint32(k ^ k>>31&math.MaxInt32))
}

func float64OfKey(k int64) float64 {
	if k == math.MaxInt64 {
		return math.Float64frombits(nan64)
	}
	return math.Float64frombits(uint64(k ^ k>>63&math.MaxInt64))
}

// keysOf stores the keys of n numbers, which may lie in the same place. flip is 0, or -1 to invert
// the keys for a descending order. With equalZeros the key of -0.0 is that of 0.0.
func keysOf(dtype DType, n int, keys, from unsafe.Pointer, equalZeros bool, flip int64) {
	if set := simd.Best(); set.Sorts() {
		set.Keys(simd.Type(dtype), n, keys, from, equalZeros, flip != 0)
		return
	}
	zero := math.Copysign(0, -1) // x + -0.0 is x, x + 0.0 is 0.0 if x is -0.0
	if equalZeros {
		zero = 0
	}
	switch dtype {
	case Int32:
		flipKeys(block[int32](keys, n), block[int32](from, n), int32(flip))
	case Int64:
		flipKeys(block[int64](keys, n), block[int64](from, n), flip)
	case Float32:
		for i, x := range block[float32](from, n) {
			block[int32](keys, n)[i] = keyOfFloat32(x+float32(zero)) ^ int32(flip)
		}
	default:
		for i, x := range block[float64](from, n) {
			block[int64](keys, n)[i] = keyOfFloat64(x+zero) ^ flip
		}
	}
}

// valuesOf is the reverse of keysOf.
func valuesOf(dtype DType, n int, to, keys unsafe.Pointer, flip int64) {
	if set := simd.Best(); set.Sorts() {
		set.Values(simd.Type(dtype), n, to, keys, flip != 0)
		return
	}
	switch dtype {
	case Int32:
		flipKeys(block[int32](to, n), block[int32](keys, n), int32(flip))
	case Int64:
		flipKeys(block[int64](to, n), block[int64](keys, n), flip)
	case Float32:
		for i, k := range block[int32](keys, n) {
			block[float32](to, n)[i] = float32OfKey(k ^ int32(flip))
		}
	default:
		for i, k := range block[int64](keys, n) {
			block[float64](to, n)[i] = float64OfKey(k ^ flip)
		}
	}
}

func flipKeys[K keyType](to, from []K, flip K) {
	for i, k := range from {
		to[i] = k ^ flip
	}
}

// pairKey is the key of a complex number: the keys of its parts. Its order is lexicographic.
type pairKey [2]int64

func (a pairKey) compare(b pairKey) int {
	if a[0] != b[0] {
		return cmp.Compare(a[0], b[0])
	}
	return cmp.Compare(a[1], b[1])
}

func keyOfComplex(x complex128) pairKey { return pairKey{keyOfFloat64(real(x)), keyOfFloat64(imag(x))} }

func (a pairKey) value() complex128 { return complex(float64OfKey(a[0]), float64OfKey(a[1])) }

// undefined counts the parts that are NaN: 1 for the imaginary part, 2 for the real part.
func (a pairKey) undefined() (n int) {
	if a[0] == math.MaxInt64 {
		n = 2
	}
	if a[1] == math.MaxInt64 {
		n++
	}
	return n
}
