package ops

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/internal/arrowtable"
)

// tableOf returns a batch as a table with one frame, or none.
func tableOf(t *testing.T, batch arrow.RecordBatch) *Table {
	t.Helper()
	plan, err := arrowtable.NewPlan(batch, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	defer plan.Release()
	out := &Table{Layout: plan.Layout, TypeName: "T", Columns: arrowtable.Describe(batch.Schema()), ColumnCount: batch.Schema().NumFields()}
	frame, err := NewTensor(Uint8, []int64{plan.FrameBytes})
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Write(frame.Data, func(to, from []byte) error { copy(to, from); return nil }); err != nil {
		t.Fatal(err)
	}
	if plan.FrameBytes > 0 {
		out.Frames = []*Tensor{frame}
	}
	return out
}

// batches reads a stream of Arrow.
func batches(t *testing.T, name string) []arrow.RecordBatch {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", "tables", name))
	if err != nil {
		t.Fatal(err)
	}
	r, err := ipc.NewReader(bytes.NewReader(source))
	if err != nil {
		t.Fatal(err)
	}
	var all []arrow.RecordBatch
	for r.Next() {
		batch := r.RecordBatch()
		batch.Retain()
		all = append(all, batch)
	}
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	return all
}

func TestSlicesOfTablesArePolars(t *testing.T) {
	var cases [][]any
	source, err := os.ReadFile("testdata/tables/slices.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(source, &cases); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"arrow.arrow", "polars.arrow"} {
		t.Run(file, func(t *testing.T) {
			all := batches(t, file)
			if len(all) != len(cases)+1 {
				t.Fatalf("%d batches for %d cases", len(all), len(cases))
			}
			x := tableOf(t, all[0])
			for i, c := range cases {
				result, err := run(t, "table.slice", map[string]any{"start": c[0], "length": c[1]}, x)
				if err != nil {
					t.Errorf("%v: %v", c, err)
					continue
				}
				got := result.(*Table)
				rows, err := got.batch()
				if err != nil {
					t.Errorf("%v: %v", c, err)
					continue
				}
				if err := arrowtable.CheckRows(rows); err != nil {
					t.Errorf("%v: %v", c, err)
				}
				if !sameRows(rows, all[i+1]) {
					t.Errorf("%v: got %v, want %v", c, rows, all[i+1])
				}
				if !bytes.Equal(got.Layout.Schema, x.Layout.Schema) || got.TypeName != "T" || len(got.Columns) != x.ColumnCount {
					t.Errorf("%v: the table lost its schema, its type or its description: %+v", c, got)
				}
			}
		})
	}
}

// sameRows compares batches. Dictionaries may have further values.
func sameRows(a, b arrow.RecordBatch) bool {
	if !a.Schema().Equal(b.Schema()) || a.NumRows() != b.NumRows() {
		return false
	}
	for i, x := range a.Columns() {
		y := b.Column(i)
		if x.DataType().ID() != arrow.DICTIONARY {
			if !array.Equal(x, y) {
				return false
			}
			continue
		}
		for row := range x.Len() {
			if x.IsNull(row) != y.IsNull(row) || x.ValueStr(row) != y.ValueStr(row) {
				return false
			}
		}
	}
	return true
}

func TestASliceHasBytesOfItsRowsOnly(t *testing.T) {
	texts := array.NewStringBuilder(memory.DefaultAllocator)
	for range 1000 {
		texts.Append(strings.Repeat("x", 100))
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	x := tableOf(t, array.NewRecordBatch(schema, []arrow.Array{texts.NewArray()}, 1000))
	result, err := run(t, "table.slice", nil, x, int64(500), int64(10))
	if err != nil {
		t.Fatal(err)
	}
	if got := result.(*Table).Frames[0].Bytes(); got != 64+1024 { // 11 offsets and 1,000 bytes of text
		t.Errorf("a slice of 10 rows has %d bytes", got)
	}
}

func TestTablesPassThroughOtherOperations(t *testing.T) {
	x := tableOf(t, batches(t, "arrow.arrow")[0])
	want, err := x.batch()
	if err != nil {
		t.Fatal(err)
	}
	made, err := run(t, "core.list", nil, x, []any{x})
	if err != nil {
		t.Fatal(err)
	}
	list := made.([]any)
	for _, got := range []*Table{list[0].(*Table), list[1].([]any)[0].(*Table)} {
		rows, err := got.batch()
		if err != nil || !array.RecordEqual(rows, want) || got.Frames[0] == x.Frames[0] {
			t.Errorf("%v: %v", err, rows)
		}
	}
	if _, err := run(t, "array.reduce", nil, x); err == nil || !strings.Contains(err.Error(), "expected a tensor, got a table of 21 rows") {
		t.Errorf("the sum of a table: %v", err)
	}
}

func TestMadeTables(t *testing.T) {
	flags := &Tensor{DType: Bool, Shape: []int64{11}, Strides: []int64{2}, Data: heapBytes(22)}
	for i := range 11 {
		flags.Data[2*i] = byte(i % 3 & 1)
	}
	numbers := make([]any, 11)
	for i := range numbers {
		numbers[i] = float64(i) / 2
	}
	result, err := run(t, "table.make", nil, map[string]any{"n": numbers, "f": flags})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := result.(*Table).batch()
	if err != nil {
		t.Fatal(err)
	}
	if err := arrowtable.CheckRows(rows); err != nil {
		t.Error(err)
	}
	for i := range 11 {
		if rows.Column(0).(*array.Boolean).Value(i) != (i%3 == 1) || rows.Column(1).(*array.Float64).Value(i) != float64(i)/2 {
			t.Errorf("row %d: %v", i, rows)
		}
	}
	for _, empty := range []map[string]any{{}, {"a": []any{}}} {
		if _, err := run(t, "table.make", nil, empty); err != nil {
			t.Errorf("%v: %v", empty, err)
		}
	}
	for why, columns := range map[string]any{
		"a map from names":       []any{int64(1)},
		"has 1 values":           map[string]any{"a": []any{int64(1), int64(2)}, "b": []any{int64(1)}},
		"of type complex128":     map[string]any{"a": []any{complex(1, 2)}},
		"expected one axis":      map[string]any{"a": int64(1)},
		"larger than any memory": map[string]any{"a": everywhere(Float64, 1<<55), "b": everywhere(Float64, 1<<55), "c": everywhere(Float64, 1<<55)},
	} {
		if _, err := run(t, "table.make", nil, columns); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v: %v", columns, err)
		}
	}
}

// TestHostileTablesAreRefused: any program may have written a table.
func TestHostileTablesAreRefused(t *testing.T) {
	good := tableOf(t, batches(t, "arrow.arrow")[0])
	slice := func(x *Table) (any, error) {
		return runLimited(t.Context(), tableSlice(t), Args{Positional: []any{x, int64(1), int64(3)}})
	}
	if _, err := slice(good); err != nil {
		t.Fatal(err)
	}
	changed := func(change func(*Table)) *Table {
		x := *good
		x.Layout.Nodes = append([]arrowtable.Node(nil), good.Layout.Nodes...)
		x.Layout.Buffers = append([]arrowtable.Buffer(nil), good.Layout.Buffers...)
		frame := *good.Frames[0]
		frame.Data = bytes.Clone(frame.Data)
		x.Frames = []*Tensor{&frame}
		change(&x)
		return &x
	}
	for name, x := range map[string]*Table{
		"no schema":  changed(func(x *Table) { x.Layout.Schema = nil }),
		"few nodes":  changed(func(x *Table) { x.Layout.Nodes = x.Layout.Nodes[1:] }),
		"no frame":   changed(func(x *Table) { x.Frames = nil }),
		"outside":    changed(func(x *Table) { x.Layout.Buffers[1].Offset = 1 << 40 }),
		"many rows":  changed(func(x *Table) { x.Layout.Rows = 1 << 40 }),
		"short":      changed(func(x *Table) { x.Layout.Buffers[1].Bytes = 8 }),
		"huge nodes": changed(func(x *Table) { x.Layout.Nodes[0].Rows = 1 << 62 }),
		"negative":   changed(func(x *Table) { x.Layout.Rows = -1 }),
		"gaps":       changed(func(x *Table) { x.Frames = []*Tensor{everywhere(Uint8, 1000)} }),
	} {
		_, err := slice(x)
		if ours := (*Error)(nil); !errors.As(err, &ours) || ours.Kind != BadArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Wrong offsets inside of buffers are an error or give a result, and take little memory.
	for at := 0; at < len(good.Frames[0].Data); at += 29 {
		_, err := slice(changed(func(x *Table) { x.Frames[0].Data[at] ^= 0x7f }))
		refused(t, "a changed byte", err)
	}
}

func TestSlicesOfTablesKeepTheLimits(t *testing.T) {
	texts := array.NewStringBuilder(memory.DefaultAllocator)
	for range 1 << 20 {
		texts.Append("a")
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	x := tableOf(t, array.NewRecordBatch(schema, []arrow.Array{texts.NewArray()}, 1<<20))
	env := Env{Scratch: &limited{1 << 20}} // the shifted offsets take 4 MiB
	_, err := tableSlice(t).Run(WithEnv(t.Context(), env), Args{Positional: []any{x, int64(1)}}, NewTensor)
	if !errors.Is(err, ErrNoScratch) {
		t.Errorf("with too little working memory: %v", err)
	}
}

func tableSlice(t *testing.T) *Op {
	t.Helper()
	op, err := NewRegistry().Lookup("table.slice")
	if err != nil {
		t.Fatal(err)
	}
	return op
}
