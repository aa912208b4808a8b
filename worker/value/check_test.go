package value

import (
	"fmt"
	"math/big"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func of(t *millracev1.Tensor) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: t}}
}

func frame(i uint32) *millracev1.Tensor_Frame { return &millracev1.Tensor_Frame{Frame: i} }

func inlined(b ...byte) *millracev1.Tensor_InlineData {
	return &millracev1.Tensor_InlineData{InlineData: b}
}

func listOf(values ...*millracev1.Value) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: &millracev1.ListValue{Values: values}}}
}

func mapOf(key string, v *millracev1.Value) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_MapValue{MapValue: &millracev1.MapValue{Fields: map[string]*millracev1.Value{key: v}}}}
}

func nested(levels int, inside *millracev1.Value) *millracev1.Value {
	for range levels {
		inside = mapOf("k", inside)
	}
	return inside
}

const float64s, uint8s, int32s = millracev1.DType_DTYPE_FLOAT64, millracev1.DType_DTYPE_UINT8, millracev1.DType_DTYPE_INT32

// TestCheckNamesTheField: an accepted header has the field "".
func TestCheckNamesTheField(t *testing.T) {
	for name, c := range map[string]struct {
		v      *millracev1.Value
		frames []uint64
		field  string
	}{
		"null":                {&millracev1.Value{}, nil, ""},
		"array":               {of(&millracev1.Tensor{Dtype: float64s, Shape: []int64{2, 3}, Location: frame(0)}), []uint64{48}, ""},
		"scalar":              {of(&millracev1.Tensor{Dtype: float64s, Location: frame(0)}), []uint64{8}, ""},
		"inline":              {of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{1}, Location: inlined(1, 2, 3, 4)}), nil, ""},
		"nothing":             {of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{3, 0}}), nil, ""},
		"nothing in a frame":  {of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{0}, Location: frame(0)}), []uint64{0}, ""},
		"Fortran order":       {of(&millracev1.Tensor{Dtype: float64s, Shape: []int64{2, 3}, Strides: []int64{8, 16}, Location: frame(0)}), []uint64{48}, ""},
		"backwards":           {of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{3}, Strides: []int64{-4}, OffsetBytes: 8, Location: frame(0)}), []uint64{12}, ""},
		"behind a prefix":     {of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{2}, OffsetBytes: 128, Location: frame(0)}), []uint64{136}, ""},
		"one element, often":  {of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{1 << 40}, Strides: []int64{0}, Location: frame(0)}), []uint64{4}, ""},
		"two in one frame":    {listOf(of(&millracev1.Tensor{Dtype: uint8s, Shape: []int64{3}, Location: frame(0)}), of(&millracev1.Tensor{Dtype: uint8s, Shape: []int64{5}, Location: frame(0)})), []uint64{5}, ""},
		"payload":             {opaque(nil, 0, 1), []uint64{7, 0}, ""},
		"deep":                {nested(30, tensor(0)), []uint64{3}, ""},
		"missing frame":       {tensor(1), []uint64{3}, "header.tensor_value.frame"},
		"no frame":            {tensor(0), nil, "header.tensor_value.frame"},
		"surplus frame":       {tensor(0), []uint64{3, 4}, "frame_bytes[1]"},
		"only a frame":        {&millracev1.Value{}, []uint64{3}, "frame_bytes[0]"},
		"short frame":         {tensor(0), []uint64{2}, "header.tensor_value.shape"},
		"long frame":          {tensor(0), []uint64{4}, "frame_bytes[0]"},
		"empty, and bytes":    {of(&millracev1.Tensor{Dtype: uint8s, Shape: []int64{0}, Location: frame(0)}), []uint64{4}, "frame_bytes[0]"},
		"no dtype":            {of(&millracev1.Tensor{Shape: []int64{3}, Location: frame(0)}), []uint64{3}, "header.tensor_value.dtype"},
		"no dtype, empty":     {of(&millracev1.Tensor{Shape: []int64{0}}), nil, "header.tensor_value.dtype"},
		"unknown dtype":       {of(&millracev1.Tensor{Dtype: 9, Shape: []int64{3}, Location: frame(0)}), []uint64{3}, "header.tensor_value.dtype"},
		"negative":            {of(&millracev1.Tensor{Dtype: uint8s, Shape: []int64{1, -3}, Location: frame(0)}), []uint64{3}, "header.tensor_value.shape[1]"},
		"negative and empty":  {of(&millracev1.Tensor{Dtype: uint8s, Shape: []int64{0, -3}}), nil, "header.tensor_value.shape[1]"},
		"overflow":            {of(&millracev1.Tensor{Dtype: float64s, Shape: []int64{1 << 32, 1 << 32}, Location: frame(0)}), []uint64{8}, "header.tensor_value.shape"},
		"axes":                {of(&millracev1.Tensor{Dtype: uint8s, Shape: make([]int64, 65)}), nil, "header.tensor_value.shape"},
		"strides":             {of(&millracev1.Tensor{Dtype: uint8s, Shape: []int64{3}, Strides: []int64{1, 1}, Location: frame(0)}), []uint64{3}, "header.tensor_value.strides"},
		"long strides":        {of(&millracev1.Tensor{Dtype: uint8s, Shape: []int64{3}, Strides: []int64{2}, Location: frame(0)}), []uint64{4}, "header.tensor_value.shape"},
		"huge strides":        {of(&millracev1.Tensor{Dtype: uint8s, Shape: []int64{3}, Strides: []int64{1 << 62}, Location: frame(0)}), []uint64{4}, "header.tensor_value.shape"},
		"before the frame":    {of(&millracev1.Tensor{Dtype: uint8s, Shape: []int64{3}, Strides: []int64{-1}, Location: frame(0)}), []uint64{3}, "header.tensor_value.strides"},
		"odd stride":          {of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{2}, Strides: []int64{5}, Location: frame(0)}), []uint64{9}, "header.tensor_value.strides[0]"},
		"odd offset":          {of(&millracev1.Tensor{Dtype: int32s, OffsetBytes: 2, Location: frame(0)}), []uint64{6}, "header.tensor_value.offset_bytes"},
		"offset":              {of(&millracev1.Tensor{Dtype: int32s, OffsetBytes: 8, Location: frame(0)}), []uint64{8}, "header.tensor_value.offset_bytes"},
		"elements nowhere":    {of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{2}}), nil, "header.tensor_value.frame"},
		"short inline":        {of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{2}, Location: inlined(1, 2, 3, 4)}), nil, "header.tensor_value.shape"},
		"long inline":         {of(&millracev1.Tensor{Dtype: int32s, Location: inlined(1, 2, 3, 4, 5)}), nil, "header.tensor_value.inline_data"},
		"large inline":        {of(&millracev1.Tensor{Dtype: uint8s, Shape: []int64{maxInlineTensor + 1}, Location: inlined(make([]byte, maxInlineTensor+1)...)}), nil, "header.tensor_value.inline_data"},
		"input":               {listOf(&millracev1.Value{}, mapOf("a", &millracev1.Value{Kind: &millracev1.Value_Input{}})), nil, `header.list_value.values[1].map_value.fields["a"].input`},
		"payload's frame":     {opaque(nil, 0, 2), []uint64{7, 0}, "header.opaque_value.frames"},
		"payload of nothing":  {opaque(nil), nil, "header.opaque_value.data"},
		"payload, no name":    {&millracev1.Value{Kind: &millracev1.Value_OpaqueValue{OpaqueValue: &millracev1.Opaque{Data: []byte("x")}}}, nil, "header.opaque_value.encoding"},
		"device frames":       {&millracev1.Value{Kind: &millracev1.Value_OpaqueValue{OpaqueValue: &millracev1.Opaque{Encoding: "e", Frames: []uint32{0}, DeviceFrames: []uint32{1}}}}, []uint64{1}, "header.opaque_value.device_frames"},
		"deeper than readers": {nested(31, tensor(0)), []uint64{3}, "header" + strings.Repeat(`.map_value.fields["k"]`, 30) + ".map_value"},
	} {
		header, err := proto.Marshal(c.v)
		if err != nil {
			t.Fatal(err)
		}
		field := ""
		if fault := Check(header, c.frames); fault != nil {
			field = fault.Field
		}
		if field != c.field {
			t.Errorf("%s: the fault is in %q, not in %q", name, field, c.field)
		}
	}
	for name, header := range map[string]string{
		"no message":   "no message at all",
		"cut":          "\x4a\x05\x08",
		"unknown kind": "\x68\x01",
		"two kinds":    "\x10\x01\x18\x01",
		"wrong type":   "\x12\x01a",
		"no UTF-8":     "\x2a\x01\xff",
	} {
		if fault := Check([]byte(header), nil); fault == nil || fault.Field != "header" && fault.Field != "header.string_value" {
			t.Errorf("%s: %v", name, fault)
		}
	}
}

