//go:build cgo && linux

package cuda

// Allocations returns the number of the shim's allocations that were not freed.
func Allocations() int64 { return allocations() }

// BufferID returns the driver's number of the allocation, which is unique in this process.
func (s *Slab) BufferID() (uint64, error) {
	id, r := s.device.api.bufferID(s.device.context, s.pointer)
	return id, s.device.check("cuPointerGetAttribute", r)
}

// Streams returns the handles of the device's own streams.
func (d *Device) Streams() (handles []uint64) {
	for _, s := range d.streams {
		handles = append(handles, s.handle)
	}
	return handles
}

// WithThrowaways sets the number of small allocations that precede a slab.
func (c SlabConfig) WithThrowaways(n int) SlabConfig {
	c.throwaways = n
	return c
}

// Waiting returns the number of calls of Take that wait for a slot.
func (r *Ring) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}

// Streams returns the handles of the ring's streams.
func (r *Ring) Streams() []uint64 { return []uint64{r.out.handle, r.in.handle} }

// OneByOne makes all slots copy each piece by itself, until the returned function is called.
// REQUIRES: no slot is lent.
func (r *Ring) OneByOne() (undo func()) {
	set := func(g *Gather) {
		for _, x := range r.slots {
			x.gather = g
		}
	}
	set(nil)
	return func() { set(r.gather) }
}
