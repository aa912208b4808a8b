package ops

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

// reducer folds values of one type. The accumulator has the same type.
type reducer struct {
	dtype DType
	// run folds a contiguous run of n elements into one value; n >= 1.
	run func(out, in unsafe.Pointer, n int)
	// join folds a block of values into another block, element by element.
	join kernel
}

// leafLen is the longest run that a pairwise sum adds without splitting it.
const leafLen = 128

// pairwise adds in a balanced tree, in the order that NumPy uses: the error grows with the
// logarithm of the length.
func pairwise[T number](a []T) T {
	if len(a) < 8 {
		var sum T
		for i, x := range a {
			if i == 0 {
				sum = x // the sum of negative zeros is a negative zero
			} else {
				sum += x
			}
		}
		return sum
	}
	if len(a) <= leafLen {
		r0, r1, r2, r3, r4, r5, r6, r7 := a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
		i := 8
		for ; i+8 <= len(a); i += 8 {
			b := a[i : i+8 : i+8]
			r0, r1, r2, r3 = r0+b[0], r1+b[1], r2+b[2], r3+b[3]
			r4, r5, r6, r7 = r4+b[4], r5+b[5], r6+b[6], r7+b[7]
		}
		sum := ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
		for ; i < len(a); i++ {
			sum += a[i]
		}
		return sum
	}
	half := halfOf(len(a))
	return pairwise(a[:half]) + pairwise(a[half:])
}

// halfOf returns the length of the first half of a run that is longer than leafLen.
func halfOf[N int | int64](n N) N { return n/2 - n/2%8 }

func foldRun[T any](f func(a []T) T) func(out, in unsafe.Pointer, n int) {
	return func(out, in unsafe.Pointer, n int) { *(*T)(out) = f(block[T](in, n)) }
}

func product[T number](a []T) T {
	p := T(1)
	for _, x := range a {
		p *= x
	}
	return p
}

func minOf[T realNum](a []T) T {
	m := a[0]
	for _, x := range a {
		if !(m <= x) && m == m {
			m = x
		}
	}
	return m
}

func maxOf[T realNum](a []T) T {
	m := a[0]
	for _, x := range a {
		if !(m >= x) && m == m {
			m = x
		}
	}
	return m
}

func foldWith[T any](f func(a, b T) T) func([]T) T {
	return func(a []T) T {
		m := a[0]
		for _, x := range a[1:] {
			m = f(m, x)
		}
		return m
	}
}

func newReducer(op string, d DType) reducer {
	name := map[string]string{"sum": "+", "mean": "+", "count": "+", "prod": "*", "min": "minimum", "max": "maximum", "any": "maximum", "all": "minimum"}[op]
	r := reducer{dtype: d, join: kernelFor(name, d)}
	switch d {
	case Bool, Uint8:
		r.run = realRun[uint8](name)
	case Int32:
		r.run = realRun[int32](name)
	case Int64:
		r.run = realRun[int64](name)
	case Float32:
		r.run = realRun[float32](name)
	case Float64:
		r.run = realRun[float64](name)
	case Complex64:
		r.run = complexRun[complex64](name)
	default:
		r.run = complexRun[complex128](name)
	}
	return r
}

func realRun[T realNum](name string) func(out, in unsafe.Pointer, n int) {
	switch name {
	case "+":
		return foldRun(pairwise[T])
	case "*":
		return foldRun(product[T])
	case "minimum":
		return foldRun(minOf[T])
	default:
		return foldRun(maxOf[T])
	}
}

func complexRun[T complex_](name string) func(out, in unsafe.Pointer, n int) {
	switch name {
	case "+":
		return foldRun(pairwise[T])
	case "*":
		return foldRun(product[T])
	case "minimum":
		return foldRun(foldWith(complexMinimum[T]))
	default:
		return foldRun(foldWith(complexMaximum[T]))
	}
}

