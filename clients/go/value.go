package millrace

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// maxInlineBytes is the largest tensor that may be part of an argument;
// larger ones must be scattered.
const maxInlineBytes = 64 << 10

const (
	// maxArgumentBytes limits the encoded arguments of one call, because the scheduler keeps them
	// as long as the task may run again.
	maxArgumentBytes = 40 << 20
	// maxDatasetBytes is the limit of PublishDatasetRequest.value.
	maxDatasetBytes = 1 << 20
	// maxHeaderBytes is the limit of ObjectHead.header. A scattered value that is not an Array
	// consists of the header only.
	maxHeaderBytes = 16 << 20
)

// Key is the key of a task. As an argument it stands for the task's result.
type Key string

// Arguments are the arguments of one task; Args makes them.
type Arguments struct {
	positional []any
	named      map[string]any
}

// Args makes positional arguments out of Go values: nil, bool, integers, floats, complex numbers,
// string, []byte, slices and string-keyed maps of these, Array and Table (up to 64 KiB; scatter
// larger ones), *Future or Key for the result of another task, and Item for one item of it.
func Args(positional ...any) Arguments { return Arguments{positional: positional} }

// With returns the arguments with one more named argument.
func (a Arguments) With(name string, value any) Arguments {
	named := make(map[string]any, len(a.named)+1)
	for k, v := range a.named {
		named[k] = v
	}
	named[name] = value
	return Arguments{positional: a.positional, named: named}
}

// Field numbers of the messages that are encoded by hand (value.proto, task.proto).
const (
	fieldValueNull     = 1
	fieldValueBool     = 2
	fieldValueInt      = 3
	fieldValueDouble   = 4
	fieldValueString   = 5
	fieldValueBytes    = 6
	fieldValueList     = 7
	fieldValueMap      = 8
	fieldValueTensor   = 9
	fieldValueInput    = 10
	fieldValueComplex  = 12
	fieldValueHole     = 13
	fieldListValues    = 1
	fieldMapFields     = 1
	fieldEntryKey      = 1
	fieldEntryValue    = 2
	fieldComplexReal   = 1
	fieldComplexImag   = 2
	fieldTensorDType   = 1
	fieldTensorShape   = 2
	fieldTensorFrame   = 5
	fieldTensorInline  = 6
	fieldArgPositional = 1
	fieldArgNamed      = 2
)

// appendArguments appends an Arguments message. Named arguments are sorted, so that equal calls
// have equal bytes: two tasks with one key are the same task only if their bytes are equal.
func appendArguments(b []byte, a Arguments, in *inputList) ([]byte, error) {
	b, err := encodeArguments(b, a, in)
	if err == nil && len(b) > maxArgumentBytes {
		return nil, fmt.Errorf("the arguments take %.1f MB, the limit is %.1f MB: Scatter what is large and pass its Future",
			float64(len(b))/1e6, float64(maxArgumentBytes)/1e6)
	}
	return b, err
}

func encodeArguments(b []byte, a Arguments, in *inputList) ([]byte, error) {
	var err error
	for i, v := range a.positional {
		var start int
		b, start = openMessage(b, fieldArgPositional)
		if b, err = appendValue(b, v, in); err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		b = closeMessage(b, start)
	}
	if len(a.named) == 0 {
		return b, nil
	}
	return appendMap(b, fieldArgNamed, a.named, in, "argument")
}

// appendMap appends the entries of a map, sorted by name. Errors use the text what for an entry.
func appendMap(b []byte, field protowire.Number, m map[string]any, in *inputList, what string) ([]byte, error) {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		var entry, value int
		var err error
		b, entry = openMessage(b, field)
		b = appendStringField(b, fieldEntryKey, name)
		b, value = openMessage(b, fieldEntryValue)
		if b, err = appendValue(b, m[name], in); err != nil {
			return nil, fmt.Errorf("%s %q: %w", what, name, err)
		}
		b = closeMessage(b, value)
		b = closeMessage(b, entry)
	}
	return b, nil
}

func appendInt(b []byte, v int64) []byte {
	return appendVarintField(b, fieldValueInt, protowire.EncodeZigZag(v))
}

func appendDouble(b []byte, v float64) []byte {
	return protowire.AppendFixed64(appendTag(b, fieldValueDouble, protowire.Fixed64Type), math.Float64bits(v))
}

