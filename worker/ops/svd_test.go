package ops

import (
	"context"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/worker/ops/lapack"
)

func productWith(tb testing.TB, env Env, a, b any) *Tensor {
	tb.Helper()
	return mustRunWith(tb, env, "array.matmul", nil, a, b).(*Tensor)
}

// checkSVD compares the product of the factors with the matrix, the values without vectors with
// those with vectors, and looks whether the vectors are orthonormal and the values are sorted.
func checkSVD(t *testing.T, env Env, x *Tensor, tolerance float64) {
	t.Helper()
	parts := mustRunWith(t, env, "array.svd", nil, x).([]any)
	u, s, vt := parts[0], parts[1].(*Tensor), parts[2]
	k := s.Shape[0]
	near(t, identity(t, k), productWith(t, env, transposedOf(t, u), u), tolerance)
	near(t, identity(t, k), productWith(t, env, vt, transposedOf(t, vt)), tolerance)
	values := elements[float64](s)
	size := values[0]
	for i := range values {
		if values[i] < 0 || i > 0 && values[i] > values[i-1] {
			t.Errorf("the values are not in descending order: %v", values[:i+1])
			break
		}
	}
	if size == 0 {
		size = 1
	}
	scaled := func(y any) *Tensor { return mustRun(t, "array.map", named{"a": size}, "x0 / a", y).(*Tensor) }
	near(t, scaled(x), productWith(t, env, mustRun(t, "array.map", nil, "x0 * x1", u, scaled(s)), vt), tolerance)
	near(t, scaled(s), scaled(mustRunWith(t, env, "array.svd", named{"vectors": false}, x)), tolerance)
}

// TestSingularValuesAndVectorsOfManyMatrices: of tall, wide and square ones, with leaves and
// merges, values that are equal or zero, and of all magnitudes.
func TestSingularValuesAndVectorsOfManyMatrices(t *testing.T) {
	eachLinalg(t, func(t *testing.T, env Env) {
		t.Helper()
		rapid.Check(t, func(rt *rapid.T) {
			rows := rapid.SampledFrom([]int64{1, 2, 3, 30, 99, 101, 130, 250, 320}).Draw(rt, "rows")
			columns := rapid.SampledFrom([]int64{1, 2, 5, 64, 65, 100, 101, 102, 210, 330}).Draw(rt, "columns")
			if linalg := env.Linalg; linalg == nil {
				rows, columns = min(rows, 130), min(columns, 102)
			}
			k := min(rows, columns)
			seed := rapid.Int64Range(0, 1000).Draw(rt, "seed")
			x := mustRun(t, "array.random", nil, list(rows, columns), seed, "normal").(*Tensor)
			switch rapid.SampledFrom([]string{"full", "low", "equal", "sparse", "diagonal", "zero"}).Draw(rt, "kind") {
			case "low":
				rank := rapid.Int64Range(1, k).Draw(rt, "rank")
				x = productOf(t, mustRun(t, "array.random", nil, list(rows, rank), seed, "normal"), mustRun(t, "array.random", nil, list(rank, columns), seed+1, "normal"))
			case "equal": // an orthogonal matrix: all values are 1
				q := mustRun(t, "array.qr", nil, mustRun(t, "array.random", nil, list(max(rows, columns), k), seed, "normal")).([]any)[0].(*Tensor)
				if x = q; rows < columns {
					x = transposedOf(t, q)
				}
			case "sparse":
				x = mustRun(t, "array.map", nil, "where(x1 > 0.02, 0, x0)", x, mustRun(t, "array.random", nil, list(rows, columns), seed+2)).(*Tensor)
			case "diagonal":
				for i := range rows {
					for j := range columns {
						if i != j {
							elements[float64](x)[i*columns+j] = 0
						}
					}
				}
			case "zero":
				clear(elements[float64](x))
			}
			scale := rapid.SampledFrom([]float64{1, 1e-300, 1e300, 1e-160, 3e150}).Draw(rt, "scale")
			x = mustRun(t, "array.map", named{"a": scale}, "x0 * a", x).(*Tensor)
			checkSVD(t, env, x, 1e-12)
			if t.Failed() {
				rt.FailNow()
			}
		})
	})
}

// TestFactorsWithAShortReflector: the second reflector ends before the first one.
func TestFactorsWithAShortReflector(t *testing.T) {
	const rows, columns = 50, 40
	eachLinalg(t, func(t *testing.T, env Env) {
		t.Helper()
		x := mustRun(t, "array.random", nil, list(rows, columns), int64(1), "normal").(*Tensor)
		elements := elements[float64](x)
		for row := range rows { // the first column has only its ends, and the second one rows 1 and 2
			if row != 0 && row != rows-1 {
				elements[row*columns] = 0
			}
			if row != 1 && row != 2 {
				elements[row*columns+1] = 0
			}
		}
		parts := mustRunWith(t, env, "array.qr", nil, x).([]any)
		near(t, identity(t, columns), productWith(t, env, transposedOf(t, parts[0]), parts[0]), 1e-12)
		near(t, x, productWith(t, env, parts[0], parts[1]), 1e-12)
		checkSVD(t, env, x, 1e-12)
	})
}

