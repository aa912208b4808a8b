package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/memory"
)

// Handle is a CUipcMemHandle. Another process on the same host opens it.
type Handle [64]byte

// Export is the information with which another process on the same host maps a slab.
type Export struct {
	Handle Handle
	// SizeBytes is the size of the slab, header page included.
	SizeBytes uint64
	// Device is the GPU with the slab.
	Device UUID
	// Identity is the expected content of the header page.
	Identity memory.Identity
}

// Peer is the slab of another process, mapped for this device. The mapping keeps the memory
// allocated, even when the other process is dead, until the Peer is closed or retired.
type Peer struct {
	device  *Device
	export  Export
	pointer uint64

	mu sync.Mutex // guards the fields below
	// uses is the number of Acquires without their Release.
	uses int
	// retired, once set, is called with the result of the unmapping after the last use.
	retired func(error)
	ending  bool
	closed  bool
}

// OpenPeer maps the slab, once per handle, and compares its header page with the export.
// ErrIdentity means that the mapping is of another incarnation and must not be used.
func (d *Device) OpenPeer(e Export) (*Peer, error) {
	if err := d.Health(); err != nil {
		return nil, err
	}
	p := &Peer{device: d, export: e}
	d.mu.Lock()
	if old, open := d.peers[e.Handle]; open || d.closed {
		d.mu.Unlock()
		if open && old.export.Identity != e.Identity {
			return nil, fmt.Errorf("%w: on %s: that of a dead process with the same handle is still mapped", ErrIdentity, e.Device)
		}
		if open {
			return nil, fmt.Errorf("cuda: the slab on %s is mapped already; use that mapping", e.Device)
		}
		return nil, fmt.Errorf("%w: %s", ErrClosed, d.name)
	}
	d.peers[e.Handle] = p
	d.children[kindPeer]++
	d.mu.Unlock()
	d.mapping.Lock()
	pointer, r := d.api.ipcOpen(d.context, e.Handle)
	d.mapping.Unlock()
	if err := d.check("cuIpcOpenMemHandle", r); err != nil {
		p.forget()
		return nil, fmt.Errorf("cuda: map the slab on %s: %w; the two processes must be different ones, see both devices and share a pid namespace", e.Device, err)
	}
	p.pointer = pointer
	if err := p.prove(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Peer) prove() error {
	page := make([]byte, memory.HeaderBytes)
	d := p.device
	if err := d.check("cuMemcpyDtoHAsync", d.api.read(d.context, d.control, page, p.pointer)); err != nil {
		return fmt.Errorf("cuda: read the header page of the slab on %s: %w", p.export.Device, err)
	}
	h, err := memory.ParseHeader(page)
	if err != nil {
		return fmt.Errorf("%w: on %s: %w", ErrIdentity, p.export.Device, err)
	}
	if h.Identity != p.export.Identity || h.SizeBytes != p.export.SizeBytes {
		return fmt.Errorf("%w: on %s: incarnation %x with nonce %x and %d bytes, announced was %x with %x and %d",
			ErrIdentity, p.export.Device, h.Identity.Incarnation, h.Identity.Nonce, h.SizeBytes,
			p.export.Identity.Incarnation, p.export.Identity.Nonce, p.export.SizeBytes)
	}
	return nil
}

// Prove compares the header page of the mapped slab with the export once more.
// REQUIRES: the peer is acquired, or no other goroutine can close or retire it.
func (p *Peer) Prove() error { return p.prove() }

// Pointer returns the device address of [off, off+n) of the peer's slab, for Stream.Copy.
// REQUIRES: the range lies within the slab, and the peer is acquired.
func (p *Peer) Pointer(off, n uint64) uint64 {
	if !(memory.Frame{Offset: off, Bytes: n}).Within(p.export.SizeBytes) {
		panic(fmt.Sprintf("cuda: [%d, +%d) is outside of the peer's slab of %d bytes", off, n, p.export.SizeBytes))
	}
	return p.pointer + off
}

// ReadInto copies [off, off+len(into)) of the peer's slab to into, as Slab.ReadInto does.
// REQUIRES: as for Pointer.
func (p *Peer) ReadInto(off uint64, into []byte) error {
	d := p.device
	if err := d.Health(); err != nil {
		return err
	}
	return d.check("cuMemcpyDtoHAsync", d.api.read(d.context, d.control, into, p.Pointer(off, uint64(len(into)))))
}

// Acquire keeps the mapping for a copy out of it. It returns false once the slab is being unmapped.
// Each true needs a Release.
func (p *Peer) Acquire() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending {
		return false
	}
	p.uses++
	return true
}

