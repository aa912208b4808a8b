package ops

import (
	"context"

	"gonum.org/v1/gonum/lapack"
	lapackgonum "gonum.org/v1/gonum/lapack/gonum"
)

var factor lapackgonum.Implementation

func linalgOps() []*Op {
	return []*Op{
		{
			Name: "array.qr",
			Doc: "Factors a matrix into [q, r] with q of orthonormal columns and r upper triangular, reduced: q is m by min(m, n). " +
				"Signs are LAPACK's. float32 is computed in float64 and rounded; bool and integers give float64.",
			Params: []Param{{Name: "x", Type: TensorType, Required: true}},
			plan: func(c *call) (*Planned, error) {
				x, dtype, err := realMatrix(c)
				if err != nil {
					return nil, err
				}
				m, n := x.Shape[0], x.Shape[1]
				k := min(m, n)
				return several([]Output{{dtype, []int64{m, k}}, {dtype, []int64{k, n}}}, &FactoringQR{x}, func(ctx context.Context, outs []*Tensor) error {
					return qrInto(ctx, outs[0], outs[1], x)
				}), nil
			},
		},
		{
			Name: "array.svd",
			Doc: "Factors a matrix into [u, s, vt], thin: x = u * diag(s) * vt with k = min(m, n) columns of u and rows of vt and s in " +
				"descending order. float32 is computed in float64 and rounded; bool and integers give float64.",
			Params: []Param{{Name: "x", Type: TensorType, Required: true}},
			plan: func(c *call) (*Planned, error) {
				x, dtype, err := realMatrix(c)
				if err != nil {
					return nil, err
				}
				m, n := x.Shape[0], x.Shape[1]
				k := min(m, n)
				return several([]Output{{dtype, []int64{m, k}}, {dtype, []int64{k}}, {dtype, []int64{k, n}}}, &FactoringSVD{x}, func(ctx context.Context, outs []*Tensor) error {
					return svdInto(ctx, c, outs, x)
				}), nil
			},
		},
	}
}

func realMatrix(c *call) (*Tensor, DType, error) {
	x := c.tensor("x")
	if x.NDim() != 2 {
		return nil, 0, c.bad("x", "expected a matrix, got %s", describe(x))
	}
	if x.DType.kind() == complexKind {
		return nil, 0, c.bad("x", "%v is not supported: expected real numbers", x.DType)
	}
	if x.DType.kind() <= intKind {
		return x, Float64, nil
	}
	return x, x.DType, nil
}

// float64Copy is the matrix in the Go heap, to be factored in place.
func float64Copy(ctx context.Context, x *Tensor) ([]float64, error) {
	t, err := contiguousIn(ctx, x, Float64)
	if err != nil {
		return nil, err
	}
	return elements[float64](t), ctx.Err()
}

// store rounds values to the type of out.
func store(ctx context.Context, out *Tensor, values []float64) error {
	if len(values) == 0 {
		return nil
	}
	bytes := block[byte](slicePointer(values), 8*len(values))
	return castInto(ctx, out, contiguous(Float64, out.Shape, bytes))
}

func qrInto(ctx context.Context, q, r, x *Tensor) error {
	m, n := int(x.Shape[0]), int(x.Shape[1])
	a, err := float64Copy(ctx, x)
	if err != nil || len(a) == 0 {
		return err
	}
	left, right, err := qr(ctx, a, m, n)
	if err != nil {
		return err
	}
	if err := store(ctx, q, left); err != nil {
		return err
	}
	return store(ctx, r, right)
}

// qr factors the m by n matrix a, which it destroys, into m by k and k by n.
func qr(ctx context.Context, a []float64, m, n int) (q, r []float64, err error) {
	k := min(m, n)
	tau := make([]float64, k)
	work := make([]float64, 1)
	factor.Dgeqrf(m, n, a, n, tau, work, -1)
	work = make([]float64, int(work[0]))
	factor.Dgeqrf(m, n, a, n, tau, work, len(work))
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	r = make([]float64, k*n)
	for i := range k {
		copy(r[i*n+i:(i+1)*n], a[i*n+i:(i+1)*n])
	}
	q = a
	if n > k { // the columns behind the first k hold no reflectors
		q = make([]float64, m*k)
		for i := range m {
			copy(q[i*k:(i+1)*k], a[i*n:i*n+k])
		}
	}
	work = make([]float64, 1)
	factor.Dorgqr(m, k, k, q, k, tau, work, -1)
	work = make([]float64, int(work[0]))
	factor.Dorgqr(m, k, k, q, k, tau, work, len(work))
	return q, r, ctx.Err()
}

func svdInto(ctx context.Context, c *call, outs []*Tensor, x *Tensor) error {
	m, n := int(x.Shape[0]), int(x.Shape[1])
	a, err := float64Copy(ctx, x)
	if err != nil || len(a) == 0 {
		return err
	}
	k := min(m, n)
	u, s, vt := make([]float64, m*k), make([]float64, k), make([]float64, k*n)
	work := make([]float64, 1)
	factor.Dgesvd(lapack.SVDStore, lapack.SVDStore, m, n, a, n, s, u, k, vt, n, work, -1)
	work = make([]float64, int(work[0]))
	if !factor.Dgesvd(lapack.SVDStore, lapack.SVDStore, m, n, a, n, s, u, k, vt, n, work, len(work)) {
		return &Error{Kind: Failed, Op: c.op.Name, Reason: "the singular values did not converge: is there NaN or infinity in x?"}
	}
	for i, values := range [][]float64{u, s, vt} {
		if err := store(ctx, outs[i], values); err != nil {
			return err
		}
	}
	return nil
}
