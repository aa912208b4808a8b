package cuda

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

// Device is one GPU with its primary context. Its methods may be called from any goroutine.
type Device struct {
	driver  *Driver
	api     api
	info    Info
	name    string
	context uint64
	streams [purposes]*Stream
	// control is the stream for copies with a waiting caller: headers, identity checks, small
	// reads.
	control uint64

	// lost is the first sticky error.
	lost   atomic.Pointer[Error]
	failed chan struct{} // closed when lost is set

	// openedByOthers: see OpenedByOthers.
	openedByOthers atomic.Bool

	// keepsContext: an exported slab, which other processes may have mapped, was closed without
	// freeing it. The context stays until the process ends, because its release would free the
	// memory.
	keepsContext atomic.Bool

	mapping sync.Mutex // serializes the opening of slabs with the two closes of Peer.unmap

	mu sync.Mutex // guards the fields below
	// peers are the mappings of other processes' slabs.
	peers map[Handle]*Peer
	// children is the number of objects that were created and not closed, by kind.
	children map[string]int
	closed   bool
}

// Open retains the device's primary context and creates its streams.
func (d *Driver) Open(ordinal int) (*Device, error) {
	if ordinal < 0 || ordinal >= len(d.devices) {
		return nil, fmt.Errorf("%w: no device %d: this process sees %d; look at CUDA_VISIBLE_DEVICES", ErrUnavailable, ordinal, len(d.devices))
	}
	info := d.devices[ordinal]
	v := &Device{
		driver: d, api: d.api, info: info, name: fmt.Sprintf("%s (%s)", info.ID(), info.Name),
		failed: make(chan struct{}), peers: map[Handle]*Peer{}, children: map[string]int{},
	}
	context, r := d.api.retain(ordinal)
	if err := v.check("cuDevicePrimaryCtxRetain", r); err != nil {
		return nil, err
	}
	v.context = context
	if err := v.makeStreams(); err != nil {
		return nil, errors.Join(err, v.release())
	}
	return v, nil
}

func (d *Device) makeStreams() error {
	control, r := d.api.streamCreate(d.context, true)
	if err := d.check("cuStreamCreateWithPriority", r); err != nil {
		return err
	}
	d.control = control
	for p := range purposes {
		stream, r := d.api.streamCreate(d.context, p.urgent())
		if err := d.check("cuStreamCreateWithPriority", r); err != nil {
			return err
		}
		d.streams[p] = &Stream{device: d, handle: stream}
	}
	return nil
}

// Info describes the device.
func (d *Device) Info() Info { return d.info }

// String names the device by UUID and model.
func (d *Device) String() string { return d.name }

// Memory returns the free and the total memory of the device. The memory in use includes that of
// other processes.
func (d *Device) Memory() (free, total uint64, err error) {
	if err := d.Health(); err != nil {
		return 0, 0, err
	}
	free, total, r := d.api.memory(d.context)
	return free, total, d.check("cuMemGetInfo", r)
}

// MakeCurrent makes the primary context current on the calling thread, for other libraries.
// REQUIRES: the goroutine is locked to its thread.
func (d *Device) MakeCurrent() error {
	return d.check("cuCtxSetCurrent", d.api.makeCurrent(d.context))
}

// Stream returns the device's own stream for a purpose.
func (d *Device) Stream(p Purpose) *Stream { return d.streams[p] }

// Health returns the first error that the context did not survive, nil if there is none. The error
// matches ErrUnhealthy.
func (d *Device) Health() error {
	if e := d.lost.Load(); e != nil {
		return e
	}
	return nil
}

// Failed returns a channel that is closed when Health becomes an error. Only a call of the driver
// can detect the error, so call Probe from time to time.
func (d *Device) Failed() <-chan struct{} { return d.failed }

// Probe makes a cheap call of the driver, so that a lost context is detected.
func (d *Device) Probe() error {
	_, _, err := d.Memory()
	return err
}

// check makes an error of a result. A sticky error marks the device as lost.
func (d *Device) check(call string, r result) error {
	if r == success {
		return nil
	}
	e := newError(d.api, call, d.name, r)
	if e.Sticky() && d.lost.CompareAndSwap(nil, e) {
		close(d.failed)
	}
	return e
}

// adopt counts a new child object. forget uncounts a closed one.
func (d *Device) adopt(kind string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("%w: %s", ErrClosed, d.name)
	}
	d.children[kind]++
	return nil
}

func (d *Device) forget(kind string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.children[kind]--
}

// Close destroys the streams and releases the context. All objects that were created from the
// device must have been closed; otherwise Close returns an error that lists the remaining ones.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	var left []string
	for _, kind := range []string{kindSlab, kindPinned, kindPeer, kindStream, kindEvent, kindModule, kindScratch} {
		if n := d.children[kind]; n > 0 {
			left = append(left, fmt.Sprintf("%d %s", n, kind))
		}
	}
	if len(left) > 0 {
		d.mu.Unlock()
		return fmt.Errorf("cuda: close %s: still in use: %s", d.name, strings.Join(left, ", "))
	}
	d.closed = true
	d.mu.Unlock()
	return d.release()
}

// release undoes Open. On a lost context every call fails with the sticky error, which was already
// reported, so release does not return it.
func (d *Device) release() error {
	var errs []error
	undo := func(call string, r result) {
		if err := d.check(call, r); err != nil && d.lost.Load() == nil {
			errs = append(errs, err)
		}
	}
	for _, s := range d.streams {
		if s != nil {
			undo("cuStreamDestroy", d.api.streamDestroy(d.context, s.handle))
		}
	}
	if d.control != 0 {
		undo("cuStreamDestroy", d.api.streamDestroy(d.context, d.control))
	}
	if !d.keepsContext.Load() {
		undo("cuDevicePrimaryCtxRelease", d.api.release(d.info.Ordinal))
	}
	return errors.Join(errs...)
}

// The kinds of objects that Close counts.
const (
	kindSlab    = "slab"
	kindPinned  = "pinned region"
	kindPeer    = "mapped peer"
	kindStream  = "stream"
	kindEvent   = "event"
	kindModule  = "module"
	kindScratch = "scratch memory"
)

// FlushWrites returns when all devices see the bytes that network cards have written to the
// device's memory. A card reports the end of a write to the processor, and the report may overtake
// the bytes on their way to the device's memory. It does nothing on devices that order such writes.
func (d *Device) FlushWrites() error {
	if d.info.Attributes.OrdersWrites {
		return nil
	}
	if err := d.Health(); err != nil {
		return err
	}
	return d.check("cuFlushGPUDirectRDMAWrites", d.api.flushWrites(d.context))
}
