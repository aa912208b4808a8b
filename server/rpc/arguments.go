package rpc

import (
	"fmt"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
)

// references bounds what typed values may refer to: inputs, and in templates holes.
type references struct{ inputs, holes uint32 }

// badArguments says to what typed arguments refer, but the task does not have; empty: to nothing.
func (r references) badArguments(arguments *pb.Arguments) string {
	for _, v := range arguments.GetPositional() {
		if bad := r.bad(v); bad != "" {
			return bad
		}
	}
	for _, v := range arguments.GetNamed() {
		if bad := r.bad(v); bad != "" {
			return bad
		}
	}
	return ""
}

// bad is badArguments for one value.
func (r references) bad(v *pb.Value) string {
	switch kind := v.GetKind().(type) {
	case *pb.Value_Input:
		if kind.Input >= r.inputs {
			return fmt.Sprintf("it refers to input %d, but the task has %d inputs (counted from 0)", kind.Input, r.inputs)
		}
	case *pb.Value_Hole:
		if kind.Hole >= r.holes {
			return fmt.Sprintf("it has hole %d, but there are %d in the template (counted from 0), and none outside of templates", kind.Hole, r.holes)
		}
	case *pb.Value_ListValue:
		for _, element := range kind.ListValue.GetValues() {
			if bad := r.bad(element); bad != "" {
				return bad
			}
		}
	case *pb.Value_MapValue:
		for _, element := range kind.MapValue.GetFields() {
			if bad := r.bad(element); bad != "" {
				return bad
			}
		}
	}
	return ""
}
