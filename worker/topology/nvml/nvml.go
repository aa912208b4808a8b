//go:build cgo && linux

package nvml

import (
	"context"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/millrace/millrace/worker/topology"
)

// NVML is the initialised library. Its methods may be called from any goroutine.
type NVML struct {
	library nvml.Interface
}

var _ topology.Library = (*NVML)(nil)

// Open loads and initialises the library; "" is libnvidia-ml.so.1.
func Open(library string) (*NVML, error) {
	var options []nvml.LibraryOption
	if library != "" {
		options = append(options, nvml.WithLibraryPath(library))
	}
	return open(nvml.New(options...))
}

func open(library nvml.Interface) (*NVML, error) {
	if r := library.Init(); r != nvml.SUCCESS {
		remedy := "look at nvidia-smi"
		if r == nvml.ERROR_LIBRARY_NOT_FOUND {
			remedy = "install NVIDIA's driver or, in a container, let its runtime mount libnvidia-ml.so.1"
		}
		return nil, fmt.Errorf("%w: %s; %s", ErrUnavailable, r.Error(), remedy)
	}
	return &NVML{library: library}, nil
}

// Close shuts the library down. REQUIRES: no other call runs.
func (n *NVML) Close() error {
	if r := n.library.Shutdown(); r != nvml.SUCCESS {
		return fmt.Errorf("nvml: shut down: %s", r.Error())
	}
	return nil
}

// Report is part of topology.Library. It fails only if the GPUs cannot be
// listed; what else is missing is in the report's notes.
func (n *NVML) Report() (topology.Report, error) {
	var report topology.Report
	if version, r := n.library.SystemGetDriverVersion(); r == nvml.SUCCESS {
		report.Driver = version
	}
	if version, r := n.library.SystemGetCudaDriverVersion(); r == nvml.SUCCESS {
		report.CUDA = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	}
	count, r := n.library.DeviceGetCount()
	if r != nvml.SUCCESS {
		return report, fmt.Errorf("nvml: count the GPUs: %s", r.Error())
	}
	note := func(format string, args ...any) {
		report.Notes = append(report.Notes, fmt.Sprintf("nvml: "+format, args...))
	}
	var devices []nvml.Device
	for i := range count {
		d, r := n.library.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			note("GPU %d: %s; it is left out", i, r.Error())
			continue
		}
		gpu, err := describe(i, d, note)
		if err != nil {
			note("GPU %d: %v; it is left out", i, err)
			continue
		}
		report.GPUs = append(report.GPUs, gpu)
		devices = append(devices, d)
	}
	report.Links = links(devices, report.GPUs)
	return report, nil
}

// describe needs the UUID; the rest may be missing.
func describe(index int, d nvml.Device, note func(string, ...any)) (topology.GPU, error) {
	gpu := topology.GPU{Index: index}
	var r nvml.Return
	if gpu.UUID, r = d.GetUUID(); r != nvml.SUCCESS {
		return gpu, fmt.Errorf("its UUID: %s", r.Error())
	}
	missing := func(what string, r nvml.Return) {
		if r != nvml.SUCCESS {
			note("%s: %s: %s", gpu.UUID, what, r.Error())
		}
	}
	gpu.Name, r = d.GetName()
	missing("name", r)
	pci, r := d.GetPciInfo()
	missing("PCI address", r)
	gpu.PCIBusID = busID(pci)
	info, r := d.GetMemoryInfo()
	missing("memory", r)
	gpu.TotalBytes = info.Total
	gpu.ComputeMajor, gpu.ComputeMinor, r = d.GetCudaComputeCapability()
	missing("compute capability", r)
	// Most cards cannot be cut up, and say so.
	if mode, _, r := d.GetMigMode(); r == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
		gpu.MIGEnabled = true
		gpu.Instances = instances(d, note)
	}
	// sysfs knows this better, where it is there; 16 words are 1024 processors.
	if words, r := d.GetCpuAffinityWithinScope(16, nvml.AFFINITY_SCOPE_NODE); r == nvml.SUCCESS {
		gpu.CPUs = cpus(words)
	}
	return gpu, nil
}

