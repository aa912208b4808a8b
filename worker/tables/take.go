package tables

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Take returns the values of a column at rows, which are less than its length or None. The result
// shares the dictionary, and perhaps the text of views, with the column. Errors name the column.
func (c *Call) Take(name string, column arrow.Array, rows []uint32) (arrow.Array, error) {
	t := &taker{Call: c, rows: rows, none: slices.Contains(rows, None)}
	out, err := t.take(column)
	if err != nil {
		return nil, fmt.Errorf("column %q: %w", name, err)
	}
	return out, nil
}

// Taken returns the numbers of the rows whose value is true.
func (c *Call) Taken(mask *array.Boolean) ([]uint32, error) {
	n := 0
	if err := c.inOrder(mask.Len(), func(from, to int) {
		for i := from; i < to; i++ {
			if mask.IsValid(i) && mask.Value(i) {
				n++
			}
		}
	}); err != nil {
		return nil, err
	}
	rows := Room[uint32](c, n)
	n = 0
	return rows, c.inOrder(mask.Len(), func(from, to int) {
		for i := from; i < to; i++ {
			if mask.IsValid(i) && mask.Value(i) {
				rows[n] = uint32(i)
				n++
			}
		}
	})
}

// taker copies values at rows.
type taker struct {
	*Call
	rows []uint32
	none bool // some rows are None
}

// at returns a taker of other rows.
func (t *taker) at(rows []uint32) *taker { return &taker{t.Call, rows, t.none} }

// take returns the values of an array.
func (t *taker) take(a arrow.Array) (arrow.Array, error) {
	if e, ok := a.(array.ExtensionArray); ok {
		stored, err := t.take(e.Storage())
		if err != nil {
			return nil, err
		}
		return array.NewExtensionArrayWithStorage(e.DataType().(arrow.ExtensionType), stored), nil
	}
	if a.DataType().ID() == arrow.NULL {
		return array.NewNull(len(t.rows)), nil
	}
	valid, nulls, err := t.validity(a)
	if err != nil {
		return nil, err
	}
	buffers, children, err := t.values(a)
	if err != nil {
		return nil, err
	}
	var dictionary *array.Data
	if d, ok := a.(*array.Dictionary); ok {
		dictionary = d.Dictionary().Data().(*array.Data)
	}
	data := array.NewDataWithDictionary(a.DataType(), len(t.rows), append([]*memory.Buffer{valid}, buffers...), nulls, 0, dictionary)
	if len(children) > 0 {
		data = array.NewData(a.DataType(), len(t.rows), append([]*memory.Buffer{valid}, buffers...), children, nulls, 0)
	}
	return array.MakeFromData(data), nil
}

// validity returns the bitmap of the result, or nil, and the number of its nulls.
func (t *taker) validity(a arrow.Array) (*memory.Buffer, int, error) {
	from, offset := a.NullBitmapBytes(), a.Data().Offset()
	if len(from) > 0 && int64(len(from))*8 < int64(offset)+int64(a.Len()) {
		return nil, 0, fmt.Errorf("the validity of %d rows has only %d bytes", a.Len(), len(from))
	}
	if len(from) == 0 && !t.none {
		return nil, 0, nil
	}
	bits := Room[uint8](t.Call, (len(t.rows)+7)/8)
	var nulls atomic.Int64
	err := t.inParts(len(t.rows), partRows, func(first, end int) error {
		missing := 0
		for i := first; i < end; i++ {
			if r := t.rows[i]; r == None || len(from) > 0 && bitutil.BitIsNotSet(from, offset+int(r)) {
				missing++
				continue
			}
			bits[i/8] |= 1 << (i % 8)
		}
		nulls.Add(int64(missing))
		return nil
	})
	if nulls.Load() == 0 {
		return nil, 0, err
	}
	return memory.NewBufferBytes(bits), int(nulls.Load()), err
}

