package ops

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/internal/arrowtable"
)

// TestRowsOfAllTables cuts tables of all types at random rows, also several times at one row, and
// compares the rows of the pieces together with those of the table.
func TestRowsOfAllTables(t *testing.T) {
	for name, batch := range map[string]arrow.RecordBatch{
		"arrow": batches(t, "arrow.arrow")[0], "polars": batches(t, "polars.arrow")[0], "unusual": unusual(t),
		"long": long(t, batches(t, "polars.arrow")[0], 3200), "many": long(t, batches(t, "arrow.arrow")[0], 50),
		"none": batches(t, "arrow.arrow")[0].NewSlice(0, 0),
	} {
		want := texts(batch)
		for _, n := range []int{1, 3, 40} {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				random := rand.New(rand.NewPCG(2, uint64(n)))
				cuts := []int64{0, batch.NumRows()}
				for range n - 1 {
					cuts = append(cuts, random.Int64N(batch.NumRows()+1))
				}
				slices.Sort(cuts)
				var parts []any
				for i := range n {
					if name == "unusual" { // arrow-go cannot write slices of unions
						parts = cut(t, tableOf(t, batch), cuts)
						break
					}
					parts = append(parts, tableOf(t, batch.NewSlice(cuts[i], cuts[i+1])))
				}
				result, err := runWith(t, Env{Cores: func() int { return 3 }}, "table.concat", nil, parts...)
				got := opRows(t, result, err)
				if !slices.Equal(texts(got), want) {
					t.Fatalf("cut at %v: got\n%v\nwant\n%v", cuts, texts(got), want)
				}
				for i, column := range got.Columns() {
					if column.NullN() != batch.Column(i).NullN() {
						t.Errorf("column %q has %d nulls, want %d", got.ColumnName(i), column.NullN(), batch.Column(i).NullN())
					}
				}
				table := result.(*Table)
				if len(table.Frames) > 1 || !bytes.Equal(table.Layout.Schema, parts[0].(*Table).Layout.Schema) || table.TypeName != "T" || table.ColumnCount != int(batch.NumCols()) {
					t.Errorf("%d frames, or the schema, the type or the description is lost", len(table.Frames))
				}
			})
		}
	}
}

// cut returns the rows of a table between cuts.
func cut(t *testing.T, x *Table, cuts []int64) []any {
	t.Helper()
	var numbers []any
	for i := range len(cuts) - 1 {
		numbers = append(numbers, slices.Repeat([]any{int64(i)}, int(cuts[i+1]-cuts[i]))...)
	}
	parts, err := run(t, "table.partition", map[string]any{"numbers": numbers}, x, nil, int64(len(cuts)-1))
	if err != nil {
		t.Fatal(err)
	}
	return parts.([]any)
}

// TestManyTablesOfRareTypes has more rows than one step writes.
func TestManyTablesOfRareTypes(t *testing.T) {
	const times = 1700
	x, err := run(t, "table.select", nil, tableOf(t, unusual(t)), []any{"sparse", "dense", "flags", "views", "nulls", "kinds", "wide"})
	if err != nil {
		t.Fatal(err)
	}
	one, err := x.(*Table).batch()
	if err != nil {
		t.Fatal(err)
	}
	result, err := runWith(t, Env{Cores: func() int { return 3 }}, "table.concat", nil, slices.Repeat([]any{x}, times))
	if got := opRows(t, result, err); !slices.Equal(texts(got), slices.Repeat(texts(one), times)) {
		t.Errorf("%d rows, or other ones", got.NumRows())
	}
}

