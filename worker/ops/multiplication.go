package ops

import (
	"context"
	"slices"
	"unsafe"
)

// multiplication is a product of matrices, or several: out = a b, where a is m by k and b is k by
// n. The output is cut into pieces, which run in parallel. The pieces depend on the shapes alone,
// so that the result does not depend on the number of processors.
type multiplication[T inexact] struct {
	l       *algebra[T]
	count   int // of products
	m, n, k int
	a, b    matrices[T]
	// square: b is the transpose of a, so that the output is symmetric.
	square bool
	// rows, columns and inner are the size of the pieces. Parts of the inner length are added up
	// afterwards.
	rows, columns, inner int
}

// matrices is an operand of a product: matrices of the same shape, row-major or transposed.
type matrices[T inexact] struct {
	base       unsafe.Pointer
	places     leading
	transposed bool
	distance   int // of rows; of columns if transposed
	// rows and columns are those of a matrix.
	rows, columns int
	// uniform: each matrix lies step elements after the one before it.
	uniform bool
	step    int
}

// merge makes one matrix of all, whose rows follow each other. It returns false if they do not lie
// at one distance.
func (o *matrices[T]) merge() bool {
	if o.transposed {
		return false
	}
	var zero T
	size := int64(unsafe.Sizeof(zero))
	shape := append(slices.Clone(o.places.shape), int64(o.rows))
	strides := append(slices.Clone(o.places.strides), int64(o.distance)*size)
	shape, strides = coalesce(shape, strides, size)
	if len(shape) > 1 || strides[0]%size != 0 || strides[0] < int64(o.columns)*size {
		return false
	}
	o.places, o.transposed, o.rows, o.distance = leading{}, false, int(shape[0]), int(strides[0]/size)
	return true
}

// part returns the elements of a matrix from (row, column) on.
func (o *matrices[T]) part(matrix, row, column int) []T {
	rows, columns := o.rows, o.columns
	if o.transposed {
		row, column, rows, columns = column, row, columns, rows
	}
	var zero T
	at := unsafe.Add(o.base, (row*o.distance+column)*int(unsafe.Sizeof(zero)))
	if o.uniform {
		at = unsafe.Add(at, matrix*o.step*int(unsafe.Sizeof(zero)))
	} else {
		at = unsafe.Add(at, o.places.offset(int64(matrix)))
	}
	return unsafe.Slice((*T)(at), (rows-row-1)*o.distance+columns-column)
}

// letter is the option of BLAS for the operand. BLAS takes it as column-major, which is its
// transpose; and the product of the transposes, in reverse order, is the transpose of the output.
func (o *matrices[T]) letter() byte {
	if o.transposed {
		return 'T'
	}
	return 'N'
}

func newOperand[T inexact](t *Tensor, batch []int64) matrices[T] {
	n := t.NDim() - 2
	transposed, distance, _ := Leading(t.Shape[n], t.Shape[n+1], t.Strides[n], t.Strides[n+1], t.DType.Size())
	return matrices[T]{t.base(), newLeading(t, batch), transposed, distance, int(t.Shape[n]), int(t.Shape[n+1]), false, 0}
}

// newMultiplication returns the products of a and b, which BLAS can take.
func newMultiplication[T inexact](l *algebra[T], w *Multiplying, a, b *Tensor) *multiplication[T] {
	p := &multiplication[T]{l: l, count: 1, m: int(w.Rows), n: int(w.Columns), k: int(w.Inner), a: newOperand[T](a, w.Batch), b: newOperand[T](b, w.Batch)}
	for _, d := range w.Batch {
		p.count *= int(d)
	}
	if p.count > 1 && b.Len() == w.Inner*w.Columns && p.a.merge() { // all have the same right operand
		p.b.places = leading{}
		p.m, p.count = p.a.rows, 1
	}
	p.square = l.lib != nil && p.a.base == p.b.base && p.a.transposed != p.b.transposed && p.a.distance == p.b.distance && p.m == p.n && p.count == 1
	p.cut()
	p.a.findStep()
	p.b.findStep()
	return p
}

// findStep sets uniform and step.
func (o *matrices[T]) findStep() {
	var zero T
	size := int64(unsafe.Sizeof(zero))
	shape, strides := coalesce(o.places.shape, o.places.strides, size)
	o.uniform, o.step = len(shape) == 1 && strides[0]%size == 0, int(strides[0]/size)
}

// operations is the number of operations of a product of m by k and k by n. A complex
// multiplication counts as four.
func (l *algebra[T]) operations(m, n, k int) float64 {
	work := 2 * float64(m) * float64(n) * float64(k)
	switch any(T(0)).(type) {
	case complex64, complex128:
		return 4 * work
	}
	return work
}

