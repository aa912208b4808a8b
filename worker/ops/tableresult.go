package ops

import (
	"context"
	"errors"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/internal/arrowtable"
	"github.com/millrace/millrace/worker/tables"
)

// put writes the rows of a batch into one new frame, and makes them those of the table.
func (t *Table) put(ctx context.Context, c *call, batch arrow.RecordBatch, schema []byte, alloc Allocator) error {
	plan, err := arrowtable.NewPlan(batch, scratchAllocator{ctx})
	switch {
	case errors.Is(err, ErrNoScratch):
		return err
	case err != nil:
		return c.bad("x", "%v", err)
	}
	defer plan.Release()
	t.Layout, t.Frames = plan.Layout, nil
	t.Layout.Schema = schema // byte for byte
	var room []byte
	if plan.FrameBytes > 0 {
		frame, err := allocate(alloc, Uint8, []int64{plan.FrameBytes})
		if err != nil {
			return err
		}
		t.Frames, room = []*Tensor{frame}, frame.raw()
	}
	return plan.Write(room, func(to, from []byte) error {
		return eachPiece(ctx, len(to), pieceBytes, func(i, n int) error {
			copy(to[i:n], from[i:n])
			return nil
		})
	})
}

// made returns a batch as a new table of the type that t has. A column becomes a frame.
func (t *Table) made(ctx context.Context, c *call, batch arrow.RecordBatch, alloc Allocator) (any, error) {
	schema, err := arrowtable.EncodeSchema(batch.Schema(), memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	out := &Table{TypeName: t.TypeName, Columns: arrowtable.Describe(batch.Schema()), ColumnCount: batch.Schema().NumFields()}
	if strings.HasPrefix(out.TypeName, "polars.") && strings.HasSuffix(out.TypeName, ".Series") {
		out.TypeName = "polars.DataFrame"
	}
	return out, out.put(ctx, c, batch, schema, alloc)
}

// tablesCall returns what package tables gets from an operation.
func tablesCall(ctx context.Context) *tables.Call {
	return &tables.Call{
		Scratch: func(bytes int64) ([]byte, error) { return scratchBytes(ctx, bytes) },
		Each:    func(n int, do func(i int) error) error { return parallel(ctx, n, do) },
		Err:     ctx.Err,
	}
}

// wholeTable plans an operation that reads the rows of the tables of parameters.
func wholeTable(c *call, names []string, run func(ctx context.Context, batches []arrow.RecordBatch, alloc Allocator) (any, error)) *Planned {
	list := make([]*Table, len(names))
	for i, name := range names {
		list[i] = value[*Table](c, name)
	}
	return wholeTables(c, list, func(i int) string { return names[i] }, run)
}

// wholeTables plans an operation that reads the rows of tables. nameOf returns the argument of one
// of them.
func wholeTables(c *call, list []*Table, nameOf func(i int) string, run func(ctx context.Context, batches []arrow.RecordBatch, alloc Allocator) (any, error)) *Planned {
	return &Planned{Late: true, runWhole: func(ctx context.Context, alloc Allocator) (result any, err error) {
		batches := make([]arrow.RecordBatch, len(list))
		for i, t := range list {
			batch, err := t.batch()
			if err == nil {
				err = tables.Check(batch.NumRows())
			}
			if err != nil {
				return nil, c.bad(nameOf(i), "%v", err)
			}
			batches[i] = batch
		}
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			result = nil
			if failure, ok := cause.(error); ok && errors.Is(failure, ErrNoScratch) {
				err = failure
				return
			}
			// The tables may come from anyone, and Arrow's library panics if parts of a table
			// contradict each other.
			for i, batch := range batches {
				if wrong := arrowtable.CheckRows(batch); wrong != nil {
					err = c.bad(nameOf(i), "%v", wrong)
					return
				}
			}
			panic(cause)
		}()
		return run(ctx, batches, alloc)
	}}
}

// refusedRows returns an error of package tables as one of an argument, except if it is one
// already, there was no memory, or the call was cancelled.
func refusedRows(ctx context.Context, c *call, argument string, err error) error {
	if ours := (*Error)(nil); ctx.Err() != nil || errors.Is(err, ErrNoScratch) || errors.As(err, &ours) {
		return err
	}
	return c.bad(argument, "%v", err)
}

// rowsOf returns a batch of the schema of another one, with its values at rows.
func rowsOf(ctx context.Context, batch arrow.RecordBatch, rows []uint32) (arrow.RecordBatch, error) {
	work := tablesCall(ctx)
	columns := make([]arrow.Array, batch.NumCols())
	for i, column := range batch.Columns() {
		var err error
		if columns[i], err = work.Take(batch.ColumnName(i), column, rows); err != nil {
			return nil, err
		}
	}
	return array.NewRecordBatch(batch.Schema(), columns, int64(len(rows))), nil
}

// schemaOf returns the schema of a table among the arguments.
func (c *call) schemaOf(name string) (*arrow.Schema, error) {
	schema, err := arrowtable.DecodeSchema(value[*Table](c, name).Layout)
	if err != nil {
		return nil, c.bad(name, "%v", err)
	}
	return schema, nil
}

// columnOf returns the place of the only column of a name in the table of an argument.
func (c *call) columnOf(argument string, schema *arrow.Schema, name string) (int, error) {
	found := schema.FieldIndices(name)
	switch len(found) {
	case 0:
		var names []string
		for _, f := range schema.Fields() {
			names = append(names, f.Name)
		}
		return 0, c.bad(argument, "the table has no column %q%s", name, suggestOr(name, names))
	case 1:
		return found[0], nil
	}
	return 0, c.bad(argument, "the table has %d columns %q: give each a name of its own", len(found), name)
}

// suggestOr returns names that resemble one, else all names if they are few.
func suggestOr(name string, all []string) string {
	const few = 8
	if hint := suggest(name, all); hint != "" || len(all) == 0 || len(all) > few {
		return hint
	}
	return ": it has " + strings.Join(all, ", ")
}

// columnsOf returns the places of the columns that an argument names: one text, or a list of them.
func (c *call) columnsOf(argument string, schema *arrow.Schema) ([]int, error) {
	given, ok := c.value(argument).([]any)
	if !ok {
		given = []any{c.value(argument)}
	}
	seen := map[int]bool{}
	var places []int
	for _, v := range given {
		name, ok := v.(string)
		if !ok {
			return nil, c.bad(argument, "expected the name of a column or a list of names, got %s", describe(v))
		}
		at, err := c.columnOf(argument, schema, name)
		if err != nil {
			return nil, err
		}
		if seen[at] {
			return nil, c.bad(argument, "column %q is named twice", name)
		}
		seen[at] = true
		places = append(places, at)
	}
	return places, nil
}