// values returns the other buffers of the result, and the arrays inside of it.
func (t *taker) values(a arrow.Array) ([]*memory.Buffer, []arrow.ArrayData, error) {
	kind := a.DataType()
	switch a := a.(type) {
	case *array.Boolean:
		return t.bools(a)
	case *array.String, *array.Binary:
		return takeText(t, a, elements[int32](buffer(a, 1)), math.MaxInt32)
	case *array.LargeString, *array.LargeBinary:
		return takeText(t, a, elements[int64](buffer(a, 1)), math.MaxInt64)
	case *array.StringView, *array.BinaryView:
		return t.views(a)
	case *array.List:
		return takeList(t, a, a.ListValues(), elements[int32](buffer(a, 1)), math.MaxInt32)
	case *array.LargeList:
		return takeList(t, a, a.ListValues(), elements[int64](buffer(a, 1)), math.MaxInt64)
	case *array.Map:
		return takeList(t, a, a.ListValues(), elements[int32](buffer(a, 1)), math.MaxInt32)
	case *array.FixedSizeList:
		return t.fixedLists(a, int(kind.(*arrow.FixedSizeListType).Len()))
	case *array.Struct:
		var children []arrow.ArrayData
		for i := range a.NumField() {
			field, err := t.field(a.Field(i), a.Len())
			if err != nil {
				return nil, nil, fmt.Errorf("field %q: %w", kind.(*arrow.StructType).Field(i).Name, err)
			}
			children = append(children, field)
		}
		return nil, children, nil
	}
	if d, ok := kind.(*arrow.DictionaryType); ok {
		kind = d.IndexType
	}
	fixed, ok := kind.(arrow.FixedWidthDataType)
	if !ok {
		return nil, nil, fmt.Errorf("rows of type %s cannot be selected: cast it to a list, a text or a number", kind)
	}
	out, err := t.fixed(buffer(a, 1), a.Data().Offset(), a.Len(), fixed.BitWidth()/8)
	return []*memory.Buffer{out}, nil, err
}

// field returns the values of a field of a struct, which must have rows.
func (t *taker) field(a arrow.Array, rows int) (arrow.ArrayData, error) {
	if a.Len() < rows {
		return nil, fmt.Errorf("it has %d of %d rows", a.Len(), rows)
	}
	out, err := t.take(a)
	if err != nil {
		return nil, err
	}
	return out.Data(), nil
}

func (t *taker) bools(a *array.Boolean) ([]*memory.Buffer, []arrow.ArrayData, error) {
	from, offset := buffer(a, 1), a.Data().Offset()
	bits := Room[uint8](t.Call, (len(t.rows)+7)/8)
	err := t.inParts(len(t.rows), partRows, func(first, end int) error {
		for i := first; i < end; i++ {
			if r := t.rows[i]; r != None && bitutil.BitIsSet(from, offset+int(r)) {
				bits[i/8] |= 1 << (i % 8)
			}
		}
		return nil
	})
	return []*memory.Buffer{memory.NewBufferBytes(bits)}, nil, err
}

// fixed copies values of a number of bytes. n values follow the first offset ones.
func (t *taker) fixed(from []byte, offset, n, width int) (*memory.Buffer, error) {
	if int64(offset+n)*int64(width) > int64(len(from)) {
		return nil, fmt.Errorf("%d rows of %d bytes are beyond the data", n, width)
	}
	from = from[offset*width : (offset+n)*width]
	switch width {
	case 1:
		return takeFixed(t, elements[uint8](from))
	case 2:
		return takeFixed(t, elements[uint16](from))
	case 4:
		return takeFixed(t, elements[uint32](from))
	case 8:
		return takeFixed(t, elements[uint64](from))
	case 16:
		return takeFixed(t, elements[[2]uint64](from))
	case 32:
		return takeFixed(t, elements[[4]uint64](from))
	}
	out := Room[uint8](t.Call, len(t.rows)*width)
	return memory.NewBufferBytes(out), t.inParts(len(t.rows), partRows, func(first, end int) error {
		for i := first; i < end; i++ {
			if r := t.rows[i]; r != None {
				copy(out[i*width:(i+1)*width], from[int(r)*width:])
			}
		}
		return nil
	})
}

