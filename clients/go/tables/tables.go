// Package tables makes tables of Millrace out of record batches of Apache Arrow, and reads them.
package tables

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/arrowtable"
)

// New copies a batch into a table with one frame, for Client.Scatter. Slices are copied without the
// rows around them. List views are an error: cast them to lists.
func New(batch arrow.RecordBatch) (millrace.Table, error) {
	plan, err := arrowtable.NewPlan(batch, memory.DefaultAllocator)
	if err != nil {
		return millrace.Table{}, fmt.Errorf("millrace: %w", err)
	}
	defer plan.Release()
	t := millrace.Table{Message: plan.Layout.Message()}
	t.Message.ColumnCount = uint32(batch.Schema().NumFields())
	for _, c := range arrowtable.Describe(batch.Schema()) {
		t.Message.Columns = append(t.Message.Columns, &millracev1.Column{Name: c.Name, Type: c.Type})
	}
	if plan.FrameBytes == 0 {
		return t, nil
	}
	frame := make([]byte, plan.FrameBytes)
	t.Frames = [][]byte{frame}
	if err := plan.Write(frame, func(to, from []byte) error { copy(to, from); return nil }); err != nil {
		return millrace.Table{}, fmt.Errorf("millrace: %w", err)
	}
	return t, nil
}

// Read returns the rows of a table. They share the memory of its frames, which must not change any
// more. Any program may have written the table: Read returns an error if a buffer is not in its
// frame or too short, and Check finds wrong offsets and indices inside of buffers, with which a row
// panics when it is used.
func Read(t millrace.Table) (arrow.RecordBatch, error) {
	layout, err := arrowtable.FromMessage(t.Message)
	if err != nil {
		return nil, fmt.Errorf("millrace: %w", err)
	}
	frames := t.Frames
	if inline := t.Message.GetInlineData(); len(inline) > 0 {
		// A copy, because the bytes of a message may begin at any address.
		frames = [][]byte{append(make([]byte, 0, len(inline)+arrowtable.Alignment), inline...)}
		for i := range layout.Buffers {
			layout.Buffers[i].Frame = 0
		}
	}
	batch, err := arrowtable.Read(layout, frames)
	if err != nil {
		return nil, fmt.Errorf("millrace: %w", err)
	}
	return batch, nil
}

// Check reads the whole batch and returns an error if an offset or an index in it is wrong.
func Check(batch arrow.RecordBatch) error {
	if err := arrowtable.CheckRows(batch); err != nil {
		return fmt.Errorf("millrace: %w", err)
	}
	return nil
}
