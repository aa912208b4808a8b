// Package alloc is a Machine: it allocates ranges of the offsets [0, size) and frees them. It never
// touches the memory behind them, which may be a memfd, GPU memory or nothing at all.
//
// The design is the two-level segregated fit. Free blocks are in lists by size class, with 32
// classes for each power of two, and two levels of bitmaps find the next class with a free block.
// Blocks are linked to their neighbours by address, so that a freed block is merged with both sides
// at once and no two free blocks ever touch. Block records are in a pool and are found by offset
// through an open hash table. The memory is proportional to the number of blocks, not to the size.
//
// Alloc and Free are O(1) while a class above the requested one has a block. Only before Alloc
// fails, it searches the blocks of the classes that may or may not fit. So it fails exactly if no
// free block can hold the request. The fuzz model checks this.
package alloc

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
)

const (
	// Granule is the unit of all sizes and offsets in bytes. It is the alignment that GPU loads
	// need, and coarse enough for 32-bit block numbers up to 1 TiB.
	Granule = 256
	// BigBytes is the size from which requests are aligned to HugeBytes, so that they cover whole
	// huge pages and register with the fewest mappings. As for PagedBytes, the gap costs at most a
	// sixteenth of the request; with a lower limit, chunks of a little more than 2 MiB would take 4
	// MiB.
	BigBytes = 32 << 20
	// HugeBytes is the size of a huge page.
	HugeBytes = 2 << 20
	// PagedBytes is the size from which requests are aligned to PageBytes, so that a disk can read
	// and write them in place. The gap costs at most a sixteenth of the request.
	PagedBytes = 64 << 10
	// PageBytes is the alignment that direct IO needs for offsets and sizes.
	PageBytes = 4 << 10
	// MaxBytes is the largest size that New accepts.
	MaxBytes = (1<<32 - 1) * Granule

	bigGranules   = BigBytes / Granule
	hugeGranules  = HugeBytes / Granule
	pagedGranules = PagedBytes / Granule
	pageGranules  = PageBytes / Granule

	rowBits = 5
	rowLen  = 1 << rowBits
	// Row 0 holds exactly the sizes 0..31; row r holds the sizes [32<<(r-1), 32<<r).
	rows = 32 - rowBits + 1

	// tries is the largest number of near fits that Alloc checks before it takes a block from a
	// class that always fits. Checking a few keeps holes of a size in use for requests of the same
	// size, instead of cutting larger blocks.
	tries = 8
)

// ErrSize is the error of New for a size that is not supported.
var ErrSize = errors.New("alloc: bad size")

// node is one block. Node numbers are indexes of Allocator.nodes; 0 means none.
type node struct {
	start, size        uint32 // granules
	before, after      uint32 // neighbours by address
	prevFree, nextFree uint32 // links of the class's list; only if free
	free               bool
}

// Allocator allocates ranges of [0, size). The zero value is not usable.
type Allocator struct {
	nodes    []node
	spare    uint32 // list of unused nodes, linked by nextFree
	byStart  table  // exactly the blocks in use
	rowMask  uint32
	binMask  [rows]uint32
	heads    [rows * rowLen]uint32
	first    uint32 // the block at offset 0
	granules uint32
	used     uint32 // granules in use
	live     int    // blocks in use
	freeLen  int    // blocks free
	observe  func(Step)
}

// Stats describes the allocator at one moment. All sizes are in bytes.
type Stats struct {
	Size, Used, Free uint64
	// LargestFree is the size of the largest free block. A large request may need a larger block
	// than itself for its alignment.
	LargestFree uint64
	// Blocks is the number of blocks in use. FreeBlocks is the number of free blocks.
	Blocks, FreeBlocks int
}

// New returns an allocator with all of [0, size) free.
func New(size uint64) (*Allocator, error) {
	if size == 0 || size%Granule != 0 || size > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes is not a multiple of %d between %d and %d; round it down",
			ErrSize, size, Granule, Granule, uint64(MaxBytes))
	}
	a := &Allocator{granules: uint32(size / Granule)}
	a.nodes = make([]node, 1, 64)
	a.byStart.init(64)
	a.first = a.take()
	a.nodes[a.first] = node{size: a.granules}
	a.link(a.first)
	return a, nil
}

