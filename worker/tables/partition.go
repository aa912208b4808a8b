package tables

import (
	"fmt"
	"math"
	"sort"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/internal/arrowtable"
)

// Parts are tables that have their places in frames, and are not written yet.
type Parts struct {
	// Layouts say where the buffers of each part will be: all of them in frame 0. They have no
	// schema: it is that of the table.
	Layouts []arrowtable.Layout
	// FrameBytes are the sizes of the frames. A part of size 0 has no frame.
	FrameBytes []int64
	// columns are in the order of the nodes of the layouts.
	columns []*piece
	call    *Call
}

// piece is one column, in all parts.
type piece struct {
	shape
	data arrow.ArrayData
	// sel are the rows. Nil: each part has all of them.
	sel *selection
	// nulls is the number of nulls of each part; nil: there are none.
	nulls []int64
	// sizes are those of each buffer, by part.
	sizes [][]int64
	// place is the number of the first buffer in the layouts.
	place int
	// times is the number of elements that a row of the selection has, in lists of fixed size.
	times int
	// text says where the rows of text begin, by cell; of a list, where its elements do.
	text []int64
	ends offsets
	// of is the column whose lists have these elements, which are copied by lists, or whose runs
	// have these ends.
	of *piece
	// codes replace the codes of a dictionary, in the order of the rows of the selection; nil: they
	// stay.
	codes []uint32
	// inside has the rows of each child of a dense union to which those of this column refer.
	inside []*selection
}

// encoded is a dictionary that follows the columns.
type encoded struct {
	name string
	data arrow.ArrayData
	sel  *selection
}

// partitioning makes Parts.
type partitioning struct {
	*Parts
	count        int
	name         string // of the column, for errors
	dictionaries []encoded
	// tableBytes is the size of the whole table.
	tableBytes int64
}

// Partition plans the parts of a table, from 0 to n-1, to which numbers assigns its rows. Rows keep
// their order inside of a part. The batch is one of arrowtable.Read. Its rows may come from
// anywhere: it is an error if they contradict each other.
func (c *Call) Partition(batch arrow.RecordBatch, n int, numbers Numbering) (*Parts, error) {
	b := &partitioning{Parts: &Parts{call: c, Layouts: make([]arrowtable.Layout, n), FrameBytes: make([]int64, n)}, count: n}
	rows, err := selectionOf(c, batch.NumRows(), n, numbers)
	if err != nil {
		return nil, err
	}
	for _, column := range batch.Columns() {
		b.tableBytes += treeBytes(column.Data())
	}
	for i, column := range batch.Columns() {
		b.name = batch.ColumnName(i)
		if err := b.add(column.Data(), rows, 1); err != nil {
			return nil, fmt.Errorf("column %q: %w", b.name, err)
		}
	}
	for i := 0; i < len(b.dictionaries); i++ {
		d := b.dictionaries[i]
		b.name = d.name
		if err := b.add(d.data, d.sel, 1); err != nil {
			return nil, fmt.Errorf("column %q: its dictionary: %w", d.name, err)
		}
	}
	b.layOut(rows.counts)
	return b.Parts, nil
}

// add plans a column and those inside of it.
func (b *partitioning) add(data arrow.ArrayData, sel *selection, times int) error {
	shape, err := shapeOf(data.DataType())
	switch {
	case err != nil:
		return err
	case data.Offset() != 0:
		return fmt.Errorf("it begins at row %d of its buffers", data.Offset())
	case sel == nil:
		return b.addWhole(data, shape)
	case data.Len() > math.MaxUint32:
		return fmt.Errorf("it has %d rows or elements, and %d at a time can be sorted: select ranges of rows first", data.Len(), uint32(math.MaxUint32))
	}
	c := &piece{shape: shape, data: data, sel: sel, times: times}
	b.columns = append(b.columns, c)
	if shape.hasValidity() {
		if err := b.countNulls(c); err != nil {
			return err
		}
	}
	if shape.dictionary != nil {
		return b.addCodes(c)
	}
	switch shape.form {
	case formNull:
		c.nulls = c.rows()
	case formBits:
		c.sizes = append(c.sizes, bitmapBytes(sel.counts))
	case formFixed:
		c.sizes = append(c.sizes, scaled(sel.counts, int64(times*shape.width)))
	case formText:
		return b.measure(c, int64(len(bufferAt(data, 2))))
	case formViews:
		return b.addViews(c)
	case formList:
		return b.addList(c)
	case formFixedList:
		return b.addFixedList(c)
	case formStruct, formSparse:
		if shape.form == formSparse {
			c.sizes = append(c.sizes, sel.counts)
		}
		for _, child := range data.Children() {
			if child.Len() < data.Len() {
				return fmt.Errorf("a field has %d of %d rows: the table contradicts itself, write it anew", child.Len(), data.Len())
			}
			if err := b.add(child, sel, 1); err != nil {
				return err
			}
		}
	case formDense:
		return b.addDense(c)
	case formRuns:
		return b.addRuns(c)
	}
	return nil
}