func takeFixed[T any](t *taker, from []T) (*memory.Buffer, error) {
	out := Room[T](t.Call, len(t.rows))
	return bufferOf(out), t.inParts(len(t.rows), partRows, func(first, end int) error {
		to := out[first:end]
		if t.none {
			for i, r := range t.rows[first:end] {
				if r != None {
					to[i] = from[r]
				}
			}
			return nil
		}
		for i, r := range t.rows[first:end] {
			to[i] = from[r]
		}
		return nil
	})
}

// takeText copies texts, whose bytes together are at most limit.
func takeText[T int32 | int64](t *taker, a arrow.Array, ends []T, limit int64) ([]*memory.Buffer, []arrow.ArrayData, error) {
	data := buffer(a, 2)
	ends, err := rowEnds(a, ends, len(data))
	if err != nil {
		return nil, nil, err
	}
	to, total, err := takeEnds(t, ends, limit)
	if err != nil {
		return nil, nil, err
	}
	out := Room[uint8](t.Call, int(total))
	return []*memory.Buffer{bufferOf(to), memory.NewBufferBytes(out)}, nil, t.inParts(len(t.rows), partRows, func(first, end int) error {
		for i := first; i < end; i++ {
			if r := t.rows[i]; r != None {
				copy(out[to[i]:to[i+1]], data[ends[r]:ends[r+1]])
			}
		}
		return nil
	})
}

// takeEnds returns the offsets of the result, and the last of them.
func takeEnds[T int32 | int64](t *taker, ends []T, limit int64) ([]T, int64, error) {
	to := Room[T](t.Call, len(t.rows)+1)
	total := int64(0)
	err := t.inOrder(len(t.rows), func(first, end int) {
		for i := first; i < end; i++ {
			if r := t.rows[i]; r != None {
				total += int64(ends[r+1] - ends[r])
			}
			to[i+1] = T(total)
		}
	})
	if err == nil && (total > limit || total > math.MaxInt64/16) {
		err = fmt.Errorf("the result has %d bytes of text or elements, and the offsets of its type reach to %d: cast the column to its large type", total, limit)
	}
	return to, total, err
}

func takeList[T int32 | int64](t *taker, a, values arrow.Array, ends []T, limit int64) ([]*memory.Buffer, []arrow.ArrayData, error) {
	ends, err := rowEnds(a, ends, values.Len())
	if err != nil {
		return nil, nil, err
	}
	if err := Check(int64(values.Len())); err != nil {
		return nil, nil, fmt.Errorf("the elements of its lists: %w", err)
	}
	to, total, err := takeEnds(t, ends, limit)
	if err != nil {
		return nil, nil, err
	}
	places := Room[uint32](t.Call, int(total))
	if err := t.inParts(len(t.rows), partRows, func(first, end int) error {
		for i := first; i < end; i++ {
			if r := t.rows[i]; r != None {
				at := uint32(ends[r])
				for k := range places[to[i]:to[i+1]] {
					places[int(to[i])+k] = at + uint32(k)
				}
			}
		}
		return nil
	}); err != nil {
		return nil, nil, err
	}
	inner, err := (&taker{Call: t.Call, rows: places}).take(values)
	if err != nil {
		return nil, nil, err
	}
	return []*memory.Buffer{bufferOf(to)}, []arrow.ArrayData{inner.Data()}, nil
}

func (t *taker) fixedLists(a *array.FixedSizeList, width int) ([]*memory.Buffer, []arrow.ArrayData, error) {
	values, offset := a.ListValues(), a.Data().Offset()
	if need := int64(offset+a.Len()) * int64(width); need > int64(values.Len()) {
		return nil, nil, fmt.Errorf("%d rows need %d elements and have %d", offset+a.Len(), need, values.Len())
	}
	if err := Check(int64(values.Len())); err != nil {
		return nil, nil, fmt.Errorf("the elements of its lists: %w", err)
	}
	if width > 0 && len(t.rows) > math.MaxInt64/16/width {
		return nil, nil, fmt.Errorf("%d rows of %d elements are more than any memory", len(t.rows), width)
	}
	places := Room[uint32](t.Call, len(t.rows)*width)
	if err := t.inParts(len(t.rows), max(partRows/max(width, 1), 1), func(first, end int) error {
		for i := first; i < end; i++ {
			for k := range width {
				places[i*width+k] = None
				if r := t.rows[i]; r != None {
					places[i*width+k] = uint32((offset+int(r))*width + k)
				}
			}
		}
		return nil
	}); err != nil {
		return nil, nil, err
	}
	inner, err := t.at(places).take(values)
	if err != nil {
		return nil, nil, err
	}
	return nil, []arrow.ArrayData{inner.Data()}, nil
}

