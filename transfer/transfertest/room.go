package transfertest

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// ErrFull: a room has no memory left.
var ErrFull = errors.New("the test's space is full")

// Room allocates a space from its beginning to its end. A nil Room allocates in the heap.
type Room struct {
	space memory.Space

	mu sync.Mutex
	// next is the offset of the first free byte. kept are the copies of frames that keep made, by
	// the address and size of the original. Guarded by mu.
	next uint64
	kept map[keptFrame]transfer.Region
}

type keptFrame struct {
	at    *byte
	bytes int
}

// NewRoom returns a room for the part of the space after its header page.
func NewRoom(space memory.Space) *Room {
	return &Room{space: space, next: memory.HeaderBytes, kept: make(map[keptFrame]transfer.Region)}
}

// Space returns the space.
func (r *Room) Space() memory.Space { return r.space }

// Take returns a region of n bytes. Regions have no alignment, and paths must accept that.
func (r *Room) Take(n uint64) (transfer.Region, error) {
	if r == nil {
		return transfer.Region{Space: Heap(make([]byte, n)), Frame: memory.Frame{Bytes: n}}, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f := memory.Frame{Offset: r.next, Bytes: n}
	if !f.Within(r.space.Size()) {
		return transfer.Region{}, ErrFull
	}
	r.next += n
	return transfer.Region{Space: r.space, Frame: f}, nil
}

// Reset frees all of the room.
func (r *Room) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = memory.HeaderBytes
	clear(r.kept)
}

// keep returns a region with the content of f. In the heap that is f itself. Otherwise it is a
// copy, and later calls with the same f return the same copy.
func (r *Room) keep(f []byte) transfer.Region {
	if r == nil {
		return transfer.Region{Space: Heap(f), Frame: memory.Frame{Bytes: uint64(len(f))}}
	}
	key := keptFrame{unsafe.SliceData(f), len(f)}
	r.mu.Lock()
	region, ok := r.kept[key]
	r.mu.Unlock()
	if ok {
		return region
	}
	region, err := r.Take(uint64(len(f)))
	if err != nil {
		panic(err) // the test's objects are larger than its space
	}
	if far, ok := region.Space.(memory.Staged); ok {
		err = far.WriteFrom(region.Frame.Offset, f)
	} else {
		copy(region.Bytes(), f)
	}
	if err != nil {
		panic(err) // only tests use it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept[key] = region
	return region
}