const (
	// smallProduct is the number of operations below which a product is one piece: it takes some 50
	// microseconds.
	smallProduct = 2e6
	// pieceOfProduct is the number of operations of a piece of a larger one, if it has that many.
	pieceOfProduct = 6e7
	mostPieces     = 16
	leastPiece     = 64 // rows or columns
	// goPiece is the number of rows, columns and inner elements of pieces in Go.
	goPiece = 256
	// smallOutput is the number of elements up to which parts of the inner length are added up.
	smallOutput = 1 << 16
)

// cut sets the size of pieces.
func (p *multiplication[T]) cut() {
	p.rows, p.columns, p.inner = p.m, p.n, p.k
	work := p.l.operations(p.m, p.n, p.k)
	want := p.l.piecesOf(work)
	switch {
	case p.l.lib != nil && (want == 1 || p.count >= mostPieces && work < pieceOfProduct):
	case p.l.lib != nil && p.m*p.n <= smallOutput && p.k >= 8*max(p.m, p.n):
		p.inner = pieces(p.k, min(want, mostPieces))
	case p.square: // the pieces below the diagonal are enough
		count := 1
		for count*(count+1)/2 < want && p.m/(count+1) >= leastPiece {
			count++
		}
		p.rows = pieceLength(p.m, count)
		p.columns = p.rows
	default:
		p.rows, p.columns = p.l.grid(p.m, p.n, p.k)
	}
}

// piecesOf returns the number of pieces for an amount of work.
func (l *algebra[T]) piecesOf(work float64) int {
	if work < smallProduct {
		return 1
	}
	return int(max(2, min(work/pieceOfProduct, mostPieces), work/l.piece()))
}

// grid returns the size of the pieces into which the output of a product of m by k and k by n is
// cut.
func (l *algebra[T]) grid(m, n, k int) (rows, columns int) {
	if l.lib == nil {
		return min(goPiece, m), min(goPiece, n)
	}
	want := l.piecesOf(l.operations(m, n, k))
	down, across := 1, 1
	for down*across < want {
		switch {
		case m/down >= n/across && m/down >= 2*leastPiece:
			down *= 2
		case n/across >= 2*leastPiece:
			across *= 2
		default:
			want = 0
		}
	}
	return pieceLength(m, down), pieceLength(n, across)
}

// pieceLength returns the length of each of some pieces: a multiple of 16, which suits the vectors
// of processors.
func pieceLength(n, pieces int) int {
	if pieces == 1 {
		return n
	}
	return (n + 16*pieces - 1) / (16 * pieces) * 16
}

