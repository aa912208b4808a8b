package ops

import (
	"context"
	"math"
	"slices"
	"unsafe"
)

func shapeOps() []*Op {
	return []*Op{
		{
			Name:      "array.transpose",
			ReadsOnce: true,
			Doc:       "Copies a tensor with its axes in another order.",
			Params: []Param{
				{Name: "x", Type: TensorType, Required: true, Doc: "of any dtype and shape"},
				{Name: "axes", Type: IntsType, Doc: "the axis of `x` that comes first, that which comes second, ...; each one once, a negative one counts from the end. Null: in reverse order"},
			},
			Result:  "a tensor of the dtype of `x`",
			Example: Example{[]string{`{"key": "transpose", "op": "array.transpose", "args": [[[1, 2, 3], [4, 5, 6]]]}`}, "[[1, 4], [2, 5], [3, 6]]"},
			plan:    planTranspose,
		},
		{
			Name:  "array.slice",
			Moves: true,
			Doc:   "Copies a part of a tensor, as Python's `x[start:stop:step]`.",
			Details: "Each of `start`, `stop`, `step` and `index` has an entry for each axis, from the first one on. A null and a missing " +
				"entry are as a bound that is left out in Python. Negative bounds count from the end.",
			Params: []Param{
				{Name: "x", Type: TensorType, Required: true, Doc: "of any dtype and shape"},
				{Name: "start", Type: AnyType, Doc: "a list of ints and nulls; or one int, for the first axis"},
				{Name: "stop", Type: AnyType, Doc: "like `start`"},
				{Name: "step", Type: AnyType, Doc: "like `start`; not zero"},
				{Name: "index", Type: AnyType, Doc: "like `start`: one element of the axis, which the result lacks"},
			},
			Result: "a tensor of the dtype of `x`",
			Errors: []string{
				"INVALID_ARGUMENT if an axis has an index and a start, stop or step, or if the index is out of the axis. " +
					"A start or stop that is out of the axis is no error, as in Python",
			},
			Example: Example{[]string{
				`{"key": "slice", "op": "array.slice", "args": [[[1, 2, 3], [4, 5, 6]]], "kwargs": {"start": [null, 1], "index": [1]}}`,
			}, "[5, 6]"},
			plan: planSlice,
		},
		{
			Name:      "array.reshape",
			ReadsOnce: true,
			Doc:       "Copies the elements of a tensor, in C order, into another shape.",
			Params: []Param{
				{Name: "x", Type: TensorType, Required: true, Doc: "of any dtype and shape"},
				{Name: "shape", Type: IntsType, Required: true, Doc: "of the result; one entry may be -1, and follows from the others"},
			},
			Result:  "a tensor of the dtype of `x`",
			Errors:  []string{"INVALID_ARGUMENT if the shape does not hold as many elements as `x` has"},
			Example: Example{[]string{`{"key": "reshape", "op": "array.reshape", "args": [[1, 2, 3, 4], [2, -1]]}`}, "[[1, 2], [3, 4]]"},
			plan:    planReshape,
		},
		{
			Name:  "array.concat",
			Moves: true,
			Doc:   "Joins tensors along an axis.",
			Params: []Param{
				{Name: "axis", Type: IntType, Default: int64(0), Doc: "an axis of the tensors, given by name; a negative one counts from the end"},
			},
			Variadic:    "xs",
			VariadicDoc: "at least one tensor, each with at least one axis; or one list of them. Only the joined axis may differ in length",
			Result:      "a tensor of the dtype to which all are promoted",
			Errors:      []string{"INVALID_ARGUMENT, with the number of the first tensor that does not fit"},
			Example:     Example{[]string{`{"key": "concat", "op": "array.concat", "args": [[[1], [2]], [[3], [4]]], "kwargs": {"axis": 1}}`}, "[[1, 3], [2, 4]]"},
			plan:        planConcat,
		},
	}
}

// copyOf plans a result that is a copy of a view.
func copyOf(view *Tensor) *Planned {
	return single(view.DType, view.Shape, &Copying{[]*Tensor{view}}, func(ctx context.Context, out *Tensor) error {
		return copyInto(ctx, out, view)
	})
}

