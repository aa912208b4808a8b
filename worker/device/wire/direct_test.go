package wire

import (
	"math"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

func integer(n int64) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_IntValue{IntValue: n}}
}

func list(values ...*millracev1.Value) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: &millracev1.ListValue{Values: values}}}
}

func tensor(t *millracev1.Tensor) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: t}}
}

// usual returns values that are decoded directly, also as an element of a list and as a named
// argument.
func usual() []*millracev1.Value {
	deep := integer(1)
	for range maxDepth - 2 {
		deep = list(deep)
	}
	return []*millracev1.Value{
		{}, {Kind: &millracev1.Value_NullValue{}}, {Kind: &millracev1.Value_BoolValue{BoolValue: true}}, {Kind: &millracev1.Value_BoolValue{}},
		integer(0), integer(math.MinInt64), integer(math.MaxInt64), {Kind: &millracev1.Value_DoubleValue{DoubleValue: -0.5}},
		{Kind: &millracev1.Value_DoubleValue{DoubleValue: math.Inf(1)}}, {Kind: &millracev1.Value_StringValue{StringValue: "größe"}},
		{Kind: &millracev1.Value_BytesValue{BytesValue: []byte{}}}, {Kind: &millracev1.Value_BytesValue{BytesValue: []byte("\xff\x00")}},
		list(), list(integer(3), list(), list(integer(-4))), deep,
		{Kind: &millracev1.Value_Input{Input: 0}}, {Kind: &millracev1.Value_Input{Input: 1}},
		tensor(&millracev1.Tensor{Dtype: millracev1.DType_DTYPE_INT32, Shape: []int64{2, 2}, Location: &millracev1.Tensor_InlineData{InlineData: make([]byte, 16)}}),
		tensor(&millracev1.Tensor{Dtype: millracev1.DType_DTYPE_FLOAT64, Location: &millracev1.Tensor_InlineData{InlineData: make([]byte, 8)}}),
		tensor(&millracev1.Tensor{Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{3}, Strides: []int64{-1}, OffsetBytes: 2, Location: &millracev1.Tensor_InlineData{InlineData: []byte("abc")}}),
		tensor(&millracev1.Tensor{Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{0}}),
	}
}

// unusually returns values that are left to the message decoder, and values that are not valid
// arguments.
func unusually() []*millracev1.Value {
	deep := integer(1)
	for range maxDepth + 1 {
		deep = list(deep)
	}
	return []*millracev1.Value{
		deep, {Kind: &millracev1.Value_Input{Input: 7}},
		{Kind: &millracev1.Value_MapValue{MapValue: &millracev1.MapValue{Fields: map[string]*millracev1.Value{"a": integer(1)}}}},
		{Kind: &millracev1.Value_ComplexValue{ComplexValue: &millracev1.Complex{Real: 1, Imaginary: 2}}},
		{Kind: &millracev1.Value_OpaqueValue{OpaqueValue: &millracev1.Opaque{Encoding: "pickle"}}},
		tensor(&millracev1.Tensor{Dtype: 99}), tensor(&millracev1.Tensor{Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{3}}),
		tensor(&millracev1.Tensor{Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{3}, Location: &millracev1.Tensor_Frame{Frame: 0}}),
	}
}

func inputsOf(tb testing.TB) []device.Input {
	tb.Helper()
	framed := tensor(&millracev1.Tensor{Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{4}, Location: &millracev1.Tensor_Frame{Frame: 0}})
	return []device.Input{
		{Header: encoded(tb, framed), Frames: []memory.Frame{{Offset: 64, Bytes: 4}}},
		{Header: encoded(tb, list(integer(1), framed)), Frames: []memory.Frame{{Offset: 128, Bytes: 4}}},
	}
}

