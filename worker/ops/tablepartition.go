package ops

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/worker/tables"
)

func tablePartitionOps() []*Op {
	return []*Op{{
		Name:      "table.partition",
		Processor: true,
		Doc:       "Divides the rows of a table into pieces.",
		Details: "Rows whose values in the columns `by` are equal are in one piece. The piece follows from these values alone, by the hash of " +
			"shuffle.md, so pieces of different tables and clients match. Rows keep their order.\n\n" +
			"Each piece lies in one frame, and a task that takes one item of the list reads only this frame. A dictionary is copied to each piece if " +
			"the copies are together no larger than the table; else a piece has only the values that its rows use. Ordered dictionaries keep all values.",
		Params: []Param{
			{Name: "x", Type: TableType, Required: true, Doc: "the table"},
			{Name: "by", Type: AnyType, Required: true, Doc: "the name of a column, or a list of names; null: the rows take turns, or have `numbers`"},
			{Name: "n", Type: IntType, Required: true, Doc: "the number of pieces, at least 1"},
			{Name: "numbers", Type: AnyType, Doc: "instead of `by`: the name of a column of integers, or a tensor of them, with the piece of each row, from 0 to n - 1"},
		},
		ReadsOnce: true,
		Result:    "a list of n tables of the same schema",
		Errors: []string{
			"INVALID_ARGUMENT if the bytes of the table contradict its schema, or if a column cannot be hashed or copied: maps, unions and list views",
			"INVALID_ARGUMENT if the descriptions of all pieces together are larger than a result may be",
		},
		Example: Example{
			[]string{
				`{"key": "people", "op": "table.make", "args": [{"id": [1, 2, 3, 4], "age": [30, 41, 30, 52]}]}`,
				`{"key": "pieces", "op": "table.partition", "args": [{"input": "people"}, "age", 2]}`,
			},
			`[{"table": "", "rows": 2, "columns": [{"name": "age", "type": "int64"}, {"name": "id", "type": "int64"}], "columnCount": 2}, {"table": "", "rows": 2, "columns": [{"name": "age", "type": "int64"}, {"name": "id", "type": "int64"}], "columnCount": 2}]`,
		},
		plan: planPartition,
	}}
}

// The bytes of a node and of a buffer in the description of a table, about.
const (
	nodeBytes   = 8
	bufferBytes = 14
)

// maxListBytes is the limit of the descriptions of a result.
const maxListBytes = 16 << 20

func planPartition(c *call) (*Planned, error) {
	x, n := value[*Table](c, "x"), c.int("n")
	switch {
	case n < 1:
		return nil, c.bad("n", "%d pieces: at least 1 is needed", n)
	case c.has("by") && c.has("numbers"):
		return nil, c.bad("numbers", "given beside by: give one of them, and null as the other")
	}
	described := int64(len(x.Layout.Schema)) + nodeBytes*int64(len(x.Layout.Nodes)) + bufferBytes*int64(len(x.Layout.Buffers))
	for _, column := range x.Columns {
		described += int64(len(column.Name) + len(column.Type))
	}
	if n > 1 && n > maxListBytes/max(described, 1) {
		return nil, c.bad("n", "%d pieces of %d columns have descriptions of %d bytes each, and all together may have %d: take at most %d pieces, or fewer columns",
			n, x.ColumnCount, described, maxListBytes, max(maxListBytes/max(described, 1), 1))
	}
	schema, err := c.schemaOf("x")
	if err != nil {
		return nil, err
	}
	var by []int
	if c.has("by") {
		if by, err = c.columnsOf("by", schema); err != nil {
			return nil, err
		}
		if len(by) == 0 {
			return nil, c.bad("by", "an empty list: give the name of at least one column")
		}
	}
	own, given := -1, (*Tensor)(nil)
	if name, ok := c.value("numbers").(string); ok {
		own, err = c.columnOf("numbers", schema, name)
	} else if c.has("numbers") {
		given, err = c.numbers(x.Layout.Rows)
	}
	if err != nil {
		return nil, err
	}
	return wholeTable(c, []string{"x"}, func(ctx context.Context, batches []arrow.RecordBatch, alloc Allocator) (any, error) {
		numbering, err := c.numbering(ctx, batches[0], by, own, given, int(n))
		if err != nil {
			return nil, err
		}
		return partition(ctx, c, x, batches[0], int(n), numbering, alloc)
	}), nil
}

// numbers returns the parameter of this name, which is a tensor.
func (c *call) numbers(rows int64) (*Tensor, error) {
	t, err := c.tensorOf("numbers", c.value("numbers"))
	if err != nil {
		return nil, err
	}
	if t.DType != Int64 && t.DType != Int32 && t.DType != Uint8 || t.NDim() != 1 || t.Len() != rows {
		return nil, c.bad("numbers", "expected the name of a column, or %d integers, got %s", rows, describe(t))
	}
	return t, nil
}

// numbering says which piece each row of a table is in: by the columns at some places, by the
// column of numbers at own if that is not negative, or by given numbers.
func (c *call) numbering(ctx context.Context, batch arrow.RecordBatch, by []int, own int, given *Tensor, n int) (tables.Numbering, error) {
	switch {
	case own >= 0:
		numbering, err := tables.Given(batch.Column(own), n)
		if err != nil {
			return nil, c.bad("numbers", "column %q: %v", batch.ColumnName(own), err)
		}
		return numbering, nil
	case given != nil:
		flat, err := inType(ctx, given, Int64)
		if err != nil {
			return nil, err
		}
		values := elements[int64](flat)
		return func(from int, into []uint32) error {
			for i, v := range values[from : from+len(into)] {
				if v < 0 || v >= int64(n) {
					return c.bad("numbers", "row %d has the number %d: give each row one from 0 to %d", from+i, v, n-1)
				}
				into[i] = uint32(v)
			}
			return nil
		}, nil
	case len(by) == 0:
		return tables.InTurn(n), nil
	}
	names, columns := make([]string, len(by)), make([]arrow.Array, len(by))
	for i, at := range by {
		names[i], columns[i] = batch.ColumnName(at), batch.Column(at)
	}
	numbering, err := tables.ByHash(names, columns, n)
	if err != nil {
		return nil, c.bad("by", "%v", err)
	}
	return numbering, nil
}

// partition makes the pieces of a table.
func partition(ctx context.Context, c *call, x *Table, batch arrow.RecordBatch, n int, numbering tables.Numbering, alloc Allocator) (any, error) {
	parts, err := tablesCall(ctx).Partition(batch, n, numbering)
	if err != nil {
		return nil, refusedRows(ctx, c, "x", err)
	}
	frames := make([][]byte, n)
	pieces := make([]any, n)
	for i, layout := range parts.Layouts {
		piece := *x
		piece.Layout, piece.Frames = layout, nil
		piece.Layout.Schema = x.Layout.Schema // byte for byte
		if size := parts.FrameBytes[i]; size > 0 {
			t, err := allocate(alloc, Uint8, []int64{size})
			if err != nil {
				return nil, err
			}
			piece.Frames, frames[i] = []*Tensor{t}, t.raw()
		}
		pieces[i] = &piece
	}
	return pieces, parts.Write(frames)
}
