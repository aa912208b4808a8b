package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
)

// Pinned is host memory that the device copies from and to at the speed of its link, without the
// processor.
type Pinned struct {
	device *Device
	data   []byte
	closed atomic.Bool
}

// RegisterConfig says how to register memory.
type RegisterConfig struct {
	// Touchers is the number of goroutines that make the pages exist; 0 means one per processor.
	// One goroutine alone needs half a second per GiB.
	Touchers int
	// ReadOnly: this process may only read the memory, like the space of a peer. The device must
	// have Attributes.ReadOnlyRegistration.
	ReadOnly bool
}

// touchChunk is the number of bytes that one goroutine makes exist at a time.
const touchChunk = 64 << 20

// Register pins a whole space in host memory. The contents stay unchanged. Register blocks until
// that is done. The space must outlive the Pinned, and must not be punched meanwhile, because the
// device would keep the old pages.
func (d *Device) Register(space memory.Space, c RegisterConfig) (*Pinned, error) {
	data := space.Bytes(0, space.Size())
	if data == nil {
		return nil, errors.New("cuda: only host memory can be registered, the space is not addressable")
	}
	if err := d.Health(); err != nil {
		return nil, err
	}
	if c.ReadOnly && !d.info.Attributes.ReadOnlyRegistration {
		return nil, fmt.Errorf("cuda: pin %d bytes for reading: %s cannot; copy by way of memory of this process", len(data), d.name)
	}
	if c.Touchers <= 0 {
		c.Touchers = runtime.GOMAXPROCS(0)
	}
	if err := touch(data, c); err != nil {
		return nil, fmt.Errorf("cuda: pin %d bytes: %w; lower --memory-limit, or raise the cgroup's limit of memory", len(data), err)
	}
	if err := d.pin(data, c.ReadOnly); err != nil {
		return nil, err
	}
	return &Pinned{device: d, data: data}, nil
}

// pin registers memory whose pages exist.
func (d *Device) pin(data []byte, readOnly bool) error {
	if err := d.adopt(kindPinned); err != nil {
		return err
	}
	if err := d.check("cuMemHostRegister", d.api.register(d.context, data, readOnly)); err != nil {
		d.forget(kindPinned)
		return fmt.Errorf("cuda: pin %d bytes: %w; look at ulimit -l", len(data), err)
	}
	return nil
}

// unpin undoes pin. REQUIRES: no copy uses the memory.
func (d *Device) unpin(data []byte) error {
	defer d.forget(kindPinned)
	err := d.check("cuMemHostUnregister", d.api.unregister(d.context, data))
	if d.lost.Load() != nil {
		return nil
	}
	return err
}

// address returns the address by which the device knows memory of this process.
func address(data []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(data)))) }

// Address returns the address of [off, off+n), for Stream.Copy.
// REQUIRES: the range lies within the space.
func (p *Pinned) Address(off, n uint64) uint64 {
	if !(memory.Frame{Offset: off, Bytes: n}).Within(uint64(len(p.data))) {
		panic(fmt.Sprintf("cuda: [%d, +%d) is outside of the pinned %d bytes", off, n, len(p.data)))
	}
	return address(p.data) + off
}

// Close ends the registration.
// REQUIRES: no copy uses it.
func (p *Pinned) Close() error {
	if !p.closed.CompareAndSwap(false, true) {
		return nil
	}
	return p.device.unpin(p.data)
}

// touch makes all pages exist. Their contents stay unchanged.
func touch(data []byte, c RegisterConfig) error {
	advice := unix.MADV_POPULATE_WRITE
	if c.ReadOnly {
		advice = unix.MADV_POPULATE_READ
	}
	start := unsafe.Pointer(unsafe.SliceData(data))
	// With 0 bytes, madvise fails only if the kernel does not know this advice (before Linux 5.14).
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(start), 0, uintptr(advice))
	populate := func(chunk []byte) error { return madvise(chunk, advice) }
	if errno != 0 {
		populate = func(chunk []byte) error { return touchEach(chunk, c.ReadOnly) }
	}
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, c.Touchers)
	for i := range errs {
		group.Go(func() {
			for errs[i] == nil {
				from := next.Add(touchChunk) - touchChunk
				if from >= int64(len(data)) {
					return
				}
				errs[i] = populate(data[from:min(from+touchChunk, int64(len(data)))])
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func madvise(chunk []byte, advice int) error {
	for {
		if err := unix.Madvise(chunk, advice); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}

// touchEach makes the pages exist by accessing each one, for kernels that cannot populate a range.
// A write to memory that is mapped read-only would kill the process, so set readOnly for such
// memory.
func touchEach(chunk []byte, readOnly bool) error {
	for off := 0; off+4 <= len(chunk); off += 4096 {
		at := (*uint32)(unsafe.Pointer(&chunk[off]))
		if readOnly {
			atomic.LoadUint32(at)
		} else {
			atomic.AddUint32(at, 0) // a write that loses no concurrent write
		}
	}
	return nil
}
