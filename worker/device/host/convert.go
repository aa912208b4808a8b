package host

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// nullHeader is the null value, spelt out: an empty header would look like none.
var nullHeader = []byte{0x08, 0x00}

// opaque stands for a payload of another language: operations that only pass
// arguments by may be given one.
type opaque string

// decoder turns arguments into what operations take. Tensors become views of the
// slab.
type decoder struct {
	slab    memory.Space
	inputs  []device.Input
	decoded []any
	known   []bool
}

func (d *decoder) arguments(a *millracev1.Arguments) (ops.Args, error) {
	if a.GetCall() != nil {
		return ops.Args{}, fmt.Errorf("the arguments are a payload of encoding %q, for Python functions only; send typed values", a.GetCall().GetEncoding())
	}
	var args ops.Args
	for i, v := range a.GetPositional() {
		x, err := d.value(v, nil)
		if err != nil {
			return args, fmt.Errorf("argument %d: %w", i, err)
		}
		args.Positional = append(args.Positional, x)
	}
	for name, v := range a.GetNamed() {
		x, err := d.value(v, nil)
		if err != nil {
			return args, fmt.Errorf("argument %s: %w", name, err)
		}
		if args.Named == nil {
			args.Named = make(map[string]any, len(a.GetNamed()))
		}
		args.Named[name] = x
	}
	return args, nil
}

func (d *decoder) input(i uint32) (any, error) {
	if int(i) >= len(d.inputs) {
		return nil, fmt.Errorf("refers to input %d of %d", i, len(d.inputs))
	}
	if d.known[i] {
		return d.decoded[i], nil
	}
	in := d.inputs[i]
	var v millracev1.Value
	if err := proto.Unmarshal(in.Header, &v); err != nil {
		return nil, fmt.Errorf("input %d: its header is not a millrace.v1.Value: %w", i, err)
	}
	at := &place{space: in.Space, frames: in.Frames}
	if at.space == nil {
		at.space = d.slab
	}
	x, err := d.value(&v, at)
	if err != nil {
		return nil, fmt.Errorf("input %d: %w", i, err)
	}
	d.decoded[i], d.known[i] = x, true
	return x, nil
}

// place is where the frames of a result are.
type place struct {
	space  memory.Space
	frames []memory.Frame
}

// value decodes an argument (at is nil) or a result with frames.
func (d *decoder) value(v *millracev1.Value, at *place) (any, error) {
	switch k := v.GetKind().(type) {
	case nil, *millracev1.Value_NullValue:
		return nil, nil
	case *millracev1.Value_BoolValue:
		return k.BoolValue, nil
	case *millracev1.Value_IntValue:
		return k.IntValue, nil
	case *millracev1.Value_DoubleValue:
		return k.DoubleValue, nil
	case *millracev1.Value_StringValue:
		return k.StringValue, nil
	case *millracev1.Value_BytesValue:
		return k.BytesValue, nil
	case *millracev1.Value_ComplexValue:
		return complex(k.ComplexValue.GetReal(), k.ComplexValue.GetImaginary()), nil
	case *millracev1.Value_ListValue:
		list := make([]any, len(k.ListValue.GetValues()))
		for i, e := range k.ListValue.GetValues() {
			x, err := d.value(e, at)
			if err != nil {
				return nil, err
			}
			list[i] = x
		}
		return list, nil
	case *millracev1.Value_MapValue:
		m := make(map[string]any, len(k.MapValue.GetFields()))
		for name, e := range k.MapValue.GetFields() {
			x, err := d.value(e, at)
			if err != nil {
				return nil, err
			}
			m[name] = x
		}
		return m, nil
	case *millracev1.Value_TensorValue:
		return d.tensor(k.TensorValue, at)
	case *millracev1.Value_Input:
		if at != nil {
			return nil, errors.New("a result refers to an input, which only arguments may")
		}
		return d.input(k.Input)
	case *millracev1.Value_OpaqueValue:
		return opaque(k.OpaqueValue.GetEncoding()), nil
	}
	return nil, fmt.Errorf("a value of a kind that this version does not know: %T", v.GetKind())
}