func TestSVDOfLargeMatrices(t *testing.T) {
	eachLinalg(t, func(t *testing.T, env Env) {
		t.Helper()
		if env.Linalg == nil {
			return // the Go code has no sizes at which it changes its way
		}
		for _, shape := range [][2]int64{{640, 500}, {430, 520}, {16000, 120}, {1100, 1024}} {
			checkSVD(t, env, mustRun(t, "array.random", nil, list(shape[0], shape[1]), int64(3), "normal").(*Tensor), 1e-12)
		}
	})
}

// TestLibraryCallsLookWhetherTheyWereCancelled: the computations by the library end at the next
// look, wherever it is.
func TestLibraryCallsLookWhetherTheyWereCancelled(t *testing.T) {
	lib := linalgFor(t)
	if lib == nil {
		return
	}
	for _, c := range []struct {
		op    string
		named named
		shape []int64
		least int64
	}{
		{"array.svd", nil, []int64{330, 300}, 100},
		{"array.svd", nil, []int64{2000, 60}, 30},
		{"array.svd", named{"vectors": false}, []int64{300, 300}, 20},
		{"array.qr", nil, []int64{300, 300}, 50},
		{"array.qr", nil, []int64{20000, 50}, 20},
		{"array.qr", named{"mode": "r"}, []int64{20000, 50}, 20},
	} {
		op, err := NewRegistry().Lookup(c.op)
		if err != nil {
			t.Fatal(err)
		}
		x := mustRun(t, "array.random", nil, list(c.shape[0], c.shape[1]), int64(1)).(*Tensor)
		args := Args{Positional: []any{x}, Named: c.named}
		whole := &asked{Context: WithEnv(t.Context(), Env{Linalg: lib}), until: math.MaxInt64}
		if _, err := op.Run(whole, args, NewTensor); err != nil {
			t.Fatal(err)
		}
		looks := whole.times.Load()
		if looks < c.least {
			t.Errorf("%s%v of %v looked %d times only", c.op, c.named, c.shape, looks)
		}
		for until := int64(0); until < looks; until += 1 + looks/17 {
			ctx := &asked{Context: WithEnv(t.Context(), Env{Linalg: lib}), until: until}
			if _, err := op.Run(ctx, args, NewTensor); !errors.Is(err, context.Canceled) {
				t.Errorf("%s%v of %v, cancelled after %d looks: %v", c.op, c.named, c.shape, until, err)
			}
		}
	}
}

// TestAPanelInPiecesIsThatOfTheLibrary compares with dlabrd.
func TestAPanelInPiecesIsThatOfTheLibrary(t *testing.T) {
	lib := linalgFor(t)
	if lib == nil {
		return
	}
	const m, n, width, first = 700, 420, 20, 5
	ctx := WithEnv(t.Context(), Env{Linalg: lib, Cores: func() int { return 3 }})
	source := elements[float64](mustRun(t, "array.random", nil, list(n, m+8), int64(1), "normal").(*Tensor))
	var results [2][][]float64
	for i := range results {
		b, err := newBidiagonal(ctx, m, n)
		if err != nil {
			t.Fatal(err)
		}
		copy(b.a, source)
		x, y := make([]float64, m*width), make([]float64, n*width)
		if i == 0 {
			err = (&bidiagonalPanel{b, first, m - first, n - first, x, y, make([]float64, n)}).reduce(ctx, width)
		} else {
			err = b.call("dlabrd", lapack.Int(m-first), lapack.Int(n-first), lapack.Int(width), b.at(first, first), lapack.Int(b.ld),
				lapack.Array(b.d[first:]), lapack.Array(b.e[first:]), lapack.Array(b.tauQ[first:]), lapack.Array(b.tauP[first:]),
				lapack.Array(x), lapack.Int(m), lapack.Array(y), lapack.Int(n))
		}
		if err != nil {
			t.Fatal(err)
		}
		results[i] = [][]float64{b.a, b.d, b.e, b.tauQ, b.tauP, x[m-first-100 : m-first], y[n-first-100 : n-first]}
	}
	for k := range results[0] {
		for i, got := range results[0][k] {
			if want := results[1][k][i]; !nearFloats(got, want, 1e-11) {
				t.Fatalf("result %d: at %d: %v, want %v", k, i, got, want)
			}
		}
	}
}

// TestLibrariesHaveTheRoutinesOfFactorisations: without one of these, a factorisation is computed
// in Go.
func TestLibrariesHaveTheRoutinesOfFactorisations(t *testing.T) {
	for _, l := range linalgAll(t) {
		if !hasSVD(l.library) {
			t.Errorf("%s lacks a routine of %v, %v and %v", l.library.File, reflectionRoutines, bidiagonalRoutines, divideRoutines)
		}
	}
}