// rows returns the number of rows of each part.
func (c *piece) rows() []int64 {
	if c.times == 1 {
		return c.sel.counts
	}
	return scaled(c.sel.counts, int64(c.times))
}

func scaled(counts []int64, by int64) []int64 {
	out := make([]int64, len(counts))
	for i, n := range counts {
		out[i] = n * by
	}
	return out
}

func bitmapBytes(counts []int64) []int64 {
	out := make([]int64, len(counts))
	for i, n := range counts {
		out[i] = (n + 7) / 8
	}
	return out
}

// addWhole plans a column of which each part has all rows: one of a dictionary.
func (b *partitioning) addWhole(data arrow.ArrayData, shape shape) error {
	c := &piece{shape: shape, data: data}
	b.columns = append(b.columns, c)
	if shape.dictionary != nil {
		b.dictionaries = append(b.dictionaries, encoded{b.name, data.Dictionary(), nil})
	}
	for _, child := range data.Children() {
		s, err := shapeOf(child.DataType())
		if err != nil {
			return err
		}
		if err := b.addWhole(child, s); err != nil {
			return err
		}
	}
	return nil
}

// countNulls finds the nulls of each part, and plans the bitmap.
func (b *partitioning) countNulls(c *piece) error {
	valid := bufferAt(c.data, 0)
	if len(valid) == 0 {
		c.sizes = append(c.sizes, make([]int64, b.count))
		return nil
	}
	c.nulls = make([]int64, b.count)
	err := b.eachCell(c.sel, func(_, p int, rows []uint32, _ int64) error {
		set := 0
		for _, r := range rows {
			set += int(bit(valid, r))
		}
		if set < len(rows) {
			atomic.AddInt64(&c.nulls[p], int64(len(rows)-set))
		}
		return nil
	})
	sizes := bitmapBytes(c.sel.counts)
	for p, n := range c.nulls {
		if n == 0 {
			sizes[p] = 0
		}
	}
	c.sizes = append(c.sizes, sizes)
	return err
}