func (d *decoder) tensor(t *millracev1.Tensor, at *place) (*ops.Tensor, error) {
	out := &ops.Tensor{DType: ops.DType(t.GetDtype()), Shape: t.GetShape(), Strides: t.GetStrides(), Offset: int64(t.GetOffsetBytes())}
	if out.DType == ops.Invalid || out.DType > ops.Complex128 {
		return nil, fmt.Errorf("a tensor of an unknown dtype %d", t.GetDtype())
	}
	if out.Shape == nil {
		out.Shape = []int64{}
	}
	if len(out.Strides) == 0 {
		out.Strides = ops.ContiguousStrides(out.DType, out.Shape)
	}
	switch l := t.GetLocation().(type) {
	case nil:
	case *millracev1.Tensor_InlineData:
		out.Data = l.InlineData
	case *millracev1.Tensor_Frame:
		if at == nil || int(l.Frame) >= len(at.frames) {
			return nil, fmt.Errorf("a tensor refers to frame %d, which it does not have", l.Frame)
		}
		if f := at.frames[l.Frame]; f.Bytes > 0 {
			out.Data = at.space.Bytes(f.Offset, f.Bytes)
		}
	}
	if err := out.Check(); err != nil {
		return nil, err
	}
	return out, nil
}

// encoder gives an operation its output memory and describes its result.
type encoder struct {
	slab   memory.Space
	alloc  device.Allocator
	frames []memory.Frame
	// data are the bytes of frames, in order.
	data [][]byte
	// inline is how many bytes of tensors lie outside of the slab.
	inline int64
}

// allocate is an ops.Allocator.
func (e *encoder) allocate(dtype ops.DType, shape []int64) (*ops.Tensor, error) {
	t := &ops.Tensor{DType: dtype, Shape: shape, Strides: ops.ContiguousStrides(dtype, shape)}
	n := t.Bytes()
	if e.inline+n <= inlineBytes {
		e.inline += n
		small, err := ops.NewTensor(dtype, shape)
		return small, err
	}
	f, err := e.alloc(uint64(n))
	if err != nil {
		return nil, err
	}
	t.Data = e.slab.Bytes(f.Offset, f.Bytes)
	e.frames = append(e.frames, f)
	e.data = append(e.data, t.Data)
	return t, nil
}

func (e *encoder) value(x any) (*millracev1.Value, error) {
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
		return &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: x}}, nil
	case []byte:
		return &millracev1.Value{Kind: &millracev1.Value_BytesValue{BytesValue: x}}, nil
	case []any:
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
	case opaque:
		return nil, fmt.Errorf("the result would hold a payload of encoding %q, which only passes through functions of its own language", string(x))
	}
	return nil, fmt.Errorf("a result of type %T", x)
}

// tensor finds the frame that a tensor lies in. One that lies elsewhere, in the
// heap, is copied into its header or a frame of its own.
func (e *encoder) tensor(t *ops.Tensor) (*millracev1.Tensor, error) {
	out := &millracev1.Tensor{Dtype: millracev1.DType(t.DType), Shape: t.Shape, OffsetBytes: uint64(t.Offset)}
	if !t.Contiguous() {
		out.Strides = t.Strides
	}
	if len(t.Data) == 0 {
		return out, nil
	}
	for i, d := range e.data {
		if len(d) == len(t.Data) && &d[0] == &t.Data[0] {
			out.Location = &millracev1.Tensor_Frame{Frame: uint32(i)}
			return out, nil
		}
	}
	if len(t.Data) <= inlineBytes {
		out.Location = &millracev1.Tensor_InlineData{InlineData: t.Data}
		return out, nil
	}
	f, err := e.alloc(uint64(len(t.Data)))
	if err != nil {
		return nil, err
	}
	data := e.slab.Bytes(f.Offset, f.Bytes)
	copy(data, t.Data)
	e.frames = append(e.frames, f)
	e.data = append(e.data, data)
	out.Location = &millracev1.Tensor_Frame{Frame: uint32(len(e.frames) - 1)}
	return out, nil
}
