package ops

import (
	"context"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/worker/tables"
)

func tableAggregateOps() []*Op {
	return []*Op{{
		Name:      "table.aggregate",
		Processor: true,
		Doc:       "Groups the rows of a table by columns, and computes functions of the values of each group.",
		Details: "Rows with equal values in all columns of `by` are one group. Null is a value, NaN equals NaN, and -0.0 equals 0.0.\n\n" +
			"An aggregation is a list `[column, function]`, whose result is a column named `column_function`, or `[column, function, name]`. " +
			"The functions are those of Polars: " + strings.Join(tables.Functions(), ", ") + ". They skip nulls, except that `first` and `last` take the value as it is, " +
			"`len` counts rows, and `n_unique` counts null as one value. `min` and `max` skip NaN beside numbers. " +
			"`var` and `std` divide by the number of values less one. If no value is left, `sum` is 0 and the others are null.\n\n" +
			"Sums of integers of 8 and 16 bits are of type int64, those of larger ones have their own type and wrap around. Sums of bools and all counts are of type uint32. " +
			"Sums of decimals have 38 digits. Means and deviations are of type float64, those of float32 of this type.",
		Params: []Param{
			{Name: "x", Type: TableType, Required: true, Doc: "the table"},
			{Name: "by", Type: AnyType, Required: true, Doc: "the name of a column, or a list of names; an empty list: all rows are one group"},
			{Name: "aggregations", Type: ListType, Default: nil, Doc: "a list of aggregations; null: none, so the result has the different values of `by`"},
		},
		ReadsOnce: true,
		Result:    "a table with one row for each group, in the order of their first appearance: the columns `by`, then one for each aggregation",
		Errors: []string{
			contradictsTable,
			"INVALID_ARGUMENT, with the column and its type, if its values cannot be compared or have no such function: rows of lists, maps and structs are no keys, text has no sum",
		},
		Example: Example{
			[]string{
				`{"key": "sales", "op": "table.make", "args": [{"shop": [1, 2, 1, 2], "price": [2.5, 1.0, 3.5, 4.0]}]}`,
				`{"key": "shops", "op": "table.aggregate", "args": [{"input": "sales"}, "shop", [["price", "sum"], ["price", "count", "n"]]]}`,
			},
			`{"table": "", "rows": 2, "columns": [{"name": "shop", "type": "int64"}, {"name": "price_sum", "type": "float64"}, {"name": "n", "type": "uint32"}], "columnCount": 3}`,
		},
		plan: planTableAggregate,
	}}
}

func planTableAggregate(c *call) (*Planned, error) {
	schema, err := c.schemaOf("x")
	if err != nil {
		return nil, err
	}
	by, err := c.columnsOf("by", schema)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, at := range by {
		used[schema.Field(at).Name] = true
	}
	list := make([]tables.Aggregation, len(c.list("aggregations")))
	for i, given := range c.list("aggregations") {
		if list[i], err = c.aggregation(schema, given); err != nil {
			return nil, err
		}
		if used[list[i].Name] {
			return nil, c.bad("aggregations", "two columns of the result are named %q: add another name to the aggregation", list[i].Name)
		}
		used[list[i].Name] = true
	}
	return wholeTable(c, []string{"x"}, func(ctx context.Context, batches []arrow.RecordBatch, alloc Allocator) (any, error) {
		out, err := tablesCall(ctx).Aggregate(batches[0], by, list)
		if err != nil {
			return nil, refusedRows(ctx, c, "x", err)
		}
		return value[*Table](c, "x").made(ctx, c, out, alloc)
	}), nil
}

// aggregation reads [column, function] or [column, function, name].
func (c *call) aggregation(schema *arrow.Schema, given any) (a tables.Aggregation, err error) {
	list, ok := given.([]any)
	var parts []string
	for _, v := range list {
		part, isText := v.(string)
		ok = ok && isText
		parts = append(parts, part)
	}
	if !ok || len(parts) != 2 && len(parts) != 3 {
		return a, c.bad("aggregations", "expected a list [column, function] or [column, function, name], got %s", describe(given))
	}
	if a.Column, err = c.columnOf("aggregations", schema, parts[0]); err != nil {
		return a, err
	}
	if _, err = tables.ResultType(schema.Field(a.Column).Type, parts[1]); err != nil {
		return a, c.bad("aggregations", "column %q: %v", parts[0], err)
	}
	a.Function, a.Name = parts[1], parts[0]+"_"+parts[1]
	if len(parts) == 3 {
		a.Name = parts[2]
	}
	return a, nil
}
