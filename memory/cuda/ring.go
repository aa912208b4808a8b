package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
)

// Ring is pinned host memory through which the bytes of a slab travel, for network adapters that
// cannot access the memory of the device. It is one mapping: a header page with the identity of the
// slab, then slots of memory.StageBytes each. A peer that reads the header page over the network
// knows that it reads this ring. Its methods may be called from any goroutine.
type Ring struct {
	device *Device
	memory []byte
	pinned bool
	slots  []*RingSlot
	// out and in are streams that only the ring uses, so that loads and stores run at the same
	// time, and do not wait for other copies.
	out, in *Stream
	// gather copies many small pieces by one launch. It is nil for the reason in noGather.
	gather   *Gather
	noGather error

	mu sync.Mutex
	// mu guards all fields below.
	closed bool
	free   []*RingSlot
	// waiting are the calls of Take that wait for a slot, in their order. If there are any, free is
	// empty. Each channel has room for one slot.
	waiting []chan *RingSlot
}

// RingSlot is one slot of a ring, between Take and Free. Many small pieces are copied by one launch
// of a kernel, others one by one. The kernel is fastest for pieces whose At and Offset are equal
// modulo 16.
type RingSlot struct {
	bounce
	ring   *Ring
	offset uint64
}

var _ memory.Buffer = (*RingSlot)(nil)

// NewRing makes a ring with the given number of slots. The slab must outlive the ring.
func (s *Slab) NewRing(slots int) (_ *Ring, err error) {
	if slots < 1 {
		return nil, fmt.Errorf("cuda: a ring of %d slots for the slab on %s: it needs at least one", slots, s.device.name)
	}
	if err := s.device.Health(); err != nil {
		return nil, err
	}
	r := &Ring{device: s.device}
	if err := r.make(s, slots); err != nil {
		return nil, errors.Join(fmt.Errorf("cuda: a ring of %d slots for the slab on %s: %w", slots, s.device.name, err), r.release())
	}
	return r, nil
}

func (r *Ring) make(s *Slab, slots int) (err error) {
	if r.memory, err = unix.Mmap(-1, 0, memory.HeaderBytes+slots*memory.StageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return err
	}
	if err := touch(r.memory, RegisterConfig{Touchers: 4}); err != nil {
		return err
	}
	if err := r.device.pin(r.memory, false); err != nil {
		return err
	}
	r.pinned = true
	memory.Header{Identity: s.identity, SizeBytes: uint64(len(r.memory))}.Write(r.memory)
	if r.out, err = r.device.NewStream(Out); err != nil {
		return err
	}
	if r.in, err = r.device.NewStream(In); err != nil {
		return err
	}
	r.gather, r.noGather = r.device.newBounceGather(r.memory, slots)
	if err := r.device.Health(); err != nil {
		return err
	}
	for i := range slots {
		event, err := r.device.NewEvent()
		if err != nil {
			return err
		}
		from := memory.HeaderBytes + i*memory.StageBytes
		to := from + memory.StageBytes
		r.slots = append(r.slots, &RingSlot{
			bounce: bounce{slab: s, data: r.memory[from:to:to], out: r.out, in: r.in, event: event, gather: r.gather, table: i},
			ring:   r, offset: uint64(from),
		})
	}
	r.free = slices.Clone(r.slots)
	return nil
}

// NoGather returns the reason why each small piece is copied by itself, which takes the device
// 3 µs; nil if many of them are copied together. It never changes.
func (r *Ring) NoGather() error { return r.noGather }

// Memory returns the whole ring, for its registration with the network adapter. It is valid until
// Close.
func (r *Ring) Memory() []byte { return r.memory }

// Take lends a slot until Free. If all are lent, it waits for one until the context ends. Slots are
// given to waiting callers in the order of their calls.
func (r *Ring) Take(ctx context.Context) (*RingSlot, error) {
	if err := r.device.Health(); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("cuda: a slot of the ring of the slab on %s: %w", r.device.name, err)
	}
	slot, mine, err := r.queue()
	if mine == nil {
		return slot, err
	}
	select {
	case slot := <-mine:
		return slot, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-r.device.Failed():
		err = r.device.Health()
	}
	r.leave(mine)
	return nil, fmt.Errorf("cuda: all %d slots of the ring of the slab on %s are lent: %w", len(r.slots), r.device.name, err)
}

// queue returns a free slot, or a channel that will receive one.
func (r *Ring) queue() (*RingSlot, chan *RingSlot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, fmt.Errorf("%w: the ring of the slab on %s", ErrClosed, r.device.name)
	}
	if n := len(r.free); n > 0 {
		slot := r.free[n-1]
		r.free = r.free[:n-1]
		return slot, nil, nil
	}
	mine := make(chan *RingSlot, 1)
	r.waiting = append(r.waiting, mine)
	return nil, mine, nil
}

// leave ends a wait. A slot that has arrived meanwhile goes to the next caller.
func (r *Ring) leave(mine chan *RingSlot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.waiting, mine); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
		return
	}
	r.give(<-mine)
}

// give hands a slot to the first waiting caller. REQUIRES: mu.
func (r *Ring) give(slot *RingSlot) {
	if len(r.waiting) == 0 {
		r.free = append(r.free, slot)
		return
	}
	r.waiting[0] <- slot
	r.waiting = slices.Delete(r.waiting, 0, 1)
}

// Offset returns the offset of the slot in Ring.Memory.
func (x *RingSlot) Offset() uint64 { return x.offset }

// Free is part of memory.Buffer. On a lost device no copy is in progress any more.
func (x *RingSlot) Free() {
	_ = x.Wait() // a caller that needs the result has already called Wait
	x.ring.mu.Lock()
	defer x.ring.mu.Unlock()
	x.ring.give(x)
}

// Close frees the memory. While slots are lent, it does nothing and returns an error. Take of a
// closed ring returns ErrClosed.
// REQUIRES: nothing else uses the memory: end its registration with the network adapter before.
func (r *Ring) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if lent := len(r.slots) - len(r.free); lent > 0 {
		return fmt.Errorf("cuda: close the ring of the slab on %s: %d of its %d slots are lent", r.device.name, lent, len(r.slots))
	}
	r.closed = true
	return r.release()
}

// release frees what make made.
func (r *Ring) release() error {
	var errs []error
	for _, x := range r.slots {
		errs = append(errs, x.event.Close())
	}
	for _, s := range []*Stream{r.out, r.in} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if r.gather != nil {
		errs = append(errs, r.gather.Close())
	}
	if r.pinned {
		errs = append(errs, r.device.unpin(r.memory))
	}
	if r.memory != nil {
		errs = append(errs, unix.Munmap(r.memory))
		r.memory = nil
	}
	return errors.Join(errs...)
}
