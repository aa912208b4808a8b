package ops

import (
	"context"
	"slices"
	"unsafe"
)

// columnMajor describes float64 elements as a matrix whose columns lie one after the other, ld
// elements apart.
func columnMajor(a []float64, rows, columns, ld int) *Tensor {
	return &Tensor{DType: Float64, Shape: []int64{int64(rows), int64(columns)}, Strides: []int64{8, 8 * int64(ld)}, Data: block[byte](slicePointer(a), 8*len(a))}
}

// rowMajor describes float64 elements as a matrix whose rows lie one after the other.
func rowMajor(a []float64, rows, columns int) *Tensor {
	return transposeOf(columnMajor(a, columns, rows, columns))
}

// partOf returns a part of a matrix.
func partOf(t *Tensor, row, column, rows, columns int) *Tensor {
	part := *t
	part.Shape = []int64{int64(rows), int64(columns)}
	part.Offset += int64(row)*t.Strides[0] + int64(column)*t.Strides[1]
	return &part
}

// transposeOf returns the transpose of a matrix.
func transposeOf(t *Tensor) *Tensor {
	part := *t
	part.Shape = []int64{t.Shape[1], t.Shape[0]}
	part.Strides = []int64{t.Strides[1], t.Strides[0]}
	return &part
}

// asColumn returns a vector as a matrix of one column, and any other tensor as it is.
func asColumn(t *Tensor) *Tensor {
	if t.NDim() != 1 {
		return t
	}
	column := *t
	column.Shape, column.Strides = []int64{t.Shape[0], 1}, []int64{t.Strides[0], 0}
	return &column
}

// asRow returns a vector as a matrix of one row, and any other tensor as it is.
func asRow(t *Tensor) *Tensor {
	if t.NDim() != 1 {
		return t
	}
	return transposeOf(asColumn(t))
}

// moveMatrix copies a matrix to another of the same shape; both are float32 or float64, with any
// strides. It copies square tiles, so that each cache line is read and written about once.
func moveMatrix(to, from *Tensor) {
	switch {
	case to.DType == Float64 && from.DType == Float64:
		moveTiles[float64, float64](to, from)
	case to.DType == Float64:
		moveTiles[float64, float32](to, from)
	case from.DType == Float64:
		moveTiles[float32, float64](to, from)
	default:
		moveTiles[float32, float32](to, from)
	}
}

// moveAll is moveMatrix on several processors.
func moveAll(ctx context.Context, to, from *Tensor) error {
	rows, columns := int(to.Shape[0]), int(to.Shape[1])
	if rows < columns {
		to, from, rows, columns = transposeOf(to), transposeOf(from), columns, rows
	}
	height := max(16, 1<<15/columns/16*16)
	return eachPiece(ctx, rows, height, func(first, end int) error {
		moveMatrix(partOf(to, first, 0, end-first, columns), partOf(from, first, 0, end-first, columns))
		return nil
	})
}

func moveTiles[D, S floating](to, from *Tensor) {
	const tile = 16
	rows, columns := to.Shape[0], to.Shape[1]
	if to.Strides[1] > to.Strides[0] { // write along the shorter stride
		to, from, rows, columns = transposeOf(to), transposeOf(from), columns, rows
	}
	for i := int64(0); i < rows; i += tile {
		for j := int64(0); j < columns; j += tile {
			width := min(tile, columns-j)
			for k := i; k < min(i+tile, rows); k++ {
				d := unsafe.Add(to.base(), k*to.Strides[0]+j*to.Strides[1])
				s := unsafe.Add(from.base(), k*from.Strides[0]+j*from.Strides[1])
				for l := range width {
					*(*D)(unsafe.Add(d, l*to.Strides[1])) = D(*(*S)(unsafe.Add(s, l*from.Strides[1])))
				}
			}
		}
	}
}

// floatMatrix returns the matrix as it is if it is float32 or float64, otherwise a float64 copy.
func floatMatrix(ctx context.Context, x *Tensor) (*Tensor, error) {
	if x.DType == Float32 || x.DType == Float64 {
		return x, nil
	}
	return contiguousIn(ctx, x, Float64)
}

// largest returns the largest absolute value of a matrix of float32 or float64, or NaN if there is
// a NaN.
func largest(ctx context.Context, x *Tensor) (float64, error) {
	if x.Strides[0] < x.Strides[1] {
		x = transposeOf(x)
	}
	rows, columns := int(x.Shape[0]), int(x.Shape[1])
	height := max(1, 1<<15/columns)
	found := make([]float64, pieces(rows, height))
	if err := parallel(ctx, len(found), func(piece int) error {
		at := piece * height
		part := partOf(x, at, 0, min(height, rows-at), columns)
		if x.DType == Float64 {
			found[piece] = largestOf[float64](part)
		} else {
			found[piece] = largestOf[float32](part)
		}
		return nil
	}); err != nil {
		return 0, err
	}
	return slices.Max(found), nil
}

func largestOf[T floating](x *Tensor) float64 {
	var most T
	for i := range x.Shape[0] {
		at := unsafe.Add(x.base(), i*x.Strides[0])
		for j := range x.Shape[1] {
			v := *(*T)(unsafe.Add(at, j*x.Strides[1]))
			most = max(most, v, -v)
		}
	}
	return float64(most)
}

// smallMatrix is the number of rows up to which several matrices are computed at the same time,
// each by one processor, rather than one by several.
const smallMatrix = 256

// tinyMatrix is the number of rows up to which a library is called for groups of matrices.
const tinyMatrix = 32

// eachGroup calls f for groups of matrices of n rows, on several processors. A group takes some 0.1
// milliseconds.
func eachGroup(ctx context.Context, matrices, n int, f func(from, to int) error) error {
	group := max(1, 1<<17/(n*n*n))
	return eachPiece(ctx, matrices, group, f)
}

// eachMatrix calls f for a number of matrices of n rows.
func eachMatrix(ctx context.Context, matrices, n int, f func(ctx context.Context, i int) error) error {
	if n > smallMatrix {
		for i := range matrices {
			if err := f(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}
	alone := onOneProcessor(ctx)
	group := max(1, smallMatrix/(n*n)) // a piece has some work
	return eachPiece(ctx, matrices, group, func(from, to int) error {
		for i := from; i < to; i++ {
			if err := f(alone, i); err != nil {
				return err
			}
		}
		return nil
	})
}