// TestPiecesTogetherAreTheTable: an exchange gives the rows that Arrow's own concatenation gives,
// also if each piece has a dictionary of its own.
func TestPiecesTogetherAreTheTable(t *testing.T) {
	whole := tableOf(t, long(t, batches(t, "polars.arrow")[0], 30))
	split, err := run(t, "table.partition", nil, whole, nil, int64(100))
	if err != nil {
		t.Fatal(err)
	}
	var rows []arrow.RecordBatch
	for _, piece := range split.([]any) {
		batch, err := piece.(*Table).batch()
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, batch)
	}
	// A list among the arguments stands for its elements.
	result, err := run(t, "table.concat", nil, split.([]any)[0], split.([]any)[1:])
	got := opRows(t, result, err)
	for i, column := range got.Columns() {
		var parts []arrow.Array
		for _, batch := range rows {
			parts = append(parts, batch.Column(i))
		}
		want, err := array.Concatenate(parts, memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		if !sameColumn(column, want) {
			t.Errorf("column %q: got %v, want %v", got.ColumnName(i), column, want)
		}
		if d, ok := column.(*array.Dictionary); ok && d.Dictionary().Len() > 10 {
			t.Errorf("column %q has a dictionary of %d values", got.ColumnName(i), d.Dictionary().Len())
		}
	}
}

// encodedAs returns a table with one column of a dictionary, of codes; -1: null.
func encodedAs(t *testing.T, kind *arrow.DictionaryType, words []string, codes ...int) *Table {
	t.Helper()
	values := array.NewStringBuilder(memory.DefaultAllocator)
	values.AppendValues(words, nil)
	indices := array.NewInt8Builder(memory.DefaultAllocator)
	for _, code := range codes {
		if code < 0 {
			indices.AppendNull()
		} else {
			indices.Append(int8(code))
		}
	}
	column := array.NewDictionaryArray(kind, indices.NewArray(), values.NewArray())
	return tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "d", Type: kind, Nullable: true}}, nil), []arrow.Array{column}, int64(len(codes))))
}

func TestDictionariesBecomeOne(t *testing.T) {
	kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	ordered := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String, Ordered: true}
	result, err := run(t, "table.concat", nil,
		encodedAs(t, kind, []string{"a", "b"}, 1, 0, -1), encodedAs(t, kind, []string{"a", "b"}, 0),
		encodedAs(t, kind, []string{"b", "c", "a", "d"}, 3, 2, 1, 0), encodedAs(t, kind, nil), encodedAs(t, kind, []string{"d", "e"}, -1, 1, 0))
	got := opRows(t, result, err)
	if rows := strings.Join(texts(got), ""); rows != "|b|a|(null)|a|d|a|c|b|(null)|e|d" {
		t.Errorf("got %s", rows)
	}
	if d := fmt.Sprint(got.Column(0).(*array.Dictionary).Dictionary()); d != `["a" "b" "c" "d" "e"]` {
		t.Errorf("the dictionary is %s", d)
	}
	// An order stays if one dictionary continues the other.
	result, err = run(t, "table.concat", nil, encodedAs(t, ordered, []string{"x", "b"}, 1), encodedAs(t, ordered, []string{"x", "b", "a"}, 2, 0), encodedAs(t, ordered, []string{"x"}, 0))
	if d := fmt.Sprint(opRows(t, result, err).Column(0).(*array.Dictionary).Dictionary()); d != `["x" "b" "a"]` {
		t.Errorf("the ordered dictionary is %s", d)
	}
	_, err = run(t, "table.concat", nil, encodedAs(t, ordered, []string{"x", "b"}, 1), encodedAs(t, ordered, []string{"b", "x"}, 1))
	if err == nil || !strings.Contains(err.Error(), `column "d": its dictionary has an order, and that of table 1 has another one`) {
		t.Errorf("another order: %v", err)
	}
	var many, more []string
	for i := range 100 {
		many, more = append(many, fmt.Sprint("a", i)), append(more, fmt.Sprint("b", i))
	}
	_, err = run(t, "table.concat", nil, encodedAs(t, kind, many, 0), encodedAs(t, kind, more, 0))
	if err == nil || !strings.Contains(err.Error(), "200 categories, and its codes of type int8 can tell 128 apart") {
		t.Errorf("200 categories of 8 bits: %v", err)
	}
}

