package rpc

import (
	"slices"
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
)

// plain must check all fields of TaskSpec that have rules: this test fails if another field gets
// one.
func TestPlainKnowsAllRulesOfTasks(t *testing.T) {
	var ruled, nested []string
	fields := (&pb.TaskSpec{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if proto.HasExtension(f.Options(), validate.E_Field) {
			ruled = append(ruled, string(f.Name()))
		}
		if f.Kind() == protoreflect.MessageKind {
			nested = append(nested, string(f.Name()))
		}
	}
	if want := []string{"key", "op", "inputs"}; !slices.Equal(ruled, want) {
		t.Errorf("fields with rules are %v; plain looks at %v", ruled, want)
	}
	// It leaves arguments to the validator, and looks at items.
	if want := []string{"arguments", "items"}; !slices.Equal(nested, want) {
		t.Errorf("messages in it are %v; plain knows %v", nested, want)
	}
}

// The validator accepts every task that plain accepts, and reports faults as if plain did not
// exist.
func TestPlainAgreesWithTheRules(t *testing.T) {
	validator, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	v := validation{validator: validator}
	text := func(n int) string { return strings.Repeat("x", n) }
	good := &pb.TaskSpec{Key: "good", Op: "bench.noop", Inputs: []string{"a", "b"}, PackedArguments: []byte{1}}
	cases := []*pb.TaskSpec{
		{Key: "without an op"},
		{Key: "two ops", Op: "bench.noop", OpIndex: new(uint32)},
		{Key: "largest item", Op: "bench.noop", Inputs: []string{"a"}, Items: []*pb.ItemInput{{Item: 1<<24 - 1}}},
		{Key: "too large an item", Op: "bench.noop", Inputs: []string{"a"}, Items: []*pb.ItemInput{{}, {Item: 1 << 24}}},
	}
	for _, n := range []int{0, 1, 511, 512, 513, 1023, 1024, 1025} {
		cases = append(cases, &pb.TaskSpec{Key: text(n), OpIndex: new(uint32)}, &pb.TaskSpec{Key: "k", Op: text(n)}, &pb.TaskSpec{Key: "k", OpIndex: new(uint32), Inputs: []string{"a", text(n)}})
	}
	for _, bad := range cases {
		want := validator.Validate(&pb.SubmitRequest{Tasks: []*pb.TaskSpec{good, bad, good}})
		if got := plain([]*pb.TaskSpec{bad}); got != (want == nil) {
			t.Errorf("a key of %d, an op of %d and inputs %d are plain: %v; %v", len(bad.GetKey()), len(bad.GetOp()), len(bad.GetInputs()), got, want)
		}
		request := &pb.SubmitRequest{Tasks: []*pb.TaskSpec{good, bad, good}}
		before := proto.Clone(request)
		if err := v.check(t.Context(), request); (err == nil) != (want == nil) || err != nil && !strings.Contains(err.Error(), "tasks[1]") {
			t.Errorf("a key of %d, an op of %d and inputs %d: %v, the validator says %v", len(bad.GetKey()), len(bad.GetOp()), len(bad.GetInputs()), err, want)
		}
		if !proto.Equal(request, before) {
			t.Error("the request was changed")
		}
	}
	// It exceeds the limit in bytes, but not in characters.
	if err := v.check(t.Context(), &pb.SubmitRequest{Tasks: []*pb.TaskSpec{{Key: strings.Repeat("ü", 1000), OpIndex: new(uint32)}}}); err != nil {
		t.Error(err)
	}
	if plain([]*pb.TaskSpec{{Key: "k", OpIndex: new(uint32), Arguments: &pb.Arguments{}}}) {
		t.Error("typed arguments are plain")
	}
	twice := &pb.TaskSpec{Key: "k", OpIndex: new(uint32), Arguments: &pb.Arguments{}, PackedArguments: []byte{1}}
	if err := v.check(t.Context(), &pb.SubmitRequest{Tasks: []*pb.TaskSpec{twice}}); err == nil || !strings.Contains(err.Error(), "packed_arguments") {
		t.Errorf("arguments in both forms: %v", err)
	}
	if err := v.check(t.Context(), &pb.SubmitRequest{Tasks: slices.Repeat([]*pb.TaskSpec{good}, mostTasks+1)}); err == nil {
		t.Error("there may be any number of tasks")
	}
	if err := v.check(t.Context(), &pb.SubmitRequest{Tasks: []*pb.TaskSpec{good}, Header: &pb.SubmitHeader{Name: text(257)}}); err == nil {
		t.Error("the rest is not looked at")
	}
}
