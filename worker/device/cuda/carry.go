package cuda

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

const (
	// threads is the block size of all kernels of this package.
	threads   = 256
	maxBlocks = 1<<31 - 1
	// maxAxes is the largest number of axes of a built-in copy, counted after axes have been
	// joined.
	maxAxes = 8
)

var le = binary.LittleEndian

func blocksOf(n, each int64) uint64 { return uint64((n + each - 1) / each) }

// carryOut computes the outputs with kernels. errHost means that nothing was submitted and that the
// CPU must compute them.
func (r *run) carryOut(ctx context.Context, w ops.Work, outs []*ops.Tensor) error {
	switch w := w.(type) {
	case *ops.Copying:
		return r.copyViews(ctx, w.Views, outs)
	case *ops.Joining:
		return r.join(ctx, w, outs[0])
	case *ops.Filling:
		return r.fill(ctx, w, outs[0])
	case *ops.Counting:
		return r.count(ctx, w, outs[0])
	case *ops.Drawing:
		return r.draw(ctx, w, outs[0])
	case *ops.Scattering:
		return r.scatter(ctx, w, outs[0])
	case *ops.Pointing:
		return r.point(ctx, w, outs[0])
	case *ops.Mapping:
		return r.evaluate(ctx, w, outs[0])
	case *ops.Reducing:
		return r.reduce(ctx, w, outs[0])
	case *ops.Multiplying:
		return r.multiply(ctx, w, outs[0])
	case *ops.FactoringQR:
		return r.qr(ctx, w.X, outs[0], outs[1])
	case *ops.FactoringSVD:
		return r.svd(ctx, w.X, outs[0], outs[1], outs[2])
	case *ops.Launching:
		return r.userKernel(ctx, w, outs)
	}
	return errHost
}

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
		s.launch(m.kernel, min(blocksOf(n, threads), 1<<20), p)
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

func (r *run) copyViews(ctx context.Context, views, outs []*ops.Tensor) error {
	moves := make([]*move, len(views))
	for i, v := range views {
		if v.Len() == 0 {
			continue
		}
		var err error
		if moves[i], err = r.device.moveOf(v, outs[i].Far.Address()); err != nil {
			return err
		}
	}
	g, kernel, err := r.device.gatherer(moves)
	if err != nil {
		return err
	}
	return r.submit(ctx, uploadBytes(views...)+g.scratchBytes(), func(s *submission) {
		for i, m := range moves {
			if m != nil {
				s.moveOrGather(&g, m, s.at(views[i]), outs[i].Far.Address())
			}
		}
		s.gather(&g, kernel)
	})
}

func (r *run) join(ctx context.Context, w *ops.Joining, out *ops.Tensor) error {
	type piece struct {
		part   *ops.Tensor // the part of the output
		mapper *mapping
	}
	pieces, moves := make([]piece, len(w.Xs)), make([]*move, len(w.Xs))
	offset := int64(0)
	for i, x := range w.Xs {
		part := *out
		part.Shape, part.Offset = x.Shape, offset
		offset += x.Shape[w.Axis] * out.Strides[w.Axis]
		if x.Len() == 0 {
			continue
		}
		pieces[i].part = &part
		var err error
		if x.DType == out.DType {
			fromAt := uint64(8)
			if x.Far != nil {
				fromAt = x.Far.Address() + uint64(x.Offset)
			}
			moves[i], err = r.device.planMove(x.Shape, x.Strides, out.Strides, out.DType.Size(), fromAt, out.Far.Address()+uint64(part.Offset))
		} else {
			pieces[i].mapper, err = r.device.planMap(ops.Convert(out.DType, x), &part)
		}
		if err != nil {
			return err
		}
	}
	g, kernel, err := r.device.gatherer(moves)
	if err != nil {
		return err
	}
	return r.submit(ctx, uploadBytes(w.Xs...)+g.scratchBytes(), func(s *submission) {
		for i, p := range pieces {
			switch {
			case moves[i] != nil:
				s.moveOrGather(&g, moves[i], s.at(w.Xs[i]), out.Far.Address()+uint64(p.part.Offset))
			case p.mapper != nil:
				s.evaluate(p.mapper, 0)
			}
		}
		s.gather(&g, kernel)
	})
}

func (r *run) fill(ctx context.Context, w *ops.Filling, out *ops.Tensor) error {
	one, err := ops.Scalar(out.DType, w.Value)
	if err != nil {
		return err
	}
	n := out.Bytes()
	if n == 0 {
		return nil
	}
	if !slices.ContainsFunc(one.Data, func(b byte) bool { return b != one.Data[0] }) {
		return r.submit(ctx, 0, func(s *submission) { s.memset(out.Far.Address(), one.Data[0], uint64(n)) })
	}
	f, err := r.device.code.builtin("fill")
	if err != nil {
		return err
	}
	return r.submit(ctx, 0, func(s *submission) {
		s.launch(f, blocksOf(n, 4*16*threads), s.parameters().u64(out.Far.Address(), uint64(n)).raw(16, bytes.Repeat(one.Data, 16/len(one.Data))))
	})
}

