package tables

import (
	"fmt"
	"math"
	"sort"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"

	"github.com/millrace/millrace/internal/arrowtable"
)

// Whole is the table of the rows of several tables. It has its place in a frame, and is not written
// yet.
type Whole struct {
	// Layout says where the buffers will be: all of them in frame 0. It has no schema: it is that
	// of the tables.
	Layout arrowtable.Layout
	// FrameBytes is the size of the frame. If it is 0, the table has no frame.
	FrameBytes int64
	// columns are in the order of the nodes of the layout.
	columns []*stacked
	call    *Call
}

// span is a range of the rows of an array.
type span struct {
	data arrow.ArrayData
	// first is the place of the first row in the buffers.
	first, rows int64
	// at is the number of rows of the column before it.
	at int64
}

// stacked is one column: the spans of all tables, one after the other.
type stacked struct {
	shape
	// name is that of the column of the table, for errors.
	name        string
	spans       []span
	rows, nulls int64
	// sizes are those of its buffers.
	sizes []int64
	// place is the number of the first buffer in the layout.
	place int
	// before is the number of bytes of text or of elements before each span.
	before []int64
	// of is the column whose runs have these ends.
	of *stacked
	// codes replace those of the dictionary of a span; nil: they stay.
	codes [][]uint32
	// texts are the places of the text of views, by span.
	texts []viewText
	// inside are the children of a dense union, by their number.
	inside []*stacked
}

// concatenation makes a Whole.
type concatenation struct {
	*Whole
	name         string // of the column, for errors
	dictionaries []values
}

// values are those of a dictionary that follows the columns.
type values struct {
	name  string
	kind  arrow.DataType
	spans []span
}

// Concat plans a table with the rows of all tables, which have columns of the same types: at least
// one table. Rows may come from anywhere: it is an error if they contradict each other.
func (c *Call) Concat(batches []arrow.RecordBatch) (*Whole, error) {
	b := &concatenation{Whole: &Whole{call: c}}
	for _, batch := range batches {
		b.Layout.Rows += batch.NumRows()
		if b.Layout.Rows >= int64(None) {
			return nil, fmt.Errorf("the result has %d rows or more, and %d can be counted: concatenate fewer tables", b.Layout.Rows, None-1)
		}
	}
	for i, field := range batches[0].Schema().Fields() {
		spans := make([]span, len(batches))
		for k, batch := range batches {
			data := batch.Column(i).Data()
			spans[k] = span{data: data, first: int64(data.Offset()), rows: int64(data.Len())}
		}
		b.name = field.Name
		if _, err := b.add(field.Type, spans); err != nil {
			return nil, fmt.Errorf("column %q: %w", b.name, err)
		}
	}
	for i := 0; i < len(b.dictionaries); i++ {
		d := b.dictionaries[i]
		b.name = d.name
		if _, err := b.add(d.kind, d.spans); err != nil {
			return nil, fmt.Errorf("column %q: its dictionary: %w", d.name, err)
		}
	}
	return b.Whole, b.layOut()
}

// maxRows is above every number of rows whose buffers fit into memory.
const maxRows = math.MaxInt64 / (1 << 17)

// add plans a column and those inside of it.
func (b *concatenation) add(kind arrow.DataType, spans []span) (*stacked, error) {
	s, err := shapeOf(kind)
	if err != nil {
		return nil, err
	}
	c := &stacked{shape: s, name: b.name, spans: spans}
	for i := range spans {
		p := &spans[i]
		if end := int64(p.data.Offset()) + int64(p.data.Len()); p.first < 0 || p.rows < 0 || p.first > end-p.rows {
			return nil, fmt.Errorf("a field has %d rows, and rows %d to %d are needed: the table contradicts itself, write it anew", end, p.first, p.first+p.rows)
		}
		if p.at = c.rows; p.rows > maxRows-c.rows {
			return nil, fmt.Errorf("the result has more than %d rows or elements: concatenate fewer tables", int64(maxRows))
		}
		c.rows += p.rows
	}
	b.columns = append(b.columns, c)
	if s.hasValidity() {
		if err := b.countNulls(c); err != nil {
			return nil, err
		}
	}
	return c, b.addValues(c, kind)
}

