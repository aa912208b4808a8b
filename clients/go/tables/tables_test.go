package tables

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	millrace "github.com/millrace/millrace/clients/go"
)

// batch returns rows of text, a list and a dictionary, with nulls.
func batch(t *testing.T) arrow.RecordBatch {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "list", Type: arrow.ListOf(arrow.PrimitiveTypes.Int16), Nullable: true},
		{Name: "kind", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, Nullable: true},
	}, nil)
	made, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(
		`[{"text": "a", "list": [1, null], "kind": "x"}, {"text": null, "list": null, "kind": null}, {"text": "ccc", "list": [], "kind": "y"}]`))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestTablesComeBack(t *testing.T) {
	for from := range int64(4) {
		want := batch(t).NewSlice(from, 3)
		table, err := New(want)
		if err != nil {
			t.Fatal(err)
		}
		inline := millrace.Table{Message: table.Message}
		for _, form := range []string{"in a frame", "inline"} {
			got, err := Read(table)
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			if !array.RecordEqual(got, want) || Check(got) != nil || table.Rows() != uint64(3-from) {
				t.Errorf("%s: got %v, want %v", form, got, want)
			}
			if len(table.Frames) > 0 {
				inline.Message.InlineData = table.Frames[0]
			}
			table = inline
		}
	}
}

func TestWrongTablesAreErrors(t *testing.T) {
	table, err := New(batch(t))
	if err != nil {
		t.Fatal(err)
	}
	table.Frames[0][table.Message.GetBuffers()[1].GetOffsetBytes()+5] = 16 // the first text ends 4,096 bytes later
	read, err := Read(table)
	if err != nil {
		t.Fatal(err)
	}
	if Check(read) == nil {
		t.Error("a wrong offset was not found")
	}
	for name, change := range map[string]func(*millrace.Table){
		"no frame":      func(t *millrace.Table) { t.Frames = nil },
		"a huge offset": func(t *millrace.Table) { t.Message.Buffers[1].OffsetBytes = 1 << 63 },
		"no schema":     func(t *millrace.Table) { t.Message.Schema = nil },
		"nothing":       func(t *millrace.Table) { t.Message = nil },
	} {
		wrong, err := New(batch(t))
		if err != nil {
			t.Fatal(err)
		}
		change(&wrong)
		if _, err := Read(wrong); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
