package ops

import (
	"context"
	"math"
	"slices"
)

// tallQR is the factorisation of a matrix with many more rows than columns, by a tree (TSQR: Demmel
// and others, 2012). Each leaf factors some rows, which fit a cache. Each node above factors the
// triangles of its children, one below the other; the root's triangle is r. The orthogonal factor
// is computed in the opposite direction: a node's reflection times a matrix gives the matrices of
// its children, and the leaves give the rows of q. The shape of the tree depends on the shape of
// the matrix alone.
//
// The triangle of a tree has rows with other signs than that of Householder's reflections of the
// whole matrix. The signs of the latter follow from the first n rows of q; see reflectedSigns.
type tallQR struct {
	l *algebra[float64]
	x *Tensor
	n int
	// bounds are the first rows of the leaves, and the number of rows of x.
	bounds []int
	// levels are the nodes, from the leaves up to the root. Nodes on the way from the root to the
	// first leaf, and all nodes if q is wanted, keep their reflections.
	levels [][]treeNode
	upper  []float64 // the root's triangle, column-major, until signed: then r
	signs  []float64
	keep   bool // q is wanted
	work   shared
}

// treeNode is a node of the tree: the first of its children, one level below, and its reflection.
// There v is, up to the node's factorisation, the matrix that it factors.
type treeNode struct {
	first int
	reflection
}

const (
	// leafElements is the size of a leaf, if that has leafRatio rows a column at least: it fits the
	// second-level cache of a processor.
	leafElements = 100_000
	leafRatio    = 4
	// children is the number of children of a node.
	children = 8
	// tallColumns is the largest number of columns for which a tree is used. Leaves with more
	// columns would not fit a cache.
	tallColumns = 256
	// triangleBlock is the number of columns that are factored together if only r is wanted.
	triangleBlock = 16
)

func leafRows(n int) int { return max(leafRatio*n, leafElements/n) }

// isTall reports whether a tree is used: it then has four leaves at least.
func isTall(m, n int) bool { return n <= tallColumns && m >= 4*leafRows(n) }

func newTallQR(ctx context.Context, l *algebra[float64], x *Tensor, keep bool) (*tallQR, error) {
	m, n := int(x.Shape[0]), int(x.Shape[1])
	leaves := m / leafRows(n)
	f := &tallQR{l: l, x: x, n: n, keep: keep, signs: make([]float64, n)}
	for i := range leaves + 1 {
		f.bounds = append(f.bounds, m/leaves*i+min(i, m%leaves))
	}
	f.levels = append(f.levels, make([]treeNode, leaves))
	for i := range leaves {
		f.levels[0][i].rows = f.bounds[i+1] - f.bounds[i]
	}
	for below := leaves; below > 1; below = len(f.levels[len(f.levels)-1]) {
		nodes := make([]treeNode, pieces(below, children))
		for i := range nodes {
			nodes[i].first = below * i / len(nodes)
			nodes[i].rows = (below*(i+1)/len(nodes) - nodes[i].first) * n
		}
		f.levels = append(f.levels, nodes)
	}
	for level, nodes := range f.levels {
		for i := range nodes {
			node := &nodes[i]
			node.width, node.ldv = n, node.rows
			if err := f.allocate(ctx, node, level, i); err != nil {
				return nil, err
			}
		}
	}
	var err error
	if f.upper, err = scratchFloats(ctx, n*n); err != nil {
		return nil, err
	}
	f.work, err = newShared(ctx, (f.bounds[1]+n)*n+4*n*n)
	return f, err
}

// allocate allocates what a node keeps. A leaf whose reflection is not kept needs nothing.
func (f *tallQR) allocate(ctx context.Context, node *treeNode, level, i int) (err error) {
	kept := f.keep || i == 0
	if kept || level > 0 {
		if node.v, err = scratchFloats(ctx, node.rows*f.n); err != nil {
			return err
		}
	}
	if kept {
		node.t, err = scratchFloats(ctx, f.n*f.n)
	}
	return err
}

