package ops

import (
	"cmp"
	"math"
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

// The key of a number is an unsigned integer: the keys are in the order of the numbers. All NaNs
// have the largest key. A key determines the number's bits, except those of NaN.

func keyOfInt32(x int32) uint32 { return uint32(x) ^ 1<<31 }
func keyOfInt64(x int64) uint64 { return uint64(x) ^ 1<<63 }

func keyOfFloat32(x float32) uint32 {
	if x != x {
		return math.MaxUint32
	}
	b := math.Float32bits(x)
	return b ^ (uint32(int32(b)>>31) | 1<<31)
}

func keyOfFloat64(x float64) uint64 {
	if x != x {
		return math.MaxUint64
	}
	b := math.Float64bits(x)
	return b ^ (uint64(int64(b)>>63) | 1<<63)
}

func float32OfKey(k uint32) float32 {
	if k == math.MaxUint32 {
		return float32(math.NaN())
	}
	return math.Float32frombits(k ^ (uint32(int32(^k)>>31) | 1<<31))
}

func float64OfKey(k uint64) float64 {
	if k == math.MaxUint64 {
		return math.NaN()
	}
	return math.Float64frombits(k ^ (uint64(int64(^k)>>63) | 1<<63))
}

// pairKey is the key of a complex number: the keys of its parts. Its order is lexicographic.
type pairKey [2]uint64

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
	if a[0] == math.MaxUint64 {
		n = 2
	}
	if a[1] == math.MaxUint64 {
		n++
	}
	return n
}
