package cuda

import (
	"errors"
	"sync"
)

// Fence is a condition for the reuse of memory: that an event is reached, or that a read lease or
// an executor's lease has ended.
type Fence interface {
	// Done says whether the condition is met. It does not block, and once true it stays true. An
	// error means that this will never be known.
	Done() (bool, error)
}

// Mark is a fence behind the work that was submitted to streams.
type Mark struct {
	device *Device
	mu     sync.Mutex // guards events
	events []uint64   // those not yet seen reached; owned by the device
}

// Mark records a position in each of the streams. Its events go back to the device when Done
// returns true, so the caller must call Done until then.
func (d *Device) Mark(streams ...*Stream) (*Mark, error) {
	if err := d.Health(); err != nil {
		return nil, err
	}
	if err := d.adopt(kindFence); err != nil {
		return nil, err
	}
	m := &Mark{device: d}
	for _, s := range streams {
		event, err := d.takeEvent()
		if err == nil {
			m.events = append(m.events, event)
			err = d.check("cuEventRecord", d.api.eventRecord(d.context, event, s.handle))
		}
		if err != nil {
			d.giveEvents(m.events)
			d.forget(kindFence)
			return nil, err
		}
	}
	if len(streams) == 0 {
		d.forget(kindFence)
	}
	return m, nil
}

// Done is part of Fence.
func (m *Mark) Done() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.events) == 0 {
		return true, nil
	}
	for len(m.events) > 0 {
		last := len(m.events) - 1
		done, err := m.device.query(m.events[last])
		if err != nil || !done {
			return false, err
		}
		m.device.giveEvents(m.events[last:])
		m.events = m.events[:last]
	}
	m.device.forget(kindFence)
	return true, nil
}

func (d *Device) takeEvent() (uint64, error) {
	d.mu.Lock()
	if n := len(d.idle); n > 0 {
		event := d.idle[n-1]
		d.idle = d.idle[:n-1]
		d.mu.Unlock()
		return event, nil
	}
	d.mu.Unlock()
	event, r := d.api.eventCreate(d.context, ownEvent)
	if err := d.check("cuEventCreate", r); err != nil {
		return 0, err
	}
	d.mu.Lock()
	d.events = append(d.events, event)
	d.mu.Unlock()
	return event, nil
}

func (d *Device) giveEvents(events []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle = append(d.idle, events...)
}

// Gate holds memory back until its fences are done. It has no goroutine: a caller that needs the
// memory, or has time, calls Poll. The zero Gate is empty.
type Gate struct {
	mu      sync.Mutex // guards waiting
	waiting []held
}

type held struct {
	release func()
	fences  []Fence
}

// Hold makes a later Poll call release when all fences are done. A nil fence counts as done.
func (g *Gate) Hold(release func(), fences ...Fence) {
	h := held{release: release}
	for _, f := range fences {
		if f != nil {
			h.fences = append(h.fences, f)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, h)
}

// Poll checks all fences and calls the release functions whose fences are done, in the order of
// Hold. Memory with a fence that returned an error stays held, because on a lost device it is
// unknown when the memory is free.
func (g *Gate) Poll() (released int, err error) {
	var free []func()
	g.mu.Lock()
	kept := g.waiting[:0]
	var errs []error
	for _, h := range g.waiting {
		for len(h.fences) > 0 {
			last := len(h.fences) - 1
			done, err := h.fences[last].Done()
			if err != nil {
				errs = append(errs, err)
			}
			if err != nil || !done {
				break
			}
			h.fences = h.fences[:last]
		}
		if len(h.fences) == 0 {
			free = append(free, h.release)
		} else {
			kept = append(kept, h)
		}
	}
	clear(g.waiting[len(kept):])
	g.waiting = kept
	g.mu.Unlock()
	// Call release without the lock, because it may call Hold.
	for _, f := range free {
		f()
	}
	return len(free), errors.Join(errs...)
}

// Waiting returns the number of Holds that were not released.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}
