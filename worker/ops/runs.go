package ops

import (
	"context"
	"sync/atomic"
	"unsafe"
)

// runs is a reduction that folds the elements of each output separately. It suits reductions along
// the axis whose elements are closest in memory.
//
// A run is folded in parts, whose results are joined. In a tree the parts are halves of halves, as
// in pairwise; otherwise they have partLen elements and are joined from left to right. So the
// result depends neither on the number of goroutines nor on the kernels.
type runs struct {
	*reduction
	length  int64 // the number of elements of a run
	direct  bool  // the elements of a run lie side by side in x
	tree    bool
	partLen int64 // the largest number of elements of a part
}

func (r *reduction) byRuns(ctx context.Context) error {
	f := &runs{reduction: r, length: r.rows.Len(), direct: r.source(r.kept.base(), 0).direct(), partLen: runLen}
	switch {
	case f.direct && r.cast == nil:
		f.tree, f.partLen = true, checkEvery
	case f.direct && r.fold.Exists() && r.dtype.kind() <= intKind: // any parts give the same result
		f.partLen = checkEvery
	}
	outputs := r.kept.Len()
	if f.length >= splitLen {
		for k := range outputs {
			if err := f.split(ctx, k); err != nil {
				return err
			}
		}
		return nil
	}
	each := max(foldLen/f.length, 1)
	return eachPiece(ctx, outputs, each, func(first, last int64) error { return f.fill(ctx, first, last) })
}

// address returns the first element of the run of output k.
func (f *runs) address(k int64) unsafe.Pointer { return f.addressIn(len(f.kept.Shape), k) }

// to returns the place of output k.
func (f *runs) to(k int64) unsafe.Pointer { return unsafe.Add(f.out, k*f.dtype.Size()) }

// fill computes the outputs from first to last-1.
func (f *runs) fill(ctx context.Context, first, last int64) error {
	if f.direct && f.fold.Exists() && f.length <= f.partLen {
		axis := len(f.kept.Shape) - 1
		for k := first; k < last; {
			n := min(f.kept.Shape[axis]-k%f.kept.Shape[axis], last-k)
			f.fold.Runs(f.address(k), f.to(k), n, f.kept.Strides[axis], f.length)
			k += n
		}
		return nil
	}
	s := f.buffers()
	for k := first; k < last; k++ {
		source, settled := f.source(f.address(k), 0), false
		if err := f.combine(f.to(k), f.length, func(to unsafe.Pointer, n int64) error {
			if settled {
				f.settle(to)
				return nil
			}
			f.part(to, source, s, n)
			settled = f.settles(to)
			return ctx.Err()
		}); err != nil {
			return err
		}
	}
	return nil
}

// split computes output k on several goroutines.
func (f *runs) split(ctx context.Context, k int64) error {
	var lengths []int64
	var values []complex128 // each has room for one value of any type
	var settled atomic.Bool
	var start int64 // of the next part
	next := 0
	return f.combine(f.to(k), f.length, func(to unsafe.Pointer, n int64) error {
		if next == len(lengths) {
			lengths, next = f.lengths(start), 0
			values = make([]complex128, len(lengths))
			if err := f.round(ctx, k, start, lengths, values, &settled); err != nil {
				return err
			}
		}
		copyRun(to, unsafe.Pointer(&values[next]), 1, f.dtype.Size(), f.dtype.Size())
		next++
		start += n
		return nil
	})
}

// lengths returns the lengths of the next parts of a run: of all of them in a tree, otherwise of as
// many as are folded in a round.
func (f *runs) lengths(start int64) (lengths []int64) {
	n := f.length
	if !f.tree {
		n = min(n-start, roundParts*f.partLen)
	}
	f.eachPart(n, func(m int64) { lengths = append(lengths, m) })
	return lengths
}

// eachPart calls visit with the lengths of the parts of n elements, in their order.
func (f *runs) eachPart(n int64, visit func(m int64)) {
	switch {
	case n <= f.partLen:
		visit(n)
	case f.tree:
		f.eachPart(halfOf(n), visit)
		f.eachPart(n-halfOf(n), visit)
	default:
		for ; n > 0; n -= f.partLen {
			visit(min(n, f.partLen))
		}
	}
}

// round folds parts that follow each other in the run of output k, the first one from start on.
// Parts that come after a decisive value are left out.
func (f *runs) round(ctx context.Context, k, start int64, lengths []int64, values []complex128, settled *atomic.Bool) error {
	starts := make([]int64, len(lengths))
	for i, n := range lengths {
		starts[i] = start
		start += n
	}
	each := int(max(foldLen/f.partLen, 1))
	return eachPiece(ctx, len(lengths), each, func(first, last int) error {
		if settled.Load() {
			for i := first; i < last; i++ {
				f.settle(unsafe.Pointer(&values[i]))
			}
			return nil
		}
		source, s := f.source(f.address(k), starts[first]), f.buffers()
		for i := first; i < last; i++ {
			value := unsafe.Pointer(&values[i])
			f.part(value, source, s, lengths[i])
			if f.settles(value) {
				settled.Store(true)
			}
		}
		return nil
	})
}

// settles reports whether a value of a part is the result of the run, regardless of other parts.
func (f *runs) settles(value unsafe.Pointer) bool {
	return f.decisive >= 0 && int(*(*uint8)(value)) == f.decisive
}

// settle stores the decisive value.
func (f *runs) settle(to unsafe.Pointer) { *(*uint8)(to) = uint8(f.decisive) }

func (f *runs) buffers() scratch {
	if f.direct && (f.cast == nil || f.fold.Exists()) {
		return scratch{}
	}
	return newScratch(int(min(f.length, runLen)))
}

// part folds the next n elements of a run, at most partLen.
func (f *runs) part(to unsafe.Pointer, source *reader, s scratch, n int64) {
	in := source.at
	if f.direct {
		source.skip(n)
	} else {
		source.read(s[0], n)
		in = s[0]
	}
	if f.fold.Exists() {
		f.fold.Runs(in, to, 1, 0, n)
		return
	}
	f.run(to, f.convert(in, s, int(n)), int(n))
}

// combine calls part for the parts of n elements, in their order, and joins the results.
func (f *runs) combine(to unsafe.Pointer, n int64, part func(to unsafe.Pointer, n int64) error) error {
	if n <= f.partLen {
		return part(to, n)
	}
	if f.tree {
		var rest complex128
		if err := f.combine(to, halfOf(n), part); err != nil {
			return err
		}
		if err := f.combine(unsafe.Pointer(&rest), n-halfOf(n), part); err != nil {
			return err
		}
		return f.join(1, regs{to, to, unsafe.Pointer(&rest)})
	}
	if err := part(to, f.partLen); err != nil {
		return err
	}
	var value complex128
	for done := f.partLen; done < n; done += f.partLen {
		if err := part(unsafe.Pointer(&value), min(f.partLen, n-done)); err != nil {
			return err
		}
		if err := f.join(1, regs{to, to, unsafe.Pointer(&value)}); err != nil {
			return err
		}
	}
	return nil
}
