// Package cudatest is Test support: a CUDA driver without a GPU. Start builds a libcuda.so.1 from
// C, with streams that are threads and with memory that other processes can map. Tests use its
// State to delay it and to make it fail.
package cudatest

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

//go:embed driver/fake.c
var source []byte

// Environment is the variable with the path of the state file, for the library. Child processes
// inherit it.
const Environment = "MILLRACE_FAKE_CUDA"

// LibraryEnvironment is the variable with the path of a library that Build has made before, for
// machines on which the compiler is slow. Empty: Start builds the library.
const LibraryEnvironment = "MILLRACE_FAKE_CUDA_LIBRARY"

// CUDA's codes that tests make the driver return.
const (
	OutOfMemory      = 2
	ECCUncorrectable = 214
	IllegalAddress   = 700
	Unknown          = 999
)

const (
	magic      = 0x4D52464B
	stateBytes = 256 << 10
)

// State is shared memory that the driver reads before each operation, in every process that uses
// it. Its layout is that of fake.c. Everything except Devices and MemoryBytes can be changed at any
// time.
type State struct {
	magic uint64
	// Devices is the number of devices. MemoryBytes is the memory of each.
	Devices, MemoryBytes uint64
	// Hold: while it is not 0, streams start no work.
	Hold atomic.Uint64
	// DelayMicros is the delay in µs before each piece of work of a stream.
	DelayMicros atomic.Uint64
	// RefusePeer: no device can access the memory of another one.
	RefusePeer                    atomic.Uint64
	failCode, failSkip, failCount atomic.Uint64
	failCall                      [64]byte
	// StickyCode, once set, is the result of every call in the process StickyPID, or in all
	// processes if StickyPID is 0.
	StickyCode, StickyPID atomic.Uint64
	// LateCode, once set, becomes the sticky code of the process StickyPID, or of all processes,
	// after LateCalls more calls. It simulates an error of submitted work, which a later call
	// returns.
	LateCode, LateCalls atomic.Uint64
	// NoSharing: no memory can be exported to other processes. NoRegistration: no host memory can
	// be pinned.
	NoSharing, NoRegistration atomic.Uint64
	// RefusedPairs has bit 8*i+j set if device i cannot access the memory of device j.
	RefusedPairs atomic.Uint64
	// MIG: the devices are MIG instances. CUDA_VISIBLE_DEVICES must name the instances, not their
	// GPUs.
	MIG atomic.Uint64
	// Pageable, if not 0: the devices read the host's pageable memory themselves, when the stream
	// executes the copy.
	Pageable atomic.Uint64
	// Capability is the compute capability: ten times the major number plus the minor; 0 means 90.
	Capability atomic.Uint64
	// Corrupt: copies from device to device change a byte.
	Corrupt atomic.Uint64
	// TakeOver, if not 0: when the next mapping is closed, another mapping appears at the same
	// address at once. Then TakeOver becomes 0, and TakenOver is that address while it is mapped.
	TakeOver, TakenOver atomic.Uint64
	// FreedInUse counts the allocations that were freed while another process had them mapped.
	FreedInUse atomic.Uint64
	// OrdersWrites: the devices order the writes of network cards themselves. Flushes counts the
	// calls that wait for such writes.
	OrdersWrites, Flushes atomic.Uint64
	watch                 atomic.Uint64
	// The objects that this process created and has not destroyed.
	Contexts, Streams, Events, Registrations, Allocations, Mappings, Modules atomic.Int64
	// Launches is the number of kernel launches.
	Launches atomic.Uint64
	launched [keptLaunches]Launch
	entries  [256]entry
}

// entry is an allocation of a process, with the processes that have it mapped.
type entry struct {
	taken, device, bytes, owner uint64
	importers                   [16]uint64
}

// Taken returns the bytes of a device's memory that processes have allocated, without small
// allocations. The value may be out of date at once, because processes continue.
func (s *State) Taken(device int) (sum uint64) {
	for i := range s.entries {
		if e := &s.entries[i]; atomic.LoadUint64(&e.taken) != 0 && e.device == uint64(device) {
			sum += e.bytes
		}
	}
	return sum
}

const keptLaunches = 64

// Launch is a kernel launch. The driver only records it.
type Launch struct {
	name        [128]byte
	Grid, Block [3]uint32
	SharedBytes uint32
	// ParameterBytes is the length of the parameters. Parameters has at most its own size of them.
	ParameterBytes uint32
	Parameters     [1024]byte
}

// Name returns the name of the kernel.
func (l *Launch) Name() string { return strings.TrimRight(string(l.name[:]), "\x00") }

// Launched returns the launches from number from on, counted as in Launches. Only the last 64 are
// kept.
// REQUIRES: no kernel is launched meanwhile.
func (s *State) Launched(from uint64) []*Launch {
	var out []*Launch
	for i := max(from, max(s.Launches.Load(), keptLaunches)-keptLaunches); i < s.Launches.Load(); i++ {
		out = append(out, &s.launched[i%keptLaunches])
	}
	return out
}

