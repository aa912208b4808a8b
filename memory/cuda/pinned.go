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

// Pinned is host memory that the device copies from and to at the speed of its
// link, and without the processor.
type Pinned struct {
	device *Device
	space  memory.Space
	data   []byte
	closed atomic.Bool
}

// touchChunk is what one goroutine brings into being at a time.
const touchChunk = 64 << 20

// Register pins all of a space in host memory: its pages are brought into being
// by so many goroutines (0: one per processor), which without them takes half a
// second per GiB, then it is registered once. Contents stay as they are. It
// blocks for all that. The space must outlive the Pinned, and must not be
// punched meanwhile: the device would keep the old pages.
func (d *Device) Register(space memory.Space, touchers int) (*Pinned, error) {
	data := space.Bytes(0, space.Size())
	if data == nil {
		return nil, errors.New("cuda: only host memory can be registered, the space is not addressable")
	}
	if err := d.Health(); err != nil {
		return nil, err
	}
	if touchers <= 0 {
		touchers = runtime.GOMAXPROCS(0)
	}
	if err := touch(data, touchers); err != nil {
		return nil, fmt.Errorf("cuda: pin %d bytes: %w; lower --memory-limit, or raise the cgroup's limit of memory", len(data), err)
	}
	if err := d.adopt(kindPinned); err != nil {
		return nil, err
	}
	if err := d.check("cuMemHostRegister", d.api.register(d.context, data)); err != nil {
		d.forget(kindPinned)
		return nil, fmt.Errorf("cuda: pin %d bytes: %w; look at ulimit -l", len(data), err)
	}
	return &Pinned{device: d, space: space, data: data}, nil
}

// Address is that of [off, off+n), for Stream.Copy. REQUIRES: the range lies
// within the space.
func (p *Pinned) Address(off, n uint64) uint64 {
	if !(memory.Frame{Offset: off, Bytes: n}).Within(uint64(len(p.data))) {
		panic(fmt.Sprintf("cuda: [%d, +%d) is outside of the pinned %d bytes", off, n, len(p.data)))
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p.data)))) + off
}

// Space is what was registered.
func (p *Pinned) Space() memory.Space { return p.space }

// Close ends the registration. REQUIRES: no copy uses it.
func (p *Pinned) Close() error {
	if !p.closed.CompareAndSwap(false, true) {
		return nil
	}
	defer p.device.forget(kindPinned)
	err := p.device.check("cuMemHostUnregister", p.device.api.unregister(p.device.context, p.data))
	if p.device.lost.Load() != nil {
		return nil
	}
	return err
}

// touch makes all pages exist, writable and unchanged.
func touch(data []byte, touchers int) error {
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, touchers)
	for i := range touchers {
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

// populate lets the kernel do it, where it is 5.14 or newer.
func populate(chunk []byte) error {
	for {
		err := unix.Madvise(chunk, unix.MADV_POPULATE_WRITE)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINVAL):
			for off := 0; off+4 <= len(chunk); off += 4096 {
				// Adds nothing, but as a write, and loses nobody else's.
				atomic.AddUint32((*uint32)(unsafe.Pointer(&chunk[off])), 0)
			}
			return nil
		case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
			return err
		}
	}
}
