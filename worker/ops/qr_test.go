package ops

import (
	"math"
	"slices"
	"testing"
)

// transposedOf returns the transpose of a matrix.
func transposedOf(tb testing.TB, x any) *Tensor {
	tb.Helper()
	return mustRun(tb, "array.transpose", nil, x).(*Tensor)
}

func productOf(tb testing.TB, a, b any) *Tensor {
	tb.Helper()
	return mustRun(tb, "array.matmul", nil, a, b).(*Tensor)
}

// TestFactorsMultiplyToTheMatrix: also of a tree with three levels, of leaves that are not of the
// same size, and of several panels.
func TestFactorsMultiplyToTheMatrix(t *testing.T) {
	eachLinalg(t, func(t *testing.T, env Env) {
		t.Helper()
		for _, shape := range [][2]int64{{40, 7}, {7, 40}, {9, 9}, {1, 5}, {300, 33}, {3, 0}, {130, 100}, {100, 130}, {128, 64}, {9001, 61}, {20003, 100}, {5, 9000}} {
			if env.Linalg == nil && shape[0] > 5000 {
				continue // the Go code makes no trees
			}
			for _, dtype := range []string{"float64", "float32"} {
				x := mustRun(t, "array.random", named{"dtype": dtype}, list(shape[0], shape[1]), int64(5), "normal").(*Tensor)
				tolerance := map[string]float64{"float64": 1e-12, "float32": 1e-4}[dtype]
				qr := mustRunWith(t, env, "array.qr", nil, x).([]any)
				near(t, x, productOf(t, qr[0], qr[1]), tolerance)
				near(t, identity(t, min(shape[0], shape[1])), productOf(t, transposedOf(t, qr[0]), qr[0]), tolerance)
				near(t, qr[1].(*Tensor), mustRunWith(t, env, "array.qr", named{"mode": "r"}, x).(*Tensor), tolerance)
				r := qr[1].(*Tensor)
				for i := range r.Shape[0] {
					for j := range min(i, r.Shape[1]) {
						if at, err := r.At(i, j); err != nil || at != 0.0 {
							t.Fatalf("%v: r has %v below the diagonal: %v", shape, at, err)
						}
					}
				}
				if max(shape[0], shape[1]) > 5000 {
					continue
				}
				svd := mustRunWith(t, env, "array.svd", nil, x).([]any)
				us := mustRun(t, "array.map", nil, "x0*x1", svd[0], svd[1])
				near(t, x, productOf(t, us, svd[2]), tolerance)
				near(t, identity(t, min(shape[0], shape[1])), productOf(t, transposedOf(t, svd[0]), svd[0]), tolerance)
				near(t, identity(t, min(shape[0], shape[1])), productOf(t, svd[2], transposedOf(t, svd[2])), tolerance)
				near(t, svd[1].(*Tensor), mustRunWith(t, env, "array.svd", named{"vectors": false}, x).(*Tensor), tolerance)
			}
		}
	})
}

// TestTheSignsOfATreeAreThoseOfHouseholdersReflections compares with the Go code, which reflects
// the whole matrix.
func TestTheSignsOfATreeAreThoseOfHouseholdersReflections(t *testing.T) {
	lib := linalgFor(t)
	if lib == nil {
		return
	}
	for _, shape := range [][2]int64{{400_000, 1}, {450_001, 2}, {100_000, 5}, {9000, 61}, {5000, 130}} {
		if !isTall(int(shape[0]), int(shape[1])) {
			t.Fatalf("%v makes no tree", shape)
		}
		x := mustRun(t, "array.random", nil, list(shape[0], shape[1]), int64(6), "normal").(*Tensor)
		whole := mustRun(t, "array.qr", nil, x).([]any)
		tree := mustRunWith(t, Env{Linalg: lib}, "array.qr", nil, x).([]any)
		near(t, whole[1].(*Tensor), tree[1].(*Tensor), 1e-11)
		near(t, whole[0].(*Tensor), tree[0].(*Tensor), 1e-12)
	}
}

