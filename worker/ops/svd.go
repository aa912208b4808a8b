package ops

import (
	"context"
	"errors"
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
		x = transposeOf(x)
		m, n = n, m
	}
	a, err := float64Copy(ctx, x)
	if err != nil {
		return err
	}
	left, values, right, err := svd(ctx, a, m, n, u != nil)
	if errors.Is(err, errNoConvergence) {
		return &Error{Kind: Failed, Op: c.op.Name, Reason: err.Error()}
	}
	if err != nil {
		return err
	}
	if u != nil && flat {
		if err := castInto(ctx, u, transposed(right, n, n)); err != nil {
			return err
		}
		if err := castInto(ctx, vt, transposed(left, m, n)); err != nil {
			return err
		}
	} else if u != nil {
		if err := store(ctx, u, left); err != nil {
			return err
		}
		if err := store(ctx, vt, right); err != nil {
			return err
		}
	}
	return store(ctx, s, values)
}

// transposed returns a view of the m by n matrix as its n by m transpose.
func transposed(a []float64, m, n int) *Tensor {
	return &Tensor{DType: Float64, Shape: []int64{int64(n), int64(m)}, Strides: []int64{8, 8 * int64(n)}, Data: block[byte](slicePointer(a), 8*len(a))}
}