// views copies views of text. The text outside of the views becomes one buffer, unless it would be
// larger than the buffers are: then the result shares these.
func (t *taker) views(a arrow.Array) ([]*memory.Buffer, []arrow.ArrayData, error) {
	from, err := viewsOf(a)
	if err != nil {
		return nil, nil, err
	}
	out := Room[arrow.ViewHeader](t.Call, len(t.rows))
	total := int64(0)
	if err := t.inOrder(len(t.rows), func(first, end int) {
		for i := first; i < end; i++ {
			if r := t.rows[i]; r != None && from.has(int(r)) {
				out[i] = from.headers[r]
				if !out[i].IsInline() {
					total += int64(out[i].Len())
				}
			}
		}
	}); err != nil {
		return nil, nil, err
	}
	shared := int64(0)
	for _, b := range from.buffers {
		shared += int64(b.Len())
	}
	if total >= shared || total > math.MaxInt32 {
		return append([]*memory.Buffer{bufferOf(out)}, from.buffers...), nil, nil
	}
	text, n := Room[uint8](t.Call, int(total)), 0
	err = t.inOrder(len(t.rows), func(first, end int) {
		for i := first; i < end; i++ {
			if h := &out[i]; !h.IsInline() {
				at := n
				n += copy(text[n:], from.at(int(t.rows[i])))
				h.SetIndexOffset(0, int32(at))
			}
		}
	})
	if total == 0 {
		return []*memory.Buffer{bufferOf(out)}, nil, err
	}
	return []*memory.Buffer{bufferOf(out), memory.NewBufferBytes(text)}, nil, err
}

// views are the views of an array, all inside of its buffers.
type views struct {
	headers []arrow.ViewHeader
	buffers []*memory.Buffer
	valid   []byte
	offset  int
}

// viewsOf returns the views of an array, after a check of all that are not null.
func viewsOf(a arrow.Array) (views, error) {
	headers, from := elements[arrow.ViewHeader](buffer(a, 1)), a.Data().Offset()
	if len(headers) < from+a.Len() {
		return views{}, fmt.Errorf("%d rows have only %d views", from+a.Len(), len(headers))
	}
	v := views{headers: headers[from : from+a.Len()], valid: a.NullBitmapBytes(), offset: from}
	for _, b := range a.Data().Buffers()[2:] {
		if b == nil {
			b = memory.NewBufferBytes(nil)
		}
		v.buffers = append(v.buffers, b)
	}
	for i := range v.headers {
		h := &v.headers[i]
		if !v.has(i) || h.Len() >= 0 && h.IsInline() {
			continue
		}
		if h.Len() < 0 || h.BufferIndex() < 0 || int(h.BufferIndex()) >= len(v.buffers) || h.BufferOffset() < 0 ||
			int64(h.BufferOffset())+int64(h.Len()) > int64(v.buffers[h.BufferIndex()].Len()) {
			return views{}, fmt.Errorf("the view of row %d is out of range", i)
		}
	}
	return v, nil
}

// has says whether a row is not null.
func (v *views) has(row int) bool {
	return len(v.valid) == 0 || bitutil.BitIsSet(v.valid, v.offset+row)
}

// at returns the text of a row that is not null.
func (v *views) at(row int) []byte {
	h := &v.headers[row]
	if h.IsInline() {
		return h.InlineBytes()
	}
	return v.buffers[h.BufferIndex()].Bytes()[h.BufferOffset() : int64(h.BufferOffset())+int64(h.Len())]
}
