// Package controlpage is an Adapter: the page of memory that a worker shares with one executor
// process. The worker's supervisor keeps it open, too: after the death of the worker, the page
// tells which function was running. docs/executor-protocol.md describes what executors see of it.
package controlpage

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/ids"
)

// Bytes is the size of the page.
const Bytes = 4096

// Offsets of 64-bit words. The executor writes begun, ended and called, the worker all others.
const (
	begunAt  = 0
	endedAt  = 8
	stopAt   = 16
	calledAt = 24
	stateAt  = 1024
	// runsAt is the list of the last runs that were sent: task and attempt, by ordinal modulo
	// runsKept. A worker sends at most 64 runs in advance.
	runsAt   = 2048
	runsKept = 128
)

// state says what the supervisor may conclude from the page.
const (
	// starting: the process has got no run.
	starting = iota
	// quiet: it may get runs, and does not write called.
	quiet
	// precise: it may get runs, and writes called.
	precise
	// closed: it has ended, and the worker has drawn its own conclusions.
	closed
)

// Page is a mapped control page. Its methods may be called from any goroutine.
type Page struct {
	// File is the memory, for the process and for the supervisor.
	File *os.File
	data []byte
}

// New makes a page of zeros.
func New() (*Page, error) {
	fd, err := unix.MemfdCreate("millrace-control", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("control page: %w; look at the limit of open files", err)
	}
	file := os.NewFile(uintptr(fd), "millrace-control")
	if err := unix.Ftruncate(fd, Bytes); err != nil {
		_ = file.Close() // the first error counts
		return nil, fmt.Errorf("control page: give it %d bytes: %w; look at the limit of file sizes (ulimit -f)", Bytes, err)
	}
	// The size is sealed: a process that shrank the file would kill the worker by SIGBUS.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		_ = file.Close() // the first error counts
		return nil, fmt.Errorf("control page: seal it: %w", err)
	}
	data, err := unix.Mmap(fd, 0, Bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = file.Close() // the first error counts
		return nil, fmt.Errorf("control page: map it: %w", err)
	}
	return &Page{file, data}, nil
}

func (p *Page) word(offset int) *uint64 { return (*uint64)(unsafe.Pointer(&p.data[offset])) }

// Begun is the ordinal of the last run that the process began.
func (p *Page) Begun() uint64 { return atomic.LoadUint64(p.word(begunAt)) }

// Ended is the ordinal of the last run that the process ended.
func (p *Page) Ended() uint64 { return atomic.LoadUint64(p.word(endedAt)) }

// Called is the ordinal of the last run whose function the process called.
func (p *Page) Called() uint64 { return atomic.LoadUint64(p.word(calledAt)) }

// SetStop tells the process which run must stop.
func (p *Page) SetStop(ordinal uint64) { atomic.StoreUint64(p.word(stopAt), ordinal) }

// Ready notes that the process may get runs. writesCalled: it writes the word that Called reads.
func (p *Page) Ready(writesCalled bool) {
	state := uint64(quiet)
	if writesCalled {
		state = precise
	}
	atomic.StoreUint64(p.word(stateAt), state)
}

// Sent notes the attempt that a run is, before the run is sent.
func (p *Page) Sent(ordinal uint64, task ids.TaskID, attempt ids.Attempt) {
	at := runsAt + int(ordinal%runsKept)*16
	atomic.StoreUint64(p.word(at), uint64(task))
	atomic.StoreUint64(p.word(at+8), uint64(attempt))
}

// Close gives the page up. Its content does not count any more.
func (p *Page) Close() {
	atomic.StoreUint64(p.word(stateAt), closed)
	_ = unix.Munmap(p.data) // it fails for bad arguments only
	_ = p.File.Close()      // nothing was written through it
}

// Read returns the attempt whose function was running, 0 if there was none, from the page of a
// process that has ended with its worker. unknown: the process does not write its page. over: the
// worker has given the page up.
func Read(file *os.File) (task ids.TaskID, attempt ids.Attempt, unknown, over bool) {
	data := make([]byte, Bytes)
	if _, err := file.ReadAt(data, 0); err != nil {
		return 0, 0, true, false
	}
	word := func(at int) uint64 { return binary.NativeEndian.Uint64(data[at:]) }
	ordinal, ended := word(calledAt), word(endedAt)
	switch word(stateAt) {
	case starting:
		return 0, 0, false, false
	case closed:
		return 0, 0, false, true
	case quiet:
		if ordinal = word(begunAt); ordinal == 0 && ended == 0 {
			return 0, 0, word(runsAt+16) != 0, false
		}
	}
	if ordinal <= ended {
		return 0, 0, false, false
	}
	at := runsAt + int(ordinal%runsKept)*16
	return ids.TaskID(word(at)), ids.Attempt(word(at + 8)), false, false
}
