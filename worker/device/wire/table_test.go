package wire

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/arrowtable"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// bytesOf returns a tensor of n bytes, all of them with the same value.
func bytesOf(t *testing.T, n int64, value byte) *ops.Tensor {
	t.Helper()
	x, err := ops.NewTensor(ops.Uint8, []int64{n})
	if err != nil {
		t.Fatal(err)
	}
	for i := range x.Data {
		x.Data[i] = value
	}
	return x
}

func TestTablesTravel(t *testing.T) {
	layout := arrowtable.Layout{
		Rows: 3, Schema: []byte("schema"), Nodes: []arrowtable.Node{{Rows: 3, Nulls: 1}}, Variadic: []int64{0},
		Buffers: []arrowtable.Buffer{{Offset: 8, Bytes: 1}, {}, {Frame: 1, Offset: 64, Bytes: 100}},
	}
	one := layout
	one.Buffers = []arrowtable.Buffer{{Offset: 8, Bytes: 1}, {}, {Offset: 64, Bytes: 100}}
	for name, c := range map[string]struct {
		layout arrowtable.Layout
		frames []*ops.Tensor
		// stored is the number of frames of the object.
		stored int
	}{
		"small":                   {one, []*ops.Tensor{bytesOf(t, 200, 1)}, 0},
		"large":                   {one, []*ops.Tensor{bytesOf(t, InlineBytes+1, 1)}, 1},
		"two small frames":        {layout, []*ops.Tensor{bytesOf(t, 200, 1), bytesOf(t, 300, 2)}, 2},
		"a small and a large one": {layout, []*ops.Tensor{bytesOf(t, 200, 1), bytesOf(t, 3000, 2)}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var rooms [][]byte
			alloc := func(n uint64) (memory.Frame, error) {
				rooms = append(rooms, make([]byte, n))
				return memory.Frame{Offset: uint64(len(rooms) - 1), Bytes: n}, nil
			}
			view := func(_ memory.Space, f memory.Frame, x *ops.Tensor) { x.Data = rooms[f.Offset] }
			e := NewEncoder(nil, alloc, view, func(f memory.Frame, p []byte) error { copy(rooms[f.Offset], p); return nil })
			sent := &ops.Table{Layout: c.layout, Frames: c.frames, TypeName: "T", Columns: []arrowtable.Column{{Name: "a", Type: "int8"}}, ColumnCount: 300}
			result, err := e.Result([]any{sent})
			if err != nil {
				t.Fatal(err)
			}
			if len(result.Frames) != c.stored {
				t.Errorf("the object has %d frames, want %d", len(result.Frames), c.stored)
			}
			arguments, err := proto.Marshal(&millracev1.Arguments{Positional: []*millracev1.Value{{Kind: &millracev1.Value_Input{}}}})
			if err != nil {
				t.Fatal(err)
			}
			args, err := Arguments(device.Call{Op: "x", Arguments: arguments, Inputs: []device.Input{{Header: result.Header, Frames: result.Frames}}}, nil, view)
			if err != nil {
				t.Fatal(err)
			}
			got := args.Positional[0].([]any)[0].(*ops.Table)
			if !slices.Equal(got.Layout.Buffers, c.layout.Buffers) || !slices.Equal(got.Layout.Nodes, c.layout.Nodes) || !slices.Equal(got.Layout.Variadic, c.layout.Variadic) ||
				string(got.Layout.Schema) != "schema" || got.Layout.Rows != 3 || got.TypeName != "T" || !slices.Equal(got.Columns, sent.Columns) || got.ColumnCount != 300 {
				t.Errorf("got %+v", got)
			}
			for i, f := range got.Frames {
				if !slices.Equal(f.Data, c.frames[i].Data) {
					t.Errorf("frame %d has other bytes", i)
				}
			}
		})
	}
}

func TestTablesWithoutTheirFramesAreRefused(t *testing.T) {
	for why, table := range map[string]*millracev1.Table{
		"frame 2, which it does not have": {Buffers: []*millracev1.TableBuffer{{Frame: 2, Bytes: 1}}},
		"9223372036854775808 rows":        {Rows: 1 << 63},
		"9223372036854775808 bytes":       {Buffers: []*millracev1.TableBuffer{{Bytes: 1 << 63}}},
		"in 9223372036854775808 rows":     {Nodes: []*millracev1.TableNode{{Rows: 1 << 63}}},
	} {
		arguments, err := proto.Marshal(&millracev1.Arguments{Positional: []*millracev1.Value{{Kind: &millracev1.Value_TableValue{TableValue: table}}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Arguments(device.Call{Op: "x", Arguments: arguments}, nil, placed); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v: %v", table, err)
		}
	}
}