// TestFactorsOfSingularMatricesAreOrthonormal: also of matrices that are singular but for rounding,
// and of zeros.
func TestFactorsOfSingularMatricesAreOrthonormal(t *testing.T) {
	eachLinalg(t, func(t *testing.T, env Env) {
		t.Helper()
		for _, rows := range []int64{90, 12000} {
			if env.Linalg == nil && rows > 5000 {
				continue
			}
			const n = 40
			base := mustRun(t, "array.random", nil, list(rows, 6), int64(7), "normal")
			low := productOf(t, base, mustRun(t, "array.random", nil, list(6, n), int64(8), "normal"))
			noise := mustRun(t, "array.random", nil, list(rows, n), int64(9), "normal")
			scales := mustRun(t, "array.map", nil, "10.0 ** (-x0 * 0.5)", mustRun(t, "array.arange", nil, int64(n)))
			for name, x := range map[string]*Tensor{
				"of low rank":  low,
				"nearly so":    mustRun(t, "array.map", nil, "x0 + 1e-14 * x1", low, noise).(*Tensor),
				"graded":       mustRun(t, "array.map", nil, "x0 * x1", noise, scales).(*Tensor),
				"zero":         mustRun(t, "array.map", nil, "x0 * 0", noise).(*Tensor),
				"some columns": mustRun(t, "array.map", nil, "x0 * (x1 % 3 == 1)", noise, mustRun(t, "array.arange", nil, int64(n))).(*Tensor),
				"large":        mustRun(t, "array.map", nil, "x0 * 1e300", noise).(*Tensor),
				"small":        mustRun(t, "array.map", nil, "x0 * 1e-300", noise).(*Tensor),
			} {
				qr := mustRunWith(t, env, "array.qr", nil, x).([]any)
				near(t, identity(t, n), productOf(t, transposedOf(t, qr[0]), qr[0]), 1e-12)
				size := mustRun(t, "array.reduce", nil, mustRun(t, "array.map", nil, "abs(x0)", x), "max").(*Tensor)
				scaled := func(y any) *Tensor {
					return mustRun(t, "array.map", nil, "where(x1 == 0, x0, x0 / x1)", y, size).(*Tensor)
				}
				near(t, scaled(x), productOf(t, qr[0], scaled(qr[1])), 1e-12)
				if t.Failed() {
					t.Fatalf("of %d rows, %s", rows, name)
				}
			}
		}
	})
}

func TestFactorsDoNotDependOnTheNumberOfProcessors(t *testing.T) {
	lib := linalgFor(t)
	if lib == nil {
		return
	}
	for _, shape := range [][2]int64{{12000, 50}, {300, 260}, {260, 300}} {
		x := mustRun(t, "array.random", nil, list(shape[0], shape[1]), int64(6), "normal").(*Tensor)
		for _, op := range []string{"array.qr", "array.svd"} {
			if op == "array.svd" && shape[0] > 5000 {
				continue
			}
			one := mustRunWith(t, Env{Linalg: lib}, op, nil, x).([]any)
			five := mustRunWith(t, Env{Linalg: lib, Cores: func() int { return 5 }}, op, nil, x).([]any)
			for i := range one {
				if !slices.Equal(one[i].(*Tensor).raw(), five[i].(*Tensor).raw()) {
					t.Errorf("%s of %v: one processor and five give another result %d", op, shape, i)
				}
			}
		}
	}
}

// counted is working memory that counts its bytes.
type counted struct{ bytes int64 }

func (c *counted) Scratch(bytes int64) ([]byte, error) {
	c.bytes += bytes
	return heapBytes(bytes), nil
}

// TestPartsThatAreNotWantedTakeNoMemory: without q and without vectors, less memory is used.
func TestPartsThatAreNotWantedTakeNoMemory(t *testing.T) {
	eachLinalg(t, func(t *testing.T, env Env) {
		t.Helper()
		memory := func(op string, named named, x *Tensor) float64 {
			room := &counted{}
			env.Scratch = room
			mustRunWith(t, env, op, named, x)
			return float64(room.bytes) / float64(x.Bytes())
		}
		for _, c := range []struct {
			rows, columns int
			most          [2]float64
		}{{12000, 50, [2]float64{1.1, 1.2}}, {500, 400, [2]float64{2.1, 1.8}}} {
			x := mustRun(t, "array.random", nil, list(c.rows, c.columns), int64(6), "normal").(*Tensor)
			for i, whole := range []float64{memory("array.qr", named{"mode": "r"}, x), memory("array.svd", named{"vectors": false}, x)} {
				if !(whole <= c.most[i]) || math.IsNaN(whole) {
					t.Errorf("%d x %d: case %d took %.2f times the memory of the matrix", c.rows, c.columns, i, whole)
				}
			}
		}
	})
}
