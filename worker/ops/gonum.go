package ops

import (
	"context"
	"errors"
	"math"

	"gonum.org/v1/gonum/blas"
	blasgonum "gonum.org/v1/gonum/blas/gonum"
	"gonum.org/v1/gonum/lapack"
	lapackgonum "gonum.org/v1/gonum/lapack/gonum"
)

// blasInGo and lapackInGo are the routines of BLAS and LAPACK by gonum, for workers without a
// library. The factorisations in this file call them in pieces of at most about a second and check
// the context in between, so that a cancelled or timed-out task ends soon: Dgeqrf, Dorgqr and
// Dgesvd themselves cannot be interrupted. The algorithms are those of LAPACK's dgeqrf, dorgqr,
// dgebrd and dbdsqr. Matrices are row-major.
var (
	blasInGo   blasgonum.Implementation
	lapackInGo lapackgonum.Implementation
)

const (
	// panelColumns is the number of reflectors that are applied together.
	panelColumns = 32
	// pieceFlops limits the work between two checks of the context: it takes a second or less.
	pieceFlops = 1e9
	// tallRatio is the number of rows per column from which on a QR factorisation before the SVD
	// saves time. LAPACK also uses 1.6.
	tallRatio = 1.6
)

var errNoConvergence = errors.New("the singular values did not converge")

// pieceOf returns how many rows or columns fit a piece, but not less than least. flopsEach is the
// number of operations for one of them.
func pieceOf(flopsEach float64, least int) int {
	return max(least, int(min(pieceFlops/max(flopsEach, 1), math.MaxInt32)))
}

// reflectors overwrites the m by n matrix a with R and, below its diagonal, with the reflectors of
// a QR factorisation. Their scalar factors are stored in tau.
func reflectors(ctx context.Context, m, n int, a, tau []float64) error {
	k := min(m, n)
	var triangle [panelColumns * panelColumns]float64
	work := make([]float64, max(n, panelColumns)*panelColumns)
	for i := 0; i < k; i += panelColumns {
		width := min(panelColumns, k-i)
		for j := i; j < i+width; j++ {
			if err := ctx.Err(); err != nil {
				return err
			}
			a[j*n+j], tau[j] = lapackInGo.Dlarfg(m-j, a[j*n+j], a[min(j+1, m-1)*n+j:], n)
			if right := i + width - j - 1; right > 0 {
				diagonal := a[j*n+j]
				a[j*n+j] = 1
				lapackInGo.Dlarf(blas.Left, m-j, right, a[j*n+j:], n, tau[j], a[j*n+j+1:], n, work)
				a[j*n+j] = diagonal
			}
		}
		if i+width < n {
			blockOf(m-i, width, a[i*n+i:], n, tau[i:], triangle[:])
			if err := applyBlock(ctx, blas.Trans, m-i, n-i-width, width, a[i*n+i:], n, triangle[:], a[i*n+i+width:], n, work); err != nil {
				return err
			}
		}
	}
	return nil
}

// blockOf computes the triangle t by which k reflectors are applied together: their product is
// I - v t vT, where v has the reflectors in its columns, with ones on its diagonal and zeros above.
//
// NB: LAPACK's dlarft skips zeros at the ends of reflectors. That of gonum 0.17 then leaves out
// products that are not zero if the second reflector is shorter than the first one.
func blockOf(m, k int, v []float64, ldv int, tau, t []float64) {
	for i := range k {
		for j := range i {
			t[j*panelColumns+i] = -tau[i] * v[i*ldv+j]
		}
		if i > 0 && i+1 < m {
			blasInGo.Dgemv(blas.Trans, m-i-1, i, -tau[i], v[(i+1)*ldv:], ldv, v[(i+1)*ldv+i:], ldv, 1, t[i:], panelColumns)
		}
		if i > 0 {
			blasInGo.Dtrmv(blas.Upper, blas.NoTrans, blas.NonUnit, i, t, panelColumns, t[i:], panelColumns)
		}
		t[i*panelColumns+i] = tau[i]
	}
}

// applyBlock multiplies the m by n matrix c from the left by a block of reflectors, some columns at
// a time.
func applyBlock(ctx context.Context, transpose blas.Transpose, m, n, width int, v []float64, ldv int, triangle, c []float64, ldc int, work []float64) error {
	piece := min(pieceOf(4*float64(m)*float64(width), 8), len(work)/panelColumns)
	for from := 0; from < n; from += piece {
		if err := ctx.Err(); err != nil {
			return err
		}
		columns := min(piece, n-from)
		lapackInGo.Dlarfb(blas.Left, transpose, lapack.Forward, lapack.ColumnWise, m, columns, width, v, ldv, triangle, panelColumns, c[from:], ldc, work, panelColumns)
	}
	return nil
}