func appendComplex(b []byte, v complex128) []byte {
	b, start := openMessage(b, fieldValueComplex)
	b = protowire.AppendFixed64(appendTag(b, fieldComplexReal, protowire.Fixed64Type), math.Float64bits(real(v)))
	b = protowire.AppendFixed64(appendTag(b, fieldComplexImag, protowire.Fixed64Type), math.Float64bits(imag(v)))
	return closeMessage(b, start)
}

// appendValue appends the fields of a Value message.
func appendValue(b []byte, v any, in *inputList) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return appendVarintField(b, fieldValueNull, 0), nil
	case bool:
		return appendVarintField(b, fieldValueBool, protowire.EncodeBool(v)), nil
	case int:
		return appendInt(b, int64(v)), nil
	case int8:
		return appendInt(b, int64(v)), nil
	case int16:
		return appendInt(b, int64(v)), nil
	case int32:
		return appendInt(b, int64(v)), nil
	case int64:
		return appendInt(b, v), nil
	case uint8:
		return appendInt(b, int64(v)), nil
	case uint16:
		return appendInt(b, int64(v)), nil
	case uint32:
		return appendInt(b, int64(v)), nil
	case uint:
		return appendUint(b, uint64(v))
	case uint64:
		return appendUint(b, v)
	case float32:
		return appendDouble(b, float64(v)), nil
	case float64:
		return appendDouble(b, v), nil
	case complex64:
		return appendComplex(b, complex128(v)), nil
	case complex128:
		return appendComplex(b, v), nil
	case string:
		return appendStringField(b, fieldValueString, v), nil
	case []byte:
		return appendBytesField(b, fieldValueBytes, v), nil
	case DType:
		return appendStringField(b, fieldValueString, v.String()), nil
	case Key, *Future:
		return appendInputValue(b, v, 0, 0, in)
	case Hole:
		return appendHole(b, v, in)
	case Item:
		if err := v.check(); err != nil {
			return nil, err
		}
		return appendInputValue(b, v.source, uint32(v.index)+1, uint32(v.count), in)
	case Array:
		return appendArray(b, v)
	case Table:
		return appendTable(b, v)
	case []any:
		return appendList(b, v, in)
	case []int:
		return appendList(b, v, in)
	case []int64:
		return appendList(b, v, in)
	case []float64:
		return appendList(b, v, in)
	case []string:
		return appendList(b, v, in)
	case []bool:
		return appendList(b, v, in)
	case []Key:
		return appendList(b, v, in)
	case []*Future:
		return appendList(b, v, in)
	case []Item:
		return appendList(b, v, in)
	case map[string]any:
		b, start := openMessage(b, fieldValueMap)
		b, err := appendMap(b, fieldMapFields, v, in, "element")
		if err != nil {
			return nil, err
		}
		return closeMessage(b, start), nil
	case *millracev1.Value:
		return proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, v)
	}
	return nil, fmt.Errorf("a Go value of type %T has no form that every language can read; convert it to numbers, text, slices, maps or an Array", v)
}

// appendInputValue appends a reference to the result of source, or to item of it, counted from 1.
func appendInputValue(b []byte, source any, item, count uint32, in *inputList) ([]byte, error) {
	i, err := in.addSource(source, item, count)
	if err != nil {
		return nil, err
	}
	return appendVarintField(b, fieldValueInput, uint64(i)), nil
}

func appendUint(b []byte, v uint64) ([]byte, error) {
	if v > math.MaxInt64 {
		return nil, fmt.Errorf("%d does not fit a signed 64-bit integer", v)
	}
	return appendInt(b, int64(v)), nil
}

func appendList[T any](b []byte, list []T, in *inputList) ([]byte, error) {
	b, start := openMessage(b, fieldValueList)
	for i, v := range list {
		var item int
		var err error
		b, item = openMessage(b, fieldListValues)
		if b, err = appendValue(b, v, in); err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		b = closeMessage(b, item)
	}
	return closeMessage(b, start), nil
}

func appendArray(b []byte, a Array) ([]byte, error) {
	if _, err := a.Len(); err != nil {
		return nil, err
	}
	if len(a.Data) > maxInlineBytes {
		return nil, fmt.Errorf("array %s of %d bytes is too large for an argument (at most %d); Scatter it and pass the Future", a, len(a.Data), maxInlineBytes)
	}
	b, start := openMessage(b, fieldValueTensor)
	b = appendTensorType(b, a)
	b = appendBytesField(b, fieldTensorInline, a.Data)
	return closeMessage(b, start), nil
}

