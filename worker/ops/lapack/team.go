package lapack

import (
	"runtime"
	"sync"

	"github.com/millrace/millrace/internal/sharedlib"
)

// Team is a library together with the number of threads that a call may use.
type Team struct {
	library *Library
	threads int
}

// Team returns the library for calls that may use that many threads, the caller's own included; at
// most one is one. Calls of one thread run at the same time on any number of goroutines. OpenBLAS
// has one number of threads for the whole process, so a call of several threads waits until no
// other call runs, and the others wait for it: use several threads only for a call that is short
// and that cannot be cut into pieces of one thread each. A library that always runs in one thread
// ignores the number.
func (l *Library) Team(threads int) Team { return Team{l, max(threads, 1)} }

// Call calls a routine, as Library.Call.
func (t Team) Call(routine string, arguments ...Arg) (info int, err error) {
	return t.library.call(t.threads, routine, arguments)
}

// threading runs calls of a library with a number of threads.
type threading interface {
	run(threads int, call func())
}

// threadingOf finds out how a library is told its number of threads, and sets the number to 1 for
// all calls that do not go through the result.
func threadingOf(lib *sharedlib.Library) threading {
	if name := openBLASFunction(lib, "set_num_threads"); name != "" {
		return newProcessWide(func(threads int) { _, _ = lib.Call(name, uint64(threads)) })
	}
	if lib.Symbol("MKL_Set_Num_Threads_Local") != 0 {
		_, _ = lib.Call("MKL_Set_Num_Threads", 1)
		return perThread{set: func(threads int) { _, _ = lib.Call("MKL_Set_Num_Threads_Local", uint64(threads)) }}
	}
	return alone{}
}

// processWide is a library such as OpenBLAS: one number of threads holds for all calls of the
// process. The number is 1 except during a call of several threads.
type processWide struct {
	// mu is read-locked by a call of one thread, and locked by a call of several.
	mu  sync.RWMutex
	set func(threads int)
	// room holds an element for each call that runs.
	room chan struct{}
}

// maxCalls bounds the calls that run at the same time. OpenBLAS has buffers for twice as many calls
// as it may have threads, and a reserve of 512; a call without a buffer ends the process.
const maxCalls = 128

func newProcessWide(set func(threads int)) *processWide {
	set(1)
	return &processWide{set: set, room: make(chan struct{}, maxCalls)}
}

func (p *processWide) run(threads int, call func()) {
	if threads == 1 {
		p.room <- struct{}{}
		defer func() { <-p.room }()
		p.mu.RLock()
		defer p.mu.RUnlock()
		call()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// A build with OpenMP stores the number per operating system's thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.set(threads)
	call()
	p.set(1)
}

// perThread is a library such as MKL: each of the operating system's threads has a number for its
// own calls, and 0 stands for the number of the process, which is 1.
type perThread struct {
	set func(threads int)
}

func (p perThread) run(threads int, call func()) {
	if threads == 1 {
		call()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.set(threads)
	call()
	p.set(0)
}

// alone is a library whose calls run in the caller's thread.
type alone struct{}

func (alone) run(_ int, call func()) { call() }
