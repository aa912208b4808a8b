package ops

import (
	"context"
	"fmt"
	"slices"
	"unsafe"
)

func takeOps() []*Op {
	return []*Op{{
		Name: "array.take",
		Doc:  "Selects elements along an axis by their indices.",
		Params: []Param{
			{Name: "x", Type: TensorType, Required: true, Doc: "of any dtype and shape"},
			{Name: "indices", Type: TensorType, Required: true, Doc: "integers, of any shape; a negative one counts from the end"},
			{Name: "axis", Type: IntType, Doc: "the axis to select along; a negative one counts from the end. Null: `x` is made flat first"},
		},
		Result: "a tensor of the dtype of `x`; its shape is that of `x`, with the axes of `indices` in place of the axis",
		Errors: []string{
			"INVALID_ARGUMENT if `indices` are no integers",
			"OP_FAILED, with the first position, if an index is out of the axis",
		},
		Libraries: []string{"nvrtc"},
		Example:   Example{[]string{`{"key": "take", "op": "array.take", "args": [[[1, 2], [3, 4], [5, 6]], [2, -3]], "kwargs": {"axis": 0}}`}, "[[5, 6], [1, 2]]"},
		plan:      planTake,
	}}
}

func planTake(c *call) (*Planned, error) {
	x, indices := c.tensor("x"), c.tensor("indices")
	if indices.DType.kind() != intKind {
		return nil, c.bad("indices", "expected integers, got %s", describe(indices))
	}
	axis, err := c.axisOrAll(x)
	if err != nil {
		return nil, err
	}
	length, shape := x.Len(), indices.Shape
	if axis >= 0 {
		length, shape = x.Shape[axis], slices.Concat(x.Shape[:axis], indices.Shape, x.Shape[axis+1:])
	}
	w := &Taking{X: x, Indices: indices, Axis: axis, Outside: func(position, index int64) error {
		along := "x made flat"
		if axis >= 0 {
			along = fmt.Sprintf("axis %d", axis)
		}
		return Failure(c.op.Name, "index %d at position %d of indices is outside of %s with length %d", index, position, along, length)
	}}
	return single(x.DType, shape, w, func(ctx context.Context, out *Tensor) error { return takeInto(ctx, out, w) }), nil
}

// takeInto copies rows: x is outer times length rows of inner elements, and of each of outer it
// takes a row for each index. Each piece checks the indices that it uses.
func takeInto(ctx context.Context, out *Tensor, w *Taking) error {
	t, err := inType(ctx, w.Indices, Int64)
	if err != nil {
		return err
	}
	indices := elements[int64](t)
	outer, length, inner := int64(1), w.X.Len(), int64(1)
	if w.Axis >= 0 {
		outer, _ = countElements(w.X.Shape[:w.Axis])
		length = w.X.Shape[w.Axis]
		inner, _ = countElements(w.X.Shape[w.Axis+1:])
	}
	if out.Len() == 0 {
		return checkIndices(ctx, indices, length, w)
	}
	if length == 0 {
		return w.Outside(0, indices[0])
	}
	x, err := inType(ctx, w.X, w.X.DType)
	if err != nil {
		return err
	}
	row, many := inner*x.DType.Size(), int64(len(indices))
	each := max(1, takePiece/row)
	outside := make([]int64, (outer*many+each-1)/each) // of each piece, the first position
	if err := parallel(ctx, len(outside), func(piece int) error {
		outside[piece] = many
		end := min(int64(piece+1)*each, outer*many)
		for at := int64(piece) * each; at < end; {
			i, j := at/many, at%many
			run := min(many-j, end-at)
			good := takeRows(unsafe.Add(out.base(), at*row), unsafe.Add(x.base(), i*length*row), indices[j:j+run], length, row)
			if good < run {
				outside[piece] = j + good
				return nil
			}
			at += run
		}
		return nil
	}); err != nil {
		return err
	}
	if position := slices.Min(outside); position < many {
		return w.Outside(position, indices[position])
	}
	return nil
}

// takePiece is the number of bytes that a piece copies, about.
const takePiece = 1 << 18

func checkIndices(ctx context.Context, indices []int64, length int64, w *Taking) error {
	for i, index := range indices {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if index < -length || index >= length {
			return w.Outside(int64(i), index)
		}
	}
	return nil
}

// takeRows copies rows of a number of bytes, until an index is out of length. It returns the number
// of rows that it copied.
func takeRows(to, from unsafe.Pointer, indices []int64, length, row int64) int64 {
	switch row {
	case 1:
		return takeElements[uint8](to, from, indices, length)
	case 4:
		return takeElements[uint32](to, from, indices, length)
	case 8:
		return takeElements[uint64](to, from, indices, length)
	case 16:
		return takeElements[complex128](to, from, indices, length)
	}
	for i, index := range indices {
		if index < 0 {
			index += length
		}
		if uint64(index) >= uint64(length) {
			return int64(i)
		}
		copy(block[byte](unsafe.Add(to, int64(i)*row), int(row)), block[byte](unsafe.Add(from, index*row), int(row)))
	}
	return int64(len(indices))
}

func takeElements[T any](to, from unsafe.Pointer, indices []int64, length int64) int64 {
	out, x := block[T](to, len(indices)), block[T](from, int(length))
	for i, index := range indices {
		if index < 0 {
			index += length
		}
		if uint64(index) >= uint64(len(x)) {
			return int64(i)
		}
		out[i] = x[index]
	}
	return int64(len(indices))
}
