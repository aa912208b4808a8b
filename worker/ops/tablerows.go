package ops

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/millrace/millrace/worker/tables"
)

const (
	refusedTypes     = "INVALID_ARGUMENT if a column is of unions, runs or list views, which cannot be selected: cast it"
	contradictsTable = "INVALID_ARGUMENT if the bytes of the table contradict its schema"
)

func tableRowsOps() []*Op {
	return []*Op{
		{
			Name:      "table.select",
			Processor: true,
			Doc:       "Selects columns of a table.",
			Params: []Param{
				{Name: "x", Type: TableType, Required: true, Doc: "the table"},
				{Name: "columns", Type: AnyType, Required: true, Doc: "the name of a column, or a list of names, in the order of the result"},
			},
			ReadsOnce: true,
			Result:    "a table with copies of these columns",
			Errors:    []string{contradictsTable + ", or if it has list views"},
			Example: Example{
				[]string{
					`{"key": "wide", "op": "table.make", "args": [{"id": [1, 2, 3], "x": [0.5, 1.5, 2.5], "y": [7, 8, 9]}]}`,
					`{"key": "narrow", "op": "table.select", "args": [{"input": "wide"}, ["x", "id"]]}`,
				},
				`{"table": "", "rows": 3, "columns": [{"name": "x", "type": "float64"}, {"name": "id", "type": "int64"}], "columnCount": 2}`,
			},
			plan: planTableSelect,
		},
		{
			Name:      "table.filter",
			Processor: true,
			Doc:       "Selects the rows of a table for which a condition holds.",
			Params: []Param{
				{Name: "x", Type: TableType, Required: true, Doc: "the table"},
				{Name: "mask", Type: AnyType, Required: true, Doc: "a tensor of bools, one for each row, or the name of a column of bools; a row whose bool is null is not taken"},
			},
			ReadsOnce: true,
			Result:    "a table with copies of the rows, in their order, of the same schema",
			Errors:    []string{contradictsTable, refusedTypes},
			Example: Example{
				[]string{
					`{"key": "flagged", "op": "table.make", "args": [{"id": [1, 2, 3], "good": [true, false, true]}]}`,
					`{"key": "kept", "op": "table.filter", "args": [{"input": "flagged"}, "good"]}`,
				},
				`{"table": "", "rows": 2, "columns": [{"name": "good", "type": "bool"}, {"name": "id", "type": "int64"}], "columnCount": 2}`,
			},
			plan: planTableFilter,
		},
		{
			Name:      "table.take",
			Processor: true,
			Doc:       "Selects rows of a table by their numbers.",
			Params: []Param{
				{Name: "x", Type: TableType, Required: true, Doc: "the table"},
				{Name: "rows", Type: TensorType, Required: true, Doc: "integers, with one axis: the numbers of the rows, counted from 0, in any order, also several times; a negative one counts from the end"},
			},
			Result: "a table with copies of the rows, in the order of their numbers, of the same schema",
			Errors: []string{"OP_FAILED, with the first position, if a number is outside of the table", contradictsTable, refusedTypes},
			Example: Example{
				[]string{
					`{"key": "counted", "op": "table.make", "args": [{"id": [1, 2, 3]}]}`,
					`{"key": "taken", "op": "table.take", "args": [{"input": "counted"}, [2, 0, 0, -1]]}`,
				},
				`{"table": "", "rows": 4, "columns": [{"name": "id", "type": "int64"}], "columnCount": 1}`,
			},
			plan: planTableTake,
		},
	}
}

func planTableSelect(c *call) (*Planned, error) {
	schema, err := c.schemaOf("x")
	if err != nil {
		return nil, err
	}
	places, err := c.columnsOf("columns", schema)
	if err != nil {
		return nil, err
	}
	return wholeTable(c, []string{"x"}, func(ctx context.Context, batches []arrow.RecordBatch, alloc Allocator) (any, error) {
		var fields []arrow.Field
		var columns []arrow.Array
		for _, at := range places {
			fields = append(fields, batches[0].Schema().Field(at))
			columns = append(columns, batches[0].Column(at))
		}
		meta := batches[0].Schema().Metadata()
		part := array.NewRecordBatch(arrow.NewSchema(fields, &meta), columns, batches[0].NumRows())
		return value[*Table](c, "x").made(ctx, c, part, alloc)
	}), nil
}

