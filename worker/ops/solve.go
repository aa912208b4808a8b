package ops

import (
	"context"
	"slices"
)

func solveOps() []*Op {
	return []*Op{{
		Name: "array.solve",
		Doc:  "Solves systems of linear equations: the x with `a` x = `b`, as NumPy's `linalg.solve`.",
		Details: "If `b` has one axis, it is one right-hand side; otherwise its columns are right-hand sides. Axes before those of the " +
			"matrices broadcast. The computation is in the dtype of the result.",
		Params: []Param{
			{Name: "a", Type: TensorType, Required: true, Doc: "a square matrix, or several: the last two axes have the same length"},
			{Name: "b", Type: TensorType, Required: true, Doc: "a vector, a matrix, or several matrices, with as many rows as `a`"},
		},
		Result: "a tensor with the rows of `a`, and the columns of `b` if it is no vector, after the leading axes. Its dtype is that to which " +
			"both are promoted, with float64 for bool and integers",
		Errors: []string{
			"INVALID_ARGUMENT if `a` is not square, the numbers of rows differ, or the leading axes do not broadcast",
			"OP_FAILED if a matrix is singular, with its index and the column at which that is seen",
		},
		Libraries: []string{"cusolver", "cublas", "nvrtc"},
		Example:   Example{[]string{`{"key": "solve", "op": "array.solve", "args": [[[3, 1], [1, 2]], [9, 8]]}`}, "[2, 3]"},
		plan:      planSolve,
	}}
}

func planSolve(c *call) (*Planned, error) {
	a, b := c.tensor("a"), c.tensor("b")
	if err := c.square("a", a); err != nil {
		return nil, err
	}
	if b.NDim() == 0 {
		return nil, c.bad("b", "expected a vector or matrices, got a scalar")
	}
	right := asColumn(b)
	na, nb := a.NDim()-2, right.NDim()-2
	n, columns := a.Shape[na], right.Shape[nb+1]
	if right.Shape[nb] != n {
		return nil, c.bad("b", "shape %v has %d rows, and a of shape %v has %d", b.Shape, right.Shape[nb], a.Shape, n)
	}
	batch, ok := broadcast(a.Shape[:na], right.Shape[:nb])
	if !ok {
		return nil, c.bad("b", "shape %v does not match a %v: leading dimensions do not broadcast", b.Shape, a.Shape)
	}
	shape := append(append([]int64{}, batch...), n)
	if b.NDim() > 1 {
		shape = append(shape, columns)
	}
	dtype := Promote(solvable(a.DType), solvable(b.DType))
	w := &Solving{A: a, B: right, Batch: batch, Rows: n, Columns: columns}
	return single(dtype, shape, w, func(ctx context.Context, out *Tensor) error {
		return algebraOf(ctx, dtype).solveEach(ctx, w, out)
	}), nil
}

// Singular returns the error of array.solve for a matrix without an inverse: the one with that
// number among the matrices a, in C order. The column is the first one that depends on those before
// it.
func Singular(a *Tensor, matrix, column int64) error {
	return Failure("array.solve", "%s is singular: its column %d depends on the columns before it", matrixName("a", a.Shape, matrix), column)
}

