package cuda

import (
	"sync/atomic"
	"time"
)

// Handle is a CUipcMemHandle or a CUipcEventHandle. Another process on the same host opens it.
type Handle [64]byte

// Event is a position in a stream that can be queried. Before its first Record it counts as
// reached.
type Event struct {
	device *Device
	handle uint64
	closed atomic.Bool
}

// NewEvent creates an event of this process.
func (d *Device) NewEvent() (*Event, error) { return d.newEvent(ownEvent) }

// NewPolledEvent creates an event for polling with Query or Await, not for blocking. A blocking
// event raises an interrupt when it is reached, which delays the copies behind it in the stream.
func (d *Device) NewPolledEvent() (*Event, error) { return d.newEvent(polledEvent) }

// NewSharedEvent creates an event that other processes can open with the result of Export. To
// destroy it while another process has it open is undefined behaviour: keep it for the life of the
// process.
func (d *Device) NewSharedEvent() (*Event, error) { return d.newEvent(sharedEvent) }

func (d *Device) newEvent(kind eventKind) (*Event, error) {
	return d.event("cuEventCreate", func() (uint64, result) { return d.api.eventCreate(d.context, kind) })
}

// OpenEvent opens an event of another process, for Query and Stream.Wait.
func (d *Device) OpenEvent(h Handle) (*Event, error) {
	return d.event("cuIpcOpenEventHandle", func() (uint64, result) { return d.api.eventOpen(d.context, h) })
}

func (d *Device) event(call string, make func() (uint64, result)) (*Event, error) {
	if err := d.Health(); err != nil {
		return nil, err
	}
	if err := d.adopt(kindEvent); err != nil {
		return nil, err
	}
	handle, r := make()
	if err := d.check(call, r); err != nil {
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
func (e *Event) Query() (bool, error) { return e.device.query(e.handle) }

// Done is Query. It makes an event a Fence.
func (e *Event) Done() (bool, error) { return e.Query() }

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

// Export returns a handle with which another process opens the event.
// REQUIRES: the event was created by NewSharedEvent.
func (e *Event) Export() (Handle, error) {
	if err := e.device.Health(); err != nil {
		return Handle{}, err
	}
	h, r := e.device.api.eventExport(e.device.context, e.handle)
	return h, e.device.check("cuIpcGetEventHandle", r)
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

func (d *Device) query(event uint64) (bool, error) {
	if err := d.Health(); err != nil {
		return false, err
	}
	return d.reached(d.api.eventQuery(d.context, event))
}

// reached interprets the result of cuEventQuery.
func (d *Device) reached(r result) (bool, error) {
	if r == notReady {
		return false, nil
	}
	return r == success, d.check("cuEventQuery", r)
}