// Rounded returns the number of bytes that a request of n occupies.
func Rounded(n uint64) uint64 {
	if n == 0 {
		return Granule
	}
	return (n + Granule - 1) / Granule * Granule
}

// granulesOf converts a request to granules. ok is false if no allocator could ever hold it.
func granulesOf(bytes uint64) (g uint32, ok bool) {
	if bytes > MaxBytes {
		return 0, false
	}
	return uint32(Rounded(bytes) / Granule), true
}

// Alloc allocates a block of at least the given bytes; 0 asks for one granule. The offset is a
// multiple of Granule, of PageBytes for requests of at least PagedBytes, and of HugeBytes for
// requests of at least BigBytes. ok is false if no free block can hold the request.
func (a *Allocator) Alloc(bytes uint64) (off uint64, ok bool) {
	g, ok := granulesOf(bytes)
	if !ok || g > a.granules-a.used {
		return 0, false
	}
	align := uint32(1)
	switch {
	case g >= bigGranules:
		align = hugeGranules
	case g >= pagedGranules:
		align = pageGranules
	}
	n := a.find(g, align)
	if n == 0 {
		return 0, false
	}
	a.unlink(n)
	start := alignUp(a.nodes[n].start, align)
	a.cut(n, start, g)
	if a.observe != nil {
		a.observe(Step{Allocated, uint64(start) * Granule, bytes})
	}
	return uint64(start) * Granule, true
}

// Claim allocates exactly [off, off+bytes), both rounded outwards to granules, if all of it is
// free.
func (a *Allocator) Claim(off, bytes uint64) bool {
	if bytes == 0 || bytes > MaxBytes || off > MaxBytes || off+bytes > uint64(a.granules)*Granule {
		return false
	}
	start := uint32(off / Granule)
	g := uint32((off+bytes+Granule-1)/Granule) - start
	for class := a.next(classOf(g)); class >= 0; class = a.next(class + 1) {
		for n := a.heads[class]; n != 0; n = a.nodes[n].nextFree {
			b := a.nodes[n]
			if b.start <= start && start-b.start <= b.size && b.size-(start-b.start) >= g {
				a.unlink(n)
				a.cut(n, start, g)
				if a.observe != nil {
					a.observe(Step{Claimed, off, bytes})
				}
				return true
			}
		}
	}
	return false
}

// Free frees a block.
// REQUIRES: off was returned by Alloc or Split, or claimed, and not freed since; otherwise Free
// panics.
func (a *Allocator) Free(off uint64) {
	n := a.lookup(off)
	if n == 0 {
		panic(fmt.Sprintf("alloc: free of offset %d, where no block in use starts", off))
	}
	if a.observe != nil {
		a.observe(Step{Freed, off, 0})
	}
	b := &a.nodes[n]
	a.byStart.remove(b.start)
	a.used -= b.size
	a.live--
	if p := b.before; p != 0 && a.nodes[p].free {
		a.unlink(p)
		a.absorb(p, n)
		n = p
	}
	if s := a.nodes[n].after; s != 0 && a.nodes[s].free {
		a.unlink(s)
		a.absorb(n, s)
	}
	a.link(n)
}

// Split divides the block in use at off. That block keeps the given bytes (rounded up), and Split
// returns the offset of a second block in use with the rest. If there is no rest, ok is false and
// nothing changes.
// REQUIRES: a block in use starts at off; otherwise Split panics.
func (a *Allocator) Split(off, bytes uint64) (rest uint64, ok bool) {
	n := a.lookup(off)
	if n == 0 {
		panic(fmt.Sprintf("alloc: split at offset %d, where no block in use starts", off))
	}
	g, ok := granulesOf(bytes)
	if !ok || g >= a.nodes[n].size {
		return 0, false
	}
	s := a.divide(n, g)
	a.byStart.put(a.nodes[s].start, s)
	a.live++
	if a.observe != nil {
		a.observe(Step{Cut, off, bytes})
	}
	return uint64(a.nodes[s].start) * Granule, true
}