// reduceTypes returns the type that op accumulates in and the type of its result.
func reduceTypes(c *call, op string, x, want DType) (work, out DType, err error) {
	if want != Invalid && op != "sum" && op != "prod" && op != "mean" {
		return 0, 0, c.bad("dtype", "%s has a type of its own: only sum, prod and mean take dtype", op)
	}
	switch op {
	case "sum", "prod":
		switch {
		case want == Bool:
			return 0, 0, c.bad("dtype", "%s cannot be bool: use any or all", op)
		case want != Invalid:
			return want, want, nil
		case x.kind() <= intKind:
			return Int64, Int64, nil // NumPy uses uint64 for uint8
		}
		return x, x, nil
	case "mean":
		switch {
		case want != Invalid && want.kind() < floatKind:
			return 0, 0, c.bad("dtype", "a mean is a float or complex, not %v", want)
		case want != Invalid:
			return want, want, nil
		case x.kind() <= intKind:
			return Float64, Float64, nil
		}
		return x, x, nil
	case "min", "max":
		return x, x, nil
	case "any", "all":
		return Bool, Bool, nil
	case "count":
		return Int64, Int64, nil
	}
	ops := []string{"sum", "prod", "min", "max", "mean", "any", "all", "count"}
	return 0, 0, c.bad("op", "expected one of %v, got %q%s", ops, op, suggest(op, ops))
}

func reduceOps() []*Op {
	return []*Op{{
		Name:      "array.reduce",
		ReadsOnce: true,
		Doc:       "Sums a tensor up along axes, or folds it by another function.",
		Details: "`count` is the number of elements that are not zero. If there is a NaN, `min` and `max` are NaN. On the host, sums " +
			"of floats are pairwise, as in NumPy. Integers wrap around.",
		Params: []Param{
			{Name: "x", Type: TensorType, Required: true, Doc: "of any dtype and shape"},
			{Name: "op", Type: StringType, Default: "sum", Doc: "`sum`, `prod`, `min`, `max`, `mean`, `any`, `all` or `count`"},
			{Name: "axes", Type: IntsType, Doc: "the axes to fold, each one once; a negative one counts from the end. Null: all; an empty list: none"},
			{Name: "keepdims", Type: BoolType, Default: false, Doc: "keep the folded axes, with length one"},
			{Name: "dtype", Type: DTypeType, Doc: "of the computation and of the result; only for `sum`, `prod` and `mean`"},
		},
		Result: "a tensor with the axes that are not folded. Its dtype is that of `x`, except: `any` and `all` give bool, `count` " +
			"gives int64; of bool and integers, `sum` and `prod` give int64, and `mean` gives float64",
		Errors:    []string{"INVALID_ARGUMENT if `min` or `max` has no elements to fold"},
		Libraries: []string{"nvrtc"},
		Example:   Example{[]string{`{"key": "reduce", "op": "array.reduce", "args": [[[1, 2], [3, 4.5]], "mean"], "kwargs": {"axes": 0}}`}, "[2, 3.25]"},
		plan:      planReduce,
	}}
}

func planReduce(c *call) (*Planned, error) {
	x, op := c.tensor("x"), c.string("op")
	work, outType, err := reduceTypes(c, op, x.DType, c.dtype("dtype"))
	if err != nil {
		return nil, err
	}
	folded := make([]bool, x.NDim())
	if !c.has("axes") {
		for i := range folded {
			folded[i] = true
		}
	}
	for _, a := range c.ints("axes") {
		axis, err := c.axis("axes", a, x.NDim())
		if err != nil {
			return nil, err
		}
		if folded[axis] {
			return nil, c.bad("axes", "axis %d is given twice", a)
		}
		folded[axis] = true
	}
	var shape []int64
	rows := int64(1)
	for i, d := range x.Shape {
		switch {
		case !folded[i]:
			shape = append(shape, d)
		case c.bool("keepdims"):
			shape = append(shape, 1)
		}
		if folded[i] {
			rows *= d
		}
	}
	if outLen, _ := countElements(shape); rows == 0 && outLen > 0 && (op == "min" || op == "max") {
		return nil, c.bad("x", "%s of no elements: shape %v", op, x.Shape)
	}
	w := &Reducing{X: x, Folded: folded, Function: op, Accumulator: work, Rows: rows}
	return single(outType, shape, w, func(ctx context.Context, out *Tensor) error {
		if err := reduceInto(ctx, out, x, folded, op, work); err != nil {
			return err
		}
		if op == "mean" && out.Len() > 0 {
			return divideBy(ctx, out, rows)
		}
		return nil
	}), nil
}

