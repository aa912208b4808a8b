package ops

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

// Tensor is a strided view of typed memory. It does not own Data: the creator of the tensor keeps
// the bytes alive and unchanged while an operation reads them.
type Tensor struct {
	DType   DType
	Shape   []int64
	Strides []int64 // bytes between neighbours on each axis; may be zero or negative
	Offset  int64   // bytes from the start of Data to the element at index zero
	Data    []byte
	// Far is the memory that holds the bytes instead of Data, if the CPU cannot address them. Such
	// tensors can be used in planning, and devices can execute the plan.
	Far Memory
}

// Memory is memory that the CPU cannot address.
type Memory interface {
	// Address is the device address of the first of Size bytes.
	Address() uint64
	Size() int64
	// Read copies len(p) bytes, from the offset on, to p.
	Read(offset int64, p []byte) error
}

// NewTensor returns a C-contiguous tensor of zeros on the Go heap. It is the Allocator of tests and
// tools.
func NewTensor(dtype DType, shape []int64) (*Tensor, error) {
	n, err := countElements(shape)
	if err != nil {
		return nil, err
	}
	if n > math.MaxInt64/16 {
		return nil, fmt.Errorf("shape %v of %v is larger than any memory", shape, dtype)
	}
	return contiguous(dtype, shape, heapBytes(n*dtype.Size())), nil
}

// contiguous returns a C-ordered tensor over data.
func contiguous(dtype DType, shape []int64, data []byte) *Tensor {
	return &Tensor{DType: dtype, Shape: slices.Clone(shape), Strides: ContiguousStrides(dtype, shape), Data: data}
}

// ContiguousStrides returns the byte strides of a C-ordered array.
func ContiguousStrides(dtype DType, shape []int64) []int64 {
	return AppendStrides(make([]int64, 0, len(shape)), dtype, shape)
}

// AppendStrides appends the result of ContiguousStrides to strides.
func AppendStrides(strides []int64, dtype DType, shape []int64) []int64 {
	begin := len(strides)
	strides = append(strides, shape...)
	step := dtype.Size()
	for i := len(shape) - 1; i >= 0; i-- {
		strides[begin+i] = step
		step *= max(shape[i], 1)
	}
	return strides
}

// maxAxes is NumPy's limit, too. The work on shapes is proportional to their length, and some of it
// to its square.
const maxAxes = 64

// countElements returns the product of a shape. It checks all axes, also those after an axis of
// length 0.
func countElements(shape []int64) (int64, error) {
	if len(shape) > maxAxes {
		return 0, fmt.Errorf("a shape of %d axes: at most %d are supported", len(shape), maxAxes)
	}
	n, empty := int64(1), false
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		}
		empty = empty || d == 0
	}
	if empty {
		return 0, nil
	}
	for _, d := range shape {
		if n > math.MaxInt64/d {
			return 0, fmt.Errorf("shape %v has more than 2^63 elements", shape)
		}
		n *= d
	}
	return n, nil
}

// Len returns the number of elements.
func (t *Tensor) Len() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// NDim returns the number of axes.
func (t *Tensor) NDim() int { return len(t.Shape) }

// Bytes returns the size of the elements, without the gaps that strides may leave.
func (t *Tensor) Bytes() int64 { return t.Len() * t.DType.Size() }

// Contiguous reports whether the elements lie in C order without gaps.
func (t *Tensor) Contiguous() bool {
	step := t.DType.Size()
	for i := len(t.Shape) - 1; i >= 0; i-- {
		if t.Shape[i] == 0 {
			return true
		}
		if t.Shape[i] != 1 && t.Strides[i] != step {
			return false
		}
		step *= t.Shape[i]
	}
	return true
}

// checkShape checks the properties that are known before the data arrives.
func (t *Tensor) checkShape() error {
	if t.DType == Invalid || int(t.DType) >= len(dtypes) {
		return fmt.Errorf("tensor has no valid dtype: %v", t.DType)
	}
	if n, err := countElements(t.Shape); err != nil {
		return err
	} else if n > math.MaxInt64/16 {
		return fmt.Errorf("shape %v of %v is larger than any memory", t.Shape, t.DType)
	}
	if len(t.Strides) != len(t.Shape) {
		return fmt.Errorf("tensor has %d strides for %d axes", len(t.Strides), len(t.Shape))
	}
	return nil
}

