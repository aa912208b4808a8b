package arrowtable

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
)

// Plan is a batch that has its places in a frame, and is not written yet.
type Plan struct {
	// Layout says where the buffers will be: all of them in frame 0.
	Layout Layout
	// FrameBytes is the size of this frame. If it is 0, the table has no frame.
	FrameBytes int64
	// payloads have the buffers: first those of the columns, then one for each dictionary.
	payloads []ipc.Payload
}

// NewPlan computes where the buffers of a batch go. It copies what a slice has to shift, which are
// bitmaps and offsets, to memory of the allocator. The plan holds the batch until Release. List
// views are an error: arrow-go 18.8.0 panics when it writes some of them.
func NewPlan(batch arrow.RecordBatch, allocator memory.Allocator) (plan *Plan, err error) {
	defer func() {
		if p := recover(); p != nil {
			plan, err = nil, contradiction(p)
		}
	}()
	for _, f := range batch.Schema().Fields() {
		if hasListView(f.Type) {
			return nil, fmt.Errorf("column %q has list views, which cannot be written: cast them to lists", f.Name)
		}
	}
	schema, err := EncodeSchema(batch.Schema(), allocator)
	if err != nil {
		return nil, err
	}
	p := &Plan{Layout: Layout{Rows: batch.NumRows(), Schema: schema}}
	var dictionaries []arrow.ArrayData
	for _, column := range batch.Columns() {
		dictionaries = dictionariesOf(column.Data(), dictionaries)
	}
	if err := p.add(batch, allocator); err != nil {
		p.Release()
		return nil, err
	}
	for i := 0; i < len(dictionaries); i++ {
		dictionaries = dictionariesOf(dictionaries[i], dictionaries)
		if err := p.addDictionary(dictionaries[i], allocator); err != nil {
			p.Release()
			return nil, fmt.Errorf("dictionary %d: %w", i, err)
		}
	}
	return p, nil
}

// contradiction returns the error for a panic of arrow-go. A panic of the allocator with an error
// keeps this.
func contradiction(cause any) error {
	if err, ok := cause.(error); ok {
		return fmt.Errorf("the table cannot be written: %w", err)
	}
	return fmt.Errorf("the table contradicts itself: %v: compute it anew", cause)
}

// Slice returns the rows from the first to the one before end, without a copy. It is an error if
// offsets inside of the batch contradict each other.
func Slice(batch arrow.RecordBatch, first, end int64) (part arrow.RecordBatch, err error) {
	defer func() {
		if p := recover(); p != nil {
			part, err = nil, contradiction(p)
		}
	}()
	return batch.NewSlice(first, end), nil
}

// EncodeSchema returns the encapsulated Schema message of Arrow's IPC format.
func EncodeSchema(schema *arrow.Schema, allocator memory.Allocator) ([]byte, error) {
	payload := ipc.GetSchemaPayload(schema, allocator)
	defer payload.Release()
	var text bytes.Buffer
	if _, err := payload.WritePayload(&text); err != nil {
		return nil, fmt.Errorf("the schema of the table: %w", err)
	}
	return text.Bytes(), nil
}

func hasListView(t arrow.DataType) bool {
	t = storage(t)
	if d, ok := t.(*arrow.DictionaryType); ok {
		return hasListView(d.ValueType)
	}
	nested, ok := t.(arrow.NestedType)
	return t.ID() == arrow.LIST_VIEW || t.ID() == arrow.LARGE_LIST_VIEW ||
		ok && slices.ContainsFunc(nested.Fields(), func(f arrow.Field) bool { return hasListView(f.Type) })
}

// dictionariesOf appends the dictionaries of an array, depth first. Those inside of a dictionary
// are not among them.
func dictionariesOf(data arrow.ArrayData, list []arrow.ArrayData) []arrow.ArrayData {
	if storage(data.DataType()).ID() == arrow.DICTIONARY {
		return append(list, data.Dictionary())
	}
	for _, child := range data.Children() {
		list = dictionariesOf(child, list)
	}
	return list
}

func (p *Plan) addDictionary(data arrow.ArrayData, allocator memory.Allocator) error {
	values := array.MakeFromData(data)
	defer values.Release()
	schema := arrow.NewSchema([]arrow.Field{{Name: "dictionary", Type: data.DataType(), Nullable: true}}, nil)
	batch := array.NewRecordBatch(schema, []arrow.Array{values}, int64(values.Len()))
	defer batch.Release()
	return p.add(batch, allocator)
}

