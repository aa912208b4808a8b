package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// Encoder allocates the output memory of an operation and describes its result.
type Encoder struct {
	space memory.Space
	alloc device.Allocator
	view  View
	// write copies to a frame the bytes that lie elsewhere.
	write  func(f memory.Frame, p []byte) error
	frames []memory.Frame
	// tensors are the tensors of frames, in the same order.
	tensors []*ops.Tensor
	few     [1]*ops.Tensor // backs tensors for the first one; mostly enough
	// inline is the total size of the tensors that are stored in the header, in bytes.
	inline int64
	// header is a lower bound of the header's size so far. It is counted while the messages are
	// built, because they take ten times as much memory as the header.
	header int
}

// NewEncoder returns an encoder for one call. The function write copies bytes from the CPU's memory
// to a frame.
func NewEncoder(space memory.Space, alloc device.Allocator, view View, write func(f memory.Frame, p []byte) error) Encoder {
	return Encoder{space: space, alloc: alloc, view: view, write: write}
}

// Inline reports whether n more bytes are stored in the header; if so, it counts them.
func (e *Encoder) Inline(n int64) bool {
	if e.inline+n > InlineBytes {
		return false
	}
	e.inline += n
	return true
}

// Allocate is an ops.Allocator. Small tensors are allocated on the heap, others in the space.
func (e *Encoder) Allocate(dtype ops.DType, shape []int64) (*ops.Tensor, error) {
	if t := (&ops.Tensor{DType: dtype, Shape: shape}); e.Inline(t.Bytes()) {
		return ops.NewTensor(dtype, shape)
	}
	return e.Frame(dtype, shape)
}

// Frame allocates a tensor in the space, with a frame of its own.
func (e *Encoder) Frame(dtype ops.DType, shape []int64) (*ops.Tensor, error) {
	t := &ops.Tensor{DType: dtype, Shape: shape, Strides: ops.ContiguousStrides(dtype, shape)}
	f, err := e.Take(uint64(t.Bytes()), t)
	if err != nil {
		return nil, err
	}
	e.view(e.space, f, t)
	return t, nil
}

// Take allocates a frame for the tensor t. The caller attaches the frame's memory to t.
func (e *Encoder) Take(bytes uint64, t *ops.Tensor) (memory.Frame, error) {
	f, err := e.alloc(bytes)
	if err != nil {
		return memory.Frame{}, err
	}
	if e.tensors == nil {
		// NB: the encoder must not be copied once it has tensors: tensors refers to its field few.
		e.tensors = e.few[:0]
	}
	e.frames = append(e.frames, f)
	e.tensors = append(e.tensors, t)
	return f, nil
}

// Frames returns the frames that were allocated so far.
func (e *Encoder) Frames() []memory.Frame { return e.frames }

// Result describes the value that an operation returned.
func (e *Encoder) Result(x any) (device.Result, error) {
	if x == nil {
		return device.Result{Header: nullHeader(), Frames: e.frames}, nil
	}
	header, ok, err := e.directly(x)
	if err == nil && !ok {
		header, err = e.byMessage(x)
	}
	if err != nil {
		return device.Result{}, err
	}
	if len(header) > maxHeaderBytes {
		return device.Result{}, tooLarge(len(header))
	}
	return device.Result{Header: header, Frames: e.frames}, nil
}

// maxHeaderBytes is the limit of ObjectHead.header.
const maxHeaderBytes = 16 << 20

func tooLarge(bytes int) error {
	return &device.Error{Reason: "RESULT_TOO_LARGE", Message: fmt.Sprintf("the result holds at least %d bytes of values that are not tensors, "+
		"the limit is %d: put numbers into tensors, or return less", bytes, maxHeaderBytes)}
}

// directly encodes the header of a single tensor, which is the result of most operations, without
// messages. It writes the same bytes as the message encoder.
func (e *Encoder) directly(x any) (header []byte, ok bool, err error) {
	t, ok := x.(*ops.Tensor)
	if !ok {
		return nil, false, nil
	}
	at, err := e.place(t)
	if err != nil {
		return nil, false, err
	}
	var room [128]byte
	b := room[:0]
	if t.DType != 0 {
		b = protowire.AppendVarint(append(b, 1<<3), uint64(t.DType))
	}
	b = appendPacked(b, 2, t.Shape)
	if !t.Contiguous() {
		b = appendPacked(b, 3, t.Strides)
	}
	if t.Offset != 0 {
		b = protowire.AppendVarint(append(b, 4<<3), uint64(t.Offset))
	}
	const data = 6<<3 | byte(protowire.BytesType)
	size := len(b)
	switch {
	case at.framed:
		b = protowire.AppendVarint(append(b, 5<<3), uint64(at.frame))
		size = len(b)
	case at.located:
		size += 1 + protowire.SizeBytes(len(t.Data))
	}
	header = make([]byte, 0, 1+protowire.SizeBytes(size))
	header = protowire.AppendVarint(append(header, 9<<3|byte(protowire.BytesType)), uint64(size))
	header = append(header, b...)
	if at.located && !at.framed {
		header = protowire.AppendBytes(append(header, data), t.Data)
	}
	return header, true, nil
}