// Check verifies that every element lies inside of the memory and is aligned. The loops of this
// package rely on this and check nothing else.
func (t *Tensor) Check() error {
	if err := t.checkShape(); err != nil {
		return err
	}
	if t.Len() == 0 {
		return nil
	}
	size, align := int64(len(t.Data)), t.DType.Alignment()
	address := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(t.Data))))
	if t.Far != nil {
		size, address = t.Far.Size(), t.Far.Address()
	}
	low, high := t.Offset, t.Offset
	inside := low >= 0 && low <= size
	for i, stride := range t.Strides {
		last := t.Shape[i] - 1
		if last == 0 {
			continue
		}
		if stride%align != 0 {
			return fmt.Errorf("stride %d of axis %d is not a multiple of %d bytes, the alignment of %v", stride, i, align, t.DType)
		}
		if stride > size/last || stride < -size/last {
			inside = false
			break
		}
		low += min(0, last*stride)
		high += max(0, last*stride)
		inside = inside && low >= 0 && high <= size
	}
	if !inside || high+t.DType.Size() > size {
		return fmt.Errorf("tensor of shape %v, strides %v, offset %d reaches outside its %d bytes", t.Shape, t.Strides, t.Offset, size)
	}
	if (address+uint64(t.Offset))%uint64(align) != 0 {
		return fmt.Errorf("tensor of %v begins at an address that is not a multiple of %d", t.DType, align)
	}
	return nil
}

// base returns the address of the element with index zero.
// REQUIRES: Check passed and there is at least one element.
func (t *Tensor) base() unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(t.Data)), t.Offset)
}

// raw returns the bytes of a contiguous tensor. For a tensor without elements it returns nil, for
// any offset.
func (t *Tensor) raw() []byte {
	n := t.Bytes()
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(t.base()), n)
}

// elements returns the elements of a contiguous tensor as a slice.
func elements[T any](t *Tensor) []T {
	n := t.Len()
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(t.base()), n)
}

