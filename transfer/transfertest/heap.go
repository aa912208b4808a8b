package transfertest

import "github.com/millrace/millrace/memory"

// Heap is a memory.Space in the Go heap.
type Heap []byte

var _ memory.Space = Heap(nil)

// Size is part of memory.Space.
func (h Heap) Size() uint64 { return uint64(len(h)) }

// Identity is part of memory.Space.
func (h Heap) Identity() memory.Identity { return memory.Identity{} }

// Bytes is part of memory.Space.
func (h Heap) Bytes(off, n uint64) []byte { return h[off : off+n : off+n] }

// FD is part of memory.Space.
func (h Heap) FD() int { return -1 }