// TestDictionariesOfAllTypesBecomeOne concatenates dictionaries whose values are lists, views,
// numbers and flags, in one order and in the other.
func TestDictionariesOfAllTypesBecomeOne(t *testing.T) {
	for _, file := range []string{"arrow.arrow", "polars.arrow"} {
		from := batches(t, file)[0]
		for i, values := range from.Columns() {
			if values.DataType().ID() == arrow.DICTIONARY {
				continue
			}
			kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Uint16, ValueType: values.DataType()}
			var tables []any
			var want []string
			for _, part := range [][2]int64{{0, 9}, {4, 21}, {9, 9}, {3, 10}} {
				d := array.NewSlice(values, part[0], part[1])
				codes := array.NewUint16Builder(memory.DefaultAllocator)
				for code := d.Len() - 1; code >= 0; code-- {
					codes.Append(uint16(code))
					want = append(want, d.ValueStr(code))
				}
				column := array.NewDictionaryArray(kind, codes.NewArray(), d)
				tables = append(tables, tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "d", Type: kind}}, nil), []arrow.Array{column}, int64(column.Len()))))
			}
			result, err := run(t, "table.concat", nil, tables...)
			got := opRows(t, result, err).Column(0).(*array.Dictionary)
			for row := range want {
				if text := got.Dictionary().ValueStr(got.GetValueIndex(row)); text != want[row] {
					t.Errorf("column %q: row %d is %s, want %s", from.ColumnName(i), row, text, want[row])
				}
			}
			if got.Dictionary().Len() > 21 {
				t.Errorf("column %q: %d values for 21 rows", from.ColumnName(i), got.Dictionary().Len())
			}
		}
	}
}

// TestSharedTextStaysShared: views of one text do not become copies of it.
func TestSharedTextStaysShared(t *testing.T) {
	b := array.NewStringViewBuilder(memory.DefaultAllocator)
	b.Append(strings.Repeat("long", 1000))
	one := b.NewArray()
	rows := make([]any, 5000)
	for i := range rows {
		rows[i] = int64(0)
	}
	x := tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "v", Type: one.DataType()}}, nil), []arrow.Array{one}, 1))
	shared, err := run(t, "table.take", nil, x, rows)
	if err != nil {
		t.Fatal(err)
	}
	result, err := run(t, "table.concat", nil, x, shared, x, shared)
	got := opRows(t, result, err)
	if size := result.(*Table).Frames[0].Bytes(); size > 300_000 || got.NumRows() != 10_002 || got.Column(0).ValueStr(10_001) != one.ValueStr(0) {
		t.Errorf("%d rows in %d bytes", got.NumRows(), size)
	}
	result, err = run(t, "table.slice", nil, result, int64(0), int64(1))
	if err != nil {
		t.Fatal(err)
	}
	// Text that no view needs is left out.
	result, err = run(t, "table.concat", nil, result, x)
	if opRows(t, result, err); result.(*Table).Frames[0].Bytes() > 10_000 {
		t.Errorf("two rows in %d bytes", result.(*Table).Frames[0].Bytes())
	}
}

