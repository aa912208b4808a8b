package ops

import (
	"cmp"
	"context"
	"math"
	"runtime"
	"slices"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// divideSVD computes the singular values and vectors of an upper bidiagonal matrix by divide and
// conquer, as LAPACK's dbdsdc (Gu and Eisenstat, 1995). Removing a row divides the matrix into two.
// Their singular values are the poles of an equation, whose roots are the values of the whole. The
// vectors of the whole are those of the parts times a matrix that follows from the roots. Each step
// is cut into pieces.
type divideSVD struct {
	l   *algebra[float64]
	lib *lapack.Library
	n   int
	// d are the values, in the end in descending order; e is destroyed.
	d, e []float64
	// u are the left vectors in columns, and vt the right vectors in rows; both are column-major, n
	// by n.
	u, vt []float64
	// order numbers the values of a part in ascending order, counted from 1, from the part's first
	// row on.
	order  []int
	leaves []bidiagonalPart
	merges [][]bidiagonalPart // by their depth
	wide   bool               // the library's integers have 64 bits
}

// bidiagonalPart are some rows of the matrix, from row start on. extra is 1 if there is a column
// more than rows, else 0. left is the number of rows of its first part.
type bidiagonalPart struct{ start, rows, extra, left int }

func (p bidiagonalPart) columns() int { return p.rows + p.extra }

// divideRoutines are the routines of the library that it needs, besides gemm.
var divideRoutines = []string{"dlasd0", "dlasd2", "dlasd4"}

const (
	// leafSVD is the largest number of rows that the library computes as a whole.
	leafSVD = 100
	// smallSVD is dlasd0's own number of rows up to which it does not divide.
	smallSVD = 25
	// rootsTogether is the number of roots of a piece of work.
	rootsTogether = 16
)

// solve computes the values and vectors.
func (s *divideSVD) solve(ctx context.Context) error {
	s.wide = s.lib.WideIntegers()
	s.order = make([]int, s.n)
	clear(s.u)
	clear(s.vt)
	for i := range s.n {
		s.u[i*s.n+i], s.vt[i*s.n+i] = 1, 1
	}
	norm := 0.0
	for i := range s.n {
		norm = max(norm, math.Abs(s.d[i]))
		if i < s.n-1 {
			norm = max(norm, math.Abs(s.e[i]))
		}
	}
	if norm == 0 {
		return nil
	}
	s.split(norm)
	if err := s.solveLeaves(ctx); err != nil {
		return err
	}
	for _, merges := range slices.Backward(s.merges) {
		if err := s.mergeAll(ctx, merges); err != nil {
			return err
		}
	}
	for i := range s.d {
		s.d[i] *= norm
	}
	return nil
}

// split divides the matrix where it is nearly zero above the diagonal, after it has been divided by
// norm, and then each part down to leaves. No value of the diagonal is nearer to zero than epsilon
// then.
func (s *divideSVD) split(norm float64) {
	const epsilon = 0x1p-53
	for i := range s.n {
		s.d[i] /= norm
		s.e[i] /= norm
		if math.Abs(s.d[i]) < epsilon {
			s.d[i] = math.Copysign(epsilon, s.d[i])
		}
	}
	start := 0
	for i := range s.n {
		if i == s.n-1 || math.Abs(s.e[i]) < epsilon {
			s.divide(bidiagonalPart{start: start, rows: i + 1 - start}, 0)
			start = i + 1
		}
	}
}

func (s *divideSVD) divide(p bidiagonalPart, depth int) {
	if p.rows <= leafSVD {
		s.leaves = append(s.leaves, p)
		return
	}
	p.left = p.rows / 2
	if depth == len(s.merges) {
		s.merges = append(s.merges, nil)
	}
	s.merges[depth] = append(s.merges[depth], p)
	s.divide(bidiagonalPart{start: p.start, rows: p.left, extra: 1}, depth+1)
	s.divide(bidiagonalPart{start: p.start + p.left + 1, rows: p.rows - p.left - 1, extra: p.extra}, depth+1)
}

func (s *divideSVD) solveLeaves(ctx context.Context) error {
	most := leafSVD + 1
	work, err := newShared(ctx, 3*most*most+2*most)
	if err != nil {
		return err
	}
	return parallel(ctx, len(s.leaves), func(i int) error {
		return work.use(func(work []float64) error { return s.leaf(s.leaves[i], work) })
	})
}

func (s *divideSVD) leaf(p bidiagonalPart, work []float64) error {
	at := p.start*s.n + p.start
	integers := make([]int, 8*p.rows)
	info, err := s.lib.Call("dlasd0", lapack.Int(p.rows), lapack.Int(p.extra), lapack.Array(s.d[p.start:]), lapack.Array(s.e[p.start:]),
		lapack.Array(s.u[at:]), lapack.Int(s.n), lapack.Array(s.vt[at:]), lapack.Int(s.n), lapack.Int(smallSVD),
		lapack.Array(integers), lapack.Array(work), lapack.Info())
	runtime.KeepAlive(s)
	runtime.KeepAlive(integers)
	runtime.KeepAlive(work)
	if info > 0 {
		return errNoConvergence
	}
	s.sort(p)
	return err
}

// sort sets the order of the values of a part.
func (s *divideSVD) sort(p bidiagonalPart) {
	d, order := s.d[p.start:p.start+p.rows], s.order[p.start:p.start+p.rows]
	for i := range order {
		order[i] = i + 1
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(d[i-1], d[j-1]) })
}

// mergeAll merges parts that have no rows in common: several at the same time if they are many,
// else one after the other on all processors.
func (s *divideSVD) mergeAll(ctx context.Context, parts []bidiagonalPart) error {
	at := make([]int, len(parts)+1)
	for i, p := range parts {
		at[i+1] = at[i] + mergeFloats(p)
	}
	room, err := scratchFloats(ctx, at[len(parts)])
	if err != nil {
		return err
	}
	merge := func(ctx context.Context, i int) error {
		return newMerge(s, parts[i], room[at[i]:at[i+1]]).run(ctx)
	}
	if len(parts) >= 4 {
		alone := onOneProcessor(ctx)
		return parallel(ctx, len(parts), func(i int) error { return merge(alone, i) })
	}
	for i := range parts {
		if err := merge(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// sorted sorts the values in descending order, and copies the vectors in this order: the left ones
// to the columns of u, with ldu elements from column to column and zeros below, and the right ones
// to the columns of v.
func (s *divideSVD) sorted(ctx context.Context, u []float64, ldu int, v []float64) error {
	order := make([]int, s.n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(s.d[j], s.d[i]) })
	values := slices.Clone(s.d)
	for j, from := range order {
		s.d[j] = values[from]
	}
	return eachPiece(ctx, s.n, rootsTogether, func(from, to int) error {
		for j := from; j < to; j++ {
			column := u[j*ldu : (j+1)*ldu]
			clear(column[copy(column, s.u[order[j]*s.n:(order[j]+1)*s.n]):])
		}
		for i := range s.n {
			row := s.vt[i*s.n : (i+1)*s.n]
			for j := from; j < to; j++ {
				v[j*s.n+i] = row[order[j]]
			}
		}
		return nil
	})
}
