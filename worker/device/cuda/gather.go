package cuda

import (
	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

// Many small copies are done by one kernel that reads a table: the copy engine needs some
// microseconds for each copy, however small (3.2 on an H200 for 64 KiB of a peer). Large copies
// still use the copy engine, which leaves the multiprocessors to other kernels.
const (
	// gatherLeast is the smallest number of copies for the kernel, gatherLargest the largest mean
	// size of a copy in bytes.
	gatherLeast   = 4
	gatherLargest = 4 << 20
	// A row is the range that a block copies in one step. Small totals get short rows, so that many
	// blocks have work.
	minGatherRow = 16 << 10
	maxGatherRow = 64 << 10
	// gatherRows is the largest number of rows of the table.
	gatherRows     = 4096
	gatherRowBytes = 24
	gatherThreads  = 512
	// gatherBlocks is the number of blocks for each multiprocessor.
	gatherBlocks = 4
)

// gathering collects the plain copies of a submission. The zero gathering collects none: each copy
// is submitted by itself.
type gathering struct {
	// cut is the length of a row in bytes; 0 means that the copies are not collected.
	cut   uint64
	table []byte
}

// gatherer decides whether the kernel does the plain copies among moves, and finds the kernel.
// Entries of moves may be nil.
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

// scratchBytes is the scratch memory that gather takes.
func (g *gathering) scratchBytes() uint64 {
	if g.cut == 0 {
		return 0
	}
	return aligned(uint64(cap(g.table)) + 16)
}

// moveOrGather either submits the copy, as move does, or adds it to the table.
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

// gather submits the copies of the table, if there are any. REQUIRES: then f is the kernel.
func (s *submission) gather(g *gathering, f *gpu.Function) {
	rows := len(g.table) / gatherRowBytes
	if rows == 0 {
		return
	}
	table := s.at(&ops.Tensor{DType: ops.Uint8, Shape: []int64{int64(len(g.table))}, Strides: []int64{1}, Data: g.table})
	blocks := max(s.device.gpu.Info().Attributes.Multiprocessors, 1) * gatherBlocks
	s.launchGrid(f, gpu.Dim{uint32(min(rows, blocks))}, gatherThreads, s.parameters().u64(table).i32(int32(rows)))
}
