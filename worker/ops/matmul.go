package ops

import (
	"context"
	"encoding/binary"
)

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
	left, right := asRow(a), asColumn(b)
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
	w := &Multiplying{A: left, B: right, Batch: batch, Rows: m, Inner: k, Columns: n, TF32: c.bool("tf32")}
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
	switch out.DType {
	case Float32, Float64, Complex64, Complex128:
		return algebraOf(ctx, out.DType).multiplyFloats(ctx, out, w)
	case Int32:
		return multiplyLoops(ctx, out, w, addMultiples[int32])
	case Int64:
		return multiplyLoops(ctx, out, w, addMultiples[int64])
	case Bool:
		if err := multiplyLoops(ctx, out, w, addMultiplesOfBool); err != nil {
			return err
		}
		nonzero(out.raw(), out.raw()) // true is 1
		return nil
	default:
		return multiplyLoops(ctx, out, w, addMultiples[uint8])
	}
}

// multiplyFloats computes the products by the library, or by gonum.
func (l *algebra[T]) multiplyFloats(ctx context.Context, out *Tensor, w *Multiplying) error {
	var operands [2]*Tensor
	for i, t := range []*Tensor{w.A, w.B} {
		operands[i] = t
		if t.DType != out.DType || !blasReady(t) {
			var err error
			if operands[i], err = contiguousIn(ctx, t, out.DType); err != nil {
				return err
			}
		}
	}
	if l.lib == nil { // gonum skips zeros, which gives wrong results for 0*inf and 0*NaN
		if finite, err := allFinite(ctx, operands[1]); err != nil {
			return err
		} else if !finite {
			return multiplyLoops(ctx, out, w, addMultiples[T])
		}
	}
	p := newMultiplication(l, w, operands[0], operands[1])
	return p.run(ctx, elements[T](out))
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

// multiplyLoops computes products without BLAS. The function add adds, for each i, x[i] times row i
// of b to d; rows have the length of d and are n elements apart.
func multiplyLoops[T number](ctx context.Context, out *Tensor, w *Multiplying, add func(d, x, b []T, n int)) error {
	a, err := inType(ctx, w.A, out.DType)
	if err != nil {
		return err
	}
	b, err := inType(ctx, w.B, out.DType)
	if err != nil {
		return err
	}
	m, n, k := int(w.Rows), int(w.Columns), int(w.Inner)
	x, y, d := elements[T](a), elements[T](b), elements[T](out)
	left, right := newLeading(a, w.Batch), newLeading(b, w.Batch)
	// A piece has some rows of a product, or some products.
	const width = 1 << 10 // deep times width elements of b stay in the cache
	const deep = 1 << 6
	rows := min(m, max(1, checkEvery*4/(n*k)))
	bands := pieces(m, rows)
	return parallel(ctx, bands*(len(d)/(m*n)), func(piece int) error {
		matrix, from := piece/bands, piece%bands*rows
		size := out.DType.Size()
		a, b, c := x[left.offset(int64(matrix))/size:], y[right.offset(int64(matrix))/size:], d[matrix*m*n:]
		to := min(from+rows, m)
		clear(c[from*n : to*n])
		for j := 0; j < n; j += width {
			for l := 0; l < k; l += deep {
				for i := from; i < to; i++ {
					if err := ctx.Err(); err != nil {
						return err
					}
					add(c[i*n+j:i*n+min(j+width, n)], a[i*k+l:i*k+min(l+deep, k)], b[l*n+j:], n)
				}
			}
		}
		return nil
	})
}

// addMultiples adds four rows at a time, which loads and stores d less often.
func addMultiples[T number](d, x, b []T, n int) {
	for ; len(x) >= 4; x, b = x[4:], b[min(4*n, len(b)):] {
		x0, x1, x2, x3 := x[0], x[1], x[2], x[3]
		b0, b1, b2, b3 := b[:len(d)], b[n:][:len(d)], b[2*n:][:len(d)], b[3*n:][:len(d)]
		for i := range d {
			d[i] = d[i] + x0*b0[i] + x1*b1[i] + x2*b2[i] + x3*b3[i]
		}
	}
	for l, f := range x {
		row := b[l*n:][:len(d)]
		for i := range d {
			d[i] += f * row[i]
		}
	}
}

// addMultiplesOfBool is addMultiples with or and and, for eight elements at a time. Any byte but 0
// is true.
func addMultiplesOfBool(d, x, b []uint8, n int) {
	words := len(d) / 8 * 8
	for l, f := range x {
		if f == 0 {
			continue
		}
		row := b[l*n:][:len(d)]
		for i := 0; i < words; i += 8 {
			binary.NativeEndian.PutUint64(d[i:], binary.NativeEndian.Uint64(d[i:])|binary.NativeEndian.Uint64(row[i:]))
		}
		for i := words; i < len(d); i++ {
			d[i] |= row[i]
		}
	}
}