// Bytes returns the size of the block in use that starts at off, which is the request rounded up to
// granules, or 0 if none starts there.
func (a *Allocator) Bytes(off uint64) uint64 {
	n := a.lookup(off)
	if n == 0 {
		return 0
	}
	return uint64(a.nodes[n].size) * Granule
}

// FreeBlocks yields offset and size of the free blocks of at least min bytes, smaller size classes
// first, and within a class the most recently freed first.
// REQUIRES: the allocator is not changed meanwhile.
func (a *Allocator) FreeBlocks(min uint64) iter.Seq2[uint64, uint64] {
	return func(yield func(off, bytes uint64) bool) {
		g, ok := granulesOf(min)
		if !ok {
			return
		}
		for class := a.next(classOf(g)); class >= 0; class = a.next(class + 1) {
			for n := a.heads[class]; n != 0; n = a.nodes[n].nextFree {
				b := a.nodes[n]
				if b.size >= g && !yield(uint64(b.start)*Granule, uint64(b.size)*Granule) {
					return
				}
			}
		}
	}
}

// Size returns the number of bytes managed.
func (a *Allocator) Size() uint64 { return uint64(a.granules) * Granule }

// Used returns the number of bytes in use, rounding included.
func (a *Allocator) Used() uint64 { return uint64(a.used) * Granule }

// Stats searches only the largest class, so it is cheap enough for each scrape of the metrics.
func (a *Allocator) Stats() Stats {
	s := Stats{
		Size:       a.Size(),
		Used:       a.Used(),
		Free:       uint64(a.granules-a.used) * Granule,
		Blocks:     a.live,
		FreeBlocks: a.freeLen,
	}
	if a.rowMask != 0 {
		row := bits.Len32(a.rowMask) - 1
		col := bits.Len32(a.binMask[row]) - 1
		for n := a.heads[row<<rowBits|col]; n != 0; n = a.nodes[n].nextFree {
			s.LargestFree = max(s.LargestFree, uint64(a.nodes[n].size)*Granule)
		}
	}
	return s
}

func alignUp(g, align uint32) uint32 { return (g + align - 1) &^ (align - 1) }

// holds says whether a block can hold g granules at the alignment. The sums have 64 bits, because
// an aligned start may lie beyond the 32-bit range.
func (b *node) holds(g, align uint32) bool {
	start := (uint64(b.start) + uint64(align) - 1) &^ (uint64(align) - 1)
	return start+uint64(g) <= uint64(b.start)+uint64(b.size)
}

// find returns a free block that holds g granules at the alignment, 0 if there is none. It prefers
// near fits, then takes a block from the first class that always fits. It checks every other
// candidate only if there is no such block.
func (a *Allocator) find(g, align uint32) uint32 {
	near := classOf(g)
	left := tries
	for class := a.next(near); class >= 0 && left > 0; class = a.next(class + 1) {
		for n := a.heads[class]; n != 0 && left > 0; n = a.nodes[n].nextFree {
			if a.nodes[n].holds(g, align) {
				return n
			}
			left--
		}
	}
	// Every block of a class that starts at or above this size fits, whatever its start.
	end := len(a.heads)
	if sure := classAbove(uint64(g) + uint64(align) - 1); sure >= 0 {
		end = sure
		if class := a.next(sure); class >= 0 {
			return a.heads[class]
		}
	}
	for class := a.next(near); class >= 0 && class < end; class = a.next(class + 1) {
		for n := a.heads[class]; n != 0; n = a.nodes[n].nextFree {
			if a.nodes[n].holds(g, align) {
				return n
			}
		}
	}
	return 0
}

// classOf returns the class whose list contains free blocks of g granules.
func classOf(g uint32) int {
	if g < rowLen {
		return int(g)
	}
	log := bits.Len32(g) - 1
	return (log-rowBits+1)<<rowBits | int(g>>(log-rowBits))&(rowLen-1)
}

