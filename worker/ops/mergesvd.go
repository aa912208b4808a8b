package ops

import (
	"context"
	"math"
	"runtime"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// mergeSVD merges two parts of a bidiagonal matrix, as LAPACK's dlasd1.
type mergeSVD struct {
	*divideSVD
	bidiagonalPart
	d, u, vt []float64 // of the part; u and vt have n elements from column to column
	// u2 and vt2 are vectors of the parts, grouped by the rows in which they are not zero; q is the
	// matrix to multiply them by. z and poles are the coefficients of the equation.
	u2, vt2, q, z, poles []float64
	// roots is the number of unknown values; the others are those of the parts.
	roots int
	// place is the permutation by which dlasd2 has grouped the vectors, counted from 1. upper,
	// lower and dense are the sizes of the groups behind the first vector: it has elements in the
	// rows of the first part, of the second part, or of both.
	place               []int
	upper, lower, dense int
}

// mergeFloats returns how much working memory a merge takes.
func mergeFloats(p bidiagonalPart) int {
	n, m := p.rows, p.columns()
	return 2*n*n + m*m + 2*m
}

func newMerge(s *divideSVD, p bidiagonalPart, room []float64) *mergeSVD {
	take := func(n int) []float64 {
		part := room[:n:n]
		room = room[n:]
		return part
	}
	at, n, m := p.start*s.n+p.start, p.rows, p.columns()
	return &mergeSVD{
		divideSVD: s, bidiagonalPart: p, d: s.d[p.start : p.start+n], u: s.u[at:], vt: s.vt[at:],
		u2: take(n * n), vt2: take(m * m), q: take(n * n), z: take(m), poles: take(m),
	}
}

func (g *mergeSVD) run(ctx context.Context) error {
	alpha, beta := g.d[g.left], g.e[g.start+g.left]
	g.d[g.left] = 0
	norm := max(math.Abs(alpha), math.Abs(beta))
	for _, x := range g.d {
		norm = max(norm, math.Abs(x))
	}
	for i := range g.d {
		g.d[i] /= norm
	}
	if err := g.deflate(alpha/norm, beta/norm); err != nil {
		return err
	}
	if err := g.merge(ctx); err != nil {
		return err
	}
	for i := range g.d {
		g.d[i] *= norm
	}
	g.sort(g.bidiagonalPart)
	return ctx.Err()
}

// integers is an array of integers as the library stores them: of 64 bits, or of 32.
type integers struct {
	words []int
	wide  bool
}

func newIntegers(n int, wide bool) integers { return integers{make([]int, n), wide} }

func (a integers) at(i int) int {
	if a.wide {
		return a.words[i]
	}
	return int(int32(a.words[i/2] >> (32 * (i % 2)))) //nolint:gosec // one half of a word
}

func (a integers) set(i, x int) {
	if a.wide {
		a.words[i] = x
		return
	}
	a.words[i/2] |= x << (32 * (i % 2)) // x is positive, and the half is 0
}

// deflate sets up the equation. Values that are the whole's, too, are moved to the end, together
// with their vectors.
func (g *mergeSVD) deflate(alpha, beta float64) error {
	n, m := g.rows, g.columns()
	order, place, kinds := newIntegers(n, g.wide), newIntegers(n, g.wide), newIntegers(n, g.wide)
	for i, x := range g.order[g.start : g.start+n] {
		if i != g.left {
			order.set(i, x)
		}
	}
	pointers, sorted, roots := make([]int, n), make([]int, n), newIntegers(1, g.wide)
	_, err := g.lib.Call("dlasd2", lapack.Int(g.left), lapack.Int(n-g.left-1), lapack.Int(g.extra), lapack.Array(roots.words),
		lapack.Array(g.d), lapack.Array(g.z), lapack.Float64(alpha), lapack.Float64(beta), lapack.Array(g.u), lapack.Int(g.n),
		lapack.Array(g.vt), lapack.Int(g.n), lapack.Array(g.poles), lapack.Array(g.u2), lapack.Int(n), lapack.Array(g.vt2), lapack.Int(m),
		lapack.Array(pointers), lapack.Array(sorted), lapack.Array(place.words), lapack.Array(order.words), lapack.Array(kinds.words), lapack.Info())
	runtime.KeepAlive(g)
	keepAlive(pointers, sorted, place.words, order.words, kinds.words, roots.words)
	g.roots = roots.at(0)
	g.upper, g.lower, g.dense = kinds.at(0), kinds.at(1), kinds.at(2)
	g.place = make([]int, g.roots)
	for i := range g.place {
		g.place[i] = place.at(i)
	}
	return err
}

// merge computes the roots and the vectors that belong to them.
func (g *mergeSVD) merge(ctx context.Context) error {
	k, n := g.roots, g.n
	if k == 1 {
		g.d[0] = math.Abs(g.z[0])
		for j := range g.columns() {
			g.vt[j*n] = g.vt2[j*g.columns()]
		}
		for i := range g.rows {
			g.u[i] = math.Copysign(1, g.z[0]) * g.u2[i]
		}
		return nil
	}
	signs := make([]float64, k)
	copy(signs, g.z)
	length := norm2(g.z[:k])
	for i := range k {
		g.z[i] /= length
	}
	if err := g.findRoots(ctx, length*length); err != nil {
		return err
	}
	if err := g.adjust(ctx, signs); err != nil {
		return err
	}
	if err := g.coefficients(ctx, true); err != nil {
		return err
	}
	if err := g.multiplyLeft(ctx); err != nil {
		return err
	}
	if err := g.coefficients(ctx, false); err != nil {
		return err
	}
	return g.multiplyRight(ctx)
}

func norm2(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
}

// findRoots computes the values. Column j of u and vt receives the differences, and the sums, of
// the poles and root j.
func (g *mergeSVD) findRoots(ctx context.Context, rho float64) error {
	return eachPiece(ctx, g.roots, rootsTogether, func(from, to int) error {
		for j := from; j < to; j++ {
			info, err := g.lib.Call("dlasd4", lapack.Int(g.roots), lapack.Int(j+1), lapack.Array(g.poles), lapack.Array(g.z),
				lapack.Array(g.u[j*g.n:]), lapack.Float64(rho), lapack.Array(g.d[j:]), lapack.Array(g.vt[j*g.n:]), lapack.Info())
			runtime.KeepAlive(g)
			if info > 0 {
				return errNoConvergence
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// adjust computes the coefficients z for which the computed roots are exact: with these, the
// vectors are orthogonal.
func (g *mergeSVD) adjust(ctx context.Context, signs []float64) error {
	last := g.roots - 1
	return eachPiece(ctx, g.roots, 64, func(from, to int) error {
		u, vt := g.u[last*g.n:], g.vt[last*g.n:]
		for i := from; i < to; i++ {
			g.z[i] = u[i] * vt[i]
		}
		for j := range last {
			u, vt = g.u[j*g.n:], g.vt[j*g.n:]
			for i := from; i < to; i++ {
				pole := g.poles[j+1]
				if i > j {
					pole = g.poles[j]
				}
				g.z[i] *= u[i] * vt[i] / ((g.poles[i] - pole) * (g.poles[i] + pole))
			}
		}
		for i := from; i < to; i++ {
			g.z[i] = math.Copysign(math.Sqrt(math.Abs(g.z[i])), signs[i])
		}
		return nil
	})
}

// coefficients computes q: column i has the coefficients of vector i of the whole, for the left or
// for the right vectors. The left ones come first: they prepare the right ones in vt.
func (g *mergeSVD) coefficients(ctx context.Context, left bool) error {
	k := g.roots
	return eachPiece(ctx, k, rootsTogether, func(from, to int) error {
		for i := from; i < to; i++ {
			c, vt := g.vt[i*g.n:i*g.n+k], g.vt[i*g.n:i*g.n+k]
			if left {
				c = g.u[i*g.n : i*g.n+k]
				for j, x := range c {
					vt[j] = g.z[j] / x / vt[j]
					c[j] = g.poles[j] * vt[j]
				}
				c[0] = -1
			}
			length := norm2(c)
			q := g.q[i*k : (i+1)*k]
			q[0] = c[0] / length
			for j := 1; j < k; j++ {
				q[j] = c[g.place[j]-1] / length
			}
		}
		return nil
	})
}

// multiplyLeft computes the left vectors: the product of u2 and q, without the zeros of u2.
func (g *mergeSVD) multiplyLeft(ctx context.Context) error {
	k, rows, below := g.roots, g.rows, g.left+1
	return eachPiece(ctx, k, reflectedColumns, func(from, to int) error {
		q, out, width := g.q[from*k:], g.u[from*g.n:], to-from
		if k == 2 { // the vectors are not grouped
			return g.l.gemm('N', 'N', rows, width, k, 1, g.u2, rows, q, k, 0, out, g.n)
		}
		if err := g.add(g.left, width, g.upper, g.u2, 1, 0, q, out, 0); err != nil {
			return err
		}
		if err := g.add(g.left, width, g.dense, g.u2, 1+g.upper+g.lower, 0, q, out, 1); err != nil {
			return err
		}
		for j := range width {
			out[j*g.n+g.left] = q[j*k]
		}
		return g.add(rows-below, width, g.lower+g.dense, g.u2, 1+g.upper, below, q, out[below:], 0)
	})
}

// add adds to out, which it clears before if beta is 0, the product of some columns of u2, from a
// row on, and the same rows of q.
func (g *mergeSVD) add(rows, width, count int, u2 []float64, first, row int, q, out []float64, beta int) error {
	if count == 0 {
		if beta == 0 {
			for j := range width {
				clear(out[j*g.n : j*g.n+rows])
			}
		}
		return nil
	}
	return g.l.gemm('N', 'N', rows, width, count, 1, u2[first*g.rows+row:], g.rows, q[first:], g.roots, beta, out, g.n)
}

// multiplyRight computes the right vectors: the product of the transpose of q and vt2, without the
// zeros of vt2. The first row of vt2 has elements in all columns.
func (g *mergeSVD) multiplyRight(ctx context.Context) error {
	k, m := g.roots, g.columns()
	add := func(from, to, first, count, beta int) error {
		if count == 0 {
			return nil
		}
		return g.l.gemm('T', 'N', k, to-from, count, 1, g.q[first:], k, g.vt2[from*m+first:], m, beta, g.vt[from*g.n:], g.n)
	}
	if k == 2 {
		return add(0, m, 0, 2, 0)
	}
	split := g.left + 1
	if err := eachPiece(ctx, split, reflectedColumns, func(from, to int) error {
		if err := add(from, to, 0, 1+g.upper, 0); err != nil {
			return err
		}
		return add(from, to, 1+g.upper+g.lower, g.dense, 1)
	}); err != nil {
		return err
	}
	return eachPiece(ctx, m-split, reflectedColumns, func(from, to int) error {
		if err := add(split+from, split+to, 0, 1, 0); err != nil {
			return err
		}
		return add(split+from, split+to, 1+g.upper, g.lower+g.dense, 1)
	})
}