// eachCell calls do for all cells that have rows, those of a chunk in the order of their parts.
func (b *partitioning) eachCell(s *selection, do func(cell, p int, rows []uint32, before int64) error) error {
	return b.call.Each(s.chunks, func(c int) error {
		for p := range s.parts {
			if rows, before := s.cell(c, p); len(rows) > 0 {
				if err := do(c*s.parts+p, p, rows, before); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// measure finds how many bytes or elements the rows of text or lists have, plans their offsets, and
// appends the sum of each part to the sizes.
func (b *partitioning) measure(c *piece, limit int64) error {
	c.ends = offsetsOf(bufferAt(c.data, 1), c.width)
	// Offsets that ascend row by row do not refer to an element twice.
	cells := Room[int64](b.call, c.sel.chunks*b.count)
	err := b.eachCell(c.sel, func(cell, _ int, rows []uint32, _ int64) error {
		var sum int64
		for _, r := range rows {
			from, to, err := c.ends.checked(int64(r), limit)
			if err != nil {
				return err
			}
			sum += to - from
		}
		cells[cell] = sum
		return nil
	})
	if err != nil {
		return err
	}
	size := make([]int64, b.count)
	for p, n := range c.sel.counts {
		if n > 0 {
			size[p] = (n + 1) * int64(c.width)
		}
	}
	totals := runningSums(cells, b.count)
	c.text = cells
	c.sizes = append(c.sizes, size, totals)
	return nil
}

// addList plans the elements of lists.
func (b *partitioning) addList(c *piece) error {
	child := c.data.Children()[0]
	if err := b.measure(c, int64(child.Len())); err != nil {
		return err
	}
	totals := c.sizes[len(c.sizes)-1]
	c.sizes = c.sizes[:len(c.sizes)-1]
	s, err := shapeOf(child.DataType())
	if err != nil {
		return err
	}
	if s.form == formFixed && s.dictionary == nil && len(bufferAt(child, 0)) == 0 {
		b.columns = append(b.columns, &piece{
			shape: s, data: child, sel: &selection{parts: b.count, chunks: c.sel.chunks, counts: totals}, times: 1, of: c,
			sizes: [][]int64{make([]int64, b.count), scaled(totals, int64(s.width))},
		})
		return nil
	}
	counts := Room[int64](b.call, len(c.text))
	for i := range counts {
		p := i % b.count
		if next := i + b.count; next < len(c.text) {
			counts[i] = c.text[next] - c.text[i]
		} else {
			counts[i] = totals[p] - c.text[i]
		}
	}
	elements, err := c.sel.inner(b.call, counts, func(chunk int, inner *selection) error {
		for p := range b.count {
			rows, _ := c.sel.cell(chunk, p)
			into, _ := inner.cell(chunk, p)
			for _, r := range rows {
				from, to := c.ends.row(int64(r))
				for at := range to - from {
					into[at] = uint32(from + at)
				}
				into = into[to-from:]
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.add(child, elements, 1)
}

func (b *partitioning) addFixedList(c *piece) error {
	child, items := c.data.Children()[0], int64(c.items)
	if items > 0 && int64(child.Len())/items < int64(c.data.Len()) {
		return fmt.Errorf("%d lists of %d have %d elements: the table contradicts itself, write it anew", c.data.Len(), items, child.Len())
	}
	s, err := shapeOf(child.DataType())
	if err != nil {
		return err
	}
	if s.form == formFixed && s.dictionary == nil && len(bufferAt(child, 0)) == 0 {
		return b.add(child, c.sel, c.items)
	}
	cells := Room[int64](b.call, c.sel.chunks*b.count)
	for i := range cells {
		cells[i] = (c.sel.ends[i+1] - c.sel.ends[i]) * items
	}
	elements, err := c.sel.inner(b.call, cells, func(chunk int, inner *selection) error {
		for p := range b.count {
			rows, _ := c.sel.cell(chunk, p)
			into, _ := inner.cell(chunk, p)
			for _, r := range rows {
				for at := range items {
					into[at] = uint32(int64(r)*items + at)
				}
				into = into[items:]
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.add(child, elements, 1)
}

// addViews plans the long values of views: those of a part go into one buffer.
func (b *partitioning) addViews(c *piece) error {
	views, valid := elements[view](bufferAt(c.data, 1)), bufferAt(c.data, 0)
	cells := Room[int64](b.call, c.sel.chunks*b.count)
	err := b.eachCell(c.sel, func(cell, _ int, rows []uint32, _ int64) error {
		for _, r := range rows {
			if len(valid) > 0 && bit(valid, r) == 0 {
				continue
			}
			size, err := views[r].longBytes(c.data)
			if err != nil {
				return err
			}
			cells[cell] += size
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.text = cells
	totals := runningSums(cells, b.count)
	for p, n := range totals {
		if n > math.MaxInt32 {
			return fmt.Errorf("piece %d has %d bytes of text, and views reach %d: take more pieces, or cast the column to large strings", p, n, math.MaxInt32)
		}
	}
	c.sizes = append(c.sizes, scaled(c.sel.counts, int64(c.width)), totals)
	return nil
}

// addDense plans the children of a dense union, and offsets into these.
func (b *partitioning) addDense(c *piece) error {
	codes, places := bufferAt(c.data, 1), elements[int32](bufferAt(c.data, 2))
	c.sizes = append(c.sizes, c.sel.counts, scaled(c.sel.counts, 4))
	for number, child := range c.data.Children() {
		cells := Room[int64](b.call, c.sel.chunks*b.count)
		err := b.eachCell(c.sel, func(cell, _ int, rows []uint32, _ int64) error {
			for _, r := range rows {
				at := c.childOf(codes[r])
				if at == number {
					cells[cell]++
				}
				if at < 0 || at == number && (places[r] < 0 || int(places[r]) >= child.Len()) {
					return fmt.Errorf("row %d of a union has the code %d and the place %d: the table contradicts itself, write it anew", r, codes[r], places[r])
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		sel, err := c.sel.inner(b.call, cells, func(chunk int, inner *selection) error {
			for p := range b.count {
				rows, _ := c.sel.cell(chunk, p)
				into, _ := inner.cell(chunk, p)
				for _, r := range rows {
					if c.childOf(codes[r]) == number {
						into[0] = uint32(places[r])
						into = into[1:]
					}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		c.inside = append(c.inside, sel)
		if err := b.add(child, sel, 1); err != nil {
			return err
		}
	}
	if len(c.data.Children()) == 0 && c.data.Len() > 0 {
		return fmt.Errorf("a union without children has %d rows: the table contradicts itself, write it anew", c.data.Len())
	}
	return nil
}

// childOf returns the number of the child of a union to which a code refers; -1: there is none.
func (s *shape) childOf(code byte) int {
	if int(code) >= len(s.children) {
		return -1
	}
	return s.children[code]
}

// checkCodes returns an error if codes of a union refer to no child.
func (s *shape) checkCodes(codes []byte) error {
	for _, code := range codes {
		if s.childOf(code) < 0 {
			return fmt.Errorf("a row of a union has the code %d, which no child has: the table contradicts itself, write it anew", code)
		}
	}
	return nil
}

// addCodes plans the codes of a dictionary, and the dictionary: all of it if the copies are
// together no larger than the table, else the values that a part has. A dictionary with an order
// keeps all values, because the order of the others would be lost.
func (b *partitioning) addCodes(c *piece) error {
	c.sizes = append(c.sizes, scaled(c.sel.counts, int64(c.width)))
	dictionary := c.data.Dictionary()
	size := treeBytes(dictionary)
	if fits := size <= b.tableBytes/int64(b.count); fits || c.shape.dictionary.Ordered {
		if !fits && size*int64(b.count) > maxCopies {
			return fmt.Errorf("its ordered dictionary of %d bytes would be copied to each of %d pieces: take fewer pieces, or cast the column to the type of its values", size, b.count)
		}
		b.dictionaries = append(b.dictionaries, encoded{b.name, dictionary, nil})
		return nil
	}
	sel, err := b.usedValues(c, dictionary.Len())
	b.dictionaries = append(b.dictionaries, encoded{b.name, dictionary, sel})
	return err
}

// maxCopies is the size of the copies of an ordered dictionary up to which they may be larger than
// the table, in bytes.
const maxCopies = 64 << 20

// usedValues returns the values of a dictionary that each part has, in the order in which they come
// first, and sets the codes of the rows.
func (b *partitioning) usedValues(c *piece, values int) (*selection, error) {
	// Value v has the code known[v] in the part that seen[v] names.
	seen, known := Room[uint32](b.call, values), anyRoom[uint32](b.call, values)
	c.codes = anyRoom[uint32](b.call, len(c.sel.rows))
	used := &selection{parts: b.count, chunks: 1, rows: anyRoom[uint32](b.call, len(c.sel.rows))}
	cells := Room[int64](b.call, b.count)
	valid, codeAt := bufferAt(c.data, 0), codesOf(bufferAt(c.data, 1), c.width)
	end := int64(0)
	err := b.call.Each(1, func(int) error {
		for p := range b.count {
			first := end
			for chunk := range c.sel.chunks {
				rows, _ := c.sel.cell(chunk, p)
				codes := c.codes[c.sel.ends[chunk*b.count+p]:]
				for i, r := range rows {
					if len(valid) > 0 && bit(valid, r) == 0 {
						codes[i] = 0
						continue
					}
					v := codeAt(r)
					if v >= uint64(values) {
						return fmt.Errorf("row %d has the code %d of %d values: the table contradicts itself, write it anew", r, v, values)
					}
					if seen[v] != uint32(p+1) {
						seen[v], known[v] = uint32(p+1), uint32(end-first)
						used.rows[end] = uint32(v)
						end++
					}
					codes[i] = known[v]
				}
			}
			cells[p] = end - first
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	used.place(b.call, cells)
	return used, nil
}

// addRuns plans the runs of the parts: a run of a part has rows of one run of the table.
func (b *partitioning) addRuns(c *piece) error {
	ends, values := c.data.Children()[0], c.data.Children()[1]
	s, err := shapeOf(ends.DataType())
	if err != nil {
		return err
	}
	cells := Room[int64](b.call, c.sel.chunks*b.count)
	err = b.eachCell(c.sel, func(cell, _ int, rows []uint32, _ int64) error {
		return c.eachRun(rows, func(int, int) { cells[cell]++ })
	})
	if err != nil {
		return err
	}
	sel, err := c.sel.inner(b.call, cells, func(chunk int, inner *selection) error {
		for p := range b.count {
			rows, _ := c.sel.cell(chunk, p)
			into, _ := inner.cell(chunk, p)
			if err := c.eachRun(rows, func(run, _ int) { into[0], into = uint32(run), into[1:] }); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.columns = append(b.columns, &piece{
		shape: s, data: ends, sel: sel, times: 1, of: c,
		sizes: [][]int64{make([]int64, b.count), scaled(sel.counts, int64(s.width))},
	})
	return b.add(values, sel, 1)
}

// eachRun calls do for each run of rows that have the same run in the table, with the number of
// this run, and the place after its last row.
func (c *piece) eachRun(rows []uint32, do func(run, end int)) error {
	if len(rows) == 0 {
		return nil
	}
	ends, values := c.data.Children()[0], c.data.Children()[1]
	width, list := ends.DataType().(arrow.FixedWidthDataType).Bytes(), bufferAt(ends, 1)
	endOf, count := codesOf(list, width), min(ends.Len(), values.Len())
	run := sort.Search(count, func(run int) bool { return endOf(uint32(run)) > uint64(rows[0]) })
	for i, r := range rows {
		next := run
		for next < count && endOf(uint32(next)) <= uint64(r) {
			next++
		}
		if next == count {
			return fmt.Errorf("its runs end before row %d: the table contradicts itself, write it anew", r)
		}
		if next > run && i > 0 {
			do(run, i)
		}
		run = next
	}
	do(run, len(rows))
	return nil
}

// codesOf returns a function that reads the code of a row. A negative one reads as a large one.
func codesOf(b []byte, width int) func(r uint32) uint64 {
	switch width {
	case 1:
		return func(r uint32) uint64 { return uint64(b[r]) }
	case 2:
		list := elements[uint16](b)
		return func(r uint32) uint64 { return uint64(list[r]) }
	case 4:
		list := elements[uint32](b)
		return func(r uint32) uint64 { return uint64(list[r]) }
	}
	list := elements[uint64](b)
	return func(r uint32) uint64 { return list[r] }
}

// layOut places the buffers of all parts.
func (b *partitioning) layOut(rows []int64) {
	places := 0
	var variadic []int64
	for _, c := range b.columns {
		c.place = places
		if c.sel == nil {
			places += len(c.places(c.data))
		} else {
			places += len(c.sizes)
		}
		if c.form == formViews && c.sel != nil {
			variadic = append(variadic, 1)
		} else if c.form == formViews {
			variadic = append(variadic, int64(len(c.data.Buffers())-2))
		}
	}
	for p := range b.Layouts {
		l := &b.Layouts[p]
		l.Rows, l.Variadic = rows[p], variadic
		l.Nodes, l.Buffers = make([]arrowtable.Node, 0, len(b.columns)), make([]arrowtable.Buffer, 0, places)
		for _, c := range b.columns {
			l.Nodes = append(l.Nodes, c.node(p))
			for i := range c.buffers() {
				size := c.size(i, p)
				l.Buffers = append(l.Buffers, arrowtable.Buffer{Offset: b.FrameBytes[p], Bytes: size})
				b.FrameBytes[p] += (size + arrowtable.Alignment - 1) / arrowtable.Alignment * arrowtable.Alignment
			}
		}
	}
}

func (c *piece) node(p int) arrowtable.Node {
	if c.sel == nil {
		return arrowtable.Node{Rows: int64(c.data.Len()), Nulls: int64(c.data.NullN())}
	}
	n := arrowtable.Node{Rows: c.sel.counts[p] * int64(c.times)}
	if c.nulls != nil {
		n.Nulls = c.nulls[p]
	}
	return n
}

// buffers returns the number of buffers that the column has in a layout.
func (c *piece) buffers() int {
	if c.sel == nil {
		return len(c.places(c.data))
	}
	return len(c.sizes)
}

// size returns the size of a buffer of a part.
func (c *piece) size(buffer, p int) int64 {
	if c.sel == nil {
		return int64(len(c.places(c.data)[buffer]))
	}
	return c.sizes[buffer][p]
}
