package ops

import (
	"context"
	"fmt"
)

func choleskyOps() []*Op {
	return []*Op{{
		Name: "array.cholesky",
		Doc:  "Factors a positive definite matrix into a lower triangular one and its conjugate transpose.",
		Details: "It reads only the lower triangle of each matrix; the upper one is taken to be its conjugate, as in NumPy. Axes before " +
			"the last two count matrices, which are factored one by one. The computation is in the dtype of the result.",
		Params: []Param{{Name: "x", Type: TensorType, Required: true, Doc: "a square matrix, or several: the last two axes have the same length"}},
		Result: "a tensor of the shape of `x`, with zeros above the diagonals. Its dtype is that of `x`; float64 for bool and integers",
		Errors: []string{
			"INVALID_ARGUMENT if the last two axes of `x` differ in length",
			"OP_FAILED if a matrix is not positive definite, with the index of the matrix and the row at which that is seen; so if there is NaN",
		},
		Libraries: []string{"cusolver", "cublas", "nvrtc"},
		Example:   Example{[]string{`{"key": "cholesky", "op": "array.cholesky", "args": [[[4, 2], [2, 5]]]}`}, "[[2, 0], [1, 2]]"},
		plan:      planCholesky,
	}}
}

func planCholesky(c *call) (*Planned, error) {
	x := c.tensor("x")
	if err := c.square("x", x); err != nil {
		return nil, err
	}
	return single(solvable(x.DType), x.Shape, &FactoringCholesky{x}, func(ctx context.Context, out *Tensor) error {
		if err := castInto(ctx, out, x); err != nil {
			return err
		}
		return algebraOf(ctx, out.DType).choleskyEach(ctx, out)
	}), nil
}

// square returns an error if the argument is no square matrix, nor several.
func (c *call) square(name string, x *Tensor) error {
	if n := x.NDim(); n < 2 || x.Shape[n-2] != x.Shape[n-1] {
		return c.bad(name, "expected square matrices in the last two axes, got %s", describe(x))
	}
	return nil
}

// solvable returns the type in which factors of matrices of type d are computed.
func solvable(d DType) DType {
	if d.kind() <= intKind {
		return Float64
	}
	return d
}

// NotPositive returns the error of array.cholesky for a matrix that is not positive definite: the
// one with that number in the tensor x, in C order. Its leading minors up to a row are positive.
func NotPositive(x *Tensor, matrix, row int64) error {
	return Failure("array.cholesky", "%s is not positive definite: so says its row %d. Its leading rows and columns up to there have no "+
		"positive determinant, or there is NaN", matrixName("x", x.Shape, matrix), row)
}

// matrixName names one of the matrices of the last two axes of an argument, by its number in C
// order.
func matrixName(name string, shape []int64, number int64) string {
	leading := shape[:len(shape)-2]
	if len(leading) == 0 {
		return "matrix " + name
	}
	index := make([]int64, len(leading))
	for i := len(leading) - 1; i >= 0; i-- {
		index[i] = number % leading[i]
		number /= leading[i]
	}
	return fmt.Sprintf("matrix %s%v", name, index)
}

// choleskyEach factors each matrix of x in place.
func (l *algebra[T]) choleskyEach(ctx context.Context, x *Tensor) error {
	a, n := elements[T](x), int(x.Shape[x.NDim()-1])
	if len(a) == 0 {
		return ctx.Err()
	}
	matrices := len(a) / (n * n)
	if l.lib != nil && n <= tinyMatrix {
		return eachGroup(ctx, matrices, n, func(from, to int) error {
			matrix, row, err := l.potrfEach(n, a[from*n*n:to*n*n])
			if err == nil && row > 0 {
				err = NotPositive(x, int64(from+matrix), int64(row-1))
			}
			return err
		})
	}
	return eachMatrix(ctx, matrices, n, func(ctx context.Context, i int) error {
		row, err := cholesky(ctx, l, n, a[i*n*n:(i+1)*n*n])
		if err != nil {
			return err
		}
		if row > 0 {
			return NotPositive(x, int64(i), int64(row-1))
		}
		return nil
	})
}

// blockOf is the number of columns that are factored together, of a matrix of n rows.
func (l *algebra[T]) blockOf(n int) int {
	if l.lib == nil {
		return 32
	}
	return min(256, max(64, n/8/32*32))
}

// cholesky overwrites the n by n matrix a, row-major, with its lower triangular factor. If a is not
// positive definite, it returns the number of the row, counted from 1, at which that is seen.
//
// As a column-major matrix, a holds the upper triangle of a = u'u. Each step factors a block on the
// diagonal and computes the rows of u to its right. These update all columns to the right, from the
// diagonal upwards.
func cholesky[T inexact](ctx context.Context, l *algebra[T], n int, a []T) (row int, err error) {
	block := l.blockOf(n)
	first := min(block, n)
	if row, err = l.potrf(first, a, n); row > 0 || err != nil {
		return row, err
	}
	for j := 0; j+block < n; j += block {
		next := j + block
		columns := (n - next + block - 1) / block
		if err := parallel(ctx, columns, func(piece int) error {
			from := next + piece*block
			return l.trsm('L', 'U', 'C', 'N', block, min(block, n-from), a[j+j*n:], n, a[j+from*n:], n)
		}); err != nil {
			return 0, err
		}
		if err := parallel(ctx, columns, func(piece int) error {
			// The first piece also factors the next block on the diagonal, while others go on.
			from := next + piece*block
			width := min(block, n-from)
			if err := l.gemm('C', 'N', from+width-next, width, block, -1, a[j+next*n:], n, a[j+from*n:], n, 1, a[next+from*n:], n); err != nil || piece > 0 {
				return err
			}
			at, err := l.potrf(width, a[from+from*n:], n)
			if at > 0 {
				row = from + at
			}
			return err
		}); row > 0 || err != nil {
			return row, err
		}
	}
	clearAbove(n, a)
	return 0, ctx.Err()
}

// clearAbove clears the elements above the diagonal of an n by n matrix, row-major.
func clearAbove[T inexact](n int, a []T) {
	for i := range n {
		clear(a[i*n+i+1 : (i+1)*n])
	}
}
