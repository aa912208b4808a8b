package ops

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/worker/tables"
)

func tableSortOps() []*Op {
	return []*Op{{
		Name:      "table.sort",
		Processor: true,
		Doc:       "Sorts the rows of a table by columns.",
		Details: "Rows that are equal in all columns of `by` keep their order. NaN is larger than all numbers, and -0.0 equals 0.0. Text is sorted by its bytes. " +
			"Values of an ordered dictionary, such as an Enum of Polars, have the order of the dictionary.",
		Params: []Param{
			{Name: "x", Type: TableType, Required: true, Doc: "the table"},
			{Name: "by", Type: AnyType, Required: true, Doc: "the name of a column, or a list of names, the most significant first"},
			{Name: "descending", Type: AnyType, Default: false, Doc: "a bool, or a list of one for each column"},
			{Name: "nulls_last", Type: AnyType, Default: false, Doc: "a bool, or a list of one for each column; false: nulls come first, also if the order is descending"},
		},
		Result: "a table with copies of all rows, of the same schema",
		Errors: []string{contradictsTable, refusedTypes, "INVALID_ARGUMENT, with the column and its type, if its values have no order: lists, maps and structs"},
		Example: Example{
			[]string{
				`{"key": "unsorted table", "op": "table.make", "args": [{"id": [3, 1, 2]}]}`,
				`{"key": "sorted table", "op": "table.sort", "args": [{"input": "unsorted table"}, "id"], "kwargs": {"descending": true}}`,
			},
			`{"table": "", "rows": 3, "columns": [{"name": "id", "type": "int64"}], "columnCount": 1}`,
		},
		plan: planTableSort,
	}}
}

func planTableSort(c *call) (*Planned, error) {
	schema, err := c.schemaOf("x")
	if err != nil {
		return nil, err
	}
	by, err := c.columnsOf("by", schema)
	if err != nil {
		return nil, err
	}
	if len(by) == 0 {
		return nil, c.bad("by", "it is empty: name a column")
	}
	descending, err := c.flags("descending", len(by))
	if err != nil {
		return nil, err
	}
	last, err := c.flags("nulls_last", len(by))
	if err != nil {
		return nil, err
	}
	order := make([]tables.SortKey, len(by))
	for i, at := range by {
		order[i] = tables.SortKey{Column: at, Descending: descending[i], NullsLast: last[i]}
	}
	return wholeTable(c, []string{"x"}, func(ctx context.Context, batches []arrow.RecordBatch, alloc Allocator) (any, error) {
		rows, err := tablesCall(ctx).Sort(batches[0], order)
		if err != nil {
			return nil, refusedRows(ctx, c, "by", err)
		}
		return takeTable(ctx, c, batches[0], rows, alloc)
	}), nil
}

// flags returns n bools: those of a list, or one for all.
func (c *call) flags(argument string, n int) ([]bool, error) {
	given, ok := c.value(argument).([]any)
	if !ok {
		given = make([]any, n)
		for i := range given {
			given[i] = c.value(argument)
		}
	}
	if len(given) != n {
		return nil, c.bad(argument, "it has %d bools for %d columns", len(given), n)
	}
	flags := make([]bool, n)
	for i, v := range given {
		scalar, err := c.scalarOf(argument, v)
		if err != nil {
			return nil, err
		}
		if flags[i], ok = scalar.(bool); !ok {
			return nil, c.bad(argument, "expected a bool or a list of bools, got %s", describe(v))
		}
	}
	return flags, nil
}
