package ops

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"github.com/millrace/millrace/worker/ops/simd"
)

// allDraws are the draws with the parameters to test them with.
var allDraws = []struct {
	name   string
	draw   simd.Draw
	params simd.Random
}{
	{"words", simd.DrawWords, simd.Random{}},
	{"uniform float64", simd.DrawUniformFloat64, simd.Random{Low: -3.7, High: 11.3}},
	{"uniform float32", simd.DrawUniformFloat32, simd.Random{Low: 0.1, High: 1.3}},
	{"int64", simd.DrawInt64, simd.Random{First: -5, Values: 1000}},
	{"int64 of all values", simd.DrawInt64, simd.Random{First: math.MinInt64, Values: math.MaxUint64}},
	{"int64 of 2^32 values", simd.DrawInt64, simd.Random{First: 1, Values: 1 << 32}},
	{"int64 of 2^32-1 values", simd.DrawInt64, simd.Random{First: 1, Values: 1<<32 - 1}},
	{"int32", simd.DrawInt32, simd.Random{First: math.MinInt32, Values: 1 << 32}},
	{"uint8", simd.DrawUint8, simd.Random{First: 3, Values: 253}},
	{"normal float64", simd.DrawNormalFloat64, simd.Random{Loc: 0.3, Scale: 1.7}},
	{"normal float32", simd.DrawNormalFloat32, simd.Random{Loc: 0, Scale: 1}},
}

// TestEveryInstructionSetDrawsTheBitsOfThePlainCode also draws from odd words on, and numbers of
// elements that fill no vector.
func TestEveryInstructionSetDrawsTheBitsOfThePlainCode(t *testing.T) {
	for _, c := range allDraws {
		size := drawnSize(c.draw)
		for _, set := range simd.Sets() {
			t.Run(c.name+" "+set.Name, func(t *testing.T) {
				compare := func(first uint64, n int) {
					t.Helper()
					want, got := heapBytes(int64(n+1)*size), heapBytes(int64(n+1)*size)
					c.params.Key = 0x123456789abcdef0 + first
					drawPiece(nil, slicePointer(want), c.draw, c.params, first, n)
					drawPiece(set, slicePointer(got), c.draw, c.params, first, n)
					if !slices.Equal(got, want) { // also: nothing is stored behind the elements
						t.Fatalf("%d words from %d on differ", n, first)
					}
				}
				for n := 1; n < 70; n++ {
					compare(uint64(n), n)
					compare(1<<33-uint64(n), n)
				}
				compare(7, 300_001)
				compare(1<<40, 300_000)
			})
		}
	}
}

func TestDrawingDoesNotDependOnTheNumberOfProcessors(t *testing.T) {
	ctx := WithEnv(t.Context(), Env{Cores: func() int { return 3 }})
	for _, c := range allDraws {
		const n = 3*drawLen + 11
		one, three := heapBytes(n*drawnSize(c.draw)), heapBytes(n*drawnSize(c.draw))
		if err := draw(t.Context(), slicePointer(one), c.draw, c.params, 5, n); err != nil {
			t.Fatal(err)
		}
		if err := draw(ctx, slicePointer(three), c.draw, c.params, 5, n); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(one, three) {
			t.Errorf("%s: one processor and three draw different numbers", c.name)
		}
	}
}

// TestNormalNumbersKeepTheirBits fails if the definition changes, or if a machine computes it in
// another way.
func TestNormalNumbersKeepTheirBits(t *testing.T) {
	x := mustRun(t, "array.random", nil, list(1000), int64(42), "normal").(*Tensor)
	hash := uint64(14695981039346656037)
	for _, b := range x.raw() {
		hash = (hash ^ uint64(b)) * 1099511628211
	}
	if hash != 0x9bd0fd6d97640c09 {
		t.Errorf("the numbers have the hash %#x; the first is %x", hash, elements[float64](x)[0])
	}
}