func instances(d nvml.Device, note func(string, ...any)) (list []topology.Instance) {
	count, r := d.GetMaxMigDeviceCount()
	if r != nvml.SUCCESS {
		note("count the MIG instances: %s", r.Error())
	}
	for i := range count {
		m, r := d.GetMigDeviceHandleByIndex(i)
		if r != nvml.SUCCESS {
			continue // places without an instance are counted too
		}
		var in topology.Instance
		if in.UUID, r = m.GetUUID(); r != nvml.SUCCESS {
			note("MIG instance %d: %s; it is left out", i, r.Error())
			continue
		}
		in.Name, _ = m.GetName()
		info, _ := m.GetMemoryInfo()
		in.TotalBytes = info.Total
		in.GPUInstance, _ = m.GetGpuInstanceId()
		in.ComputeInstance, _ = m.GetComputeInstanceId()
		list = append(list, in)
	}
	return list
}

// busID makes sysfs's form of NVML's: 00000000:1B:00.0 is 0000:1b:00.0.
func busID(pci nvml.PciInfo) string {
	var text strings.Builder
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		text.WriteByte(byte(c))
	}
	domain, rest, found := strings.Cut(strings.ToLower(text.String()), ":")
	if !found {
		return ""
	}
	if len(domain) > 4 && strings.Trim(domain[:len(domain)-4], "0") == "" {
		domain = domain[len(domain)-4:]
	}
	return domain + ":" + rest
}

func cpus(words []uint) (set topology.CPUSet) {
	for i, word := range words {
		for bit := range 64 {
			if word>>bit&1 == 1 {
				set = append(set, i*64+bit)
			}
		}
	}
	return set
}

// links asks every pair. Links that end at a switch reach whatever else does, as
// far as NVML says that the pair has NVLink.
func links(devices []nvml.Device, gpus []topology.GPU) [][]topology.Link {
	direct := make([]map[string]int, len(devices))
	switched := make([]int, len(devices))
	for i, d := range devices {
		direct[i] = map[string]int{}
		for l := range nvml.NVLINK_MAX_LINKS {
			state, r := d.GetNvLinkState(l)
			if r == nvml.ERROR_INVALID_ARGUMENT || r == nvml.ERROR_NOT_SUPPORTED {
				break // there are no more
			}
			if r != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
				continue
			}
			if kind, r := d.GetNvLinkRemoteDeviceType(l); r == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_GPU {
				if pci, r := d.GetNvLinkRemotePciInfo(l); r == nvml.SUCCESS {
					direct[i][busID(pci)]++
					continue
				}
			}
			// A switch; or a virtual machine that does not show what is behind.
			switched[i]++
		}
	}
	matrix := make([][]topology.Link, len(devices))
	for i, a := range devices {
		matrix[i] = make([]topology.Link, len(devices))
		for j, b := range devices {
			if i == j {
				matrix[i][j] = topology.Link{P2P: true}
				continue
			}
			link := topology.Link{NVLinks: direct[i][gpus[j].PCIBusID]}
			status, r := a.GetP2PStatus(b, nvml.P2P_CAPS_INDEX_READ)
			link.P2P = r == nvml.SUCCESS && status == nvml.P2P_STATUS_OK
			if !link.P2P {
				link.Why = refusal(status, r)
			}
			if link.NVLinks == 0 {
				if status, r := a.GetP2PStatus(b, nvml.P2P_CAPS_INDEX_NVLINK); r == nvml.SUCCESS && status == nvml.P2P_STATUS_OK {
					link.NVLinks = min(switched[i], switched[j])
				}
			}
			matrix[i][j] = link
		}
	}
	return matrix
}

func refusal(status nvml.GpuP2PStatus, r nvml.Return) string {
	if r != nvml.SUCCESS {
		return r.Error()
	}
	text := map[nvml.GpuP2PStatus]string{
		nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED:      "the chipset does not support it",
		nvml.P2P_STATUS_GPU_NOT_SUPPORTED:          "a GPU does not support it",
		nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "the PCIe topology does not support it",
		nvml.P2P_STATUS_DISABLED_BY_REGKEY:         "a setting of the driver disables it",
		nvml.P2P_STATUS_NOT_SUPPORTED:              "it is not supported",
	}[status]
	if text == "" {
		text = fmt.Sprintf("status %d", status)
	}
	return text
}

