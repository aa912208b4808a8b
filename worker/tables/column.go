package tables

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
)

// form says how the rows of a column lie in its buffers.
type form int

const (
	formNull      form = iota // no buffers
	formBits                  // a bit for each row
	formFixed                 // some bytes for each row
	formText                  // offsets, and bytes
	formViews                 // views, and bytes
	formList                  // offsets, and the elements
	formFixedList             // the elements
	formStruct                // the fields
	formSparse                // a code for each row, and the children, which have all rows
	formDense                 // a code and an offset for each row, and the children
	formRuns                  // the ends of runs, and their values
)

// shape describes the buffers of a type.
type shape struct {
	form form
	// width is the number of bytes of a row of fixed width, or of an offset.
	width int
	// items is the number of elements of each list of fixed size.
	items int
	// dictionary is the type of the values if the rows are codes.
	dictionary *arrow.DictionaryType
	// children are the places of the children of a union, by their codes; -1: there is none.
	children []int
}

// storage returns the type of the buffers of a column.
func storage(t arrow.DataType) arrow.DataType {
	for {
		e, ok := t.(arrow.ExtensionType)
		if !ok {
			return t
		}
		t = e.StorageType()
	}
}

func shapeOf(t arrow.DataType) (shape, error) {
	t = storage(t)
	if d, ok := t.(*arrow.DictionaryType); ok {
		s, err := shapeOf(d.IndexType)
		s.dictionary = d
		return s, err
	}
	switch t := t.(type) {
	case *arrow.NullType:
		return shape{form: formNull}, nil
	case *arrow.BooleanType:
		return shape{form: formBits}, nil
	case *arrow.StringType, *arrow.BinaryType:
		return shape{form: formText, width: 4}, nil
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		return shape{form: formText, width: 8}, nil
	case *arrow.StringViewType, *arrow.BinaryViewType:
		return shape{form: formViews, width: arrow.ViewHeaderSizeBytes}, nil
	case *arrow.ListType, *arrow.MapType:
		return shape{form: formList, width: 4}, nil
	case *arrow.LargeListType:
		return shape{form: formList, width: 8}, nil
	case *arrow.FixedSizeListType:
		return shape{form: formFixedList, items: int(t.Len())}, nil
	case *arrow.StructType:
		return shape{form: formStruct}, nil
	case *arrow.SparseUnionType:
		return shape{form: formSparse, width: 1, children: t.ChildIDs()}, nil
	case *arrow.DenseUnionType:
		return shape{form: formDense, width: 1, children: t.ChildIDs()}, nil
	case *arrow.RunEndEncodedType:
		return shape{form: formRuns}, nil
	case arrow.FixedWidthDataType:
		return shape{form: formFixed, width: t.Bytes()}, nil
	}
	return shape{}, fmt.Errorf("rows of the type %s cannot be copied: cast the column", t)
}

// hasValidity says whether a column of the form has a bitmap of the rows that are not null.
func (s *shape) hasValidity() bool {
	return s.form != formNull && s.form != formSparse && s.form != formDense && s.form != formRuns
}

// places returns the buffers of an array that have places in a layout. A bitmap without nulls has a
// place and no bytes.
func (s *shape) places(data arrow.ArrayData) [][]byte {
	var list [][]byte
	if s.form == formNull || s.form == formRuns {
		return nil
	}
	for i := range data.Buffers() {
		if i > 0 || s.hasValidity() {
			list = append(list, bufferAt(data, i))
		}
	}
	return list
}

// bufferAt returns a buffer of an array, which may have none.
func bufferAt(data arrow.ArrayData, at int) []byte {
	if list := data.Buffers(); at < len(list) && list[at] != nil {
		return list[at].Bytes()
	}
	return nil
}

// treeBytes returns the size of all buffers of an array, with those of its children and
// dictionaries.
func treeBytes(data arrow.ArrayData) int64 {
	var total int64
	for i := range data.Buffers() {
		total += int64(len(bufferAt(data, i)))
	}
	for _, child := range data.Children() {
		total += treeBytes(child)
	}
	if storage(data.DataType()).ID() == arrow.DICTIONARY && data.Dictionary() != nil {
		total += treeBytes(data.Dictionary())
	}
	return total
}

// bit returns bit i of a bitmap, as 0 or 1.
func bit[I int | int64 | uint32](bits []byte, i I) byte { return bits[i>>3] >> (i & 7) & 1 }

// offsets are the ends of the rows of text and lists, of 32 or 64 bits.
type offsets struct {
	short []int32
	long  []int64
}

func offsetsOf(b []byte, width int) offsets {
	if width == 4 {
		return offsets{short: elements[int32](b)}
	}
	return offsets{long: elements[int64](b)}
}

// row returns where a row begins and ends.
func (o offsets) row(r int64) (from, to int64) {
	if o.short != nil {
		return int64(o.short[r]), int64(o.short[r+1])
	}
	return o.long[r], o.long[r+1]
}

// checked is row, and it returns an error if the row is not inside of size elements.
func (o offsets) checked(r, size int64) (from, to int64, err error) {
	from, to = o.row(r)
	if from < 0 || to < from || to > size {
		err = fmt.Errorf("row %d has elements %d to %d of %d: the table contradicts itself, write it anew", r, from, to, size)
	}
	return from, to, err
}

// put stores the end of a row.
func (o offsets) put(r, end int64) {
	if o.short != nil {
		o.short[r] = int32(end)
	} else {
		o.long[r] = end
	}
}

// view is the header of a row of views.
type view struct {
	size   int32
	prefix [4]byte //nolint:unused // a copy of a view has it, too
	// buffer and offset are the place of a value that is longer than 12 bytes. Otherwise the value
	// continues here.
	buffer, offset int32
}

const inlineView = 12

// text returns the bytes of a long value in the buffers of its array.
func (v *view) text(data arrow.ArrayData) ([]byte, error) {
	var all []byte
	if v.buffer >= 0 {
		all = bufferAt(data, int(v.buffer)+2)
	}
	if from, to := int64(v.offset), int64(v.offset)+int64(v.size); from >= 0 && to <= int64(len(all)) {
		return all[from:to], nil
	}
	return nil, fmt.Errorf("a view of %d bytes at %d is outside of buffer %d: the table contradicts itself, write it anew", v.size, v.offset, v.buffer)
}

// longBytes returns the number of bytes of the value outside of the view, and checks their place.
func (v *view) longBytes(data arrow.ArrayData) (int64, error) {
	long, err := v.long()
	if err != nil || !long {
		return 0, err
	}
	_, err = v.text(data)
	return int64(v.size), err
}

// long says whether the bytes of the value lie outside of the view.
func (v *view) long() (bool, error) {
	if v.size < 0 {
		return false, fmt.Errorf("a view has %d bytes: the table contradicts itself, write it anew", v.size)
	}
	return v.size > inlineView, nil
}