func TestTablesThatDoNotMatch(t *testing.T) {
	make := func(columns map[string]any) any {
		made, err := run(t, "table.make", nil, columns)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	a := make(map[string]any{"a": []any{int64(1)}, "b": []any{1.5}})
	swapped, err := run(t, "table.select", nil, a, []any{"b", "a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []any
		want string
	}{
		{nil, "give at least one table"},
		{[]any{a, int64(1)}, "argument tables[1]: expected a table, got 1"},
		{[]any{a, []any{a, "x"}}, `argument tables[2]: expected a table, got the string "x"`},
		{[]any{a, a, make(map[string]any{"a": []any{int64(1)}})}, `argument tables[2]: the table has no column "b", and tables[0] has one`},
		{[]any{a, make(map[string]any{"a": []any{int64(1)}, "c": []any{1.5}})}, `argument tables[1]: the table has no column "b"`},
		{[]any{a, make(map[string]any{"a": []any{int64(1)}, "b": []any{1.5}, "c": []any{1.5}})}, `argument tables[1]: the table has a column "c", and tables[0] has none`},
		{[]any{a, swapped}, `argument tables[1]: column 0 is "b", and that of tables[0] is "a": select the columns in the same order`},
		{[]any{a, make(map[string]any{"a": []any{1.5}, "b": []any{1.5}})}, `argument tables[1]: column "a" is of type float64, and that of tables[0] of type int64: cast one of them`},
	} {
		if _, err := run(t, "table.concat", nil, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

func TestNullsOfAnyTableMayBeInTheResult(t *testing.T) {
	table := func(nullable bool, values arrow.Array) *Table {
		meta := arrow.NewMetadata([]string{"unit"}, []string{fmt.Sprint(nullable)})
		schema := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int32, Nullable: nullable}}, &meta)
		return tableOf(t, array.NewRecordBatch(schema, []arrow.Array{values}, int64(values.Len())))
	}
	missing := array.NewInt32Builder(memory.DefaultAllocator)
	missing.AppendNull()
	result, err := run(t, "table.concat", nil, table(false, int32s(t, 1, 2)), table(true, missing.NewArray()))
	got := opRows(t, result, err)
	if unit, _ := got.Schema().Metadata().GetValue("unit"); !got.Schema().Field(0).Nullable || unit != "false" || strings.Join(texts(got), "") != "|1|2|(null)" {
		t.Errorf("%v of %v", got, got.Schema())
	}
}

func TestOffsetsReachAllRows(t *testing.T) {
	runs := array.NewRunEndEncodedArray(int16s(t, 20_000), int32s(t, 1), 20_000, 0)
	coded := tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "r", Type: runs.DataType()}}, nil), []arrow.Array{runs}, 20_000))
	_, err := run(t, "table.concat", nil, coded, coded)
	if err == nil || !strings.Contains(err.Error(), `column "r": the result has 40000 rows, and the ends of its runs reach to 32767`) {
		t.Errorf("runs of 16 bits: %v", err)
	}
	// The text of one table stands for that of many: nothing is allocated.
	words := array.NewStringBuilder(memory.DefaultAllocator)
	words.Append(strings.Repeat("t", 1<<20))
	text := tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String}}, nil), []arrow.Array{words.NewArray()}, 1))
	_, err = run(t, "table.concat", nil, slices.Repeat([]any{text}, 2048)...)
	if err == nil || !strings.Contains(err.Error(), `column "s": the result has 2147483648 bytes of text or elements, and the offsets of its type reach to 2147483647: cast the column to its large type`) {
		t.Errorf("text of 2 GiB: %v", err)
	}
}

func int16s(t *testing.T, values ...int16) arrow.Array {
	t.Helper()
	b := array.NewInt16Builder(memory.DefaultAllocator)
	b.AppendValues(values, nil)
	return b.NewArray()
}

