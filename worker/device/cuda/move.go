package cuda

import (
	"slices"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

// joinAxes drops axes of length one. It also joins neighbouring axes that can be walked with one
// stride in each of the lists of strides. The result has at least one axis.
func joinAxes(shape []int64, strides ...[]int64) ([]int64, [][]int64) {
	out := make([][]int64, len(strides))
	var lengths []int64
	for i, d := range shape {
		if d == 1 {
			continue
		}
		n := len(lengths)
		joins := n > 0
		for k, s := range strides {
			joins = joins && out[k][n-1] == s[i]*d
		}
		if joins {
			lengths[n-1] *= d
			for k, s := range strides {
				out[k][n-1] = s[i]
			}
			continue
		}
		lengths = append(lengths, d)
		for k, s := range strides {
			out[k] = append(out[k], s[i])
		}
	}
	if len(lengths) == 0 {
		lengths = []int64{1}
		for k := range out {
			out[k] = []int64{0}
		}
	}
	return lengths, out
}

// move is a copy of elements of one size between strided memory ranges.
type move struct {
	shape    []int64
	from, to []int64 // strides in bytes
	size     int64
	// tile is the axis that is contiguous in from, if the last axis is contiguous in to and the
	// copy goes by square tiles; otherwise -1.
	tile   int
	kernel *gpu.Function
}

// planMove decides how to copy a tensor of that shape between the two lists of strides.
func (d *Device) planMove(shape, from, to []int64, size int64, fromAt, toAt uint64) (*move, error) {
	var room keyRoom
	key := moveKey(room[:0], shape, from, to, size, fromAt, toAt)
	return d.moves.get(key, func() (*move, error) { return d.decideMove(shape, from, to, size, fromAt, toAt) })
}

// moveKey appends all that the decision of decideMove depends on.
func moveKey(key []byte, shape, from, to []int64, size int64, fromAt, toAt uint64) []byte {
	key = append(key, byte(size), byte(fromAt%16), byte(toAt%16))
	return appendList(appendList(appendList(key, shape), from), to)
}

func (d *Device) decideMove(shape, from, to []int64, size int64, fromAt, toAt uint64) (*move, error) {
	m := &move{size: size, tile: -1}
	var joined [][]int64
	m.shape, joined = joinAxes(shape, from, to)
	m.from, m.to = joined[0], joined[1]
	last := len(m.shape) - 1
	if m.from[last] == size && m.to[last] == size {
		m.widen(fromAt, toAt)
		if last == 0 && m.from[0] == m.size {
			return m, nil // one copy of bytes
		}
	}
	if len(m.shape) > maxAxes {
		return nil, errHost
	}
	names := copies
	if axis := slices.Index(m.from[:last], m.size); m.to[last] == m.size && axis >= 0 && m.from[last] != m.size && m.shape[axis] >= 8 && m.shape[last] >= 8 {
		others := int64(1)
		for i, n := range m.shape {
			if i != axis && i != last {
				others *= n
			}
		}
		if others <= 65535 && (m.shape[axis]+31)/32 <= 65535 {
			m.tile, names = axis, turns
		}
	}
	var err error
	m.kernel, err = d.code.builtin(names[m.size])
	return m, err
}

// The copy kernels, by element size.
var (
	copies = map[int64]string{1: "copy_1", 4: "copy_4", 8: "copy_8", 16: "copy_16"}
	turns  = map[int64]string{1: "turn_1", 4: "turn_4", 8: "turn_8", 16: "turn_16"}
)

// widen combines elements that are contiguous on both sides into units of up to 16 bytes.
func (m *move) widen(fromAt, toAt uint64) {
	last := len(m.shape) - 1
	for _, wide := range []int64{16, 8, 4} {
		if wide <= m.size || m.shape[last]*m.size%wide != 0 || fromAt%uint64(wide) != 0 || toAt%uint64(wide) != 0 {
			continue
		}
		fits := true
		for i := range last {
			fits = fits && m.from[i]%wide == 0 && m.to[i]%wide == 0
		}
		if fits {
			m.shape[last] = m.shape[last] * m.size / wide
			m.from[last], m.to[last], m.size = wide, wide, wide
			return
		}
	}
}

func (m *move) elements() int64 {
	n := int64(1)
	for _, d := range m.shape {
		n *= d
	}
	return n
}

// maxMoveBlocks bounds the blocks of a copy without tiles: it is many for each multiprocessor, and
// a thread takes several elements if there are more of them.
const maxMoveBlocks = 1 << 20

func (s *submission) move(m *move, from, to uint64) {
	n := m.elements()
	if m.kernel == nil {
		s.copy(gpu.OnDevice(to, from, uint64(n*m.size)))
		return
	}
	p := s.parameters().u64(from, to, uint64(n)).i32(int32(len(m.shape)), int32(m.tile))
	for _, list := range [][]int64{m.shape, m.from, m.to} {
		p.i64(list...)
		p.fill(len(p.bytes) + 8*(maxAxes-len(list)))
	}
	if m.tile < 0 {
		s.launch(m.kernel, min(blocksOf(n, threads), maxMoveBlocks), p)
		return
	}
	last := len(m.shape) - 1
	rows, columns := m.shape[m.tile], m.shape[last]
	s.launchGrid(m.kernel, gpu.Dim{uint32((columns + 31) / 32), uint32((rows + 31) / 32), uint32(n / rows / columns)}, threads, p)
}

// moveOf plans a copy of a tensor's elements in C order to contiguous memory.
func (d *Device) moveOf(t *ops.Tensor, toAt uint64) (*move, error) {
	size := t.DType.Size()
	// For a tensor in host memory, 8 is a safe assumption: its upload aligns element zero to 16
	// bytes.
	fromAt := uint64(t.Offset)
	if t.Far != nil {
		fromAt += t.Far.Address()
	} else {
		fromAt = 8
	}
	return d.planMove(t.Shape, t.Strides, ops.ContiguousStrides(t.DType, t.Shape), size, fromAt, toAt)
}
