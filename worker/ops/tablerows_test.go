package ops

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/internal/arrowtable"
)

// opRows returns the rows of a result, after a check of all of them.
func opRows(t *testing.T, result any, err error) arrow.RecordBatch {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	rows, err := result.(*Table).batch()
	if err != nil {
		t.Fatal(err)
	}
	if err := arrowtable.CheckRows(rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// expectRows compares rows with those of numbers of another batch.
func expectRows(t *testing.T, got, from arrow.RecordBatch, numbers []int64) {
	t.Helper()
	if got.NumRows() != int64(len(numbers)) || !got.Schema().Equal(from.Schema()) {
		t.Fatalf("%d rows of %v", got.NumRows(), got.Schema())
	}
	for i, column := range got.Columns() {
		for row, number := range numbers {
			if number < 0 {
				number += from.NumRows()
			}
			if !array.SliceEqual(column, int64(row), int64(row+1), from.Column(i), number, number+1) {
				t.Errorf("row %d of column %q: %s, want %s", row, got.ColumnName(i), column.ValueStr(row), from.Column(i).ValueStr(int(number)))
			}
		}
	}
}

func TestTakenRowsAreThoseOfTheTable(t *testing.T) {
	for _, file := range []string{"arrow.arrow", "polars.arrow"} {
		from := batches(t, file)[0]
		x := tableOf(t, from)
		for _, numbers := range [][]int64{{}, {3}, {20, 0, 5, 5, -1, -21, 4, 7}, slices.Repeat([]int64{1, 2, 4, 9}, 50)} {
			list := make([]any, len(numbers))
			for i, n := range numbers {
				list[i] = n
			}
			result, err := run(t, "table.take", nil, x, list)
			expectRows(t, opRows(t, result, err), from, numbers)
			if got := result.(*Table); !bytes.Equal(got.Layout.Schema, x.Layout.Schema) || got.TypeName != "T" || len(got.Columns) != x.ColumnCount {
				t.Errorf("the table lost its schema, its type or its description: %+v", got)
			}
		}
		for _, every := range []int64{1, 2, 7, 100} {
			var flags []any
			var numbers []int64
			for i := range from.NumRows() {
				flags = append(flags, i%every == every-1)
				if i%every == every-1 {
					numbers = append(numbers, i)
				}
			}
			result, err := run(t, "table.filter", nil, x, flags)
			expectRows(t, opRows(t, result, err), from, numbers)
		}
	}
}

func TestColumnsFilterTheirTable(t *testing.T) {
	from := batches(t, "arrow.arrow")[0] // bool is true, null, false, true
	var numbers []int64
	for i := range from.NumRows() {
		if i%4 == 0 || i%4 == 3 {
			numbers = append(numbers, i)
		}
	}
	result, err := run(t, "table.filter", nil, tableOf(t, from), "bool")
	expectRows(t, opRows(t, result, err), from, numbers)
}

func TestSelectedColumns(t *testing.T) {
	x := tableOf(t, batches(t, "arrow.arrow")[0])
	result, err := run(t, "table.select", nil, x, []any{"view", "dictionary", "i64"})
	got := opRows(t, result, err)
	if got.NumCols() != 3 || got.NumRows() != 21 || got.ColumnName(0) != "view" || got.Column(2).(*array.Int64).Value(2) != -3 {
		t.Errorf("%v", got)
	}
	if got.Column(1).ValueStr(4) != "a longer text that lies outside of a view" {
		t.Errorf("%v", got.Column(1))
	}
	result, err = run(t, "table.select", nil, x, "i64")
	if got := opRows(t, result, err); got.NumCols() != 1 {
		t.Errorf("%v", got)
	}
	result, err = run(t, "table.select", nil, x, []any{})
	if got := opRows(t, result, err); got.NumCols() != 0 || got.NumRows() != 21 {
		t.Errorf("%v", got)
	}
}

func TestErrorsOfTablesNameTheirCause(t *testing.T) {
	x := tableOf(t, batches(t, "arrow.arrow")[0])
	runs := array.NewRunEndEncodedArray(int32s(t, 2, 3), int32s(t, 1, 2), 3, 0)
	coded := tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "r", Type: runs.DataType()}}, nil), []arrow.Array{runs}, 3))
	twice := tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int32}, {Name: "a", Type: arrow.PrimitiveTypes.Int32}}, nil), []arrow.Array{int32s(t, 1), int32s(t, 2)}, 1))
	for _, c := range []struct {
		op   string
		args []any
		want string
	}{
		{"table.select", []any{x, "texs"}, `table.select: argument columns: the table has no column "texs": did you mean text`},
		{"table.select", []any{twice, "b"}, `no column "b": did you mean a`},
		{"table.select", []any{twice, "a"}, `2 columns "a": give each a name of its own`},
		{"table.select", []any{x, []any{"text", "text"}}, `column "text" is named twice`},
		{"table.select", []any{x, []any{int64(1)}}, "expected the name of a column or a list of names, got 1"},
		{"table.filter", []any{x, "i64"}, `column "i64" is of type int64: give the name of a column of bools`},
		{"table.filter", []any{x, "gone"}, `no column "gone"`},
		{"table.filter", []any{x, []any{true}}, "expected a bool for each of 21 rows, got a bool tensor of shape [1]"},
		{"table.filter", []any{coded, []any{true, true, false}}, `column "r": rows of type run_end_encoded<run_ends: int32, values: int32> cannot be selected: cast it`},
		{"table.take", []any{x, []any{int64(0), int64(21)}}, "number 21 at position 1 of rows is outside of a table of 21 rows"},
		{"table.take", []any{x, []any{int64(-22)}}, "number -22 at position 0"},
		{"table.take", []any{x, []any{1.5}}, "expected integers with one axis"},
	} {
		if _, err := run(t, c.op, nil, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.op, err, c.want)
		}
	}
}