// add appends the nodes and buffers of a batch.
func (p *Plan) add(batch arrow.RecordBatch, allocator memory.Allocator) error {
	payload, err := ipc.GetRecordBatchPayload(batch, ipc.WithAllocator(allocator))
	if err != nil {
		return err
	}
	p.payloads = append(p.payloads, payload)
	meta := payload.Meta()
	defer meta.Release()
	header := recordBatch(meta.Bytes())
	header.each(nodesField, 16, func(at flatbuffers.UOffsetT) {
		p.Layout.Nodes = append(p.Layout.Nodes, Node{Rows: header.GetInt64(at), Nulls: header.GetInt64(at + 8)})
	})
	header.each(buffersField, 16, func(at flatbuffers.UOffsetT) {
		size := header.GetInt64(at + 8)
		p.Layout.Buffers = append(p.Layout.Buffers, Buffer{Offset: p.FrameBytes, Bytes: size})
		p.FrameBytes += (size + Alignment - 1) / Alignment * Alignment
	})
	header.each(variadicField, 8, func(at flatbuffers.UOffsetT) {
		p.Layout.Variadic = append(p.Layout.Variadic, header.GetInt64(at))
	})
	return nil
}

// Write copies the buffers to a frame of FrameBytes, and sets the bytes between them to 0. The
// function copies all bytes of a buffer, or returns an error.
func (p *Plan) Write(frame []byte, by func(to, from []byte) error) error {
	if int64(len(frame)) != p.FrameBytes {
		return fmt.Errorf("a frame of %d bytes for a table of %d: pass one of this size", len(frame), p.FrameBytes)
	}
	w := &scatter{frame: frame, buffers: p.Layout.Buffers, by: by}
	for i := range p.payloads {
		if err := p.payloads[i].SerializeBody(w); err != nil {
			return fmt.Errorf("copy of the table into its frame: %w", err)
		}
	}
	w.skipEmpty()
	if len(w.buffers) > 0 {
		return fmt.Errorf("copy of the table into its frame: %d buffers are missing", len(w.buffers))
	}
	return nil
}

// Release gives the buffers back.
func (p *Plan) Release() {
	for i := range p.payloads {
		p.payloads[i].Release()
	}
	p.payloads = nil
}

// scatter takes the body of messages, in which each buffer is one call and its padding another, and
// puts the buffers into their places.
type scatter struct {
	frame   []byte
	buffers []Buffer // those that are not written yet
	padding bool     // the next call may bring the padding of the last buffer
	by      func(to, from []byte) error
}

func (s *scatter) skipEmpty() {
	for len(s.buffers) > 0 && s.buffers[0].Bytes == 0 {
		s.buffers = s.buffers[1:]
	}
}

// Write is part of io.Writer.
func (s *scatter) Write(data []byte) (int, error) {
	if s.padding {
		s.padding = false
		return len(data), nil
	}
	s.skipEmpty()
	if len(s.buffers) == 0 || s.buffers[0].Bytes != int64(len(data)) {
		return 0, fmt.Errorf("a part of %d bytes that no buffer has", len(data))
	}
	b := s.buffers[0]
	s.buffers = s.buffers[1:]
	end := b.Offset + b.Bytes
	if err := s.by(s.frame[b.Offset:end], data); err != nil {
		return 0, err
	}
	clear(s.frame[end:min(int64(len(s.frame)), (end+Alignment-1)/Alignment*Alignment)])
	s.padding = b.Bytes%messagePadding != 0
	return len(data), nil
}

// messagePadding is the multiple to which arrow-go pads each buffer in a message.
const messagePadding = 8

// The fields of RecordBatch in Arrow's Message.fbs, as places in the table of fields.
const (
	headerField   = 8 // of Message
	nodesField    = 6
	buffersField  = 8
	variadicField = 12
)

// record is the RecordBatch of a message that arrow-go wrote.
type record struct{ flatbuffers.Table }

func recordBatch(message []byte) record {
	root := flatbuffers.Table{Bytes: message, Pos: flatbuffers.GetUOffsetT(message)}
	var r record
	root.Union(&r.Table, flatbuffers.UOffsetT(root.Offset(headerField)))
	return r
}

// each calls do with the place of each element of a vector.
func (r *record) each(field flatbuffers.VOffsetT, elementBytes flatbuffers.UOffsetT, do func(at flatbuffers.UOffsetT)) {
	o := flatbuffers.UOffsetT(r.Offset(field))
	if o == 0 {
		return
	}
	first := r.Vector(o)
	for i := range flatbuffers.UOffsetT(r.VectorLen(o)) {
		do(first + i*elementBytes)
	}
}
