package ops

import (
	"bytes"
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

// long returns a table with the rows of the batch many times over.
func long(t *testing.T, batch arrow.RecordBatch, times int) arrow.RecordBatch {
	t.Helper()
	columns := make([]arrow.Array, batch.NumCols())
	for i, column := range batch.Columns() {
		joined, err := array.Concatenate(slices.Repeat([]arrow.Array{column}, times), memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		columns[i] = joined
	}
	return array.NewRecordBatch(batch.Schema(), columns, batch.NumRows()*int64(times))
}

// unusual returns a table of types that are rare: unions, runs, elements that are no plain numbers.
func unusual(t *testing.T) arrow.RecordBatch {
	t.Helper()
	fields := []arrow.Field{
		{Name: "sparse", Type: arrow.SparseUnionOf([]arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}}, []arrow.UnionTypeCode{5, 9})},
		{Name: "dense", Type: arrow.DenseUnionOf([]arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}}, []arrow.UnionTypeCode{0, 1})},
		{Name: "runs", Type: arrow.RunEndEncodedOf(arrow.PrimitiveTypes.Int16, arrow.BinaryTypes.String)},
		{Name: "flags", Type: arrow.FixedSizeListOf(3, arrow.FixedWidthTypes.Boolean), Nullable: true},
		{Name: "views", Type: arrow.ListOf(arrow.BinaryTypes.StringView), Nullable: true},
		{Name: "nulls", Type: arrow.ListOf(arrow.Null), Nullable: true},
		{Name: "kinds", Type: arrow.ListOf(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}), Nullable: true},
		{Name: "wide", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float64), Nullable: true},
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	for i := range 40 {
		for _, at := range []int{0, 1} {
			u := b.Field(at).(array.UnionBuilder)
			code := u.Type().(arrow.UnionType).TypeCodes()[i%3&1]
			u.Append(code)
			switch s := u.(type) {
			case *array.SparseUnionBuilder:
				if i%3&1 == 0 {
					s.Child(0).(*array.Int32Builder).Append(int32(i))
					s.Child(1).AppendNull()
				} else {
					s.Child(0).AppendNull()
					s.Child(1).(*array.StringBuilder).Append(strings.Repeat("u", i))
				}
			case *array.DenseUnionBuilder:
				if i%3&1 == 0 {
					s.Child(0).(*array.Int32Builder).Append(int32(i))
				} else {
					s.Child(1).(*array.StringBuilder).Append(strings.Repeat("d", i))
				}
			}
		}
		runs := b.Field(2).(*array.RunEndEncodedBuilder)
		if i%4 == 0 {
			runs.Append(1)
			runs.ValueBuilder().(*array.StringBuilder).Append(fmt.Sprint(i))
		} else {
			runs.ContinueRun(1)
		}
		for at := 3; at < 8; at++ {
			if i%7 == at {
				b.Field(at).AppendNull()
				continue
			}
			switch l := b.Field(at).(type) {
			case *array.FixedSizeListBuilder:
				l.Append(true)
				switch v := l.ValueBuilder().(type) {
				case *array.BooleanBuilder:
					v.AppendValues([]bool{i%2 == 0, true, i%5 == 0}, []bool{true, i%2 == 0, true})
				case *array.Float64Builder:
					v.AppendValues([]float64{float64(i), float64(-i)}, nil)
				}
			case *array.ListBuilder:
				l.Append(true)
				for j := range i % 4 {
					switch v := l.ValueBuilder().(type) {
					case *array.StringViewBuilder:
						v.Append(strings.Repeat("v", 7*j))
					case *array.NullBuilder:
						v.AppendNull()
					case *array.BinaryDictionaryBuilder:
						if err := v.AppendString(fmt.Sprint("k", i%9)); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	}
	return b.NewRecordBatch()
}

// texts returns each row of a table as text.
func texts(batch arrow.RecordBatch) []string {
	out := make([]string, batch.NumRows())
	for i := range out {
		for _, column := range batch.Columns() {
			out[i] += "|" + column.ValueStr(i)
		}
	}
	return out
}

// TestPartsHaveTheRowsOfTheirNumbers checks tables of all types, whose rows go to random pieces.
func TestPartsHaveTheRowsOfTheirNumbers(t *testing.T) {
	for name, batch := range map[string]arrow.RecordBatch{
		"arrow": batches(t, "arrow.arrow")[0], "polars": batches(t, "polars.arrow")[0], "unusual": unusual(t),
		"long": long(t, batches(t, "polars.arrow")[0], 3200), "none": batches(t, "arrow.arrow")[0].NewSlice(0, 0),
	} {
		for _, n := range []int{1, 2, 7, 100} {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				random := rand.New(rand.NewPCG(1, uint64(n)))
				numbers := make([]any, batch.NumRows())
				want := make([][]string, n)
				rows := texts(batch)
				for i := range numbers {
					p := random.IntN(n)
					numbers[i] = int64(p)
					want[p] = append(want[p], rows[i])
				}
				x := tableOf(t, batch)
				env := Env{Cores: func() int { return 3 }}
				result, err := runWith(t, env, "table.partition", map[string]any{"numbers": tensorOf(t, Int64, []int64{int64(len(numbers))}, numbers...)}, x, nil, int64(n))
				if err != nil {
					t.Fatal(err)
				}
				for p, piece := range result.([]any) {
					got, err := piece.(*Table).batch()
					if err != nil {
						t.Fatal(err)
					}
					if err := arrowtable.CheckRows(got); err != nil {
						t.Errorf("piece %d: %v", p, err)
					}
					if !slices.Equal(texts(got), want[p]) {
						t.Fatalf("piece %d of %d: got\n%v\nwant\n%v", p, n, texts(got), want[p])
					}
					if len(piece.(*Table).Frames) > 1 || !bytes.Equal(piece.(*Table).Layout.Schema, x.Layout.Schema) || piece.(*Table).TypeName != "T" {
						t.Errorf("piece %d has %d frames, or lost its schema or its type", p, len(piece.(*Table).Frames))
					}
				}
			})
		}
	}
}

func TestPiecesOfKeysAndTurns(t *testing.T) {
	made, err := run(t, "table.make", nil, map[string]any{"k": []any{int64(1), int64(2), int64(1), int64(3), int64(2)}, "piece": []any{int64(0), int64(2), int64(2), int64(0), int64(2)}})
	if err != nil {
		t.Fatal(err)
	}
	rowsOf := func(named map[string]any, args ...any) []string {
		result, err := run(t, "table.partition", named, append([]any{made}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, piece := range result.([]any) {
			batch, err := piece.(*Table).batch()
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, strings.Join(texts(batch), " "))
		}
		return out
	}
	for _, c := range []struct{ got, want []string }{
		{rowsOf(nil, nil, int64(2)), []string{"|1|0 |1|2 |2|2", "|2|2 |3|0"}},
		{rowsOf(map[string]any{"numbers": "piece"}, nil, int64(3)), []string{"|1|0 |3|0", "", "|2|2 |1|2 |2|2"}},
		{rowsOf(nil, "k", int64(1)), []string{"|1|0 |2|2 |1|2 |3|0 |2|2"}},
		{rowsOf(nil, "k", int64(2)), rowsOf(nil, []any{"k"}, int64(2))},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestWrongPartitionsAreRefused(t *testing.T) {
	x := tableOf(t, batches(t, "arrow.arrow")[0])
	wide, err := run(t, "table.make", nil, map[string]any{strings.Repeat("c", 1<<20): []any{int64(1)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []any
		named  map[string]any
		reason string
	}{
		{[]any{x, "i64", int64(0)}, nil, "at least 1"},
		{[]any{x, "i65", int64(2)}, nil, `the table has no column "i65": did you mean i64`},
		{[]any{x, []any{}, int64(2)}, nil, "empty list"},
		{[]any{x, int64(3), int64(2)}, nil, "the name of a column"},
		{[]any{x, "map", int64(2)}, nil, `column "map": rows cannot be split`},
		{[]any{x, "i64", int64(2)}, map[string]any{"numbers": "u8"}, "beside by"},
		{[]any{x, nil, int64(2)}, map[string]any{"numbers": "u8"}, "row 2 has the number 2"},
		{[]any{x, nil, int64(2)}, map[string]any{"numbers": "i64"}, "row 1 has no number"},
		{[]any{x, nil, int64(2)}, map[string]any{"numbers": "text"}, "expected integers"},
		{[]any{x, nil, int64(2)}, map[string]any{"numbers": []any{int64(1)}}, "21 integers"},
		{[]any{wide, nil, int64(100)}, nil, "take at most"},
	} {
		_, err := run(t, "table.partition", c.named, c.args...)
		if ours := (*Error)(nil); !errors.As(err, &ours) || ours.Kind != BadArgument || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%v: %v, expected an error with %q", c.args[1:], err, c.reason)
		}
	}
}

// TestLargeDictionariesAreNotCopiedToEachPiece: a piece has only the values that it uses.
func TestLargeDictionariesAreNotCopiedToEachPiece(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String, Ordered: ordered}
		b := array.NewDictionaryBuilder(memory.DefaultAllocator, kind).(*array.BinaryDictionaryBuilder)
		for i := range 5000 {
			if err := b.AppendString(strings.Repeat(fmt.Sprint(i), 100)); err != nil {
				t.Fatal(err)
			}
		}
		schema := arrow.NewSchema([]arrow.Field{{Name: "d", Type: kind}}, nil)
		x := tableOf(t, array.NewRecordBatch(schema, []arrow.Array{b.NewArray()}, 5000))
		result, err := run(t, "table.partition", nil, x, "d", int64(500))
		if ordered {
			if err == nil || !strings.Contains(err.Error(), "ordered dictionary") {
				t.Errorf("copies of an ordered dictionary of a megabyte: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var size int64
		for _, piece := range result.([]any) {
			for _, f := range piece.(*Table).Frames {
				size += f.Bytes()
			}
		}
		if size > 2*x.Frames[0].Bytes() {
			t.Errorf("the pieces have %d bytes, and the table %d", size, x.Frames[0].Bytes())
		}
	}
}

// TestHostilePartitionsAreRefused: any program may have written a table.
func TestHostilePartitionsAreRefused(t *testing.T) {
	op, err := NewRegistry().Lookup("table.partition")
	if err != nil {
		t.Fatal(err)
	}
	for _, batch := range []arrow.RecordBatch{batches(t, "arrow.arrow")[0], batches(t, "polars.arrow")[0], unusual(t)} {
		good := tableOf(t, batch)
		for at := 0; at < len(good.Frames[0].Data); at += 7 {
			x := *good
			frame := *good.Frames[0]
			frame.Data = bytes.Clone(frame.Data)
			frame.Data[at] ^= 0x7f
			x.Frames = []*Tensor{&frame}
			for _, by := range []any{nil, batch.ColumnName(at % int(batch.NumCols()))} {
				_, err := runLimited(t.Context(), op, Args{Positional: []any{&x, by, int64(3)}})
				refused(t, "a changed byte", err)
			}
		}
	}
}

func TestPartitionsKeepTheLimits(t *testing.T) {
	x := tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int32}}, nil), []arrow.Array{int32s(t, make([]int32, 1<<20)...)}, 1<<20))
	op, err := NewRegistry().Lookup("table.partition")
	if err != nil {
		t.Fatal(err)
	}
	_, err = op.Run(WithEnv(t.Context(), Env{Scratch: &limited{1 << 20}}), Args{Positional: []any{x, nil, int64(2)}}, NewTensor)
	if !errors.Is(err, ErrNoScratch) {
		t.Errorf("with too little working memory: %v", err)
	}
}
