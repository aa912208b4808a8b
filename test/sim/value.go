package sim

import (
	"encoding/binary"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/worker/lifecycle"
)

// Each result is a list of itemsOfList items, which all have the value of its task: a small one has
// numbers, a large one has tensors, each in a frame of its own. So any result may serve as a list.
const itemsOfList = 4

// object names one generation of a result.
type object = ledger.ObjectID

// objectOf is the object that an attempt makes.
func objectOf(r lifecycle.Ref) object { return object{Task: r.Task, Generation: r.Attempt} }

// items makes every second input of every third task an item. It draws no random number, so that
// other choices of a seed stay.
func (s *spec) items() (items []sched.ItemInput) {
	for i := s.index % 2; i < len(s.inputs) && s.index%3 == 0; i += 2 {
		items = append(items, sched.ItemInput{Input: uint32(i), Item: ids.Item(1 + s.index%itemsOfList), Count: itemsOfList})
	}
	return items
}

// framesOf are the sizes of the frames of a result; none of a small one.
func framesOf(bytes uint64) []uint64 {
	if bytes == 0 {
		return nil
	}
	part := bytes / itemsOfList
	return []uint64{part, part, part, bytes - 3*part}
}

// headerOf is the header of a result whose frames have these sizes; without frames it is the whole
// result.
func headerOf(v uint64, frames []uint64) []byte {
	list := &millracev1.ListValue{}
	for i := range itemsOfList {
		item := &millracev1.Value{Kind: &millracev1.Value_IntValue{IntValue: int64(v)}}
		if frames != nil {
			item.Kind = &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
				Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{int64(frames[i])}, Location: &millracev1.Tensor_Frame{Frame: uint32(i)},
			}}
		}
		list.Values = append(list.Values, item)
	}
	header, err := proto.Marshal(&millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: list}})
	if err != nil {
		panic(err)
	}
	return header
}

// valueOf reads a result, or an item of one. frame returns the content of a frame; it may be nil if
// there are none.
func valueOf(header []byte, frame func(i uint32) (uint64, bool)) (uint64, bool) {
	var v millracev1.Value
	if proto.Unmarshal(header, &v) != nil {
		return 0, false
	}
	list, is := v.GetKind().(*millracev1.Value_ListValue)
	if !is {
		return itemValue(&v, frame)
	}
	var value uint64
	for i, item := range list.ListValue.GetValues() {
		x, ok := itemValue(item, frame)
		if !ok || i > 0 && x != value {
			return 0, false
		}
		value = x
	}
	return value, len(list.ListValue.GetValues()) == itemsOfList
}

func itemValue(v *millracev1.Value, frame func(i uint32) (uint64, bool)) (uint64, bool) {
	switch k := v.GetKind().(type) {
	case *millracev1.Value_IntValue:
		return uint64(k.IntValue), true
	case *millracev1.Value_TensorValue:
		switch at := k.TensorValue.GetLocation().(type) {
		case *millracev1.Tensor_Frame:
			if frame != nil {
				return frame(at.Frame)
			}
		case *millracev1.Tensor_InlineData:
			if len(at.InlineData) >= wordBytes {
				return binary.LittleEndian.Uint64(at.InlineData), true
			}
		}
	}
	return 0, false
}
