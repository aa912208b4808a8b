package cuda

import (
	"sync/atomic"
	"time"
)

// Handle is a CUipcMemHandle or CUipcEventHandle: what another process on the
// same host opens.
type Handle [64]byte

// Event is a place in a stream that can be asked for. Before its first record it
// counts as reached.
type Event struct {
	device *Device
	handle uint64
	closed atomic.Bool
}

// NewEvent makes an event of this process.
func (d *Device) NewEvent() (*Event, error) { return d.newEvent(ownEvent) }

// NewPolledEvent makes one that nobody sleeps for: it is asked, by Query or Await.
// Others raise an interrupt when they are reached, and hold up the copies behind
// them.
func (d *Device) NewPolledEvent() (*Event, error) { return d.newEvent(polledEvent) }

// NewSharedEvent makes one that other processes can open by its Export. To
// destroy it while another process has it open is undefined: keep it for the
// life of the process.
func (d *Device) NewSharedEvent() (*Event, error) { return d.newEvent(sharedEvent) }

func (d *Device) newEvent(kind eventKind) (*Event, error) {
	return d.event("cuEventCreate", func() (uint64, result) { return d.api.eventCreate(d.context, kind) })
}

// OpenEvent opens another process's event, for Query and Stream.Wait.
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

// Record puts the event behind what was submitted to the stream.
func (e *Event) Record(s *Stream) error {
	if err := e.device.Health(); err != nil {
		return err
	}
	return e.device.check("cuEventRecord", e.device.api.eventRecord(e.device.context, e.handle, s.handle))
}

// Query says whether the stream has passed the last record.
func (e *Event) Query() (bool, error) { return e.device.query(e.handle) }

// Done is Query: an event is a Fence.
func (e *Event) Done() (bool, error) { return e.Query() }

// Waited is what a wait came to.
type Waited struct {
	// Done: the stream has passed the last record. Overslept: it had when the nap ended, and
	// nobody knows for how long.
	Done, Overslept bool
	// Late is by how much the nap was longer than it should be.
	Late time.Duration
}

// Await sleeps for nap, if that is not 0, then asks again and again for spin whether the
// stream has passed the last record; at least once. It blocks its thread for that long.
func (e *Event) Await(nap, spin time.Duration) (w Waited, err error) {
	if err := e.device.Health(); err != nil {
		return w, err
	}
	looks, late, r := e.device.api.eventAwait(e.device.context, e.handle, int64(nap), int64(spin))
	w.Late = time.Duration(late)
	if r == notReady {
		return w, nil
	}
	w.Done, w.Overslept = r == success, r == success && nap > 0 && looks == 1
	return w, e.device.check("cuEventQuery", r)
}

// Sync blocks, with its thread, until the stream has passed the last record.
func (e *Event) Sync() error {
	if err := e.device.Health(); err != nil {
		return err
	}
	return e.device.check("cuEventSynchronize", e.device.api.eventSync(e.device.context, e.handle))
}

// Export gives what another process opens. REQUIRES: of NewSharedEvent.
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
	r := d.api.eventQuery(d.context, event)
	if r == notReady {
		return false, nil
	}
	return r == success, d.check("cuEventQuery", r)
}