// reduceInto folds x along the marked axes. out has the remaining axes in order.
func reduceInto(ctx context.Context, out, x *Tensor, folded []bool, op string, work DType) error {
	if out.Len() == 0 {
		return nil
	}
	if x.Len() == 0 {
		identity := map[string]int64{"prod": 1, "all": 1}[op]
		one := &Tensor{DType: out.DType, Data: out.Data[out.Offset:]}
		if err := putScalar(one, identity); err != nil {
			return err
		}
		copyRun(out.base(), out.base(), out.Len(), 0, out.DType.Size())
		return nil
	}
	return reduceWith(ctx, simd.Best(), out, x, folded, op, work)
}

// reduceWith reduces with the kernels of an instruction set; nil: in Go.
// REQUIRES: x has elements.
func reduceWith(ctx context.Context, set *simd.Set, out, x *Tensor, folded []bool, op string, work DType) error {
	if x.DType == Bool && (op == "min" || op == "max") {
		op = map[string]string{"min": "all", "max": "any"}[op]
	}
	if axis := tailOf(x, folded, work); axis > 0 {
		partial, err := scratchTensor(ctx, work, x.Shape[:axis])
		if err != nil {
			return err
		}
		tail := make([]bool, x.NDim())
		for i := range tail {
			tail[i] = i >= axis
		}
		if err := reduceOnce(ctx, set, partial, x, tail, op, work); err != nil {
			return err
		}
		if op == "count" {
			op = "sum"
		}
		x, folded = partial, folded[:axis]
	}
	return reduceOnce(ctx, set, out, x, folded, op, work)
}

// tailOf returns an axis if those from it on are to be folded before the others: they are folded
// and contiguous, but cannot be joined with folded axes before them. 0: all axes are folded at
// once. The results of the tail need at most a quarter of the bytes of x.
func tailOf(x *Tensor, folded []bool, work DType) int {
	axis, n := x.NDim(), int64(1)
	for axis > 0 && (x.Shape[axis-1] == 1 || folded[axis-1] && x.Strides[axis-1] == n*x.DType.Size()) {
		axis--
		n *= x.Shape[axis]
	}
	more := false
	for i, d := range x.Shape[:axis] {
		if d > 1 && x.Strides[i] == 0 {
			return 0 // x has fewer bytes than elements
		}
		more = more || folded[i] && d > 1
	}
	if !more || n < 4 || n*x.DType.Size() < 4*work.Size() {
		return 0
	}
	return axis
}

// reduceOnce folds all axes at once.
func reduceOnce(ctx context.Context, set *simd.Set, out, x *Tensor, folded []bool, op string, work DType) error {
	r, fastFolded := newReduction(set, out, x, folded, op, work)
	if fastFolded {
		return r.byRuns(ctx)
	}
	return r.byLanes(ctx)
}

// reduction is one call of reduceInto.
type reduction struct {
	reducer
	// fold has the kernels that read elements of x; without them, elements are converted by cast
	// and widen, and folded by run and join.
	fold  simd.Fold
	out   unsafe.Pointer
	kept  *Tensor // x with only the axes that are not folded, joined where possible
	rows  *Tensor // the axes that are folded; only type, shape and strides
	cast  kernel  // nil if the elements are already of the work type
	widen kernel  // the conversion after cast; nil if there is none
	// decisive is the result of any or all that no further element changes: 1 or 0. Other functions
	// have none: -1.
	decisive int
}

