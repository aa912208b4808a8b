package ops

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

// TestGroupsOrdersAndJoinsArePolars repeats the calls of relations.json.gz.
func TestGroupsOrdersAndJoinsArePolars(t *testing.T) {
	file, err := os.ReadFile("testdata/tables/relations.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	source, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Op     string
		Tables [][]byte
		Named  map[string]any
		Want   []byte
	}
	if err := json.NewDecoder(source).Decode(&cases); err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		var args []any
		for _, x := range c.Tables {
			args = append(args, tableOf(t, streamed(t, x)))
		}
		result, err := run(t, c.Op, c.Named, args...)
		if err != nil {
			t.Errorf("case %d: %s %v: %v", i, c.Op, c.Named, err)
			continue
		}
		got, want := opRows(t, result, nil), streamed(t, c.Want)
		if got.NumCols() != want.NumCols() || got.NumRows() != want.NumRows() {
			t.Errorf("case %d: %s %v: %d rows of %d columns, want %d of %d", i, c.Op, c.Named, got.NumRows(), got.NumCols(), want.NumRows(), want.NumCols())
			continue
		}
		for at, column := range got.Columns() {
			if name := want.ColumnName(at); got.ColumnName(at) != name || !sameColumn(column, want.Column(at)) {
				t.Errorf("case %d: %s %v: column %q\n got %v %v\nwant %v %v", i, c.Op, c.Named, name, column.DataType(), column, want.Column(at).DataType(), want.Column(at))
			}
		}
	}
	if len(cases) < 200 {
		t.Errorf("only %d cases", len(cases))
	}
}

// streamed returns the batch of a stream of Arrow.
func streamed(t *testing.T, source []byte) arrow.RecordBatch {
	t.Helper()
	r, err := ipc.NewReader(bytes.NewReader(source))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Next() {
		t.Fatal(r.Err())
	}
	batch := r.RecordBatch()
	batch.Retain()
	return batch
}

// sameColumn compares columns: floats but for rounding, dictionaries by their values.
func sameColumn(a, b arrow.Array) bool {
	if a.DataType().ID() != b.DataType().ID() {
		return false
	}
	switch x := a.(type) {
	case *array.Float64:
		return nearColumns(a, b, x.Float64Values(), b.(*array.Float64).Float64Values(), 1e-12)
	case *array.Float32:
		return nearColumns(a, b, x.Float32Values(), b.(*array.Float32).Float32Values(), 1e-5)
	case *array.Dictionary:
	default:
		return array.Equal(a, b)
	}
	for row := range a.Len() {
		if a.IsNull(row) != b.IsNull(row) || a.IsValid(row) && a.ValueStr(row) != b.ValueStr(row) {
			return false
		}
	}
	return true
}

func nearColumns[T float32 | float64](a, b arrow.Array, x, y []T, tolerance float64) bool {
	if a.Len() != b.Len() {
		return false
	}
	for row := range x {
		if a.IsNull(row) != b.IsNull(row) || a.IsValid(row) && x[row] != y[row] && (x[row] == x[row] || y[row] == y[row]) &&
			!(math.Abs(float64(x[row])-float64(y[row])) <= tolerance*math.Abs(float64(y[row]))) {
			return false
		}
	}
	return true
}

func TestHostileTablesGiveNoGroupsOrdersOrJoins(t *testing.T) {
	for i, by := range []any{[]any{"text", "i64"}, []any{"view", "dictionary"}, []any{"large", "decimal"}, []any{"fixed", "bytes"}} {
		hostileArrow(t, 3*i, "table.aggregate", func(x *Table) Args {
			return Args{Positional: []any{x, by, []any{[]any{"text", "min"}, []any{"list", "first"}, []any{"dictionary", "n_unique"}}}}
		})
		hostileArrow(t, 3*i+1, "table.sort", func(x *Table) Args { return Args{Positional: []any{x, by}} })
		hostileArrow(t, 3*i+2, "table.join", func(x *Table) Args { return Args{Positional: []any{x, x, by, "left"}} })
	}
}

func TestErrorsOfGroupsOrdersAndJoins(t *testing.T) {
	x, other := tableOf(t, batches(t, "arrow.arrow")[0]), tableOf(t, batches(t, "polars.arrow")[0])
	for _, c := range []struct {
		op   string
		args []any
		want string
	}{
		{"table.aggregate", []any{x, "tex"}, `table.aggregate: argument by: the table has no column "tex": did you mean text`},
		{"table.aggregate", []any{x, "list"}, `column "list": values of type list<item: int64, nullable> cannot be grouped: cast them`},
		{"table.aggregate", []any{x, "i64", []any{[]any{"text", "sum"}}}, `column "text": values of type utf8 have no sum: cast them to a number`},
		{"table.aggregate", []any{x, "i64", []any{[]any{"text", "median"}}}, `there is no function "median": it is one of sum, count`},
		{"table.aggregate", []any{x, "i64", []any{[]any{"text", "min", "i64"}}}, `two columns of the result are named "i64": add another name`},
		{"table.aggregate", []any{x, "i64", []any{"text"}}, "expected a list [column, function]"},
		{"table.sort", []any{x, "gone"}, `no column "gone"`},
		{"table.sort", []any{x, []any{}}, "it is empty: name a column"},
		{"table.sort", []any{x, "struct"}, `column "struct": values of type struct<a: int64 nullable, b: utf8 nullable> cannot be sorted`},
		{"table.sort", []any{x, "i64", []any{true, false}}, "it has 2 bools for 1 columns"},
		{"table.sort", []any{x, "i64", int64(1)}, "expected a bool or a list of bools, got 1"},
		{"table.join", []any{x, other, "i64"}, `no column "i64"`},
		{"table.join", []any{x, other, "when"}, `column "when" is of type timestamp[us, tz=UTC] in the left table and of type timestamp[ns, tz=Europe/Berlin] in the right one`},
		{"table.join", []any{x, x, "i64", "outer"}, `there is no join "outer": it is inner, left, semi or anti`},
		{"table.join", []any{x, x, "i64", "inner", ""}, `two columns of the result are named "u8": give another suffix`},
	} {
		if _, err := run(t, c.op, nil, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.op, err, c.want)
		}
	}
}