func encoded(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// placed is a View that records the offset of the frame in the tensor's data.
func placed(_ memory.Space, f memory.Frame, t *ops.Tensor) {
	t.Data = make([]byte, f.Bytes)
	t.Data[0] = byte(f.Offset)
}

func decoderOf(tb testing.TB) *decoder {
	tb.Helper()
	d := newDecoder(nil, placed, inputsOf(tb))
	return &d
}

// compare reports whether the bytes were decoded directly. The test fails if the message decoder
// returns something else.
func compare(tb testing.TB, b []byte) bool {
	tb.Helper()
	got, ok := decoderOf(tb).directly(b)
	if !ok {
		return false
	}
	want, err := decoderOf(tb).byMessage(b)
	if err != nil {
		tb.Errorf("%x: read as %v, and as a message: %v", b, got, err)
	} else if !same(want.Positional, got.Positional) || !same(want.Named, got.Named) {
		tb.Errorf("%x: %v as a message, %v directly", b, want, got)
	}
	return true
}

// same is reflect.DeepEqual, but compares floats by their bits.
func same(x, y any) bool {
	switch x := x.(type) {
	case float64:
		y, ok := y.(float64)
		return ok && math.Float64bits(x) == math.Float64bits(y)
	case []any:
		y, ok := y.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !same(x[i], y[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		y, ok := y.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for name, v := range x {
			w, ok := y[name]
			if !ok || !same(v, w) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(x, y)
}

func TestUsualArgumentsAreReadDirectly(t *testing.T) {
	all := &millracev1.Arguments{}
	for _, v := range usual() {
		all.Positional = append(all.Positional, v)
		for _, a := range []*millracev1.Arguments{
			{Positional: []*millracev1.Value{v}}, {Named: map[string]*millracev1.Value{"größe": v, "b": v}}, {Positional: []*millracev1.Value{list(v, v)}},
		} {
			if !compare(t, encoded(t, a)) {
				t.Errorf("%v is read as a message", a)
			}
		}
	}
	if !compare(t, encoded(t, all)) {
		t.Error("all together are read as a message")
	}
}

func TestUnusualArgumentsAreLeftToMessages(t *testing.T) {
	for _, v := range unusually() {
		for _, a := range []*millracev1.Arguments{
			{Positional: []*millracev1.Value{integer(1), v}}, {Named: map[string]*millracev1.Value{"x": v}}, {Positional: []*millracev1.Value{list(v)}},
		} {
			if compare(t, encoded(t, a)) {
				t.Errorf("%v is read directly", a)
			}
		}
	}
	if compare(t, encoded(t, &millracev1.Arguments{Call: &millracev1.Opaque{Encoding: "pickle"}})) {
		t.Error("a payload is read directly")
	}
}

func FuzzArgumentsAreThoseOfTheMessage(f *testing.F) {
	for _, v := range append(usual(), unusually()...) {
		f.Add(encoded(f, &millracev1.Arguments{Positional: []*millracev1.Value{integer(1), v}, Named: map[string]*millracev1.Value{"x": v}}))
	}
	f.Fuzz(func(t *testing.T, b []byte) { compare(t, b) })
}

// FuzzInputsAreThoseOfTheMessage decodes results as inputs, into the preallocated room of the
// decoder. The values must equal those of the message decoder.
func FuzzInputsAreThoseOfTheMessage(f *testing.F) {
	for _, v := range append(usual(), unusually()...) {
		f.Add(encoded(f, v))
		f.Add(encoded(f, list(v, v)))
	}
	for _, x := range []*millracev1.Tensor{
		{Dtype: millracev1.DType_DTYPE_INT32, Shape: []int64{1, 2, 3}, Location: &millracev1.Tensor_Frame{Frame: 0}},
		{Dtype: millracev1.DType_DTYPE_INT32, Shape: []int64{1, 1, 2, 1}, Strides: []int64{4, 0, -4, 300}, OffsetBytes: 8, Location: &millracev1.Tensor_Frame{Frame: 0}},
		{Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{2, 2}, Strides: []int64{1}, Location: &millracev1.Tensor_Frame{Frame: 0}},
		{Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{17}, Location: &millracev1.Tensor_InlineData{InlineData: make([]byte, 17)}},
	} {
		f.Add(encoded(f, tensor(x)))
		f.Add(encoded(f, list(tensor(x), tensor(x), integer(1))))
	}
	// The strides come before the shape.
	f.Add([]byte{0x4a, 0x0c, 0x08, 0x02, 0x1a, 0x02, 0x01, 0x01, 0x12, 0x02, 0x02, 0x03, 0x28, 0x00})
	f.Fuzz(func(t *testing.T, header []byte) {
		in := device.Input{Header: header, Frames: []memory.Frame{{Offset: 64, Bytes: 64}}}
		d := newDecoder(nil, placed, []device.Input{in})
		got, err := d.input(0)
		var v millracev1.Value
		if proto.Unmarshal(header, &v) != nil {
			if err == nil {
				t.Errorf("%x: %v, and no message", header, got)
			}
			return
		}
		m := newDecoder(nil, placed, nil)
		want, wantErr := m.value(&v, &place{frames: in.Frames})
		if (err == nil) != (wantErr == nil) || err == nil && !same(want, got) {
			t.Errorf("%x: %v, %v as a message, %v, %v directly", header, want, wantErr, got, err)
		}
	})
}

func TestInputsDoNotShareTheirRoom(t *testing.T) {
	three := func(n byte) device.Input {
		return device.Input{Header: encoded(t, list(
			tensor(&millracev1.Tensor{Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{2}, Location: &millracev1.Tensor_InlineData{InlineData: []byte{n, 1}}}),
			tensor(&millracev1.Tensor{Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{1, 2}, Location: &millracev1.Tensor_InlineData{InlineData: []byte{n, 2}}}),
		))}
	}
	d := newDecoder(nil, placed, []device.Input{three(5), three(6)})
	var all []any
	for i := range 2 {
		x, err := d.input(uint32(i))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x.([]any)...)
	}
	for i, x := range all {
		want := &ops.Tensor{DType: ops.Uint8, Shape: []int64{2}, Strides: []int64{1}, Data: []byte{byte(5 + i/2), byte(1 + i%2)}}
		if i%2 == 1 {
			want.Shape, want.Strides = []int64{1, 2}, []int64{2, 1}
		}
		if !reflect.DeepEqual(x, want) {
			t.Errorf("tensor %d: %+v, want %+v", i, x, want)
		}
	}
}

// C functions may read the elements of a small tensor: its memory is no part of an object with
// pointers, which Go refuses to pass on.
func TestSmallTensorsArePassedToC(t *testing.T) {
	for _, n := range []int64{1, 2, 3} {
		data := make([]byte, 8*n)
		data[0] = 5
		input := tensor(&millracev1.Tensor{Dtype: millracev1.DType_DTYPE_INT64, Shape: []int64{n}, Location: &millracev1.Tensor_InlineData{InlineData: data}})
		args, err := Arguments(device.Call{
			Arguments: encoded(t, &millracev1.Arguments{Positional: []*millracev1.Value{{Kind: &millracev1.Value_Input{Input: 0}}}}),
			Inputs:    []device.Input{{Header: encoded(t, input)}},
		}, nil, placed)
		if err != nil {
			t.Fatal(err)
		}
		op, err := ops.NewRegistry().Lookup("array.reduce")
		if err != nil {
			t.Fatal(err)
		}
		args.Named = map[string]any{"op": "sum"}
		sum, err := op.Run(t.Context(), args, ops.NewTensor)
		if x, ok := sum.(*ops.Tensor); err != nil || !ok || x.Data[0] != 5 {
			t.Errorf("%d elements: %v, %v", n, sum, err)
		}
	}
}
