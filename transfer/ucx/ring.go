package ucx

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
)

// ringSlots is the number of slots of each ring. At the rate of a PCIe link of 50 GB/s, 16 slots
// are the bytes of 1.3 ms: copies, reads and messages of several peers overlap within them.
const ringSlots = 16

// ring is a cuda.Ring of which this package holds all slots, by number. The progress thread decides
// which connection uses a slot.
type ring struct {
	ring  *cuda.Ring
	bytes []byte
	slots []ringSlot
	// memory is the index of the registration, and key the key for peers.
	memory int32
	key    []byte
}

// ringSlot is a slot of a ring. The kind that is used is cuda.RingSlot.
type ringSlot interface {
	memory.Buffer
	// Offset returns the offset of the slot in the ring.
	Offset() uint64
}

// newRing makes a ring for a slab on a GPU.
func newRing(slab *cuda.Slab) (*ring, error) {
	made, err := slab.NewRing(ringSlots)
	if err != nil {
		return nil, err
	}
	r := &ring{ring: made, bytes: made.Memory()}
	for range ringSlots {
		slot, err := made.Take(context.Background()) // all slots are free, so it does not wait
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.slots = append(r.slots, slot)
	}
	return r, nil
}

func (r *ring) base() uint64 { return address(r.bytes) }
func (r *ring) size() uint64 { return uint64(len(r.bytes)) }

// address returns the address of a slot.
func (r *ring) address(slot int) uint64 { return r.base() + r.slots[slot].Offset() }

// free returns the numbers of all slots.
func (r *ring) free() []int {
	free := make([]int, len(r.slots))
	for i := range free {
		free[i] = i
	}
	return free
}

// load copies pieces of the slab to a slot, and store copies the other way. They wait for the
// copies. Only one call for a slot may be in progress.
func (r *ring) load(slot int, pieces []memory.Piece) error {
	r.slots[slot].Load(pieces...)
	return r.slots[slot].Wait()
}

func (r *ring) store(slot int, pieces []memory.Piece) error {
	r.slots[slot].Store(pieces...)
	return r.slots[slot].Wait()
}

// close frees the ring. A nil ring has nothing to free.
// REQUIRES: UCX does not know the memory any more, and no copy is in progress.
func (r *ring) close() error {
	if r == nil {
		return nil
	}
	for _, slot := range r.slots {
		slot.Free()
	}
	r.slots = nil
	return r.ring.Close()
}

// register registers the ring with UCX.
func (r *ring) register(e engine) (err error) {
	if r.memory, r.key, err = e.mapMemory(r.base(), r.size(), hostMemory); err != nil {
		return fmt.Errorf("register the ring of %d bytes: %w", r.size(), err)
	}
	return nil
}
