package arrowtable

import (
	"fmt"
	"math"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// FromMessage returns the layout that a message describes. It checks only that the numbers are not
// too large for a layout.
func FromMessage(t *millracev1.Table) (Layout, error) {
	l := Layout{Rows: int64(t.GetRows()), Schema: t.GetSchema(), Nodes: make([]Node, len(t.GetNodes())), Buffers: make([]Buffer, len(t.GetBuffers()))}
	if t.GetRows() > math.MaxInt64 {
		return l, fmt.Errorf("a table of %d rows", t.GetRows())
	}
	for i, n := range t.GetNodes() {
		if n.GetRows() > math.MaxInt64 || n.GetNulls() > math.MaxInt64 {
			return l, fmt.Errorf("a column with %d nulls in %d rows", n.GetNulls(), n.GetRows())
		}
		l.Nodes[i] = Node{Rows: int64(n.GetRows()), Nulls: int64(n.GetNulls())}
	}
	for i, b := range t.GetBuffers() {
		if b.GetOffsetBytes() > math.MaxInt64 || b.GetBytes() > math.MaxInt64 {
			return l, fmt.Errorf("a buffer of %d bytes at %d", b.GetBytes(), b.GetOffsetBytes())
		}
		l.Buffers[i] = Buffer{Frame: int(b.GetFrame()), Offset: int64(b.GetOffsetBytes()), Bytes: int64(b.GetBytes())}
	}
	for _, n := range t.GetViewBuffers() {
		l.Variadic = append(l.Variadic, int64(n))
	}
	return l, nil
}

// Message returns the layout as a message without description.
func (l *Layout) Message() *millracev1.Table {
	t := &millracev1.Table{
		Rows: uint64(l.Rows), Schema: l.Schema,
		Nodes: make([]*millracev1.TableNode, len(l.Nodes)), Buffers: make([]*millracev1.TableBuffer, len(l.Buffers)),
	}
	for i, n := range l.Nodes {
		t.Nodes[i] = &millracev1.TableNode{Rows: uint64(n.Rows), Nulls: uint64(n.Nulls)}
	}
	for i, b := range l.Buffers {
		t.Buffers[i] = &millracev1.TableBuffer{Frame: uint32(b.Frame), OffsetBytes: uint64(b.Offset), Bytes: uint64(b.Bytes)}
	}
	for _, n := range l.Variadic {
		t.ViewBuffers = append(t.ViewBuffers, uint32(n))
	}
	return t
}
