//go:build cgo && linux

package nvml

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

const defaultLibrary = "libnvidia-ml.so.1"

// loaded is the library of this process: C code has one table of functions.
var loaded struct {
	sync.Mutex
	name string // guarded by Mutex
}

// Open loads and initialises the library; "" is libnvidia-ml.so.1.
func Open(library string) (*NVML, error) {
	if library == "" {
		library = defaultLibrary
	}
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.name != "" && loaded.name != library {
		return nil, fmt.Errorf("%w: %s: this process has loaded %s", ErrUnavailable, library, loaded.name)
	}
	if loaded.name == "" {
		name := C.CString(library)
		defer C.free(unsafe.Pointer(name))
		if why := C.mrn_load(name); why != nil {
			return nil, fmt.Errorf("%w: %s; install NVIDIA's driver or, in a container, let its runtime mount libnvidia-ml.so.1", ErrUnavailable, C.GoString(why))
		}
		loaded.name = library
	}
	return open(real{})
}

type real struct{}

func (real) init() code         { return code(C.mrn_init()) }
func (real) shutdown() code     { return code(C.mrn_shutdown()) }
func (real) text(c code) string { return C.GoString(C.mrn_text(C.int(c))) }

// textBytes is more than NVML ever writes.
const textBytes = 96

func text(call func(*C.char, C.uint) C.int) (string, code) {
	var buffer [textBytes]C.char
	r := code(call(&buffer[0], textBytes))
	return C.GoString(&buffer[0]), r
}

func number(call func(*C.uint) C.int) (int, code) {
	var n C.uint
	r := code(call(&n))
	return int(n), r
}

func (real) driverVersion() (string, code) {
	return text(func(p *C.char, n C.uint) C.int { return C.mrn_SystemGetDriverVersion(p, n) })
}

func (real) cudaDriverVersion() (int, code) {
	var n C.int
	r := code(C.mrn_SystemGetCudaDriverVersion_v2(&n))
	return int(n), r
}

func (real) count() (int, code) {
	return number(func(n *C.uint) C.int { return C.mrn_DeviceGetCount_v2(n) })
}

func (real) byIndex(i int) (card, code) {
	var d C.mrn_device
	r := code(C.mrn_DeviceGetHandleByIndex_v2(C.uint(i), &d))
	return realCard{d}, r
}

func (real) byUUID(uuid string) (card, code) {
	name := C.CString(uuid)
	defer C.free(unsafe.Pointer(name))
	var d C.mrn_device
	r := code(C.mrn_DeviceGetHandleByUUID(name, &d))
	return realCard{d}, r
}

func (real) newEvents() (events, code) {
	var set C.mrn_set
	r := code(C.mrn_EventSetCreate(&set))
	return realEvents{set}, r
}

type realCard struct{ d C.mrn_device }

func (g realCard) uuid() (string, code) {
	return text(func(p *C.char, n C.uint) C.int { return C.mrn_DeviceGetUUID(g.d, p, n) })
}

func (g realCard) name() (string, code) {
	return text(func(p *C.char, n C.uint) C.int { return C.mrn_DeviceGetName(g.d, p, n) })
}

func (g realCard) pciBusID() (string, code) {
	var pci C.mrn_pci
	r := code(C.mrn_DeviceGetPciInfo_v3(g.d, &pci))
	return C.GoString(&pci.bus_id[0]), r
}

func (g realCard) memory() (used, total uint64, c code) {
	var m C.mrn_memory
	c = code(C.mrn_DeviceGetMemoryInfo(g.d, &m))
	return uint64(m.used), uint64(m.total), c
}

func (g realCard) computeCapability() (major, minor int, c code) {
	var a, b C.int
	c = code(C.mrn_DeviceGetCudaComputeCapability(g.d, &a, &b))
	return int(a), int(b), c
}

func (g realCard) migMode() (bool, code) {
	var now, pending C.uint
	r := code(C.mrn_DeviceGetMigMode(g.d, &now, &pending))
	return now == 1, r
}

func (g realCard) maxMigDevices() (int, code) {
	return number(func(n *C.uint) C.int { return C.mrn_DeviceGetMaxMigDeviceCount(g.d, n) })
}

func (g realCard) migDevice(i int) (card, code) {
	var d C.mrn_device
	r := code(C.mrn_DeviceGetMigDeviceHandleByIndex(g.d, C.uint(i), &d))
	return realCard{d}, r
}

