package ops

import (
	"context"
	"unsafe"
)

func cumsumOps() []*Op {
	return []*Op{{
		Name:      "array.cumsum",
		ReadsOnce: true,
		Doc:       "Sums the elements up to each element along an axis, as NumPy's `cumsum`.",
		Details:   "On the host, the elements are added one after the other, as in NumPy. Integers wrap around.",
		Params: []Param{
			{Name: "x", Type: TensorType, Required: true, Doc: "of any dtype and shape"},
			{Name: "axis", Type: IntType, Doc: "the axis to sum along; a negative one counts from the end. Null: all elements in C order, as one axis"},
			{Name: "dtype", Type: DTypeType, Doc: "of the computation and of the result, not bool; null: that of `x`, or int64 if `x` has bool or integers"},
		},
		Result:    "a tensor of the shape of `x`; without an axis, a tensor with one axis",
		Libraries: []string{"nvrtc"},
		Example:   Example{[]string{`{"key": "cumsum", "op": "array.cumsum", "args": [[[1, 2], [3, 4]]], "kwargs": {"axis": 0}}`}, "[[1, 2], [4, 6]]"},
		plan:      planCumsum,
	}}
}

func planCumsum(c *call) (*Planned, error) {
	x := c.tensor("x")
	_, dtype, err := reduceTypes(c, "sum", x.DType, c.dtype("dtype"))
	if err != nil {
		return nil, err
	}
	axis, err := c.axisOrAll(x)
	if err != nil {
		return nil, err
	}
	shape := x.Shape
	if axis < 0 {
		shape = []int64{x.Len()}
	}
	w := &Accumulating{X: x, Axis: axis, Accumulator: dtype}
	return single(dtype, shape, w, func(ctx context.Context, out *Tensor) error {
		if out.Len() == 0 {
			return nil
		}
		a := newAccumulation(out, x, axis)
		return parallel(ctx, a.pieces(), func(piece int) error { return a.run(ctx, piece) })
	}), nil
}

// accumulation is one call of array.cumsum. Its lines are independent of each other; a line is a
// row of lanes that lie side by side, or a single lane.
type accumulation struct {
	dtype DType // of the sums
	x     *Tensor
	out   unsafe.Pointer
	// outer are the axes of x that number the lines. outerSteps are their strides in the output.
	outer, outerSteps []int64
	outerStrides      []int64
	// length is the number of elements of a lane. step and outStep are the bytes between them.
	length, step, outStep int64
	// width is the number of lanes of a line, and stride the bytes between them in x. In the output
	// they lie side by side.
	width, stride int64
	// chunks is the number of lines that share an index of outer.
	chunks int64
	// flat is true if a lane has all elements of x in C order.
	flat bool
	cast kernel // nil if x has the type of the sums
	add  kernel
	fold func(out, in unsafe.Pointer, n int, begin bool)
}

// lineWidth is the largest number of lanes that are summed side by side. Two rows of them fit into
// the first-level cache.
const lineWidth = blockLen

func newAccumulation(out, x *Tensor, axis int) *accumulation {
	a := &accumulation{dtype: out.DType, x: x, out: out.base(), length: x.Len(), step: x.DType.Size(), outStep: out.DType.Size(), width: 1, chunks: 1}
	if a.dtype != x.DType {
		a.cast = castKernel(a.dtype, x.DType)
	}
	a.add = kernelFor("+", a.dtype)
	a.fold = runningSumOf(a.dtype)
	if axis < 0 {
		a.flat = true
		return a
	}
	a.length, a.step, a.outStep = x.Shape[axis], x.Strides[axis], out.Strides[axis]
	for i, d := range x.Shape[:axis] {
		a.addOuter(d, x.Strides[i], out.Strides[i])
	}
	inner, strides := coalesce(x.Shape[axis+1:], x.Strides[axis+1:], x.DType.Size())
	steps := ContiguousStrides(out.DType, inner)
	last := len(inner) - 1
	for i, d := range inner[:last] {
		a.addOuter(d, strides[i], steps[i])
	}
	a.width, a.stride = inner[last], strides[last]
	a.chunks = pieces(a.width, lineWidth)
	return a
}

func (a *accumulation) addOuter(length, stride, step int64) {
	if length > 1 {
		a.outer, a.outerStrides, a.outerSteps = append(a.outer, length), append(a.outerStrides, stride), append(a.outerSteps, step)
	}
}

