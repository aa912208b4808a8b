package cuda

import (
	"context"
	"fmt"
	"strings"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

// reducer describes how a reduction runs. It has outs outputs, and each folds count elements. The
// elements of an output are divided into splits of per elements each.
type reducer struct {
	function              string
	from, work, to        ops.DType
	kept, keptBy          []int64
	rows, rowsBy          []int64
	outs, count           int64
	splits, per           int64
	group                 int64 // threads for one output
	perPack               int64
	together              bool
	accumulator           string
	foldName              string
	accumulatorBytes      int64
	fold, joining         *gpu.Function
	foldBlocks, joinBlock uint64
}

// accumulatorOf returns the type of the accumulator. Sums and products of float32 are accumulated
// in float64 (of complex64 in complex128). This costs no time where the memory bandwidth is the
// limit.
func accumulatorOf(function string, work ops.DType) ops.DType {
	if function == "sum" || function == "prod" || function == "mean" {
		if wide, ok := map[ops.DType]ops.DType{ops.Float32: ops.Float64, ops.Complex64: ops.Complex128}[work]; ok {
			return wide
		}
	}
	return work
}

func (d *Device) planReduce(w *ops.Reducing, out *ops.Tensor) (*reducer, error) {
	var room keyRoom
	return d.reducers.get(reduceKey(room[:0], w, out), func() (*reducer, error) { return d.decideReduce(w, out) })
}

// reduceKey appends all that the decision of decideReduce depends on.
func reduceKey(key []byte, w *ops.Reducing, out *ops.Tensor) []byte {
	key = append(append(key, w.Function...), byte(w.Accumulator), byte(out.DType))
	key = appendList(key, out.Shape)
	for _, folded := range w.Folded {
		key = append(key, '0')
		if folded {
			key[len(key)-1] = '1'
		}
	}
	return appendTensor(key, w.X)
}

func (d *Device) decideReduce(w *ops.Reducing, out *ops.Tensor) (*reducer, error) {
	r, err := d.reducerOf(w, out)
	if err != nil {
		return nil, err
	}
	source := func() string { return kernelText("prelude.cuh") + r.source() + kernelText("reduce.cuh") }
	signature := fmt.Sprint("reduce", w.Function, w.X.DType, w.Accumulator, out.DType, r.perPack, r.group, len(r.kept), len(r.rows), r.together)
	if r.fold, err = d.code.kernel("reduce.cu", signature, r.foldName, source); err != nil || r.splits == 1 {
		return r, err
	}
	name := "join_splits"
	r.joinBlock = uint64(r.outs)
	if r.outs > 1024 {
		name, r.joinBlock = "join_wide", blocksOf(r.outs, threads)
	}
	r.joining, err = d.code.kernel("reduce.cu", signature, name, source)
	return r, err
}

// reducerOf decides how a reduction is divided into blocks.
func (d *Device) reducerOf(w *ops.Reducing, out *ops.Tensor) (*reducer, error) {
	r := &reducer{function: w.Function, from: w.X.DType, work: w.Accumulator, to: out.DType, outs: out.Len(), count: w.Rows, group: 1, perPack: 1}
	x := w.X
	size := x.DType.Size()
	var kept, keptBy, rows, rowsBy []int64
	smallest, fastFolded := int64(0), true
	for i, n := range x.Shape {
		if stride := max(x.Strides[i], -x.Strides[i]); n > 1 && (smallest == 0 || stride <= smallest) {
			smallest, fastFolded = stride, w.Folded[i]
		}
		if w.Folded[i] {
			rows, rowsBy = append(rows, n), append(rowsBy, x.Strides[i])
		} else {
			kept, keptBy = append(kept, n), append(keptBy, x.Strides[i])
		}
	}
	var joined [][]int64
	r.kept, joined = joinAxes(kept, keptBy)
	r.keptBy = joined[0]
	r.rows, joined = joinAxes(rows, rowsBy)
	r.rowsBy = joined[0]
	if len(r.kept) > maxAxes || len(r.rows) > maxAxes {
		return nil, errHost
	}
	// Use enough blocks to give each multiprocessor eight of them.
	wanted := int64(8 * max(d.gpu.Info().Attributes.Multiprocessors, 1))
	var blocks int64
	var least int64 // smallest number of elements for a split
	r.foldName = "runs"
	if fastFolded {
		for r.group < threads && r.group < r.count/4 {
			r.group *= 2
		}
		blocks = (r.outs*r.group + threads - 1) / threads
		least = 16 * threads
		r.together = len(r.rows) == 1 && r.rowsBy[0] == size
		if r.together {
			r.perPack = r.aligned(x, size)
		}
	} else {
		r.foldName, blocks, least = "lanes", (r.outs+31)/32, 256
	}
	r.splits = max(1, min(wanted/max(blocks, 1), r.count/least, 65535))
	r.per = (r.count + r.splits - 1) / r.splits
	if r.together { // each split begins at an aligned address
		r.per = (r.per + 15) / 16 * 16
	}
	r.splits = max(1, (r.count+r.per-1)/r.per)
	r.foldBlocks = uint64(blocks)
	acc := accumulatorOf(w.Function, w.Accumulator)
	r.accumulator, r.accumulatorBytes = cType(acc.String()), acc.Size()
	return r, nil
}

// aligned returns how many elements can be loaded at once at the beginning of every contiguous run.
func (r *reducer) aligned(x *ops.Tensor, size int64) int64 {
	n := 16 / size
	at := x.Offset
	if x.Far != nil {
		at += int64(x.Far.Address() % 16)
	} else {
		at = 0
	}
	for n > 1 {
		fits := at%(n*size) == 0
		for i, s := range r.keptBy {
			fits = fits && (r.kept[i] == 1 || s%(n*size) == 0)
		}
		if fits {
			break
		}
		n /= 2
	}
	return max(n, 1)
}

// source returns the definitions that reduce.cuh needs.
func (r *reducer) source() string {
	var b strings.Builder
	in, acc, out := cType(r.from.String()), r.accumulator, cType(r.to.String())
	work := cType(r.work.String())
	fmt.Fprintf(&b, "typedef %s in_t;\ntypedef %s acc_t;\ntypedef %s out_t;\n", in, acc, out)
	fmt.Fprintf(&b, "enum { V = %d, G = %d, NK = %d, NR = %d };\n", r.perPack, r.group, len(r.kept), len(r.rows))
	run := 0
	if r.together {
		run = 1
	}
	fmt.Fprintf(&b, "#define RUN %d\n", run)
	join, identity := "f_add(a, b)", "acc_t{}"
	switch acc { // the sum of negative zeros is a negative zero
	case "f32", "f64":
		identity = "-0.0"
	case "c64", "c128":
		identity = acc + "{-0.0, -0.0}"
	}
	switch r.function {
	case "prod":
		join, identity = "f_mul(a, b)", "cast<acc_t>((f64)1)"
	case "min", "max":
		join = "f_" + r.function + "imum(a, b)"
		// The accumulator begins with the extreme value of the type: no element is beyond it, and
		// NaN replaces it.
		identity = extreme(r.work, r.function == "min")
		if r.work == ops.Bool {
			join = map[string]string{"min": "a & b", "max": "a | b"}[r.function]
		}
	case "any":
		join = "a | b"
	case "all":
		join, identity = "a & b", "1"
	}
	fmt.Fprintf(&b, "#define IDENTITY (%s)\n", identity)
	fmt.Fprintf(&b, "__device__ __forceinline__ acc_t join(acc_t a, acc_t b) { return %s; }\n", join)
	var load string
	switch {
	case r.function == "count" || r.work == ops.Bool:
		load = "(acc_t)truth(x)"
	case in == work:
		load = "cast<acc_t>(x)"
	default:
		load = fmt.Sprintf("cast<acc_t>(cast<%s>(x))", work)
	}
	fmt.Fprintf(&b, "__device__ __forceinline__ acc_t load(in_t x) { return %s; }\n", load)
	finish := "cast<out_t>(a)"
	if r.function == "mean" {
		finish = "cast<out_t>(f_div(a, cast<acc_t>(n)))"
	}
	fmt.Fprintf(&b, "__device__ __forceinline__ out_t finish(acc_t a, f64 n) { return %s; }\n", finish)
	return b.String()
}

// extreme returns the initial value of a minimum or maximum: no value is beyond it.
func extreme(d ops.DType, isMin bool) string {
	sign := "-"
	if isMin {
		sign = ""
	}
	switch d {
	case ops.Bool, ops.Uint8:
		return map[bool]string{true: "255", false: "0"}[isMin]
	case ops.Int32:
		return map[bool]string{true: "0x7fffffff", false: "(i32)0x80000000u"}[isMin]
	case ops.Int64:
		return map[bool]string{true: "0x7fffffffffffffffll", false: "(i64)0x8000000000000000ull"}[isMin]
	case ops.Float32:
		return sign + "__int_as_float(0x7f800000)"
	case ops.Float64:
		return sign + "__longlong_as_double(0x7ff0000000000000ll)"
	case ops.Complex128:
		return fmt.Sprintf("c128{%s__longlong_as_double(0x7ff0000000000000ll), %s__longlong_as_double(0x7ff0000000000000ll)}", sign, sign)
	case ops.Invalid, ops.Complex64:
	}
	return fmt.Sprintf("c64{%s__int_as_float(0x7f800000), %s__int_as_float(0x7f800000)}", sign, sign)
}

func (r *reducer) scratchBytes() uint64 {
	if r.splits == 1 {
		return 0
	}
	return aligned(uint64(r.splits * r.outs * r.accumulatorBytes))
}

func (s *submission) reduce(r *reducer, x, out *ops.Tensor) {
	from, to := s.at(x), out.Far.Address()
	parts := to
	if r.splits > 1 {
		parts = s.take(r.scratchBytes())
	}
	count := float64(r.count)
	p := s.parameters().u64(from, parts).i64(r.outs, r.count, r.per, r.splits).f64(count).
		i64(r.kept...).i64(r.keptBy...).i64(r.rows...).i64(r.rowsBy...)
	if r.foldBlocks > maxBlocks {
		s.fail(fmt.Errorf("cuda: %s: %d blocks are more than a grid has", s.op, r.foldBlocks))
	}
	s.launchGrid(r.fold, gpu.Dim{uint32(r.foldBlocks), uint32(r.splits)}, threads, p)
	if r.splits > 1 {
		s.launch(r.joining, r.joinBlock, s.parameters().u64(parts, to).i64(r.outs, r.splits).f64(count))
	}
}

func (r *run) reduce(ctx context.Context, w *ops.Reducing, out *ops.Tensor) error {
	if out.Len() == 0 {
		return nil
	}
	if w.X.Len() == 0 {
		return errHost
	}
	plan, err := r.device.planReduce(w, out)
	if err != nil {
		return err
	}
	return r.submit(ctx, plan.scratchBytes()+uploadBytes(w.X), func(s *submission) { s.reduce(plan, w.X, out) })
}
