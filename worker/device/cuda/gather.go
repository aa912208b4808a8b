package cuda

import (
	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

// Many copies of bytes go by one kernel that reads a table: the copy engine takes some
// microseconds for each (3.2 on H200 for 64 KiB of a peer), however small. What is large goes
// by the copy engine all the same, which leaves the multiprocessors to others.
const (
	// gatherLeast is from how many copies on, and gatherLargest up to which mean size.
	gatherLeast   = 4
	gatherLargest = 4 << 20
	// A row is what a block copies in one go: few bytes are to keep many blocks busy.
	minGatherRow = 16 << 10
	maxGatherRow = 64 << 10
	// gatherRows bounds the table.
	gatherRows     = 4096
	gatherRowBytes = 24
	gatherThreads  = 512
	// gatherBlocks fit on a multiprocessor.
	gatherBlocks = 4
)

// gathering are the plain copies of a submission. The zero gathering copies one by one.
type gathering struct {
	// cut is how long rows are, 0: there are none.
	cut   uint64
	table []byte
}

// gatherer decides whether the plain copies among moves, some of which may be nil, go by the
// kernel, and finds it.
func (d *Device) gatherer(moves []*move) (g gathering, kernel *gpu.Function, err error) {
	var count, total uint64
	for _, m := range moves {
		if m != nil && m.kernel == nil {
			count++
			total += uint64(m.elements() * m.size)
		}
	}
	if count < gatherLeast || total/count > gatherLargest {
		return g, nil, nil
	}
	blocks := uint64(max(d.gpu.Info().Attributes.Multiprocessors, 1) * gatherBlocks)
	cut := min(max((total/blocks+minGatherRow-1)/minGatherRow*minGatherRow, minGatherRow), maxGatherRow)
	rows := total/cut + count
	if rows > gatherRows {
		return g, nil, nil
	}
	g.cut, g.table = cut, make([]byte, 0, rows*gatherRowBytes)
	kernel, err = d.code.builtin("gather")
	return g, kernel, err
}

// scratchBytes is what gather takes.
func (g *gathering) scratchBytes() uint64 {
	if g.cut == 0 {
		return 0
	}
	return aligned(uint64(cap(g.table)) + 16)
}

// moveOrGather is move, or adds to what gather copies.
func (s *submission) moveOrGather(g *gathering, m *move, from, to uint64) {
	if m.kernel != nil || g.cut == 0 {
		s.move(m, from, to)
		return
	}
	for left := uint64(m.elements() * m.size); left > 0; {
		n := min(left, g.cut)
		for _, word := range [3]uint64{to, from, n} {
			g.table = le.AppendUint64(g.table, word)
		}
		from, to, left = from+n, to+n, left-n
	}
}

// gather submits the copies. REQUIRES: f is the kernel, if there are any.
func (s *submission) gather(g *gathering, f *gpu.Function) {
	rows := len(g.table) / gatherRowBytes
	if rows == 0 {
		return
	}
	table := s.at(&ops.Tensor{DType: ops.Uint8, Shape: []int64{int64(len(g.table))}, Strides: []int64{1}, Data: g.table})
	blocks := max(s.device.gpu.Info().Attributes.Multiprocessors, 1) * gatherBlocks
	s.launchGrid(f, gpu.Dim{uint32(min(rows, blocks))}, gatherThreads, s.parameters().u64(table).i32(int32(rows)))
}