// lines returns the number of lines, and the number of them in a piece.
func (a *accumulation) lines() (all, perPiece int64) {
	all = a.chunks
	for _, d := range a.outer {
		all *= d
	}
	perLine := a.length * min(a.width, lineWidth)
	return all, max(1, checkEvery/perLine)
}

func (a *accumulation) pieces() int {
	all, perPiece := a.lines()
	return int(pieces(all, perPiece))
}

// run computes the lines of a piece.
func (a *accumulation) run(ctx context.Context, piece int) error {
	all, perPiece := a.lines()
	first := int64(piece) * perPiece
	buffer := slicePointer(heapBytes(min(a.length*a.width, lineWidth) * a.x.DType.Size()))
	for line := first; line < min(first+perPiece, all); line++ {
		in, out := a.x.base(), a.out
		lane := line % a.chunks * lineWidth
		in, out = unsafe.Add(in, lane*a.stride), unsafe.Add(out, lane*a.dtype.Size())
		in = unsafe.Add(in, leading{a.outer, a.outerStrides}.offset(line/a.chunks))
		out = unsafe.Add(out, leading{a.outer, a.outerSteps}.offset(line/a.chunks))
		var err error
		if a.width == 1 {
			err = a.lane(ctx, out, in, buffer)
		} else {
			err = a.row(ctx, out, in, min(lineWidth, a.width-lane), buffer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lane sums along a lane whose sums lie side by side.
func (a *accumulation) lane(ctx context.Context, out, in, buffer unsafe.Pointer) error {
	if !a.flat && a.length <= blockLen && a.step == a.x.DType.Size() {
		a.block(out, in, a.length, true)
		return nil
	}
	source := newLineReader(in, a.length, a.step, a.x.DType.Size())
	if a.flat {
		source = newReader(a.x)
	}
	for done := int64(0); done < a.length; done += blockLen {
		if done%checkEvery == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		n := min(blockLen, a.length-done)
		to := unsafe.Add(out, done*a.dtype.Size())
		from := source.at
		if source.direct() {
			source.skip(n)
		} else {
			source.read(buffer, n)
			from = buffer
		}
		a.block(to, from, n, done == 0)
	}
	return nil
}

// block sums a block of a lane, of n elements that lie side by side.
func (a *accumulation) block(to, from unsafe.Pointer, n int64, begin bool) {
	if a.cast != nil {
		_ = a.cast(int(n), regs{to, from}) // conversions return no errors
		from = to
	}
	a.fold(to, from, int(n), begin)
}

// row sums along n lanes at once: each row of sums is the row before it plus a row of x.
func (a *accumulation) row(ctx context.Context, out, in unsafe.Pointer, n int64, buffer unsafe.Pointer) error {
	size := a.x.DType.Size()
	for i := range a.length {
		if i*n%checkEvery < n {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		to := unsafe.Add(out, i*a.outStep)
		from := unsafe.Add(in, i*a.step)
		if a.stride != size {
			copyRun(buffer, from, n, a.stride, size)
			from = buffer
		}
		if a.cast != nil {
			_ = a.cast(int(n), regs{to, from}) // conversions return no errors
			from = to
		}
		if i == 0 {
			copyRun(to, from, n, a.dtype.Size(), a.dtype.Size())
		} else if err := a.add(int(n), regs{to, unsafe.Add(to, -a.outStep), from}); err != nil {
			return err
		}
	}
	return nil
}

// runningSumOf returns the function that computes the sums of a block of a lane. The sums may take
// the place of the elements. If the block does not begin the lane, the sum before it is the value
// that lies before out.
func runningSumOf(d DType) func(out, in unsafe.Pointer, n int, begin bool) {
	switch d {
	case Uint8:
		return runningSum[uint8]
	case Int32:
		return runningSum[int32]
	case Int64:
		return runningSum[int64]
	case Float32:
		return runningSum[float32]
	case Float64:
		return runningSum[float64]
	case Complex64:
		return runningSum[complex64]
	default:
		return runningSum[complex128]
	}
}

func runningSum[T number](out, in unsafe.Pointer, n int, begin bool) {
	d, a := block[T](out, n), block[T](in, n)
	sum := a[0] // the sum of negative zeros is a negative zero
	if !begin {
		sum += *(*T)(unsafe.Add(out, -int(unsafe.Sizeof(sum))))
	}
	d[0] = sum
	for i, x := range a[1:] {
		sum += x
		d[1+i] = sum
	}
}