// TestHostileTablesAreNotConcatenated: the bytes of one table are changed; dictionaries differ, so
// that their values are read.
func TestHostileTablesAreNotConcatenated(t *testing.T) {
	op, err := NewRegistry().Lookup("table.concat")
	if err != nil {
		t.Fatal(err)
	}
	step := 7
	if testing.Short() {
		step = 131
	}
	for _, batch := range []arrow.RecordBatch{batches(t, "arrow.arrow")[0], batches(t, "polars.arrow")[0], unusual(t)} {
		whole := tableOf(t, batch)
		good := cut(t, whole, []int64{0, 3, 9, batch.NumRows()})[1]
		for at := 0; at < len(whole.Frames[0].Data); at += step {
			for _, bit := range []byte{0x01, 0x80} {
				x := *whole
				frame := *whole.Frames[0]
				frame.Data = bytes.Clone(frame.Data)
				frame.Data[at] ^= bit
				x.Frames = []*Tensor{&frame}
				for _, args := range [][]any{{good, &x}, {&x, good}} {
					result, err := runLimited(t.Context(), op, Args{Positional: args})
					refused(t, "a changed byte", err)
					if rows, ok := result.(*Table); ok && err == nil {
						if _, err := rows.batch(); err != nil {
							t.Fatalf("byte %d: the result cannot be read: %v", at, err)
						}
					}
				}
			}
		}
	}
}

func TestConcatenationKeepsTheLimits(t *testing.T) {
	op, err := NewRegistry().Lookup("table.concat")
	if err != nil {
		t.Fatal(err)
	}
	kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.PrimitiveTypes.Int32}
	table := func(from int32) *Table {
		numbers := make([]int32, 1<<17)
		for i := range numbers {
			numbers[i] = from + int32(i)
		}
		column := array.NewDictionaryArray(kind, int32s(t, 0), int32s(t, numbers...))
		return tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "d", Type: kind}}, nil), []arrow.Array{column}, 1))
	}
	_, err = op.Run(WithEnv(t.Context(), Env{Scratch: &limited{1 << 20}}), Args{Positional: []any{table(0), table(7)}}, NewTensor)
	if !errors.Is(err, ErrNoScratch) {
		t.Errorf("with too little working memory: %v", err)
	}
	none := errors.New("no room for the result")
	_, err = op.Run(t.Context(), Args{Positional: []any{table(0), table(7)}}, func(DType, []int64) (*Tensor, error) { return nil, none })
	if !errors.Is(err, none) {
		t.Errorf("without memory for the result: %v", err)
	}
	// Without dictionaries that differ, no working memory is needed: rows are copied once.
	x := tableOf(t, long(t, batches(t, "arrow.arrow")[0], 200))
	result, err := op.Run(WithEnv(t.Context(), Env{Scratch: &limited{}}), Args{Positional: []any{x, x, x}}, NewTensor)
	if rows := opRows(t, result, err); rows.NumRows() != 3*21*200 {
		t.Errorf("%d rows", rows.NumRows())
	}
	if _, err := arrowtable.DecodeSchema(result.(*Table).Layout); err != nil {
		t.Error(err)
	}
}

// valueOf returns a table with one column of a dictionary, which has one value.
func valueOf(t *testing.T, value arrow.Array) *Table {
	t.Helper()
	kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: value.DataType()}
	column := array.NewDictionaryArray(kind, int32s(t, 0), value)
	return tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "d", Type: kind}}, nil), []arrow.Array{column}, 1))
}

