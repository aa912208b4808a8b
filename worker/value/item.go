package value

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
)

// Fields of the messages that Item reads in their serialised form.
const (
	valueList  = 7
	valueInput = 10
	listValues = 1
)

// notAList is the length that Absent reports of an object that is no list.
const notAList = math.MaxUint32

// Item returns the header of one item of a list with the given number of frames, and the frames to
// which the item refers, in ascending order: frame i in the header of the item is frame frames[i]
// of the list. The result is what the item would have been as an object of its own.
//
// If there is no such item, the header is one that says so, to Absent. It is an `input`, which no
// header of an object is. So it takes the same way to the reader of the item as any other header.
func Item(header []byte, count int, item ids.Item) (own []byte, frames []uint32) {
	own, length := find(header, item)
	switch {
	case own == nil:
		return absent(length), nil
	case len(own) == 0:
		return Null(), nil
	case count == 0:
		return own, nil
	}
	var v millracev1.Value
	if proto.Unmarshal(own, &v) != nil {
		return absent(notAList), nil
	}
	eachFrame(&v, func(f *uint32) { frames = append(frames, *f) })
	slices.Sort(frames)
	frames = slices.Compact(frames)
	switch {
	case len(frames) == 0:
		return own, nil
	case int(frames[len(frames)-1]) >= count:
		return absent(notAList), nil
	}
	eachFrame(&v, func(f *uint32) {
		number, _ := slices.BinarySearch(frames, *f)
		*f = uint32(number)
	})
	own, err := proto.MarshalOptions{Deterministic: true}.Marshal(&v)
	if err != nil {
		return absent(notAList), nil
	}
	return own, frames
}

// ItemOf returns one item of a list, without its other frames; the list itself if item is 0. A list
// whose header is not known stays as it is.
func ItemOf(list device.Input, item ids.Item) device.Input {
	if item == 0 || list.Header == nil {
		return list
	}
	header, numbers := Item(list.Header, len(list.Frames), item)
	part := device.Input{Header: header, Frames: make([]memory.Frame, len(numbers)), Space: list.Space}
	for i, n := range numbers {
		part.Frames[i] = list.Frames[n]
	}
	return part
}

// find returns the serialised item of a list, not nil if there is one, and otherwise nil and the
// length of the list.
func find(header []byte, item ids.Item) (found []byte, length uint64) {
	kind, rest, ok := next(header)
	if !ok || kind.number != valueList || kind.kind != protowire.BytesType || len(rest) > 0 {
		return nil, notAList
	}
	for b := kind.body; len(b) > 0; {
		var f field
		if f, b, ok = next(b); !ok {
			return nil, notAList
		}
		if f.number != listValues || f.kind != protowire.BytesType {
			continue
		}
		if length++; length == uint64(item) {
			return f.body[:len(f.body):len(f.body)], length
		}
	}
	return nil, length
}

// absent is the header of an item that a list of this length does not have.
func absent(length uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, valueInput, protowire.VarintType), length)
}

// Absent reports whether a header from Item says that there is no such item, and why, as the end of
// a sentence that begins with the object.
func Absent(header []byte) (why string, yes bool) {
	f, rest, ok := next(header)
	if !ok || f.number != valueInput || f.kind != protowire.VarintType || len(rest) > 0 {
		return "", false
	}
	if f.varint == notAList {
		return "is no list of typed values", true
	}
	return fmt.Sprintf("is a list of %d items", f.varint), true
}

// eachFrame calls of for each number of a frame in a value.
func eachFrame(v *millracev1.Value, of func(*uint32)) {
	switch k := v.GetKind().(type) {
	case *millracev1.Value_ListValue:
		for _, e := range k.ListValue.GetValues() {
			eachFrame(e, of)
		}
	case *millracev1.Value_MapValue:
		// order-free: the frames are sorted.
		for _, e := range k.MapValue.GetFields() {
			eachFrame(e, of)
		}
	case *millracev1.Value_TensorValue:
		if f, in := k.TensorValue.GetLocation().(*millracev1.Tensor_Frame); in {
			of(&f.Frame)
		}
	case *millracev1.Value_TableValue:
		if len(k.TableValue.GetInlineData()) > 0 {
			return
		}
		for _, b := range k.TableValue.GetBuffers() {
			if b.GetBytes() > 0 {
				of(&b.Frame)
			}
		}
	case *millracev1.Value_OpaqueValue:
		for i := range k.OpaqueValue.GetFrames() {
			of(&k.OpaqueValue.Frames[i])
		}
	}
}
