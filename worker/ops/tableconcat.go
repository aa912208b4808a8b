package ops

import (
	"bytes"
	"context"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/internal/arrowtable"
	"github.com/millrace/millrace/worker/tables"
)

func tableConcatOps() []*Op {
	return []*Op{{
		Name:      "table.concat",
		Processor: true,
		Doc:       "Puts the rows of several tables into one table.",
		Details: "All tables have columns of the same names and types, in the same order. The rows are copied once, straight to their places, in one frame. " +
			"Dictionaries that differ become one: it has the values of the first table's, and then those that further ones have in addition. " +
			"Metadata are those of the first table. Views of texts become views of copies of these texts; those of a table with more than 2 GiB of long texts become views of copies of all its texts, also of those that no row has.",
		Variadic:    "tables",
		VariadicDoc: "at least one table; also lists of them, such as pieces of `table.partition`",
		ReadsOnce:   true,
		Result:      "a table with copies of the rows of all tables, one table after the other",
		Errors: []string{
			"INVALID_ARGUMENT, with the number of the table and the column, if the columns of a table have other names or types than those of the first one. " +
				"Of another type are also lists and structs whose elements or fields may be null if those of the first table may not, and values whose metadata name another extension type or other categories of Polars",
			"INVALID_ARGUMENT, with the column, if its offsets or codes cannot reach all rows together, if ordered dictionaries differ and none continues the other, " +
				"if dictionaries of unions or of run-end encoded values differ, or if dictionaries differ and have a value of more than 64 MiB",
			"INVALID_ARGUMENT if the result has more than 4,294,967,294 rows: no operation can count those of a larger table",
			contradictsTable + ", or if it has list views",
		},
		Example: Example{
			[]string{
				`{"key": "monday", "op": "table.make", "args": [{"id": [1, 2], "x": [0.5, 1.5]}]}`,
				`{"key": "tuesday", "op": "table.make", "args": [{"id": [3], "x": [2.5]}]}`,
				`{"key": "days", "op": "table.concat", "args": [{"input": "monday"}, {"input": "tuesday"}]}`,
			},
			`{"table": "", "rows": 3, "columns": [{"name": "id", "type": "int64"}, {"name": "x", "type": "float64"}], "columnCount": 2}`,
		},
		plan: planTableConcat,
	}}
}

func planTableConcat(c *call) (*Planned, error) {
	tables, err := c.tablesIn(nil, c.rest)
	if err != nil {
		return nil, err
	}
	if len(tables) == 0 {
		return nil, c.bad("tables", "give at least one table")
	}
	schema, err := c.commonSchema(tables)
	if err != nil {
		return nil, err
	}
	return wholeTables(c, tables, nameOfTable, func(ctx context.Context, batches []arrow.RecordBatch, alloc Allocator) (any, error) {
		whole, err := tablesCall(ctx).Concat(batches)
		if err != nil {
			return nil, refusedRows(ctx, c, "tables", err)
		}
		out := *tables[0]
		out.Layout, out.Frames = whole.Layout, nil
		out.Layout.Schema = schema
		var room []byte
		if whole.FrameBytes > 0 {
			frame, err := allocate(alloc, Uint8, []int64{whole.FrameBytes})
			if err != nil {
				return nil, err
			}
			out.Frames, room = []*Tensor{frame}, frame.raw()
		}
		if err := whole.Write(room); err != nil {
			return nil, refusedRows(ctx, c, "tables", err)
		}
		return &out, nil
	}), nil
}

// nameOfTable returns the name of one of several tables, for errors.
func nameOfTable(i int) string { return ordinal("tables", i) }

// tablesIn appends the tables of a list, at any depth.
func (c *call) tablesIn(tables []*Table, list []any) ([]*Table, error) {
	for _, v := range list {
		inner, ok := v.([]any)
		var err error
		if ok {
			tables, err = c.tablesIn(tables, inner)
		} else {
			var t *Table
			t, err = c.tableOf(&Param{Name: nameOfTable(len(tables)), Type: TableType}, v)
			tables = append(tables, t)
		}
		if err != nil {
			return nil, err
		}
	}
	return tables, nil
}

// commonSchema returns the schema of the rows of all tables together: that of the first one, whose
// columns may have nulls if those of any table may. It is an error if the names or types of their
// columns differ.
func (c *call) commonSchema(tables []*Table) ([]byte, error) {
	encoded := tables[0].Layout.Schema
	decode := func(i int) (*arrow.Schema, error) {
		schema, err := arrowtable.DecodeSchema(tables[i].Layout)
		if err != nil {
			return nil, c.bad(nameOfTable(i), "%v", err)
		}
		return schema, nil
	}
	first, err := decode(0)
	if err != nil {
		return nil, err
	}
	fields, changed := slices.Clone(first.Fields()), false
	for i := 1; i < len(tables); i++ {
		if bytes.Equal(tables[i].Layout.Schema, encoded) {
			continue
		}
		schema, err := decode(i)
		if err != nil {
			return nil, err
		}
		if err := c.sameColumns(i, first, schema); err != nil {
			return nil, err
		}
		for k, f := range schema.Fields() {
			if f.Nullable && !fields[k].Nullable {
				fields[k].Nullable, changed = true, true
			}
		}
	}
	if !changed {
		return encoded, nil // byte for byte
	}
	meta := first.Metadata()
	return arrowtable.EncodeSchema(arrow.NewSchema(fields, &meta), memory.DefaultAllocator)
}

// sameColumns returns an error if the columns of table i are not those of the first one.
func (c *call) sameColumns(i int, first, schema *arrow.Schema) error {
	for k, f := range first.Fields() {
		if k >= schema.NumFields() {
			return c.bad(nameOfTable(i), "the table has no column %q, and tables[0] has one: select the same columns of both", f.Name)
		}
		switch got := schema.Field(k); {
		case got.Name != f.Name && !schema.HasField(f.Name):
			return c.bad(nameOfTable(i), "the table has no column %q, and tables[0] has one: select the same columns of both", f.Name)
		case got.Name != f.Name:
			return c.bad(nameOfTable(i), "column %d is %q, and that of tables[0] is %q: select the columns in the same order", k, got.Name, f.Name)
		default:
			same, tag := tables.SameType(got, f)
			if !same && tag != "" {
				return c.bad(nameOfTable(i), "column %q is of another type than that of tables[0], because the metadata %s differ: cast one of them", f.Name, tag)
			}
			if !same {
				return c.bad(nameOfTable(i), "column %q is of type %s, and that of tables[0] of type %s: cast one of them", f.Name, got.Type, f.Type)
			}
		}
	}
	if n := first.NumFields(); schema.NumFields() > n {
		return c.bad(nameOfTable(i), "the table has a column %q, and tables[0] has none: select the same columns of both", schema.Field(n).Name)
	}
	return nil
}
