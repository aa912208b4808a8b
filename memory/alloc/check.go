package alloc

import "fmt"

// Check returns an error that names the first broken invariant, nil if all hold. It walks every
// block, so use it only in tests and test builds.
//
// The invariants are: the blocks follow one another without gap or overlap from 0 to the size; no
// two free blocks touch; exactly the free blocks are in the list of their class, and exactly the
// classes with a list have their bits set; exactly the blocks in use are found by their offset; the
// counters are right.
func (a *Allocator) Check() error {
	var at, used uint32
	var live, free, spare int
	before := uint32(0)
	for n := a.first; n != 0; n = a.nodes[n].after {
		b := a.nodes[n]
		switch {
		case b.start != at:
			return fmt.Errorf("alloc: block %d starts at granule %d, its neighbour ends at %d", n, b.start, at)
		case b.size == 0 || b.size > a.granules-at:
			return fmt.Errorf("alloc: block %d at granule %d has %d of %d granules", n, b.start, b.size, a.granules)
		case b.before != before:
			return fmt.Errorf("alloc: block %d at granule %d points back to %d instead of %d", n, b.start, b.before, before)
		case b.free && before != 0 && a.nodes[before].free:
			return fmt.Errorf("alloc: free blocks %d and %d touch at granule %d", before, n, b.start)
		case b.free && a.byStart.get(b.start) != 0:
			return fmt.Errorf("alloc: free block at granule %d is found as in use", b.start)
		case !b.free && a.byStart.get(b.start) != n:
			return fmt.Errorf("alloc: block in use at granule %d is not found by its offset", b.start)
		}
		if b.free {
			free++
		} else {
			live++
			used += b.size
		}
		at += b.size
		before = n
	}
	if at != a.granules {
		return fmt.Errorf("alloc: blocks end at granule %d of %d", at, a.granules)
	}
	listed := 0
	for class, head := range a.heads {
		row, bit := class>>rowBits, uint32(1)<<(class&(rowLen-1))
		if (head != 0) != (a.binMask[row]&bit != 0) {
			return fmt.Errorf("alloc: class %d has head %d but its bit says otherwise", class, head)
		}
		prev := uint32(0)
		for n := head; n != 0; n = a.nodes[n].nextFree {
			if b := a.nodes[n]; !b.free || classOf(b.size) != class || b.prevFree != prev {
				return fmt.Errorf("alloc: block %d of %d granules (free %v) is wrongly linked in class %d", n, b.size, b.free, class)
			}
			prev = n
			if listed++; listed > free {
				return fmt.Errorf("alloc: more blocks in the lists than the %d free ones", free)
			}
		}
	}
	for row, mask := range a.binMask {
		if (mask != 0) != (a.rowMask&(1<<row) != 0) {
			return fmt.Errorf("alloc: row %d has mask %#x but its bit says otherwise", row, mask)
		}
	}
	for n := a.spare; n != 0; n = a.nodes[n].nextFree {
		spare++
	}
	switch {
	case listed != free || free != a.freeLen:
		return fmt.Errorf("alloc: %d free blocks, %d in lists, %d counted", free, listed, a.freeLen)
	case live != a.live || live != a.byStart.count:
		return fmt.Errorf("alloc: %d blocks in use, %d counted, %d found by offset", live, a.live, a.byStart.count)
	case used != a.used:
		return fmt.Errorf("alloc: %d granules in use, %d counted", used, a.used)
	case live+free+spare+1 != len(a.nodes):
		return fmt.Errorf("alloc: %d blocks and %d spare ones in a pool of %d", live+free, spare, len(a.nodes)-1)
	}
	return nil
}
