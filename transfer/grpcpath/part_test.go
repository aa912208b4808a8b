package grpcpath

import (
	"testing"

	"github.com/millrace/millrace/transfer"
)

// TestPartsCoverFramesOnce: the parts of a frame are disjoint and cover it, and a part is needed if
// it has any byte of an object.
func TestPartsCoverFramesOnce(t *testing.T) {
	for _, frames := range [][]uint64{{}, {0}, {1}, {partBytes}, {partBytes + 1}, {0, 3 * partBytes, 5}, {100*partBytes - 1}} {
		for _, of := range []uint32{0, 1, 2, 3, maxParts} {
			ends := make([]uint64, len(frames))
			for index := range max(of, 1) {
				p, bytes := part{index, of}, uint64(0)
				for i, n := range frames {
					begin, end := p.bounds(n)
					if begin != ends[i] || end < begin {
						t.Errorf("part %d of %d of %d bytes is [%d, %d); the part before it ends at %d", index, of, n, begin, end, ends[i])
					}
					bytes, ends[i] = bytes+end-begin, end
				}
				if got := p.needed(transfer.Head{FrameBytes: frames}); got != (bytes > 0) {
					t.Errorf("part %d of %d of %v has %d bytes, and needed says %v", index, of, frames, bytes, got)
				}
			}
			for i, n := range frames {
				if ends[i] != n {
					t.Errorf("%d parts of %d bytes end at %d", of, n, ends[i])
				}
			}
		}
	}
}
