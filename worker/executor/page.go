package executor

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pageBytes is the size of the control page.
const pageBytes = 4096

// page is the control page: a few 64-bit words in memory that is shared with one process.
type page struct {
	file *os.File
	data []byte
}

func newPage() (*page, error) {
	fd, err := unix.MemfdCreate("millrace-control", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("executor: control page: %w; look at the limit of open files", err)
	}
	file := os.NewFile(uintptr(fd), "millrace-control")
	if err := unix.Ftruncate(fd, pageBytes); err != nil {
		_ = file.Close() // the first error counts
		return nil, fmt.Errorf("executor: give the control page %d bytes: %w; look at the limit of file sizes (ulimit -f)", pageBytes, err)
	}
	// The size is sealed: a process that shrank the file would kill the worker by SIGBUS.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		_ = file.Close() // the first error counts
		return nil, fmt.Errorf("executor: seal the control page: %w", err)
	}
	data, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = file.Close() // the first error counts
		return nil, fmt.Errorf("executor: map the control page: %w", err)
	}
	return &page{file, data}, nil
}

func (p *page) word(offset int) *uint64 { return (*uint64)(unsafe.Pointer(&p.data[offset])) }

// begun is the ordinal of the last run that the process began.
func (p *page) begun() uint64 { return atomic.LoadUint64(p.word(0)) }

// ended is the ordinal of the last run that the process ended.
func (p *page) ended() uint64 { return atomic.LoadUint64(p.word(8)) }

// setStop tells the process which run must stop.
func (p *page) setStop(ordinal uint64) { atomic.StoreUint64(p.word(16), ordinal) }

func (p *page) close() {
	_ = unix.Munmap(p.data) // it fails for bad arguments only
	_ = p.file.Close()      // nothing was written through it
}
