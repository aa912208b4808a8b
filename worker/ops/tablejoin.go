package ops

import (
	"context"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/millrace/millrace/worker/tables"
)

func tableJoinOps() []*Op {
	return []*Op{{
		Name:      "table.join",
		Processor: true,
		Doc:       "Joins the rows of two tables whose values are equal in some columns.",
		Details: "`inner` has a row for each pair of rows that are equal in all columns of `on`; `left` has these, and the rows of `left` without a partner, with nulls. " +
			"`semi` has the rows of `left` that have a partner, once each, and `anti` those without one. The order is that of `left`, then that of `right`.\n\n" +
			"A null has no partner, unless `nulls_equal`. NaN equals NaN, and -0.0 equals 0.0. " +
			"Integers of any width compare with each other, except those of uint64 with others, and so do all forms of text; other types are equal in both tables.",
		Params: []Param{
			{Name: "left", Type: TableType, Required: true, Doc: "a table"},
			{Name: "right", Type: TableType, Required: true, Doc: "a table"},
			{Name: "on", Type: AnyType, Required: true, Doc: "the name of a column of both tables, or a list of names"},
			{Name: "how", Type: StringType, Default: tables.Inner, Doc: "`inner`, `left`, `semi` or `anti`"},
			{Name: "suffix", Type: StringType, Default: "_right", Doc: "what is appended to the name of a column of `right` if `left` has one of this name"},
			{Name: "nulls_equal", Type: BoolType, Default: false, Doc: "whether null equals null"},
		},
		ReadsOnce: true,
		Result:    "a table with the columns of `left`, then, of `inner` and `left`, those of `right` without `on`",
		Errors: []string{
			contradictsTable, refusedTypes,
			"INVALID_ARGUMENT, with the column and its types, if its values do not compare",
		},
		Example: Example{
			[]string{
				`{"key": "orders", "op": "table.make", "args": [{"shop": [1, 2, 1, 3], "price": [2.5, 1.0, 3.5, 4.0]}]}`,
				`{"key": "stores", "op": "table.make", "args": [{"shop": [1, 2], "size": [10, 20]}]}`,
				`{"key": "joined", "op": "table.join", "args": [{"input": "orders"}, {"input": "stores"}, "shop"]}`,
			},
			`{"table": "", "rows": 3, "columns": [{"name": "price", "type": "float64"}, {"name": "shop", "type": "int64"}, {"name": "size", "type": "int64"}], "columnCount": 3}`,
		},
		plan: planTableJoin,
	}}
}

func planTableJoin(c *call) (*Planned, error) {
	left, err := c.schemaOf("left")
	if err != nil {
		return nil, err
	}
	right, err := c.schemaOf("right")
	if err != nil {
		return nil, err
	}
	leftOn, err := c.columnsOf("on", left)
	if err != nil {
		return nil, err
	}
	rightOn, err := c.columnsOf("on", right)
	if err != nil {
		return nil, err
	}
	how := c.string("how")
	switch {
	case len(leftOn) == 0:
		return nil, c.bad("on", "it is empty: name a column of both tables")
	case !slices.Contains([]string{tables.Inner, tables.Left, tables.Semi, tables.Anti}, how):
		return nil, c.bad("how", "there is no join %q: it is inner, left, semi or anti", how)
	}
	fields, places, err := c.joined(left, right, rightOn, how)
	if err != nil {
		return nil, err
	}
	return wholeTable(c, []string{"left", "right"}, func(ctx context.Context, batches []arrow.RecordBatch, alloc Allocator) (any, error) {
		work := tablesCall(ctx)
		leftRows, rightRows, err := work.Join(batches[0], batches[1], leftOn, rightOn, how, c.bool("nulls_equal"))
		if err != nil {
			return nil, refusedRows(ctx, c, "on", err)
		}
		part, err := rowsOf(ctx, batches[0], leftRows)
		if err != nil {
			return nil, refusedRows(ctx, c, "left", err)
		}
		columns := part.Columns()
		for _, at := range places {
			values, err := work.Take(batches[1].ColumnName(at), batches[1].Column(at), rightRows)
			if err != nil {
				return nil, refusedRows(ctx, c, "right", err)
			}
			columns = append(columns, values)
		}
		out := array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, int64(len(leftRows)))
		return value[*Table](c, "left").made(ctx, c, out, alloc)
	}), nil
}

// joined returns the columns of the result of a join, and the places of those of the right table.
func (c *call) joined(left, right *arrow.Schema, rightOn []int, how string) ([]arrow.Field, []int, error) {
	fields, used := slices.Clone(left.Fields()), map[string]bool{}
	for _, f := range fields {
		used[f.Name] = true
	}
	if how == tables.Semi || how == tables.Anti {
		return fields, nil, nil
	}
	var places []int
	for at, f := range right.Fields() {
		if slices.Contains(rightOn, at) {
			continue
		}
		if used[f.Name] {
			f.Name += c.string("suffix")
		}
		if used[f.Name] {
			return nil, nil, c.bad("suffix", "two columns of the result are named %q: give another suffix", f.Name)
		}
		used[f.Name] = true
		f.Nullable = f.Nullable || how == tables.Left
		fields, places = append(fields, f), append(places, at)
	}
	return fields, places, nil
}
