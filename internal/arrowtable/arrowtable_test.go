package arrowtable

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"
)

// samples are columns as JSON, all of three rows.
var samples = []struct {
	kind arrow.DataType
	rows string
}{
	{arrow.Null, `[null, null, null]`},
	{arrow.FixedWidthTypes.Boolean, `[true, null, false]`},
	{arrow.PrimitiveTypes.Int8, `[1, null, -3]`},
	{arrow.PrimitiveTypes.Uint64, `[1, 2, 3]`},
	{arrow.PrimitiveTypes.Float64, `[1.5, null, 3]`},
	{arrow.FixedWidthTypes.Float16, `[1.5, null, 3]`},
	{&arrow.Decimal128Type{Precision: 10, Scale: 2}, `["1.50", null, "3.00"]`},
	{&arrow.Decimal256Type{Precision: 50, Scale: 2}, `["1.50", null, "3.00"]`},
	{arrow.FixedWidthTypes.Date32, `["2026-01-02", null, "2026-01-03"]`},
	{arrow.FixedWidthTypes.Timestamp_us, `[1, null, 3]`},
	{arrow.FixedWidthTypes.Duration_ns, `[1, null, 3]`},
	{arrow.FixedWidthTypes.MonthInterval, `[{"months": 1}, null, {"months": 3}]`},
	{&arrow.FixedSizeBinaryType{ByteWidth: 3}, `["YWJj", null, "ZGVm"]`},
	{arrow.BinaryTypes.String, `["a", null, "longer than twelve bytes"]`},
	{arrow.BinaryTypes.LargeBinary, `["YWJj", null, "ZGVmZw=="]`},
	{arrow.BinaryTypes.StringView, `["a", null, "longer than twelve bytes"]`},
	{arrow.ListOf(arrow.BinaryTypes.String), `[["a", null], null, []]`},
	{arrow.LargeListOf(arrow.PrimitiveTypes.Int16), `[[1, null], null, [3]]`},
	{arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int32), `[[1, 2], null, [5, 6]]`},
	{arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32), `[[{"key": "a", "value": 1}], null, []]`},
	{arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, arrow.Field{Name: "y", Type: dictionary, Nullable: true}), `[{"x": 1, "y": "a"}, null, {"x": null, "y": "b"}]`},
	{dictionary, `["a", null, "b"]`},
	{arrow.RunEndEncodedOf(arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.String), `["a", "a", null]`},
	{extensions.NewUUIDType(), `["00000000-0000-0000-0000-000000000001", null, "00000000-0000-0000-0000-000000000002"]`},
}

var dictionary = &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}

// table returns columns of all samples; fields and table have metadata.
func table(tb testing.TB) arrow.RecordBatch {
	tb.Helper()
	var fields []arrow.Field
	var columns []arrow.Array
	for _, s := range samples {
		column, _, err := array.FromJSON(memory.DefaultAllocator, s.kind, strings.NewReader(s.rows))
		if err != nil {
			tb.Fatalf("%s: %v", s.kind, err)
		}
		fields = append(fields, arrow.Field{Name: s.kind.String(), Type: s.kind, Nullable: true, Metadata: arrow.MetadataFrom(map[string]string{"unit": "m"})})
		columns = append(columns, column)
	}
	meta := arrow.MetadataFrom(map[string]string{"pandas": "{}"})
	return array.NewRecordBatch(arrow.NewSchema(fields, &meta), columns, 3)
}

// written returns the layout and the frame of a batch.
func written(t interface{ Fatal(...any) }, batch arrow.RecordBatch) (Layout, []byte) {
	plan, err := NewPlan(batch, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	defer plan.Release()
	frame := bytes.Repeat([]byte{0xAA}, int(plan.FrameBytes))
	if err := plan.Write(frame, copied); err != nil {
		t.Fatal(err)
	}
	return plan.Layout, frame
}

func copied(to, from []byte) error {
	copy(to, from)
	return nil
}

func check(t interface{ Fatal(...any) }, batch arrow.RecordBatch) {
	layout, frame := written(t, batch)
	got, err := Read(layout, [][]byte{frame})
	switch {
	case err != nil:
		t.Fatal(err)
	case !got.Schema().Equal(batch.Schema()):
		t.Fatal("another schema: ", got.Schema())
	case !array.RecordEqual(got, batch):
		t.Fatal("another table: ", got, batch)
	}
	if err := CheckRows(got); err != nil {
		t.Fatal(err)
	}
}

func TestEveryTypeComesBack(t *testing.T) {
	batch := table(t)
	for from := range int64(4) {
		for to := from; to <= 3; to++ {
			check(t, batch.NewSlice(from, to))
		}
	}
}

func TestListViewsAreRefused(t *testing.T) {
	kind := arrow.ListOf(arrow.ListViewOf(arrow.PrimitiveTypes.Int16))
	column, _, err := array.FromJSON(memory.DefaultAllocator, kind, strings.NewReader(`[[[1, null]], null, []]`))
	if err != nil {
		t.Fatal(err)
	}
	batch := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "v", Type: kind, Nullable: true}}, nil), []arrow.Array{column}, 3)
	if _, err := NewPlan(batch, memory.DefaultAllocator); err == nil || !strings.Contains(err.Error(), "cast them to lists") {
		t.Errorf("error %v", err)
	}
}

