package ops

import "context"

// blockQR is the factorisation of a matrix by blocks of reflections, as LAPACK's dgeqrf and dorgqr.
// It is column-major in a, with ld elements from column to column.
type blockQR struct {
	l       *algebra[float64]
	m, n, k int // k = min(m, n)
	width   int // the number of reflections of a block
	a       []float64
	ld      int
	upper   []float64 // r, k by n, column-major
	blocks  []reflection
	work    shared
}

const (
	// reflectedTogether is the number of reflections of a block.
	reflectedTogether = 32
	// longColumns is the number of rows from which on a block has fewer, so that it takes a
	// fraction of a second.
	longColumns = 1 << 21
	// reflectedColumns is the largest number of columns of a piece of work, unless a piece would
	// have fewer than reflectedElements.
	reflectedColumns  = 96
	reflectedElements = 1 << 16
)

// paddedRows returns a distance of columns that does not map them to the same lines of a cache.
func paddedRows(rows int) int {
	if rows%64 == 0 {
		return rows + 8
	}
	return rows
}

func newBlockQR(ctx context.Context, l *algebra[float64], x *Tensor) (*blockQR, error) {
	m, n := int(x.Shape[0]), int(x.Shape[1])
	f := &blockQR{l: l, m: m, n: n, k: min(m, n), width: reflectedTogether, ld: paddedRows(m)}
	if m > longColumns {
		f.width = reflectedTogether / 4
	}
	var err error
	if f.a, err = scratchFloats(ctx, n*f.ld); err != nil {
		return nil, err
	}
	if f.upper, err = scratchFloats(ctx, f.k*n); err != nil {
		return nil, err
	}
	triangles, err := scratchFloats(ctx, f.k*reflectedTogether)
	if err != nil {
		return nil, err
	}
	if f.work, err = newShared(ctx, 2*f.width*max(f.piece(), f.width)); err != nil {
		return nil, err
	}
	for i := 0; i < f.k; i += f.width {
		width := min(f.width, f.k-i)
		f.blocks = append(f.blocks, reflection{
			rows: m - i, width: width, v: f.a[i*f.ld+i:], ldv: f.ld, t: triangles[i*f.width:][:width*width],
		})
	}
	return f, moveAll(ctx, columnMajor(f.a, m, n, f.ld), x)
}

// piece returns how many columns one piece of work takes.
func (f *blockQR) piece() int {
	most := max(reflectedColumns, min(1<<12, reflectedElements/f.m))
	return min(most, pieceOf(4*float64(f.width)*float64(f.m), 8))
}

// factor computes r, and the reflections. While other goroutines apply one block, the one that has
// the first piece already factors the next block.
func (f *blockQR) factor(ctx context.Context) error {
	if err := f.factorBlock(0); err != nil {
		return err
	}
	for b := range f.blocks {
		p, from := &f.blocks[b], (b+1)*f.width
		from = min(from, f.k)
		if from == f.n {
			break
		}
		first := min(f.width, f.n-from)
		count := 1 + pieces(f.n-from-first, f.piece())
		if err := parallel(ctx, count, func(i int) error {
			at, width := from, first
			if i > 0 {
				at = from + first + (i-1)*f.piece()
				width = min(f.piece(), f.n-at)
			}
			if err := f.work.use(func(work []float64) error {
				return p.apply(f.l, 'T', width, f.a[at*f.ld+b*f.width:], f.ld, work)
			}); err != nil || i > 0 || b+1 == len(f.blocks) {
				return err
			}
			return f.factorBlock(b + 1)
		}); err != nil {
			return err
		}
	}
	for j := f.k; j < f.n; j++ {
		copy(f.upper[j*f.k:(j+1)*f.k], f.a[j*f.ld:])
	}
	return ctx.Err()
}

func (f *blockQR) factorBlock(b int) error {
	p, at := &f.blocks[b], b*f.width
	for j := at; j < at+p.width; j++ {
		column := f.upper[j*f.k : (j+1)*f.k]
		clear(column[copy(column[:at], f.a[j*f.ld:]):])
	}
	return f.work.use(func(work []float64) error {
		return p.factor(f.l, f.upper[at*f.k+at:], f.k, work)
	})
}

func (f *blockQR) triangle() *Tensor { return columnMajor(f.upper, f.k, f.n, f.k) }

// multiply overwrites c, which is m by k and column-major as a, with the product of the orthogonal
// factor and c. If c is triangular, column j has no elements below row j.
func (f *blockQR) multiply(ctx context.Context, c []float64, triangular bool) error {
	return eachPiece(ctx, f.k, f.piece(), func(at, end int) error {
		columns := end - at
		blocks := len(f.blocks)
		if triangular {
			blocks = pieces(end, f.width)
		}
		return f.work.use(func(work []float64) error {
			for b := blocks - 1; b >= 0; b-- {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := f.blocks[b].apply(f.l, 'N', columns, c[at*f.ld+b*f.width:], f.ld, work); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// storeQ is part of factorisation.
func (f *blockQR) storeQ(ctx context.Context, out, square *Tensor) error {
	q, err := scratchFloats(ctx, f.k*f.ld)
	if err != nil {
		return err
	}
	clear(q)
	for j := range f.k {
		q[j*f.ld+j] = 1
	}
	if square != nil {
		if err := moveAll(ctx, columnMajor(q, f.k, f.k, f.ld), square); err != nil {
			return err
		}
	}
	if err := f.multiply(ctx, q, square == nil); err != nil {
		return err
	}
	return moveAll(ctx, out, columnMajor(q, f.m, f.k, f.ld))
}