// orthogonal overwrites the m by k matrix q, which holds k reflectors below its diagonal, with the
// orthonormal columns that the reflectors define.
func orthogonal(ctx context.Context, m, k int, q []float64, ldq int, tau []float64) error {
	if k == 0 {
		return ctx.Err()
	}
	var triangle [panelColumns * panelColumns]float64
	work := make([]float64, max(k, panelColumns)*panelColumns)
	for i := (k - 1) / panelColumns * panelColumns; i >= 0; i -= panelColumns {
		width := min(panelColumns, k-i)
		if i+width < k {
			blockOf(m-i, width, q[i*ldq+i:], ldq, tau[i:], triangle[:])
			if err := applyBlock(ctx, blas.NoTrans, m-i, k-i-width, width, q[i*ldq+i:], ldq, triangle[:], q[i*ldq+i+width:], ldq, work); err != nil {
				return err
			}
		}
		for j := i + width - 1; j >= i; j-- {
			if err := ctx.Err(); err != nil {
				return err
			}
			if right := i + width - j - 1; right > 0 {
				q[j*ldq+j] = 1
				lapackInGo.Dlarf(blas.Left, m-j, right, q[j*ldq+j:], ldq, tau[j], q[j*ldq+j+1:], ldq, work)
			}
			for row := j + 1; row < m; row++ {
				q[row*ldq+j] *= -tau[j]
			}
			q[j*ldq+j] = 1 - tau[j]
			for row := range j {
				q[row*ldq+j] = 0
			}
		}
	}
	return nil
}