// addValues plans the buffers behind the validity of a column, and the columns inside of it.
func (b *concatenation) addValues(c *stacked, kind arrow.DataType) error {
	if c.dictionary != nil {
		c.sizes = append(c.sizes, c.rows*int64(c.width))
		return b.addCodes(c)
	}
	switch c.form {
	case formNull:
		c.nulls = c.rows
	case formBits:
		c.sizes = append(c.sizes, (c.rows+7)/8)
	case formFixed:
		c.sizes = append(c.sizes, c.rows*int64(c.width))
	case formText:
		return c.measure(func(p *span) int64 { return int64(len(bufferAt(p.data, 2))) })
	case formViews:
		return b.addViews(c)
	case formList:
		return b.addList(c, kind)
	case formFixedList:
		items := int64(c.items)
		if items > 0 && c.rows > maxRows/items {
			return fmt.Errorf("the result has more than %d rows or elements: concatenate fewer tables", int64(maxRows))
		}
		_, err := b.addChild(c, kind, 0, func(_ int, p *span) (first, rows int64) { return p.first * items, p.rows * items })
		return err
	case formStruct, formSparse:
		if c.form == formSparse {
			c.sizes = append(c.sizes, c.rows)
		}
		for child := range childTypes(kind) {
			if _, err := b.addChild(c, kind, child, func(_ int, p *span) (first, rows int64) { return p.first, p.rows }); err != nil {
				return err
			}
		}
	case formDense:
		return b.addDense(c, kind)
	case formRuns:
		return b.addRuns(c, kind)
	}
	return nil
}

// childTypes returns the fields inside of a type.
func childTypes(kind arrow.DataType) []arrow.Field {
	return storage(kind).(arrow.NestedType).Fields()
}

// addChild plans a column inside of another one. part says which rows a span of this one has.
func (b *concatenation) addChild(c *stacked, kind arrow.DataType, child int, part func(i int, p *span) (first, rows int64)) (*stacked, error) {
	spans := make([]span, len(c.spans))
	for i := range c.spans {
		data := c.spans[i].data.Children()[child]
		first, rows := part(i, &c.spans[i])
		spans[i] = span{data: data, first: int64(data.Offset()) + first, rows: rows}
	}
	return b.add(childTypes(kind)[child].Type, spans)
}

// countNulls finds the nulls, and plans the bitmap.
func (b *concatenation) countNulls(c *stacked) error {
	var nulls atomic.Int64
	err := b.call.Each(len(c.spans), func(i int) error {
		p := &c.spans[i]
		if valid := bufferAt(p.data, 0); len(valid) > 0 && p.data.NullN() != 0 {
			nulls.Add(p.rows - int64(bitutil.CountSetBits(valid, int(p.first), int(p.rows))))
		}
		return nil
	})
	size := int64(0)
	if c.nulls = nulls.Load(); c.nulls > 0 {
		size = (c.rows + 7) / 8
	}
	c.sizes = append(c.sizes, size)
	return err
}

// ends returns the offsets of a span.
func (c *stacked) ends(p *span) offsets { return offsetsOf(bufferAt(p.data, 1), c.width) }

// extent returns where the text or the elements of a span begin and end.
func (c *stacked) extent(p *span) (from, to int64) {
	if p.rows == 0 {
		return 0, 0
	}
	ends := c.ends(p)
	from, _ = ends.row(p.first)
	_, to = ends.row(p.first + p.rows - 1)
	return from, to
}

// measure plans the offsets of text or lists, and appends the number of their bytes or elements to
// the sizes. limit is that of a span.
func (c *stacked) measure(limit func(p *span) int64) error {
	c.before = make([]int64, len(c.spans))
	total := int64(0)
	for i := range c.spans {
		p := &c.spans[i]
		from, to := c.extent(p)
		if from < 0 || to < from || to > limit(p) {
			return fmt.Errorf("%d rows have elements %d to %d of %d: the table contradicts itself, write it anew", p.rows, from, to, limit(p))
		}
		c.before[i] = total
		total += to - from
	}
	if c.width == 4 && total > math.MaxInt32 {
		return fmt.Errorf("the result has %d bytes of text or elements, and the offsets of its type reach to %d: cast the column to its large type", total, math.MaxInt32)
	}
	size := int64(0)
	if c.rows > 0 {
		size = (c.rows + 1) * int64(c.width)
	}
	c.sizes = append(c.sizes, size, total)
	return nil
}

