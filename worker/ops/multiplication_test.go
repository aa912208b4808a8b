package ops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

// normal returns a tensor of normal numbers.
func normal(tb testing.TB, dtype string, shape ...int) *Tensor {
	tb.Helper()
	return mustRun(tb, "array.random", named{"dtype": dtype}, list(shape...), int64(len(shape)+shape[0]), "normal").(*Tensor)
}

// turned returns a view with the last two axes exchanged.
func turned(x *Tensor) *Tensor {
	y, n := *x, x.NDim()
	y.Shape = append(append([]int64{}, x.Shape[:n-2]...), x.Shape[n-1], x.Shape[n-2])
	y.Strides = append(append([]int64{}, x.Strides[:n-2]...), x.Strides[n-1], x.Strides[n-2])
	return &y
}

func complexOf(tb testing.TB, x *Tensor, index ...int64) complex128 {
	tb.Helper()
	v, err := x.At(index...)
	if err != nil {
		tb.Fatal(err)
	}
	switch v := v.(type) {
	case float64:
		return complex(v, 0)
	case int64:
		return complex(float64(v), 0)
	}
	return v.(complex128)
}

// products are pairs of operands that are multiplied in different ways: in one piece, in pieces of
// the output or of the inner length, by vectors, and with a symmetric result.
func products(tb testing.TB, dtype string) map[string][2]*Tensor {
	tb.Helper()
	square, tall, batch := normal(tb, dtype, 300, 300), normal(tb, dtype, 9000, 60), normal(tb, dtype, 70, 3, 64)
	return map[string][2]*Tensor{
		"small":                {normal(tb, dtype, 20, 30), normal(tb, dtype, 30, 17)},
		"wide":                 {normal(tb, dtype, 33, 300), normal(tb, dtype, 300, 1100)},
		"of a transposed":      {turned(normal(tb, dtype, 300, 233)), normal(tb, dtype, 300, 290)},
		"by a transposed":      {normal(tb, dtype, 233, 300), turned(normal(tb, dtype, 311, 300))},
		"row by matrix":        {normal(tb, dtype, 2100), normal(tb, dtype, 2100, 900)},
		"matrix by column":     {normal(tb, dtype, 900, 2100), normal(tb, dtype, 2100)},
		"turned by column":     {turned(normal(tb, dtype, 2100, 900)), normal(tb, dtype, 2100)},
		"row by turned":        {normal(tb, dtype, 2100), turned(normal(tb, dtype, 900, 2100))},
		"row by row":           {normal(tb, dtype, 300001), normal(tb, dtype, 300001)},
		"long":                 {turned(tall), normal(tb, dtype, 9000, 50)},
		"long by itself":       {turned(tall), tall},
		"square by itself":     {square, turned(square)},
		"turned by itself":     {turned(square), square},
		"many":                 {batch, turned(batch)},
		"many by one":          {batch, normal(tb, dtype, 64, 5)},
		"many large":           {normal(tb, dtype, 2, 200, 210), normal(tb, dtype, 1, 210, 190)},
		"many dots":            {normal(tb, dtype, 90, 1, 200), normal(tb, dtype, 90, 200, 1)},
		"many by vectors":      {normal(tb, dtype, 5, 6, 30, 20), normal(tb, dtype, 6, 20, 1)},
		"many vectors":         {turned(normal(tb, dtype, 40, 30, 1)), normal(tb, dtype, 40, 30, 20)},
		"many tiny":            {normal(tb, dtype, 500, 3, 4), normal(tb, dtype, 500, 4, 2)},
		"tall by thin":         {tall, normal(tb, dtype, 60, 3)},
		"columns of one piece": {normal(tb, dtype, 1000, 200), normal(tb, dtype, 200, 65)},
	}
}

func TestLargeProductsAreSumsOfProducts(t *testing.T) {
	for dtype, tolerance := range map[string]float64{"float32": 1e-4, "float64": 1e-12, "complex64": 2e-4, "complex128": 1e-12} {
		for name, p := range products(t, dtype) {
			if dtype != "float64" && !strings.Contains("small, row by matrix, matrix by column, long by itself, square by itself, many", name) {
				continue // the code of all types is the same, except the calls of the library
			}
			t.Run(dtype+" "+name, func(t *testing.T) {
				eachLinalg(t, func(t *testing.T, env Env) {
					t.Helper()
					got := mustRunWith(t, env, "array.matmul", nil, p[0], p[1]).(*Tensor)
					a, b := matricesOf(p[0], p[1])
					n := got.Len()
					for at := int64(0); at < n; at += max(1, n/23) {
						checkProduct(t, got, a, b, at, tolerance)
					}
					checkProduct(t, got, a, b, n-1, tolerance)
				})
			})
		}
	}
}

// matricesOf returns the operands of a product with at least two axes each.
func matricesOf(a, b *Tensor) (*Tensor, *Tensor) {
	if a.NDim() == 1 {
		a = &Tensor{DType: a.DType, Shape: []int64{1, a.Shape[0]}, Strides: []int64{0, a.Strides[0]}, Offset: a.Offset, Data: a.Data}
	}
	if b.NDim() == 1 {
		b = &Tensor{DType: b.DType, Shape: []int64{b.Shape[0], 1}, Strides: []int64{b.Strides[0], 0}, Offset: b.Offset, Data: b.Data}
	}
	return a, b
}