// TestValuesOfDictionariesWithoutBytesAreLimited: a few bytes stand for a value of many elements.
func TestValuesOfDictionariesWithoutBytesAreLimited(t *testing.T) {
	op, err := NewRegistry().Lookup("table.concat")
	if err != nil {
		t.Fatal(err)
	}
	list := func(of arrow.DataType, elements int64) *Table {
		b := array.NewLargeListBuilder(memory.DefaultAllocator, of)
		b.Append(true)
		b.ValueBuilder().AppendEmptyValue()
		x := valueOf(t, b.NewArray())
		// The nodes are the codes, the lists and their elements, and buffer 3 has the offsets.
		x.Layout.Nodes[2].Rows = elements
		if of.ID() == arrow.NULL {
			x.Layout.Nodes[2].Nulls = elements
		}
		binary.LittleEndian.PutUint64(x.Frames[0].Data[x.Layout.Buffers[3].Offset+8:], uint64(elements))
		return x
	}
	fixed := func(value bool) *Table {
		kind := arrow.FixedSizeListOf(1<<31-1, arrow.Null)
		data := array.NewData(kind, 1, []*memory.Buffer{memory.NewBufferBytes([]byte{1})}, []arrow.ArrayData{array.NewNull(1<<31 - 1).Data()}, 0, 0)
		if !value {
			data = array.NewData(kind, 1, []*memory.Buffer{memory.NewBufferBytes([]byte{0})}, []arrow.ArrayData{array.NewNull(1<<31 - 1).Data()}, 1, 0)
		}
		return valueOf(t, array.NewFixedSizeListData(data))
	}
	nothing := arrow.StructOf()
	for _, c := range []struct {
		name   string
		tables []any
		want   string
	}{
		{"empty structs", []any{list(nothing, 1), list(nothing, 1<<45)}, `column "d": its dictionary has a value of more than 67108864 bytes or elements: cast the column to the type of its values`},
		{"nulls", []any{list(arrow.Null, 1), list(arrow.Null, 1<<45)}, ""},
		{"nulls of fixed size", []any{fixed(true), fixed(false)}, ""},
	} {
		room := &limited{1 << 20}
		result, err := op.Run(WithEnv(t.Context(), Env{Scratch: room}), Args{Positional: c.tables}, NewTensor)
		switch {
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "" && result.(*Table).Layout.Rows != 2:
			t.Errorf("%s: %d rows", c.name, result.(*Table).Layout.Rows)
		}
	}
}

// TestKeysOfDictionariesAreInWorkingMemory: a value of 32 MiB is compared in memory that is
// counted, and the call can be cancelled while many values are read.
func TestKeysOfDictionariesAreInWorkingMemory(t *testing.T) {
	op, err := NewRegistry().Lookup("table.concat")
	if err != nil {
		t.Fatal(err)
	}
	text := func(last string) arrow.Array {
		b := array.NewStringBuilder(memory.DefaultAllocator)
		b.Append(strings.Repeat("t", 32<<20) + last)
		return b.NewArray()
	}
	tables := []any{valueOf(t, text("a")), valueOf(t, text("b"))}
	_, err = op.Run(WithEnv(t.Context(), Env{Scratch: &limited{16 << 20}}), Args{Positional: tables}, NewTensor)
	if !errors.Is(err, ErrNoScratch) {
		t.Errorf("with too little working memory: %v", err)
	}
	result, err := op.Run(WithEnv(t.Context(), Env{Scratch: &limited{256 << 20}}), Args{Positional: tables}, NewTensor)
	if got := opRows(t, result, err); got.NumRows() != 2 {
		t.Errorf("%d rows", got.NumRows())
	}
	// 1,000 views share a text of 1 MiB.
	shared, err := run(t, "table.take", nil, tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "v", Type: arrow.BinaryTypes.StringView}}, nil), []arrow.Array{oneView(1 << 20)}, 1)),
		slices.Repeat([]any{int64(0)}, 1000))
	if err != nil {
		t.Fatal(err)
	}
	batch, err := shared.(*Table).batch()
	if err != nil {
		t.Fatal(err)
	}
	ctx := &countdown{Context: WithEnv(t.Context(), Env{Scratch: &limited{64 << 20}}), left: 20}
	_, err = op.Run(ctx, Args{Positional: []any{valueOf(t, oneView(20)), valueOf(t, batch.Column(0))}}, NewTensor)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a call that is cancelled while it reads values: %v", err)
	}
}

// oneView returns an array of one text.
func oneView(size int) arrow.Array {
	b := array.NewStringViewBuilder(memory.DefaultAllocator)
	b.ReserveData(size)
	b.Append(strings.Repeat("v", size))
	return b.NewArray()
}

