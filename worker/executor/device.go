package executor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
)

// frameAlignment is what the offsets of frames are multiples of.
const frameAlignment = 256

// Device is the GPU on which the slab lies, and how processes open it there.
type Device struct {
	UUID [16]byte
	// Visible is the CUDA_VISIBLE_DEVICES that leaves processes this GPU alone, so
	// that it is number 0 for them.
	Visible string
	// Refused is why processes cannot open the slab; nil: they can. Then their runs fail with it.
	Refused error
	// Handle is the slab's CUipcMemHandle.
	Handle []byte
	// Driver is the library that was loaded.
	Driver string
	// ArenaBytes is how much of the slab each process may keep for the allocator of each
	// library (--executor-arena); 0: those are left alone.
	ArenaBytes uint64
	// ArenaLibraries are the libraries that it is for (--executor-arena-for), by name.
	ArenaLibraries []string
}

// writer is a Space whose bytes the processor cannot address.
type writer interface {
	WriteFrom(off uint64, p []byte) error
}

// describe tells a process how to open the slab.
func (d *Device) describe(space memory.Space, neighbours int) *millracev1.ExecutorDevice {
	page := make([]byte, memory.HeaderBytes)
	memory.Header{Identity: space.Identity(), SizeBytes: space.Size()}.Write(page)
	return &millracev1.ExecutorDevice{
		Uuid: d.UUID[:], MemoryHandle: d.Handle, Header: page, Alignment: frameAlignment, Driver: d.Driver,
		ArenaBytes: d.ArenaBytes, ArenaLibraries: d.ArenaLibraries, Neighbours: uint32(neighbours),
	}
}

// newGate makes the file that all processes of a worker have as descriptor 4 when
// the slab lies on a GPU. They take turns by locking it.
func newGate() (*os.File, error) {
	fd, err := unix.MemfdCreate("millrace-gate", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("executor: gate: %w; look at the limit of open files", err)
	}
	return os.NewFile(uintptr(fd), "millrace-gate"), nil
}

// fourth is what a process gets as descriptor 4; the caller closes it.
func (p *Pools) fourth() (*os.File, error) {
	shared := p.config.Store.Space().FD()
	if p.gate != nil {
		shared = int(p.gate.Fd())
	}
	fd, err := unix.FcntlInt(uintptr(shared), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("executor: share the slab: %w", err)
	}
	return os.NewFile(uintptr(fd), "slab"), nil
}

// put writes bytes into a frame of the slab, wherever that lies.
func (p *Pools) put(f memory.Frame, b []byte) error {
	objects := p.config.Store
	if p.config.Device == nil {
		copy(objects.View(f), b)
		return nil
	}
	if f.Bytes == 0 {
		return nil
	}
	return objects.Space().(writer).WriteFrom(f.Offset, b)
}
