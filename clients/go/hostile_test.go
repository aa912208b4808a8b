package millrace

import (
	"math"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
)

// A worker that writes beyond a frame gets an error, also if offset and length add up to a small
// number because their sum has more than 64 bits.
func TestBytesBeyondAFrameAreRefused(t *testing.T) {
	for _, c := range []struct {
		frame  uint32
		offset uint64
	}{{0, math.MaxUint64}, {0, math.MaxUint64 - 3}, {0, 6}, {0, 9}, {1, 0}, {math.MaxUint32, 0}} {
		var lent rawframe.Outgoing
		reader := &objectReader{objects: make([]partObject, 1)}
		head := &millracev1.ObjectHead{Object: &millracev1.ObjectRef{TaskId: 7}, FrameBytes: []uint64{8}}
		m := &rawframe.Message{Head: head, Frame: c.frame, Offset: c.offset, Data: lent.Payload([]byte("four"))}
		if into, err := reader.claim(m); err == nil {
			t.Errorf("4 bytes at %d of frame %d got %d bytes of room", c.offset, c.frame, len(into))
		}
	}
}
