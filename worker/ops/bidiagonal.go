package ops

import (
	"context"
	"runtime"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// bidiagonal is a factorisation of a matrix into q, an upper bidiagonal matrix and the transpose of
// p, as LAPACK's dgebrd. The matrix is column-major in a, with ld elements from column to column;
// it is overwritten with the reflectors of q, in columns, and those of p, in rows.
type bidiagonal struct {
	lib        *lapack.Library
	l          *algebra[float64]
	m, n       int // m >= n
	a          []float64
	ld         int
	d, e       []float64 // the diagonal, and the diagonal above it
	tauQ, tauP []float64
	// triangles are those of the blocks of reflectors: n rows for q, and then n rows for p.
	triangles []float64
	work      shared
}

// bidiagonalRoutines are the routines of the library that it needs, besides gemm.
var bidiagonalRoutines = []string{"dgemv", "dlarfg", "dlabrd", "dgebd2", "dlarft", "dlarfb"}

// unblocked is the number of columns that are reduced one by one at the end.
const unblocked = 64

func newBidiagonal(ctx context.Context, m, n int) (*bidiagonal, error) {
	l := float64Algebra(ctx)
	b := &bidiagonal{lib: l.lib, l: l, m: m, n: n, ld: paddedRows(m)}
	b.d, b.e, b.tauQ, b.tauP = make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	var err error
	if b.a, err = scratchFloats(ctx, n*b.ld); err != nil {
		return nil, err
	}
	if b.triangles, err = scratchFloats(ctx, 2*(n+reflectedTogether)*reflectedTogether); err != nil {
		return nil, err
	}
	b.work, err = newShared(ctx, reflectedTogether*reflectedColumns)
	return b, err
}

// reduce computes d, e and the reflectors from the matrix in a.
func (b *bidiagonal) reduce(ctx context.Context) error {
	x, err := scratchFloats(ctx, b.m*reflectedTogether)
	if err != nil {
		return err
	}
	y, err := scratchFloats(ctx, b.n*reflectedTogether)
	if err != nil {
		return err
	}
	row := make([]float64, b.n)
	at := 0
	for b.n-at > unblocked {
		if err := ctx.Err(); err != nil {
			return err
		}
		width, err := reflectedTogether, error(nil)
		if (b.m-at)*(b.n-at) >= panelElements {
			err = (&bidiagonalPanel{b, at, b.m - at, b.n - at, x, y, row}).reduce(ctx, width)
		} else {
			err = b.call("dlabrd", lapack.Int(b.m-at), lapack.Int(b.n-at), lapack.Int(width), b.at(at, at), lapack.Int(b.ld),
				lapack.Array(b.d[at:]), lapack.Array(b.e[at:]), lapack.Array(b.tauQ[at:]), lapack.Array(b.tauP[at:]),
				lapack.Array(x), lapack.Int(b.m), lapack.Array(y), lapack.Int(b.n))
		}
		if err != nil {
			return err
		}
		if err := b.update(ctx, at, width, x, y); err != nil {
			return err
		}
		at += width
	}
	work := x[:max(b.m, b.n)-at]
	err = b.call("dgebd2", lapack.Int(b.m-at), lapack.Int(b.n-at), b.at(at, at), lapack.Int(b.ld),
		lapack.Array(b.d[at:]), lapack.Array(b.e[at:]), lapack.Array(b.tauQ[at:]), lapack.Array(b.tauP[at:]), lapack.Array(work), lapack.Info())
	runtime.KeepAlive(x)
	runtime.KeepAlive(y)
	return err
}

// at returns element (i, j) of a as an argument, and call calls a routine that works on a.
func (b *bidiagonal) at(i, j int) lapack.Arg { return lapack.Array(b.a[j*b.ld+i:]) }

func (b *bidiagonal) call(routine string, arguments ...lapack.Arg) error {
	_, err := b.lib.Call(routine, arguments...)
	runtime.KeepAlive(b)
	return err
}

// update subtracts from the columns behind a panel what its reflectors take away from them.
func (b *bidiagonal) update(ctx context.Context, at, width int, x, y []float64) error {
	from := at + width
	rows, columns := b.m-from, b.n-from
	return eachPiece(ctx, columns, b.piece(), func(first, end int) error {
		count := end - first
		c := b.a[(from+first)*b.ld+from:]
		if err := b.l.gemm('N', 'T', rows, count, width, -1, b.a[at*b.ld+from:], b.ld, y[width+first:], b.n, 1, c, b.ld); err != nil {
			return err
		}
		return b.l.gemm('N', 'N', rows, count, width, -1, x[width:], b.m, b.a[(from+first)*b.ld+at:], b.ld, 1, c, b.ld)
	})
}

// piece is the number of columns of a piece of work.
func (b *bidiagonal) piece() int {
	return min(reflectedColumns, pieceOf(4*reflectedTogether*float64(b.m), 8))
}

// multiply overwrites u with q*u and v with p*v. u is m by n and v is n by n; they are
// column-major, with their own distances from column to column.
func (b *bidiagonal) multiply(ctx context.Context, u []float64, ldu int, v []float64, ldv int) error {
	blocks := pieces(b.n, reflectedTogether)
	if err := parallel(ctx, 2*blocks, func(piece int) error { return b.triangle(piece%blocks, piece < blocks) }); err != nil {
		return err
	}
	each := b.piece()
	perSide := pieces(b.n, each)
	return parallel(ctx, 2*perSide, func(piece int) error {
		c, ldc, left := u, ldu, piece < perSide
		if !left {
			c, ldc, piece = v, ldv, piece-perSide
		}
		first := piece * each
		return b.work.use(func(work []float64) error {
			for block := blocks - 1; block >= 0; block-- {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := b.apply(block, left, min(each, b.n-first), c[first*ldc:], ldc, work); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// block returns the place of a block of reflectors: of its first element in a, the number of the
// first row that it changes, and how many it has. The reflectors of p begin one column to the right
// of the diagonal.
func (b *bidiagonal) block(block int, left bool) (row, column, first, width int) {
	at := block * reflectedTogether
	if left {
		return at, at, at, min(reflectedTogether, b.n-at)
	}
	return at, at + 1, at + 1, min(reflectedTogether, b.n-1-at)
}

// factors returns the arguments that dlarft and dlarfb need for reflectors in columns, or in rows.
func (b *bidiagonal) factors(block int, left bool) (stored byte, length int, tau, triangle []float64) {
	if left {
		return 'C', b.m, b.tauQ, b.triangles[block*reflectedTogether*reflectedTogether:]
	}
	return 'R', b.n, b.tauP, b.triangles[(b.n+block*reflectedTogether)*reflectedTogether:]
}

// triangle computes the triangle of a block of reflectors.
func (b *bidiagonal) triangle(block int, left bool) error {
	row, column, first, width := b.block(block, left)
	if width <= 0 {
		return nil
	}
	stored, length, tau, triangle := b.factors(block, left)
	return b.call("dlarft", lapack.Letter('F'), lapack.Letter(stored), lapack.Int(length-first), lapack.Int(width),
		b.at(row, column), lapack.Int(b.ld), lapack.Array(tau[row:]), lapack.Array(triangle), lapack.Int(reflectedTogether))
}

// apply multiplies columns of c by a block of reflectors.
func (b *bidiagonal) apply(block int, left bool, columns int, c []float64, ldc int, work []float64) error {
	row, column, first, width := b.block(block, left)
	if width <= 0 {
		return nil
	}
	stored, length, _, triangle := b.factors(block, left)
	err := b.call("dlarfb", lapack.Letter('L'), lapack.Letter('N'), lapack.Letter('F'), lapack.Letter(stored),
		lapack.Int(length-first), lapack.Int(columns), lapack.Int(width), b.at(row, column), lapack.Int(b.ld),
		lapack.Array(triangle), lapack.Int(reflectedTogether), lapack.Array(c[first:]), lapack.Int(ldc), lapack.Array(work), lapack.Int(columns))
	runtime.KeepAlive(c)
	runtime.KeepAlive(work)
	return err
}
