package nvml

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/worker/topology"
)

// NVML is the initialised library. Its methods may be called from any goroutine.
type NVML struct {
	library system
}

var _ topology.Library = (*NVML)(nil)

func open(library system) (*NVML, error) {
	if r := library.init(); r != success {
		return nil, fmt.Errorf("%w: %s; look at nvidia-smi", ErrUnavailable, library.text(r))
	}
	return &NVML{library: library}, nil
}

// Close shuts the library down. REQUIRES: no other call runs.
func (n *NVML) Close() error {
	if r := n.library.shutdown(); r != success {
		return fmt.Errorf("nvml: shut down: %s", n.library.text(r))
	}
	return nil
}

// Report is part of topology.Library. It fails only if the GPUs cannot be counted. Other missing
// information is described in the report's notes.
func (n *NVML) Report() (topology.Report, error) {
	var report topology.Report
	if version, r := n.library.driverVersion(); r == success {
		report.Driver = version
	}
	if version, r := n.library.cudaDriverVersion(); r == success {
		report.CUDA = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	}
	count, r := n.library.count()
	if r != success {
		return report, fmt.Errorf("nvml: count the GPUs: %s", n.library.text(r))
	}
	note := func(format string, args ...any) {
		report.Notes = append(report.Notes, fmt.Sprintf("nvml: "+format, args...))
	}
	var devices []card
	for i := range count {
		d, r := n.library.byIndex(i)
		if r != success {
			note("GPU %d: %s; it is left out", i, n.library.text(r))
			continue
		}
		gpu, err := n.describe(i, d, note)
		if err != nil {
			note("GPU %d: %v; it is left out", i, err)
			continue
		}
		report.GPUs = append(report.GPUs, gpu)
		devices = append(devices, d)
	}
	report.Links = n.links(devices, report.GPUs)
	return report, nil
}

// describe returns the description of a GPU. It fails only if the UUID is missing.
func (n *NVML) describe(index int, d card, note func(string, ...any)) (topology.GPU, error) {
	gpu := topology.GPU{Index: index}
	var r code
	if gpu.UUID, r = d.uuid(); r != success {
		return gpu, fmt.Errorf("its UUID: %s", n.library.text(r))
	}
	missing := func(what string, r code) {
		if r != success {
			note("%s: %s: %s", gpu.UUID, what, n.library.text(r))
		}
	}
	gpu.Name, r = d.name()
	missing("name", r)
	pci, r := d.pciBusID()
	missing("PCI address", r)
	gpu.PCIBusID = busID(pci)
	_, gpu.TotalBytes, r = d.memory()
	missing("memory", r)
	gpu.ComputeMajor, gpu.ComputeMinor, r = d.computeCapability()
	missing("compute capability", r)
	// Most cards do not support MIG, and return an error.
	if enabled, r := d.migMode(); r == success && enabled {
		gpu.MIGEnabled = true
		gpu.Instances = n.instances(d, note)
	}
	// This is used only if sysfs does not list the CPUs.
	if words, r := d.nearCPUs(); r == success {
		gpu.CPUs = cpus(words)
	}
	return gpu, nil
}

func (n *NVML) instances(d card, note func(string, ...any)) (list []topology.Instance) {
	count, r := d.maxMigDevices()
	if r != success {
		note("count the MIG instances: %s", n.library.text(r))
	}
	for i := range count {
		m, r := d.migDevice(i)
		if r != success {
			continue // the count includes instances that do not exist
		}
		var in topology.Instance
		if in.UUID, r = m.uuid(); r != success {
			note("MIG instance %d: %s; it is left out", i, n.library.text(r))
			continue
		}
		in.Name, _ = m.name()
		_, in.TotalBytes, _ = m.memory()
		in.GPUInstance, _ = m.gpuInstance()
		in.ComputeInstance, _ = m.computeInstance()
		list = append(list, in)
	}
	return list
}

// busID converts NVML's format to that of sysfs: 00000000:1B:00.0 becomes 0000:1b:00.0.
func busID(pci string) string {
	domain, rest, found := strings.Cut(strings.ToLower(pci), ":")
	if !found {
		return ""
	}
	if len(domain) > 4 && strings.Trim(domain[:len(domain)-4], "0") == "" {
		domain = domain[len(domain)-4:]
	}
	return domain + ":" + rest
}

