package ops

import (
	"fmt"
	"strings"
	"testing"
)

func TestFactorsOfCholeskyMultiplyToTheMatrix(t *testing.T) {
	for dtype, tolerance := range map[string]float64{"float32": 1e-3, "float64": 1e-11, "complex64": 1e-3, "complex128": 1e-11} {
		sizes := []int{1, 31, 65, 150}
		if dtype == "float64" {
			sizes = append(sizes, 530)
		}
		for _, n := range sizes {
			// x is not symmetric, and complex on its diagonal: only its lower triangle counts.
			x := definite(t, dtype, n, n)
			eachLinalg(t, func(t *testing.T, env Env) {
				t.Helper()
				l := mustRunWith(t, env, "array.cholesky", nil, x).(*Tensor)
				product := mustRun(t, "array.matmul", nil, l, mustRun(t, "array.map", nil, "conj(x0)", turned(l))).(*Tensor)
				for i := range int64(n) {
					for j := range int64(n) {
						if j > i {
							if v := complexOf(t, l, i, j); v != 0 {
								t.Fatalf("%s, %d rows: %v above the diagonal at %d, %d", dtype, n, v, i, j)
							}
							continue
						}
						want := complexOf(t, x, i, j)
						if i == j {
							want = complex(real(want), 0)
						}
						if d := complexOf(t, product, i, j) - want; !(real(d)*real(d)+imag(d)*imag(d) <= tolerance*tolerance*float64(n*n)) {
							t.Fatalf("%s, %d rows: at %d, %d the product is off by %v", dtype, n, i, j, d)
						}
					}
				}
			})
		}
	}
}

func TestSolutionsSatisfyTheEquations(t *testing.T) {
	for dtype, tolerance := range map[string]float64{"float32": 1e-1, "float64": 1e-9, "complex64": 1e-1, "complex128": 1e-9} {
		for _, shapes := range [][2][]int{
			{{1, 1}, {1}}, {{70, 70}, {70}}, {{150, 150}, {150, 7}}, {{300, 300}, {300, 300}}, {{530, 530}, {530}}, {{3, 1, 40, 40}, {4, 40, 2}}, {{300, 5, 5}, {5, 2}},
		} {
			a, b := normal(t, dtype, shapes[0]...), normal(t, dtype, shapes[1]...)
			eachLinalg(t, func(t *testing.T, env Env) {
				t.Helper()
				x := mustRunWith(t, env, "array.solve", nil, a, b)
				off := mustRun(t, "array.map", nil, "abs(x0 - x1)", mustRun(t, "array.matmul", nil, a, x), b)
				most, err := mustRun(t, "array.reduce", nil, off, "max").(*Tensor).Item()
				if err != nil {
					t.Fatal(err)
				}
				if !(most.(float64) <= tolerance) {
					t.Errorf("%s %v: the equations are off by %v", dtype, shapes, most)
				}
			})
		}
	}
}

// set changes one element of a matrix, or of several.
func set(t *testing.T, x *Tensor, value any, index ...int64) {
	t.Helper()
	one := &Tensor{DType: x.DType, Data: x.Data}
	for i, at := range index {
		one.Offset += at * x.Strides[i]
	}
	if err := putScalar(one, value); err != nil {
		t.Fatal(err)
	}
}

func TestErrorsNameTheMatrixAndThePlace(t *testing.T) {
	for _, n := range []int64{5, 100, 600} {
		row := n - 2
		several := definite(t, "float64", 2, 2, int(n), int(n))
		set(t, several, -1.0, 1, 0, row, row)
		one := definite(t, "complex64", int(n), int(n))
		set(t, one, -1.0, row, row)
		singular := definite(t, "float64", 2, 2, int(n), int(n))
		equal := definite(t, "float64", int(n), int(n))
		for i := range n {
			set(t, singular, 0.0, 1, 1, i, row)
			set(t, equal, 0.0, i, row)
		}
		eachLinalg(t, func(t *testing.T, env Env) {
			t.Helper()
			for _, c := range []struct {
				op   string
				args []any
				want string
			}{
				{"array.cholesky", []any{several}, fmt.Sprintf("matrix x[1 0] is not positive definite: so says its row %d.", row)},
				{"array.cholesky", []any{one}, fmt.Sprintf("matrix x is not positive definite: so says its row %d.", row)},
				{"array.solve", []any{singular, normal(t, "float64", int(n), 1)}, fmt.Sprintf("matrix a[1 1] is singular: its column %d depends", row)},
				{"array.solve", []any{equal, normal(t, "float64", int(n))}, fmt.Sprintf("matrix a is singular: its column %d depends", row)},
			} {
				_, err := runWith(t, env, c.op, nil, c.args...)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s with %d rows: %v, want %q", c.op, n, err, c.want)
				}
			}
		})
	}
}
