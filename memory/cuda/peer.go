package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/memory"
)

// Export tells another process on the same host how to map a slab.
type Export struct {
	Handle Handle
	// SizeBytes is the slab's, header page included.
	SizeBytes uint64
	// Device is the GPU that the slab lies on.
	Device UUID
	// Identity is what its header page must say.
	Identity memory.Identity
}

// Peer is the slab of another process, mapped for this device. It pins that
// memory, even when the other process is dead, until it is closed or retired.
type Peer struct {
	device  *Device
	export  Export
	pointer uint64

	mu sync.Mutex // guards what follows
	// uses are the Acquires without their Release.
	uses int
	// retired, once set, is called when the last use is over.
	retired func(error)
	ending  bool
	closed  bool
}

// OpenPeer maps the slab, once per handle, and compares its header page with
// what was announced: ErrIdentity means that the mapping is of another
// incarnation and must not be used.
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

// Prove compares the header page of the mapped slab with what was announced, once
// more. REQUIRES: the peer is acquired, or nobody else can end it.
func (p *Peer) Prove() error { return p.prove() }

// Export is what the peer was opened by.
func (p *Peer) Export() Export { return p.export }

// Pointer is the address of [off, off+n) of the peer's slab, for Stream.Copy.
// REQUIRES: the range lies within it, and the peer is acquired.
func (p *Peer) Pointer(off, n uint64) uint64 {
	if !(memory.Frame{Offset: off, Bytes: n}).Within(p.export.SizeBytes) {
		panic(fmt.Sprintf("cuda: [%d, +%d) is outside of the peer's slab of %d bytes", off, n, p.export.SizeBytes))
	}
	return p.pointer + off
}

// ReadInto copies [off, off+len(p)) of the peer's slab to p, as Slab.ReadInto does.
// REQUIRES: as for Pointer.
func (p *Peer) ReadInto(off uint64, into []byte) error {
	d := p.device
	if err := d.Health(); err != nil {
		return err
	}
	return d.check("cuMemcpyDtoHAsync", d.api.read(d.context, d.control, into, p.Pointer(off, uint64(len(into)))))
}

// Acquire keeps the mapping for a copy out of it; false once it is being
// unmapped. Each true needs a Release.
func (p *Peer) Acquire() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending {
		return false
	}
	p.uses++
	return true
}

// Release ends an Acquire: what it was for is over on the device as well.
func (p *Peer) Release() {
	p.mu.Lock()
	p.uses--
	if p.uses < 0 {
		p.mu.Unlock()
		panic("cuda: a mapped peer was released more often than acquired")
	}
	p.finish()
}

// Retire unmaps the slab of a dead worker, so that the device gets its memory
// back: at once if the mapping is not in use, else from the last Release. Then it
// calls unmapped, once, whose error means that the memory is still held; the
// supervisor of the dead worker waits for that. After OpenedByOthers the handle is
// closed twice, since UCX keeps an opening of its own for ever: its copies out of
// the slab must be over too, each by its own callback.
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

// finish unmaps what is retired and no longer used. It releases the lock that it
// is called with.
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

// OpenedByOthers says that a library in this process, UCX, opens memory of other processes on its own and never
// closes it. Without it nobody has openings but Peers.
func (d *Device) OpenedByOthers() { d.opened.Store(true) }

// unmap closes our opening of the memory, and then UCX's opening if the same memory is
// still mapped and UCX may have opened it. By then another mapping may lie at the
// address: the driver's number of the memory (its buffer id) shows that. If the driver
// gives no number, unmap closes UCX's opening without that check, and ignores the error
// if there is none.
func (p *Peer) unmap() error {
	defer p.forget()
	d := p.device
	// Without it, a slab that is opened between the two closes could be mapped at
	// the same address, and lose its mapping to the second.
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
	if known == success && !mapped() || known != success && !d.opened.Load() {
		return nil
	}
	if !d.opened.Load() {
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

// Close gives up this package's opening of a peer that lives. REQUIRES: it is not
// acquired.
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
