//go:build cgo && linux

package ucx

/*
#cgo CFLAGS: -O2 -Wall -Wextra -std=gnu11
#cgo LDFLAGS: -ldl -lpthread
#cgo noescape mr_wait
#cgo nocallback mr_wait
#cgo noescape mr_signal
#cgo nocallback mr_signal
#cgo noescape mr_submissions
#cgo nocallback mr_submissions
#cgo noescape mr_buffer
#cgo nocallback mr_buffer
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/millrace/millrace/internal/sharedlib"
)

var loading sync.Mutex // guards mr_load and the process's environment in C

// loadLibrary calls dlopen, once per process, on a locked thread. It sets the defaults in C's
// environment only, so that children do not inherit them, and only the variables that the user has
// not set. The chosen variables replace those of the user.
func loadLibrary(path string, defaults, chosen [][2]string) (version, error) {
	loading.Lock()
	defer loading.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const keep, replace = 0, 1
	setEnvironment(defaults, keep)
	setEnvironment(chosen, replace)
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var text [1024]C.char
	var failed C.int
	sharedlib.Exclusively(func() { failed = C.mr_load(p, &text[0], C.int(len(text))) })
	if failed != 0 {
		return version{}, fmt.Errorf("%w: %s; install the wheel libucx-cu13==1.19.0, or name a libucp.so.0", ErrUnavailable, C.GoString(&text[0]))
	}
	var major, minor, release C.uint
	C.mr_version(&major, &minor, &release)
	return version{uint(major), uint(minor), uint(release)}, nil
}

// setEnvironment sets variables of C's environment.
func setEnvironment(variables [][2]string, replace C.int) {
	for _, v := range variables {
		name, value := C.CString(v[0]), C.CString(v[1])
		C.mr_set_environment(name, value, replace)
		C.free(unsafe.Pointer(name))
		C.free(unsafe.Pointer(value))
	}
}

// allocations returns the number of the shim's allocations that were not freed.
func allocations() int64 { return int64(C.mr_allocations()) }

func statusError(status C.int, step string) error {
	return fmt.Errorf("%s: %s (%d)", step, C.GoString(C.mr_status_text(status)), int(status))
}

// cEngine is the engine of the shim.
type cEngine struct{ e *C.mr_engine }

// newEngine calls ucp_init and ucp_worker_create. REQUIRES: loadLibrary succeeded; the calling
// goroutine stays locked to its thread as long as it uses the engine.
func newEngine(settings [][2]string) (engine, error) {
	list := (*[32]*C.char)(C.calloc(32, C.size_t(unsafe.Sizeof(uintptr(0)))))
	n := 0
	defer func() {
		for i := range n {
			C.free(unsafe.Pointer(list[i]))
		}
		C.free(unsafe.Pointer(list))
	}()
	for _, s := range settings {
		list[n], list[n+1] = C.CString(s[0]), C.CString(s[1])
		n += 2
	}
	var status C.int
	var step *C.char
	var e *C.mr_engine
	sharedlib.Exclusively(func() { e = C.mr_create(&list[0], &status, &step) }) // it loads transports
	if e == nil {
		return nil, statusError(status, C.GoString(step))
	}
	return &cEngine{e}, nil
}

func (c *cEngine) address() []byte {
	var n C.uint64_t
	p := C.mr_address(c.e, &n)
	return C.GoBytes(p, C.int(n))
}

// mapMemory calls ucp_mem_map and ucp_rkey_pack.
func (c *cEngine) mapMemory(base, length uint64, kind memoryKind) (int32, []byte, error) {
	var index C.int
	if status := C.mr_map(c.e, C.uint64_t(base), C.uint64_t(length), C.int(kind), &index); status != 0 {
		return -1, nil, statusError(status, "ucp_mem_map")
	}
	var key unsafe.Pointer
	var n C.uint64_t
	if status := C.mr_pack_key(c.e, index, &key, &n); status != 0 {
		return -1, nil, statusError(status, "ucp_rkey_pack")
	}
	defer C.mr_free_key(key)
	return int32(index), C.GoBytes(key, C.int(n)), nil
}

// knowsCUDA calls ucp_context_query.
func (c *cEngine) knowsCUDA() bool { return C.mr_knows_cuda(c.e) != 0 }

// connect calls ucp_ep_create.
func (c *cEngine) connect(address []byte, tag uint64) (int32, error) {
	a := C.CBytes(address)
	defer C.free(a)
	endpoint := C.int(-1)
	var step *C.char
	if status := C.mr_connect(c.e, a, C.uint64_t(tag), &endpoint, &step); status != 0 {
		return -1, statusError(status, C.GoString(step))
	}
	return int32(endpoint), nil
}

// unpack calls ucp_ep_rkey_unpack.
func (c *cEngine) unpack(endpoint int32, at remoteKey, key []byte) error {
	k := C.CBytes(key)
	defer C.free(k)
	if status := C.mr_unpack_key(c.e, C.int(endpoint), C.int(at), k); status != 0 {
		return statusError(status, "ucp_ep_rkey_unpack")
	}
	return nil
}

func (c *cEngine) release(endpoint int32) { C.mr_release_endpoint(c.e, C.int(endpoint)) }

// transports calls ucp_ep_query.
func (c *cEngine) transports(endpoint int32) []string {
	var text [2048]C.char
	if C.mr_transports(c.e, C.int(endpoint), &text[0], C.int(len(text))) != 0 {
		return nil
	}
	return strings.Fields(C.GoString(&text[0]))
}

// wait calls ucp_get_nbx, ucp_am_send_nbx, ucp_ep_close_nbx, ucp_worker_progress and
// ucp_worker_arm.
func (c *cEngine) wait(orders []op, spin, timeout, nap time.Duration) []event {
	if len(orders) > 0 {
		copy(unsafe.Slice((*op)(unsafe.Pointer(C.mr_submissions(c.e, C.int(len(orders))))), len(orders)), orders)
	}
	var events *C.mr_event
	n := C.mr_wait(c.e, C.int(len(orders)), C.int64_t(spin), C.int64_t(timeout), C.int64_t(nap), &events)
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*event)(unsafe.Pointer(events)), int(n))
}

// pointer converts an address in C memory into a pointer. A plain conversion would work, but looks
// like a Go pointer that was hidden from the garbage collector.
func pointer(address uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

func (c *cEngine) message(e *event) []byte {
	if e.length == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(pointer(e.data)), int(e.length))
}

// signal calls ucp_worker_signal if the thread is blocked.
func (c *cEngine) signal() { C.mr_signal(c.e) }

func (c *cEngine) buffer(length int) ([]byte, uint64) {
	p := C.mr_buffer(C.uint64_t(length))
	if p == nil {
		panic(fmt.Sprintf("ucx: no memory for a message of %d bytes", length))
	}
	return unsafe.Slice((*byte)(p), length), uint64(uintptr(p))
}

func (c *cEngine) discard(handle uint64) { C.mr_buffer_free(pointer(handle)) }

func (c *cEngine) fill(to uint64, b []byte) {
	copy(unsafe.Slice((*byte)(pointer(to)), len(b)), b)
}

func (c *cEngine) statusText(status int32) string {
	return C.GoString(C.mr_status_text(C.int(status)))
}

// destroy calls ucp_mem_unmap, ucp_worker_destroy and ucp_cleanup.
func (c *cEngine) destroy() { C.mr_destroy(c.e) }

var (
	_ [unsafe.Sizeof(C.mr_op{})]byte    = [unsafe.Sizeof(op{})]byte{}
	_ [unsafe.Sizeof(C.mr_event{})]byte = [unsafe.Sizeof(event{})]byte{}
)

// built says whether this program can load libraries.
const built = true
