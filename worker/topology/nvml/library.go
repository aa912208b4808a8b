//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const defaultLibrary = "libnvidia-ml.so.1"

// loaded is the library of this process. go-nvml's calls are bound to the first library that is
// loaded.
var loaded struct {
	sync.Mutex
	name    string              // guarded by Mutex
	symbols *dl.DynamicLibrary  // guarded by Mutex; never closed
	missing map[string]struct{} // written before name is set
	calls   nvml.Interface      // written before name is set
}

// Open loads and initialises the library; "" means libnvidia-ml.so.1.
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
		if err := load(library); err != nil {
			return nil, fmt.Errorf("%w: %w; install NVIDIA's driver or, in a container, let its runtime mount libnvidia-ml.so.1", ErrUnavailable, err)
		}
		loaded.name = library
	}
	return open(nvmlLibrary{calls: loaded.calls, missing: loaded.missing})
}

// needed are the functions that every NVML library has.
var needed = []string{"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString"}

// used are the functions that may be missing in the library of an old driver. A call of a missing
// function ends the process, since go-nvml lets the dynamic linker resolve it. If there are several
// versions, go-nvml calls the newest that exists, so any of them is sufficient.
var used = [][]string{
	{"nvmlSystemGetDriverVersion"}, {"nvmlSystemGetCudaDriverVersion_v2"},
	{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	{"nvmlDeviceGetHandleByUUID"}, {"nvmlDeviceGetUUID"}, {"nvmlDeviceGetName"},
	{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"}, {"nvmlDeviceGetMemoryInfo"},
	{"nvmlDeviceGetCudaComputeCapability"}, {"nvmlDeviceGetMigMode"}, {"nvmlDeviceGetMaxMigDeviceCount"},
	{"nvmlDeviceGetMigDeviceHandleByIndex"}, {"nvmlDeviceGetGpuInstanceId"}, {"nvmlDeviceGetComputeInstanceId"},
	{"nvmlDeviceGetCpuAffinityWithinScope"}, {"nvmlDeviceGetNvLinkState"}, {"nvmlDeviceGetNvLinkRemoteDeviceType"},
	{"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo"}, {"nvmlDeviceGetP2PStatus"},
	{"nvmlDeviceGetUtilizationRates"}, {"nvmlDeviceGetClockInfo"}, {"nvmlDeviceGetCurrentClocksThrottleReasons"},
	{"nvmlDeviceGetPowerUsage"}, {"nvmlDeviceGetTemperature"}, {"nvmlDeviceGetTotalEccErrors"},
	{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"},
	{"nvmlDeviceGetSupportedEventTypes"}, {"nvmlDeviceRegisterEvents"}, {"nvmlEventSetCreate"}, {"nvmlEventSetFree"},
	{"nvmlEventSetWait_v2", "nvmlEventSetWait"}, {"nvmlDeviceGetFieldValues"},
}

// load finds out which functions the library has, before go-nvml calls any of them.
// REQUIRES: loaded is locked.
func load(library string) error {
	symbols := dl.New(library, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := symbols.Open(); err != nil {
		return err
	}
	for _, name := range needed {
		if symbols.Lookup(name) != nil {
			_ = symbols.Close() // no function of it is in use
			return fmt.Errorf("%s has no %s: it is no NVML", library, name)
		}
	}
	missing := map[string]struct{}{}
	for _, versions := range used {
		if !slices.ContainsFunc(versions, func(name string) bool { return symbols.Lookup(name) == nil }) {
			missing[versions[0]] = struct{}{}
		}
	}
	loaded.symbols, loaded.missing, loaded.calls = symbols, missing, nvml.New(nvml.WithLibraryPath(library))
	return nil
}

// nvmlLibrary is the system that calls the library with go-nvml.
type nvmlLibrary struct {
	calls   nvml.Interface
	missing map[string]struct{}
}

// functionNotFound is the code that NVML itself returns for a function that a driver lacks.
const functionNotFound = code(nvml.ERROR_FUNCTION_NOT_FOUND)

// has reports whether a function can be called. The name is that of its newest version.
func (l nvmlLibrary) has(name string) bool {
	_, missing := l.missing[name]
	return !missing
}

func (l nvmlLibrary) init() code         { return code(l.calls.Init()) }
func (l nvmlLibrary) shutdown() code     { return code(l.calls.Shutdown()) }
func (l nvmlLibrary) text(c code) string { return nvml.Return(c).Error() }

func (l nvmlLibrary) driverVersion() (string, code) {
	if !l.has("nvmlSystemGetDriverVersion") {
		return "", functionNotFound
	}
	v, r := l.calls.SystemGetDriverVersion()
	return v, code(r)
}

func (l nvmlLibrary) cudaDriverVersion() (int, code) {
	if !l.has("nvmlSystemGetCudaDriverVersion_v2") {
		return 0, functionNotFound
	}
	v, r := l.calls.SystemGetCudaDriverVersion_v2()
	return v, code(r)
}

func (l nvmlLibrary) count() (int, code) {
	if !l.has("nvmlDeviceGetCount_v2") {
		return 0, functionNotFound
	}
	n, r := l.calls.DeviceGetCount()
	return n, code(r)
}

func (l nvmlLibrary) byIndex(i int) (card, code) {
	if !l.has("nvmlDeviceGetHandleByIndex_v2") {
		return nil, functionNotFound
	}
	d, r := l.calls.DeviceGetHandleByIndex(i)
	return nvmlCard{l, d}, code(r)
}

func (l nvmlLibrary) byUUID(uuid string) (card, code) {
	if !l.has("nvmlDeviceGetHandleByUUID") {
		return nil, functionNotFound
	}
	d, r := l.calls.DeviceGetHandleByUUID(uuid)
	return nvmlCard{l, d}, code(r)
}

func (l nvmlLibrary) newEvents() (events, code) {
	for _, name := range []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2"} {
		if !l.has(name) {
			return nil, functionNotFound
		}
	}
	set, r := l.calls.EventSetCreate()
	return nvmlEvents{l, set}, code(r)
}

// nvmlCard is a card of go-nvml.
type nvmlCard struct {
	library nvmlLibrary
	d       nvml.Device
}

func (g nvmlCard) uuid() (string, code) {
	if !g.library.has("nvmlDeviceGetUUID") {
		return "", functionNotFound
	}
	s, r := g.d.GetUUID()
	return s, code(r)
}

func (g nvmlCard) name() (string, code) {
	if !g.library.has("nvmlDeviceGetName") {
		return "", functionNotFound
	}
	s, r := g.d.GetName()
	return s, code(r)
}

func (g nvmlCard) pciBusID() (string, code) {
	if !g.library.has("nvmlDeviceGetPciInfo_v3") {
		return "", functionNotFound
	}
	pci, r := g.d.GetPciInfo()
	return textOf(pci.BusId), code(r)
}

// textOf returns the text that C wrote into an array of characters.
func textOf(b [32]uint8) string {
	n := slices.Index(b[:], 0)
	if n < 0 {
		n = len(b)
	}
	return string(b[:n])
}

func (g nvmlCard) memory() (used, total uint64, c code) {
	if !g.library.has("nvmlDeviceGetMemoryInfo") {
		return 0, 0, functionNotFound
	}
	m, r := g.d.GetMemoryInfo()
	return m.Used, m.Total, code(r)
}

func (g nvmlCard) computeCapability() (major, minor int, c code) {
	if !g.library.has("nvmlDeviceGetCudaComputeCapability") {
		return 0, 0, functionNotFound
	}
	major, minor, r := g.d.GetCudaComputeCapability()
	return major, minor, code(r)
}

func (g nvmlCard) migMode() (bool, code) {
	if !g.library.has("nvmlDeviceGetMigMode") {
		return false, functionNotFound
	}
	now, _, r := g.d.GetMigMode()
	return now == nvml.DEVICE_MIG_ENABLE, code(r)
}

func (g nvmlCard) maxMigDevices() (int, code) {
	if !g.library.has("nvmlDeviceGetMaxMigDeviceCount") {
		return 0, functionNotFound
	}
	n, r := g.d.GetMaxMigDeviceCount()
	return n, code(r)
}

func (g nvmlCard) migDevice(i int) (card, code) {
	if !g.library.has("nvmlDeviceGetMigDeviceHandleByIndex") {
		return nil, functionNotFound
	}
	d, r := g.d.GetMigDeviceHandleByIndex(i)
	return nvmlCard{g.library, d}, code(r)
}

func (g nvmlCard) gpuInstance() (int, code) {
	if !g.library.has("nvmlDeviceGetGpuInstanceId") {
		return 0, functionNotFound
	}
	n, r := g.d.GetGpuInstanceId()
	return n, code(r)
}

func (g nvmlCard) computeInstance() (int, code) {
	if !g.library.has("nvmlDeviceGetComputeInstanceId") {
		return 0, functionNotFound
	}
	n, r := g.d.GetComputeInstanceId()
	return n, code(r)
}

func (g nvmlCard) nearCPUs() ([]uint64, code) {
	if !g.library.has("nvmlDeviceGetCpuAffinityWithinScope") {
		return nil, functionNotFound
	}
	// 16 words are 1024 CPUs. NB: go-nvml divides the number by the bytes of a word, not by its
	// bits.
	const words = 16
	set, r := g.d.GetCpuAffinityWithinScope(words*int(unsafe.Sizeof(uint(0))), nvml.AFFINITY_SCOPE_NODE)
	out := make([]uint64, len(set))
	for i, w := range set {
		out[i] = uint64(w)
	}
	return out, code(r)
}

func (g nvmlCard) nvLinkEnabled(link int) (bool, code) {
	if !g.library.has("nvmlDeviceGetNvLinkState") {
		return false, notSupported
	}
	s, r := g.d.GetNvLinkState(link)
	return s == nvml.FEATURE_ENABLED, code(r)
}

func (g nvmlCard) nvLinkRemoteKind(link int) (int, code) {
	if !g.library.has("nvmlDeviceGetNvLinkRemoteDeviceType") {
		return 0, functionNotFound
	}
	kind, r := g.d.GetNvLinkRemoteDeviceType(link)
	return int(kind), code(r)
}

func (g nvmlCard) nvLinkRemoteBusID(link int) (string, code) {
	if !g.library.has("nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		return "", functionNotFound
	}
	pci, r := g.d.GetNvLinkRemotePciInfo(link)
	return textOf(pci.BusId), code(r)
}

func (g nvmlCard) p2pStatus(other card, caps int) (int, code) {
	if !g.library.has("nvmlDeviceGetP2PStatus") {
		return 0, functionNotFound
	}
	status, r := g.d.GetP2PStatus(other.(nvmlCard).d, nvml.GpuP2PCapsIndex(caps))
	return int(status), code(r)
}

func (g nvmlCard) utilization() (gpu, memory int, c code) {
	if !g.library.has("nvmlDeviceGetUtilizationRates") {
		return 0, 0, functionNotFound
	}
	u, r := g.d.GetUtilizationRates()
	return int(u.Gpu), int(u.Memory), code(r)
}

func (g nvmlCard) clockMHz(kind int) (int, code) {
	if !g.library.has("nvmlDeviceGetClockInfo") {
		return 0, functionNotFound
	}
	n, r := g.d.GetClockInfo(nvml.ClockType(kind))
	return int(n), code(r)
}

func (g nvmlCard) throttleReasons() (uint64, code) {
	if !g.library.has("nvmlDeviceGetCurrentClocksThrottleReasons") {
		return 0, functionNotFound
	}
	bits, r := g.d.GetCurrentClocksThrottleReasons()
	return bits, code(r)
}

func (g nvmlCard) milliwatts() (int, code) {
	if !g.library.has("nvmlDeviceGetPowerUsage") {
		return 0, functionNotFound
	}
	n, r := g.d.GetPowerUsage()
	return int(n), code(r)
}

func (g nvmlCard) celsius() (int, code) {
	if !g.library.has("nvmlDeviceGetTemperature") {
		return 0, functionNotFound
	}
	n, r := g.d.GetTemperature(nvml.TEMPERATURE_GPU)
	return int(n), code(r)
}

func (g nvmlCard) eccErrors(kind int) (uint64, code) {
	if !g.library.has("nvmlDeviceGetTotalEccErrors") {
		return 0, functionNotFound
	}
	// Volatile counts begin when the driver is loaded.
	n, r := g.d.GetTotalEccErrors(nvml.MemoryErrorType(kind), nvml.VOLATILE_ECC)
	return n, code(r)
}

func (g nvmlCard) processes() ([]process, code) {
	if !g.library.has("nvmlDeviceGetComputeRunningProcesses_v3") {
		return nil, functionNotFound
	}
	list, r := g.d.GetComputeRunningProcesses()
	var out []process
	for _, p := range list {
		out = append(out, process{int(p.Pid), p.UsedGpuMemory})
	}
	return out, code(r)
}

func (g nvmlCard) eventTypes() (uint64, code) {
	if !g.library.has("nvmlDeviceGetSupportedEventTypes") || !g.library.has("nvmlDeviceRegisterEvents") {
		return 0, functionNotFound
	}
	kinds, r := g.d.GetSupportedEventTypes()
	return kinds, code(r)
}

func (g nvmlCard) fields(list []field) ([]value, code) {
	if !g.library.has("nvmlDeviceGetFieldValues") {
		return nil, functionNotFound
	}
	raw := make([]nvml.FieldValue, len(list))
	for i, f := range list {
		raw[i] = nvml.FieldValue{FieldId: f.id, ScopeId: f.scope}
	}
	if r := g.d.GetFieldValues(raw); code(r) != success {
		return nil, code(r)
	}
	out := make([]value, len(list))
	for i := range raw {
		v := &raw[i]
		out[i] = value{micros: v.Timestamp, code: code(v.NvmlReturn)}
		switch v.ValueType {
		case uint32(nvml.VALUE_TYPE_UNSIGNED_INT):
			out[i].number, out[i].narrow = uint64(binary.NativeEndian.Uint32(v.Value[:])), true
		case uint32(nvml.VALUE_TYPE_UNSIGNED_LONG), uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG):
			out[i].number = binary.NativeEndian.Uint64(v.Value[:])
		default:
			out[i].code = max(out[i].code, notSupported) // it is no counter
		}
	}
	return out, success
}

// nvmlEvents is an event set of go-nvml.
type nvmlEvents struct {
	library nvmlLibrary
	set     nvml.EventSet
}

func (e nvmlEvents) register(of card, kinds uint64) code {
	return code(of.(nvmlCard).d.RegisterEvents(kinds, e.set))
}

func (e nvmlEvents) wait(millis int) (event, code) {
	data, r := e.set.Wait(uint32(millis))
	out := event{kind: data.EventType, data: data.EventData, instance: int(int32(data.GpuInstanceId))}
	if code(r) == success {
		// There may be no device: then its UUID cannot be read.
		out.of = nvmlCard{e.library, data.Device}
	}
	return out, code(r)
}

func (e nvmlEvents) free() { _ = e.set.Free() } // no goroutine waits for the set any more
