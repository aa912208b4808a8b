package millrace

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// DType is the element type of an Array. All types are little-endian.
type DType int

// The element types, with NumPy's names.
const (
	Bool       = DType(millracev1.DType_DTYPE_BOOL)
	Uint8      = DType(millracev1.DType_DTYPE_UINT8)
	Int32      = DType(millracev1.DType_DTYPE_INT32)
	Int64      = DType(millracev1.DType_DTYPE_INT64)
	Float32    = DType(millracev1.DType_DTYPE_FLOAT32)
	Float64    = DType(millracev1.DType_DTYPE_FLOAT64)
	Complex64  = DType(millracev1.DType_DTYPE_COMPLEX64)
	Complex128 = DType(millracev1.DType_DTYPE_COMPLEX128)
)

// String returns NumPy's name of the type.
func (d DType) String() string {
	switch d {
	case Bool:
		return "bool"
	case Uint8:
		return "uint8"
	case Int32:
		return "int32"
	case Int64:
		return "int64"
	case Float32:
		return "float32"
	case Float64:
		return "float64"
	case Complex64:
		return "complex64"
	case Complex128:
		return "complex128"
	}
	return fmt.Sprintf("dtype(%d)", int(d))
}

// Size returns the bytes of one element; 0 for an unknown type.
func (d DType) Size() int {
	switch d {
	case Bool, Uint8:
		return 1
	case Int32, Float32:
		return 4
	case Int64, Float64, Complex64:
		return 8
	case Complex128:
		return 16
	}
	return 0
}

// Element lists the Go types whose slices can be used as arrays without conversion.
type Element interface {
	bool | uint8 | int32 | int64 | float32 | float64 | complex64 | complex128
}

// Array is an n-dimensional array in C order: the last axis varies fastest.
type Array struct {
	// DType is the type of its elements.
	DType DType
	// Shape holds the length of each axis; empty means a scalar.
	Shape []int
	// Data holds the elements, without gaps.
	Data []byte
}

// FromSlice makes an Array of the elements of data, sharing its memory. Without a shape the array
// has one axis.
func FromSlice[T Element](data []T, shape ...int) (Array, error) {
	a := Array{DType: dtypeOf[T](), Shape: shape}
	if len(shape) == 0 {
		a.Shape = []int{len(data)}
	}
	n, err := a.elements()
	if err != nil {
		return Array{}, err
	}
	if n != len(data) {
		return Array{}, fmt.Errorf("millrace: shape %v needs %d elements, the slice has %d", shape, n, len(data))
	}
	if len(data) > 0 {
		a.Data = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), len(data)*a.DType.Size())
	}
	return a, nil
}

// Slice returns the elements of a, sharing its memory if the alignment allows.
// T must be the Go type of a.DType.
func Slice[T Element](a Array) ([]T, error) {
	if want := dtypeOf[T](); a.DType != want {
		return nil, fmt.Errorf("millrace: the array holds %s, not %s; cast it with the op array.cast", a.DType, want)
	}
	n, err := a.Len()
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return []T{}, nil
	}
	var zero T
	if uintptr(unsafe.Pointer(unsafe.SliceData(a.Data)))%unsafe.Alignof(zero) == 0 {
		return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(a.Data))), n), nil
	}
	out := make([]T, n)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&out[0])), len(a.Data)), a.Data)
	return out, nil
}

// Len returns the number of elements, or an error if the shape, the type and the bytes do not
// agree.
func (a Array) Len() (int, error) {
	n, err := a.elements()
	if err != nil {
		return 0, err
	}
	if need := n * a.DType.Size(); need != len(a.Data) {
		return 0, fmt.Errorf("millrace: shape %v of %s needs %d bytes, the array has %d", a.Shape, a.DType, need, len(a.Data))
	}
	return n, nil
}

// elements returns the number of elements that the shape describes. Their bytes can be counted by
// an int.
func (a Array) elements() (int, error) {
	size := a.DType.Size()
	if size == 0 {
		return 0, fmt.Errorf("millrace: array with unknown element type %s", a.DType)
	}
	empty := false
	for _, l := range a.Shape {
		if l < 0 {
			return 0, fmt.Errorf("millrace: impossible shape %v: the length %d is negative", a.Shape, l)
		}
		empty = empty || l == 0
	}
	if empty {
		return 0, nil
	}
	n, most := 1, math.MaxInt/size
	for _, l := range a.Shape {
		if n > most/l {
			return 0, fmt.Errorf("millrace: impossible shape %v of %s: it is larger than any memory", a.Shape, a.DType)
		}
		n *= l
	}
	return n, nil
}

// String returns the type and the shape: "float64[1797, 64]".
func (a Array) String() string {
	s := a.DType.String() + "["
	for i, n := range a.Shape {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprint(n)
	}
	return s + "]"
}