// run computes the products. out is contiguous.
func (p *multiplication[T]) run(ctx context.Context, out []T) error {
	size := p.m * p.n
	if p.rows == p.m && p.columns == p.n && p.inner == p.k {
		group := int(max(1, smallProduct/4/p.l.operations(p.m, p.n, p.k)))
		return parallel(ctx, pieces(p.count, group), func(piece int) error {
			if p.repeats() {
				return p.several(piece*group, out[piece*group*size:min((piece+1)*group, p.count)*size])
			}
			for i := piece * group; i < min((piece+1)*group, p.count); i++ {
				if err := p.whole(ctx, i, out[i*size:(i+1)*size]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for i := range p.count {
		if err := p.inPieces(ctx, i, out[i*size:(i+1)*size]); err != nil {
			return err
		}
	}
	return nil
}

// tinyProduct is the number of multiplications up to which a call of BLAS takes longer than loops.
const tinyProduct = 128

// repeats reports whether products are computed by repeated calls.
func (p *multiplication[T]) repeats() bool {
	return p.count > 1 && p.a.uniform && p.b.uniform && p.l.lib != nil && p.m*p.n*p.k > tinyProduct && p.k <= p.l.stepOf(p.m, p.n)
}

// several computes products from the first one on, as many as there is room for.
func (p *multiplication[T]) several(first int, out []T) error {
	times := len(out) / (p.m * p.n)
	l := p.l.repeated(times, p.b.step, p.a.step, p.m*p.n)
	if p.n == 1 {
		l.steps[0], l.steps[1] = p.a.step, p.b.step
	}
	return p.step(l, p.a.part(first, 0, 0), p.b.part(first, 0, 0), p.m, p.n, p.k, false, 0, out)
}

// whole computes one product in one piece.
func (p *multiplication[T]) whole(ctx context.Context, matrix int, out []T) error {
	if p.m*p.n*p.k <= tinyProduct {
		p.loop(matrix, out)
		return nil
	}
	if err := p.piece(ctx, matrix, 0, 0, 0, out); err != nil || !p.square {
		return err
	}
	mirror(out, p.m, 0, p.m)
	return nil
}

// loop computes one product without BLAS.
func (p *multiplication[T]) loop(matrix int, out []T) {
	a, b := p.a.part(matrix, 0, 0), p.b.part(matrix, 0, 0)
	rowA, columnA := p.a.steps()
	rowB, columnB := p.b.steps()
	for i := range p.m {
		for j := range p.n {
			var sum T
			for l := range p.k {
				sum += a[i*rowA+l*columnA] * b[l*rowB+j*columnB]
			}
			out[i*p.n+j] = sum
		}
	}
}

// steps returns the distances of rows and of columns.
func (o *matrices[T]) steps() (row, column int) {
	if o.transposed {
		return 1, o.distance
	}
	return o.distance, 1
}

// inPieces computes one product. If the inner length is cut, the parts after the first one are
// stored in working memory, and added in their order.
func (p *multiplication[T]) inPieces(ctx context.Context, matrix int, out []T) error {
	rows, columns, inner := pieces(p.m, p.rows), pieces(p.n, p.columns), pieces(p.k, p.inner)
	parts := [][]T{out}
	for range inner - 1 {
		part, err := scratchElements[T](ctx, len(out))
		if err != nil {
			return err
		}
		parts = append(parts, part)
	}
	if err := parallel(ctx, rows*columns*inner, func(piece int) error {
		part, at := piece%inner, piece/inner
		row, column := at/columns*p.rows, at%columns*p.columns
		if p.square && column > row {
			return nil
		}
		return p.piece(ctx, matrix, row, column, part*p.inner, parts[part][row*p.n+column:])
	}); err != nil {
		return err
	}
	for _, part := range parts[1:] {
		for i, x := range part {
			out[i] += x
		}
	}
	if p.square {
		return parallel(ctx, rows, func(piece int) error {
			mirror(out, p.m, piece*p.rows, min((piece+1)*p.rows, p.m))
			return nil
		})
	}
	return ctx.Err()
}

// piece computes a piece of the output, from (row, column) on, over a part of the inner length.
func (p *multiplication[T]) piece(ctx context.Context, matrix, row, column, inner int, out []T) error {
	m, n, end := min(p.rows, p.m-row), min(p.columns, p.n-column), min(inner+p.inner, p.k)
	step := p.l.stepOf(m, n)
	for from := inner; from < end; from += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		beta := 1
		if from == inner {
			beta = 0
		}
		if err := p.step(p.l, p.a.part(matrix, row, from), p.b.part(matrix, from, column), m, n, min(step, end-from), row == column, beta, out); err != nil {
			return err
		}
	}
	return nil
}

// stepOf returns how much of the inner length is multiplied between two checks of the context, for
// an output of m by n.
func (l *algebra[T]) stepOf(m, n int) int {
	if l.lib == nil {
		return goPiece
	}
	return max(goPiece, int(l.piece()/(8*float64(m)*float64(n))))
}

// step adds beta times out to the product of a, m by k, and b, k by n, and stores the sum in out.
func (p *multiplication[T]) step(l *algebra[T], a, b []T, m, n, k int, diagonal bool, beta int, out []T) error {
	switch ta, tb := p.a.letter(), p.b.letter(); {
	case p.square && diagonal:
		return l.syrk(otherLetter(ta), m, k, a, p.a.distance, beta, out, p.n)
	case l.lib == nil || p.m > 1 && p.n > 1:
		return l.gemm(tb, ta, n, m, k, 1, b, p.b.distance, a, p.a.distance, beta, out, p.n)
	case p.n > 1: // the row of a by b
		_, step := p.a.steps()
		if p.b.transposed {
			return l.gemv('T', k, n, b, p.b.distance, a, step, beta, out)
		}
		return l.gemv('N', n, k, b, p.b.distance, a, step, beta, out)
	default: // a by the column of b
		step, _ := p.b.steps()
		if p.a.transposed {
			return l.gemv('N', m, k, a, p.a.distance, b, step, beta, out)
		}
		return l.gemv('T', k, m, a, p.a.distance, b, step, beta, out)
	}
}

func otherLetter(letter byte) byte {
	if letter == 'N' {
		return 'T'
	}
	return 'N'
}

// mirror copies elements below the diagonal of an n by n matrix to their places above it, for the
// rows above it from one row up to another.
func mirror[T inexact](a []T, n, from, to int) {
	const tile = 32
	for i := from; i < to; i += tile {
		for j := i; j < n; j += tile {
			for row := i; row < min(i+tile, to); row++ {
				for column := max(j, row+1); column < min(j+tile, n); column++ {
					a[row*n+column] = a[column*n+row]
				}
			}
		}
	}
}
