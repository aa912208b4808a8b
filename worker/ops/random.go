package ops

import (
	"context"
	"math"
	"math/bits"
)

func randomOps() []*Op {
	return []*Op{{
		Name: "array.random",
		Doc:  "Makes random numbers by the generator Philox4x32-10.",
		Details: "Element i depends on `seed` and `offset` + i alone, so chunks that are made anywhere join into the same array. " +
			"Integers and uniform numbers are the same bits on every device; normal ones agree to the last few bits.\n\n" +
			"Word w of the stream is half w%2 of the Philox block with the counter {w/2 low, w/2 high, 0, 0} and the key " +
			"{seed low, seed high}; half h is output[2h] + output[2h+1] * 2^32. Element i uses word i; a complex one has " +
			"words 2i and 2i+1 as its real and imaginary part.\n\n" +
			"Integers are low + floor(word * (high-low) / 2^64). Uniform numbers are low + (high-low) * u in the precision of " +
			"the element, with each step rounded; u is (word>>11) * 2^-53, or (word>>40) * 2^-24 for float32 and complex64. " +
			"Normal numbers are made by Box-Muller of the two words a, b of a block, in float64: with " +
			"r = sqrt(-2 ln(1-u(a))), even words give z = r * cos(2 pi u(b)), odd ones z = r * sin(2 pi u(b)); the number is " +
			"loc + scale * z.",
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

// randomLen is the number of elements between two checks of the context.
const randomLen = 1 << 14

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
	var fill func(out *Tensor, words wordSource, from, to int64)
	switch distribution {
	case "integers":
		if dtype == Invalid {
			dtype = Int64
		}
		fill, err = planIntegers(c, dtype, w)
	case "uniform":
		if dtype == Invalid {
			dtype = Float64
		}
		fill, err = planUniform(c, dtype, w)
	case "normal":
		if dtype == Invalid {
			dtype = Float64
		}
		fill, err = planNormal(c, dtype, w)
	default:
		return nil, c.bad("distribution", "expected uniform, normal or integers, got %q", distribution)
	}
	if err != nil {
		return nil, err
	}
	stream := newPhiloxStream(c.int("seed"))
	if dtype.kind() == complexKind {
		offset, n = 2*offset, 2*n
	}
	w.FirstWord, w.Words = uint64(offset), n
	return single(dtype, shape, w, func(ctx context.Context, out *Tensor) error {
		words := wordSource{stream: stream, words: make([]uint64, randomLen+2)}
		for from := int64(0); from < n; from += randomLen {
			if err := ctx.Err(); err != nil {
				return err
			}
			to := min(from+randomLen, n)
			words.load(uint64(offset+from), int(to-from))
			fill(out, words, from, to)
		}
		return nil
	}), nil
}

// wordSource is a range of the words of a stream.
type wordSource struct {
	stream philoxStream
	words  []uint64
	skip   int // 1 if the first element is the odd word of its block, else 0
}

// load computes the n words from first on, in whole blocks.
func (s *wordSource) load(first uint64, n int) {
	s.skip = int(first % 2)
	for i := 0; i < s.skip+n; i += 2 {
		s.words[i], s.words[i+1] = s.stream.block((first + uint64(i)) / 2)
	}
}

// at returns the word of the i-th loaded element.
func (s wordSource) at(i int) uint64 { return s.words[s.skip+i] }

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

func planUniform(c *call, dtype DType, w *Drawing) (func(*Tensor, wordSource, int64, int64), error) {
	if dtype.kind() < floatKind {
		return nil, c.bad("dtype", "uniform numbers are floats or complex, not %v: use distribution integers", dtype)
	}
	low, high := 0.0, 1.0
	for name, at := range map[string]*float64{"low": &low, "high": &high} {
		switch v := c.value(name).(type) {
		case nil:
		case int64:
			*at = float64(v)
		case float64:
			*at = v
		default:
			return nil, c.bad(name, "expected a real, got %s", describe(v))
		}
	}
	w.Low, w.High = low, high
	if dtype.realPart() == Float32 {
		return func(out *Tensor, words wordSource, from, to int64) {
			base, span := float32(low), float32(float32(high)-float32(low))
			for i, d := 0, components[float32](out)[from:to]; i < len(d); i++ {
				scaled := float32(span * (float32(words.at(i)>>40) * 0x1p-24))
				d[i] = base + scaled
			}
		}, nil
	}
	return func(out *Tensor, words wordSource, from, to int64) {
		span := float64(high - low)
		for i, d := 0, components[float64](out)[from:to]; i < len(d); i++ {
			// The conversion keeps the compiler from fusing both steps, which would round only
			// once.
			scaled := float64(span * unitInterval(words.at(i)))
			d[i] = low + scaled
		}
	}, nil
}

// unitInterval returns a float64 in [0, 1) made from a word's upper 53 bits.
func unitInterval(word uint64) float64 { return float64(word>>11) * 0x1p-53 }

func planNormal(c *call, dtype DType, w *Drawing) (func(*Tensor, wordSource, int64, int64), error) {
	if dtype.kind() < floatKind {
		return nil, c.bad("dtype", "normal numbers are floats or complex, not %v", dtype)
	}
	loc, scale := c.real("loc"), c.real("scale")
	if scale < 0 {
		return nil, c.bad("scale", "%v is negative", scale)
	}
	if c.has("low") || c.has("high") {
		return nil, c.bad("low", "low and high are for uniform and integers: normal has loc and scale")
	}
	w.Loc, w.Scale = loc, scale
	if dtype.realPart() == Float32 {
		return func(out *Tensor, words wordSource, from, to int64) {
			drawNormals(components[float32](out)[from:to], words, loc, scale)
		}, nil
	}
	return func(out *Tensor, words wordSource, from, to int64) {
		drawNormals(components[float64](out)[from:to], words, loc, scale)
	}, nil
}

// drawNormals computes two numbers from each block. The first number of the first block and the
// last number of the last block may lie outside of d.
func drawNormals[T floating](d []T, words wordSource, loc, scale float64) {
	for at := -words.skip; at < len(d); at += 2 {
		a, b := words.at(at), words.at(at+1)
		radius := math.Sqrt(-2 * math.Log(1-unitInterval(a)))
		sin, cos := math.Sincos(2 * math.Pi * unitInterval(b))
		if at >= 0 {
			d[at] = T(loc + float64(scale*float64(radius*cos)))
		}
		if at+1 < len(d) {
			d[at+1] = T(loc + float64(scale*float64(radius*sin)))
		}
	}
}

func planIntegers(c *call, dtype DType, w *Drawing) (func(*Tensor, wordSource, int64, int64), error) {
	if dtype.kind() > intKind {
		return nil, c.bad("dtype", "integers cannot be %v: cast them", dtype)
	}
	bounds := map[string]int64{"low": 0}
	if dtype == Bool {
		bounds["high"] = 2
	}
	for _, name := range []string{"low", "high"} {
		switch v := c.value(name).(type) {
		case nil:
			if _, ok := bounds[name]; !ok {
				return nil, c.bad(name, "missing: integers are drawn from low up to, but not including, high")
			}
		case int64:
			bounds[name] = v
		case float64:
			n, ok := integral(v)
			if !ok {
				return nil, c.bad(name, "expected an int, got %v", v)
			}
			bounds[name] = n
		default:
			return nil, c.bad(name, "expected an int, got %s", describe(v))
		}
	}
	low, high := bounds["low"], bounds["high"]
	if low >= high {
		return nil, c.bad("high", "%d is not above low, %d", high, low)
	}
	if !fits(low, dtype) || !fits(high-1, dtype) || dtype == Bool && (low < 0 || high > 2) {
		return nil, c.bad("high", "integers from %d to %d do not fit %v", low, high-1, dtype)
	}
	span := uint64(high) - uint64(low)
	w.First, w.Span = low, span
	return func(out *Tensor, words wordSource, from, to int64) {
		switch dtype {
		case Bool, Uint8:
			drawIntegers(elements[uint8](out)[from:to], words, low, span)
		case Int32:
			drawIntegers(elements[int32](out)[from:to], words, low, span)
		default:
			drawIntegers(elements[int64](out)[from:to], words, low, span)
		}
	}, nil
}

func drawIntegers[T integer](d []T, words wordSource, low int64, span uint64) {
	for i := range d {
		high, _ := bits.Mul64(words.at(i), span)
		d[i] = T(low + int64(high))
	}
}