func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case bool:
		return Bool
	case uint8:
		return Uint8
	case int32:
		return Int32
	case int64:
		return Int64
	case float32:
		return Float32
	case float64:
		return Float64
	case complex64:
		return Complex64
	default:
		return Complex128
	}
}

// maxAxes is the largest number of axes of a result, as in NumPy and in native ops.
const maxAxes = 64

// array reads a tensor from its frame or its inline data. A contiguous tensor shares the frame's
// memory; strided elements are copied into C order. The header may come from any program, so all of
// it is checked.
func (r *resultReader) array(t *millracev1.Tensor) (Array, error) {
	if len(t.GetShape()) > maxAxes {
		return Array{}, fmt.Errorf("millrace: a tensor has %d axes; at most %d can be read", len(t.GetShape()), maxAxes)
	}
	a := Array{DType: DType(t.GetDtype()), Shape: make([]int, len(t.GetShape()))}
	for i, n := range t.GetShape() {
		if a.Shape[i] = int(n); int64(a.Shape[i]) != n {
			return Array{}, fmt.Errorf("millrace: an axis of %d elements is too long for this computer", n)
		}
	}
	n, err := a.elements()
	if err != nil {
		return Array{}, err
	}
	if n == 0 {
		a.Data = []byte{}
		return a, nil
	}
	var src []byte
	switch loc := t.GetLocation().(type) {
	case *millracev1.Tensor_InlineData:
		src = loc.InlineData
		r.room += uint64(len(src))
	case *millracev1.Tensor_Frame:
		if uint64(loc.Frame) >= uint64(len(r.frames)) {
			return Array{}, fmt.Errorf("millrace: a tensor refers to frame %d of an object with %d frames", loc.Frame, len(r.frames))
		}
		src = r.frames[loc.Frame]
	}
	size, strides, first := a.DType.Size(), t.GetStrides(), t.GetOffsetBytes()
	if len(strides) == 0 || contiguous(a.Shape, strides, size) {
		need, have := uint64(n*size), uint64(len(src))
		if first > have || need > have-first {
			return Array{}, fmt.Errorf("millrace: tensor %s at byte %d does not fit its %d bytes", a, first, have)
		}
		end := first + need
		a.Data = src[first:end:end]
		return a, nil
	}
	if len(strides) != len(a.Shape) {
		return Array{}, fmt.Errorf("millrace: tensor %s has %d strides for %d axes", a, len(strides), len(a.Shape))
	}
	if !within(a.Shape, strides, first, size, len(src)) {
		return Array{}, fmt.Errorf("millrace: tensor %s with strides %v from byte %d reaches outside its %d bytes", a, strides, first, len(src))
	}
	if uint64(n*size) > r.room {
		return Array{}, fmt.Errorf("millrace: tensor %s with strides %v would become %d bytes, more than its result justifies: its elements overlap; "+
			"make it contiguous in the task", a, strides, n*size)
	}
	r.room -= uint64(n * size)
	a.Data = make([]byte, n*size)
	copyStrided(a.Data, src, a.Shape, strides, int(first), size)
	return a, nil
}

// within reports whether all elements of a strided tensor are inside have bytes. No axis is empty.
// NB: products and sums of these numbers may have more than 64 bits.
func within(shape []int, strides []int64, first uint64, size, have int) bool {
	if have < size || first > uint64(have-size) {
		return false
	}
	before, after := first, uint64(have-size)-first
	for axis, n := range shape {
		if n == 1 {
			continue // its stride does not matter
		}
		room, stride := &after, uint64(strides[axis])
		if strides[axis] < 0 {
			room, stride = &before, -stride
		}
		high, reach := bits.Mul64(uint64(n-1), stride)
		if high != 0 || reach > *room {
			return false
		}
		*room -= reach
	}
	return true
}

// copyStrided copies elements of the given size to dst in C order. REQUIRES: within.
func copyStrided(dst, src []byte, shape []int, strides []int64, at, size int) {
	var lengths, steps, index [maxAxes]int
	axes := 0
	for axis, n := range shape {
		if n > 1 {
			lengths[axes], steps[axes] = n, int(strides[axis])
			axes++
		}
	}
	for ; len(dst) > 0; dst = dst[size:] {
		copy(dst[:size], src[at:at+size])
		for axis := axes - 1; axis >= 0; axis-- {
			at += steps[axis]
			if index[axis]++; index[axis] < lengths[axis] {
				break
			}
			at -= lengths[axis] * steps[axis]
			index[axis] = 0
		}
	}
}

func contiguous(shape []int, strides []int64, size int) bool {
	if len(strides) != len(shape) {
		return false
	}
	want := int64(size)
	for axis := len(shape) - 1; axis >= 0; axis-- {
		if shape[axis] != 1 && strides[axis] != want {
			return false
		}
		want *= int64(shape[axis])
	}
	return true
}
