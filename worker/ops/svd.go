package ops

import (
	"context"
	"errors"
	"math"
	"runtime"

	"github.com/millrace/millrace/worker/ops/lapack"
)

func planSVD(c *call) (*Planned, error) {
	x, dtype, err := realMatrix(c)
	if err != nil {
		return nil, err
	}
	m, n := x.Shape[0], x.Shape[1]
	k := min(m, n)
	if !c.bool("vectors") {
		return single(dtype, []int64{k}, &FactoringSVD{x, true}, func(ctx context.Context, out *Tensor) error {
			return svdInto(ctx, c, nil, out, nil, x)
		}), nil
	}
	return several([]Output{{dtype, []int64{m, k}}, {dtype, []int64{k}}, {dtype, []int64{k, n}}}, &FactoringSVD{x, false}, func(ctx context.Context, outs []*Tensor) error {
		return svdInto(ctx, c, outs[0], outs[1], outs[2], x)
	}), nil
}

// svdInto factors x. u and vt may be nil, both: then only the singular values are wanted.
func svdInto(ctx context.Context, c *call, u, s, vt, x *Tensor) error {
	if x.Len() == 0 {
		return ctx.Err()
	}
	x, err := floatMatrix(ctx, x)
	if err != nil {
		return err
	}
	most, err := largest(ctx, x)
	if err != nil {
		return err
	}
	if !(most <= math.MaxFloat64) {
		return &Error{Kind: Failed, Op: c.op.Name, Argument: "x", Reason: "the singular values would not converge: there is NaN or infinity in x"}
	}
	if x.Shape[0] < x.Shape[1] { // the factors of the transpose are the transposed factors of x
		x = transposeOf(x)
		if u != nil {
			u, vt = transposeOf(vt), transposeOf(u)
		}
	}
	x, scale, err := rescaled(ctx, x, most)
	if err != nil {
		return err
	}
	var values []float64
	if library := envOf(ctx).Linalg; library != nil && hasSVD(library) {
		values, err = svdByLibrary(ctx, u, vt, x)
	} else {
		values, err = svdInGo(ctx, u, vt, x)
	}
	if errors.Is(err, errNoConvergence) {
		return &Error{Kind: Failed, Op: c.op.Name, Reason: err.Error()}
	}
	if err != nil {
		return err
	}
	for i := range values {
		values[i] /= scale
	}
	return store(ctx, s, values)
}

// rescaled returns x as it is, or multiplied by a power of two if the squares of its elements would
// overflow or underflow; and the factor. most is the largest absolute value.
func rescaled(ctx context.Context, x *Tensor, most float64) (*Tensor, float64, error) {
	const large, small = 0x1p400, 0x1p-400
	if most == 0 || most >= small && most <= large {
		return x, 1, nil
	}
	_, exponent := math.Frexp(most)
	exponent = min(max(-exponent, -1000), 1000)
	x, err := contiguousIn(ctx, x, Float64)
	if err != nil {
		return nil, 0, err
	}
	values := elements[float64](x)
	err = eachPiece(ctx, len(values), checkEvery, func(from, to int) error {
		for i := from; i < to; i++ {
			values[i] = math.Ldexp(values[i], exponent)
		}
		return nil
	})
	return x, math.Ldexp(1, exponent), err
}

// svdInGo computes the singular values of x, and stores the vectors in u and vt unless these are
// nil. REQUIRES: x is float32 or float64, with as many rows as columns at least.
func svdInGo(ctx context.Context, u, vt, x *Tensor) ([]float64, error) {
	m, n := int(x.Shape[0]), int(x.Shape[1])
	a, err := float64Copy(ctx, x)
	if err != nil {
		return nil, err
	}
	left, values, right, err := svd(ctx, a, m, n, u != nil)
	if err != nil || u == nil {
		return values, err
	}
	if err := moveAll(ctx, u, rowMajor(left, m, n)); err != nil {
		return nil, err
	}
	return values, moveAll(ctx, vt, rowMajor(right, n, n))
}

// hasSVD reports whether the library has the routines of svdByLibrary.
func hasSVD(library *lapack.Library) bool {
	return library.Has(reflectionRoutines...) && library.Has(bidiagonalRoutines...) && library.Has(divideRoutines...) && library.Has("dbdsqr")
}

// svdByLibrary is svdInGo by the library. A tall matrix is factored into q and r first.
func svdByLibrary(ctx context.Context, u, vt, x *Tensor) ([]float64, error) {
	m, n := int(x.Shape[0]), int(x.Shape[1])
	var tall factorisation
	var err error
	if float64(m) >= tallRatio*float64(n) {
		if tall, err = factorMatrix(ctx, x, u != nil); err != nil {
			return nil, err
		}
		x, m = tall.triangle(), n
	}
	b, err := newBidiagonal(ctx, m, n)
	if err != nil {
		return nil, err
	}
	if err := moveAll(ctx, columnMajor(b.a, m, n, b.ld), x); err != nil {
		return nil, err
	}
	if err := b.reduce(ctx); err != nil {
		return nil, err
	}
	if u == nil {
		return b.d, b.values()
	}
	left, right, err := b.vectors(ctx)
	if err != nil {
		return nil, err
	}
	if err := moveAll(ctx, vt, transposeOf(right)); err != nil {
		return nil, err
	}
	if tall != nil {
		return b.d, tall.storeQ(ctx, u, left)
	}
	return b.d, moveAll(ctx, u, left)
}

// values computes the singular values in d.
func (b *bidiagonal) values() error {
	none := make([]float64, 1)
	work := make([]float64, 4*b.n)
	info, err := b.lib.Call("dbdsqr", lapack.Letter('U'), lapack.Int(b.n), lapack.Int(0), lapack.Int(0), lapack.Int(0), lapack.Array(b.d), lapack.Array(b.e),
		lapack.Array(none), lapack.Int(1), lapack.Array(none), lapack.Int(1), lapack.Array(none), lapack.Int(1), lapack.Array(work), lapack.Info())
	runtime.KeepAlive(b)
	keepAlive(none, work)
	if info > 0 {
		return errNoConvergence
	}
	return err
}

// vectors computes the singular values in d, in descending order, and the vectors of the whole
// matrix in columns.
func (b *bidiagonal) vectors(ctx context.Context) (left, right *Tensor, err error) {
	s := &divideSVD{l: b.l, lib: b.lib, n: b.n, d: b.d, e: b.e}
	if s.u, err = scratchFloats(ctx, b.n*b.n); err != nil {
		return nil, nil, err
	}
	if s.vt, err = scratchFloats(ctx, b.n*b.n); err != nil {
		return nil, nil, err
	}
	if err := s.solve(ctx); err != nil {
		return nil, nil, err
	}
	u, err := scratchFloats(ctx, b.n*b.ld)
	if err != nil {
		return nil, nil, err
	}
	v, err := scratchFloats(ctx, b.n*b.n)
	if err != nil {
		return nil, nil, err
	}
	if err := s.sorted(ctx, u, b.ld, v); err != nil {
		return nil, nil, err
	}
	return columnMajor(u, b.m, b.n, b.ld), columnMajor(v, b.n, b.n, b.n), b.multiply(ctx, u, b.ld, v, b.n)
}
