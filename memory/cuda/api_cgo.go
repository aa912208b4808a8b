//go:build cgo && linux

package cuda

/*
#cgo CFLAGS: -O2 -Wall -Wextra -std=gnu11
#cgo LDFLAGS: -ldl
#cgo noescape mrc_copy_batch
#cgo nocallback mrc_copy_batch
#cgo noescape mrc_launch_batch
#cgo nocallback mrc_launch_batch
#cgo noescape mrc_flush_writes
#cgo nocallback mrc_flush_writes
#cgo noescape mrc_memset
#cgo nocallback mrc_memset
#cgo noescape mrc_event_record
#cgo nocallback mrc_event_record
#cgo noescape mrc_event_query
#cgo nocallback mrc_event_query
#cgo noescape mrc_event_await
#cgo nocallback mrc_event_await
#cgo noescape mrc_make_current
#cgo nocallback mrc_make_current
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"
)

var loading sync.Mutex // guards mrc_load

// loadLibrary calls dlopen, once per process.
func loadLibrary(path string) (api, error) {
	loading.Lock()
	defer loading.Unlock()
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var text [1024]C.char
	if C.mrc_load(p, &text[0], C.int(len(text))) != 0 {
		return nil, fmt.Errorf("%w: %s; install NVIDIA's driver, or name its libcuda.so.1", ErrUnavailable, C.GoString(&text[0]))
	}
	return shim{}, nil
}

// allocations returns the number of the shim's allocations that were not freed.
func allocations() int64 { return int64(C.mrc_allocations()) }

// shim is the api of the one driver library that a process can load.
type shim struct{}

// errorName calls cuGetErrorName.
func (shim) errorName(code result) string { return C.GoString(C.mrc_error_name(C.int(code))) }

// errorText calls cuGetErrorString.
func (shim) errorText(code result) string { return C.GoString(C.mrc_error_text(C.int(code))) }

// initialize calls cuInit, cuDriverGetVersion, cuDeviceGetCount.
func (shim) initialize() (int, int, result) {
	var version, count C.int
	r := C.mrc_init(&version, &count)
	return int(version), int(count), result(r)
}

// describe calls cuDeviceGetName, cuDeviceGetUuid, cuDeviceGetPCIBusId,
// cuDeviceTotalMem, cuDeviceGetAttribute.
func (shim) describe(ordinal int) (Info, result) {
	var d C.mrc_device
	if r := C.mrc_describe(C.int(ordinal), &d); r != 0 {
		return Info{}, result(r)
	}
	info := Info{
		Ordinal:    ordinal,
		Name:       C.GoString(&d.name[0]),
		PCIBusID:   strings.ToLower(C.GoString(&d.pci_bus_id[0])),
		TotalBytes: uint64(d.total_bytes),
		Attributes: Attributes{
			ComputeMajor: int(d.major), ComputeMinor: int(d.minor),
			Multiprocessors: int(d.multiprocessors), SharedBytes: uint64(d.shared_bytes),
			ReadOnlyRegistration: d.read_only_registration != 0, Shareable: d.ipc != 0, Pageable: d.pageable != 0,
			DirectRDMA: d.direct_rdma != 0, DMABuf: d.dma_buf != 0,
			FlushesWrites: d.flush_options&hostFlush != 0, OrdersWrites: d.writes_ordering >= orderedForAll,
		},
	}
	for i := range info.UUID {
		info.UUID[i] = byte(d.uuid[i])
	}
	return info, success
}

// canAccess calls cuDeviceCanAccessPeer.
func (shim) canAccess(ordinal, peer int) (bool, result) {
	var can C.int
	r := C.mrc_can_access(C.int(ordinal), C.int(peer), &can)
	return can != 0, result(r)
}

// retain calls cuDevicePrimaryCtxRetain.
func (shim) retain(ordinal int) (uint64, result) {
	var context C.uint64_t
	r := C.mrc_retain(C.int(ordinal), &context)
	return uint64(context), result(r)
}

// release calls cuDevicePrimaryCtxRelease.
func (shim) release(ordinal int) result { return result(C.mrc_release(C.int(ordinal))) }

// makeCurrent calls cuCtxSetCurrent on the calling thread.
func (shim) makeCurrent(context uint64) result {
	return result(C.mrc_make_current(C.uint64_t(context)))
}

// memory calls cuMemGetInfo.
func (shim) memory(context uint64) (uint64, uint64, result) {
	var free, total C.uint64_t
	r := C.mrc_memory(C.uint64_t(context), &free, &total)
	return uint64(free), uint64(total), result(r)
}

// alloc calls cuMemAlloc and, for the throwaways, cuMemFree.
func (shim) alloc(context, bytes uint64, throwaways int) (uint64, result) {
	var pointer C.uint64_t
	r := C.mrc_alloc(C.uint64_t(context), C.uint64_t(bytes), C.int(throwaways), &pointer)
	return uint64(pointer), result(r)
}

// free calls cuMemFree.
func (shim) free(context, pointer uint64) result {
	return result(C.mrc_free(C.uint64_t(context), C.uint64_t(pointer)))
}

// bufferID calls cuPointerGetAttribute.
func (shim) bufferID(context, pointer uint64) (uint64, result) {
	var id C.uint64_t
	r := C.mrc_buffer_id(C.uint64_t(context), C.uint64_t(pointer), &id)
	return uint64(id), result(r)
}

// ipcExport calls cuIpcGetMemHandle.
func (shim) ipcExport(context, pointer uint64) (h Handle, r result) {
	r = result(C.mrc_ipc_export(C.uint64_t(context), C.uint64_t(pointer), unsafe.Pointer(&h[0])))
	return h, r
}

// ipcOpen calls cuIpcOpenMemHandle.
func (shim) ipcOpen(context uint64, h Handle) (uint64, result) {
	var pointer C.uint64_t
	r := C.mrc_ipc_open(C.uint64_t(context), unsafe.Pointer(&h[0]), &pointer)
	return uint64(pointer), result(r)
}

// ipcClose calls cuIpcCloseMemHandle.
func (shim) ipcClose(context, pointer uint64) result {
	return result(C.mrc_ipc_close(C.uint64_t(context), C.uint64_t(pointer)))
}

// streamCreate calls cuStreamCreateWithPriority.
func (shim) streamCreate(context uint64, urgent bool) (uint64, result) {
	var stream C.uint64_t
	r := C.mrc_stream_create(C.uint64_t(context), flag(urgent), &stream)
	return uint64(stream), result(r)
}

// streamDestroy calls cuStreamDestroy.
func (shim) streamDestroy(context, stream uint64) result {
	return result(C.mrc_stream_destroy(C.uint64_t(context), C.uint64_t(stream)))
}

// streamSync calls cuStreamSynchronize.
func (shim) streamSync(context, stream uint64) result {
	return result(C.mrc_stream_sync(C.uint64_t(context), C.uint64_t(stream)))
}

// eventCreate calls cuEventCreate.
func (shim) eventCreate(context uint64, kind eventKind) (uint64, result) {
	var event C.uint64_t
	r := C.mrc_event_create(C.uint64_t(context), C.int(kind), &event)
	return uint64(event), result(r)
}

// eventDestroy calls cuEventDestroy.
func (shim) eventDestroy(context, event uint64) result {
	return result(C.mrc_event_destroy(C.uint64_t(context), C.uint64_t(event)))
}

// eventRecord calls cuEventRecord.
func (shim) eventRecord(context, event, stream uint64) result {
	return result(C.mrc_event_record(C.uint64_t(context), C.uint64_t(event), C.uint64_t(stream)))
}

// eventQuery calls cuEventQuery.
func (shim) eventQuery(context, event uint64) result {
	return result(C.mrc_event_query(C.uint64_t(context), C.uint64_t(event)))
}

// eventAwait calls cuEventQuery.
func (shim) eventAwait(context, event uint64, spin int64) result {
	return result(C.mrc_event_await(C.uint64_t(context), C.uint64_t(event), C.int64_t(spin)))
}

// eventSync calls cuEventSynchronize.
func (shim) eventSync(context, event uint64) result {
	return result(C.mrc_event_sync(C.uint64_t(context), C.uint64_t(event)))
}

// copyBatch calls cuMemcpyHtoDAsync, cuMemcpyDtoHAsync, cuMemcpyDtoDAsync and,
// with an event, cuEventRecord.
func (shim) copyBatch(context, stream uint64, copies []Copy, event uint64) (int, result) {
	var submitted C.int
	list := (*C.mrc_copy)(unsafe.Pointer(unsafe.SliceData(copies)))
	r := C.mrc_copy_batch(C.uint64_t(context), C.uint64_t(stream), list, C.int(len(copies)), C.uint64_t(event), &submitted)
	return int(submitted), result(r)
}

// flushWrites calls cuFlushGPUDirectRDMAWrites.
func (shim) flushWrites(context uint64) result {
	return result(C.mrc_flush_writes(C.uint64_t(context)))
}

// memset calls cuMemsetD8Async.
func (shim) memset(context, stream, pointer uint64, value byte, bytes uint64) result {
	return result(C.mrc_memset(C.uint64_t(context), C.uint64_t(stream), C.uint64_t(pointer), C.uint8_t(value), C.uint64_t(bytes)))
}

// read calls cuMemcpyDtoHAsync, cuStreamSynchronize.
func (shim) read(context, stream uint64, to []byte, from uint64) result {
	return result(C.mrc_read(C.uint64_t(context), C.uint64_t(stream), unsafe.Pointer(unsafe.SliceData(to)), C.uint64_t(from), C.uint64_t(len(to))))
}

// write calls cuMemcpyHtoDAsync, cuStreamSynchronize.
func (shim) write(context, stream, to uint64, from []byte) result {
	return result(C.mrc_write(C.uint64_t(context), C.uint64_t(stream), C.uint64_t(to), unsafe.Pointer(unsafe.SliceData(from)), C.uint64_t(len(from))))
}

// register calls cuMemHostRegister.
func (shim) register(context uint64, memory []byte, readOnly bool) result {
	return result(C.mrc_register(C.uint64_t(context), unsafe.Pointer(unsafe.SliceData(memory)), C.uint64_t(len(memory)), flag(readOnly)))
}

// hostPointer calls cuMemHostGetDevicePointer.
func (shim) hostPointer(context uint64, memory []byte) (uint64, result) {
	var pointer C.uint64_t
	r := result(C.mrc_host_pointer(C.uint64_t(context), unsafe.Pointer(unsafe.SliceData(memory)), &pointer))
	return uint64(pointer), r
}

// unregister calls cuMemHostUnregister.
func (shim) unregister(context uint64, memory []byte) result {
	return result(C.mrc_unregister(C.uint64_t(context), unsafe.Pointer(unsafe.SliceData(memory))))
}

// moduleLoad calls cuModuleLoadData.
func (shim) moduleLoad(context uint64, image []byte) (uint64, result) {
	var module C.uint64_t
	r := C.mrc_module_load(C.uint64_t(context), unsafe.Pointer(unsafe.SliceData(image)), &module)
	return uint64(module), result(r)
}

// moduleUnload calls cuModuleUnload.
func (shim) moduleUnload(context, module uint64) result {
	return result(C.mrc_module_unload(C.uint64_t(context), C.uint64_t(module)))
}

// moduleFunction calls cuModuleGetFunction.
func (shim) moduleFunction(context, module uint64, name string) (uint64, result) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	var function C.uint64_t
	r := C.mrc_module_function(C.uint64_t(context), C.uint64_t(module), text, &function)
	return uint64(function), result(r)
}

// functionShared calls cuFuncSetAttribute.
func (shim) functionShared(context, function uint64, bytes int) result {
	return result(C.mrc_function_shared(C.uint64_t(context), C.uint64_t(function), C.int(bytes)))
}

// launchBatch calls cuMemcpyHtoDAsync, cuMemcpyDtoHAsync, cuMemcpyDtoDAsync,
// cuLaunchKernel and, with an event, cuEventRecord.
func (shim) launchBatch(context, stream uint64, copies []Copy, launches []rawLaunch, parameters []byte, event uint64) (int, result) {
	var submitted C.int
	first := (*C.mrc_copy)(unsafe.Pointer(unsafe.SliceData(copies)))
	list := (*C.mrc_launch)(unsafe.Pointer(unsafe.SliceData(launches)))
	r := C.mrc_launch_batch(C.uint64_t(context), C.uint64_t(stream), first, C.int(len(copies)), list, C.int(len(launches)),
		unsafe.Pointer(unsafe.SliceData(parameters)), C.uint64_t(event), &submitted)
	return int(submitted), result(r)
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

var (
	_ [unsafe.Sizeof(C.mrc_copy{})]byte   = [unsafe.Sizeof(Copy{})]byte{}
	_ [unsafe.Sizeof(C.mrc_launch{})]byte = [unsafe.Sizeof(rawLaunch{})]byte{}
	_ [64]byte                            = Handle{}
)