// specialWords are those at which the polynomials begin, end and change: u is the upper 53 bits.
func specialWords() (words []uint64) {
	for _, eighth := range []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8} {
		for d := int64(-2); d <= 2; d++ {
			words = append(words, eighth<<61+uint64(d)<<11)
		}
	}
	for bit := range 64 {
		words = append(words, 1<<bit, 1<<bit-1, ^(uint64(1) << bit))
	}
	root := uint64(math.Floor((1 - math.Sqrt2/2) * 0x1p53))
	for d := uint64(0); d < 5; d++ {
		words = append(words, (root+d-2)<<11)
	}
	stream := newPhiloxStream(8)
	for i := range uint64(3000) {
		even, odd := stream.block(i)
		words = append(words, even, odd)
	}
	return words
}

// ulps returns the difference of got from want in units in the last place of want.
func ulps(got float64, want *big.Float) float64 {
	diff := new(big.Float).SetPrec(want.Prec()).SetFloat64(got)
	diff.Sub(diff, want)
	near, _ := want.Float64()
	if math.Abs(near) < 1e-50 { // a zero of sine or cosine, as far as the series is exact
		return math.Abs(got)
	}
	unit := math.Nextafter(math.Abs(near), math.Inf(1)) - math.Abs(near)
	d, _ := diff.Float64()
	return math.Abs(d) / unit
}

func TestNormalNumbersAreAccurate(t *testing.T) {
	worst := map[string]float64{}
	check := func(what string, word uint64, got float64, want *big.Float) {
		d := ulps(got, want)
		worst[what] = max(worst[what], d)
		if d > 2 {
			t.Errorf("%s of word %#x: %v is %v units from %v", what, word, got, d, want.Text('g', 20))
		}
	}
	for _, word := range specialWords() {
		check("radius", word, normalRadius(word), exactRadius(word))
		sine, cosine := sincosTurn(word)
		exactSine, exactCosine := exactSincos(word)
		check("sine", word, sine, exactSine)
		check("cosine", word, cosine, exactCosine)
	}
	t.Log(worst)
}

const exactBits = 200

func exactly(x float64) *big.Float { return new(big.Float).SetPrec(exactBits).SetFloat64(x) }

// exactRadius computes sqrt(-2 ln(1-u)) by ln x = 2 artanh((x-1)/(x+1)) for x from 1/2 to 1.
func exactRadius(word uint64) *big.Float {
	mantissa, exponent := math.Frexp(1 - unitInterval(word))
	log := func(x *big.Float) *big.Float {
		y := new(big.Float).Quo(new(big.Float).Sub(x, exactly(1)), new(big.Float).Add(x, exactly(1)))
		square := new(big.Float).Mul(y, y)
		sum := exactly(0)
		for n := 1; n < 200; n += 2 {
			sum.Add(sum, new(big.Float).Quo(y, exactly(float64(n))))
			y.Mul(y, square)
		}
		return sum.Mul(sum, exactly(2))
	}
	result := log(exactly(mantissa))
	result.Sub(result, new(big.Float).Mul(log(exactly(0.5)), exactly(float64(exponent))))
	return new(big.Float).Sqrt(result.Mul(result, exactly(-2)))
}

// exactSincos computes sine and cosine of 2 pi u by their power series.
func exactSincos(word uint64) (sine, cosine *big.Float) {
	twoPi, _, err := big.ParseFloat("6.28318530717958647692528676655900576839433879875021164194988918461563281257241799726", 10, exactBits, big.ToNearestEven)
	if err != nil {
		panic(err)
	}
	x := new(big.Float).Mul(twoPi, exactly(unitInterval(word)))
	term, parts := exactly(1), [2]*big.Float{exactly(0), exactly(0)}
	for n := range 80 {
		parts[n%2].Add(parts[n%2], new(big.Float).Mul(term, exactly(float64(1-n%4/2*2))))
		term.Quo(new(big.Float).Mul(term, x), exactly(float64(n+1)))
	}
	return parts[1], parts[0]
}