func planTranspose(c *call) (*Planned, error) {
	x, axes := c.tensor("x"), c.ints("axes")
	if !c.has("axes") {
		for i := x.NDim() - 1; i >= 0; i-- {
			axes = append(axes, int64(i))
		}
	}
	if len(axes) != x.NDim() {
		return nil, c.bad("axes", "%v names %d axes of shape %v", axes, len(axes), x.Shape)
	}
	view := &Tensor{DType: x.DType, Offset: x.Offset, Data: x.Data, Far: x.Far, Shape: []int64{}}
	seen := make([]bool, x.NDim())
	for _, a := range axes {
		axis, err := c.axis("axes", a, x.NDim())
		if err != nil {
			return nil, err
		}
		if seen[axis] {
			return nil, c.bad("axes", "%v names axis %d twice", axes, axis)
		}
		seen[axis] = true
		view.Shape, view.Strides = append(view.Shape, x.Shape[axis]), append(view.Strides, x.Strides[axis])
	}
	return copyOf(view), nil
}

// entries reads a list of ints and nulls, at most one for each axis.
func (c *call) entries(name string, ndim int) ([]*int64, error) {
	out := make([]*int64, ndim)
	value := c.value(name)
	if value == nil {
		return out, nil
	}
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	if len(list) > ndim {
		return nil, c.bad(name, "%d entries for %d axes", len(list), ndim)
	}
	for i, v := range list {
		if v == nil {
			continue
		}
		n, err := c.convert(&Param{Name: name, Type: IntType}, v)
		if err != nil {
			return nil, err
		}
		entry := n.(int64)
		out[i] = &entry
	}
	return out, nil
}

func planSlice(c *call) (*Planned, error) {
	x := c.tensor("x")
	var given [4][]*int64
	for i, name := range []string{"start", "stop", "step", "index"} {
		var err error
		if given[i], err = c.entries(name, x.NDim()); err != nil {
			return nil, err
		}
	}
	view := &Tensor{DType: x.DType, Offset: x.Offset, Data: x.Data, Far: x.Far, Shape: []int64{}}
	for axis, length := range x.Shape {
		start, stop, step, index := given[0][axis], given[1][axis], given[2][axis], given[3][axis]
		if index != nil {
			if start != nil || stop != nil || step != nil {
				return nil, c.bad("index", "axis %d has a start, stop or step as well", axis)
			}
			at, err := wrapIndex(c, *index, length, axis)
			if err != nil {
				return nil, err
			}
			view.Offset += at * x.Strides[axis]
			continue
		}
		if step != nil && *step == 0 {
			return nil, c.bad("step", "is zero on axis %d", axis)
		}
		first, stride, count := sliceIndices(start, stop, step, length)
		if count > 0 {
			view.Offset += first * x.Strides[axis]
		}
		if count > 1 {
			stride *= x.Strides[axis]
		} else {
			stride = x.Strides[axis]
		}
		view.Shape, view.Strides = append(view.Shape, count), append(view.Strides, stride)
	}
	return copyOf(view), nil
}

func wrapIndex(c *call, index, length int64, axis int) (int64, error) {
	if index < -length || index >= length {
		return 0, c.bad("index", "%d is outside of axis %d with length %d", index, axis, length)
	}
	if index < 0 {
		index += length
	}
	return index, nil
}

// sliceIndices is Python's slice.indices, and also returns the number of elements.
func sliceIndices(start, stop, step *int64, length int64) (first, by, count int64) {
	by = 1
	if step != nil {
		by = max(*step, -math.MaxInt64)
	}
	low, high := int64(0), length
	if by < 0 {
		low, high = -1, length-1
	}
	clamp := func(v *int64, otherwise int64) int64 {
		if v == nil {
			return otherwise
		}
		n := *v
		if n < 0 {
			n += length
		}
		return min(max(n, low), high)
	}
	if by > 0 {
		first = clamp(start, low)
		return first, by, countSteps(first, clamp(stop, high), by)
	}
	first = clamp(start, high)
	return first, by, countSteps(first, clamp(stop, low), by)
}