// addList plans the elements of lists.
func (b *concatenation) addList(c *stacked, kind arrow.DataType) error {
	if err := c.measure(func(p *span) int64 { return int64(p.data.Children()[0].Len()) }); err != nil {
		return err
	}
	c.sizes = c.sizes[:len(c.sizes)-1]
	_, err := b.addChild(c, kind, 0, func(_ int, p *span) (first, rows int64) {
		from, to := c.extent(p)
		return from, to - from
	})
	return err
}

// addDense plans the children of a dense union: all their rows, because only a pass over the codes
// says which of them a span has.
func (b *concatenation) addDense(c *stacked, kind arrow.DataType) error {
	c.sizes = append(c.sizes, c.rows, 4*c.rows)
	for child := range childTypes(kind) {
		inside, err := b.addChild(c, kind, child, func(_ int, p *span) (first, rows int64) {
			if p.rows == 0 {
				return 0, 0
			}
			return 0, int64(p.data.Children()[child].Len())
		})
		if err != nil {
			return err
		}
		if inside.rows > math.MaxInt32 {
			return fmt.Errorf("a child of the union has %d rows, and the offsets of a union reach to %d: concatenate fewer tables", inside.rows, math.MaxInt32)
		}
		c.inside = append(c.inside, inside)
	}
	return nil
}

// addRuns plans the ends of runs, and their values. A run of a table stays one.
func (b *concatenation) addRuns(c *stacked, kind arrow.DataType) error {
	fields := childTypes(kind)
	s, err := shapeOf(fields[0].Type)
	if err != nil {
		return err
	}
	if limit := int64(1)<<(8*s.width-1) - 1; c.rows > limit {
		return fmt.Errorf("the result has %d rows, and the ends of its runs reach to %d: cast the column to the type of its values", c.rows, limit)
	}
	ends := &stacked{shape: s, name: b.name, of: c, spans: make([]span, len(c.spans)), sizes: []int64{0}}
	for i := range c.spans {
		p := &c.spans[i]
		data, values := p.data.Children()[0], p.data.Children()[1]
		if data.Offset()+data.Len() > math.MaxUint32 {
			return fmt.Errorf("it has %d runs, and %d can be read: cast the column to the type of its values", data.Len(), uint32(math.MaxUint32))
		}
		from, to := int64(0), int64(0)
		if p.rows > 0 {
			endOf, count := runEndsOf(data, s.width), min(data.Len(), values.Len())
			from = int64(sort.Search(count, func(run int) bool { return endOf(int64(run)) > uint64(p.first) }))
			to = int64(sort.Search(count, func(run int) bool { return endOf(int64(run)) >= uint64(p.first+p.rows) })) + 1
			if to > int64(count) || to <= from {
				return fmt.Errorf("its runs end before row %d: the table contradicts itself, write it anew", p.first+p.rows)
			}
		}
		ends.spans[i] = span{data: data, first: from, rows: to - from, at: ends.rows}
		ends.rows += to - from
	}
	ends.sizes = append(ends.sizes, ends.rows*int64(s.width))
	b.columns = append(b.columns, ends)
	_, err = b.addChild(c, kind, 1, func(i int, _ *span) (first, rows int64) { return ends.spans[i].first, ends.spans[i].rows })
	return err
}

// runEndsOf returns a function that reads the end of a run.
func runEndsOf(data arrow.ArrayData, width int) func(run int64) uint64 {
	read := codesOf(bufferAt(data, 1), width)
	return func(run int64) uint64 { return read(uint32(int64(data.Offset()) + run)) }
}

// layOut places the buffers.
func (b *concatenation) layOut() error {
	for _, c := range b.columns {
		c.place = len(b.Layout.Buffers)
		b.Layout.Nodes = append(b.Layout.Nodes, arrowtable.Node{Rows: c.rows, Nulls: c.nulls})
		for _, size := range c.sizes {
			b.Layout.Buffers = append(b.Layout.Buffers, arrowtable.Buffer{Offset: b.FrameBytes, Bytes: size})
			if size > math.MaxInt64/16-b.FrameBytes {
				return fmt.Errorf("the result is larger than any memory")
			}
			b.FrameBytes += (size + arrowtable.Alignment - 1) / arrowtable.Alignment * arrowtable.Alignment
		}
		if c.form == formViews {
			b.Layout.Variadic = append(b.Layout.Variadic, int64(len(c.sizes)-2))
		}
	}
	return nil
}
