package millrace

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// specOf encodes a task with these arguments, and returns what the scheduler decodes.
func specOf(t *testing.T, args Arguments) (*millracev1.TaskSpec, *millracev1.Arguments) {
	t.Helper()
	var in inputList
	packed, err := appendArguments(nil, args, &in)
	if err != nil {
		t.Fatal(err)
	}
	var request millracev1.SubmitRequest
	if err := proto.Unmarshal(appendSpec(nil, "k", 3, in.keys, in.items, packed, 1, true), &request); err != nil {
		t.Fatal(err)
	}
	var decoded millracev1.Arguments
	if err := proto.Unmarshal(packed, &decoded); err != nil {
		t.Fatal(err)
	}
	return request.GetTasks()[0], &decoded
}

// Each distinct item is an input of its own, and so is the whole list.
func TestItemsAreInputs(t *testing.T) {
	f := &Future{key: "f"}
	spec, args := specOf(t, Args(Key("f"), f.Item(2, 10), Key("g").Item(0, 0), []Item{f.Item(2, 10), f.Item(300, 1000)}, f))
	want := &millracev1.TaskSpec{
		Key: "k", OpIndex: proto.Uint32(3), Inputs: []string{"f", "f", "g", "f"}, PackedArguments: spec.GetPackedArguments(), OptionsIndex: 1, Hold: true,
		Items: []*millracev1.ItemInput{{Input: 1, Item: 2, Count: 10}, {Input: 2}, {Input: 3, Item: 300, Count: 1000}},
	}
	if !proto.Equal(spec, want) {
		t.Errorf("the task is %v, want %v", spec, want)
	}
	var numbers []uint32
	for _, v := range args.GetPositional() {
		if list := v.GetListValue(); list != nil {
			numbers = append(numbers, list.GetValues()[0].GetInput(), list.GetValues()[1].GetInput())
		} else {
			numbers = append(numbers, v.GetInput())
		}
	}
	if got := fmt.Sprint(numbers); got != "[0 1 2 1 3 0]" {
		t.Errorf("the arguments refer to the inputs %s", got)
	}
}

// Many inputs are found by an index, which tells items apart, too.
func TestManyItems(t *testing.T) {
	var all []any
	for range 2 {
		for i := range 40 {
			all = append(all, Key("list").Item(i, 40))
		}
		all = append(all, Key("list"))
	}
	spec, _ := specOf(t, Args(all...))
	if len(spec.GetInputs()) != 41 || len(spec.GetItems()) != 40 || spec.GetItems()[39].GetItem() != 39 || spec.GetItems()[39].GetInput() != 39 {
		t.Errorf("%d inputs, items %v", len(spec.GetInputs()), spec.GetItems())
	}
}

func TestImpossibleItems(t *testing.T) {
	var none *Future
	for _, c := range []struct {
		item Item
		want string
	}{
		{Key("a").Item(-1, 0), "item -1 of 0"},
		{Key("a").Item(3, 3), "item 3 (counted from 0) of a list of 3"},
		{Key("a").Item(0, -1), "of a list of -1"},
		{Key("a").Item(1<<24, 0), "below 16777216"},
		{none.Item(0, 1), "nil *Future"},
		{Item{}, "by the method Item"},
	} {
		if _, err := appendArguments(nil, Args(c.item), new(inputList)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.item, err, c.want)
		}
	}
	if _, err := appendValue(nil, Key("a").Item(0, 1), nil); err == nil || !strings.Contains(err.Error(), "not allowed here") {
		t.Errorf("outside of arguments: %v", err)
	}
}
