package wire

import (
	"fmt"
	"math"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/arrowtable"
	"github.com/millrace/millrace/worker/ops"
)

// table decodes a table. Each frame that it refers to becomes a tensor of bytes.
func (d *decoder) table(t *millracev1.Table, at *place) (*ops.Table, error) {
	layout, err := arrowtable.FromMessage(t)
	if err != nil {
		return nil, err
	}
	out := &ops.Table{Layout: layout, TypeName: t.GetTypeName(), ColumnCount: int(t.GetColumnCount())}
	for _, c := range t.GetColumns() {
		out.Columns = append(out.Columns, arrowtable.Column{Name: c.GetName(), Type: c.GetType()})
	}
	if inline := t.GetInlineData(); len(inline) > 0 {
		// NB: a copy, because the bytes of a message are not aligned.
		f, err := ops.NewTensor(ops.Uint8, []int64{int64(len(inline))})
		if err != nil {
			return nil, err
		}
		copy(f.Data, inline)
		out.Frames = []*ops.Tensor{f}
		for i := range layout.Buffers {
			layout.Buffers[i].Frame = 0
		}
		return out, nil
	}
	known := map[int]int{} // the places in out.Frames of the frames of the object
	for i := range layout.Buffers {
		b := &layout.Buffers[i]
		if b.Bytes == 0 {
			b.Frame = 0
			continue
		}
		if at == nil || b.Frame >= len(at.frames) {
			return nil, fmt.Errorf("a table refers to frame %d, which it does not have", b.Frame)
		}
		number, ok := known[b.Frame]
		if !ok {
			number = len(known)
			known[b.Frame] = number
			f := at.frames[b.Frame]
			if f.Bytes > math.MaxInt64/16 {
				return nil, fmt.Errorf("a table refers to a frame of %d bytes", f.Bytes)
			}
			bytes := &ops.Tensor{DType: ops.Uint8, Shape: []int64{int64(f.Bytes)}, Strides: []int64{1}}
			if f.Bytes > 0 {
				d.view(at.space, f, bytes)
			}
			if err := bytes.Check(); err != nil {
				return nil, err
			}
			out.Frames = append(out.Frames, bytes)
		}
		b.Frame = number
	}
	return out, nil
}

// table describes a table. One small frame goes into the header.
func (e *Encoder) table(t *ops.Table) (*millracev1.Table, error) {
	out := t.Layout.Message()
	// In the header a node or a buffer takes some bytes, and a name or a type its text.
	if e.header += len(out.GetSchema()) + 4*len(out.GetNodes()) + 4*len(out.GetBuffers()); e.header > maxHeaderBytes {
		return nil, tooLarge(e.header)
	}
	out.TypeName, out.ColumnCount = t.TypeName, uint32(t.ColumnCount)
	for _, c := range t.Columns {
		e.header += len(c.Name) + len(c.Type)
		out.Columns = append(out.Columns, &millracev1.Column{Name: c.Name, Type: c.Type})
	}
	numbers := make([]uint32, len(t.Frames))
	for i, f := range t.Frames {
		at, err := e.place(f)
		if err != nil {
			return nil, err
		}
		switch {
		case at.framed:
			numbers[i] = uint32(at.frame)
		case !at.located: // it has no bytes
		case len(t.Frames) == 1:
			out.InlineData = f.Data
		default:
			room, err := e.Take(uint64(len(f.Data)), f)
			if err != nil {
				return nil, err
			}
			if err := e.write(room, f.Data); err != nil {
				return nil, err
			}
			numbers[i] = uint32(len(e.frames) - 1)
		}
	}
	for _, b := range out.GetBuffers() {
		if b.GetBytes() > 0 && len(out.GetInlineData()) == 0 {
			b.Frame = numbers[b.GetFrame()]
		}
	}
	return out, nil
}
