package ops

import (
	"context"
	"unsafe"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// gemmTile limits the work of one call of BLAS: 2*256^3 operations take a few milliseconds. The
// context is checked between the calls.
const gemmTile = 256

var kernels gonum.Implementation

func matmulOps() []*Op {
	return []*Op{{
		Name: "array.matmul",
		Doc:  "Multiplies matrices, as NumPy's `matmul`.",
		Details: "An operand with one axis is a row on the left and a column on the right; the result lacks that axis. Axes before " +
			"the last two broadcast. Products of bool use `and` and `or`. Integers wrap around.",
		Params: []Param{
			{Name: "a", Type: TensorType, Required: true, Doc: "with at least one axis"},
			{Name: "b", Type: TensorType, Required: true, Doc: "with at least one axis"},
			{Name: "tf32", Type: BoolType, Default: false, Doc: "a GPU may round float32 and complex64 factors to 11 bits, which is many times faster; the host ignores it"},
		},
		Result:    "a tensor of the dtype to which both are promoted, with the leading axes, the rows of `a` and the columns of `b`",
		Errors:    []string{"INVALID_ARGUMENT if the inner lengths differ, or the leading axes do not broadcast"},
		Libraries: []string{"cublas"},
		Example:   Example{[]string{`{"key": "matmul", "op": "array.matmul", "args": [[[1, 2.5], [3, 4]], [[1, 0.5], [1, 1]]]}`}, "[[3.5, 3], [7, 5.5]]"},
		plan:      planMatmul,
	}}
}

func planMatmul(c *call) (*Planned, error) {
	a, b := c.tensor("a"), c.tensor("b")
	for name, t := range map[string]*Tensor{"a": a, "b": b} {
		if t.NDim() == 0 {
			return nil, c.bad(name, "expected a tensor with at least one axis, got a scalar: use array.map to multiply by it")
		}
	}
	left, right := *a, *b
	if a.NDim() == 1 {
		left.Shape, left.Strides = []int64{1, a.Shape[0]}, []int64{0, a.Strides[0]}
	}
	if b.NDim() == 1 {
		right.Shape, right.Strides = []int64{b.Shape[0], 1}, []int64{b.Strides[0], 0}
	}
	la, lb := left.NDim()-2, right.NDim()-2
	m, k, n := left.Shape[la], left.Shape[la+1], right.Shape[lb+1]
	if right.Shape[lb] != k {
		return nil, c.bad("b", "shape %v does not match a %v: inner dimensions %d and %d differ", b.Shape, a.Shape, k, right.Shape[lb])
	}
	batch, ok := broadcast(left.Shape[:la], right.Shape[:lb])
	if !ok {
		return nil, c.bad("b", "shape %v does not match a %v: leading dimensions do not broadcast", b.Shape, a.Shape)
	}
	shape := append([]int64{}, batch...)
	if a.NDim() > 1 {
		shape = append(shape, m)
	}
	if b.NDim() > 1 {
		shape = append(shape, n)
	}
	dtype := Promote(a.DType, b.DType)
	w := &Multiplying{A: &left, B: &right, Batch: batch, Rows: m, Inner: k, Columns: n, TF32: c.bool("tf32")}
	return single(dtype, shape, w, func(ctx context.Context, out *Tensor) error { return multiplyInto(ctx, out, w) }), nil
}

// multiplyInto computes the products. out is contiguous.
func multiplyInto(ctx context.Context, out *Tensor, w *Multiplying) error {
	if out.Len() == 0 {
		return nil
	}
	if w.Inner == 0 {
		clear(out.raw())
		return nil
	}
	var matrices [2]*Tensor
	for i, t := range []*Tensor{w.A, w.B} {
		matrices[i] = t
		if t.DType != out.DType || !blasReady(t) {
			var err error
			if matrices[i], err = contiguousIn(ctx, t, out.DType); err != nil {
				return err
			}
		}
	}
	x := matrices[0].broadcastTo(append(append([]int64{}, w.Batch...), w.Rows, w.Inner))
	y := matrices[1].broadcastTo(append(append([]int64{}, w.Batch...), w.Inner, w.Columns))
	at, size := out.Offset, out.DType.Size()
	return eachIndex(w.Batch, func(index []int64) error {
		mx, my := matrixAt(x, index), matrixAt(y, index)
		mo := &Tensor{DType: out.DType, Shape: []int64{w.Rows, w.Columns}, Strides: []int64{w.Columns * size, size}, Offset: at, Data: out.Data}
		at += mo.Bytes()
		return multiplyMatrices(ctx, mo, mx, my)
	})
}

// contiguousIn copies t to working memory as type dtype. The copy is contiguous even if t is one
// matrix broadcast.
func contiguousIn(ctx context.Context, t *Tensor, dtype DType) (*Tensor, error) {
	out, err := scratchTensor(ctx, dtype, t.Shape)
	if err != nil {
		return nil, err
	}
	return out, castInto(ctx, out, t)
}

// matrixAt returns the matrix of the last axes at an index of the axes before them.
func matrixAt(t *Tensor, index []int64) *Tensor {
	n := len(index)
	view := &Tensor{DType: t.DType, Shape: t.Shape[n:], Strides: t.Strides[n:], Offset: t.Offset, Data: t.Data, Far: t.Far}
	for i, x := range index {
		view.Offset += x * t.Strides[i]
	}
	return view
}

// blasReady reports whether BLAS can take the matrix of the last two axes: along one axis the
// elements are contiguous, and along the other the distance is at least the length of the first.
func blasReady(t *Tensor) bool {
	n := t.NDim()
	rows, columns, by, across := t.Shape[n-2], t.Shape[n-1], t.Strides[n-2], t.Strides[n-1]
	_, _, ok := Leading(rows, columns, by, across, t.DType.Size())
	return ok
}

// Leading describes a matrix as BLAS takes it: as it is or transposed, and the distance of its rows
// in elements. ok is false if BLAS cannot take the matrix.
func Leading(rows, columns, by, across, size int64) (transposed bool, distance int, ok bool) {
	if by%size != 0 || across%size != 0 {
		return false, 0, false
	}
	by, across = by/size, across/size
	switch {
	case (across == 1 || columns == 1) && (by >= columns || rows == 1):
		return false, int(max(by, columns)), true
	case (by == 1 || rows == 1) && (across >= rows || columns == 1):
		return true, int(max(across, rows)), true
	}
	return false, 0, false
}

// multiplyMatrices writes a*b to out; all three have the same type.
func multiplyMatrices(ctx context.Context, out, a, b *Tensor) error {
	switch out.DType {
	case Bool, Uint8:
		return multiplyLoops(ctx, out, a, b, out.DType == Bool, multiplyRow[uint8])
	case Int32:
		return multiplyLoops(ctx, out, a, b, false, multiplyRow[int32])
	case Int64:
		return multiplyLoops(ctx, out, a, b, false, multiplyRow[int64])
	}
	// BLAS skips zeros of a, which gives wrong results for 0*inf and 0*NaN.
	finite, err := allFinite(ctx, b)
	if err != nil {
		return err
	}
	switch out.DType {
	case Float32:
		if !finite {
			return multiplyLoops(ctx, out, a, b, false, multiplyRow[float32])
		}
		return gemm(ctx, out, a, b, kernels.Sgemm)
	case Float64:
		if !finite {
			return multiplyLoops(ctx, out, a, b, false, multiplyRow[float64])
		}
		return gemm(ctx, out, a, b, kernels.Dgemm)
	case Complex64:
		if !finite {
			return multiplyLoops(ctx, out, a, b, false, multiplyRow[complex64])
		}
		return gemm(ctx, out, a, b, kernels.Cgemm)
	default:
		if !finite {
			return multiplyLoops(ctx, out, a, b, false, multiplyRow[complex128])
		}
		return gemm(ctx, out, a, b, kernels.Zgemm)
	}
}

func allFinite(ctx context.Context, t *Tensor) (bool, error) {
	r := newReader(t)
	scratch := newScratch(blockLen)
	finite := kernelFor("isfinite", t.DType)
	for left := t.Len(); left > 0; left -= blockLen {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		n := min(left, blockLen)
		r.read(scratch[0], n)
		if err := finite(int(n), regs{scratch[1], scratch[0]}); err != nil {
			return false, err
		}
		for _, yes := range block[uint8](scratch[1], int(n)) {
			if yes == 0 {
				return false, nil
			}
		}
	}
	return true, nil
}

// gemm multiplies tile by tile with BLAS.
func gemm[T number](ctx context.Context, out, a, b *Tensor,
	multiply func(ta, tb blas.Transpose, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int),
) error {
	size := out.DType.Size()
	m, n, k := out.Shape[0], out.Shape[1], a.Shape[1]
	ta, lda, _ := Leading(m, k, a.Strides[0], a.Strides[1], size)
	tb, ldb, _ := Leading(k, n, b.Strides[0], b.Strides[1], size)
	// The rows of a tile are as far apart as those of the whole operand. If the operand has a
	// single row or column, that distance is arbitrary.
	tile := func(t *Tensor, row, column, rows, columns int64, transposed bool, distance int) []T {
		if transposed {
			row, column, rows, columns = column, row, columns, rows
		}
		at := unsafe.Add(t.base(), (row*int64(distance)+column)*size)
		return unsafe.Slice((*T)(at), (rows-1)*int64(distance)+columns)
	}
	for i := int64(0); i < m; i += gemmTile {
		for j := int64(0); j < n; j += gemmTile {
			for l := int64(0); l < k; l += gemmTile {
				if err := ctx.Err(); err != nil {
					return err
				}
				di, dj, dl := min(gemmTile, m-i), min(gemmTile, n-j), min(gemmTile, k-l)
				var beta T
				if l > 0 {
					beta = 1
				}
				multiply(transpose(ta), transpose(tb), int(di), int(dj), int(dl), 1,
					tile(a, i, l, di, dl, ta, lda), lda, tile(b, l, j, dl, dj, tb, ldb), ldb,
					beta, tile(out, i, j, di, dj, false, int(n)), int(n))
			}
		}
	}
	return nil
}

func transpose(yes bool) blas.Transpose {
	if yes {
		return blas.Trans
	}
	return blas.NoTrans
}

// multiplyLoops multiplies without BLAS. The function row adds x times a row of b to a row of the
// output.
func multiplyLoops[T number](ctx context.Context, out, a, b *Tensor, boolean bool, row func(d []T, x T, b []T)) error {
	a, err := inType(ctx, a, out.DType)
	if err != nil {
		return err
	}
	if b, err = inType(ctx, b, out.DType); err != nil {
		return err
	}
	m, n, k := out.Shape[0], out.Shape[1], a.Shape[1]
	x, y, d := elements[T](a), elements[T](b), elements[T](out)
	clear(d)
	const width = 1 << 12
	for i := range m {
		for j := int64(0); j < n; j += width {
			line := d[i*n+j : min(i*n+j+width, (i+1)*n)]
			step := max(1, checkEvery/int64(len(line)))
			for l := range k {
				if l%step == 0 {
					if err := ctx.Err(); err != nil {
						return err
					}
				}
				from := y[l*n+j:][:len(line)]
				if !boolean {
					row(line, x[i*k+l], from)
				} else if x[i*k+l] != 0 {
					for at, v := range from {
						if v != 0 {
							line[at] = 1
						}
					}
				}
			}
		}
	}
	return nil
}

func multiplyRow[T number](d []T, x T, b []T) {
	b = b[:len(d)]
	for i := range d {
		d[i] += x * b[i]
	}
}
