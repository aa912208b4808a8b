package ops

import (
	"context"
	"fmt"
	"math"
	"unsafe"
)

// castKernel returns the kernel that converts a block as NumPy's astype does: floats are truncated,
// complex numbers lose their imaginary part, integers wrap around. If C leaves a conversion
// undefined (a float beyond the integer's range, NaN), the result is the smallest integer, on every
// machine.
func castKernel(to, from DType) kernel {
	if to == from {
		return kernelFor("copy", to)
	}
	switch from {
	case Bool, Uint8:
		return castInteger[uint8](to)
	case Int32:
		return castInteger[int32](to)
	case Int64:
		return castInteger[int64](to)
	case Float32:
		return castFloat[float32](to)
	case Float64:
		return castFloat[float64](to)
	case Complex64:
		return castComplex[complex64](to)
	default:
		return castComplex[complex128](to)
	}
}

func convert[D, S realNum](d []D, a []S) {
	a = a[:len(d)]
	for i := range d {
		d[i] = D(a[i])
	}
}

func castReal[S realNum](to DType) kernel {
	switch to {
	case Bool:
		return unaryKernel(nonzero[S])
	case Float32:
		return unaryKernel(convert[float32, S])
	case Float64:
		return unaryKernel(convert[float64, S])
	case Complex64:
		return unaryKernel(func(d []complex64, a []S) {
			for i, x := range a {
				d[i] = complex(float32(x), 0)
			}
		})
	default:
		return unaryKernel(func(d []complex128, a []S) {
			for i, x := range a {
				d[i] = complex(float64(x), 0)
			}
		})
	}
}

func castInteger[S integer](to DType) kernel {
	switch to {
	case Uint8:
		return unaryKernel(convert[uint8, S])
	case Int32:
		return unaryKernel(convert[int32, S])
	case Int64:
		return unaryKernel(convert[int64, S])
	}
	return castReal[S](to)
}

func castFloat[S floating](to DType) kernel {
	switch to {
	case Uint8:
		return each1(func(x S) uint8 { return uint8(truncate64(float64(x))) })
	case Int32:
		return each1(func(x S) int32 {
			if v := float64(x); v > math.MinInt32-1 && v < math.MaxInt32+1 {
				return int32(v)
			}
			return math.MinInt32
		})
	case Int64:
		return each1(func(x S) int64 { return truncate64(float64(x)) })
	}
	return castReal[S](to)
}

func truncate64(x float64) int64 {
	if x >= math.MinInt64 && x < math.MaxInt64 {
		return int64(x)
	}
	return math.MinInt64
}

func castComplex[S complex_](to DType) kernel {
	switch to {
	case Bool:
		return unaryKernel(nonzero[S])
	case Complex64:
		return each1(func(z S) complex64 { return complex64(z) })
	case Complex128:
		return each1(func(z S) complex128 { return complex128(z) })
	}
	parts := castKernel(to, Float64)
	if to == Float64 {
		parts = unaryKernel(copyBlock[float64])
	}
	return func(n int, r regs) error {
		re := make([]float64, n)
		for i, z := range block[S](r[1], n) {
			re[i] = real(complex128(z))
		}
		return parts(n, regs{r[0], unsafe.Pointer(unsafe.SliceData(re))})
	}
}

func nonzero[S number](d []uint8, a []S) {
	for i, x := range a {
		d[i] = truth(x != 0)
	}
}

// castInto writes the elements of src in C order into dst and converts them to dst's type. dst is
// contiguous.
func castInto(ctx context.Context, dst, src *Tensor) error {
	if dst.DType == src.DType {
		return copyInto(ctx, dst, src)
	}
	return mapProgram(identityProgram(dst.DType, src.DType), ctx, dst, []*Tensor{src})
}

// inType returns t if it is contiguous and of that type, otherwise a converted copy in working
// memory.
func inType(ctx context.Context, t *Tensor, dtype DType) (*Tensor, error) {
	if t.DType == dtype && t.Contiguous() {
		return t, nil
	}
	scratch, err := scratchTensor(ctx, dtype, t.Shape)
	if err != nil {
		return nil, err
	}
	return scratch, castInto(ctx, scratch, t)
}

// putScalar writes a leaf into the single element of t. It fails if the leaf is an int that t's
// type cannot hold.
func putScalar(t *Tensor, v any) error {
	p := t.base()
	switch v := v.(type) {
	case bool:
		x := truth(v)
		return castKernel(t.DType, Bool)(1, regs{p, unsafe.Pointer(&x)})
	case int64:
		if t.DType == Int32 && int64(int32(v)) != v || t.DType == Uint8 && int64(uint8(v)) != v {
			return fmt.Errorf("%d is outside the range of %v", v, t.DType)
		}
		return castKernel(t.DType, Int64)(1, regs{p, unsafe.Pointer(&v)})
	case float64:
		return castKernel(t.DType, Float64)(1, regs{p, unsafe.Pointer(&v)})
	case complex128:
		return castKernel(t.DType, Complex128)(1, regs{p, unsafe.Pointer(&v)})
	}
	return fmt.Errorf("%s is not a number", describe(v))
}

func castOps() []*Op {
	return []*Op{{
		Name:      "array.cast",
		ReadsOnce: true,
		Doc:       "Converts a tensor to another dtype, as NumPy's `astype`.",
		Details: "To an integer, floats are truncated towards zero and integers wrap around. A float that the integer cannot hold, " +
			"NaN included, becomes the smallest int32 or int64. A complex number loses its imaginary part, except for bool, which is " +
			"true for every number but zero.",
		Params: []Param{
			{Name: "x", Type: TensorType, Required: true, Doc: "of any shape"},
			{Name: "dtype", Type: DTypeType, Required: true, Doc: "of the result"},
		},
		Result:    "a tensor of the shape of `x`",
		Libraries: []string{"nvrtc"},
		Example:   Example{[]string{`{"key": "cast", "op": "array.cast", "args": [[-1.5, 2.5], "int32"]}`}, "[-1, 2]"},
		plan: func(c *call) (*Planned, error) {
			x := c.tensor("x")
			return single(c.dtype("dtype"), x.Shape, castWork(c.dtype("dtype"), x), func(ctx context.Context, out *Tensor) error {
				return castInto(ctx, out, x)
			}), nil
		},
	}}
}