// checkProduct compares one element of a product, counted in C order, with the sum of products.
func checkProduct(t *testing.T, got, a, b *Tensor, at int64, tolerance float64) {
	t.Helper()
	m, k, n := a.Shape[a.NDim()-2], a.Shape[a.NDim()-1], b.Shape[b.NDim()-1]
	place := func(x *Tensor, row, column int64) []int64 {
		if x.NDim() == 2 {
			return []int64{row, column}
		}
		index, number := []int64{}, at/(m*n)
		for i := x.NDim() - 3; i >= 0; i-- {
			index = append([]int64{min(number%got.Shape[got.NDim()-x.NDim()+i], x.Shape[i]-1)}, index...)
			number /= got.Shape[got.NDim()-x.NDim()+i]
		}
		return append(index, row, column)
	}
	var sum complex128
	size := 0.0
	for l := range k {
		x, y := complexOf(t, a, place(a, at/n%m, l)...), complexOf(t, b, place(b, l, at%n)...)
		sum += x * y
		size += math.Abs(real(x)) + math.Abs(imag(x))
	}
	flat := Tensor{DType: got.DType, Shape: []int64{got.Len()}, Strides: []int64{got.DType.Size()}, Data: got.Data}
	if x := complexOf(t, &flat, at); !(math.Hypot(real(x-sum), imag(x-sum)) <= tolerance*(1+size)) {
		t.Fatalf("element %d is %v, want %v", at, x, sum)
	}
}

// definite returns a positive definite matrix, or several.
func definite(tb testing.TB, dtype string, shape ...int) *Tensor {
	tb.Helper()
	n := shape[len(shape)-1]
	one := mustRun(tb, "array.cast", nil, identity(tb, int64(n)), dtype)
	return mustRun(tb, "array.map", nil, fmt.Sprintf("x0 * 0.1 + %d * x1", n), normal(tb, dtype, shape...), one).(*Tensor)
}

func TestResultsDoNotDependOnTheNumberOfProcessors(t *testing.T) {
	lib := linalgFor(t)
	check := func(name, op string, args ...any) {
		for _, linalg := range []bool{true, false} {
			one, five := Env{}, Env{Cores: func() int { return 5 }}
			if linalg {
				one.Linalg, five.Linalg = lib, lib
			}
			a, b := mustRunWith(t, one, op, nil, args...).(*Tensor), mustRunWith(t, five, op, nil, args...).(*Tensor)
			if !bytes.Equal(a.raw(), b.raw()) {
				t.Errorf("%s %s, with a library %v: other bits on five processors than on one", op, name, linalg)
			}
		}
	}
	for name, p := range products(t, "float64") {
		check(name, "array.matmul", p[0], p[1])
	}
	for _, n := range []int{30, 300, 700} {
		check(fmt.Sprint(n), "array.cholesky", definite(t, "float64", n, n))
		check(fmt.Sprint(n), "array.solve", normal(t, "float64", n, n), normal(t, "float64", n, 300))
	}
	check("of many", "array.solve", normal(t, "complex64", 50, 20, 20), normal(t, "complex64", 20, 3))
	check("of integers", "array.matmul", mustRun(t, "array.random", named{"high": int64(100)}, list(300, 200), int64(1), "integers"), mustRun(t, "array.random", named{"high": int64(100)}, list(200, 2000), int64(2), "integers"))
}

func TestLinearAlgebraLooksWhetherItWasCancelled(t *testing.T) {
	whole := mustRun(t, "array.random", named{"high": int64(9)}, list(400, 400), int64(1), "integers")
	for _, c := range []struct {
		op   string
		args []any
	}{
		{"array.matmul", []any{normal(t, "float64", 600, 600), normal(t, "float64", 600, 600)}},
		{"array.matmul", []any{normal(t, "float64", 4000, 8, 8), normal(t, "float64", 4000, 8, 8)}},
		{"array.matmul", []any{whole, whole}},
		{"array.cholesky", []any{definite(t, "float64", 600, 600)}},
		{"array.solve", []any{normal(t, "float64", 600, 600), normal(t, "float64", 600, 600)}},
		{"array.einsum", []any{"ij,jk,kl->il", normal(t, "float64", 300, 200), normal(t, "float64", 200, 300), normal(t, "float64", 300, 300)}},
	} {
		op, err := NewRegistry().Lookup(c.op)
		if err != nil {
			t.Fatal(err)
		}
		eachLinalg(t, func(t *testing.T, env Env) {
			t.Helper()
			env.Cores = nil // the number of looks is the same each time
			whole := &asked{Context: t.Context(), until: math.MaxInt64}
			if _, err := op.Run(WithEnv(whole, env), Args{Positional: c.args}, NewTensor); err != nil {
				t.Fatal(err)
			}
			if whole.times.Load() < 3 {
				t.Errorf("%s looked %d times only", c.op, whole.times.Load())
			}
			for until := int64(0); until < whole.times.Load(); until += 1 + whole.times.Load()/17 {
				ctx := &asked{Context: t.Context(), until: until}
				if _, err := op.Run(WithEnv(ctx, env), Args{Positional: c.args}, NewTensor); !errors.Is(err, context.Canceled) {
					t.Errorf("%s, cancelled after %d looks: %v", c.op, until, err)
				}
			}
		})
	}
}
