package value

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
)

// schema is an encapsulated message of four bytes; its content is read by nobody here.
const schema = "\xff\xff\xff\xff\x04\x00\x00\x00abcd"

func ofTable(t *millracev1.Table) *millracev1.Value {
	return &millracev1.Value{Kind: &millracev1.Value_TableValue{TableValue: t}}
}

// table returns a column of three rows in frames: no validity, 24 bytes at an offset.
func table(frame uint32, change ...func(*millracev1.Table)) *millracev1.Value {
	t := &millracev1.Table{
		Rows: 3, Schema: []byte(schema), Nodes: []*millracev1.TableNode{{Rows: 3}},
		Buffers: []*millracev1.TableBuffer{{}, {Frame: frame, OffsetBytes: 64, Bytes: 24}},
	}
	for _, c := range change {
		c(t)
	}
	return ofTable(t)
}

func buffer(change func(*millracev1.TableBuffer)) func(*millracev1.Table) {
	return func(t *millracev1.Table) { change(t.GetBuffers()[1]) }
}

// TestCheckNamesTheFieldOfATable: an accepted header has the field "".
func TestCheckNamesTheFieldOfATable(t *testing.T) {
	for name, c := range map[string]struct {
		v      *millracev1.Value
		frames []uint64
		field  string
	}{
		"table":            {table(0), []uint64{88}, ""},
		"bytes after it":   {table(0), []uint64{128}, ""},
		"second frame":     {listOf(tensor(0), table(1)), []uint64{3, 88}, ""},
		"frames":           {table(1, func(t *millracev1.Table) { t.Buffers[0] = &millracev1.TableBuffer{Bytes: 1} }), []uint64{1, 88}, ""},
		"empty":            {ofTable(&millracev1.Table{Schema: []byte(schema)}), nil, ""},
		"absent buffers":   {table(7, buffer(func(b *millracev1.TableBuffer) { b.Bytes = 0 })), nil, ""},
		"inline":           {table(9, func(t *millracev1.Table) { t.InlineData = make([]byte, 88) }), nil, ""},
		"views":            {table(0, func(t *millracev1.Table) { t.ViewBuffers = []uint32{0, 2} }), []uint64{88}, ""},
		"missing frame":    {table(1), []uint64{88}, "header.table_value.buffers[1].frame"},
		"surplus frame":    {table(0), []uint64{88, 1}, "frame_bytes[1]"},
		"inline and frame": {table(0, func(t *millracev1.Table) { t.InlineData = make([]byte, 88) }), []uint64{88}, "frame_bytes[0]"},
		"short frame":      {table(0), []uint64{87}, "header.table_value.buffers[1].bytes"},
		"short inline":     {table(0, func(t *millracev1.Table) { t.InlineData = make([]byte, 87) }), nil, "header.table_value.buffers[1].bytes"},
		"large inline":     {table(0, func(t *millracev1.Table) { t.InlineData = make([]byte, maxInlineTensor+1) }), nil, "header.table_value.inline_data"},
		"behind the frame": {table(0), []uint64{63}, "header.table_value.buffers[1].offset_bytes"},
		"odd offset":       {table(0, buffer(func(b *millracev1.TableBuffer) { b.OffsetBytes = 4 })), []uint64{88}, "header.table_value.buffers[1].offset_bytes"},
		"huge offset":      {table(0, buffer(func(b *millracev1.TableBuffer) { b.OffsetBytes = math.MaxUint64 - 7 })), []uint64{88}, "header.table_value.buffers[1].offset_bytes"},
		"huge buffer":      {table(0, buffer(func(b *millracev1.TableBuffer) { b.Bytes = math.MaxUint64 - 63 })), []uint64{88}, "header.table_value.buffers[1].bytes"},
		"huge rows":        {table(0, func(t *millracev1.Table) { t.Rows = 1 << 63 }), []uint64{88}, "header.table_value.rows"},
		"huge node":        {table(0, func(t *millracev1.Table) { t.Nodes[0].Rows = 1 << 63 }), []uint64{88}, "header.table_value.nodes[0].rows"},
		"nulls":            {table(0, func(t *millracev1.Table) { t.Nodes[0].Nulls = 4 }), []uint64{88}, "header.table_value.nodes[0].nulls"},
		"many views":       {table(0, func(t *millracev1.Table) { t.ViewBuffers = []uint32{math.MaxUint32, math.MaxUint32} }), []uint64{88}, "header.table_value.view_buffers"},
		"no schema":        {table(0, func(t *millracev1.Table) { t.Schema = nil }), []uint64{88}, "header.table_value.schema"},
		"cut schema":       {table(0, func(t *millracev1.Table) { t.Schema = t.GetSchema()[:11] }), []uint64{88}, "header.table_value.schema"},
		"another message":  {table(0, func(t *millracev1.Table) { t.Schema[0] = 0 }), []uint64{88}, "header.table_value.schema"},
		"long name":        {table(0, func(t *millracev1.Table) { t.TypeName = strings.Repeat("a", 257) }), []uint64{88}, "header.table_value.type_name"},
		"in a list":        {listOf(table(0, buffer(func(b *millracev1.TableBuffer) { b.OffsetBytes = 1 }))), []uint64{88}, "header.list_value.values[0].table_value.buffers[1].offset_bytes"},
	} {
		header, err := proto.Marshal(c.v)
		if err != nil {
			t.Fatal(err)
		}
		field := ""
		if fault := Check(header, c.frames); fault != nil {
			field = fault.Field
		}
		if field != c.field {
			t.Errorf("%s: the fault is in %q, not in %q", name, field, c.field)
		}
	}
	for name, header := range map[string]string{
		"no message":         "\x72\x01a",
		"rows of bytes":      "\x72\x03\x0a\x01a",
		"a buffer of text":   "\x72\x05\x22\x03\x0a\x01a",
		"a name of no UTF-8": "\x72\x05\x42\x03\x0a\x01\xff",
		"views of doubles":   "\x72\x09\x29abcdefgh",
		"of a number":        "\x70\x01",
	} {
		if fault := Check([]byte(header), nil); fault == nil || !strings.HasPrefix(fault.Field, "header") {
			t.Errorf("%s: %v", name, fault)
		}
	}
}