// classAbove returns the first class in which all blocks have at least g granules, -1 if there is
// none.
func classAbove(g uint64) int {
	if g >= rowLen {
		step := uint64(1) << (bits.Len64(g) - 1 - rowBits)
		g = (g + step - 1) &^ (step - 1)
	}
	if g > 1<<32-1 {
		return -1
	}
	return classOf(uint32(g))
}

// next returns the first class, from the given one on, that has a block, -1 if none has.
func (a *Allocator) next(class int) int {
	row := class >> rowBits
	if row >= rows {
		return -1
	}
	if m := a.binMask[row] & (^uint32(0) << (class & (rowLen - 1))); m != 0 {
		return row<<rowBits | bits.TrailingZeros32(m)
	}
	m := a.rowMask & (^uint32(0) << (row + 1))
	if m == 0 {
		return -1
	}
	row = bits.TrailingZeros32(m)
	return row<<rowBits | bits.TrailingZeros32(a.binMask[row])
}

// cut takes g granules at start out of the unlinked free block n and makes them a block in use. The
// parts that are left on either side become free blocks.
func (a *Allocator) cut(n, start, g uint32) {
	if lead := start - a.nodes[n].start; lead > 0 {
		rest := a.divide(n, lead)
		a.link(n)
		n = rest
	}
	if a.nodes[n].size > g {
		a.link(a.divide(n, g))
	}
	a.byStart.put(start, n)
	a.used += g
	a.live++
}

// divide shortens n to g granules and returns a new block with the rest, which is in no list.
func (a *Allocator) divide(n, g uint32) uint32 {
	s := a.take()
	b := &a.nodes[n]
	a.nodes[s] = node{start: b.start + g, size: b.size - g, before: n, after: b.after}
	if b.after != 0 {
		a.nodes[b.after].before = s
	}
	b.after = s
	b.size = g
	return s
}

// absorb makes the following block s a part of n. Neither block is in a list.
func (a *Allocator) absorb(n, s uint32) {
	b := &a.nodes[n]
	b.size += a.nodes[s].size
	b.after = a.nodes[s].after
	if b.after != 0 {
		a.nodes[b.after].before = n
	}
	a.nodes[s] = node{nextFree: a.spare}
	a.spare = s
}

// take returns an unused node.
func (a *Allocator) take() uint32 {
	if n := a.spare; n != 0 {
		a.spare = a.nodes[n].nextFree
		return n
	}
	a.nodes = append(a.nodes, node{})
	return uint32(len(a.nodes) - 1)
}

// link puts a block at the head of its class's list.
func (a *Allocator) link(n uint32) {
	b := &a.nodes[n]
	class := classOf(b.size)
	head := a.heads[class]
	b.free = true
	b.prevFree, b.nextFree = 0, head
	if head != 0 {
		a.nodes[head].prevFree = n
	}
	a.heads[class] = n
	row := class >> rowBits
	a.binMask[row] |= 1 << (class & (rowLen - 1))
	a.rowMask |= 1 << row
	a.freeLen++
}

// unlink removes a block from its class's list.
func (a *Allocator) unlink(n uint32) {
	b := &a.nodes[n]
	if b.nextFree != 0 {
		a.nodes[b.nextFree].prevFree = b.prevFree
	}
	if b.prevFree != 0 {
		a.nodes[b.prevFree].nextFree = b.nextFree
	} else {
		class := classOf(b.size)
		a.heads[class] = b.nextFree
		if b.nextFree == 0 {
			row := class >> rowBits
			a.binMask[row] &^= 1 << (class & (rowLen - 1))
			if a.binMask[row] == 0 {
				a.rowMask &^= 1 << row
			}
		}
	}
	b.free = false
	a.freeLen--
}

// lookup returns the block in use that starts at off, 0 if there is none.
func (a *Allocator) lookup(off uint64) uint32 {
	if off%Granule != 0 || off >= a.Size() {
		return 0
	}
	return a.byStart.get(uint32(off / Granule))
}
