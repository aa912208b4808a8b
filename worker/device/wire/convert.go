// Package wire is an Adapter: calls and results as the API sends them, and as
// operations take them. It is the same on every device; only where tensors lie
// differs.
package wire

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// InlineBytes is up to which size the tensors of a result lie in its header: a
// frame costs a block of the slab, books and a second message.
const InlineBytes = 1024

// NullHeader is the null value, spelt out: an empty header would look like none.
func NullHeader() []byte { return []byte{0x08, 0x00} }

// View lays a tensor over a frame: it sets Data, or Far.
type View func(space memory.Space, f memory.Frame, t *ops.Tensor)

// InPlace is the View of memory that the processor can address.
func InPlace(space memory.Space, f memory.Frame, t *ops.Tensor) {
	t.Data = space.Bytes(f.Offset, f.Bytes)
}

// Arguments are those of a call, with tensors as view lays them over the frames of
// its inputs; own is the space of frames that name none. Errors are of type
// *device.Error.
func Arguments(call device.Call, own memory.Space, view View) (ops.Args, error) {
	if len(call.Arguments) == 0 {
		return ops.Args{}, nil
	}
	d := decoder{slab: own, view: view, inputs: call.Inputs, decoded: make([]any, len(call.Inputs)), known: make([]bool, len(call.Inputs))}
	if args, ok := d.directly(call.Arguments); ok {
		return args, nil
	}
	args, err := d.byMessage(call.Arguments)
	if err != nil {
		return ops.Args{}, &device.Error{Reason: "INVALID_ARGUMENT", Message: fmt.Sprintf("%s: %v", call.Op, err)}
	}
	return args, nil
}

// Failure puts an error of an operation into the terms of the API. Those of memory
// and of contexts stay what they are.
func Failure(err error) error {
	var known *device.Error
	if errors.Is(err, device.ErrNoRoom) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &known) {
		return err
	}
	var e *ops.Error
	reason := "OP_FAILED"
	if errors.As(err, &e) {
		switch e.Kind {
		case ops.UnknownOp:
			reason = "FUNCTION_NOT_FOUND"
		case ops.BadArgument:
			reason = "INVALID_ARGUMENT"
		case ops.Failed:
		}
	}
	return &device.Error{Reason: reason, Message: err.Error()}
}

// opaque stands for a payload of another language: operations that only pass
// arguments by may be given one.
type opaque string

// decoder turns arguments into what operations take. Tensors become views of the
// slab.
type decoder struct {
	slab    memory.Space
	view    View
	inputs  []device.Input
	decoded []any
	known   []bool
	// depth is that of the list that is read directly.
	depth int
}