func planReshape(c *call) (*Planned, error) {
	x, shape := c.tensor("x"), slices.Clone(c.ints("shape"))
	open, known := -1, int64(1)
	for i, d := range shape {
		switch {
		case d == -1 && open < 0:
			open = i
		case d < 0:
			return nil, c.bad("shape", "%v has more than one -1 or another negative entry", c.ints("shape"))
		case d != 0 && known > math.MaxInt64/d:
			return nil, c.bad("shape", "%v has more than 2^63 elements", shape)
		default:
			known *= d
		}
	}
	total := x.Len()
	if open >= 0 && known > 0 && total%known == 0 {
		shape[open] = total / known
		known = total
	} else if open >= 0 {
		known = -1
	}
	if known != total {
		return nil, c.bad("shape", "%d elements of shape %v do not fill %v", total, x.Shape, c.ints("shape"))
	}
	return single(x.DType, shape, &Copying{[]*Tensor{x}}, func(ctx context.Context, out *Tensor) error {
		flat := *out
		flat.Shape, flat.Strides = x.Shape, ContiguousStrides(x.DType, x.Shape)
		return copyInto(ctx, &flat, x)
	}), nil
}

func planConcat(c *call) (*Planned, error) {
	list := c.rest
	if len(list) == 1 {
		if inner, ok := list[0].([]any); ok {
			list = inner
		}
	}
	if len(list) == 0 {
		return nil, c.bad("xs", "missing: expected at least one tensor")
	}
	xs := make([]*Tensor, len(list))
	dtype := Invalid
	for i, v := range list {
		var err error
		if xs[i], err = c.tensorAt("xs", i, v); err != nil {
			return nil, err
		}
		dtype = Promote(dtype, xs[i].DType)
	}
	if xs[0].NDim() == 0 {
		return nil, c.bad(ordinal("xs", 0), "a tensor without axes cannot be joined: reshape it to [1]")
	}
	axis, err := c.axis("axis", c.int("axis"), xs[0].NDim())
	if err != nil {
		return nil, err
	}
	shape := slices.Clone(xs[0].Shape)
	shape[axis] = 0
	for i, x := range xs {
		if x.NDim() != len(shape) || !slices.Equal(without(x.Shape, axis), without(shape, axis)) {
			return nil, c.bad(ordinal("xs", i), "shape %v does not match xs[0] %v: only axis %d may differ", x.Shape, xs[0].Shape, axis)
		}
		if shape[axis] > math.MaxInt64-x.Shape[axis] {
			return nil, c.bad("xs", "axis %d becomes longer than 2^63", axis)
		}
		shape[axis] += x.Shape[axis]
	}
	return single(dtype, shape, &Joining{xs, axis}, func(ctx context.Context, out *Tensor) error {
		return concatInto(ctx, out, xs, axis)
	}), nil
}

// concatInto copies one row of each tensor after the other. A row is the elements of axis and the
// axes after it, which are contiguous in the output. The pieces are those of the output.
func concatInto(ctx context.Context, out *Tensor, xs []*Tensor, axis int) error {
	if out.Len() == 0 {
		return nil
	}
	readers := make([]*reader, 0, len(xs))
	ends := make([]int64, 0, len(xs)) // the end of each reader's part of a row of the output
	row := int64(0)
	for _, x := range xs {
		if x.Len() == 0 {
			continue
		}
		if x.DType != out.DType {
			var err error
			if x, err = inType(ctx, x, out.DType); err != nil {
				return err
			}
		}
		length, _ := countElements(x.Shape[axis:])
		row += length
		readers, ends = append(readers, newReader(x)), append(ends, row)
	}
	size := out.DType.Size()
	return eachPiece(ctx, out.Len(), pieceBytes/size, func(begin, end int64) error {
		joinRows(unsafe.Add(out.base(), begin*size), readers, ends, begin, end-begin)
		return nil
	})
}

// joinRows copies n elements of the joined tensor, from begin on, to contiguous memory. The readers
// are at the first elements, and ends are those of their parts of a row.
func joinRows(to unsafe.Pointer, firsts []*reader, ends []int64, begin, n int64) {
	row := ends[len(ends)-1]
	index, at := begin/row, begin%row
	part, _ := slices.BinarySearch(ends, at+1)
	readers := make([]*reader, len(firsts))
	for {
		start := int64(0)
		if part > 0 {
			start = ends[part-1]
		}
		if readers[part] == nil {
			readers[part] = firsts[part].clone()
			readers[part].seek(firsts[part], index*(ends[part]-start)+at-start)
		}
		m := min(n, ends[part]-at)
		readers[part].read(to, m)
		if n -= m; n == 0 {
			return
		}
		to = unsafe.Add(to, m*firsts[part].size)
		if at, part = at+m, part+1; part == len(ends) {
			index, at, part = index+1, 0, 0
		}
	}
}