// factor computes the root's triangle, with its final signs.
func (f *tallQR) factor(ctx context.Context) error {
	for level, nodes := range f.levels {
		if err := parallel(ctx, len(nodes), func(i int) error {
			return f.work.use(func(work []float64) error { return f.factorNode(level, i, work) })
		}); err != nil {
			return err
		}
	}
	return f.sign(ctx)
}

// factorNode factors a node, and stores its triangle where its parent reads it.
func (f *tallQR) factorNode(level, i int, work []float64) error {
	node := f.levels[level][i]
	if node.v == nil {
		node.v, work = work[:node.rows*f.n], work[node.rows*f.n:]
	}
	if level == 0 {
		moveMatrix(columnMajor(node.v, node.rows, f.n, node.rows), partOf(f.x, f.bounds[i], 0, node.rows, f.n))
	}
	to, ld := f.place(level, i)
	if node.t != nil {
		return node.factor(f.l, to, ld, work)
	}
	block := min(triangleBlock, f.n)
	if err := geqrt(f.l.lib, node.rows, f.n, block, node.v, node.rows, work[:block*f.n], work[block*f.n:]); err != nil {
		return err
	}
	for j := range f.n {
		clear(to[j*ld+copy(to[j*ld:j*ld+f.n], node.v[j*node.rows:][:j+1]) : j*ld+f.n])
	}
	return nil
}

// place returns the memory for the triangle of a node, column-major: rows of its parent's matrix.
func (f *tallQR) place(level, i int) (to []float64, ld int) {
	if level+1 == len(f.levels) {
		return f.upper, f.n
	}
	parents := f.levels[level+1]
	above, found := slices.BinarySearchFunc(parents, i, func(p treeNode, i int) int { return p.first - i })
	if !found {
		above--
	}
	parent := &parents[above]
	return parent.v[(i-parent.first)*f.n:], parent.rows
}

// sign computes the first n rows of the orthogonal factor, for the signs of r.
func (f *tallQR) sign(ctx context.Context) error {
	n := f.n
	return f.work.use(func(work []float64) error {
		c, w, tw := work[:n*n], work[n*n:2*n*n], work[2*n*n:3*n*n]
		clear(c)
		for j := range n {
			c[j*n+j] = 1
		}
		for _, nodes := range slices.Backward(f.levels) {
			if err := ctx.Err(); err != nil {
				return err
			}
			node := &nodes[0]
			if err := node.expand(f.l, c, n, w, tw); err != nil {
				return err
			}
			if err := f.l.gemm('N', 'N', n, n, n, -1, node.v, node.ldv, tw, n, 1, c, n); err != nil {
				return err
			}
		}
		if err := reflectedSigns(ctx, f.l, n, c, f.signs); err != nil {
			return err
		}
		for j := range n {
			for i := range j + 1 {
				f.upper[j*n+i] *= f.signs[i]
			}
		}
		return nil
	})
}

func (f *tallQR) triangle() *Tensor { return columnMajor(f.upper, f.n, f.n, f.n) }

// expand computes T*V'*c in tw, where c is n by n and stands for a matrix with zeros below.
func (p *reflection) expand(l *algebra[float64], c []float64, ldc int, w, tw []float64) error {
	n := p.width
	if err := l.gemm('T', 'N', n, n, n, 1, p.v, p.ldv, c, ldc, 0, w, n); err != nil {
		return err
	}
	return l.gemm('N', 'N', n, n, n, 1, p.t, n, w, n, 0, tw, n)
}