// valid draws a value with frames that fit, and appends their sizes to frames.
func valid(t *rapid.T, depth int, frames *[]uint64) *millracev1.Value {
	kind := rapid.IntRange(0, 5).Draw(t, "kind")
	switch {
	case kind == 0 && depth > 0:
		return listOf(valid(t, depth-1, frames), valid(t, depth-1, frames))
	case kind == 1 && depth > 0:
		return mapOf(rapid.String().Draw(t, "key"), valid(t, depth-1, frames))
	case kind == 2:
		*frames = append(*frames, rapid.Uint64Range(0, 1<<40).Draw(t, "bytes"))
		return opaque(nil, uint32(len(*frames)-1))
	case kind == 3:
		return &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: rapid.String().Draw(t, "text")}}
	}
	shape := rapid.SliceOfN(rapid.Int64Range(0, 1000), 0, 4).Draw(t, "shape")
	x := &millracev1.Tensor{Dtype: millracev1.DType(rapid.Int32Range(1, 8).Draw(t, "dtype")), Shape: shape, Location: frame(uint32(len(*frames)))}
	bytes := uint64(dtypes[x.GetDtype()].size)
	for _, n := range shape {
		bytes *= uint64(n)
	}
	*frames = append(*frames, bytes)
	return of(x)
}

