package ops

import (
	"context"
	"math"
	"slices"
)

func fftOps() []*Op {
	return []*Op{{
		Name: "array.fft",
		Doc:  "Computes discrete Fourier transforms along one axis or several.",
		Details: "Several axes make one multidimensional transform. float32 and complex64 are transformed in single precision, " +
			"other dtypes in double precision.",
		Params: []Param{
			{Name: "x", Type: TensorType, Required: true, Doc: "with at least one axis"},
			{Name: "kind", Type: StringType, Default: "fft", Doc: "`fft`, or `ifft`, its inverse; `rfft`, the first half of the `fft` of real numbers, or `irfft`, its inverse, whose result is real. With several axes, `rfft` and `irfft` halve the last one of `axes`"},
			{Name: "n", Type: IntsType, Doc: "the length of the transform along each of `axes`: `x` is cut at its end, or padded with zeros. Of `irfft`, the last one is the length of the result, and as many elements of `x` are used as are needed, n/2+1. Null: the lengths of `x`; of `irfft`, the last one is 2(m-1) for a length m of `x`"},
			{Name: "axes", Type: IntsType, Default: int64(-1), Doc: "the axes to transform along, each one once; a negative one counts from the end"},
			{Name: "norm", Type: StringType, Default: "backward", Doc: "`backward`: the inverse transforms are divided by the number N of elements of a transform. `forward`: the others are. `ortho`: all are divided by the square root of N"},
		},
		Result: "a tensor, complex64 or complex128; of `irfft`, float32 or float64",
		Errors: []string{
			"INVALID_ARGUMENT if `rfft` gets complex numbers, or if a transform has no elements",
		},
		Libraries: []string{"cufft", "nvrtc"},
		Example:   Example{[]string{`{"key": "fft", "op": "array.fft", "args": [[10, -2, -2], "irfft"]}`}, "[1, 3, 3, 3]"},
		plan:      planFFT,
	}}
}

// transformKinds are the kinds of transforms.
var transformKinds = []string{"fft", "ifft", "rfft", "irfft"}

func planFFT(c *call) (*Planned, error) {
	x, kind := c.tensor("x"), c.string("kind")
	if !slices.Contains(transformKinds, kind) {
		return nil, c.bad("kind", "expected one of %v, got %q%s", transformKinds, kind, suggest(kind, transformKinds))
	}
	if kind == "rfft" && x.DType.kind() == complexKind {
		return nil, c.bad("x", "rfft transforms real numbers, not %v: use fft", x.DType)
	}
	w := &Transforming{X: x, Kind: kind}
	for _, a := range c.ints("axes") {
		axis, err := c.axis("axes", a, x.NDim())
		if err != nil {
			return nil, err
		}
		if slices.Contains(w.Axes, axis) {
			return nil, c.bad("axes", "%v names axis %d twice", c.ints("axes"), axis)
		}
		w.Axes = append(w.Axes, axis)
	}
	if len(w.Axes) == 0 {
		return nil, c.bad("axes", "expected at least one axis")
	}
	if err := transformLengths(c, w); err != nil {
		return nil, err
	}
	shape, last := slices.Clone(x.Shape), len(w.Axes)-1
	number := 1.0
	for i, axis := range w.Axes {
		shape[axis] = w.Lengths[i]
		number *= float64(w.Lengths[i])
	}
	if kind == "rfft" {
		shape[w.Axes[last]] = w.Lengths[last]/2 + 1
	}
	inverse := kind == "ifft" || kind == "irfft"
	switch norm := c.string("norm"); norm {
	case "backward", "forward":
		w.Scale = 1
		if inverse == (norm == "backward") {
			w.Scale = 1 / number
		}
	case "ortho":
		w.Scale = 1 / math.Sqrt(number)
	default:
		return nil, c.bad("norm", "expected backward, forward or ortho, got %q", norm)
	}
	dtype := Complex128
	if x.DType == Float32 || x.DType == Complex64 {
		dtype = Complex64
	}
	if kind == "irfft" {
		dtype = dtype.realPart()
	}
	return single(dtype, shape, w, func(ctx context.Context, out *Tensor) error { return transformInto(ctx, out, w) }), nil
}

func transformLengths(c *call, w *Transforming) error {
	last := len(w.Axes) - 1
	if c.has("n") {
		w.Lengths = c.ints("n")
		if len(w.Lengths) != len(w.Axes) {
			return c.bad("n", "%v has %d lengths for %d axes", w.Lengths, len(w.Lengths), len(w.Axes))
		}
	} else {
		for i, axis := range w.Axes {
			n := w.X.Shape[axis]
			if w.Kind == "irfft" && i == last {
				n = 2 * (n - 1)
			}
			w.Lengths = append(w.Lengths, n)
		}
	}
	for i, n := range w.Lengths {
		if n < 1 {
			return c.bad("n", "a transform of length %d along axis %d: expected at least 1", n, w.Axes[i])
		}
	}
	return nil
}

// transformInto transforms along one axis after the other: rfft along the last one first, irfft
// along the last one last.
func transformInto(ctx context.Context, out *Tensor, w *Transforming) error {
	if out.Len() == 0 {
		return ctx.Err()
	}
	precise := Complex128
	if out.DType.realPart() == Float32 {
		precise = Complex64
	}
	x, dtype := w.X, precise
	if w.X.DType.kind() != complexKind {
		dtype = precise.realPart()
	}
	if x.DType != dtype {
		var err error
		if x, err = contiguousIn(ctx, x, dtype); err != nil {
			return err
		}
	}
	t := newTransformer(ctx, precise == Complex128)
	last := len(w.Axes) - 1
	for step := range w.Axes {
		i, kind := step, w.Kind
		if w.Kind == "rfft" {
			i = last - step
		}
		if i != last {
			kind = map[string]string{"fft": "fft", "ifft": "ifft", "rfft": "fft", "irfft": "ifft"}[w.Kind]
		}
		y, scale := out, w.Scale
		if step != last {
			scale = 1
			shape := slices.Clone(x.Shape)
			if shape[w.Axes[i]] = w.Lengths[i]; kind == "rfft" {
				shape[w.Axes[i]] = w.Lengths[i]/2 + 1
			}
			var err error
			if y, err = scratchTensor(ctx, precise, shape); err != nil {
				return err
			}
		}
		if err := t.along(y, x, w.Axes[i], int(w.Lengths[i]), kind, scale); err != nil {
			return err
		}
		x = y
	}
	return nil
}
