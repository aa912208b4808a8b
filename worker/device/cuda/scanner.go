package cuda

import (
	"context"
	"fmt"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

// scanner computes the running sums of lanes: of outer times length times inner elements in C
// order, along the axis in the middle. See kernels/scan.cuh.
type scanner struct {
	from, work           ops.DType
	outer, length, inner int64
	perPack, rounds      int64 // of lanes that are contiguous
	parts                int64 // tiles, or chunks of each lane
	per                  int64 // rows of a chunk
	sums, starts, scan   *gpu.Function
}

const (
	// fewColumns is the smallest number of neighbouring lanes that kernels read side by side. Fewer
	// of them are brought into contiguous memory first.
	fewColumns = 32
	// maxChunks is the largest number of chunks of a lane. Their sums are added one after the
	// other.
	maxChunks = 1024
	// leastChunk is the smallest number of rows of a chunk.
	leastChunk = 32
	// threadsEach is the number of threads that keep a multiprocessor busy.
	threadsEach = 2048
)

// planScan decides how to sum up lanes.
func (d *Device) planScan(from, work ops.DType, outer, length, inner int64) (*scanner, error) {
	v := &scanner{from: from, work: work, outer: outer, length: length, inner: inner}
	v.perPack = 16 / max(from.Size(), work.Size())
	v.rounds = 16 / v.perPack
	names := []string{"tile_sums", "tile_starts", "tile_scan"}
	if inner == 1 {
		tile := threads * v.perPack * v.rounds
		v.parts = (outer*length + tile - 1) / tile
	} else {
		names = []string{"column_sums", "column_starts", "column_scan"}
		wanted := threadsEach * int64(max(d.gpu.Info().Attributes.Multiprocessors, 1))
		v.parts = max(1, min(wanted/max(outer*inner, 1), length/leastChunk, maxChunks))
		v.per = (length + v.parts - 1) / v.parts
		v.parts = (length + v.per - 1) / v.per
	}
	signature := fmt.Sprint("scan", from, work)
	for i, f := range []**gpu.Function{&v.sums, &v.starts, &v.scan} {
		var err error
		if *f, err = d.code.kernel("scan.cu", signature, names[i], func() string { return kernelText("prelude.cuh") + v.source() }); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// source returns the kernels and the definitions that they need.
func (v *scanner) source() string {
	in, work, acc := cType(v.from.String()), cType(v.work.String()), cType(accumulatorOf("sum", v.work).String())
	zero := "acc_t{}"
	switch acc { // the sum of negative zeros is a negative zero
	case "f64":
		zero = "-0.0"
	case "c128":
		zero = "acc_t{-0.0, -0.0}"
	}
	load := fmt.Sprintf("cast<acc_t>(cast<%s>(x))", work)
	if v.from == ops.Bool {
		load = "cast<acc_t>(truth(x))"
	}
	return fmt.Sprintf("typedef %s in_t;\ntypedef %s acc_t;\ntypedef %s out_t;\nenum { V = %d, ROUNDS = %d };\n#define ZERO (%s)\n"+
		"__device__ __forceinline__ acc_t load(in_t x) { return %s; }\n"+
		"__device__ __forceinline__ acc_t join(acc_t a, acc_t b) { return f_add(a, b); }\n"+
		"__device__ __forceinline__ out_t finish(acc_t a) { return cast<out_t>(a); }\n%s",
		in, acc, work, v.perPack, v.rounds, zero, load, kernelText("scan.cuh"))
}

// partsBytes is the size of the sums of the tiles or chunks; 0 if there is one of each lane.
func (v *scanner) partsBytes() uint64 {
	if v.parts == 1 {
		return 0
	}
	n := v.parts * accumulatorOf("sum", v.work).Size()
	if v.inner > 1 {
		n *= v.outer * v.inner
	}
	return uint64(n)
}

// sumUp sums up the elements at from. The sums are stored at to.
func (s *submission) sumUp(v *scanner, from, to uint64) {
	parts := uint64(0)
	if v.parts > 1 {
		parts = s.take(v.partsBytes())
	}
	blocks, starts, block := uint64(v.parts), uint64(1), uint32(1024)
	lists := []int64{v.outer * v.length, v.length, v.parts}
	if v.inner > 1 {
		blocks, starts, block = blocksOf(v.outer*v.parts*v.inner, threads), blocksOf(v.outer*v.inner, threads), threads
		lists = []int64{v.outer, v.length, v.inner, v.parts, v.per}
	}
	if v.parts > 1 {
		s.launch(v.sums, blocks, s.parameters().u64(from, to, parts).i64(lists...))
		s.launchGrid(v.starts, gpu.Dim{uint32(starts)}, block, s.parameters().u64(from, to, parts).i64(lists...))
	}
	s.launch(v.scan, blocks, s.parameters().u64(from, to, parts).i64(lists...))
}

func (r *run) accumulate(ctx context.Context, w *ops.Accumulating, out *ops.Tensor) error {
	if out.Len() == 0 {
		return nil
	}
	x, to, length, inner := w.X, out, out.Len(), int64(1)
	if w.Axis >= 0 {
		length = x.Shape[w.Axis]
		inner = slicesProduct(x.Shape[w.Axis+1:])
	}
	if inner > 1 && inner < fewColumns && length > leastChunk {
		x, to, inner = axisLast(w.X, w.Axis), axisLast(out, w.Axis), 1
	}
	elements, err := r.device.pack(x)
	if err != nil {
		return err
	}
	v, err := r.device.planScan(x.DType, w.Accumulator, x.Len()/length/inner, length, inner)
	if err != nil {
		return err
	}
	back, err := r.device.unpack(to)
	if err != nil {
		return err
	}
	need := elements.scratchBytes(r.device) + aligned(v.partsBytes())
	if back != nil {
		need += aligned(uint64(out.Bytes()))
	}
	return r.submit(ctx, need, func(s *submission) {
		from, at := s.packed(elements), out.Far.Address()
		if back != nil {
			at = s.take(uint64(out.Bytes()))
		}
		s.sumUp(v, from, at)
		if back != nil {
			s.move(back, at, out.Far.Address())
		}
	})
}