func appendTensorType(b []byte, a Array) []byte {
	b = appendVarintField(b, fieldTensorDType, uint64(a.DType))
	b, start := openMessage(b, fieldTensorShape)
	for _, n := range a.Shape {
		b = protowire.AppendVarint(b, uint64(n))
	}
	return closeMessage(b, start)
}

// Opaque is a result that only another language understands, such as a Python pickle.
type Opaque struct {
	// Encoding is the name of the encoding: "pickle5".
	Encoding string
	// TypeName is the name of its type, for people.
	TypeName string
	// Data is the in-band part.
	Data []byte
	// Buffers holds the out-of-band parts.
	Buffers [][]byte
}

// strideRoom is the size up to which the copies of strided tensors of one result may exceed its
// bytes: a tensor may have stride 0, so that it is larger than its frame.
const strideRoom = 64 << 10

// resultReader converts one result.
type resultReader struct {
	frames [][]byte
	// inputs are the futures that a dataset refers to; nil in a result.
	inputs []*Future
	// room is the number of bytes that may still be allocated for copies of strided tensors.
	// Without it, a short header could refer to one frame any number of times.
	room uint64
}

// goValue converts a result to a Go value: nil, bool, int64, float64, complex128, string, []byte,
// []any, map[string]any, Array, Table or Opaque.
func goValue(v *millracev1.Value, frames [][]byte) (any, error) {
	r := resultReader{frames: frames, room: strideRoom}
	for _, f := range frames {
		r.room += uint64(len(f))
	}
	return r.value(v)
}

func (r *resultReader) value(v *millracev1.Value) (any, error) {
	switch k := v.GetKind().(type) {
	case nil, *millracev1.Value_NullValue:
		return nil, nil
	case *millracev1.Value_BoolValue:
		return k.BoolValue, nil
	case *millracev1.Value_IntValue:
		return k.IntValue, nil
	case *millracev1.Value_DoubleValue:
		return k.DoubleValue, nil
	case *millracev1.Value_ComplexValue:
		return complex(k.ComplexValue.GetReal(), k.ComplexValue.GetImaginary()), nil
	case *millracev1.Value_StringValue:
		return k.StringValue, nil
	case *millracev1.Value_BytesValue:
		return k.BytesValue, nil
	case *millracev1.Value_TensorValue:
		return r.array(k.TensorValue)
	case *millracev1.Value_ListValue:
		out := make([]any, len(k.ListValue.GetValues()))
		for i, item := range k.ListValue.GetValues() {
			var err error
			if out[i], err = r.value(item); err != nil {
				return nil, err
			}
		}
		return out, nil
	case *millracev1.Value_MapValue:
		out := make(map[string]any, len(k.MapValue.GetFields()))
		for name, item := range k.MapValue.GetFields() {
			var err error
			if out[name], err = r.value(item); err != nil {
				return nil, err
			}
		}
		return out, nil
	case *millracev1.Value_TableValue:
		return r.table(k.TableValue)
	case *millracev1.Value_OpaqueValue:
		return goOpaque(k.OpaqueValue, r.frames)
	case *millracev1.Value_Input:
		if uint64(k.Input) >= uint64(len(r.inputs)) {
			return nil, fmt.Errorf("millrace: a value refers to input %d of %d", k.Input, len(r.inputs))
		}
		return r.inputs[k.Input], nil
	}
	return nil, fmt.Errorf("millrace: a value of kind %T is not known to this client; use a newer one", v.GetKind())
}

func goOpaque(o *millracev1.Opaque, frames [][]byte) (any, error) {
	out := Opaque{Encoding: o.GetEncoding(), TypeName: o.GetTypeName(), Data: o.GetData()}
	for i, f := range o.GetFrames() {
		if uint64(f) >= uint64(len(frames)) {
			return nil, fmt.Errorf("millrace: an opaque result refers to frame %d of an object with %d frames", f, len(frames))
		}
		if i == 0 && out.Data == nil {
			out.Data = frames[f]
			continue
		}
		out.Buffers = append(out.Buffers, frames[f])
	}
	return out, nil
}