func (g realCard) gpuInstance() (int, code) {
	return number(func(n *C.uint) C.int { return C.mrn_DeviceGetGpuInstanceId(g.d, n) })
}

func (g realCard) computeInstance() (int, code) {
	return number(func(n *C.uint) C.int { return C.mrn_DeviceGetComputeInstanceId(g.d, n) })
}

func (g realCard) nearCPUs() ([]uint64, code) {
	// 16 words are 1024 processors; scope 0 is the memory node.
	var words [16]C.ulong
	r := code(C.mrn_DeviceGetCpuAffinityWithinScope(g.d, 16, &words[0], 0))
	out := make([]uint64, len(words))
	for i, w := range words {
		out[i] = uint64(w)
	}
	return out, r
}

func (g realCard) nvLinkEnabled(link int) (bool, code) {
	n, r := number(func(n *C.uint) C.int { return C.mrn_DeviceGetNvLinkState(g.d, C.uint(link), n) })
	return n == 1, r
}

func (g realCard) nvLinkRemoteKind(link int) (int, code) {
	return number(func(n *C.uint) C.int { return C.mrn_DeviceGetNvLinkRemoteDeviceType(g.d, C.uint(link), n) })
}

func (g realCard) nvLinkRemoteBusID(link int) (string, code) {
	var pci C.mrn_pci
	r := code(C.mrn_DeviceGetNvLinkRemotePciInfo_v2(g.d, C.uint(link), &pci))
	return C.GoString(&pci.bus_id[0]), r
}

func (g realCard) p2pStatus(other card, caps int) (int, code) {
	return number(func(n *C.uint) C.int { return C.mrn_DeviceGetP2PStatus(g.d, other.(realCard).d, C.uint(caps), n) })
}

func (g realCard) utilization() (gpu, memory int, c code) {
	var u C.mrn_utilization
	c = code(C.mrn_DeviceGetUtilizationRates(g.d, &u))
	return int(u.gpu), int(u.memory), c
}

func (g realCard) clockMHz(kind int) (int, code) {
	return number(func(n *C.uint) C.int { return C.mrn_DeviceGetClockInfo(g.d, C.uint(kind), n) })
}

func (g realCard) throttleReasons() (uint64, code) {
	var n C.ulonglong
	r := code(C.mrn_DeviceGetCurrentClocksThrottleReasons(g.d, &n))
	return uint64(n), r
}

func (g realCard) milliwatts() (int, code) {
	return number(func(n *C.uint) C.int { return C.mrn_DeviceGetPowerUsage(g.d, n) })
}

func (g realCard) celsius() (int, code) {
	return number(func(n *C.uint) C.int { return C.mrn_DeviceGetTemperature(g.d, 0, n) })
}

func (g realCard) eccErrors(kind int) (uint64, code) {
	var n C.ulonglong
	r := code(C.mrn_DeviceGetTotalEccErrors(g.d, C.uint(kind), 0, &n)) // 0: since the driver was loaded
	return uint64(n), r
}

func (g realCard) processes() ([]process, code) {
	var list [256]C.mrn_process
	n := C.uint(len(list))
	r := code(C.mrn_DeviceGetComputeRunningProcesses_v3(g.d, &n, &list[0]))
	if r != success {
		return nil, r
	}
	var out []process
	for _, p := range list[:min(int(n), len(list))] {
		out = append(out, process{int(p.pid), uint64(p.used)})
	}
	return out, r
}

func (g realCard) eventTypes() (uint64, code) {
	var n C.ulonglong
	r := code(C.mrn_DeviceGetSupportedEventTypes(g.d, &n))
	return uint64(n), r
}

type realEvents struct{ set C.mrn_set }

func (e realEvents) register(of card, kinds uint64) code {
	return code(C.mrn_DeviceRegisterEvents(of.(realCard).d, C.ulonglong(kinds), e.set))
}

func (e realEvents) wait(millis int) (event, code) {
	var data C.mrn_event
	r := code(C.mrn_EventSetWait_v2(e.set, &data, C.uint(millis)))
	out := event{kind: uint64(data._type), data: uint64(data.data)}
	if data.device != nil {
		out.of = realCard{data.device}
	}
	return out, r
}

func (e realEvents) free() { C.mrn_EventSetFree(e.set) }