func (r *run) count(ctx context.Context, w *ops.Counting, out *ops.Tensor) error {
	n := out.Len()
	if n == 0 {
		return nil
	}
	head, err := w.Head()
	if err != nil {
		return err
	}
	f, err := r.device.code.builtin("count_" + out.DType.String())
	if err != nil {
		return err
	}
	first, step, err := firstAndStep(head)
	if err != nil {
		return err
	}
	return r.submit(ctx, 0, func(s *submission) {
		s.launch(f, blocksOf(n, threads), s.parameters().u64(out.Far.Address(), uint64(n)).raw(len(first), first).raw(len(step), step))
	})
}

func (r *run) draw(ctx context.Context, w *ops.Drawing, out *ops.Tensor) error {
	if w.Words == 0 {
		return nil
	}
	name := out.DType.String()
	switch out.DType {
	case ops.Bool:
		name = "uint8"
	case ops.Complex64:
		name = "float32"
	case ops.Complex128:
		name = "float64"
	case ops.Invalid, ops.Uint8, ops.Int32, ops.Int64, ops.Float32, ops.Float64:
	}
	f, err := r.device.code.builtin("draw_" + w.Distribution + "_" + name)
	if err != nil {
		return err
	}
	a, b := w.Low, w.High
	if w.Distribution == "normal" {
		a, b = w.Loc, w.Scale
	}
	pairs := int64((w.FirstWord+uint64(w.Words)+1)/2 - w.FirstWord/2)
	return r.submit(ctx, 0, func(s *submission) {
		s.launch(f, blocksOf(pairs, threads),
			s.parameters().u64(out.Far.Address(), w.FirstWord, uint64(w.Words), uint64(w.Seed)).f64(a, b).i64(w.First).u64(w.Span))
	})
}

func (r *run) scatter(ctx context.Context, w *ops.Scattering, out *ops.Tensor) error {
	n := out.Bytes()
	if n == 0 {
		return nil
	}
	f, err := r.device.code.builtin("draw_bytes")
	if err != nil {
		return err
	}
	return r.submit(ctx, 0, func(s *submission) {
		s.launch(f, blocksOf(n, 16*threads), s.parameters().u64(out.Far.Address(), 0, uint64(n), uint64(w.Seed)).f64(0, 0).u64(0, 0))
	})
}

// maxPointInputs is the largest number of inputs of a point that its kernel's parameters can hold.
const maxPointInputs = 64

// point executes a task of Task Bench. It launches one block for each multiprocessor, so that an
// iteration is the same amount of work for every output size.
func (r *run) point(ctx context.Context, w *ops.Pointing, out *ops.Tensor) error {
	if len(w.Inputs) > maxPointInputs {
		return errHost
	}
	f, err := r.device.code.builtin("bench_point")
	if err != nil {
		return err
	}
	blocks := uint64(max(r.device.gpu.Info().Attributes.Multiprocessors, 1))
	return r.submit(ctx, uploadBytes(w.Inputs...), func(s *submission) {
		const headBytes, inputBytes = 48, 24
		p := s.parameters().u64(out.Far.Address(), uint64(out.Bytes())/16).i64(w.Step, w.Point, w.Iterations).u64(uint64(len(w.Inputs)))
		for i, x := range w.Inputs {
			p.u64(s.near(x), uint64(x.Bytes())/16).i64(w.From[i])
		}
		p.fill(headBytes + maxPointInputs*inputBytes) // the entries of further inputs are empty
		s.launch(f, blocks, p)
	})
}

// firstAndStep returns the first element and the difference of the first two elements, in the type
// of the elements. For complex numbers these are the real parts.
func firstAndStep(head *ops.Tensor) (first, step []byte, err error) {
	part := head.DType.Size()
	if head.DType == ops.Complex64 || head.DType == ops.Complex128 {
		part /= 2
	}
	first, second := head.Data[:part], head.Data[head.DType.Size():][:part]
	step = make([]byte, part)
	switch head.DType {
	case ops.Uint8:
		step[0] = second[0] - first[0]
	case ops.Int32:
		le.PutUint32(step, le.Uint32(second)-le.Uint32(first))
	case ops.Int64:
		le.PutUint64(step, le.Uint64(second)-le.Uint64(first))
	case ops.Float32, ops.Complex64:
		le.PutUint32(step, math.Float32bits(math.Float32frombits(le.Uint32(second))-math.Float32frombits(le.Uint32(first))))
	case ops.Float64, ops.Complex128:
		le.PutUint64(step, math.Float64bits(math.Float64frombits(le.Uint64(second))-math.Float64frombits(le.Uint64(first))))
	case ops.Invalid, ops.Bool:
		return nil, nil, errHost
	}
	return first, step, nil
}
