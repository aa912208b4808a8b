package value

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
)

func list(values ...*millracev1.Value) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: &millracev1.ListValue{Values: values}}}
}

func number(n int64) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_IntValue{IntValue: n}}
}

func serialised(t *testing.T, v *millracev1.Value) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// An item has the form of an object of its own: its frames count from 0.
func TestItem(t *testing.T) {
	fields := &millracev1.Value{Kind: &millracev1.Value_MapValue{MapValue: &millracev1.MapValue{Fields: map[string]*millracev1.Value{
		"a": tensor(7), "b": list(opaque(nil, 5, 3, 5), number(9)),
	}}}}
	renumbered := &millracev1.Value{Kind: &millracev1.Value_MapValue{MapValue: &millracev1.MapValue{Fields: map[string]*millracev1.Value{
		"a": tensor(2), "b": list(opaque(nil, 1, 0, 1), number(9)),
	}}}}
	header := serialised(t, list(tensor(0), number(4), &millracev1.Value{}, opaque([]byte("x"), 1, 2), fields, tensor(6)))
	for i, want := range []struct {
		value  *millracev1.Value
		frames []uint32
	}{
		{tensor(0), []uint32{0}},
		{number(4), nil},
		{&millracev1.Value{Kind: &millracev1.Value_NullValue{}}, nil},
		{opaque([]byte("x"), 0, 1), []uint32{1, 2}},
		{renumbered, []uint32{3, 5, 7}},
		{tensor(0), []uint32{6}},
	} {
		own, frames := Item(header, 8, ids.Item(i+1))
		var got millracev1.Value
		if err := proto.Unmarshal(own, &got); err != nil {
			t.Fatalf("item %d: %v", i, err)
		}
		if !proto.Equal(&got, want.value) || !reflect.DeepEqual(frames, want.frames) {
			t.Errorf("item %d: %v with frames %v; want %v with %v", i, &got, frames, want.value, want.frames)
		}
		if why, absent := Absent(own); absent {
			t.Errorf("item %d: absent, because it %s", i, why)
		}
		if len(own) == 0 {
			t.Errorf("item %d: an empty header looks like none", i)
		}
	}
}

func TestAbsentItems(t *testing.T) {
	for name, c := range map[string]struct {
		header []byte
		count  int
		item   ids.Item
		why    string
	}{
		"beyond the end":  {serialised(t, list(number(1), number(2))), 0, 3, "is a list of 2 items"},
		"of an empty one": {serialised(t, list()), 0, 1, "is a list of 0 items"},
		"of a number":     {serialised(t, number(3)), 0, 1, "is no list of typed values"},
		"of a pickle":     {serialised(t, opaque([]byte("x"))), 0, 1, "is no list of typed values"},
		"of null":         {nil, 0, 1, "is no list of typed values"},
		"of garbage":      {[]byte{0x3a, 0xff}, 0, 1, "is no list of typed values"},
		"garbage in it":   {[]byte{0x3a, 3, 0x0a, 1, 0xff}, 1, 1, "is no list of typed values"},
		"without a frame": {serialised(t, list(tensor(0), tensor(2))), 2, 2, "is no list of typed values"},
	} {
		header, frames := Item(c.header, c.count, c.item)
		if why, absent := Absent(header); !absent || why != c.why || len(frames) > 0 {
			t.Errorf("an item %s: absent %v, because it %q, frames %v; want %q", name, absent, why, frames, c.why)
		}
	}
}

// The header of an object never says that an item is absent.
func TestHeadersOfObjectsAreNotAbsent(t *testing.T) {
	for _, v := range []*millracev1.Value{{}, number(1), list(), tensor(0), opaque([]byte("x"))} {
		if why, absent := Absent(serialised(t, v)); absent {
			t.Errorf("%v is absent, because it %s", v, why)
		}
	}
	if _, absent := Absent(Null()); absent {
		t.Error("null is absent")
	}
}
