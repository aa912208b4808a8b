package executor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	"github.com/millrace/millrace/memory"
)

// frameAlignment is the alignment of frame offsets in the slab, in bytes.
const frameAlignment = 256

// Device describes the GPU on which the slab is, and how processes open the slab there.
type Device struct {
	UUID [16]byte
	// Visible is the value of CUDA_VISIBLE_DEVICES that shows a process only this GPU, as number 0.
	Visible string
	// Refused is the reason why processes cannot open the slab; then each of their runs fails with
	// this reason. Nil: they can open it.
	Refused error
	// Handle is the slab's CUipcMemHandle.
	Handle []byte
	// Driver is the path of the loaded CUDA driver library.
	Driver string
	// ArenaBytes is the part of the slab that each process may keep for the allocator of each
	// library (--executor-arena); 0: the libraries keep their own allocators.
	ArenaBytes uint64
	// ArenaLibraries are the names of these libraries (--executor-arena-for).
	ArenaLibraries []string
}

// writer is a Space whose memory the CPU cannot address directly.
type writer interface {
	WriteFrom(off uint64, p []byte) error
}

// describe returns the description with which a process opens the slab. executors is the number of
// executor processes, of all kinds and this one included, that may have the GPU open at the same
// time.
func (d *Device) describe(space memory.Space, executors int) *executorv1.ExecutorDevice {
	page := make([]byte, memory.HeaderBytes)
	memory.Header{Identity: space.Identity(), SizeBytes: space.Size()}.Write(page)
	return &executorv1.ExecutorDevice{
		Uuid: d.UUID[:], MemoryHandle: d.Handle, SlabHeader: page, AlignmentBytes: frameAlignment, DriverLibrary: d.Driver,
		ArenaBytes: d.ArenaBytes, ArenaLibraries: d.ArenaLibraries, ExecutorCount: uint32(executors),
	}
}

// newDeviceLock makes the file that all processes of a worker get as descriptor 4 when the slab is
// on a GPU. The processes take turns on the GPU by locking this file.
func newDeviceLock() (*os.File, error) {
	fd, err := unix.MemfdCreate("millrace-gpu-lock", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("executor: lock of the GPU: %w; look at the limit of open files", err)
	}
	return os.NewFile(uintptr(fd), "millrace-gpu-lock"), nil
}

// sharedFile returns the file that a process gets as descriptor 4: the lock file of the GPU, or a
// descriptor of the slab in host memory. The caller closes it.
func (p *Pools) sharedFile() (*os.File, error) {
	shared := p.config.Store.Space().FD()
	if p.deviceLock != nil {
		shared = int(p.deviceLock.Fd())
	}
	fd, err := unix.FcntlInt(uintptr(shared), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("executor: share the slab: %w", err)
	}
	return os.NewFile(uintptr(fd), "slab"), nil
}

// writeFrame writes bytes into a frame of the slab, in host memory or on the GPU.
func (p *Pools) writeFrame(f memory.Frame, b []byte) error {
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
