package cuda

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"

	"github.com/millrace/millrace/worker/ops"
)

const (
	// threads is the block size of the kernels of this package, except gather (gatherThreads).
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
	case *ops.Accumulating:
		return r.accumulate(ctx, w, outs[0])
	case *ops.Sorting:
		return r.sort(ctx, w, outs[0])
	case *ops.Distinct:
		return r.distinct(ctx, w)
	case *ops.Taking:
		return r.take(ctx, w, outs[0])
	case *ops.Transforming:
		return r.transform(ctx, w, outs[0])
	case *ops.Multiplying:
		return r.multiply(ctx, w, outs[0])
	case *ops.FactoringQR:
		if w.OnlyR {
			return r.qr(ctx, w.X, nil, outs[0])
		}
		return r.qr(ctx, w.X, outs[0], outs[1])
	case *ops.FactoringSVD:
		if w.OnlyValues {
			return r.svd(ctx, w.X, nil, outs[0], nil)
		}
		return r.svd(ctx, w.X, outs[0], outs[1], outs[2])
	case *ops.FactoringCholesky:
		return r.lowerFactors(ctx, w, outs[0])
	case *ops.Solving:
		return r.solveSystems(ctx, w, outs[0])
	case *ops.Contracting:
		return r.contract(ctx, w, outs[0])
	case *ops.Launching:
		return r.userKernel(ctx, w, outs)
	}
	return errHost
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
