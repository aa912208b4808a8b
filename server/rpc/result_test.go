package rpc

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/sched"
)

// TestReadersOfOtherLanguagesCanReadResults: protobuf refuses more than 100 nested messages in
// Python and C++.
func TestReadersOfOtherLanguagesCanReadResults(t *testing.T) {
	nested := func(levels int, in func(*pb.Value) *pb.Value) *pb.Value {
		v := &pb.Value{}
		for range levels {
			v = in(v)
		}
		return v
	}
	list := func(v *pb.Value) *pb.Value {
		return &pb.Value{Kind: &pb.Value_ListValue{ListValue: &pb.ListValue{Values: []*pb.Value{v}}}}
	}
	mapped := func(v *pb.Value) *pb.Value {
		return &pb.Value{Kind: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: map[string]*pb.Value{"k": v}}}}
	}
	axes := make([]int64, 64)
	for i := range axes {
		axes[i] = 1
	}
	tensor := func(shape ...int64) *pb.Value {
		return &pb.Value{Kind: &pb.Value_TensorValue{TensorValue: &pb.Tensor{
			Dtype: pb.DType_DTYPE_UINT8, Shape: shape, Location: &pb.Tensor_InlineData{InlineData: []byte{1}},
		}}}
	}
	for name, test := range map[string]struct {
		value *pb.Value
		shown bool
	}{
		"lists":         {nested(maxValueLevels, list), true},
		"maps":          {nested(maxValueLevels, mapped), true},
		"deep lists":    {nested(maxValueLevels+1, list), false},
		"64 axes":       {tensor(axes...), false},
		"axes in lists": {list(tensor(axes[:maxValueLevels-1]...)), true},
		"empty":         {tensor(0, 1<<40), false},
	} {
		wire, err := proto.Marshal(test.value)
		if err != nil {
			t.Fatal(err)
		}
		response, err := resultOf(&sched.TaskInfo{}, &sched.Update{State: sched.TaskSucceeded, Inline: wire})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if shown := response.GetJson() != nil; shown != test.shown || !proto.Equal(response.GetValue(), test.value) {
			t.Errorf("%s: shown %t", name, shown)
		}
		if wire, err = proto.Marshal(response); err != nil {
			t.Fatal(err)
		}
		if err := (proto.UnmarshalOptions{RecursionLimit: 100}).Unmarshal(wire, &pb.GetResultResponse{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