// Fake is the library and its state.
type Fake struct {
	// Library is the path of the libcuda.so.1.
	Library string
	*State
	dir  string
	data []byte
}

// Start builds the library, unless LibraryEnvironment names one and there are no defines, and sets
// Environment to the path of its state. For defines see Build.
func Start(devices int, memoryBytes uint64, defines ...string) (*Fake, error) {
	dir, err := os.MkdirTemp("", "fake-cuda-")
	if err != nil {
		return nil, fmt.Errorf("cudatest: %w", err)
	}
	f := &Fake{Library: os.Getenv(LibraryEnvironment), dir: dir}
	if f.Library == "" || len(defines) > 0 {
		f.Library, err = Build(dir, defines...)
	}
	if err == nil {
		err = f.start(devices, memoryBytes)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Build compiles the library into a folder, with cc, which cgo needs anyway, and returns its path.
// defines are passed to the compiler: "FAKE_OMIT_IPC" leaves a function out.
func Build(folder string, defines ...string) (string, error) {
	code, library := filepath.Join(folder, "fake.c"), filepath.Join(folder, "libcuda.so.1")
	if err := os.WriteFile(code, source, 0o600); err != nil {
		return "", fmt.Errorf("cudatest: %w", err)
	}
	args := []string{"-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-o", library, code, "-lpthread", "-ldl"}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	compiler := cmp.Or(os.Getenv("CC"), "cc")
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("cudatest: %s: %w\n%s", compiler, err, out)
	}
	return library, nil
}

func (f *Fake) start(devices int, memoryBytes uint64) error {
	path := filepath.Join(f.dir, "state")
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("cudatest: %w", err)
	}
	defer file.Close()
	if err := file.Truncate(stateBytes); err != nil {
		return fmt.Errorf("cudatest: %w", err)
	}
	f.data, err = unix.Mmap(int(file.Fd()), 0, stateBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("cudatest: map the state: %w", err)
	}
	f.State = (*State)(unsafe.Pointer(&f.data[0]))
	f.magic, f.Devices, f.MemoryBytes = magic, uint64(devices), memoryBytes
	f.watch.Store(uint64(os.Getpid()))
	return os.Setenv(Environment, path)
}

// Fail makes a function, with its name in the library, return code count times, after skip
// successful calls.
func (f *Fake) Fail(call string, code, skip, count int) {
	f.failCount.Store(0)
	clear(f.failCall[:])
	copy(f.failCall[:len(f.failCall)-1], call)
	f.failCode.Store(uint64(code))
	f.failSkip.Store(uint64(skip))
	f.failCount.Store(uint64(count))
}

// Failing says whether any calls are left that will fail.
func (f *Fake) Failing() bool { return f.failCount.Load() != 0 }

// Heal ends all delays and failures.
func (f *Fake) Heal() {
	f.failCount.Store(0)
	for _, s := range []*atomic.Uint64{&f.Hold, &f.DelayMicros, &f.RefusePeer, &f.StickyCode, &f.StickyPID,
		&f.LateCode, &f.LateCalls, &f.NoSharing, &f.NoRegistration, &f.RefusedPairs, &f.MIG, &f.Pageable, &f.Capability, &f.Corrupt, &f.TakeOver} {
		s.Store(0)
	}
}

// Reap simulates the end of this process: it gives back exported slabs, which are kept until then,
// and their contexts.
// REQUIRES: all devices are closed.
func (f *Fake) Reap() {
	for i := range f.entries {
		if e := &f.entries[i]; atomic.LoadUint64(&e.taken) != 0 && atomic.LoadUint64(&e.owner) == uint64(os.Getpid()) {
			atomic.StoreUint64(&e.owner, 0)
			f.Allocations.Add(-1)
		}
	}
	f.Contexts.Store(0)
}

// Left lists the objects that this process has not destroyed, "" if there are none.
func (f *Fake) Left() string {
	n := [7]int64{f.Contexts.Load(), f.Streams.Load(), f.Events.Load(), f.Registrations.Load(), f.Allocations.Load(), f.Mappings.Load(), f.Modules.Load()}
	if n == [7]int64{} {
		return ""
	}
	return fmt.Sprintf("%d contexts, %d streams, %d events, %d registrations, %d allocations, %d mappings, %d modules", n[0], n[1], n[2], n[3], n[4], n[5], n[6])
}

// Close removes the files. A library that was loaded keeps working, but no other process can load
// it.
func (f *Fake) Close() error {
	var err error
	if f.data != nil && f.Left() == "" {
		// The driver's threads may still use the driver's own mapping, but never this one.
		err = unix.Munmap(f.data)
		f.data, f.State = nil, nil
	}
	return errors.Join(err, os.RemoveAll(f.dir))
}