func int32s(t *testing.T, values ...int32) arrow.Array {
	t.Helper()
	b := array.NewInt32Builder(memory.DefaultAllocator)
	b.AppendValues(values, nil)
	return b.NewArray()
}

// hostileArrow calls an operation with tables of Arrow of which bytes were changed: each call gives
// an error of the argument or a result. In short tests the bytes are few, and begin at first.
func hostileArrow(t *testing.T, first int, name string, args func(x *Table) Args) {
	t.Helper()
	step := 7
	if testing.Short() {
		step = 131
	}
	hostileTables(t, "arrow.arrow", first, step, name, args)
}

func hostileTables(t *testing.T, file string, first, step int, name string, args func(x *Table) Args) {
	t.Helper()
	op, err := NewRegistry().Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	good := tableOf(t, batches(t, file)[0])
	for at := first; at < len(good.Frames[0].Data); at += step {
		for _, bit := range []byte{0x01, 0x7f, 0x80} {
			x := *good
			frame := *good.Frames[0]
			frame.Data = bytes.Clone(frame.Data)
			frame.Data[at] ^= bit
			x.Frames = []*Tensor{&frame}
			_, err := runLimited(t.Context(), op, args(&x))
			refused(t, "a changed byte", err)
			if err != nil && strings.Contains(err.Error(), "internal error") {
				t.Fatalf("byte %d: %v", at, err)
			}
		}
	}
}

func TestHostileTablesGiveNoRows(t *testing.T) {
	for _, file := range []string{"arrow.arrow", "polars.arrow"} {
		hostileTables(t, file, 0, 7, "table.take", func(x *Table) Args {
			return Args{Positional: []any{x, []any{int64(1), int64(20), int64(4), int64(4)}}}
		})
	}
}

func TestTakenRowsKeepTheLimits(t *testing.T) {
	x := tableOf(t, array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int32}}, nil), []arrow.Array{int32s(t, make([]int32, 1<<18)...)}, 1<<18))
	op, err := NewRegistry().Lookup("table.filter")
	if err != nil {
		t.Fatal(err)
	}
	flags := everywhere(Bool, 1<<18)
	flags.Data[0] = 1
	_, err = op.Run(WithEnv(t.Context(), Env{Scratch: &limited{1 << 20}}), Args{Positional: []any{x, flags}}, NewTensor)
	if !errors.Is(err, ErrNoScratch) {
		t.Errorf("with too little working memory: %v", err)
	}
}
