package ops

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/cmplx"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

// functions returns the names of all functions of programs, but not castFunction.
func functions() []string {
	names := append(slices.Sorted(maps.Keys(arity)), slices.Sorted(maps.Keys(precedence))...)
	return append(names, "~", "neg", "copy")
}

// operands returns n values of a type: random ones, small ones, and the special ones of the type.
func operands(r *rand.Rand, d DType, n int) *Tensor {
	t, err := NewTensor(d, []int64{int64(n)})
	if err != nil {
		panic(err)
	}
	floats := []float64{
		0, math.Copysign(0, -1), 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, math.NaN(), math.Inf(1), math.Inf(-1),
		math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, 1e-310, math.MaxFloat32, 1e-40,
		1 << 31, -1 << 31, 1<<31 - 1, 1<<31 - 0.5, -1<<31 - 0.5, 1 << 63, -1 << 63, 1 << 53, 1<<53 + 2, 255, 256, -3, 7, 1e10, 300,
	}
	float := func() float64 {
		switch r.IntN(4) {
		case 0:
			return floats[r.IntN(len(floats))]
		case 1:
			return math.Float64frombits(r.Uint64())
		case 2:
			return float64(r.IntN(21) - 10)
		}
		return r.NormFloat64() * 10
	}
	integer := func() int64 {
		switch r.IntN(3) {
		case 0:
			return []int64{0, 1, -1, 2, -2, math.MinInt64, math.MaxInt64, math.MinInt32, math.MaxInt32, 255}[r.IntN(10)]
		case 1:
			return r.Int64() - r.Int64()
		}
		return int64(r.IntN(41) - 20)
	}
	for i := range n {
		switch d {
		case Bool:
			elements[uint8](t)[i] = uint8(r.IntN(2))
		case Uint8:
			elements[uint8](t)[i] = uint8(integer())
		case Int32:
			elements[int32](t)[i] = int32(integer())
		case Int64:
			elements[int64](t)[i] = integer()
		case Float32:
			elements[float32](t)[i] = float32(float())
		case Float64:
			elements[float64](t)[i] = float()
		case Complex64:
			elements[complex64](t)[i] = complex(float32(float()), float32(float()))
		case Complex128:
			elements[complex128](t)[i] = complex(float(), float())
		}
	}
	return t
}

// sameBitsAt compares two elements to the bit; any NaN equals any other. It is also true if the
// kernel is not exact and the elements differ only by rounding.
func sameElement(t *testing.T, a, b *Tensor, i int64, exact bool) bool {
	t.Helper()
	x, err := a.At(i)
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.At(i)
	if err != nil {
		t.Fatal(err)
	}
	same := func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) || x != x && y != y }
	switch x := x.(type) {
	case float64:
		if exact {
			return same(x, y.(float64))
		}
		tolerance := 1e-13 // the functions of package math are not exact to the bit
		if a.DType == Float32 {
			tolerance = 1e-6
		}
		return same(x, y.(float64)) || math.Abs(x-y.(float64)) <= tolerance*math.Abs(x)
	case complex128:
		y := y.(complex128)
		return same(real(x), real(y)) && same(imag(x), imag(y)) || cmplx.IsNaN(x) && cmplx.IsNaN(y)
	}
	return x == y
}

