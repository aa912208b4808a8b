package value

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func tensor(frame uint32) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
		Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{3}, Location: &millracev1.Tensor_Frame{Frame: frame},
	}}}
}

func opaque(data []byte, frames ...uint32) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_OpaqueValue{OpaqueValue: &millracev1.Opaque{Encoding: "pickle5", Data: data, Frames: frames}}}
}

func TestNullIsSpeltOut(t *testing.T) {
	var v millracev1.Value
	if err := proto.Unmarshal(Null(), &v); err != nil {
		t.Fatal(err)
	}
	if _, null := v.GetKind().(*millracev1.Value_NullValue); !null {
		t.Errorf("got %v", &v)
	}
}

func TestInline(t *testing.T) {
	abc, large := []byte("abc"), make([]byte, maxInlineTensor+1)
	nested := &millracev1.Value{Kind: &millracev1.Value_MapValue{MapValue: &millracev1.MapValue{Fields: map[string]*millracev1.Value{
		"list": {Kind: &millracev1.Value_ListValue{ListValue: &millracev1.ListValue{Values: []*millracev1.Value{tensor(1), opaque(nil, 0)}}}},
	}}}}
	for name, c := range map[string]struct {
		v      *millracev1.Value
		frames [][]byte
		ok     bool
	}{
		"tensor":             {tensor(0), [][]byte{abc}, true},
		"nested":             {nested, [][]byte{abc, abc}, true},
		"missing frame":      {tensor(1), [][]byte{abc}, false},
		"large tensor":       {tensor(0), [][]byte{large}, false},
		"payload in a frame": {opaque(nil, 0), [][]byte{large}, true},
		"payload in parts":   {opaque(abc, 0), [][]byte{abc}, false},
		"payload in frames":  {opaque(nil, 0, 1), [][]byte{abc, abc}, false},
		"payload of nothing": {opaque(nil, 0), [][]byte{{}}, false},
	} {
		header, err := proto.Marshal(c.v)
		if err != nil {
			t.Fatal(err)
		}
		b, ok := Inline(header, c.frames)
		if ok != c.ok {
			t.Errorf("%s: %v", name, ok)
			continue
		}
		if !ok {
			continue
		}
		if again, ok := Inline(b, nil); !ok || !bytes.Equal(again, b) {
			t.Errorf("%s: the result refers to frames", name)
		}
		var v millracev1.Value
		if err := proto.Unmarshal(b, &v); err != nil || bytes.Count(b, abc) == 0 && c.frames[0] != nil && len(c.frames[0]) == 3 {
			t.Errorf("%s: %v, %v", name, err, &v)
		}
	}
	if _, ok := Inline([]byte{0xff}, [][]byte{abc}); ok {
		t.Error("garbage was inlined")
	}
}
