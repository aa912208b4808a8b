package arrowtable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Read returns the table as a batch whose buffers are the bytes of the frames, without a copy. The
// frames must not change, and must stay mapped as long as the batch or a part of it is in use.
//
// A layout may come from anywhere: Read returns an error if a buffer is not inside of its frame or
// too short for its column. It does not read offsets and indices inside of buffers: a row with a
// wrong one may panic when it is used. CheckRows finds such rows.
func Read(l Layout, frames [][]byte) (batch arrow.RecordBatch, err error) {
	// The constructors of arrow-go panic if parts of an array contradict each other.
	defer func() {
		if p := recover(); p != nil {
			batch, err = nil, fmt.Errorf("the table contradicts itself: %v: write it anew", p)
		}
	}()
	schema, err := readSchema(l.Schema)
	if err != nil {
		return nil, err
	}
	r := &reader{layout: l, frames: frames}
	columns := make([]arrow.ArrayData, schema.NumFields())
	for i, f := range schema.Fields() {
		if columns[i], err = r.column(f.Type); err != nil {
			return nil, fmt.Errorf("column %d: %w", i, err)
		}
		if columns[i].Len() != int(l.Rows) {
			return nil, fmt.Errorf("column %d has %d rows and the table %d", i, columns[i].Len(), l.Rows)
		}
	}
	for i := 0; i < len(r.encoded); i++ {
		of := r.encoded[i]
		dictionary, err := r.column(storage(of.DataType()).(*arrow.DictionaryType).ValueType)
		if err != nil {
			return nil, fmt.Errorf("dictionary %d: %w", i, err)
		}
		of.SetDictionary(dictionary)
	}
	if len(r.layout.Nodes)+len(r.layout.Buffers)+len(r.layout.Variadic) > 0 {
		return nil, errors.New("the table has more nodes or buffers than its schema needs")
	}
	arrays := make([]arrow.Array, len(columns))
	for i, c := range columns {
		arrays[i] = array.MakeFromData(c)
	}
	batch = array.NewRecordBatch(schema, arrays, l.Rows)
	if err := array.ValidateRecord(batch); err != nil {
		return nil, err
	}
	return batch, nil
}

// DecodeSchema returns the schema of a layout.
func DecodeSchema(l Layout) (schema *arrow.Schema, err error) {
	defer func() {
		if p := recover(); p != nil {
			schema, err = nil, fmt.Errorf("the schema of the table contradicts itself: %v: write it anew", p)
		}
	}()
	return readSchema(l.Schema)
}

// CheckRows reads the whole table, and returns an error if an offset or an index in it is wrong. It
// is array.ValidateRecordFull, which panics for some of these itself.
func CheckRows(batch arrow.RecordBatch) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the rows of the table contradict each other: %v: write it anew", p)
		}
	}()
	return array.ValidateRecordFull(batch)
}