// qr factors the m by n matrix a into an m by k and a k by n matrix, with k = min(m, n). It
// destroys a. Without vectors it does not make q.
func qr(ctx context.Context, a []float64, m, n int, vectors bool) (q, r []float64, err error) {
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
	if !vectors {
		return nil, r, nil
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

// svd factors the m by n matrix a into u (m by n), s and vt (n by n). It destroys a. Without
// vectors it computes s alone. REQUIRES: m >= n >= 1; the squares of the elements are finite.
func svd(ctx context.Context, a []float64, m, n int, vectors bool) (u, s, vt []float64, err error) {
	if float64(m) >= tallRatio*float64(n) {
		q, r, err := qr(ctx, a, m, n, vectors)
		if err != nil {
			return nil, nil, nil, err
		}
		var inner []float64
		if inner, s, vt, err = bidiagonalSVD(ctx, r, n, n, vectors); err != nil {
			return nil, nil, nil, err
		}
		if vectors {
			if u, err = timesSquare(ctx, q, inner, m, n); err != nil {
				return nil, nil, nil, err
			}
		}
	} else if u, s, vt, err = bidiagonalSVD(ctx, a, m, n, vectors); err != nil {
		return nil, nil, nil, err
	}
	return u, s, vt, nil
}

// timesSquare multiplies the m by n matrix a by an n by n matrix.
func timesSquare(ctx context.Context, a, square []float64, m, n int) ([]float64, error) {
	product, err := scratchFloats(ctx, m*n)
	if err != nil {
		return nil, err
	}
	piece := pieceOf(2*float64(n)*float64(n), 1)
	for from := 0; from < m; from += piece {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		rows := min(piece, m-from)
		blasInGo.Dgemm(blas.NoTrans, blas.NoTrans, rows, n, n, 1, a[from*n:], n, square, n, 0, product[from*n:], n)
	}
	return product, nil
}

// bidiagonalSVD is svd by way of an upper bidiagonal matrix.
func bidiagonalSVD(ctx context.Context, a []float64, m, n int, vectors bool) (u, s, vt []float64, err error) {
	s = make([]float64, n)
	e, tauQ, tauP := make([]float64, n), make([]float64, n), make([]float64, n)
	if err := reduceToBidiagonal(ctx, m, n, a, s, e, tauQ, tauP); err != nil {
		return nil, nil, nil, err
	}
	if !vectors {
		if !lapackInGo.Dbdsqr(blas.Upper, n, 0, 0, 0, s, e[:n-1], nil, 1, nil, 1, nil, 1, make([]float64, 4*n)) {
			return nil, nil, nil, errNoConvergence
		}
		return nil, s, nil, ctx.Err()
	}
	if u, err = scratchFloats(ctx, m*n); err != nil {
		return nil, nil, nil, err
	}
	copy(u, a)
	if err := orthogonal(ctx, m, n, u, n, tauQ); err != nil {
		return nil, nil, nil, err
	}
	// The reflectors from the right lie in rows, one column to the right of the diagonal.
	// Transposed they are the reflectors of an n-1 by n-1 matrix.
	p, err := scratchFloats(ctx, (n-1)*(n-1))
	if err != nil {
		return nil, nil, nil, err
	}
	for row := range n - 1 {
		for column := range n - 1 {
			p[row*(n-1)+column] = a[column*n+row+1]
		}
	}
	if err := orthogonal(ctx, n-1, n-1, p, n-1, tauP); err != nil {
		return nil, nil, nil, err
	}
	if vt, err = scratchFloats(ctx, n*n); err != nil {
		return nil, nil, nil, err
	}
	clear(vt)
	vt[0] = 1
	for row := 1; row < n; row++ {
		for column := 1; column < n; column++ {
			vt[row*n+column] = p[(column-1)*(n-1)+row-1]
		}
	}
	return u, s, vt, diagonalise(ctx, m, n, s, e, u, vt)
}

// reduceToBidiagonal overwrites the m by n matrix a, m >= n, with reflectors from both sides. d and
// e receive the diagonal and the diagonal above it.
func reduceToBidiagonal(ctx context.Context, m, n int, a, d, e, tauQ, tauP []float64) error {
	x, err := scratchFloats(ctx, m*panelColumns)
	if err != nil {
		return err
	}
	y := make([]float64, n*panelColumns)
	i := 0
	for n-i > 2*panelColumns {
		if err := ctx.Err(); err != nil {
			return err
		}
		width := min(panelColumns, pieceOf(8*float64(m-i)*float64(n-i), 1))
		below, right := m-i-width, n-i-width
		lapackInGo.Dlabrd(m-i, n-i, width, a[i*n+i:], n, d[i:], e[i:], tauQ[i:], tauP[i:], x, panelColumns, y, panelColumns)
		piece := pieceOf(4*float64(right)*float64(width), 1)
		for from := 0; from < below; from += piece {
			if err := ctx.Err(); err != nil {
				return err
			}
			rows := min(piece, below-from)
			at := i + width + from
			blasInGo.Dgemm(blas.NoTrans, blas.Trans, rows, right, width, -1, a[at*n+i:], n, y[width*panelColumns:], panelColumns, 1, a[at*n+i+width:], n)
			blasInGo.Dgemm(blas.NoTrans, blas.NoTrans, rows, right, width, -1, x[(width+from)*panelColumns:], panelColumns, a[i*n+i+width:], n, 1, a[at*n+i+width:], n)
		}
		i += width
	}
	lapackInGo.Dgebd2(m-i, n-i, a[i*n+i:], n, d[i:], e[i:], tauQ[i:], tauP[i:], make([]float64, max(m, n)))
	return ctx.Err()
}

// diagonalise rotates the bidiagonal matrix of d and e to its singular values, which it stores in
// d. It applies the rotations to u (m by n) and vt (n by n). The rotations depend only on d and e.
// So a separate call for some rows of u, or some columns of vt, computes the same rotations.
func diagonalise(ctx context.Context, m, n int, d, e, u, vt []float64) error {
	// There are about 2n² rotations. Each takes 20 ns to find and 3 ns for an element of each row.
	piece := max(16, int(5e8/(2*float64(n)*float64(n)*3)))
	work := make([]float64, 4*n)
	ds, es := make([]float64, n), make([]float64, n)
	call := func(columns int, part []float64, ldp, rows int, below []float64) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		copy(ds, d)
		copy(es, e)
		if !lapackInGo.Dbdsqr(blas.Upper, n, columns, rows, 0, ds, es[:n-1], part, max(ldp, 1), below, n, nil, 1, work) {
			return errNoConvergence
		}
		return nil
	}
	for from := 0; from < m; from += piece {
		rows := min(piece, m-from)
		if err := call(0, nil, 1, rows, u[from*n:(from+rows)*n]); err != nil {
			return err
		}
	}
	part := make([]float64, n*min(piece, n))
	for from := 0; from < n; from += piece {
		columns := min(piece, n-from)
		for row := range n {
			copy(part[row*columns:(row+1)*columns], vt[row*n+from:])
		}
		if err := call(columns, part, columns, 0, nil); err != nil {
			return err
		}
		for row := range n {
			copy(vt[row*n+from:row*n+from+columns], part[row*columns:])
		}
	}
	copy(d, ds)
	return nil
}