// TestCheckAcceptsWhatFitsAndNothingElse draws values with their frames, and changes one size.
func TestCheckAcceptsWhatFitsAndNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var frames []uint64
		v := valid(t, 4, &frames)
		header, err := proto.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if fault := Check(header, frames); fault != nil {
			t.Fatalf("%v with frames %v: %v", v, frames, fault)
		}
		if fault := Check(header, append(frames, rapid.Uint64().Draw(t, "surplus"))); fault == nil {
			t.Fatalf("%v has no use for the last frame of %v", v, frames)
		}
		if len(frames) == 0 {
			return
		}
		if fault := Check(header, frames[:len(frames)-1]); fault == nil {
			t.Fatalf("%v has lost the last frame of %v", v, frames)
		}
		i := rapid.IntRange(0, len(frames)-1).Draw(t, "frame")
		if !framedByTensor(v, uint32(i)) {
			return
		}
		frames[i] += rapid.Uint64Range(1, 1<<20).Draw(t, "longer")
		if fault := Check(header, frames); fault == nil {
			t.Fatalf("%v with a longer frame %d: %v", v, i, frames)
		}
	})
}

func framedByTensor(v *millracev1.Value, i uint32) bool {
	found := false
	eachTensor(v, func(x *millracev1.Tensor) {
		if f, ok := x.GetLocation().(*millracev1.Tensor_Frame); ok && f.Frame == i {
			found = true
		}
	})
	return found
}

func eachTensor(v *millracev1.Value, do func(*millracev1.Tensor)) {
	switch k := v.GetKind().(type) {
	case *millracev1.Value_ListValue:
		for _, e := range k.ListValue.GetValues() {
			eachTensor(e, do)
		}
	case *millracev1.Value_MapValue:
		for _, e := range k.MapValue.GetFields() {
			eachTensor(e, do)
		}
	case *millracev1.Value_TensorValue:
		do(k.TensorValue)
	}
}

