package rpc

import pb "github.com/millrace/millrace/gen/go/millrace/v1"

// badInput returns the number of an input that typed arguments refer to but the task does not have;
// false if there is none.
func badInput(arguments *pb.Arguments, inputs uint32) (uint32, bool) {
	for _, v := range arguments.GetPositional() {
		if input, bad := badReference(v, inputs); bad {
			return input, true
		}
	}
	for _, v := range arguments.GetNamed() {
		if input, bad := badReference(v, inputs); bad {
			return input, true
		}
	}
	return 0, false
}

func badReference(v *pb.Value, inputs uint32) (uint32, bool) {
	switch kind := v.GetKind().(type) {
	case *pb.Value_Input:
		return kind.Input, kind.Input >= inputs
	case *pb.Value_ListValue:
		for _, element := range kind.ListValue.GetValues() {
			if input, bad := badReference(element, inputs); bad {
				return input, true
			}
		}
	case *pb.Value_MapValue:
		for _, element := range kind.MapValue.GetFields() {
			if input, bad := badReference(element, inputs); bad {
				return input, true
			}
		}
	}
	return 0, false
}
