package ops

import (
	"context"
	"maps"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/internal/arrowtable"
)

// Table is a table in Arrow's layout. It does not own its frames: the creator of the table keeps
// their bytes alive and unchanged while an operation reads them.
type Table struct {
	// Layout refers to Frames by index. It may come from anywhere: arrowtable.Read checks it.
	Layout arrowtable.Layout
	// Frames are contiguous tensors of bytes.
	Frames []*Tensor
	// TypeName is the type that a library had given the table.
	TypeName string
	// Columns describes the first columns, and ColumnCount is the number of all, for people.
	Columns     []arrowtable.Column
	ColumnCount int
}

// batch returns the rows, which lie in the frames.
func (t *Table) batch() (arrow.RecordBatch, error) {
	frames := make([][]byte, len(t.Frames))
	for i, f := range t.Frames {
		frames[i] = f.raw()
	}
	return arrowtable.Read(t.Layout, frames)
}

// in returns the table with other frames, which have the same bytes.
func (t *Table) in(frames []*Tensor) *Table {
	out := *t
	out.Frames = frames
	return &out
}

func tableOps() []*Op {
	return []*Op{
		{
			Name:      "table.make",
			Processor: true,
			Doc:       "Makes a table of tensors.",
			Params: []Param{{
				Name: "columns", Type: AnyType, Required: true,
				Doc: "a map from the names of the columns to their values: tensors of real numbers or bools with one axis, of equal lengths",
			}},
			ReadsOnce: true,
			Result:    "a table with copies of the values, without nulls; its columns have the order of their names",
			Example: Example{
				[]string{`{"key": "made", "op": "table.make", "args": [{"x": [1.5, 2.5, 3.5], "id": [1, 2, 3]}]}`},
				`{"table": "", "rows": 3, "columns": [{"name": "id", "type": "int64"}, {"name": "x", "type": "float64"}], "columnCount": 2}`,
			},
			plan: planMake,
		},
		{
			Name:      "table.slice",
			Processor: true,
			Doc:       "Selects a range of rows of a table.",
			Details: "The range ends where the table ends, so it may have fewer rows than `length`. The result has bytes of these rows only, except " +
				"for dictionaries and the text of columns of views, which are copied as a whole.",
			Params: []Param{
				{Name: "x", Type: TableType, Required: true, Doc: "the table"},
				{Name: "start", Type: IntType, Default: int64(0), Doc: "the first row, counted from 0; a negative one counts from the end"},
				{Name: "length", Type: IntType, Doc: "the number of rows; null: all that follow"},
			},
			ReadsOnce: true,
			Result:    "a table with copies of the rows, of the same schema",
			Errors:    []string{"INVALID_ARGUMENT if the bytes of the table contradict its schema, or if it has list views"},
			Example: Example{
				[]string{
					`{"key": "table", "op": "table.make", "args": [{"id": [1, 2, 3, 4]}]}`,
					`{"key": "rows", "op": "table.slice", "args": [{"input": "table"}, 1, 2]}`,
				},
				`{"table": "", "rows": 2, "columns": [{"name": "id", "type": "int64"}], "columnCount": 1}`,
			},
			plan: planTableSlice,
		},
	}
}

// arrowTypes are Arrow's types of the dtypes. Arrow has no complex numbers.
var arrowTypes = map[DType]arrow.DataType{
	Bool: arrow.FixedWidthTypes.Boolean, Uint8: arrow.PrimitiveTypes.Uint8, Int32: arrow.PrimitiveTypes.Int32,
	Int64: arrow.PrimitiveTypes.Int64, Float32: arrow.PrimitiveTypes.Float32, Float64: arrow.PrimitiveTypes.Float64,
}