// newReduction also reports whether the axis whose elements are closest in memory is folded.
func newReduction(set *simd.Set, out, x *Tensor, folded []bool, op string, work DType) (r *reduction, fastFolded bool) {
	r = &reduction{reducer: newReducer(op, work), out: out.base(), decisive: -1}
	r.kept, r.rows = &Tensor{DType: x.DType, Data: x.Data, Offset: x.Offset}, &Tensor{DType: x.DType}
	smallest, fastFolded := int64(0), true
	for i, d := range x.Shape {
		if stride := max(x.Strides[i], -x.Strides[i]); d > 1 && (smallest == 0 || stride <= smallest) {
			smallest, fastFolded = stride, folded[i]
		}
		part := r.kept
		if folded[i] {
			part = r.rows
		}
		part.Shape, part.Strides = append(part.Shape, d), append(part.Strides, x.Strides[i])
	}
	r.kept.Shape, r.kept.Strides = coalesce(r.kept.Shape, r.kept.Strides, x.DType.Size())
	r.rows.Shape, r.rows.Strides = coalesce(r.rows.Shape, r.rows.Strides, x.DType.Size())
	// count adds ones, so it converts to Bool first: a conversion to Int64 would keep other values.
	if op == "count" {
		r.cast = castKernel(Bool, x.DType)
		r.widen = castKernel(Int64, Bool)
	} else if work != x.DType {
		r.cast = castKernel(work, x.DType)
	}
	function := op
	switch op {
	case "mean":
		function = "sum"
	case "any":
		r.decisive = 1
	case "all":
		r.decisive = 0
	}
	r.fold = set.Fold(function, simd.Type(x.DType), simd.Type(work))
	return r, fastFolded
}

// runLen limits the memory of a gathered run. NumPy's buffer has the same length.
const runLen = 8192

const (
	// foldLen is the number of elements that a goroutine folds at a time.
	foldLen = 1 << 17
	// splitLen is the shortest run that several goroutines fold together.
	splitLen = 1 << 18
	// roundParts bounds the parts of a run whose results are kept at the same time.
	roundParts = 1 << 12
)

// scratch has room for a block as read, as converted by cast and as converted by widen.
type scratch [3]unsafe.Pointer

func newScratch(n int) scratch {
	words := make([]complex128, 3*n) // 16 bytes are aligned for every type
	return scratch{unsafe.Pointer(&words[0]), unsafe.Pointer(&words[n]), unsafe.Pointer(&words[2*n])}
}

// convert returns n elements of x in the type of the accumulator.
func (r *reduction) convert(in unsafe.Pointer, s scratch, n int) unsafe.Pointer {
	if r.cast == nil {
		return in
	}
	// Conversions return no errors.
	_ = r.cast(n, regs{s[1], in})
	if r.widen == nil {
		return s[1]
	}
	_ = r.widen(n, regs{s[2], s[1]})
	return s[2]
}

// source returns a reader of the folded elements that belong to the element of kept at that
// address, from an element on.
func (r *reduction) source(at unsafe.Pointer, start int64) *reader {
	source := &reader{at: at, size: r.kept.DType.Size()}
	for i, d := range r.rows.Shape {
		source.axes = append(source.axes, simd.Axis{Length: d, Stride: r.rows.Strides[i]})
	}
	if start > 0 {
		source.seek(source, start)
	}
	return source
}

// addressIn returns the element with the index k of the first axes of kept, in C order, and with
// index 0 of the others.
func (r *reduction) addressIn(axes int, k int64) unsafe.Pointer {
	return unsafe.Add(r.kept.base(), leading{r.kept.Shape[:axes], r.kept.Strides[:axes]}.offset(k))
}

// divideBy turns sums into means.
func divideBy(ctx context.Context, t *Tensor, n int64) error {
	root := &node{op: "/", args: []*node{{op: "name", name: "x"}, {value: float64(n)}}}
	p, err := compile(root, []string{"x"}, []compiled{{operand: operand{dtype: t.DType}}}, t.DType)
	if err != nil {
		return fmt.Errorf("divide by %d: %w", n, err)
	}
	return mapProgram(p, ctx, t, []*Tensor{t})
}

// without returns the list without entry i.
func without(list []int64, i int) []int64 { return slices.Delete(slices.Clone(list), i, i+1) }