func TestUnionsAndDictionariesOfDictionariesComeBack(t *testing.T) {
	ids, _, err := array.FromJSON(memory.DefaultAllocator, arrow.PrimitiveTypes.Int8, strings.NewReader(`[0, 1, 0]`))
	if err != nil {
		t.Fatal(err)
	}
	inner, _, err := array.FromJSON(memory.DefaultAllocator, dictionary, strings.NewReader(`["x", null, "y"]`))
	if err != nil {
		t.Fatal(err)
	}
	union, err := array.NewSparseUnionFromArrays(ids, []arrow.Array{ids, inner})
	if err != nil {
		t.Fatal(err)
	}
	pair := array.NewStructData(array.NewData(arrow.StructOf(arrow.Field{Name: "y", Type: dictionary, Nullable: true}), 3, []*memory.Buffer{nil}, []arrow.ArrayData{inner.Data()}, 0, 0))
	outer := array.NewDictionaryArray(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: pair.DataType()}, ids, pair)
	schema := arrow.NewSchema([]arrow.Field{{Name: "u", Type: union.DataType(), Nullable: true}, {Name: "d", Type: outer.DataType(), Nullable: true}}, nil)
	check(t, array.NewRecordBatch(schema, []arrow.Array{union, outer}, 3))
}

func TestRandomSlicesComeBack(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		numbers := array.NewInt64Builder(memory.DefaultAllocator)
		texts := array.NewStringBuilder(memory.DefaultAllocator)
		flags := array.NewBooleanBuilder(memory.DefaultAllocator)
		money := array.NewDecimal128Builder(memory.DefaultAllocator, &arrow.Decimal128Type{Precision: 20, Scale: 1})
		rows := rapid.IntRange(0, 300).Draw(r, "rows")
		for range rows {
			if rapid.Bool().Draw(r, "null") {
				numbers.AppendNull()
				texts.AppendNull()
				flags.AppendNull()
				money.AppendNull()
				continue
			}
			n := rapid.Int64().Draw(r, "number")
			numbers.Append(n)
			texts.Append(rapid.String().Draw(r, "text"))
			flags.Append(n%2 == 0)
			money.Append(decimal128.FromI64(n))
		}
		columns := []arrow.Array{numbers.NewArray(), texts.NewArray(), flags.NewArray(), money.NewArray()}
		var fields []arrow.Field
		for _, c := range columns {
			fields = append(fields, arrow.Field{Name: "c", Type: c.DataType(), Nullable: true})
		}
		batch := array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, int64(rows))
		from := rapid.IntRange(0, rows).Draw(r, "from")
		to := rapid.IntRange(from, rows).Draw(r, "to")
		check(r, batch.NewSlice(int64(from), int64(to)))
	})
}

func TestBuffersAreAlignedAndReadInPlace(t *testing.T) {
	layout, frame := written(t, table(t).NewSlice(1, 3))
	for i, b := range layout.Buffers {
		if b.Offset%Alignment != 0 {
			t.Errorf("buffer %d begins at %d", i, b.Offset)
		}
	}
	batch, err := Read(layout, [][]byte{frame})
	if err != nil {
		t.Fatal(err)
	}
	before := batch.Column(3).(*array.Uint64).Value(0)
	for i := range frame {
		frame[i] = 0
	}
	if after := batch.Column(3).(*array.Uint64).Value(0); before != 2 || after != 0 {
		t.Errorf("%d became %d: the bytes were copied", before, after)
	}
}

// TestLengthsInSchemasTakeNoMemory puts a large number into each place of a schema.
func TestLengthsInSchemasTakeNoMemory(t *testing.T) {
	layout, frame := written(t, table(t))
	schema := layout.Schema
	for at := prefixBytes; at+4 <= len(schema); at += 4 {
		layout.Schema = bytes.Clone(schema)
		copy(layout.Schema[at:], []byte{0xff, 0xff, 0x3f, 0})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = Read(layout, [][]byte{frame})
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
			t.Fatalf("a schema of %d bytes took %d with a length at %d", len(schema), n, at)
		}
	}
}

func TestWrongOffsetsAreFound(t *testing.T) {
	texts := array.NewStringBuilder(memory.DefaultAllocator)
	texts.AppendValues([]string{"a", "b", "c"}, nil)
	schema := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	layout, frame := written(t, array.NewRecordBatch(schema, []arrow.Array{texts.NewArray()}, 3))
	frame[layout.Buffers[1].Offset+5] = 16 // the first text ends 4,096 bytes later
	batch, err := Read(layout, [][]byte{frame})
	if err != nil {
		t.Fatal(err)
	}
	if CheckRows(batch) == nil {
		t.Error("no error")
	}
}

// FuzzRead changes numbers of a layout: Read must return an error or a table, and touch nothing
// outside of the frame.
func FuzzRead(f *testing.F) {
	layout, frame := written(f, table(f))
	f.Add(uint16(0), int64(-1), uint16(0), byte(0))
	f.Add(uint16(7), int64(1<<62), uint16(40), byte(255))
	f.Fuzz(func(t *testing.T, at uint16, to int64, place uint16, bits byte) {
		l := layout
		l.Schema, l.Nodes, l.Buffers, l.Variadic = bytes.Clone(l.Schema), append([]Node(nil), l.Nodes...), append([]Buffer(nil), l.Buffers...), append([]int64(nil), l.Variadic...)
		var numbers []*int64
		for i := range l.Nodes {
			numbers = append(numbers, &l.Nodes[i].Rows, &l.Nodes[i].Nulls)
		}
		for i := range l.Buffers {
			numbers = append(numbers, &l.Buffers[i].Offset, &l.Buffers[i].Bytes)
		}
		numbers = append(numbers, &l.Variadic[0], &l.Rows)
		*numbers[int(at)%len(numbers)] = to
		l.Schema[int(place)%len(l.Schema)] ^= bits
		if batch, err := Read(l, [][]byte{frame}); err == nil {
			_ = CheckRows(batch)
		}
	})
}