// Sample returns the state of a GPU or a MIG instance. What the driver does not
// tell is 0.
func (n *NVML) Sample(uuid string) (topology.Sample, error) {
	var s topology.Sample
	d, r := n.library.DeviceGetHandleByUUID(uuid)
	if r != nvml.SUCCESS {
		return s, fmt.Errorf("nvml: %s: %s", uuid, r.Error())
	}
	info, r := d.GetMemoryInfo()
	if r != nvml.SUCCESS {
		return s, fmt.Errorf("nvml: memory of %s: %s", uuid, r.Error())
	}
	s.UsedBytes, s.TotalBytes = info.Used, info.Total
	if u, r := d.GetUtilizationRates(); r == nvml.SUCCESS {
		s.UtilizationPercent, s.MemoryPercent = int(u.Gpu), int(u.Memory)
	}
	if mhz, r := d.GetClockInfo(nvml.CLOCK_SM); r == nvml.SUCCESS {
		s.ClockMHz = int(mhz)
	}
	if mhz, r := d.GetClockInfo(nvml.CLOCK_MEM); r == nvml.SUCCESS {
		s.MemoryClockMHz = int(mhz)
	}
	// Drivers before 535 have no such function, and calling it would end the
	// process.
	if n.library.Extensions().LookupSymbol("nvmlDeviceGetCurrentClocksEventReasons") == nil {
		if bits, r := d.GetCurrentClocksEventReasons(); r == nvml.SUCCESS {
			s.Throttled = throttled(bits)
		}
	}
	if milliwatts, r := d.GetPowerUsage(); r == nvml.SUCCESS {
		s.Watts = float64(milliwatts) / 1000
	}
	if celsius, r := d.GetTemperature(nvml.TEMPERATURE_GPU); r == nvml.SUCCESS {
		s.Celsius = int(celsius)
	}
	if errors, r := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC); r == nvml.SUCCESS {
		s.CorrectedECC = errors
	}
	if errors, r := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); r == nvml.SUCCESS {
		s.UncorrectedECC = errors
	}
	if list, r := d.GetComputeRunningProcesses(); r == nvml.SUCCESS {
		for _, p := range list {
			used := p.UsedGpuMemory
			if used == ^uint64(0) { // not told
				used = 0
			}
			s.Processes = append(s.Processes, topology.Process{PID: int(p.Pid), UsedBytes: used})
		}
	}
	return s, nil
}

func throttled(bits uint64) (names []string) {
	for _, reason := range []struct {
		bit  uint64
		name string
	}{
		{nvml.ClocksEventReasonSwPowerCap, "power cap"},
		{nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown"},
		{nvml.ClocksEventReasonSwThermalSlowdown, "temperature"},
		{nvml.ClocksThrottleReasonHwThermalSlowdown, "temperature, by the hardware"},
		{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"},
	} {
		if bits&reason.bit != 0 {
			names = append(names, reason.name)
		}
	}
	return names
}

// watchMillis is how long NVML waits for an event before Watch looks at its
// context.
const watchMillis = 500

// Watch calls report for each Xid and each uncorrectable error of memory, until
// the context ends; it then returns nil. An error means that nothing is watched
// any more, or that the system has no such events.
func (n *NVML) Watch(ctx context.Context, report func(topology.Event)) error {
	set, r := n.library.EventSetCreate()
	if r != nvml.SUCCESS {
		return fmt.Errorf("nvml: event set: %s", r.Error())
	}
	defer func() { _ = set.Free() }() // there is nothing left to do about it
	count, r := n.library.DeviceGetCount()
	if r != nvml.SUCCESS {
		return fmt.Errorf("nvml: count the GPUs: %s", r.Error())
	}
	watched := 0
	for i := range count {
		d, r := n.library.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			continue
		}
		kinds, r := d.GetSupportedEventTypes()
		kinds &= nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError
		if r == nvml.SUCCESS && kinds != 0 && d.RegisterEvents(kinds, set) == nvml.SUCCESS {
			watched++
		}
	}
	if watched == 0 {
		return fmt.Errorf("nvml: none of the %d GPUs tells of Xid or ECC errors", count)
	}
	for ctx.Err() == nil {
		data, r := set.Wait(watchMillis)
		if r == nvml.ERROR_TIMEOUT {
			continue
		}
		if r != nvml.SUCCESS {
			return fmt.Errorf("nvml: wait for events: %s", r.Error())
		}
		event := topology.Event{Kind: topology.Xid, Xid: data.EventData}
		if data.EventType == nvml.EventTypeDoubleBitEccError {
			event = topology.Event{Kind: topology.ECC}
		}
		if data.Device != nil {
			event.UUID, _ = data.Device.GetUUID() // a lost GPU has none: then it is all of them
		}
		report(event)
	}
	return nil
}