// Release ends an Acquire. By then its copy must have ended on the device as well.
func (p *Peer) Release() {
	p.mu.Lock()
	p.uses--
	if p.uses < 0 {
		p.mu.Unlock()
		panic("cuda: a mapped peer was released more often than acquired")
	}
	p.finish()
}

// Retire unmaps the slab of a dead worker, so that the device gets its memory back: at once if the
// mapping is not in use, otherwise in the last Release. Then it calls unmapped, once; an error
// means that the memory is still allocated. The supervisor of the dead worker waits for that call.
// After OpenedByOthers the handle is closed twice, because UCX never closes its own opening. So
// UCX's copies out of the slab must have ended too; each has its own callback.
func (p *Peer) Retire(unmapped func(error)) {
	p.mu.Lock()
	if p.ending {
		p.mu.Unlock()
		unmapped(fmt.Errorf("%w: the slab on %s", ErrClosed, p.export.Device))
		return
	}
	p.ending, p.retired = true, unmapped
	p.finish()
}

// finish unmaps the slab if it is retired and no longer used. It is called with the lock and
// releases it.
func (p *Peer) finish() {
	unmapped := p.retired
	if unmapped == nil || p.uses > 0 || p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	p.mu.Unlock()
	unmapped(p.unmap())
}

// OpenedByOthers says that a library in this process, UCX, opens memory of other processes by
// itself and never closes it. Without this call only Peers have openings.
func (d *Device) OpenedByOthers() { d.openedByOthers.Store(true) }

// unmap closes our opening of the memory, and then UCX's opening if the same memory is
// still mapped and UCX may have opened it. By then another mapping may lie at the
// address: the driver's number of the memory (its buffer id) shows that. If the driver
// gives no number, unmap closes UCX's opening without that check, and ignores the error
// if there is none.
func (p *Peer) unmap() error {
	defer p.forget()
	d := p.device
	// Without this lock, a slab that is opened between the two closes could be mapped at the same
	// address, and the second close would unmap it.
	d.mapping.Lock()
	defer d.mapping.Unlock()
	id, known := d.api.bufferID(d.context, p.pointer)
	if err := d.check("cuIpcCloseMemHandle", d.api.ipcClose(d.context, p.pointer)); err != nil {
		return err
	}
	mapped := func() bool {
		now, r := d.api.bufferID(d.context, p.pointer)
		return r == success && now == id
	}
	if known == success && !mapped() || known != success && !d.openedByOthers.Load() {
		return nil
	}
	if !d.openedByOthers.Load() {
		return fmt.Errorf("cuda: the slab on %s is still mapped: something else in this process opened it; the memory stays allocated until this process ends", p.export.Device)
	}
	if r := d.api.ipcClose(d.context, p.pointer); r != success && r != invalidValue && r != invalidHandle {
		return d.check("cuIpcCloseMemHandle", r)
	}
	if known == success && mapped() {
		return fmt.Errorf("cuda: the slab on %s is still mapped after two closes: something else in this process opened it; the memory stays allocated until this process ends", p.export.Device)
	}
	return nil
}

func (p *Peer) forget() {
	d := p.device
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.peers, p.export.Handle)
	d.children[kindPeer]--
}

// Close gives up this package's opening of a peer that is alive.
// REQUIRES: the peer is not acquired.
func (p *Peer) Close() error {
	p.mu.Lock()
	if p.ending {
		p.mu.Unlock()
		return nil
	}
	if p.uses > 0 {
		defer p.mu.Unlock()
		return fmt.Errorf("cuda: close the mapped slab on %s: %d copies out of it are not over", p.export.Device, p.uses)
	}
	p.ending, p.closed = true, true
	p.mu.Unlock()
	defer p.forget()
	err := p.device.check("cuIpcCloseMemHandle", p.device.api.ipcClose(p.device.context, p.pointer))
	if p.device.lost.Load() != nil {
		return nil
	}
	return err
}
