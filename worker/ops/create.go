package ops

import (
	"context"
	"math"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

func createOps() []*Op {
	return []*Op{
		{
			Name: "array.full",
			Doc:  "Makes an array whose elements all have the same value.",
			Params: []Param{
				{Name: "shape", Type: IntsType, Required: true, Doc: "of the result; an empty list: no axes, one element"},
				{Name: "value", Type: NumberType, Required: true, Doc: "of each element"},
				{Name: "dtype", Type: DTypeType, Doc: "of the result; null: bool, int64, float64 or complex128, as the value is"},
			},
			Result:  "a tensor",
			Errors:  []string{"INVALID_ARGUMENT if the value is an int that the dtype cannot hold"},
			Example: Example{[]string{`{"key": "full", "op": "array.full", "args": [[2, 2], 7], "kwargs": {"dtype": "float32"}}`}, "[[7, 7], [7, 7]]"},
			plan: func(c *call) (*Planned, error) {
				value, dtype, shape := c.value("value"), c.dtype("dtype"), c.ints("shape")
				if _, err := countElements(shape); err != nil {
					return nil, c.bad("shape", "%v", err)
				}
				if dtype == Invalid {
					dtype, _ = leafDType(value)
				}
				if n, ok := value.(int64); ok && !fits(n, dtype) {
					return nil, c.bad("value", "%d is outside the range of %v", n, dtype)
				}
				return single(dtype, shape, &Filling{value}, func(ctx context.Context, out *Tensor) error {
					one, err := Scalar(dtype, value)
					if err != nil {
						return err
					}
					return copyInto(ctx, out, one.broadcastTo(out.Shape))
				}), nil
			},
		},
		{
			Name: "array.arange",
			Doc:  "Makes numbers that are a step apart, as NumPy's `arange`.",
			Params: []Param{
				{Name: "start", Type: RealType, Required: true, Doc: "the first number; without `stop` it is the stop, and the start is 0"},
				{Name: "stop", Type: RealType, Doc: "the end, which is not reached"},
				{Name: "step", Type: RealType, Default: int64(1), Doc: "not zero; negative ones count down"},
				{Name: "dtype", Type: DTypeType, Doc: "of the result, not bool; null: int64, or float64 if an argument is a float"},
			},
			Result:  "a tensor with one axis; without elements if the stop lies before the start",
			Errors:  []string{"INVALID_ARGUMENT if an argument is infinite or NaN"},
			Example: Example{[]string{`{"key": "arange", "op": "array.arange", "args": [0, 1, 0.25]}`}, "[0, 0.25, 0.5, 0.75]"},
			plan:    planArange,
		},
	}
}

func planArange(c *call) (*Planned, error) {
	start, stop, step := c.value("start"), c.value("stop"), c.value("step")
	if stop == nil {
		start, stop = any(int64(0)), start
	}
	exact := true
	var f [3]float64
	var n [3]int64
	for i, v := range []any{start, stop, step} {
		switch v := v.(type) {
		case int64:
			n[i], f[i] = v, float64(v)
		case float64:
			f[i], exact = v, false
		}
		if math.IsNaN(f[i]) || math.IsInf(f[i], 0) {
			return nil, c.bad([]string{"start", "stop", "step"}[i], "expected a finite number, got %v", f[i])
		}
	}
	if f[2] == 0 {
		return nil, c.bad("step", "is zero")
	}
	dtype := c.dtype("dtype")
	if dtype == Invalid {
		dtype = Float64
		if exact {
			dtype = Int64
		}
	}
	if dtype == Bool {
		return nil, c.bad("dtype", "numbers cannot be counted in bool")
	}
	length := math.Ceil((f[1] - f[0]) / f[2])
	if length >= 1<<62 {
		return nil, c.bad("stop", "%v elements are more than any memory holds", length)
	}
	count := int64(max(length, 0))
	if exact {
		count = countSteps(n[0], n[1], n[2])
	}
	// NumPy stores the first two values in the element's type and extrapolates.
	head := func() (*Tensor, error) {
		first, err := NewTensor(dtype, []int64{2})
		if err != nil {
			return nil, err
		}
		if exact && dtype.kind() == intKind {
			return first, castKernel(dtype, Int64)(2, regs{first.base(), slicePointer([]int64{n[0], n[0] + n[2]})})
		}
		return first, castKernel(dtype, Float64)(2, regs{first.base(), slicePointer([]float64{f[0], f[0] + f[2]})})
	}
	return single(dtype, []int64{count}, &Counting{head}, func(ctx context.Context, out *Tensor) error {
		first, err := head()
		if err != nil {
			return err
		}
		if set := simd.Best(); set != nil && dtype.kind() != complexKind {
			piece := pieceBytes / dtype.Size()
			return eachPiece(ctx, count, piece, func(begin, end int64) error {
				set.Count(simd.Type(dtype), unsafe.Add(out.base(), begin*dtype.Size()), begin, end-begin, first.base())
				return nil
			})
		}
		switch dtype {
		case Uint8:
			v := elements[uint8](first)
			return extrapolate(ctx, elements[uint8](out), v[0], v[1])
		case Int32:
			v := elements[int32](first)
			return extrapolate(ctx, elements[int32](out), v[0], v[1])
		case Int64:
			v := elements[int64](first)
			return extrapolate(ctx, elements[int64](out), v[0], v[1])
		case Float32:
			v := elements[float32](first)
			return extrapolate(ctx, elements[float32](out), v[0], v[1])
		case Float64:
			v := elements[float64](first)
			return extrapolate(ctx, elements[float64](out), v[0], v[1])
		case Complex64:
			return extrapolateComplex[complex64, float32](ctx, out, first)
		default:
			return extrapolateComplex[complex128, float64](ctx, out, first)
		}
	}), nil
}

// countSteps returns the number of steps from start that stay before stop.
func countSteps(start, stop, step int64) int64 {
	if step > 0 && start < stop {
		return int64((uint64(stop)-uint64(start)-1)/uint64(step)) + 1
	}
	if step < 0 && start > stop {
		return int64((uint64(start)-uint64(stop)-1)/-uint64(step)) + 1
	}
	return 0
}

func extrapolate[T realNum](ctx context.Context, d []T, first, second T) error {
	step := second - first
	for from := 0; from < len(d); from += checkEvery {
		if err := ctx.Err(); err != nil {
			return err
		}
		for i := from; i < min(len(d), from+checkEvery); i++ {
			d[i] = first + T(T(i)*step) //nolint:unconvert // it keeps multiply and add apart where processors could fuse them: NumPy rounds twice
		}
	}
	return nil
}

// extrapolateComplex counts along the real axis.
func extrapolateComplex[T complex_, R floating](ctx context.Context, out, first *Tensor) error {
	parts := components[R](out)
	values := components[R](first)
	real := make([]R, len(parts)/2)
	if err := extrapolate(ctx, real, values[0], values[2]); err != nil {
		return err
	}
	for i, x := range real {
		parts[2*i], parts[2*i+1] = x, 0
	}
	return nil
}

// components returns a view of a tensor as real numbers: two for each complex element.
func components[T floating](t *Tensor) []T {
	if t.DType.kind() != complexKind {
		return elements[T](t)
	}
	if t.Len() == 0 {
		return nil
	}
	return block[T](t.base(), int(2*t.Len()))
}