func cpus(words []uint64) (set topology.CPUSet) {
	for i, word := range words {
		for bit := range 64 {
			if word>>bit&1 == 1 {
				set = append(set, i*64+bit)
			}
		}
	}
	return set
}

// links queries every pair of GPUs. NVLinks that end at a switch connect all GPUs at the switch, if
// NVML reports NVLink for the pair.
func (n *NVML) links(devices []card, gpus []topology.GPU) [][]topology.Link {
	direct := make([]map[string]int, len(devices))
	switched := make([]int, len(devices))
	for i, d := range devices {
		direct[i] = map[string]int{}
		for l := range maxNVLinks {
			enabled, r := d.nvLinkEnabled(l)
			if r == invalidArgument || r == notSupported {
				break // there are no more links
			}
			if r != success || !enabled {
				continue
			}
			if kind, r := d.nvLinkRemoteKind(l); r == success && kind == kindGPU {
				if pci, r := d.nvLinkRemoteBusID(l); r == success {
					direct[i][busID(pci)]++
					continue
				}
			}
			// The other end is a switch, or a virtual machine hides it.
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
			status, r := a.p2pStatus(b, capsRead)
			link.P2P = r == success && status == p2pOK
			if !link.P2P {
				link.Why = n.refusal(status, r)
			}
			if link.NVLinks == 0 {
				if status, r := a.p2pStatus(b, capsNVLink); r == success && status == p2pOK {
					link.NVLinks = min(switched[i], switched[j])
				}
			}
			matrix[i][j] = link
		}
	}
	return matrix
}

func (n *NVML) refusal(status int, r code) string {
	if r != success {
		return n.library.text(r)
	}
	text := map[int]string{
		p2pChipset:      "the chipset does not support it",
		p2pGPU:          "a GPU does not support it",
		p2pTopology:     "the PCIe topology does not support it",
		p2pRegistry:     "a setting of the driver disables it",
		p2pNotSupported: "it is not supported",
	}[status]
	if text == "" {
		text = fmt.Sprintf("status %d", status)
	}
	return text
}

// Sample returns the state of a GPU or a MIG instance. Values that the driver does not report are 0
// or nil.
func (n *NVML) Sample(uuid string) (topology.Sample, error) {
	var s topology.Sample
	d, r := n.library.byUUID(uuid)
	if r != success {
		return s, fmt.Errorf("nvml: %s: %s", uuid, n.library.text(r))
	}
	if s.UsedBytes, s.TotalBytes, r = d.memory(); r != success {
		return s, fmt.Errorf("nvml: memory of %s: %s", uuid, n.library.text(r))
	}
	if gpu, memory, r := d.utilization(); r == success {
		s.UtilizationPercent, s.MemoryPercent = gpu, memory
	}
	if mhz, r := d.clockMHz(clockSM); r == success {
		s.ClockMHz = mhz
	}
	if mhz, r := d.clockMHz(clockMemory); r == success {
		s.MemoryClockMHz = mhz
	}
	if bits, r := d.throttleReasons(); r == success {
		s.Throttled = throttled(bits)
	}
	if milliwatts, r := d.milliwatts(); r == success {
		s.Watts = float64(milliwatts) / 1000
	}
	if celsius, r := d.celsius(); r == success {
		s.Celsius = celsius
	}
	if errors, r := d.eccErrors(eccCorrected); r == success {
		s.CorrectedECC = errors
	}
	if errors, r := d.eccErrors(eccUncorrected); r == success {
		s.UncorrectedECC = errors
	}
	if list, r := d.processes(); r == success {
		for _, p := range list {
			used := p.used
			if used == notReported {
				used = 0
			}
			s.Processes = append(s.Processes, topology.Process{PID: p.pid, UsedBytes: used})
		}
	}
	s.NVLink = carried(d)
	return s, nil
}

// counters reads two counters. It returns false if the driver lacks one of them.
func counters(d card, received, sent field) ([]value, bool) {
	list, r := d.fields([]field{received, sent})
	return list, r == success && list[0].code == success && list[1].code == success
}

// carried returns the bytes of all NVLinks, nil for a GPU that has none.
func carried(d card) *topology.Carried {
	list, ok := counters(d, field{fieldNVLinkReceived, allLinks}, field{fieldNVLinkSent, allLinks})
	if !ok {
		return nil
	}
	const kib = 1024
	return &topology.Carried{ReceivedBytes: list[0].number * kib, SentBytes: list[1].number * kib}
}

