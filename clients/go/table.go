package millrace

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Table is a table in the layout of Apache Arrow. Package clients/go/tables makes tables of Arrow's
// record batches and reads them; this package needs no library of Arrow.
type Table struct {
	// Message describes the table, as value.proto tells. Its buffers lie in its inline data, or in
	// Frames.
	Message *millracev1.Table
	// Frames hold the buffers.
	Frames [][]byte
}

// Rows returns the number of rows.
func (t Table) Rows() uint64 { return t.Message.GetRows() }

// String returns the numbers of rows and columns.
func (t Table) String() string {
	return fmt.Sprintf("table[%d rows, %d columns]", t.Rows(), t.Message.GetColumnCount())
}

// table reads a table. It gets only the frames that hold its buffers.
func (r *resultReader) table(t *millracev1.Table) (Table, error) {
	out := Table{Message: proto.CloneOf(t)}
	if len(t.GetInlineData()) > 0 {
		return out, nil
	}
	known := map[uint32]int{} // the places in out.Frames of the frames of the object
	for _, b := range out.Message.GetBuffers() {
		if b.GetBytes() == 0 {
			b.Frame = 0
			continue
		}
		if uint64(b.GetFrame()) >= uint64(len(r.frames)) {
			return Table{}, fmt.Errorf("millrace: a table refers to frame %d of an object with %d frames", b.GetFrame(), len(r.frames))
		}
		number, ok := known[b.GetFrame()]
		if !ok {
			number = len(known)
			known[b.GetFrame()] = number
			out.Frames = append(out.Frames, r.frames[b.GetFrame()])
		}
		b.Frame = uint32(number)
	}
	return out, nil
}

// appendTable appends a table as an argument: its bytes travel with the message.
func appendTable(b []byte, t Table) ([]byte, error) {
	message := t.Message
	if len(t.Frames) > 0 {
		if len(t.Frames) > 1 || len(t.Frames[0]) > maxInlineBytes {
			return nil, fmt.Errorf("%s is too large for an argument (one frame of at most %d bytes); Scatter it and pass the Future", t, maxInlineBytes)
		}
		message = proto.CloneOf(t.Message)
		message.InlineData = t.Frames[0]
	}
	return appendTableValue(b, message)
}

func appendTableValue(b []byte, t *millracev1.Table) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, &millracev1.Value{Kind: &millracev1.Value_TableValue{TableValue: t}})
}