func TestSmallTablesBecomeInline(t *testing.T) {
	header := serialised(t, listOf(tensor(1), table(0)))
	data := make([]byte, 88)
	data[64] = 7
	inline, ok := Inline(header, [][]byte{data, []byte("abc")})
	if !ok {
		t.Fatal("the table stays in its frame")
	}
	if fault := Check(inline, nil); fault != nil {
		t.Fatal(fault)
	}
	var v millracev1.Value
	if err := proto.Unmarshal(inline, &v); err != nil || v.GetListValue().GetValues()[1].GetTableValue().GetInlineData()[64] != 7 {
		t.Errorf("%v: %v", err, &v)
	}
	apart := table(1, func(t *millracev1.Table) { t.Buffers[0] = &millracev1.TableBuffer{Bytes: 1} })
	for name, c := range map[string]struct {
		v      *millracev1.Value
		frames [][]byte
	}{
		"two frames":    {apart, [][]byte{{1}, data}},
		"missing frame": {table(1), [][]byte{data}},
		"large":         {table(0), [][]byte{make([]byte, maxInlineTensor+1)}},
	} {
		if _, ok := Inline(serialised(t, c.v), c.frames); ok {
			t.Errorf("%s: it became inline", name)
		}
	}
}

func TestTablesAsItems(t *testing.T) {
	inline := func(t *millracev1.Table) { t.InlineData = make([]byte, 88) }
	header := serialised(t, listOf(table(2), tensor(0), table(5, inline), listOf(table(1), table(2))))
	for i, want := range []struct {
		value  *millracev1.Value
		frames []uint32
	}{
		{table(0), []uint32{2}},
		{tensor(0), []uint32{0}},
		{table(5, inline), nil},
		{listOf(table(0), table(1)), []uint32{1, 2}},
	} {
		own, frames := Item(header, 3, ids.Item(i+1))
		var got millracev1.Value
		if err := proto.Unmarshal(own, &got); err != nil || !proto.Equal(&got, want.value) || !reflect.DeepEqual(frames, want.frames) {
			t.Errorf("item %d: %v: %v with frames %v", i, err, &got, frames)
		}
	}
}
