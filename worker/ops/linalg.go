package ops

import (
	"context"
	"errors"
)

func linalgOps() []*Op {
	return []*Op{
		{
			Name: "array.qr",
			Doc:  "Factors a matrix into one with orthonormal columns and an upper triangular one.",
			Details: "The computation is in float64; the results for float32 are rounded. On the host the signs are those of LAPACK. " +
				"On a GPU the diagonal of r is positive if the matrix has at least 4 rows a column.",
			Params: []Param{{Name: "x", Type: TensorType, Required: true, Doc: "a matrix, m by n, of real numbers"}},
			Result: "a list of two tensors: q is m by min(m, n), r is min(m, n) by n. They are float32 if `x` is, otherwise float64",
			Errors: []string{
				"INVALID_ARGUMENT if `x` is no matrix, or complex",
			},
			Libraries: []string{"cusolver", "cublas", "nvrtc"},
			Example:   Example{[]string{`{"key": "qr", "op": "array.qr", "args": [[[3, 0], [4, 5]]]}`}, "[[[-0.6, -0.8], [-0.8, 0.6]], [[-5, -4], [0, 3]]]"},
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
			Doc:  "Computes the singular values of a matrix, and its singular vectors.",
			Details: "The decomposition is thin: `x` is the product of u, a diagonal matrix of s, and vt. The computation is in " +
				"float64; the results for float32 are rounded. The signs of the vectors may differ between devices.",
			Params: []Param{{Name: "x", Type: TensorType, Required: true, Doc: "a matrix, m by n, of real numbers; with k = min(m, n)"}},
			Result: "a list of three tensors: u is m by k, s has k values in descending order, vt is k by n. They are float32 if " +
				"`x` is, otherwise float64",
			Errors: []string{
				"INVALID_ARGUMENT if `x` is no matrix, or complex",
				"OP_FAILED if the values do not converge, as with NaN or infinity in `x`",
			},
			Libraries: []string{"cusolver", "cublas", "nvrtc"},
			Example:   Example{[]string{`{"key": "svd", "op": "array.svd", "args": [[[3, 0], [0, 4]]]}`}, "[[[0, 1], [1, 0]], [4, 3], [[0, 1], [1, 0]]]"},
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

// float64Copy copies the matrix to working memory, as float64, to be factored in place.
func float64Copy(ctx context.Context, x *Tensor) ([]float64, error) {
	t, err := contiguousIn(ctx, x, Float64)
	if err != nil {
		return nil, err
	}
	return elements[float64](t), ctx.Err()
}

// store writes values to out, rounded to its type.
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

// qr factors the m by n matrix a into an m by k and a k by n matrix, with k = min(m, n). It
// destroys a.
func qr(ctx context.Context, a []float64, m, n int) (q, r []float64, err error) {
	k := min(m, n)
	tau, err := scratchFloats(ctx, k)
	if err != nil {
		return nil, nil, err
	}
	if r, err = scratchFloats(ctx, k*n); err != nil {
		return nil, nil, err
	}
	if err := reflectors(ctx, m, n, a, tau); err != nil {
		return nil, nil, err
	}
	clear(r)
	for i := range k {
		copy(r[i*n+i:(i+1)*n], a[i*n+i:(i+1)*n])
	}
	q = a
	if n > k { // the columns behind the first k hold no reflectors
		if q, err = scratchFloats(ctx, m*k); err != nil {
			return nil, nil, err
		}
		for i := range m {
			copy(q[i*k:(i+1)*k], a[i*n:i*n+k])
		}
	}
	return q, r, orthogonal(ctx, m, k, q, k, tau)
}

func svdInto(ctx context.Context, c *call, outs []*Tensor, x *Tensor) error {
	m, n := int(x.Shape[0]), int(x.Shape[1])
	if m == 0 || n == 0 {
		return nil
	}
	if finite, err := allFinite(ctx, x); err != nil {
		return err
	} else if !finite {
		return &Error{Kind: Failed, Op: c.op.Name, Argument: "x", Reason: "the singular values would not converge: there is NaN or infinity in x"}
	}
	flat := m < n
	if flat { // factor the transpose: its factors are the transposed factors of x
		x = &Tensor{DType: x.DType, Shape: []int64{x.Shape[1], x.Shape[0]}, Strides: []int64{x.Strides[1], x.Strides[0]}, Offset: x.Offset, Data: x.Data}
		m, n = n, m
	}
	a, err := float64Copy(ctx, x)
	if err != nil {
		return err
	}
	u, s, vt, err := svd(ctx, a, m, n)
	if errors.Is(err, errNoConvergence) {
		return &Error{Kind: Failed, Op: c.op.Name, Reason: err.Error()}
	}
	if err != nil {
		return err
	}
	if flat {
		if err := castInto(ctx, outs[0], transposed(vt, n, n)); err != nil {
			return err
		}
		if err := castInto(ctx, outs[2], transposed(u, m, n)); err != nil {
			return err
		}
		return store(ctx, outs[1], s)
	}
	for i, values := range [][]float64{u, s, vt} {
		if err := store(ctx, outs[i], values); err != nil {
			return err
		}
	}
	return nil
}

// transposed returns a view of the m by n matrix as its n by m transpose.
func transposed(a []float64, m, n int) *Tensor {
	return &Tensor{DType: Float64, Shape: []int64{int64(n), int64(m)}, Strides: []int64{8, 8 * int64(n)}, Data: block[byte](slicePointer(a), 8*len(a))}
}