// TestVectorKernelsReturnTheBitsOfGoKernels compares all kernels of package simd with the Go
// kernels, at addresses and lengths that fill no vector.
func TestVectorKernelsReturnTheBitsOfGoKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	compared := map[string]int{}
	compare := func(set *simd.Set, function string, work, out DType, run kernel, vector simd.Kernel) {
		for _, n := range []int{1, 2, 3, 7, 17, 64, 129, 1000} {
			size, first := int(out.Size()), 1+r.IntN(3)
			want, err := NewTensor(out, []int64{int64(n + first + 1)})
			if err != nil {
				t.Fatal(err)
			}
			got, err := NewTensor(out, want.Shape)
			if err != nil {
				t.Fatal(err)
			}
			types := []DType{work, work, work}
			if function == "where" {
				types[0] = Bool
			}
			var in [3]*Tensor
			var a, b regs
			for i, d := range types {
				in[i] = operands(r, d, n+first)
				a[i+1] = unsafe.Add(in[i].base(), first*int(d.Size()))
				b[i+1] = a[i+1]
			}
			a[0], b[0] = unsafe.Add(want.base(), first*size), unsafe.Add(got.base(), first*size)
			wantErr, gotErr := run(n, a), vector.Call(n, b[0], b[1], b[2], b[3])
			if (wantErr != nil) != (gotErr != nil) {
				t.Errorf("%s %s of %v: error %v, want %v", set.Name, function, work, gotErr, wantErr)
			}
			if wantErr != nil {
				continue
			}
			for i := range got.Len() {
				if !sameElement(t, want, got, i, vector.Exact) {
					var args []any
					for k := range in {
						if at := i - int64(first) + int64(first); at < in[k].Len() {
							v, _ := in[k].At(at)
							args = append(args, v)
						}
					}
					x, _ := want.At(i)
					y, _ := got.At(i)
					t.Errorf("%s: %s of %v, %d elements: element %d of %v is %v, want %v", set.Name, function, work, n, i, args, y, x)
					break
				}
			}
		}
		compared[set.Name]++
	}
	for _, set := range simd.Sets() {
		for work := Bool; work <= Complex128; work++ {
			for _, function := range functions() {
				run := kernelFor(function, work)
				vector := set.Kernel(function, simd.Type(work), 0)
				if run == nil && vector.Exists() {
					t.Errorf("%s: %s of %v exists only in package simd", set.Name, function, work)
				}
				if run != nil && vector.Exists() {
					_, out := ruleOf(function)(work)
					compare(set, function, work, out, run, vector)
				}
			}
			for to := Bool; to <= Complex128; to++ {
				if vector := set.Kernel(castFunction, simd.Type(work), simd.Type(to)); vector.Exists() {
					compare(set, fmt.Sprintf("cast to %v", to), work, to, castKernel(to, work), vector)
				}
			}
		}
		t.Logf("%s: %d kernels", set.Name, compared[set.Name])
		if compared[set.Name] < 100 {
			t.Errorf("%s: only %d kernels", set.Name, compared[set.Name])
		}
	}
}

// TestEvaluationsAgree runs programs over several pieces and over strided inputs, with the kernels
// of package simd and without.
func TestEvaluationsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const rows, columns = 311, 257 // more than two pieces
	a, b := operands(r, Float64, rows*columns), operands(r, Float64, 2*rows*columns)
	a.Shape, a.Strides = []int64{rows, columns}, []int64{8 * columns, 8}
	transposed := &Tensor{DType: Float64, Shape: []int64{rows, columns}, Strides: []int64{16, 16 * rows}, Data: b.Data}
	column := &Tensor{DType: Float64, Shape: []int64{rows, 1}, Strides: []int64{8, 8}, Data: b.Data}
	one := &Tensor{DType: Float64, Data: b.Data, Offset: 80}
	for _, source := range []string{"x0+x1", "x0*2+x2", "where(x0>x1, x0-1.5, x2*x3)", "(x1+x2)*(x0-x3)-x1", "minimum(x0, x1)"} {
		root, err := parseExpr(source)
		if err != nil {
			t.Fatal(err)
		}
		inputs := []*Tensor{a, transposed, column, one}
		types := make([]compiled, len(inputs))
		for i, x := range inputs {
			types[i] = compiled{operand: operand{dtype: x.DType}}
		}
		p, err := compile(root, numbered(len(inputs)), types, Invalid)
		if err != nil {
			t.Fatal(err)
		}
		var outs [2]*Tensor
		for i := range outs {
			if outs[i], err = NewTensor(Float64, a.Shape); err != nil {
				t.Fatal(err)
			}
			plain := *p
			if i == 1 {
				plain.steps = nil
				plain.code = slices.Clone(p.code)
				for k := range plain.code {
					plain.code[k].vector = simd.Kernel{}
				}
			}
			ctx := WithEnv(context.Background(), Env{Cores: func() int { return 2 }})
			if err := mapProgram(&plain, ctx, outs[i], inputs); err != nil {
				t.Fatal(err)
			}
		}
		if message := differs(t, outs[0], outs[1], true); message != "" {
			t.Errorf("%s: %s", source, message)
		}
	}
}