func (d *decoder) byMessage(b []byte) (ops.Args, error) {
	var arguments millracev1.Arguments
	if err := proto.Unmarshal(b, &arguments); err != nil {
		return ops.Args{}, fmt.Errorf("the arguments are not a millrace.v1.Arguments message: %w", err)
	}
	return d.arguments(&arguments)
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
	at := &place{space: in.Space, frames: in.Frames}
	if at.space == nil {
		at.space = d.slab
	}
	if x, ok, err := d.direct(in.Header, at); ok && err == nil {
		d.decoded[i], d.known[i] = x, true
		return x, nil
	}
	var v millracev1.Value
	if err := proto.Unmarshal(in.Header, &v); err != nil {
		return nil, fmt.Errorf("input %d: its header is not a millrace.v1.Value: %w", i, err)
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
	return d.lay(describe(t), at)
}

// lay makes a tensor of its description and of where it lies.
func (d *decoder) lay(t described, at *place) (*ops.Tensor, error) {
	out := &ops.Tensor{DType: t.dtype, Shape: t.shape, Strides: t.strides, Offset: int64(t.offset)}
	if out.DType == ops.Invalid || out.DType > ops.Complex128 {
		return nil, fmt.Errorf("a tensor of an unknown dtype %d", t.dtype)
	}
	if out.Shape == nil {
		out.Shape = []int64{}
	}
	if len(out.Strides) == 0 {
		out.Strides = ops.ContiguousStrides(out.DType, out.Shape)
	}
	switch {
	case !t.located:
	case !t.framed:
		out.Data = t.inline
	default:
		if at == nil || int(t.frame) >= len(at.frames) {
			return nil, fmt.Errorf("a tensor refers to frame %d, which it does not have", t.frame)
		}
		if f := at.frames[t.frame]; f.Bytes > 0 {
			d.view(at.space, f, out)
		}
	}
	if err := out.Check(); err != nil {
		return nil, err
	}
	return out, nil
}

// Encoder gives an operation its output memory and describes its result.
type Encoder struct {
	space memory.Space
	alloc device.Allocator
	view  View
	// write copies to a frame what lies elsewhere.
	write  func(f memory.Frame, p []byte) error
	frames []memory.Frame
	// tensors lie over frames, in order.
	tensors []*ops.Tensor
	// inline is how many bytes of tensors lie outside of the slab.
	inline int64
}

// NewEncoder is for one call. write fills a frame from the processor's memory.
func NewEncoder(space memory.Space, alloc device.Allocator, view View, write func(f memory.Frame, p []byte) error) *Encoder {
	return &Encoder{space: space, alloc: alloc, view: view, write: write}
}

// Inline says whether n more bytes are to lie in the header, and counts them if so.
func (e *Encoder) Inline(n int64) bool {
	if e.inline+n > InlineBytes {
		return false
	}
	e.inline += n
	return true
}

// Allocate is an ops.Allocator: what is small lies in the heap.
func (e *Encoder) Allocate(dtype ops.DType, shape []int64) (*ops.Tensor, error) {
	if t := (&ops.Tensor{DType: dtype, Shape: shape}); e.Inline(t.Bytes()) {
		return ops.NewTensor(dtype, shape)
	}
	return e.Frame(dtype, shape)
}

// Frame allocates a tensor in the space.
func (e *Encoder) Frame(dtype ops.DType, shape []int64) (*ops.Tensor, error) {
	t := &ops.Tensor{DType: dtype, Shape: shape, Strides: ops.ContiguousStrides(dtype, shape)}
	f, err := e.alloc(uint64(t.Bytes()))
	if err != nil {
		return nil, err
	}
	e.view(e.space, f, t)
	e.frames = append(e.frames, f)
	e.tensors = append(e.tensors, t)
	return t, nil
}

// Result describes what an operation returned.
func (e *Encoder) Result(x any) (device.Result, error) {
	if x == nil {
		return device.Result{Header: NullHeader(), Frames: e.frames}, nil
	}
	value, err := e.value(x)
	if err != nil {
		return device.Result{}, err
	}
	header, err := proto.Marshal(value)
	return device.Result{Header: header, Frames: e.frames}, err
}

func (e *Encoder) value(x any) (*millracev1.Value, error) {
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
func (e *Encoder) tensor(t *ops.Tensor) (*millracev1.Tensor, error) {
	out := &millracev1.Tensor{Dtype: millracev1.DType(t.DType), Shape: t.Shape, OffsetBytes: uint64(t.Offset)}
	if !t.Contiguous() {
		out.Strides = t.Strides
	}
	for i, known := range e.tensors {
		if known.Far != nil && known.Far == t.Far || len(t.Data) > 0 && len(known.Data) == len(t.Data) && &known.Data[0] == &t.Data[0] {
			out.Location = &millracev1.Tensor_Frame{Frame: uint32(i)}
			return out, nil
		}
	}
	if len(t.Data) == 0 {
		return out, nil
	}
	if len(t.Data) <= InlineBytes {
		out.Location = &millracev1.Tensor_InlineData{InlineData: t.Data}
		return out, nil
	}
	f, err := e.alloc(uint64(len(t.Data)))
	if err != nil {
		return nil, err
	}
	if err := e.write(f, t.Data); err != nil {
		return nil, err
	}
	e.frames = append(e.frames, f)
	e.tensors = append(e.tensors, t)
	out.Location = &millracev1.Tensor_Frame{Frame: uint32(len(e.frames) - 1)}
	return out, nil
}