// eachBuffer calls do for each buffer of a table that has bytes, with the inline data of the table.
func eachBuffer(v *millracev1.Value, do func(b *millracev1.TableBuffer, inline []byte)) {
	for _, e := range v.GetListValue().GetValues() {
		eachBuffer(e, do)
	}
	for _, e := range v.GetMapValue().GetFields() {
		eachBuffer(e, do)
	}
	for _, b := range v.GetTableValue().GetBuffers() {
		if b.GetBytes() > 0 {
			do(b, v.GetTableValue().GetInlineData())
		}
	}
}

// inside checks a tensor with numbers of any size.
func inside(x *millracev1.Tensor, frames []uint64) error {
	room := uint64(len(x.GetInlineData()))
	if f, ok := x.GetLocation().(*millracev1.Tensor_Frame); ok {
		if uint64(f.Frame) >= uint64(len(frames)) {
			return fmt.Errorf("frame %d of %d", f.Frame, len(frames))
		}
		room = frames[f.Frame]
	}
	if x.GetDtype() < 1 || x.GetDtype() > 8 {
		return fmt.Errorf("dtype %d", x.GetDtype())
	}
	size := big.NewInt(dtypes[x.GetDtype()].size)
	low, high, step := new(big.Int).SetUint64(x.GetOffsetBytes()), new(big.Int).SetUint64(x.GetOffsetBytes()), new(big.Int).Set(size)
	for i := len(x.GetShape()) - 1; i >= 0; i-- {
		n := x.GetShape()[i]
		if n < 0 {
			return fmt.Errorf("shape %v", x.GetShape())
		}
		if n == 0 {
			return nil
		}
		reach := new(big.Int).Mul(big.NewInt(n-1), step)
		if len(x.GetStrides()) > 0 {
			reach.Mul(big.NewInt(n-1), big.NewInt(x.GetStrides()[i]))
		}
		step.Mul(step, big.NewInt(n))
		if reach.Sign() < 0 {
			low.Add(low, reach)
		} else {
			high.Add(high, reach)
		}
	}
	if high.Add(high, size); low.Sign() < 0 || high.Cmp(new(big.Int).SetUint64(room)) > 0 {
		return fmt.Errorf("bytes [%v, %v) of %d", low, high, room)
	}
	return nil
}

// FuzzCheck: an accepted header is a Value, and all elements of its tensors lie in their frames.
func FuzzCheck(f *testing.F) {
	for _, v := range []*millracev1.Value{
		listOf(tensor(0), mapOf("a", opaque(nil, 1))),
		of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{3, 1}, Strides: []int64{-4, 8}, OffsetBytes: 8, Location: frame(0)}),
		of(&millracev1.Tensor{Dtype: int32s, Shape: []int64{1}, Location: inlined(1, 2, 3, 4)}),
		table(0),
	} {
		header, err := proto.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(header, []byte{3, 12})
		f.Add(header, []byte{12})
		f.Add(header, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, header, sizes []byte) {
		var frames []uint64
		for len(sizes) > 0 {
			v, n := protowire.ConsumeVarint(sizes)
			if n < 0 {
				break
			}
			frames, sizes = append(frames, v), sizes[n:]
		}
		if Check(header, frames) != nil {
			return
		}
		var v millracev1.Value
		if err := proto.Unmarshal(header, &v); err != nil {
			t.Fatalf("accepted, and no Value: %v", err)
		}
		eachBuffer(&v, func(b *millracev1.TableBuffer, inline []byte) {
			room := uint64(len(inline))
			if room == 0 {
				if uint64(b.GetFrame()) >= uint64(len(frames)) {
					t.Fatalf("accepted: frame %d of %d", b.GetFrame(), len(frames))
				}
				room = frames[b.GetFrame()]
			}
			if b.GetOffsetBytes() > room || b.GetBytes() > room-b.GetOffsetBytes() {
				t.Errorf("accepted: %v of %d bytes", b, room)
			}
		})
		eachTensor(&v, func(x *millracev1.Tensor) {
			if err := inside(x, frames); err != nil {
				t.Errorf("accepted: %v: %v", x, err)
			}
		})
	})
}
