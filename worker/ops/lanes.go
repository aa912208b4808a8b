package ops

import (
	"context"
	"unsafe"
)

// lanes is a reduction that folds whole rows of outputs into each other. It suits reductions in
// which neighbours in memory belong to different outputs. Rows are joined in groups of leafLen, and
// the groups in a balanced tree, so that sums are as exact as pairwise sums.
//
// A unit of work is a block of rows, at most lineBytes wide. The groups of a block make a
// whole branch of the tree, so the result does not depend on the size of the blocks.
type lanes struct {
	*reduction
	last   int   // the axis of kept along which the lanes lie
	outer  int64 // the number of indexes of the axes before it
	all    int64 // the number of lanes
	width  int64 // the largest number of lanes of a unit
	count  int64 // the number of rows that are folded
	height int64 // the largest number of rows of a unit: leafLen times a power of two
	// partials has the results of the blocks, in the order outer, block, lane. If there is only one
	// block, they are the outputs.
	partials unsafe.Pointer
}

// lineBytes bounds the bytes of a row of a unit, and those of its accumulators. Both fit into the
// second-level cache, and longer rows are read faster.
const lineBytes = 32 << 10

// maxBlocks bounds the number of blocks that share a lane, and so the memory of their results.
const maxBlocks = 1 << 10