func planMake(c *call) (*Planned, error) {
	given, ok := c.value("columns").(map[string]any)
	if !ok {
		return nil, c.bad("columns", "expected a map from names to tensors, got %s", describe(c.value("columns")))
	}
	var fields []arrow.Field
	var columns []*Tensor
	var layout arrowtable.Layout
	var frameBytes int64
	for i, name := range slices.Sorted(maps.Keys(given)) {
		x, err := c.tensorOf("columns", given[name])
		if err != nil {
			return nil, err
		}
		kind := arrowTypes[x.DType]
		switch {
		case kind == nil:
			return nil, c.bad("columns", "column %q: a table has no numbers of type %s", name, x.DType.String())
		case x.NDim() != 1:
			return nil, c.bad("columns", "column %q: expected one axis, got %s", name, describe(x))
		case i > 0 && x.Len() != layout.Rows:
			return nil, c.bad("columns", "column %q has %d values, and the columns before it have %d", name, x.Len(), layout.Rows)
		}
		layout.Rows = x.Len()
		n := x.Bytes()
		if x.DType == Bool {
			n = pieces(layout.Rows, 8)
		}
		if frameBytes > math.MaxInt64/16-n {
			return nil, c.bad("columns", "the columns are larger than any memory")
		}
		fields, columns = append(fields, arrow.Field{Name: name, Type: kind}), append(columns, x)
		layout.Nodes = append(layout.Nodes, arrowtable.Node{Rows: layout.Rows})
		layout.Buffers = append(layout.Buffers, arrowtable.Buffer{}, arrowtable.Buffer{Offset: frameBytes, Bytes: n})
		frameBytes += pieces(n, arrowtable.Alignment) * arrowtable.Alignment
	}
	schema := arrow.NewSchema(fields, nil)
	var err error
	if layout.Schema, err = arrowtable.EncodeSchema(schema, memory.DefaultAllocator); err != nil {
		return nil, err
	}
	made := &Table{Layout: layout, Columns: arrowtable.Describe(schema), ColumnCount: len(fields)}
	p := &Planned{run: func(ctx context.Context, outs []*Tensor) (any, error) {
		if len(outs) > 0 {
			clear(outs[0].raw())
		}
		for i, x := range columns {
			at := layout.Buffers[2*i+1]
			if at.Bytes == 0 {
				continue
			}
			room := outs[0].raw()[at.Offset : at.Offset+at.Bytes]
			if err := copyColumn(ctx, room, x); err != nil {
				return nil, err
			}
		}
		return made.in(outs), nil
	}}
	if frameBytes > 0 {
		p.Outputs = []Output{{Uint8, []int64{frameBytes}}}
	}
	return p, nil
}

// copyColumn copies values to the buffer of a column, which has no gaps. Bools become bits.
func copyColumn(ctx context.Context, room []byte, x *Tensor) error {
	if x.DType != Bool {
		return copyInto(ctx, contiguous(x.DType, x.Shape, room), x)
	}
	flags, err := inType(ctx, x, Bool)
	if err != nil {
		return err
	}
	values := elements[uint8](flags)
	return eachPiece(ctx, len(room), checkEvery, func(from, to int) error {
		for i := from; i < to; i++ {
			for bit, v := range values[8*i : min(8*i+8, len(values))] {
				room[i] |= (v & 1) << bit
			}
		}
		return nil
	})
}

func planTableSlice(c *call) (*Planned, error) {
	x, start, length := value[*Table](c, "x"), c.int("start"), c.int("length")
	if length < 0 {
		return nil, c.bad("length", "%d is negative: give the number of rows, or null for all", length)
	}
	rows := x.Layout.Rows
	if start < 0 {
		start += rows
	}
	// A range may begin before the first row.
	end := rows
	if c.has("length") && start < rows-length {
		end = start + length
	}
	from := min(max(start, 0), rows)
	end = max(end, from)
	return &Planned{Late: true, runWhole: func(ctx context.Context, alloc Allocator) (any, error) {
		return sliceTable(ctx, c, x, from, end, alloc)
	}}, nil
}

// sliceTable returns copies of the rows from the first to the one before end.
func sliceTable(ctx context.Context, c *call, x *Table, first, end int64, alloc Allocator) (any, error) {
	batch, err := x.batch()
	if err != nil {
		return nil, c.bad("x", "%v", err)
	}
	part, err := arrowtable.Slice(batch, first, end)
	if err != nil {
		return nil, c.bad("x", "%v", err)
	}
	out := *x
	return &out, out.put(ctx, c, part, x.Layout.Schema, alloc)
}

// scratchAllocator gives working memory of a call to Arrow's library. It panics with an error that
// matches ErrNoScratch, because the library expects memory of each request.
type scratchAllocator struct {
	ctx context.Context //nolint:containedctx // it lives as long as the call
}

// Allocate is part of memory.Allocator.
func (a scratchAllocator) Allocate(n int) []byte {
	b, err := scratchBytes(a.ctx, int64(n))
	if err != nil {
		panic(err)
	}
	clear(b)
	return b
}

// Reallocate is part of memory.Allocator.
func (a scratchAllocator) Reallocate(n int, b []byte) []byte {
	if n <= cap(b) {
		return b[:n]
	}
	larger := a.Allocate(n)
	copy(larger, b)
	return larger
}

// Free is part of memory.Allocator. The memory is given back when the call ends.
func (scratchAllocator) Free([]byte) {}

var _ memory.Allocator = scratchAllocator{}

// tableOf returns an argument as a table.
func (c *call) tableOf(p *Param, value any) (*Table, error) {
	t, ok := value.(*Table)
	if !ok || t == nil {
		return nil, c.unexpected(p, value)
	}
	if t.Layout.Rows < 0 {
		return nil, c.bad(p.Name, "it has %d rows", t.Layout.Rows)
	}
	for _, f := range t.Frames {
		if f.DType != Uint8 || f.NDim() != 1 {
			return nil, c.bad(p.Name, "a frame of it is %s", describe(f))
		}
		if err := c.checkTensor(f); err != nil {
			return nil, c.bad(p.Name, "%v", err)
		}
		if !f.Contiguous() {
			return nil, c.bad(p.Name, "a frame of it has gaps")
		}
	}
	return t, nil
}
