package cuda

import (
	"context"
	"fmt"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

// distinct is the state of a call that finds the distinct elements of a tensor. It sorts the
// elements and counts the values; the CPU then allocates the outputs, and kernels fill them. See
// kernels/distinct.cuh.
//
// Meanwhile other calls may use the scratch memory. So the sorted elements lie in working memory of
// the call, in the slab.
type distinct struct {
	*run
	work                   *ops.Distinct
	n                      int64
	sorter                 *sorter
	tiles, starts, values  *gpu.Function
	lengths                *gpu.Function
	sorted, order, offsets uint64 // addresses in the working memory; order is 0 if it is not needed
}

// distinctTile is the number of elements that a block looks at.
const distinctTile = 2048

func (v *distinct) tileCount() int64 { return (v.n + distinctTile - 1) / distinctTile }

func (r *run) distinct(ctx context.Context, w *ops.Distinct) error {
	v := &distinct{run: r, work: w, n: w.X.Len()}
	if v.n == 0 {
		return v.allocate(0)
	}
	if r.frames == nil {
		return errHost
	}
	elements, err := r.device.pack(w.X)
	if err != nil {
		return err
	}
	if v.sorter, err = r.device.planSort(w.X.DType, 1, v.n, false, w.Inverse); err != nil {
		return err
	}
	if err := v.findKernels(); err != nil {
		return err
	}
	if err := v.takeMemory(); err != nil {
		return err
	}
	at, many := r.pinned(4)
	need := elements.scratchBytes(r.device) + v.sorter.scratchBytes(w.Inverse) + scratchAlign
	if err := r.submit(ctx, need, func(s *submission) {
		s.sort(v.sorter, s.packed(elements), v.sorted, v.order)
		count := s.take(4)
		s.launch(v.tiles, uint64(v.tileCount()), v.parameters(s, count))
		s.launchGrid(v.starts, gpu.Dim{1}, 1024, v.parameters(s, count))
		s.copy(gpu.ToHost(at, count, 4))
	}); err != nil {
		return err
	}
	return v.fill(ctx, int64(le.Uint32(many)))
}

func (v *distinct) findKernels() error {
	source := func() string { return kernelText("prelude.cuh") + distinctSource(v.work.X.DType) }
	for name, f := range map[string]**gpu.Function{
		"distinct_tiles": &v.tiles, "distinct_starts": &v.starts, "distinct_values": &v.values, "distinct_counts": &v.lengths,
	} {
		var err error
		if *f, err = v.device.code.kernel("distinct.cu", v.work.X.DType.String(), name, source); err != nil {
			return err
		}
	}
	return nil
}

// distinctSource returns the kernels and the definition that they need.
func distinctSource(d ops.DType) string {
	return fmt.Sprintf("typedef %s in_t;\n%s", cType(d.String()), kernelText("distinct.cuh"))
}

// takeMemory allocates the working memory of the call.
func (v *distinct) takeMemory() error {
	sizes := [3]uint64{uint64(v.work.X.Bytes()), 0, uint64(4 * v.tileCount())}
	if v.work.Inverse {
		sizes[1] = uint64(4 * v.n)
	}
	room, err := v.intermediate(ops.Output{DType: ops.Uint8, Shape: []int64{int64(aligned(sizes[0]) + aligned(sizes[1]) + aligned(sizes[2]))}})
	if err != nil {
		return err
	}
	v.sorted = room.Far.Address()
	v.offsets = v.sorted + aligned(sizes[0])
	if v.work.Inverse {
		v.order = v.offsets
		v.offsets += aligned(sizes[1])
	}
	return nil
}

// parameters lays out the parameters of the kernels, except for those that only distinct_values
// reads. count is the address of the number of values.
func (v *distinct) parameters(s *submission, count uint64) *parameters {
	p := s.parameters().u64(v.sorted, v.order, v.offsets, count).i64(v.n, v.tileCount())
	p.fill(distinctParameters)
	return p
}

// distinctParameters is the size of the kernels' parameters in bytes.
const distinctParameters = 9 * 8

// allocate allocates the outputs.
func (v *distinct) allocate(many int64) error {
	wants := []*ops.Tensor{{DType: v.work.X.DType, Shape: []int64{many}}}
	if v.work.Inverse {
		wants = append(wants, &ops.Tensor{DType: ops.Int64, Shape: v.work.X.Shape})
	}
	if v.work.Counts {
		wants = append(wants, &ops.Tensor{DType: ops.Int64, Shape: []int64{many}})
	}
	return v.lateOutputs(wants)
}

// fill allocates the outputs for that many values and fills them.
func (v *distinct) fill(ctx context.Context, many int64) error {
	if err := v.allocate(many); err != nil {
		return err
	}
	need := uint64(0)
	if v.work.Counts {
		need = aligned(uint64(4 * many))
	}
	return v.submit(ctx, need, func(s *submission) {
		firsts, inverse := uint64(0), uint64(0)
		if v.work.Counts {
			firsts = s.take(need)
		}
		if v.work.Inverse {
			inverse = v.outs[1].Far.Address()
		}
		s.launch(v.values, uint64(v.tileCount()),
			s.parameters().u64(v.sorted, v.order, v.offsets, 0).i64(v.n, v.tileCount()).u64(v.outs[0].Far.Address(), firsts, inverse))
		if v.work.Counts {
			counts := v.outs[len(v.outs)-1].Far.Address()
			s.launch(v.lengths, blocksOf(many, threads), s.parameters().u64(firsts, counts).i64(many, v.n))
		}
	})
}
