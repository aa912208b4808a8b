package ops

import (
	"context"
	"math"

	"github.com/millrace/millrace/worker/ops/simd"
)

func randomOps() []*Op {
	return []*Op{{
		Name: "array.random",
		Doc:  "Makes random numbers by the generator Philox4x32-10.",
		Details: "Element i depends on `seed` and `offset` + i alone, so chunks that are made anywhere join into the same array. " +
			"Integers and uniform numbers are the same bits on every device.\n\n" +
			"Word w of the stream is half w%2 of the Philox block with the counter {w/2 low, w/2 high, 0, 0} and the key " +
			"{seed low, seed high}; half h is output[2h] + output[2h+1] * 2^32. Element i uses word i; a complex one has " +
			"words 2i and 2i+1 as its real and imaginary part.\n\n" +
			"Integers are low + floor(word * (high-low) / 2^64). Uniform numbers are low + (high-low) * u in the precision of " +
			"the element, with each step rounded; u is (word>>11) * 2^-53, or (word>>40) * 2^-24 for float32 and complex64. " +
			"Normal numbers are made by Box-Muller of the two words a, b of a block, in float64: with " +
			"r = sqrt(-2 ln(1-u(a))), even words give z = r * cos(2 pi u(b)), odd ones z = r * sin(2 pi u(b)); the number is " +
			"loc + scale * z. Logarithm, sine and cosine are polynomials within two units in the last place, in a fixed order of " +
			"operations: normal numbers are the same bits on every host, and those of GPUs agree to the last few bits.",
		Params: []Param{
			{Name: "shape", Type: IntsType, Required: true, Doc: "of the result"},
			{Name: "seed", Type: IntType, Required: true, Doc: "of the stream; all 64 bits count"},
			{Name: "distribution", Type: StringType, Default: "uniform", Doc: "`uniform`, `normal` or `integers`"},
			{Name: "low", Type: NumberType, Doc: "the smallest number, for uniform and integers; null: 0"},
			{Name: "high", Type: NumberType, Doc: "the end of the range, which is not reached; null: 1 for uniform, 2 for bool; other integers need it"},
			{Name: "dtype", Type: DTypeType, Doc: "of the result; null: float64, and int64 for integers"},
			{Name: "offset", Type: IntType, Default: int64(0), Doc: "the number of elements of the stream before the first one, not negative"},
			{Name: "loc", Type: RealType, Default: 0.0, Doc: "the mean, for normal"},
			{Name: "scale", Type: RealType, Default: 1.0, Doc: "the standard deviation, for normal; not negative"},
		},
		Result: "a tensor. Uniform and normal numbers are floats or complex, `integers` are bool or integers",
		Errors: []string{
			"INVALID_ARGUMENT if the dtype does not fit the distribution, or cannot hold the range",
		},
		Example: Example{[]string{`{"key": "random", "op": "array.random", "args": [[2, 3], 42, "integers"], "kwargs": {"high": 100}}`}, "[[46, 34, 32], [45, 65, 77]]"},
		plan:    planRandom,
	}}
}

func planRandom(c *call) (*Planned, error) {
	shape := c.ints("shape")
	n, err := countElements(shape)
	if err != nil {
		return nil, c.bad("shape", "%v", err)
	}
	offset := c.int("offset")
	if offset < 0 || offset > math.MaxInt64/4-n {
		return nil, c.bad("offset", "%d is outside of 0 to 2^61 less the number of elements", offset)
	}
	distribution := c.string("distribution")
	dtype := c.dtype("dtype")
	w := &Drawing{Distribution: distribution, Seed: c.int("seed")}
	var d simd.Draw
	switch distribution {
	case "integers":
		if dtype == Invalid {
			dtype = Int64
		}
		d, err = planIntegers(c, dtype, w)
	case "uniform":
		if dtype == Invalid {
			dtype = Float64
		}
		d, err = planUniform(c, dtype, w)
	case "normal":
		if dtype == Invalid {
			dtype = Float64
		}
		d, err = planNormal(c, dtype, w)
	default:
		return nil, c.bad("distribution", "expected uniform, normal or integers, got %q", distribution)
	}
	if err != nil {
		return nil, err
	}
	if dtype.kind() == complexKind {
		offset, n = 2*offset, 2*n
	}
	w.FirstWord, w.Words = uint64(offset), n
	return single(dtype, shape, w, func(ctx context.Context, out *Tensor) error {
		if n == 0 {
			return nil
		}
		return draw(ctx, out.base(), d, simd.Random{
			Key: uint64(w.Seed), Low: w.Low, High: w.High, Loc: w.Loc, Scale: w.Scale, First: w.First, Values: w.Span,
		}, w.FirstWord, n)
	}), nil
}

func planUniform(c *call, dtype DType, w *Drawing) (simd.Draw, error) {
	if dtype.kind() < floatKind {
		return 0, c.bad("dtype", "uniform numbers are floats or complex, not %v: use distribution integers", dtype)
	}
	w.Low, w.High = 0, 1
	for name, at := range map[string]*float64{"low": &w.Low, "high": &w.High} {
		switch v := c.value(name).(type) {
		case nil:
		case int64:
			*at = float64(v)
		case float64:
			*at = v
		default:
			return 0, c.bad(name, "expected a real, got %s", describe(v))
		}
	}
	if dtype.realPart() == Float32 {
		return simd.DrawUniformFloat32, nil
	}
	return simd.DrawUniformFloat64, nil
}

func planNormal(c *call, dtype DType, w *Drawing) (simd.Draw, error) {
	if dtype.kind() < floatKind {
		return 0, c.bad("dtype", "normal numbers are floats or complex, not %v", dtype)
	}
	w.Loc, w.Scale = c.real("loc"), c.real("scale")
	if w.Scale < 0 {
		return 0, c.bad("scale", "%v is negative", w.Scale)
	}
	if c.has("low") || c.has("high") {
		return 0, c.bad("low", "low and high are for uniform and integers: normal has loc and scale")
	}
	if dtype.realPart() == Float32 {
		return simd.DrawNormalFloat32, nil
	}
	return simd.DrawNormalFloat64, nil
}

func planIntegers(c *call, dtype DType, w *Drawing) (simd.Draw, error) {
	if dtype.kind() > intKind {
		return 0, c.bad("dtype", "integers cannot be %v: cast them", dtype)
	}
	bounds := map[string]int64{"low": 0}
	if dtype == Bool {
		bounds["high"] = 2
	}
	for _, name := range []string{"low", "high"} {
		switch v := c.value(name).(type) {
		case nil:
			if _, ok := bounds[name]; !ok {
				return 0, c.bad(name, "missing: integers are drawn from low up to, but not including, high")
			}
		case int64:
			bounds[name] = v
		case float64:
			n, ok := integral(v)
			if !ok {
				return 0, c.bad(name, "expected an int, got %v", v)
			}
			bounds[name] = n
		default:
			return 0, c.bad(name, "expected an int, got %s", describe(v))
		}
	}
	low, high := bounds["low"], bounds["high"]
	if low >= high {
		return 0, c.bad("high", "%d is not above low, %d", high, low)
	}
	if !fits(low, dtype) || !fits(high-1, dtype) || dtype == Bool && (low < 0 || high > 2) {
		return 0, c.bad("high", "integers from %d to %d do not fit %v", low, high-1, dtype)
	}
	w.First, w.Span = low, uint64(high)-uint64(low)
	switch dtype {
	case Bool, Uint8:
		return simd.DrawUint8, nil
	case Int32:
		return simd.DrawInt32, nil
	default:
		return simd.DrawInt64, nil
	}
}
