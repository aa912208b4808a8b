package web

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/memory/ledger"
)

// Figures are the state of a worker.
type Figures struct {
	// Tiers are the worker's memory, the slab first, and Slab has more about the slab.
	Tiers []ledger.TierState
	Slab  ledger.Stats
	// Paths are what each path has carried from other workers.
	Paths []Path
	// SentBytes were sent to others.
	SentBytes uint64
	// Executors are the processes of each kind, and ExecutorDeaths counts those that died.
	Executors      []Executor
	ExecutorDeaths uint64
	// NVLink is what the GPU has carried in bytes, PCIe what it carries in bytes per second. Nil:
	// it is not known.
	NVLink, PCIe *Link
	// NetworkDevices are those by which the worker reaches others.
	NetworkDevices []NetworkDevice
}

// NetworkDevice is what a network device has carried, for all programs of the host.
type NetworkDevice struct {
	Name                     string
	ReceivedBytes, SentBytes uint64
}

// Link is what a GPU receives and sends over one kind of link.
type Link struct {
	Received, Sent float64
}

// Path is what one path has carried since the start.
type Path struct {
	Name                     string
	Succeeded, Failed, Bytes uint64
}

// Executor counts the processes of one kind of executor.
type Executor struct {
	Kind                 string
	Working, Idle, Spare int
}

// collector reads the figures when Prometheus scrapes them.
type collector struct {
	figures                                                              func() Figures
	used, limit, objects, evictable, written, read, failing              *prometheus.Desc
	slabObjects, slabFree, slabLargestFree, slabWaiting, slabWaitingSize *prometheus.Desc
	received, fetches, sent, processes, deaths                           *prometheus.Desc
	nvlinkReceived, nvlinkSent, pcieReceived, pcieSent                   *prometheus.Desc
	networkReceived, networkSent                                         *prometheus.Desc
}

func newCollector(c Config) *collector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_"+name, help, labels, prometheus.Labels{"worker": c.Worker})
	}
	return &collector{
		figures:         c.Figures,
		used:            describe("memory_used_bytes", "Bytes in use.", "tier"),
		limit:           describe("memory_limit_bytes", "Capacity.", "tier"),
		objects:         describe("memory_object_bytes", "Bytes of objects.", "tier"),
		evictable:       describe("memory_evictable_bytes", "Bytes of objects that may leave the tier.", "tier"),
		written:         describe("memory_written_bytes_total", "Bytes that were moved down to the tier.", "tier"),
		read:            describe("memory_read_bytes_total", "Bytes that were read back from the tier.", "tier"),
		failing:         describe("memory_failing", "1 while the tier cannot be written.", "tier"),
		slabObjects:     describe("slab_objects", "Objects that the slab or the tiers below it hold."),
		slabFree:        describe("slab_free_bytes", "Bytes of the slab that nothing uses."),
		slabLargestFree: describe("slab_largest_free_bytes", "Largest free piece of the slab."),
		slabWaiting:     describe("slab_waiting_requests", "Requests that wait for room in the slab."),
		slabWaitingSize: describe("slab_waiting_bytes", "Bytes that these requests ask for."),
		received:        describe("transfer_received_bytes_total", "Bytes that came from other workers, by path.", "path"),
		fetches:         describe("transfer_fetches_total", "Fetches from other workers that have ended.", "path", "outcome"),
		sent:            describe("transfer_sent_bytes_total", "Bytes that went to other workers and clients."),
		processes:       describe("executor_processes", "Processes of executors.", "kind", "state"),
		deaths:          describe("executor_deaths_total", "Processes of executors that died."),
		nvlinkReceived:  describe("gpu_nvlink_received_bytes_total", "Bytes that the GPU received over NVLink since its driver was loaded."),
		nvlinkSent:      describe("gpu_nvlink_sent_bytes_total", "Bytes that the GPU sent over NVLink since its driver was loaded."),
		pcieReceived:    describe("gpu_pcie_received_bytes_per_second", "Rate at which the GPU receives over PCIe."),
		pcieSent:        describe("gpu_pcie_sent_bytes_per_second", "Rate at which the GPU sends over PCIe."),
		networkReceived: describe("network_received_bytes_total", "Bytes that a network device received for all programs since its driver was loaded.", "device"),
		networkSent:     describe("network_sent_bytes_total", "Bytes that a network device sent for all programs since its driver was loaded.", "device"),
	}
}

// Describe is part of prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		c.used, c.limit, c.objects, c.evictable, c.written, c.read, c.failing, c.slabObjects, c.slabFree, c.slabLargestFree, c.slabWaiting, c.slabWaitingSize,
		c.received, c.fetches, c.sent, c.processes, c.deaths, c.nvlinkReceived, c.nvlinkSent, c.pcieReceived, c.pcieSent, c.networkReceived, c.networkSent,
	} {
		to <- desc
	}
}

// Collect is part of prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	counter := func(desc *prometheus.Desc, value uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	f := c.figures()
	for i := range f.Tiers {
		t := &f.Tiers[i]
		gauge(c.used, float64(t.UsedBytes), t.Name)
		gauge(c.limit, float64(t.SizeBytes), t.Name)
		gauge(c.objects, float64(t.HeldBytes), t.Name)
		gauge(c.evictable, float64(t.EvictableBytes), t.Name)
		if i == 0 {
			continue // Tiers below it are written and read.
		}
		counter(c.written, t.OutBytes, t.Name)
		counter(c.read, t.InBytes, t.Name)
		failing := 0.0
		if t.Failed != nil {
			failing = 1
		}
		gauge(c.failing, failing, t.Name)
	}
	gauge(c.slabObjects, float64(f.Slab.Objects))
	gauge(c.slabFree, float64(f.Slab.FreeBytes))
	gauge(c.slabLargestFree, float64(f.Slab.LargestFreeBytes))
	gauge(c.slabWaiting, float64(f.Slab.Waiting))
	gauge(c.slabWaitingSize, float64(f.Slab.WaitingBytes))
	for _, p := range f.Paths {
		counter(c.received, p.Bytes, p.Name)
		counter(c.fetches, p.Succeeded, p.Name, "succeeded")
		counter(c.fetches, p.Failed, p.Name, "failed")
	}
	counter(c.sent, f.SentBytes)
	for _, x := range f.Executors {
		gauge(c.processes, float64(x.Working), x.Kind, "working")
		gauge(c.processes, float64(x.Idle), x.Kind, "idle")
		gauge(c.processes, float64(x.Spare), x.Kind, "spare")
	}
	counter(c.deaths, f.ExecutorDeaths)
	if f.NVLink != nil {
		counter(c.nvlinkReceived, uint64(f.NVLink.Received))
		counter(c.nvlinkSent, uint64(f.NVLink.Sent))
	}
	if f.PCIe != nil {
		gauge(c.pcieReceived, f.PCIe.Received)
		gauge(c.pcieSent, f.PCIe.Sent)
	}
	for _, d := range f.NetworkDevices {
		counter(c.networkReceived, d.ReceivedBytes, d.Name)
		counter(c.networkSent, d.SentBytes, d.Name)
	}
}

// buildInfo is 1, with the version as a label, as the scheduler has it.
func buildInfo(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_build_info", Help: "1, with the version of the program as a label.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	}, func() float64 { return 1 })
}