// TestPowersAreExactToOneUnit compares vector powers of doubles with exact ones: x^(m/2^k) is the
// root, taken k times, of a product. The exponents near the limit are the hardest ones.
func TestPowersAreExactToOneUnit(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	const n, roots = 2003, 12
	var x, y, got [n]float64
	for i := range n {
		switch i % 3 {
		case 0:
			x[i] = 1 + (r.Float64()-0.5)*0.1
		case 1:
			x[i] = 0.5 + r.Float64()
		default:
			x[i] = math.Ldexp(0.5+r.Float64(), r.IntN(2000)-1000)
		}
		limit := min(1020/math.Abs(math.Log2(x[i])), 1<<16)
		y[i] = math.Round((2*r.Float64()-1)*limit*(1<<roots)) / (1 << roots)
	}
	for _, set := range simd.Sets() {
		vector := set.Kernel("**", simd.Float64, 0)
		if !vector.Exists() {
			continue
		}
		if err := vector.Call(n, slicePointer(got[:]), slicePointer(x[:]), slicePointer(y[:]), nil); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			want := exactPower(x[i], y[i], roots)
			rounded, _ := want.Float64()
			unit := math.Nextafter(math.Abs(rounded), math.Inf(1)) - math.Abs(rounded)
			wrong, _ := new(big.Float).Sub(want, big.NewFloat(got[i])).Float64()
			if math.Abs(wrong) > 1.5*unit {
				t.Errorf("%s: %v ** %v is %v, wrong by %v units", set.Name, x[i], y[i], got[i], wrong/unit)
			}
		}
	}
}

// exactPower returns x^y to about 200 bits. REQUIRES: x is positive, y is a multiple of 2^-roots.
func exactPower(x, y float64, roots int) *big.Float {
	base := new(big.Float).SetPrec(256).SetFloat64(x)
	for range roots {
		base.Sqrt(base)
	}
	result := new(big.Float).SetPrec(256).SetInt64(1)
	for k := uint64(math.Ldexp(math.Abs(y), roots)); k > 0; k >>= 1 {
		if k&1 != 0 {
			result.Mul(result, base)
		}
		base.Mul(base, base)
	}
	if y < 0 {
		result.Quo(new(big.Float).SetPrec(256).SetInt64(1), result)
	}
	return result
}

// TestPowersDoNotDependOnTheirNeighbours: a vector with a special case is computed differently.
func TestPowersDoNotDependOnTheirNeighbours(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	const n = 800
	x, y := elements[float64](operands(r, Float64, n)), elements[float64](operands(r, Float64, n))
	for _, set := range simd.Sets() {
		vector := set.Kernel("**", simd.Float64, 0)
		if !vector.Exists() {
			continue
		}
		var together, alone [n]float64
		if err := vector.Call(n, slicePointer(together[:]), slicePointer(x), slicePointer(y), nil); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := vector.Call(1, slicePointer(alone[i:]), slicePointer(x[i:]), slicePointer(y[i:]), nil); err != nil {
				t.Fatal(err)
			}
			if a, b := together[i], alone[i]; math.Float64bits(a) != math.Float64bits(b) && (a == a || b == b) {
				t.Errorf("%s: %v ** %v is %v beside others and %v alone", set.Name, x[i], y[i], a, b)
			}
		}
	}
}

// TestGoKernelsKnowSubnormalNumbers: functions of package math are wrong for some of them.
func TestGoKernelsKnowSubnormalNumbers(t *testing.T) {
	for _, c := range []struct {
		function   string
		x, y, want float64
	}{
		{"log", 1e-310, 0, -713.8013788281542},
		{"log10", 1e-310, 0, -310},
		{"**", 1e-310, -0.5, 1e155},
		{"**", 5e-324, 0.5, 2.2227587494850775e-162},
		{"arctan2", -1e-300, -1e300, -math.Pi},
	} {
		d := []float64{0}
		if err := kernelFor(c.function, Float64)(1, regs{slicePointer(d), slicePointer([]float64{c.x}), slicePointer([]float64{c.y})}); err != nil {
			t.Fatal(err)
		}
		if math.Abs(d[0]-c.want) > 1e-13*math.Abs(c.want) {
			t.Errorf("%s of %v and %v is %v, want %v", c.function, c.x, c.y, d[0], c.want)
		}
	}
}