// countdown is cancelled once it was asked some times.
type countdown struct {
	context.Context //nolint:containedctx // it is one
	left            int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestDictionariesThatStayMayBeLong: codes need not reach all values if no code changes.
func TestDictionariesThatStayMayBeLong(t *testing.T) {
	kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprint("a", i))
	}
	for _, tables := range [][]any{
		{encodedAs(t, kind, many, 1)},
		{encodedAs(t, kind, many, 1), encodedAs(t, kind, many, 2)},
		{encodedAs(t, kind, many, 1), encodedAs(t, kind, many[:3], 2)},
	} {
		result, err := run(t, "table.concat", nil, tables...)
		if got := opRows(t, result, err); got.NumRows() != int64(len(tables)) {
			t.Errorf("%d rows", got.NumRows())
		}
	}
}

// TestTypesThatMetadataTellApart: the types of pandas and Polars have the same buffers.
func TestTypesThatMetadataTellApart(t *testing.T) {
	table := func(kind arrow.DataType, pairs ...string) any {
		var meta arrow.Metadata
		if len(pairs) > 0 {
			meta = arrow.NewMetadata([]string{pairs[0]}, []string{pairs[1]})
		}
		coded, isCoded := kind.(*arrow.DictionaryType)
		of := kind
		if isCoded {
			of = coded.ValueType
		}
		b := array.NewBuilder(memory.DefaultAllocator, of)
		defer b.Release()
		b.AppendEmptyValue()
		column := b.NewArray()
		if isCoded {
			column = array.NewDictionaryArray(kind, int32s(t, 0), column)
		}
		schema := arrow.NewSchema([]arrow.Field{{Name: "p", Type: kind, Nullable: true, Metadata: meta}}, nil)
		return tableOf(t, array.NewRecordBatch(schema, []arrow.Array{column}, 1))
	}
	number := arrow.PrimitiveTypes.Int64
	inside := func(name string, pairs ...string) arrow.DataType {
		f := arrow.Field{Name: name, Type: number, Nullable: true}
		if len(pairs) > 0 {
			f.Metadata = arrow.NewMetadata([]string{pairs[0]}, []string{pairs[1]})
		}
		return arrow.LargeListOfField(f)
	}
	coded := func(of arrow.DataType) arrow.DataType {
		return &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: of}
	}
	for _, c := range []struct {
		name string
		a, b any
		want string
	}{
		{"pandas.period", table(number, "ARROW:extension:metadata", `{"freq": "M"}`), table(number, "ARROW:extension:metadata", `{"freq": "D"}`), `argument tables[1]: column "p" is of another type than that of tables[0], because the metadata ARROW:extension:metadata differ`},
		{"no name", table(number, "ARROW:extension:name", "pandas.period"), table(number), "ARROW:extension:name"},
		{"Enum", table(coded(arrow.BinaryTypes.String), "_PL_ENUM_VALUES", "1;x1;b"), table(coded(arrow.BinaryTypes.String), "_PL_ENUM_VALUES", "1;b1;y"), "_PL_ENUM_VALUES"},
		{"Enum inside", table(inside("item", "_PL_ENUM_VALUES2", "x")), table(inside("item", "_PL_ENUM_VALUES2", "y")), "_PL_ENUM_VALUES2"},
		{"inside of a dictionary", table(coded(inside("item", "ARROW:extension:name", "x"))), table(coded(inside("item"))), "ARROW:extension:name"},
		{"other metadata", table(number, "unit", "m"), table(number, "unit", "km"), ""},
		{"other metadata inside", table(inside("item", "unit", "m")), table(inside("item")), ""},
		{"names of elements", table(inside("item")), table(inside("element")), ""},
		{"names of elements of a dictionary", table(coded(inside("item"))), table(coded(inside("element"))), ""},
		{"names of fields", table(arrow.StructOf(arrow.Field{Name: "a", Type: number})), table(arrow.StructOf(arrow.Field{Name: "b", Type: number})), "is of type struct"},
		{"numbers of fields", table(arrow.StructOf(arrow.Field{Name: "a", Type: number})), table(arrow.StructOf()), "is of type struct"},
		{"nulls inside", table(arrow.ListOf(number)), table(arrow.ListOfNonNullable(number)), "is of type list"},
		{"sizes of lists", table(arrow.FixedSizeListOf(2, number)), table(arrow.FixedSizeListOf(3, number)), "is of type fixed_size_list"},
		{"maps", table(arrow.MapOf(number, number)), table(arrow.MapOf(number, arrow.BinaryTypes.String)), "is of type map"},
	} {
		_, err := run(t, "table.concat", nil, c.a, c.b)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

// TestCodesOfUnionsWithoutAChild: the first code of a sparse union is changed.
func TestCodesOfUnionsWithoutAChild(t *testing.T) {
	for _, column := range []string{"sparse", "dense"} {
		one, err := run(t, "table.select", nil, tableOf(t, unusual(t)), []any{column})
		if err != nil {
			t.Fatal(err)
		}
		x := one.(*Table)
		x.Frames[0].Data[x.Layout.Buffers[0].Offset] = 77
		for op, args := range map[string][]any{"table.concat": {x}, "table.partition": {x, nil, int64(2)}} {
			if _, err := run(t, op, nil, args...); err == nil || !strings.Contains(err.Error(), "the code 77") {
				t.Errorf("%s of a %s union: %v", op, column, err)
			}
		}
	}
}

// TestResultsHaveRowsThatCanBeCounted: a table with more rows could not be an argument.
func TestResultsHaveRowsThatCanBeCounted(t *testing.T) {
	x := tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.Null}}, nil), []arrow.Array{array.NewNull(2_500_000_000)}, 2_500_000_000))
	_, err := run(t, "table.concat", nil, x, x)
	if err == nil || !strings.Contains(err.Error(), "argument tables: the result has 5000000000 rows or more, and 4294967294 can be counted: concatenate fewer tables") {
		t.Errorf("5e9 rows: %v", err)
	}
}