// reader takes the nodes and buffers off the fronts of a layout.
type reader struct {
	layout Layout
	frames [][]byte
	// encoded are the columns of indices whose dictionaries come later.
	encoded []*array.Data
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

// column reads the next column and those inside of it.
func (r *reader) column(t arrow.DataType) (*array.Data, error) {
	if len(r.layout.Nodes) == 0 {
		return nil, errors.New("it has no node")
	}
	node := r.layout.Nodes[0]
	r.layout.Nodes = r.layout.Nodes[1:]
	if node.Rows < 0 || node.Nulls < 0 || node.Nulls > node.Rows || node.Rows > math.MaxInt64/bitsOfRow {
		return nil, fmt.Errorf("%d nulls in %d rows", node.Nulls, node.Rows)
	}
	of := storage(t)
	physical := of
	if d, ok := of.(*arrow.DictionaryType); ok {
		physical = d.IndexType
	}
	buffers, err := r.buffers(physical, node)
	if err != nil {
		return nil, err
	}
	var children []arrow.ArrayData
	if nested, ok := of.(arrow.NestedType); ok {
		for _, f := range nested.Fields() {
			child, err := r.column(f.Type)
			if err != nil {
				return nil, err
			}
			children = append(children, child)
		}
	}
	data := array.NewData(t, int(node.Rows), buffers, children, int(node.Nulls), 0)
	if of.ID() == arrow.DICTIONARY {
		r.encoded = append(r.encoded, data)
	}
	return data, nil
}

// bitsOfRow is at least the number of bits of the widest row of fixed width that Read checks, so
// that a number of rows times this cannot overflow.
const bitsOfRow = 1 << 16

// buffers reads the buffers of a column of a type that is neither an extension nor a dictionary.
func (r *reader) buffers(t arrow.DataType, node Node) ([]*memory.Buffer, error) {
	if t.ID() == arrow.NULL || t.ID() == arrow.RUN_END_ENCODED {
		return []*memory.Buffer{nil}, nil
	}
	var list []*memory.Buffer
	if t.ID() == arrow.SPARSE_UNION || t.ID() == arrow.DENSE_UNION {
		list = append(list, nil) // arrow-go keeps the place of a validity that unions do not have
	}
	for i, spec := range t.Layout().Buffers {
		if spec.Kind == arrow.KindAlwaysNull {
			list = append(list, nil)
			continue
		}
		b, err := r.buffer()
		if err != nil {
			return nil, err
		}
		need := int64(0)
		switch {
		case i == 0 && spec.Kind == arrow.KindBitmap:
			if node.Nulls == 0 {
				list = append(list, nil)
				continue
			}
			need = (node.Rows + 7) / 8
		case spec.Kind == arrow.KindBitmap:
			need = (node.Rows + 7) / 8
		case spec.Kind == arrow.KindFixedWidth && spec.ByteWidth > bitsOfRow/8:
			need = math.MaxInt64
			if node.Rows <= int64(b.Len())/int64(spec.ByteWidth) {
				need = 0
			}
		case spec.Kind == arrow.KindFixedWidth:
			need = node.Rows * int64(spec.ByteWidth)
			if hasEnd(t.ID()) && node.Rows > 0 && i == 1 {
				need += int64(spec.ByteWidth)
			}
		}
		if int64(b.Len()) < need {
			return nil, fmt.Errorf("buffer %d has %d bytes, and %d rows need %d", i, b.Len(), node.Rows, need)
		}
		list = append(list, b)
	}
	if t.Layout().VariadicSpec == nil {
		return list, nil
	}
	if len(r.layout.Variadic) == 0 || r.layout.Variadic[0] < 0 || r.layout.Variadic[0] > int64(len(r.layout.Buffers)) {
		return nil, errors.New("a column of views says no plausible number of its buffers")
	}
	n := r.layout.Variadic[0]
	r.layout.Variadic = r.layout.Variadic[1:]
	for range n {
		b, err := r.buffer()
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return list, nil
}

// hasEnd says whether the buffer of offsets has one more offset than rows.
func hasEnd(t arrow.Type) bool {
	return t == arrow.STRING || t == arrow.BINARY || t == arrow.LARGE_STRING || t == arrow.LARGE_BINARY ||
		t == arrow.LIST || t == arrow.LARGE_LIST || t == arrow.MAP
}

// buffer reads the next buffer.
func (r *reader) buffer() (*memory.Buffer, error) {
	if len(r.layout.Buffers) == 0 {
		return nil, errors.New("a buffer is missing")
	}
	b := r.layout.Buffers[0]
	r.layout.Buffers = r.layout.Buffers[1:]
	if b.Bytes == 0 {
		return memory.NewBufferBytes(nil), nil
	}
	if b.Frame < 0 || b.Frame >= len(r.frames) {
		return nil, fmt.Errorf("a buffer in frame %d of %d", b.Frame, len(r.frames))
	}
	frame := r.frames[b.Frame]
	if b.Bytes < 0 || b.Offset < 0 || b.Offset%8 != 0 || b.Offset > int64(len(frame)) || b.Bytes > int64(len(frame))-b.Offset {
		return nil, fmt.Errorf("a buffer of %d bytes at %d in a frame of %d bytes", b.Bytes, b.Offset, len(frame))
	}
	return memory.NewBufferBytes(frame[b.Offset : b.Offset+b.Bytes : b.Offset+b.Bytes]), nil
}

// prefixBytes is the length of the two numbers before an encapsulated message: a mark, and the
// number of bytes that follow.
const prefixBytes = 8

// readSchema reads an encapsulated Schema message.
func readSchema(text []byte) (*arrow.Schema, error) {
	if len(text) < prefixBytes || binary.LittleEndian.Uint32(text) != math.MaxUint32 || int64(binary.LittleEndian.Uint32(text[4:])) != int64(len(text)-prefixBytes) {
		return nil, errors.New("the schema is no encapsulated message of Arrow's IPC format")
	}
	if err := checkSchema(text[prefixBytes:]); err != nil {
		return nil, err
	}
	r, err := ipc.NewReaderFromMessageReader(&oneMessage{text: text[prefixBytes:]})
	if err != nil {
		return nil, fmt.Errorf("the schema of the table: %w", err)
	}
	defer r.Release()
	return r.Schema(), nil
}

// oneMessage reads a message without a body.
type oneMessage struct {
	text []byte
	done bool
}

// Message is part of ipc.MessageReader.
func (m *oneMessage) Message() (*ipc.Message, error) {
	if m.done {
		return nil, io.EOF
	}
	m.done = true
	return ipc.NewMessage(memory.NewBufferBytes(m.text), memory.NewBufferBytes(nil)), nil
}

// Release is part of ipc.MessageReader.
func (m *oneMessage) Release() {}

// Retain is part of ipc.MessageReader.
func (m *oneMessage) Retain() {}