// TestVectorCopiesAreThoseOfGo copies views by each instruction set and by Go.
func TestVectorCopiesAreThoseOfGo(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, set := range simd.Sets() {
		for d := Bool; d <= Complex128; d++ {
			size := d.Size()
			for _, shape := range [][2]int64{{1, 1}, {3, 100}, {100, 3}, {16, 16}, {37, 53}, {300, 45}, {45, 513}} {
				rows, columns := shape[0], shape[1]
				x := operands(r, d, int(3*rows*columns+1))
				// Transposed matrices, one of three after the other.
				view := &Tensor{DType: d, Shape: []int64{3, rows, columns}, Strides: []int64{rows * columns * size, size, rows * size}, Data: x.Data}
				var outs [2]*Tensor
				for i := range outs {
					outs[i], _ = NewTensor(d, view.Shape)
				}
				axes, strides := view.Shape, view.Strides
				if err := copyTiled(t.Context(), outs[0].base(), view, axes, strides, 1); err != nil {
					t.Fatal(err)
				}
				if err := transposeInto(t.Context(), set, outs[1].base(), view, axes, strides, 1); err != nil {
					t.Fatal(err)
				}
				if string(outs[0].raw()) != string(outs[1].raw()) {
					t.Errorf("%s: transposes of %v of shape %v differ", set.Name, d, shape)
				}
				for _, step := range []int64{0, 1, 2, -1, 3, -2} {
					n := rows * columns
					line := &Tensor{DType: d, Shape: []int64{n}, Strides: []int64{step * size}, Data: x.Data, Offset: max(0, -step*(n-1)*size)}
					block := &Tensor{DType: d, Shape: []int64{rows, columns}, Strides: []int64{(columns + 1) * size, size}, Data: x.Data}
					for _, v := range []*Tensor{line, block} {
						if v.Check() != nil {
							continue
						}
						from := n / 3
						want, got := operands(r, d, int(n)), operands(r, d, int(n))
						first := newReader(v)
						a, b := first.clone(), first.clone()
						a.seek(first, from)
						b.seek(first, from)
						a.read(want.base(), n-from)
						set.Copy(got.base(), b.at, b.axes, size, n-from)
						if m := (n - from) * size; string(want.raw()[:m]) != string(got.raw()[:m]) {
							t.Errorf("%s: copies of %v of shape %v with strides %v differ", set.Name, d, v.Shape, v.Strides)
						}
					}
				}
			}
		}
	}
}

// TestCountingIsThatOfGo compares the elements of array.arange with sums in Go.
func TestCountingIsThatOfGo(t *testing.T) {
	const n = 40001 // more than a piece
	for _, set := range simd.Sets() {
		values := []float32{0.1, 0.3}
		got := make([]float32, n)
		set.Count(simd.Float32, slicePointer(got), 7, n, slicePointer(values))
		for i, x := range got {
			if want := values[0] + float32(float32(i+7)*(values[1]-values[0])); x != want {
				t.Fatalf("%s: element %d is %v, want %v", set.Name, i, x, want)
			}
		}
	}
	x := mustRun(t, "array.arange", nil, int64(-5), int64(3*n), int64(3)).(*Tensor)
	for i, v := range elements[int64](x) {
		if v != -5+3*int64(i) {
			t.Fatalf("element %d is %d", i, v)
		}
	}
}

// TestResultsInPlaceAndBackwardsAreWhole computes many pieces on two processors.
func TestResultsInPlaceAndBackwardsAreWhole(t *testing.T) {
	const n = 10*pieceBytes/8 + 77
	x := mustRun(t, "array.arange", nil, int64(n)).(*Tensor)
	ctx := WithEnv(context.Background(), Env{Cores: func() int { return 2 }})
	root, err := parseExpr("x0*3-x0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := compile(root, numbered(1), []compiled{{operand: operand{dtype: Int64}}}, Invalid)
	if err != nil {
		t.Fatal(err)
	}
	if err := mapProgram(p, ctx, x, []*Tensor{x}); err != nil {
		t.Fatal(err)
	}
	for i, v := range elements[int64](x) {
		if v != 2*int64(i) {
			t.Fatalf("element %d is %d", i, v)
		}
	}
	backwards, err := NewTensor(Int64, []int64{n})
	if err != nil {
		t.Fatal(err)
	}
	if err := copyInto(ctx, backwards, &Tensor{DType: Int64, Shape: []int64{n}, Strides: []int64{-8}, Offset: 8 * (n - 1), Data: x.Data}); err != nil {
		t.Fatal(err)
	}
	for i, v := range elements[int64](backwards) {
		if v != 2*int64(n-1-i) {
			t.Fatalf("element %d backwards is %d", i, v)
		}
	}
}