// solveEach solves the systems with each matrix of w.A. It factors a matrix once for all right-hand
// sides that it broadcasts to.
func (l *algebra[T]) solveEach(ctx context.Context, w *Solving, out *Tensor) error {
	n, columns := int(w.Rows), int(w.Columns)
	if out.Len() == 0 {
		return ctx.Err()
	}
	whole := *out // with the axis that vectors lack
	whole.Shape = append(append([]int64{}, w.Batch...), w.Rows, w.Columns)
	whole.Strides = ContiguousStrides(out.DType, whole.Shape)
	if err := castInto(ctx, &whole, w.B.broadcastTo(whole.Shape)); err != nil {
		return err
	}
	// The factors are column-major, which exchanges the last two axes.
	last := w.A.NDim() - 1
	turned := *w.A
	turned.Shape = w.A.Shape
	turned.Strides = append(append([]int64{}, w.A.Strides[:last-1]...), w.A.Strides[last], w.A.Strides[last-1])
	factors, err := contiguousIn(ctx, &turned, out.DType)
	if err != nil {
		return err
	}
	a, x := elements[T](factors), elements[T](out)
	matrices := len(a) / (n * n)
	p, err := scratchElements[int](ctx, matrices*n)
	if err != nil {
		return err
	}
	if l.lib != nil && n <= tinyMatrix && matrices > 1 && matrices*n*columns == len(x) {
		return solveGroups(ctx, l, w, a, p, x)
	}
	if err := eachMatrix(ctx, matrices, n, func(ctx context.Context, i int) error {
		column, err := factorLU(ctx, l, n, a[i*n*n:(i+1)*n*n], p[i*n:(i+1)*n])
		if err == nil && column > 0 {
			err = Singular(w.A, int64(i), int64(column-1))
		}
		return err
	}); err != nil {
		return err
	}
	leading := append(slices.Clone(w.A.Shape[:last-1]), 1, 1)
	numbers := newLeading(&Tensor{Shape: leading, Strides: ContiguousStrides(Bool, leading)}, w.Batch)
	return eachMatrix(ctx, len(x)/(n*columns), n, func(ctx context.Context, i int) error {
		m := int(numbers.offset(int64(i)))
		return solveLU(ctx, l, n, columns, a[m*n*n:(m+1)*n*n], p[m*n:(m+1)*n], x[i*n*columns:(i+1)*n*columns])
	})
}

// solveGroups solves the systems of matrices of few rows, each with right-hand sides of its own, by
// repeated calls of the library. It factors the matrices a in place, and overwrites x.
func solveGroups[T inexact](ctx context.Context, l *algebra[T], w *Solving, a []T, p []int, x []T) error {
	n, columns := int(w.Rows), int(w.Columns)
	return eachGroup(ctx, len(a)/(n*n), n, func(from, to int) error {
		a, p, x := a[from*n*n:to*n*n], p[from*n:to*n], x[from*n*columns:to*n*columns]
		matrix, column, err := l.getrfEach(n, a, p)
		if err == nil && column > 0 {
			err = Singular(w.A, int64(from+matrix), int64(column-1))
		}
		if err != nil {
			return err
		}
		for i := range to - from {
			exchangeRows(columns, p[i*n:(i+1)*n], x[i*n*columns:(i+1)*n*columns])
		}
		return l.repeated(to-from, n*n, n*columns).substituteLU(n, columns, a, x, columns)
	})
}

// factorLU overwrites the n by n matrix a with its triangular factors, as getrf does. It returns
// the number of the first column, counted from 1, whose pivot is 0.
func factorLU[T inexact](ctx context.Context, l *algebra[T], n int, a []T, pivots []int) (column int, err error) {
	f := factoringLU[T]{l, n, a, pivots}
	for j := 0; j < n && column == 0 && err == nil; j += mostColumns {
		width := min(mostColumns, n-j)
		if column, err = f.columns(ctx, j, width); column > 0 || err != nil {
			break
		}
		if after := n - j - width; after > 0 {
			err = f.update(ctx, j, width, after)
		}
		if err != nil {
			break
		}
		err = f.exchange(ctx, a[:j*n], j, width)
	}
	return column, err
}

// factoringLU is the factorisation of an n by n matrix, column-major.
type factoringLU[T inexact] struct {
	l      *algebra[T]
	n      int
	a      []T
	pivots []int
}

// mostColumns is the number of columns that are factored by halves.
const mostColumns = 2048