// storeQ is part of factorisation.
func (f *tallQR) storeQ(ctx context.Context, out, square *Tensor) error {
	n := f.n
	matrices := make([][]float64, len(f.levels)) // for each level, those of its nodes
	for level := range f.levels[1:] {
		rows := len(f.levels[level]) * n // of the triangles of the level
		var err error
		if matrices[level], err = scratchFloats(ctx, rows*n); err != nil {
			return err
		}
	}
	root := len(f.levels) - 1
	var err error
	if matrices[root], err = scratchFloats(ctx, n*n); err != nil {
		return err
	}
	clear(matrices[root])
	for i := range n {
		matrices[root][i*n+i] = 1
	}
	if square != nil {
		moveMatrix(transposeOf(columnMajor(matrices[root], n, n, n)), square)
	}
	for i, s := range f.signs {
		for j := range n {
			matrices[root][i*n+j] *= s
		}
	}
	for level := root; level >= 0; level-- {
		if err := parallel(ctx, len(f.levels[level]), func(i int) error {
			return f.work.use(func(work []float64) error {
				c := matrices[level][i*n*n : (i+1)*n*n]
				if level > 0 {
					first := f.levels[level][i].first
					return f.multiplyNode(level, i, c, matrices[level-1][first*n*n:], work)
				}
				height := f.levels[0][i].rows
				part := partOf(out, f.bounds[i], 0, height, n)
				if out.DType == Float64 { // its rows are as long as those of the result
					return f.multiplyNode(0, i, c, elements[float64](part), work)
				}
				q := work[4*n*n:][:height*n]
				if err := f.multiplyNode(0, i, c, q, work); err != nil {
					return err
				}
				moveMatrix(part, transposeOf(columnMajor(q, n, height, n)))
				return nil
			})
		}); err != nil {
			return err
		}
	}
	return nil
}

// multiplyNode computes the product of a node's reflection and c, which is n by n and has zeros
// below. All these matrices are row-major. The rows of the product are the matrices of the node's
// children.
func (f *tallQR) multiplyNode(level, i int, c, product, work []float64) error {
	n, node := f.n, &f.levels[level][i]
	square, w, tw := work[:n*n], work[n*n:2*n*n], work[2*n*n:3*n*n]
	moveMatrix(columnMajor(square, n, n, n), transposeOf(columnMajor(c, n, n, n)))
	if err := node.expand(f.l, square, n, w, tw); err != nil {
		return err
	}
	if err := f.l.gemm('T', 'T', n, node.rows, n, -1, tw, n, node.v, node.ldv, 0, product, n); err != nil {
		return err
	}
	for k, v := range c {
		product[k] += v
	}
	return nil
}

// reflectedSigns computes the signs by which the rows of r, and the columns of q, differ from those
// of Householder's reflections. It destroys the n by n matrix top, column-major: the first rows of
// q. With the right signs s, diag(s) - top is the product of the first rows of the reflectors and
// an upper triangular matrix, and each step of its elimination gives a sign: the one that makes the
// pivot larger (Ballard and others, 2014).
func reflectedSigns(ctx context.Context, l *algebra[float64], n int, top, signs []float64) error {
	const block = 32
	for from := 0; from < n; from += block {
		if err := ctx.Err(); err != nil {
			return err
		}
		to := min(from+block, n)
		for j := from; j < to; j++ {
			pivot := top[j*n+j]
			signs[j] = -1
			if math.Signbit(pivot) {
				signs[j] = 1
			}
			pivot -= signs[j]
			column := top[j*n : (j+1)*n]
			for i := j + 1; i < n; i++ {
				column[i] /= pivot
			}
			for k := j + 1; k < to; k++ {
				other := top[k*n : (k+1)*n]
				for i := j + 1; i < n; i++ {
					other[i] -= column[i] * other[j]
				}
			}
		}
		if to == n {
			break
		}
		if err := l.trsm('L', 'L', 'N', 'U', to-from, n-to, top[from*n+from:], n, top[to*n+from:], n); err != nil {
			return err
		}
		if err := l.gemm('N', 'N', n-to, n-to, to-from, -1, top[from*n+to:], n, top[to*n+from:], n, 1, top[to*n+to:], n); err != nil {
			return err
		}
	}
	return nil
}