// Item returns the single element of a tensor as a leaf: bool, int64, float64 or complex128.
func (t *Tensor) Item() (any, error) {
	if t.Len() != 1 {
		return nil, fmt.Errorf("tensor of shape %v is not a single value", t.Shape)
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	if t.Far != nil {
		near := Tensor{DType: t.DType, Data: make([]byte, t.DType.Size())}
		if err := t.Far.Read(t.Offset, near.Data); err != nil {
			return nil, fmt.Errorf("read a value: %w", err)
		}
		return near.Item()
	}
	p := t.base()
	switch t.DType {
	case Bool:
		return *(*uint8)(p) != 0, nil
	case Uint8:
		return int64(*(*uint8)(p)), nil
	case Int32:
		return int64(*(*int32)(p)), nil
	case Int64:
		return *(*int64)(p), nil
	case Float32:
		return float64(*(*float32)(p)), nil
	case Float64:
		return *(*float64)(p), nil
	case Complex64:
		return complex128(*(*complex64)(p)), nil
	default:
		return *(*complex128)(p), nil
	}
}

// At returns one element as a leaf. Indexes must not be negative.
func (t *Tensor) At(index ...int64) (any, error) {
	if len(index) != len(t.Shape) {
		return nil, fmt.Errorf("%d indexes for a tensor of shape %v", len(index), t.Shape)
	}
	one := Tensor{DType: t.DType, Offset: t.Offset, Data: t.Data, Far: t.Far}
	for i, x := range index {
		if x < 0 || x >= t.Shape[i] {
			return nil, fmt.Errorf("index %v is outside shape %v", index, t.Shape)
		}
		one.Offset += x * t.Strides[i]
	}
	return one.Item()
}

// broadcastTo returns a view of t with the shape that broadcast found for it.
func (t *Tensor) broadcastTo(shape []int64) *Tensor {
	view := *t
	view.Shape = shape
	view.Strides = make([]int64, len(shape))
	skip := len(shape) - len(t.Shape)
	for i, d := range t.Shape {
		if d != 1 {
			view.Strides[skip+i] = t.Strides[i]
		}
	}
	return &view
}

// broadcast returns the common shape of several shapes, by NumPy's rule.
func broadcast(shapes ...[]int64) ([]int64, bool) {
	var out []int64
	for _, s := range shapes {
		for len(out) < len(s) {
			out = slices.Insert(out, 0, 1)
		}
		for i := range s {
			at := &out[len(out)-len(s)+i]
			switch {
			case *at == 1:
				*at = s[i]
			case s[i] != 1 && s[i] != *at:
				return nil, false
			}
		}
	}
	return out, true
}

// coalesce drops axes of length one and joins neighbouring axes that can be walked with one stride.
// The result has at least one axis.
func coalesce(shape, strides []int64, size int64) (outShape, outStrides []int64) {
	for i, d := range shape {
		if d == 1 {
			continue
		}
		if n := len(outShape); n > 0 && outStrides[n-1] == strides[i]*d {
			outShape[n-1] *= d
			outStrides[n-1] = strides[i]
			continue
		}
		outShape, outStrides = append(outShape, d), append(outStrides, strides[i])
	}
	if len(outShape) == 0 {
		return []int64{1}, []int64{size}
	}
	return outShape, outStrides
}

// reader copies the elements of a strided tensor in C order, one block at a time.
type reader struct {
	axes []simd.Axis
	at   unsafe.Pointer // address of the element at the indexes of the axes
	size int64
}

// newReader returns a reader at the first element. REQUIRES: t has elements and passed Check.
func newReader(t *Tensor) *reader {
	shape, strides := coalesce(t.Shape, t.Strides, t.DType.Size())
	r := &reader{axes: make([]simd.Axis, len(shape)), at: t.base(), size: t.DType.Size()}
	for i := range shape {
		r.axes[i] = simd.Axis{Length: shape[i], Stride: strides[i]}
	}
	return r
}

// newLineReader returns a reader of length elements of size bytes that lie stride bytes apart.
func newLineReader(at unsafe.Pointer, length, stride, size int64) *reader {
	return &reader{[]simd.Axis{{Length: length, Stride: stride}}, at, size}
}

// clone returns a reader at the same element.
func (r *reader) clone() *reader { return &reader{slices.Clone(r.axes), r.at, r.size} }

// seek moves to an element. first is a reader at the first element of the same tensor.
func (r *reader) seek(first *reader, element int64) {
	r.at = first.at
	for i := len(r.axes) - 1; i >= 0; i-- {
		a := &r.axes[i]
		a.Index = element % a.Length
		element /= a.Length
		r.at = unsafe.Add(r.at, a.Index*a.Stride)
	}
}

// direct reports whether the elements are contiguous, so that they can be used in place.
func (r *reader) direct() bool { return len(r.axes) == 1 && r.axes[0].Stride == r.size }

// constant reports whether all elements are the same element in memory.
func (r *reader) constant() bool {
	return len(r.axes) == 1 && (r.axes[0].Stride == 0 || r.axes[0].Length == 1)
}

// read copies the next n elements to dst.
// REQUIRES: at least n elements remain.
func (r *reader) read(dst unsafe.Pointer, n int64) {
	last := &r.axes[len(r.axes)-1]
	for n > 0 {
		run := min(n, last.Length-last.Index)
		copyRun(dst, r.at, run, last.Stride, r.size)
		if n -= run; n > 0 {
			dst = unsafe.Add(dst, run*r.size)
		}
		r.skip(run)
	}
}

// skip advances by run elements, at most to the end of the last axis.
func (r *reader) skip(run int64) {
	last := len(r.axes) - 1
	r.axes[last].Index += run
	move := run * r.axes[last].Stride
	for axis := last; axis > 0 && r.axes[axis].Index == r.axes[axis].Length; axis-- {
		move -= r.axes[axis].Length * r.axes[axis].Stride
		r.axes[axis].Index = 0
		move += r.axes[axis-1].Stride
		r.axes[axis-1].Index++
	}
	if r.axes[0].Index < r.axes[0].Length { // after the last element no address is valid
		r.at = unsafe.Add(r.at, move)
	}
}

// copyRun gathers n elements of size bytes each that lie stride bytes apart.
func copyRun(dst, src unsafe.Pointer, n, stride, size int64) {
	switch {
	case stride == size:
		copy(unsafe.Slice((*byte)(dst), n*size), unsafe.Slice((*byte)(src), n*size))
	case size == 1:
		gather[uint8](dst, src, n, stride)
	case size == 4:
		gather[uint32](dst, src, n, stride)
	case size == 8:
		gather[uint64](dst, src, n, stride)
	default:
		gather[complex128](dst, src, n, stride)
	}
}

func gather[T any](dst, src unsafe.Pointer, n, stride int64) {
	out := unsafe.Slice((*T)(dst), n)
	for i := range out {
		out[i] = *(*T)(unsafe.Add(src, int64(i)*stride))
	}
}

// checkEvery is the number of elements between two checks of the context. Copying or arithmetic on
// them takes less than a millisecond.
const checkEvery = 1 << 16

// copyInto writes the elements of src in C order into dst, which is contiguous and has the same
// type.
func copyInto(ctx context.Context, dst, src *Tensor) error {
	n := src.Len()
	if err := ctx.Err(); n == 0 || err != nil {
		return err
	}
	set := simd.Best()
	if shape, strides := coalesce(src.Shape, src.Strides, src.DType.Size()); len(shape) > 1 {
		if axis := slices.Index(strides, src.DType.Size()); axis >= 0 && axis < len(shape)-1 {
			if set != nil {
				return transposeInto(ctx, set, dst.base(), src, shape, strides, axis)
			}
			return copyTiled(ctx, dst.base(), src, shape, strides, axis)
		}
	}
	first, out := newReader(src), dst.base()
	if n*first.size <= pieceBytes {
		first.readBy(set, out, n)
		return nil
	}
	piece := pieceBytes / first.size
	return eachPiece(ctx, n, piece, func(begin, end int64) error {
		r := first.clone()
		r.seek(first, begin)
		r.readBy(set, unsafe.Add(out, begin*r.size), end-begin)
		return nil
	})
}

// readBy is read by an instruction set, which may be nil. The reader cannot be used afterwards.
func (r *reader) readBy(set *simd.Set, dst unsafe.Pointer, n int64) {
	if set == nil || r.direct() {
		r.read(dst, n)
		return
	}
	set.Copy(dst, r.at, r.axes, r.size, n)
}

// transposeInto is copyTiled by an instruction set.
func transposeInto(ctx context.Context, set *simd.Set, out unsafe.Pointer, src *Tensor, shape, strides []int64, axis int) error {
	last, size := len(shape)-1, src.DType.Size()
	steps := ContiguousStrides(src.DType, shape)
	units := pieces(shape[axis], simd.Band)
	var outer []simd.Outer
	for i := range shape {
		if i != axis && i != last {
			outer = append(outer, simd.Outer{Length: shape[i], ToStep: steps[i], FromStep: strides[i]})
			units *= shape[i]
		}
	}
	t := simd.NewTransposition(out, src.base(), shape[axis], shape[last], steps[axis], strides[last], size, outer)
	// A piece has some units if they are small.
	piece := max(1, pieceBytes/(size*shape[last]*min(shape[axis], simd.Band)))
	return eachPiece(ctx, units, piece, func(begin, end int64) error {
		set.Transpose(t, begin, end)
		runtime.KeepAlive(outer)
		return nil
	})
}

// copyTiled copies a tensor that is contiguous along axis instead of along the last axis. It copies
// square tiles, so that each cache line is read once.
func copyTiled(ctx context.Context, out unsafe.Pointer, src *Tensor, shape, strides []int64, axis int) error {
	last, size := len(shape)-1, src.DType.Size()
	steps := ContiguousStrides(src.DType, shape)
	others := &Tensor{DType: src.DType}
	var outerSteps []int64
	for i := range shape {
		if i != axis && i != last {
			others.Shape, others.Strides = append(others.Shape, shape[i]), append(others.Strides, strides[i])
			outerSteps = append(outerSteps, steps[i])
		}
	}
	const tile = 32
	return eachIndex(others.Shape, func(index []int64) error {
		from, to := src.base(), out
		for i, x := range index {
			from, to = unsafe.Add(from, x*others.Strides[i]), unsafe.Add(to, x*outerSteps[i])
		}
		for i := int64(0); i < shape[axis]; i += tile {
			if err := ctx.Err(); err != nil {
				return err
			}
			rows := min(tile, shape[axis]-i)
			for j := int64(0); j < shape[last]; j += tile {
				columns := min(tile, shape[last]-j)
				for k := range rows {
					copyRun(unsafe.Add(to, (i+k)*steps[axis]+j*size), unsafe.Add(from, (i+k)*size+j*strides[last]), columns, strides[last], size)
				}
			}
		}
		return nil
	})
}

// eachIndex calls visit for every index of shape, in C order.
func eachIndex(shape []int64, visit func(index []int64) error) error {
	if slices.Contains(shape, 0) {
		return nil
	}
	index := make([]int64, len(shape))
	for {
		if err := visit(index); err != nil {
			return err
		}
		axis := len(shape) - 1
		for ; axis >= 0; axis-- {
			if index[axis]++; index[axis] < shape[axis] {
				break
			}
			index[axis] = 0
		}
		if axis < 0 {
			return nil
		}
	}
}
