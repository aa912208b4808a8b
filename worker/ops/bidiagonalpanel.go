package ops

import (
	"cmp"
	"context"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// bidiagonalPanel reduces some columns and rows of a matrix to bidiagonal form, as LAPACK's dlabrd,
// with the two products of the whole rest of the matrix and a vector in pieces, on several
// processors. These products take nearly all of the time.
type bidiagonalPanel struct {
	*bidiagonal
	first      int // the number of the panel's first column, and row
	rows, cols int // of the rest of the matrix from there on
	// The columns of x and y are what the reflectors take away from the rest: they have m and n
	// elements.
	x, y []float64
	row  []float64 // a copy of the row that is reduced
}

const (
	// panelElements is the size of the rest of a matrix from which on products in pieces save time.
	// Below, the many calls of this type cost more.
	panelElements = 1 << 20
	// productElements is the size of a piece of such a product.
	productElements = 1 << 17
)

// element returns the part of a from element (i, j) of the rest of the matrix on.
func (p *bidiagonalPanel) element(i, j int) []float64 {
	return p.a[(p.first+j)*p.ld+p.first+i:]
}

// reduce reduces width columns and rows.
func (p *bidiagonalPanel) reduce(ctx context.Context, width int) error {
	for i := range width {
		if err := p.column(ctx, i); err != nil {
			return err
		}
		if err := p.line(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// column reduces column i, and computes column i of y.
func (p *bidiagonalPanel) column(ctx context.Context, i int) error {
	m, n, y := p.rows, p.cols, p.y[i*p.n:]
	v := p.element(i, i)
	err := cmp.Or(
		p.gemv('N', m-i, i, -1, p.element(i, 0), p.ld, p.y[i:], p.n, 1, v, 1),
		p.gemv('N', m-i, i, -1, p.x[i:], p.m, p.element(0, i), 1, 1, v, 1),
		p.reflect(m-i, v, v[min(1, m-i-1):], 1, p.tauQ[p.first+i:]),
	)
	if err != nil {
		return err
	}
	p.d[p.first+i], v[0] = v[0], 1
	after := n - i - 1
	if err := eachPiece(ctx, after, max(16, productElements/(m-i)), func(from, to int) error {
		return p.gemv('T', m-i, to-from, 1, p.element(i, i+1+from), p.ld, v, 1, 0, y[i+1+from:], 1)
	}); err != nil {
		return err
	}
	err = cmp.Or(
		p.gemv('T', m-i, i, 1, p.element(i, 0), p.ld, v, 1, 0, y, 1),
		p.gemv('N', after, i, -1, p.y[i+1:], p.n, y, 1, 1, y[i+1:], 1),
		p.gemv('T', m-i, i, 1, p.x[i:], p.m, v, 1, 0, y, 1),
		p.gemv('T', i, after, -1, p.element(0, i+1), p.ld, y, 1, 1, y[i+1:], 1),
	)
	scale(y[i+1:n], p.tauQ[p.first+i])
	return err
}

// line reduces row i, and computes column i of x.
func (p *bidiagonalPanel) line(ctx context.Context, i int) error {
	m, n, x := p.rows, p.cols, p.x[i*p.m:]
	after, below := n-i-1, m-i-1
	at := p.element(i, i+1)
	err := cmp.Or(
		p.gemv('N', after, i+1, -1, p.y[i+1:], p.n, p.element(i, 0), p.ld, 1, at, p.ld),
		p.gemv('T', i, after, -1, p.element(0, i+1), p.ld, p.x[i:], p.m, 1, at, p.ld),
		p.reflect(after, at, at[min(1, after-1)*p.ld:], p.ld, p.tauP[p.first+i:]),
	)
	if err != nil {
		return err
	}
	p.e[p.first+i], at[0] = at[0], 1
	u := p.row[:after]
	for j := range u {
		u[j] = at[j*p.ld]
	}
	if err := eachPiece(ctx, below, max(256, productElements/after/8*8), func(from, to int) error {
		return p.gemv('N', to-from, after, 1, p.element(i+1+from, i+1), p.ld, u, 1, 0, x[i+1+from:], 1)
	}); err != nil {
		return err
	}
	err = cmp.Or(
		p.gemv('T', after, i+1, 1, p.y[i+1:], p.n, u, 1, 0, x, 1),
		p.gemv('N', below, i+1, -1, p.element(i+1, 0), p.ld, x, 1, 1, x[i+1:], 1),
		p.gemv('N', i, after, 1, p.element(0, i+1), p.ld, u, 1, 0, x, 1),
		p.gemv('N', below, i, -1, p.x[i+1:], p.m, x, 1, 1, x[i+1:], 1),
	)
	scale(x[i+1:m], p.tauP[p.first+i])
	return err
}

// gemv stores alpha*op(a)*v + beta*w in w, where a has m rows and n columns.
func (b *bidiagonal) gemv(trans byte, m, n int, alpha float64, a []float64, lda int, v []float64, incv int, beta float64, w []float64, incw int) error {
	err := b.call("dgemv", lapack.Letter(trans), lapack.Int(m), lapack.Int(n), lapack.Float64(alpha), lapack.Array(a), lapack.Int(lda),
		lapack.Array(v), lapack.Int(incv), lapack.Float64(beta), lapack.Array(w), lapack.Int(incw))
	keepAlive(a, v, w)
	return err
}

// reflect makes the reflection that leaves only the first element of a vector of n elements, which
// are alpha[0] and those of v.
func (b *bidiagonal) reflect(n int, alpha, v []float64, incv int, tau []float64) error {
	err := b.call("dlarfg", lapack.Int(n), lapack.Array(alpha), lapack.Array(v), lapack.Int(incv), lapack.Array(tau))
	keepAlive(alpha, v, tau)
	return err
}

func scale(x []float64, by float64) {
	for i := range x {
		x[i] *= by
	}
}
