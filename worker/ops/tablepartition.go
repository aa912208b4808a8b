package ops

import (
	"context"
	"errors"
	"strings"

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
	own := int64(len(x.Layout.Schema)) + nodeBytes*int64(len(x.Layout.Nodes)) + bufferBytes*int64(len(x.Layout.Buffers))
	for _, column := range x.Columns {
		own += int64(len(column.Name) + len(column.Type))
	}
	if n > 1 && n > maxListBytes/max(own, 1) {
		return nil, c.bad("n", "%d pieces of %d columns have descriptions of %d bytes each, and all together may have %d: take at most %d pieces, or fewer columns",
			n, x.ColumnCount, own, maxListBytes, max(maxListBytes/max(own, 1), 1))
	}
	var names []string
	if c.has("by") {
		list, ok := c.value("by").([]any)
		if !ok {
			list = []any{c.value("by")}
		}
		for _, v := range list {
			name, ok := v.(string)
			if !ok {
				return nil, c.bad("by", "expected the name of a column, or a list of names, got %s", describe(c.value("by")))
			}
			names = append(names, name)
		}
		if len(names) == 0 {
			return nil, c.bad("by", "an empty list: give the name of at least one column")
		}
	}
	given, err := c.numbers(x.Layout.Rows)
	if err != nil {
		return nil, err
	}
	return &Planned{Late: true, runWhole: func(ctx context.Context, alloc Allocator) (any, error) {
		batch, err := x.batch()
		if err != nil {
			return nil, c.bad("x", "%v", err)
		}
		numbering, err := c.numbering(ctx, batch, names, given, int(n))
		if err != nil {
			return nil, err
		}
		return partition(ctx, c, x, batch, int(n), numbering, alloc)
	}}, nil
}

// numbers returns the parameter of this name if it is a tensor.
func (c *call) numbers(rows int64) (*Tensor, error) {
	if _, isName := c.value("numbers").(string); isName || !c.has("numbers") {
		return nil, nil
	}
	t, err := c.tensorOf("numbers", c.value("numbers"))
	if err != nil {
		return nil, err
	}
	if t.DType != Int64 && t.DType != Int32 && t.DType != Uint8 || t.NDim() != 1 || t.Len() != rows {
		return nil, c.bad("numbers", "expected the name of a column, or %d integers, got %s", rows, describe(t))
	}
	return t, nil
}

// numbering says which piece each row of a table is in.
func (c *call) numbering(ctx context.Context, batch arrow.RecordBatch, names []string, given *Tensor, n int) (tables.Numbering, error) {
	switch name, isName := c.value("numbers").(string); {
	case isName:
		column, err := c.column("numbers", batch, name)
		if err != nil {
			return nil, err
		}
		numbering, err := tables.Given(column, n)
		if err != nil {
			return nil, c.bad("numbers", "column %q: %v", name, err)
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
	case len(names) == 0:
		return tables.InTurn(n), nil
	}
	var columns []arrow.Array
	for _, name := range names {
		column, err := c.column("by", batch, name)
		if err != nil {
			return nil, err
		}
		columns = append(columns, column)
	}
	numbering, err := tables.ByHash(names, columns, n)
	if err != nil {
		return nil, c.bad("by", "%v", err)
	}
	return numbering, nil
}

// column returns the column of a table that an argument names.
func (c *call) column(param string, batch arrow.RecordBatch, name string) (arrow.Array, error) {
	at := batch.Schema().FieldIndices(name)
	switch len(at) {
	case 1:
		return batch.Column(at[0]), nil
	case 0:
		var names []string
		for _, f := range batch.Schema().Fields() {
			names = append(names, f.Name)
		}
		hint := suggest(name, names)
		if hint == "" {
			hint = ": there are " + strings.Join(names[:min(len(names), 20)], ", ")
		}
		return nil, c.bad(param, "no column %q%s", name, hint)
	}
	return nil, c.bad(param, "%d columns have the name %q: give them different names", len(at), name)
}

// partition makes the pieces of a table.
func partition(ctx context.Context, c *call, x *Table, batch arrow.RecordBatch, n int, numbering tables.Numbering, alloc Allocator) (any, error) {
	parts, err := tables.Partition(meansOf(ctx), batch, n, numbering)
	if err != nil {
		return nil, tableError(c, "x", err)
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

// meansOf returns the processors and the working memory of a call.
func meansOf(ctx context.Context) tables.Means {
	return tables.Means{
		Each:    func(n int, do func(int) error) error { return parallel(ctx, n, do) },
		Scratch: func(bytes int64) ([]byte, error) { return scratchBytes(ctx, bytes) },
	}
}

// tableError returns an error of package tables: it is one of an argument, unless the call ran out
// of working memory or was cancelled.
func tableError(c *call, param string, err error) error {
	if ours := (*Error)(nil); errors.As(err, &ours) || errors.Is(err, ErrNoScratch) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return c.bad(param, "%v", err)
}
