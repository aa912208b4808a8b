package sched

import (
	"math/bits"
)

// A task may need one item of an input only, which is then a list: item j of the pieces into which
// another task has split its result. Nothing else differs from other inputs: the task depends on
// the whole object, whose bytes stay while the task is unfinished. But its worker reads only the
// item, and gets no replica of the object by that. The scheduler does not know the size of the
// item; it assumes that all items of a list are equal.

// maxItems bounds the items of a list that inputs can name.
const maxItems = 1 << 24

// inlineListBytes is the size of the largest list that is sent inline to a task which needs one
// item of it. The assignments of all items of a larger list would carry it many times.
const inlineListBytes = 4 << 10

// itemCount is a number of items below maxItems in 8 bits, rounded down to 4 significant bits:
// numbers below 16 are exact. 0: unknown.
type itemCount uint8

func itemCountOf(n uint32) itemCount {
	if n < 8 {
		return itemCount(n)
	}
	shift := bits.Len32(n) - 4
	return itemCount(8*(shift+1) + int(n>>shift)&7)
}

func (c itemCount) number() uint32 {
	if c < 8 {
		return uint32(c)
	}
	return uint32(8+c&7) << (c/8 - 1)
}

// bytesOf is the expected number of bytes of an object that the using task reads.
func (e *edge) bytesOf(p *task) uint64 {
	if n := uint64(e.count.number()); e.item != 0 && n > 0 {
		return (p.output + n - 1) / n
	}
	return p.output
}

// expectFetch notes that the worker of the using task will fetch the item of p.
func (e *edge) expectFetch(p *task, w *worker) {
	e.flags |= edgeFetching
	w.fetchingItems++
	w.fetchingBytes += e.bytesOf(p)
}

// fetchEnded notes that the using task has left the worker. The list may have another size than at
// expectFetch, if it was made again in between.
func (e *edge) fetchEnded(p *task, w *worker) {
	if e.flags&edgeFetching == 0 {
		return
	}
	e.flags &^= edgeFetching
	w.fetchingItems--
	w.fetched(e.bytesOf(p))
}

// badItems returns the reason why a task cannot have these items, nil if it can.
func badItems(spec *TaskSpec) *Error {
	for i, it := range spec.Items {
		switch {
		case int(it.Input) >= len(spec.Inputs):
			return invalid("items", "task %s: items[%d] is of input %d, and there are %d inputs (counted from 0); name an input", spec.Key, i, it.Input, len(spec.Inputs))
		case i > 0 && it.Input <= spec.Items[i-1].Input:
			return invalid("items", "task %s: items[%d] is of input %d, and the one before of input %d; list them in ascending order, each input once", spec.Key, i, it.Input, spec.Items[i-1].Input)
		case it.Item == 0 || it.Item > maxItems || it.Count >= maxItems:
			return invalid("items", "task %s: items[%d] is item %d of %d; items below %d are possible", spec.Key, i, int64(it.Item)-1, it.Count, maxItems)
		case it.Count > 0 && uint32(it.Item) > it.Count:
			return invalid("items", "task %s: items[%d] is item %d (counted from 0) of a list of %d; correct one of both", spec.Key, i, it.Item-1, it.Count)
		}
	}
	return nil
}

// itemOf returns the item of input k of a task. items are those of inputs k and later, in order;
// rest are those of the inputs after k.
func itemOf(items []ItemInput, k int) (item ItemInput, rest []ItemInput) {
	if len(items) == 0 || int(items[0].Input) != k {
		return ItemInput{}, items
	}
	return items[0], items[1:]
}

// sameItem reports whether an edge names the same item.
func (e *edge) sameItem(it ItemInput) bool {
	return e.item == it.Item && e.count == itemCountOf(it.Count)
}