func appendPacked(b []byte, field byte, list []int64) []byte {
	if len(list) == 0 {
		return b
	}
	n := 0
	for _, v := range list {
		n += protowire.SizeVarint(uint64(v))
	}
	b = protowire.AppendVarint(append(b, field<<3|byte(protowire.BytesType)), uint64(n))
	for _, v := range list {
		b = protowire.AppendVarint(b, uint64(v))
	}
	return b
}

func (e *Encoder) byMessage(x any) ([]byte, error) {
	value, err := e.value(x)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(value)
}

func (e *Encoder) value(x any) (*millracev1.Value, error) {
	// In a list each value takes at least 2 bytes, its tag and its length, and mostly 2 more.
	if e.header += 2; e.header > maxHeaderBytes {
		return nil, tooLarge(e.header)
	}
	switch x := x.(type) {
	case nil:
		return &millracev1.Value{Kind: &millracev1.Value_NullValue{}}, nil
	case bool:
		return &millracev1.Value{Kind: &millracev1.Value_BoolValue{BoolValue: x}}, nil
	case int64:
		return &millracev1.Value{Kind: &millracev1.Value_IntValue{IntValue: x}}, nil
	case float64:
		return &millracev1.Value{Kind: &millracev1.Value_DoubleValue{DoubleValue: x}}, nil
	case complex128:
		return &millracev1.Value{Kind: &millracev1.Value_ComplexValue{ComplexValue: &millracev1.Complex{Real: real(x), Imaginary: imag(x)}}}, nil
	case string:
		e.header += len(x)
		return &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: x}}, nil
	case []byte:
		e.header += len(x)
		return &millracev1.Value{Kind: &millracev1.Value_BytesValue{BytesValue: x}}, nil
	case []any:
		if e.header+2*len(x) > maxHeaderBytes {
			return nil, tooLarge(e.header + 2*len(x))
		}
		list := &millracev1.ListValue{Values: make([]*millracev1.Value, len(x))}
		for i, v := range x {
			var err error
			if list.Values[i], err = e.value(v); err != nil {
				return nil, err
			}
		}
		return &millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: list}}, nil
	case map[string]any:
		m := &millracev1.MapValue{Fields: make(map[string]*millracev1.Value, len(x))}
		for name, v := range x {
			var err error
			if m.Fields[name], err = e.value(v); err != nil {
				return nil, err
			}
		}
		return &millracev1.Value{Kind: &millracev1.Value_MapValue{MapValue: m}}, nil
	case *ops.Tensor:
		t, err := e.tensor(x)
		if err != nil {
			return nil, err
		}
		return &millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: t}}, nil
	case *ops.Table:
		t, err := e.table(x)
		if err != nil {
			return nil, err
		}
		return &millracev1.Value{Kind: &millracev1.Value_TableValue{TableValue: t}}, nil
	case opaque:
		return nil, fmt.Errorf("the result would hold a payload of encoding %q, which only passes through functions of its own language", string(x))
	}
	return nil, fmt.Errorf("a result of type %T", x)
}

func (e *Encoder) tensor(t *ops.Tensor) (*millracev1.Tensor, error) {
	at, err := e.place(t)
	if err != nil {
		return nil, err
	}
	out := &millracev1.Tensor{Dtype: millracev1.DType(t.DType), Shape: t.Shape, OffsetBytes: uint64(t.Offset)}
	if !t.Contiguous() {
		out.Strides = t.Strides
	}
	switch {
	case at.framed:
		out.Location = &millracev1.Tensor_Frame{Frame: uint32(at.frame)}
	case at.located:
		out.Location = &millracev1.Tensor_InlineData{InlineData: t.Data}
	}
	return out, nil
}

// location is the place of the data of a result's tensor: a frame, the header, or (for a tensor
// without elements) none.
type location struct {
	located, framed bool
	frame           int
}

// place finds the frame of a tensor. A tensor that lies on the heap is copied into the header if it
// has at most InlineBytes, otherwise into a new frame.
func (e *Encoder) place(t *ops.Tensor) (location, error) {
	for i, known := range e.tensors {
		if known.Far != nil && known.Far == t.Far || len(t.Data) > 0 && len(known.Data) == len(t.Data) && &known.Data[0] == &t.Data[0] {
			return location{true, true, i}, nil
		}
	}
	if len(t.Data) == 0 {
		return location{}, nil
	}
	if len(t.Data) <= InlineBytes {
		return location{located: true}, nil
	}
	f, err := e.Take(uint64(len(t.Data)), t)
	if err != nil {
		return location{}, err
	}
	return location{true, true, len(e.frames) - 1}, e.write(f, t.Data)
}
