package cuda

import (
	"sync/atomic"
	"time"
)

// Event is a position in a stream that can be queried. Before its first Record it counts as
// reached.
type Event struct {
	device *Device
	handle uint64
	closed atomic.Bool
}

// NewEvent creates an event of this process.
func (d *Device) NewEvent() (*Event, error) { return d.newEvent(blockingEvent) }

// NewPolledEvent creates an event for polling with Query or Await, not for blocking. A blocking
// event raises an interrupt when it is reached, which delays the copies behind it in the stream.
func (d *Device) NewPolledEvent() (*Event, error) { return d.newEvent(polledEvent) }

func (d *Device) newEvent(kind eventKind) (*Event, error) {
	if err := d.Health(); err != nil {
		return nil, err
	}
	if err := d.adopt(kindEvent); err != nil {
		return nil, err
	}
	handle, r := d.api.eventCreate(d.context, kind)
	if err := d.check("cuEventCreate", r); err != nil {
		d.forget(kindEvent)
		return nil, err
	}
	return &Event{device: d, handle: handle}, nil
}

// Record puts the event behind the work that was submitted to the stream.
func (e *Event) Record(s *Stream) error {
	if err := e.device.Health(); err != nil {
		return err
	}
	return e.device.check("cuEventRecord", e.device.api.eventRecord(e.device.context, e.handle, s.handle))
}

// Query says whether the stream has passed the last Record.
func (e *Event) Query() (bool, error) {
	if err := e.device.Health(); err != nil {
		return false, err
	}
	return e.device.reached(e.device.api.eventQuery(e.device.context, e.handle))
}

// Await polls for the given time, at least once, whether the stream has passed the last Record. It
// occupies a processor for that time.
func (e *Event) Await(spin time.Duration) (bool, error) {
	if err := e.device.Health(); err != nil {
		return false, err
	}
	return e.device.reached(e.device.api.eventAwait(e.device.context, e.handle, int64(spin)))
}

// Sync blocks, with its thread, until the stream has passed the last Record.
func (e *Event) Sync() error {
	if err := e.device.Health(); err != nil {
		return err
	}
	return e.device.check("cuEventSynchronize", e.device.api.eventSync(e.device.context, e.handle))
}

// Close destroys the event.
func (e *Event) Close() error {
	if !e.closed.CompareAndSwap(false, true) {
		return nil
	}
	defer e.device.forget(kindEvent)
	err := e.device.check("cuEventDestroy", e.device.api.eventDestroy(e.device.context, e.handle))
	if e.device.lost.Load() != nil {
		return nil
	}
	return err
}

// reached interprets the result of cuEventQuery.
func (d *Device) reached(r result) (bool, error) {
	if r == notReady {
		return false, nil
	}
	return r == success, d.check("cuEventQuery", r)
}
