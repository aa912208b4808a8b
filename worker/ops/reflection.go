package ops

import (
	"context"
	"runtime"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// reflection is a product of Householder's reflections of a QR factorisation: the orthogonal matrix
// I - V*T*V'. V is rows by width, column-major with ldv elements from column to column; it has ones
// on the diagonal and zeros above. T is width by width and upper triangular.
type reflection struct {
	rows, width int
	v           []float64
	ldv         int
	t           []float64
}

// reflectionRoutines are the routines of the library that reflections need, besides gemm.
var reflectionRoutines = []string{"dgeqrt"}

// geqrt factors the m by n matrix a, column-major, m >= n, in blocks of some columns. It overwrites
// a with r and, below the diagonal, with the reflectors. The triangles T of the blocks lie side by
// side in t, which is block by n; what lies below their diagonals is not defined.
func geqrt(lib *lapack.Library, m, n, block int, a []float64, lda int, t, work []float64) error {
	_, err := lib.Call("dgeqrt", lapack.Int(m), lapack.Int(n), lapack.Int(block), lapack.Array(a), lapack.Int(lda),
		lapack.Array(t), lapack.Int(block), lapack.Array(work), lapack.Info())
	runtime.KeepAlive(a)
	runtime.KeepAlive(t)
	runtime.KeepAlive(work)
	return err
}

// factor makes the reflection of the matrix that v holds, which has rows >= width. It stores the
// factor r in upper, a column-major matrix with ldu elements from column to column, with zeros
// below the diagonal. work has width² elements.
func (p *reflection) factor(l *algebra[float64], upper []float64, ldu int, work []float64) error {
	clear(p.t)
	if err := geqrt(l.lib, p.rows, p.width, p.width, p.v, p.ldv, p.t, work); err != nil {
		return err
	}
	for j := range p.width {
		column := p.v[j*p.ldv : j*p.ldv+p.width]
		to := upper[j*ldu : j*ldu+p.width]
		clear(to[copy(to, column[:j+1]):])
		clear(column[:j])
		column[j] = 1
	}
	return nil
}

// apply multiplies columns by the reflection, or by its transpose if trans is T. c is rows by n,
// column-major. work has 2*width*n elements.
func (p *reflection) apply(l *algebra[float64], trans byte, n int, c []float64, ldc int, work []float64) error {
	w, tw := work[:p.width*n], work[p.width*n:2*p.width*n]
	if err := l.gemm('T', 'N', p.width, n, p.rows, 1, p.v, p.ldv, c, ldc, 0, w, p.width); err != nil {
		return err
	}
	if err := l.gemm(trans, 'N', p.width, n, p.width, 1, p.t, p.width, w, p.width, 0, tw, p.width); err != nil {
		return err
	}
	return l.gemm('N', 'N', p.rows, n, p.width, -1, p.v, p.ldv, tw, p.width, 1, c, ldc)
}

// shared are pieces of working memory for goroutines: each has one for itself while it computes a
// piece of work.
type shared chan []float64

// newShared allocates as many pieces of n numbers as the call may use processors.
func newShared(ctx context.Context, n int) (shared, error) {
	s := make(shared, envOf(ctx).cores())
	for range cap(s) {
		piece, err := scratchFloats(ctx, n)
		if err != nil {
			return nil, err
		}
		s <- piece
	}
	return s, nil
}

// use calls f with a piece of memory. If there are more goroutines than pieces, it waits.
func (s shared) use(f func(memory []float64) error) error {
	memory := <-s
	defer func() { s <- memory }()
	return f(memory)
}
