// Package value is an Interface: the operations on headers of results that a worker needs without
// running any code. They are functions of bytes, shared by the parts of the worker.
package value

import (
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// maxInlineTensor is the size limit of Tensor.inline_data and Table.inline_data.
const maxInlineTensor = 64 << 10

// Null returns the serialised null value, written out explicitly, because an empty result would
// look like a missing one.
func Null() []byte { return []byte{0x08, 0x00} }

// Inline converts a header with frames into a header that contains the frames' bytes. ok is false
// if that is impossible: a tensor is too large, or a table or a payload has parts that must stay
// separate.
func Inline(header []byte, frames [][]byte) (inline []byte, ok bool) {
	if len(frames) == 0 {
		return header, true
	}
	var v millracev1.Value
	if proto.Unmarshal(header, &v) != nil || !inlineValue(&v, frames) {
		return nil, false
	}
	b, err := proto.Marshal(&v)
	return b, err == nil
}

func inlineValue(v *millracev1.Value, frames [][]byte) bool {
	switch k := v.GetKind().(type) {
	case *millracev1.Value_ListValue:
		for _, e := range k.ListValue.GetValues() {
			if !inlineValue(e, frames) {
				return false
			}
		}
	case *millracev1.Value_MapValue:
		for _, e := range k.MapValue.GetFields() {
			if !inlineValue(e, frames) {
				return false
			}
		}
	case *millracev1.Value_TensorValue:
		if f, in := k.TensorValue.GetLocation().(*millracev1.Tensor_Frame); in {
			if int(f.Frame) >= len(frames) || len(frames[f.Frame]) > maxInlineTensor {
				return false
			}
			k.TensorValue.Location = &millracev1.Tensor_InlineData{InlineData: frames[f.Frame]}
		}
	case *millracev1.Value_TableValue:
		return inlineTable(k.TableValue, frames)
	case *millracev1.Value_OpaqueValue:
		o := k.OpaqueValue
		if len(o.GetFrames()) == 0 {
			return true
		}
		if len(o.GetFrames()) > 1 || o.GetData() != nil || int(o.GetFrames()[0]) >= len(frames) {
			return false
		}
		o.Data = frames[o.GetFrames()[0]]
		o.Frames = nil
		if len(o.Data) == 0 {
			return false
		}
	}
	return true
}

// inlineTable puts the frame of a table into its inline data, if all of its buffers have the same.
func inlineTable(t *millracev1.Table, frames [][]byte) bool {
	if len(t.GetInlineData()) > 0 {
		return true
	}
	frame := -1
	for _, b := range t.GetBuffers() {
		switch {
		case b.GetBytes() == 0:
		case frame < 0:
			frame = int(b.GetFrame())
		case frame != int(b.GetFrame()):
			return false
		}
	}
	if frame < 0 {
		return true
	}
	if frame >= len(frames) || len(frames[frame]) > maxInlineTensor {
		return false
	}
	t.InlineData = frames[frame]
	for _, b := range t.GetBuffers() {
		b.Frame = 0
	}
	return true
}