// TestLongTextIsCopiedInPieces: a few rows with much text are work for many processors, and the
// call can be cancelled between pieces.
func TestLongTextIsCopiedInPieces(t *testing.T) {
	op, err := NewRegistry().Lookup("table.concat")
	if err != nil {
		t.Fatal(err)
	}
	text := array.NewStringBuilder(memory.DefaultAllocator)
	blob := array.NewFixedSizeBinaryBuilder(memory.DefaultAllocator, &arrow.FixedSizeBinaryType{ByteWidth: 1 << 20})
	for i := range 8 {
		text.Append(strings.Repeat(fmt.Sprint(i), 1<<20+i))
		blob.Append(bytes.Repeat([]byte{byte(i)}, 1<<20))
	}
	view, err := run(t, "table.take", nil, tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "v", Type: arrow.BinaryTypes.StringView}}, nil), []arrow.Array{oneView(8 << 20)}, 1)),
		slices.Repeat([]any{int64(0)}, 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, column := range []arrow.Array{text.NewArray(), blob.NewArray(), opRows(t, view, nil).Column(0)} {
		x := tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "c", Type: column.DataType()}}, nil), []arrow.Array{column}, int64(column.Len())))
		result, err := runWith(t, Env{Cores: func() int { return 3 }}, "table.concat", nil, x, x)
		got := opRows(t, result, err).Column(0)
		want, err := array.Concatenate([]arrow.Array{column, column}, memory.DefaultAllocator)
		if err != nil || !array.Equal(got, want) {
			t.Errorf("%s: the rows differ (%v)", column.DataType(), err)
		}
		asked := &countdown{Context: t.Context(), left: 1 << 30}
		if _, err := op.Run(asked, Args{Positional: []any{x, x}}, NewTensor); err != nil || 1<<30-asked.left < 16 {
			t.Errorf("%s: asked %d times whether to end while 16 MiB are copied (%v)", column.DataType(), 1<<30-asked.left, err)
		}
	}
}