func planTableFilter(c *call) (*Planned, error) {
	schema, err := c.schemaOf("x")
	if err != nil {
		return nil, err
	}
	x, at := value[*Table](c, "x"), -1
	var flags *Tensor
	if name, ok := c.value("mask").(string); ok {
		if at, err = c.columnOf("mask", schema, name); err != nil {
			return nil, err
		}
		if kind := schema.Field(at).Type; kind.ID() != arrow.BOOL {
			return nil, c.bad("mask", "column %q is of type %s: give the name of a column of bools, or a tensor of them", name, kind)
		}
	} else {
		if flags, err = c.tensorOf("mask", c.value("mask")); err != nil {
			return nil, err
		}
		if flags.DType != Bool || flags.NDim() != 1 || flags.Len() != x.Layout.Rows {
			return nil, c.bad("mask", "expected a bool for each of %d rows, got %s", x.Layout.Rows, describe(flags))
		}
	}
	return wholeTable(c, []string{"x"}, func(ctx context.Context, batches []arrow.RecordBatch, alloc Allocator) (any, error) {
		var rows []uint32
		var err error
		if flags == nil {
			rows, err = tablesCall(ctx).Taken(batches[0].Column(at).(*array.Boolean))
		} else {
			rows, err = trueRows(ctx, flags)
		}
		if err != nil {
			return nil, err
		}
		return takeTable(ctx, c, batches[0], rows, alloc)
	}), nil
}

// trueRows returns the numbers of the elements that are true.
func trueRows(ctx context.Context, flags *Tensor) ([]uint32, error) {
	t, err := inType(ctx, flags, Bool)
	if err != nil {
		return nil, err
	}
	values, n := elements[uint8](t), 0
	for _, v := range values {
		n += int(v & 1)
	}
	rows := tables.Room[uint32](tablesCall(ctx), n)
	n = 0
	for i, v := range values {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if v&1 != 0 {
			rows[n] = uint32(i)
			n++
		}
	}
	return rows, nil
}

func planTableTake(c *call) (*Planned, error) {
	numbers := c.tensor("rows")
	if numbers.Len() == 0 && numbers.DType == Float64 { // an empty list of numbers is one of floats
		numbers = &Tensor{DType: Int64, Shape: numbers.Shape, Strides: numbers.Strides}
	}
	if numbers.DType.kind() != intKind || numbers.NDim() != 1 {
		return nil, c.bad("rows", "expected integers with one axis, got %s", describe(numbers))
	}
	if err := tables.Check(numbers.Len()); err != nil {
		return nil, c.bad("rows", "%v", err)
	}
	return wholeTable(c, []string{"x"}, func(ctx context.Context, batches []arrow.RecordBatch, alloc Allocator) (any, error) {
		t, err := inType(ctx, numbers, Int64)
		if err != nil {
			return nil, err
		}
		n := batches[0].NumRows()
		rows := tables.Room[uint32](tablesCall(ctx), int(numbers.Len()))
		for i, row := range elements[int64](t) {
			if i%checkEvery == 0 && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if row < -n || row >= n {
				return nil, Failure(c.op.Name, "number %d at position %d of rows is outside of a table of %d rows", row, i, n)
			}
			if row < 0 {
				row += n
			}
			rows[i] = uint32(row)
		}
		return takeTable(ctx, c, batches[0], rows, alloc)
	}), nil
}

// takeTable returns the rows of the table x, whose batch it gets.
func takeTable(ctx context.Context, c *call, batch arrow.RecordBatch, rows []uint32, alloc Allocator) (any, error) {
	part, err := rowsOf(ctx, batch, rows)
	if err != nil {
		return nil, refusedRows(ctx, c, "x", err)
	}
	out := *value[*Table](c, "x")
	return &out, out.put(ctx, c, part, out.Layout.Schema, alloc)
}