func (r *reduction) byLanes(ctx context.Context) error {
	last := len(r.kept.Shape) - 1
	l := &lanes{reduction: r, last: last, all: r.kept.Shape[last], count: r.rows.Len(), height: leafLen, partials: r.out}
	l.outer = r.kept.Len() / l.all
	l.width = min(l.all, lineBytes/max(r.dtype.Size(), r.kept.DType.Size()))
	for l.height < l.count && (l.height*l.width < foldLen || l.height*maxBlocks < l.count) {
		l.height *= 2
	}
	if l.blocks() > 1 {
		partials, err := scratchTensor(ctx, r.dtype, []int64{l.outer, l.blocks(), l.all})
		if err != nil {
			return err
		}
		l.partials = partials.base()
	}
	units := l.outer * l.blocks() * l.chunks()
	each := max(foldLen/(min(l.count, l.height)*l.width), 1)
	err := eachPiece(ctx, units, each, func(first, end int64) error {
		tree, s := &laneTree{}, l.buffers()
		for unit := first; unit < end; unit++ {
			if err := l.unit(ctx, unit, tree, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || l.blocks() == 1 {
		return err
	}
	return parallel(ctx, int(l.outer*l.chunks()), func(column int) error { return l.joinBlocks(int64(column)) })
}

// blocks returns the number of blocks of rows.
func (l *lanes) blocks() int64 { return pieces(l.count, l.height) }

// chunks returns the number of units that lie side by side.
func (l *lanes) chunks() int64 { return pieces(l.all, l.width) }

// inPlace reports whether the kernels read the rows where they lie.
func (l *lanes) inPlace() bool {
	return l.fold.Exists() && l.kept.Strides[l.last] == l.kept.DType.Size()
}

func (l *lanes) buffers() scratch {
	if l.inPlace() {
		return scratch{}
	}
	return newScratch(int(l.width))
}

// unit folds the rows of a block. Units that lie side by side follow each other.
func (l *lanes) unit(ctx context.Context, unit int64, tree *laneTree, s scratch) error {
	lane := unit % l.chunks() * l.width
	outerBlock := unit / l.chunks()
	outer, first := outerBlock/l.blocks(), outerBlock%l.blocks()*l.height
	n, size := int(min(l.width, l.all-lane)), l.dtype.Size()
	tree.reset(unsafe.Add(l.partials, (outerBlock*l.all+lane)*size), l.width*size)
	stride := l.kept.Strides[l.last]
	source := l.source(unsafe.Add(l.addressIn(l.last, outer), lane*stride), first)
	inner := &source.axes[len(source.axes)-1]
	for done := int64(0); done < min(l.height, l.count-first); done += leafLen {
		if done*int64(n)%checkEvery < leafLen*int64(n) {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		top, err := tree.push(l.reduction, n)
		if err != nil {
			return err
		}
		group := min(leafLen, l.count-first-done)
		for begin := true; group > 0; begin = false {
			rows := min(group, inner.Length-inner.Index)
			if err := l.add(top, source.at, int64(n), rows, begin, s); err != nil {
				return err
			}
			source.skip(rows)
			group -= rows
		}
	}
	return tree.finish(l.reduction, n)
}

// add folds rows of n elements that lie at the stride of the last folded axis.
func (l *lanes) add(top, in unsafe.Pointer, n, rows int64, begin bool, s scratch) error {
	step := l.reduction.rows.Strides[len(l.reduction.rows.Strides)-1]
	stride, size := l.kept.Strides[l.last], l.kept.DType.Size()
	if l.inPlace() {
		l.fold.Lanes(top, in, n, step, rows, begin)
		return nil
	}
	for i := range rows {
		row := unsafe.Add(in, i*step)
		if stride != size {
			copyRun(s[0], row, n, stride, size)
			row = s[0]
		}
		switch {
		case l.fold.Exists():
			l.fold.Lanes(top, row, n, 0, 1, begin)
		case begin:
			copyRun(top, l.convert(row, s, int(n)), n, l.dtype.Size(), l.dtype.Size())
		default:
			if err := l.join(int(n), regs{top, top, l.convert(row, s, int(n))}); err != nil {
				return err
			}
		}
		begin = false
	}
	return nil
}

// joinBlocks joins the results of the blocks of some lanes.
func (l *lanes) joinBlocks(column int64) error {
	lane, outer := column%l.chunks()*l.width, column/l.chunks()
	n, size := int(min(l.width, l.all-lane)), l.dtype.Size()
	var tree laneTree
	tree.reset(unsafe.Add(l.out, (outer*l.all+lane)*size), l.width*size)
	for b := range l.blocks() {
		top, err := tree.push(l.reduction, n)
		if err != nil {
			return err
		}
		copyRun(top, unsafe.Add(l.partials, ((outer*l.blocks()+b)*l.all+lane)*size), int64(n), size, size)
	}
	return tree.finish(l.reduction, n)
}

// laneTree holds partial results, each of a number of groups that is a power of two. They are
// joined when two have the same number of groups, like the digits of a binary counter.
type laneTree struct {
	levels []unsafe.Pointer // the lowest one is the result
	ranks  []int
	used   int
	bytes  int64 // of a level
}

// reset empties the tree. Its result is stored at to. Levels have that many bytes.
func (t *laneTree) reset(to unsafe.Pointer, bytes int64) {
	if t.levels == nil {
		t.levels, t.ranks = make([]unsafe.Pointer, 1), make([]int, 1)
	}
	t.levels[0], t.used, t.bytes = to, 0, bytes
}

// push returns room for the next group.
func (t *laneTree) push(r *reduction, n int) (unsafe.Pointer, error) {
	for t.used >= 2 && t.ranks[t.used-1] == t.ranks[t.used-2] {
		if err := t.merge(r, n); err != nil {
			return nil, err
		}
		t.ranks[t.used-1]++
	}
	if t.used == len(t.levels) {
		t.levels = append(t.levels, slicePointer(heapBytes(t.bytes)))
		t.ranks = append(t.ranks, 0)
	}
	t.ranks[t.used] = 0
	t.used++
	return t.levels[t.used-1], nil
}

// merge joins the two partial results at the top.
func (t *laneTree) merge(r *reduction, n int) error {
	under, top := t.levels[t.used-2], t.levels[t.used-1]
	t.used--
	return r.join(n, regs{under, under, top})
}

// finish joins all partial results.
func (t *laneTree) finish(r *reduction, n int) error {
	for t.used > 1 {
		if err := t.merge(r, n); err != nil {
			return err
		}
	}
	return nil
}