const (
	// pcieWindow is the time between two looks at the counters of PCIe.
	pcieWindow = 10 * time.Millisecond
	// pcieLongest is the longest time between two looks that are compared. A counter of 32 bits
	// wraps after 33 ms at 128 GB/s; if it wrapped twice, the rate would be wrong.
	pcieLongest = 30 * time.Millisecond
	// pcieLooks limits the looks of one sample on a machine that is too busy for pcieLongest.
	pcieLooks = 3

	microsPerSecond = 1e6
)

// PCIe measures what a GPU carries over PCIe now, which takes pcieWindow or a few times that. It
// returns nil if the driver does not count it.
func (n *NVML) PCIe(uuid string) *topology.Rates {
	d, r := n.library.byUUID(uuid)
	if r != success {
		return nil
	}
	look := func() ([]value, bool) {
		return counters(d, field{id: fieldPCIeReceived}, field{id: fieldPCIeSent})
	}
	before, ok := look()
	for range pcieLooks {
		if !ok {
			return nil
		}
		time.Sleep(pcieWindow)
		var after []value
		if after, ok = look(); !ok {
			return nil
		}
		received, first := rate(before[0], after[0])
		sent, second := rate(before[1], after[1])
		if first && second {
			return &topology.Rates{Received: received, Sent: sent}
		}
		before = after
	}
	return nil
}

// rate returns the bytes per second between two looks at a counter. It returns false if their
// distance in time is of no use.
func rate(before, after value) (float64, bool) {
	micros := after.micros - before.micros
	if micros <= 0 || micros > pcieLongest.Microseconds() {
		return 0, false
	}
	moved := after.number - before.number
	if after.narrow {
		moved = uint64(uint32(moved))
	}
	return float64(moved) / float64(micros) * microsPerSecond, true
}

// instancesOf returns the UUIDs of the MIG instances that an event concerns; none for a whole card.
func (n *NVML) instancesOf(e event) (uuids []string) {
	if enabled, r := e.of.migMode(); r != success || !enabled {
		return nil
	}
	for _, i := range n.instances(e.of, func(string, ...any) {}) {
		if e.instance < 0 || i.GPUInstance == e.instance {
			uuids = append(uuids, i.UUID)
		}
	}
	return uuids
}

func throttled(bits uint64) (names []string) {
	for _, reason := range []struct {
		bit  uint64
		name string
	}{
		{slowPowerCap, "power cap"},
		{slowHardware, "hardware slowdown"},
		{slowThermal, "temperature"},
		{slowHardwareThermal, "temperature, by the hardware"},
		{slowPowerBrake, "power brake"},
	} {
		if bits&reason.bit != 0 {
			names = append(names, reason.name)
		}
	}
	return names
}

// watchMillis is how long NVML waits for an event before Watch checks its context.
const watchMillis = 500

// Watch calls report for each Xid and each uncorrectable memory error until the context ends; then
// it returns nil. An error means that events are not watched any more, or that the system has no
// such events.
func (n *NVML) Watch(ctx context.Context, report func(topology.Event)) error {
	set, r := n.library.newEvents()
	if r != success {
		return fmt.Errorf("nvml: event set: %s", n.library.text(r))
	}
	defer set.free()
	count, r := n.library.count()
	if r != success {
		return fmt.Errorf("nvml: count the GPUs: %s", n.library.text(r))
	}
	watched := 0
	for i := range count {
		d, r := n.library.byIndex(i)
		if r != success {
			continue
		}
		kinds, r := d.eventTypes()
		kinds &= eventXid | eventDoubleBitECC
		if r == success && kinds != 0 && set.register(d, kinds) == success {
			watched++
		}
	}
	if watched == 0 {
		return fmt.Errorf("nvml: none of the %d GPUs reports Xid or ECC errors", count)
	}
	for ctx.Err() == nil {
		data, r := set.wait(watchMillis)
		if r == timedOut {
			continue
		}
		if r != success {
			return fmt.Errorf("nvml: wait for events: %s", n.library.text(r))
		}
		event := topology.Event{Kind: topology.Xid, Xid: data.data}
		if data.kind == eventDoubleBitECC {
			event = topology.Event{Kind: topology.ECC}
		}
		if data.of != nil {
			// A lost GPU has no UUID: then the event concerns all GPUs.
			event.UUID, _ = data.of.uuid()
			event.Instances = n.instancesOf(data)
		}
		report(event)
	}
	return nil
}
