package rpc

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/templates"
)

// Numbers of the fields of Arguments, ListValue and MapValue, and of those of Value that can have
// holes inside.
const (
	fieldPositional = 1
	fieldNamed      = 2
	fieldElements   = 1
	fieldEntries    = 1
	fieldOrder      = 2
	fieldEntryKey   = 1
	fieldEntryValue = 2
	fieldList       = 7
	fieldMap        = 8
)

// hasHole reports whether arguments have holes.
func hasHole(a *pb.Arguments) bool {
	return slices.ContainsFunc(a.GetPositional(), holed) || anyHoled(a.GetNamed())
}

func anyHoled(fields map[string]*pb.Value) bool {
	for _, v := range fields { // order-free: one is enough
		if holed(v) {
			return true
		}
	}
	return false
}

func holed(v *pb.Value) bool {
	switch kind := v.GetKind().(type) {
	case *pb.Value_Hole:
		return true
	case *pb.Value_ListValue:
		return slices.ContainsFunc(kind.ListValue.GetValues(), holed)
	case *pb.Value_MapValue:
		return anyHoled(kind.MapValue.GetFields())
	}
	return false
}

// depth returns the number of lists and maps that are inside of each other in arguments.
func depth(a *pb.Arguments) int {
	deepest := 0
	for _, v := range a.GetPositional() {
		deepest = max(deepest, levels(v))
	}
	for _, v := range a.GetNamed() { // order-free: the largest counts
		deepest = max(deepest, levels(v))
	}
	return deepest
}

func levels(v *pb.Value) int {
	deepest := -1
	switch kind := v.GetKind().(type) {
	case *pb.Value_ListValue:
		deepest = 0
		for _, element := range kind.ListValue.GetValues() {
			deepest = max(deepest, levels(element))
		}
	case *pb.Value_MapValue:
		deepest = 0
		for _, element := range kind.MapValue.GetFields() { // order-free: the largest counts
			deepest = max(deepest, levels(element))
		}
	}
	return deepest + 1
}

// piecesOf takes arguments with holes apart. Their bytes, with the holes filled, are those of the
// deterministic serialisation of the same arguments with the values themselves.
func piecesOf(a *pb.Arguments) ([]templates.Piece, error) {
	p := &pieces{}
	if depth(a) > maxValueLevels {
		return nil, fmt.Errorf("more than %d lists and maps are inside of each other: make the arguments flatter", maxValueLevels)
	}
	for _, v := range a.GetPositional() {
		p.value(fieldPositional, v)
	}
	p.entries(fieldNamed, a.GetNamed())
	if a.GetCall() != nil {
		p.err = errCallWithHoles
	}
	return p.done, p.err
}

var errCallWithHoles = invalid("call", "it replaces positional and named arguments, which must be empty")

// pieces is a message that is being taken apart.
type pieces struct {
	done []templates.Piece
	err  error
}

func (p *pieces) literal(b []byte) {
	if n := len(p.done); n > 0 && len(p.done[n-1].Literal) > 0 {
		p.done[n-1].Literal = append(p.done[n-1].Literal, b...)
		return
	}
	if len(b) > 0 {
		p.done = append(p.done, templates.Piece{Literal: b})
	}
}

// message adds a field with a message, which write writes.
func (p *pieces) message(field protowire.Number, write func(*pieces)) {
	p.literal(protowire.AppendTag(nil, field, protowire.BytesType))
	inside := &pieces{}
	write(inside)
	if inside.err != nil {
		p.err = inside.err
	}
	p.done = append(p.done, templates.Piece{Inside: inside.done})
}

func (p *pieces) value(field protowire.Number, v *pb.Value) {
	if !holed(v) {
		b := protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.BytesType), uint64(proto.Size(v)))
		b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, v)
		if err != nil {
			p.err = err
		}
		p.literal(b)
		return
	}
	switch kind := v.GetKind().(type) {
	case *pb.Value_Hole:
		p.literal(protowire.AppendTag(nil, field, protowire.BytesType))
		p.done = append(p.done, templates.Piece{Hole: kind.Hole})
	case *pb.Value_ListValue:
		p.message(field, func(p *pieces) {
			p.message(fieldList, func(p *pieces) {
				for _, element := range kind.ListValue.GetValues() {
					p.value(fieldElements, element)
				}
			})
		})
	case *pb.Value_MapValue:
		p.message(field, func(p *pieces) {
			p.message(fieldMap, func(p *pieces) {
				p.entries(fieldEntries, kind.MapValue.GetFields())
				for _, key := range kind.MapValue.GetOrder() {
					p.literal(protowire.AppendString(protowire.AppendTag(nil, fieldOrder, protowire.BytesType), key))
				}
			})
		})
	}
}

func (p *pieces) entries(field protowire.Number, fields map[string]*pb.Value) {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		entry := protowire.AppendString(protowire.AppendTag(nil, fieldEntryKey, protowire.BytesType), key)
		if v := fields[key]; !holed(v) {
			inside := &pieces{}
			inside.literal(entry)
			inside.value(fieldEntryValue, v)
			if inside.err != nil {
				p.err = inside.err
			}
			whole := inside.done[0].Literal
			p.literal(protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), whole))
			continue
		}
		p.message(field, func(p *pieces) {
			p.literal(entry)
			p.value(fieldEntryValue, fields[key])
		})
	}
}