// columns factors the columns from j on, of rows from j on. It factors the first half of them,
// updates the second half, and factors that. So each element is read and written a few times only.
func (f *factoringLU[T]) columns(ctx context.Context, j, width int) (column int, err error) {
	leaf := 128
	if f.l.lib == nil {
		leaf = 32
	}
	if width <= leaf {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		column, err = f.l.getrf(f.n-j, width, f.a[j+j*f.n:], f.n, f.pivots[j:])
		for i := range width {
			f.pivots[j+i] += j
		}
		if column > 0 {
			column += j
		}
		return column, err
	}
	half := max(leaf, width/2/leaf*leaf)
	if column, err = f.columns(ctx, j, half); column > 0 || err != nil {
		return column, err
	}
	if err := f.update(ctx, j, half, width-half); err != nil {
		return 0, err
	}
	if column, err = f.columns(ctx, j+half, width-half); column > 0 || err != nil {
		return column, err
	}
	return 0, f.exchange(ctx, f.a[j*f.n:(j+half)*f.n], j+half, width-half)
}

// update takes the factored columns from j on into account in the columns after them.
func (f *factoringLU[T]) update(ctx context.Context, j, width, after int) error {
	n, a, next := f.n, f.a, j+width
	few := int(min(256, max(8, f.l.piece()/(2*float64(width)*float64(width)))))
	if err := parallel(ctx, pieces(after, few), func(piece int) error {
		from := next + piece*few
		count := min(few, next+after-from)
		exchange(a[from*n:(from+count)*n], n, j, f.pivots[j:next])
		return f.l.trsm('L', 'L', 'N', 'U', width, count, a[j+j*n:], n, a[j+from*n:], n)
	}); err != nil {
		return err
	}
	rows, columns := f.l.grid(n-next, after, width)
	return parallel(ctx, pieces(n-next, rows)*pieces(after, columns), func(piece int) error {
		row, column := next+piece%pieces(n-next, rows)*rows, next+piece/pieces(n-next, rows)*columns
		return f.l.gemm('N', 'N', min(rows, n-row), min(columns, next+after-column), width,
			-1, a[row+j*n:], n, a[j+column*n:], n, 1, a[row+column*n:], n)
	})
}

// exchange exchanges rows of columns by the pivots from first on.
func (f *factoringLU[T]) exchange(ctx context.Context, columns []T, first, count int) error {
	const few = 64
	return parallel(ctx, pieces(len(columns), few*f.n), func(piece int) error {
		exchange(columns[piece*few*f.n:min((piece+1)*few*f.n, len(columns))], f.n, first, f.pivots[first:first+count])
		return nil
	})
}

// exchange exchanges rows first, first+1, ... of columns of n elements with the rows of the pivots,
// one after the other.
func exchange[T inexact](columns []T, n, first int, pivots []int) {
	for ; len(columns) >= n; columns = columns[n:] {
		column := columns[:n]
		top := column[first : first+len(pivots)]
		for i, p := range pivots {
			top[i], column[p] = column[p], top[i]
		}
	}
}

// solveLU overwrites the n by columns matrix x, row-major, with the solution of the systems whose
// factors a and pivots are.
func solveLU[T inexact](ctx context.Context, l *algebra[T], n, columns int, a []T, pivots []int, x []T) error {
	exchangeRows(columns, pivots, x)
	width := max(1, int(min(l.piece()/(2*float64(n)*float64(n)), 256)))
	return parallel(ctx, pieces(columns, width), func(piece int) error {
		from := piece * width
		return l.substituteLU(n, min(width, columns-from), a, x[from:], columns)
	})
}

// exchangeRows exchanges rows 0, 1, ... of a matrix with the rows of the pivots, one after the
// other. The matrix is row-major.
func exchangeRows[T inexact](columns int, pivots []int, x []T) {
	for i, p := range pivots {
		if p != i {
			for k := range columns {
				x[i*columns+k], x[p*columns+k] = x[p*columns+k], x[i*columns+k]
			}
		}
	}
}

// substituteLU solves for some columns of x, whose rows are distance apart. As column-major
// matrices they are rows, and the factors are transposed.
func (l *algebra[T]) substituteLU(n, columns int, a, x []T, distance int) error {
	if err := l.trsm('R', 'L', 'T', 'U', columns, n, a, n, x, distance); err != nil {
		return err
	}
	return l.trsm('R', 'U', 'T', 'N', columns, n, a, n, x, distance)
}
