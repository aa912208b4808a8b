// Package wire is an Adapter: it converts calls and results between the messages of the API and the
// values that operations take and return. It is the same on every device; only the memory that
// holds the tensors differs.
package wire

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// InlineBytes is the largest total size of a result's tensors that are stored in its header. Above
// it they get frames: a frame costs a block of the slab, bookkeeping and a second message.
const InlineBytes = 1024

// nullHeader returns the encoded null value, with its field written out: an empty header would look
// like a missing one.
func nullHeader() []byte { return []byte{0x08, 0x00} }

// View attaches the memory of a frame to a tensor: it sets the tensor's Data or its Far.
type View func(space memory.Space, f memory.Frame, t *ops.Tensor)

// InPlace is the View for memory that the CPU can address.
func InPlace(space memory.Space, f memory.Frame, t *ops.Tensor) {
	t.Data = space.Bytes(f.Offset, f.Bytes)
}

// Arguments decodes the arguments of a call. Its tensors refer to the frames of the inputs, as set
// by view; own is the space of inputs that name no space. Errors are of type *device.Error.
func Arguments(call device.Call, own memory.Space, view View) (args ops.Args, err error) {
	if len(call.Arguments) == 0 {
		return ops.Args{}, nil
	}
	defer func() {
		if cause := recover(); cause != nil {
			args, err = ops.Args{}, &device.Error{Reason: "INTERNAL", Message: fmt.Sprintf(
				"%s: internal error while the arguments were read, please report it with them: %v\n%s", call.Op, cause, debug.Stack())}
		}
	}()
	d := newDecoder(own, view, call.Inputs)
	if args, ok := d.directly(call.Arguments); ok {
		return args, nil
	}
	args, err = d.byMessage(call.Arguments)
	if err != nil {
		return ops.Args{}, &device.Error{Reason: "INVALID_ARGUMENT", Message: fmt.Sprintf("%s: %v", call.Op, err)}
	}
	return args, nil
}

// Failure converts an error of an operation to a *device.Error. Errors about memory
// (device.ErrNoRoom), context errors and errors that already are a *device.Error are returned
// unchanged.
func Failure(err error) error {
	var known *device.Error
	if errors.Is(err, device.ErrNoRoom) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &known) {
		return err
	}
	var e *ops.Error
	reason := "OP_FAILED"
	if errors.Is(err, ops.ErrNoScratch) {
		reason = "OUT_OF_MEMORY"
	}
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

// opaque stands for a payload that is encoded by another language. An operation that only passes
// its arguments on can take one.
type opaque string

// decoder decodes arguments. Tensors become views of the slab or of the inputs' spaces.
type decoder struct {
	slab    memory.Space
	view    View
	inputs  []device.Input
	decoded []decoded
	// depth is the nesting depth of the list that is now decoded without messages; see directList.
	depth int
	// headers is the total size of the input headers that were decoded so far.
	headers int
}

// maxHeaders limits the total size of the headers of one call's inputs. Decoded values take some
// ten times as much of the Go heap, which no memory limit counts.
const maxHeaders = 32 << 20

// decoded is the decoded value of one input. It has preallocated room for one tensor of the usual
// size, so that most inputs need no further allocation.
type decoded struct {
	value  any
	known  bool
	taken  bool // tensor is in use
	tensor ops.Tensor
	// numbers has room for the shape and the strides of the tensor.
	numbers [2][3]int64
}

func newDecoder(own memory.Space, view View, inputs []device.Input) decoder {
	d := decoder{slab: own, view: view, inputs: inputs}
	if len(inputs) > 0 {
		d.decoded = make([]decoded, len(inputs))
	}
	return d
}

// room returns the tensor to decode into: the preallocated one if it is free, otherwise a new one.
func (d *decoded) room() *ops.Tensor {
	if d == nil || d.taken {
		return new(ops.Tensor)
	}
	d.taken = true
	return &d.tensor
}

const ofShape, ofStrides = 0, 1

// list returns an empty slice with room for n numbers: of the tensor's shape or of its strides.
func (d *decoded) list(of, n int) []int64 {
	if d == nil || d.taken || n > len(d.numbers[of]) {
		return make([]int64, 0, n)
	}
	return d.numbers[of][:0:n]
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
	to := &d.decoded[i]
	if to.known {
		return to.value, nil
	}
	in := &d.inputs[i]
	if d.headers += len(in.Header); d.headers > maxHeaders {
		return nil, fmt.Errorf("the inputs hold more than %d MiB of values that are not tensors: "+
			"put numbers into tensors, or give the task fewer inputs", maxHeaders>>20)
	}
	at := place{space: in.Space, frames: in.Frames, to: to}
	if at.space == nil {
		at.space = d.slab
	}
	if x, ok, err := d.direct(in.Header, &at); ok && err == nil {
		to.value, to.known = x, true
		return x, nil
	}
	at.to = nil
	var v millracev1.Value
	if err := proto.Unmarshal(in.Header, &v); err != nil {
		return nil, fmt.Errorf("input %d: its header is not a millrace.v1.Value: %w", i, err)
	}
	x, err := d.value(&v, &at)
	if err != nil {
		return nil, fmt.Errorf("input %d: %w", i, err)
	}
	to.value, to.known = x, true
	return x, nil
}

// place describes the frames of a result that is decoded.
type place struct {
	space  memory.Space
	frames []memory.Frame
	// to has room for a tensor; nil means no preallocated room.
	to *decoded
}

// room returns the room of the result; nil for arguments.
func (at *place) room() *decoded {
	if at == nil {
		return nil
	}
	return at.to
}

// value decodes an argument (if at is nil) or a result with frames.
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
	case *millracev1.Value_TableValue:
		return d.table(k.TableValue, at)
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
	described := describe(t)
	return d.build(&described, at)
}

// build creates a tensor from its description and its location.
func (d *decoder) build(t *described, at *place) (*ops.Tensor, error) {
	room := at.room()
	if len(t.strides) == 0 && t.dtype != ops.Invalid && t.dtype <= ops.Complex128 {
		t.strides = ops.AppendStrides(room.list(ofStrides, len(t.shape)), t.dtype, t.shape)
	}
	out := room.room()
	*out = ops.Tensor{DType: t.dtype, Shape: t.shape, Strides: t.strides, Offset: int64(t.offset)}
	if out.DType == ops.Invalid || out.DType > ops.Complex128 {
		return nil, fmt.Errorf("a tensor of an unknown dtype %d", t.dtype)
	}
	if out.Shape == nil {
		out.Shape = []int64{}
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
