package value

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// schemaPrefix begins each encapsulated message of Arrow's IPC format; the size of the message
// follows it.
var schemaPrefix = []byte{0xff, 0xff, 0xff, 0xff}

// place is a decoded millrace.v1.TableBuffer.
type place struct{ frame, offset, bytes uint64 }

// table checks what value.proto promises of a table: all buffers lie inside of its frames or of its
// inline data, and the numbers of rows can be numbers of rows. It does not read the schema, so it
// does not know how many nodes and buffers the table needs, and of how many bytes: readers do.
func (c *checker) table(b []byte) *Fault {
	var (
		rows           uint64
		schema, inline []byte
		nodes, buffers int
		views          uint64
	)
	// Buffers may come before the inline data in the message.
	fault := each(b, "Table", func(f field) *Fault {
		if f.number == 6 && f.kind == protowire.BytesType {
			inline = f.body
		}
		return nil
	})
	if fault != nil {
		return fault
	}
	if len(inline) > maxInlineTensor {
		return faultf("inline_data", "it has %d bytes, at most %d are allowed: put the buffers into a frame", len(inline), maxInlineTensor)
	}
	fault = each(b, "Table", func(f field) *Fault {
		wire := protowire.BytesType
		if f.number == 1 || f.number == 9 {
			wire = protowire.VarintType
		}
		switch {
		case f.number > 9 || f.number == 5:
		case f.kind != wire:
			return faultf("", noMessage, "Table")
		}
		switch f.number {
		case 1:
			if rows = f.varint; rows > math.MaxInt64 {
				return faultf("rows", "%d is more than any table has: correct it", rows)
			}
		case 2:
			schema = f.body
		case 3:
			nodes++
			if fault := node(f.body); fault != nil {
				return fault.in(fmt.Sprintf("nodes[%d]", nodes-1))
			}
		case 4:
			buffers++
			if fault := c.buffer(f.body, inline); fault != nil {
				return fault.in(fmt.Sprintf("buffers[%d]", buffers-1))
			}
		case 5:
			return addViews(f, &views)
		case 7:
			if !utf8.Valid(f.body) || utf8.RuneCount(f.body) > maxTypeName {
				return faultf("type_name", "it is no UTF-8 of at most %d characters: shorten it", maxTypeName)
			}
		case 8:
			return column(f.body)
		}
		return nil
	})
	switch {
	case fault != nil:
		return fault
	case len(schema) < 8 || !bytes.HasPrefix(schema, schemaPrefix) || uint64(binary.LittleEndian.Uint32(schema[4:])) != uint64(len(schema)-8):
		return faultf("schema", "it is no encapsulated Schema message of Arrow's IPC format: FF FF FF FF, the size of the message as 32 bits, and the message")
	case views > uint64(buffers):
		return faultf("view_buffers", "it says %d buffers of views, and the table has %d buffers: correct the numbers", views, buffers)
	}
	return nil
}

// node checks a millrace.v1.TableNode.
func node(b []byte) *Fault {
	var rows, nulls uint64
	if fault := numbers(b, "TableNode", &rows, &nulls); fault != nil {
		return fault
	}
	switch {
	case rows > math.MaxInt64:
		return faultf("rows", "%d is more than any column has: correct it", rows)
	case nulls > rows:
		return faultf("nulls", "%d of %d rows are null: correct the numbers", nulls, rows)
	}
	return nil
}

// buffer checks a millrace.v1.TableBuffer, and marks its frame as used.
func (c *checker) buffer(b, inline []byte) *Fault {
	var p place
	if fault := numbers(b, "TableBuffer", &p.frame, &p.offset, &p.bytes); fault != nil || p.bytes == 0 {
		return fault
	}
	p.frame &= math.MaxUint32
	room := uint64(len(inline))
	switch {
	case room > 0:
	case p.frame >= uint64(len(c.frames)):
		return faultf("frame", "it is %d, and the object has %d frames: send the frame, or correct the index", p.frame, len(c.frames))
	default:
		room = c.frames[p.frame]
		c.use[p.frame] = use{used: true, loose: true}
	}
	switch {
	case p.offset%placesMultiple != 0:
		return faultf("offset_bytes", "%d is not a multiple of %d: move the buffer", p.offset, placesMultiple)
	case p.offset > room:
		return faultf("offset_bytes", "the buffer begins at byte %d, and its frame or inline_data has %d bytes: correct the offset or the size", p.offset, room)
	case p.bytes > room-p.offset:
		return faultf("bytes", "%d bytes from byte %d on, and its frame or inline_data has %d bytes: correct the numbers or the size", p.bytes, p.offset, room)
	}
	return nil
}

// numbers reads the fields of a message that has numbers only: the first one is number 1.
func numbers(b []byte, message string, to ...*uint64) *Fault {
	return each(b, message, func(f field) *Fault {
		switch {
		case int(f.number) > len(to):
			return nil
		case f.kind != protowire.VarintType:
			return faultf("", noMessage, message)
		}
		*to[f.number-1] = f.varint
		return nil
	})
}

// addViews adds up a list of numbers, packed or not.
func addViews(f field, sum *uint64) *Fault {
	b := f.body
	switch f.kind {
	case protowire.VarintType:
		b = protowire.AppendVarint(nil, f.varint)
	case protowire.BytesType:
	default:
		return faultf("", noMessage, "Table")
	}
	for len(b) > 0 {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return faultf("", noMessage, "Table")
		}
		*sum, b = *sum+v&math.MaxUint32, b[n:]
	}
	return nil
}

// column checks a millrace.v1.Column.
func column(b []byte) *Fault {
	return each(b, "Column", func(f field) *Fault {
		switch {
		case f.number > 2:
			return nil
		case f.kind != protowire.BytesType:
			return faultf("", noMessage, "Column")
		case !utf8.Valid(f.body):
			return faultf("columns", "a name or a type is no UTF-8: replace what is none")
		}
		return nil
	})
}
