// Package topology is an Adapter: what GPUs this machine has, which of them are
// ours, and what of the machine lies near each: processors, memory, the network
// card. It reads sysfs itself and asks NVML through Library, so that it works,
// and says what it lacks, where there is no NVML, no GPU, or a container that
// grants little.
package topology

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Library is NVML, or what stands for it. Its methods may be called from any
// goroutine.
type Library interface {
	// Report lists all GPUs of the machine in the order of their PCI addresses.
	Report() (Report, error)
}

// Report is what NVML says of a machine. CUDA_VISIBLE_DEVICES means nothing to
// it.
type Report struct {
	// Driver is "580.159.04", CUDA the newest version that it knows, "13.0".
	Driver, CUDA string
	GPUs         []GPU
	// Links says at [i][j] how GPU i reaches GPU j.
	Links [][]Link
	// Notes are what could not be asked.
	Notes []string
}

// GPU is a whole card.
type GPU struct {
	// Index is nvidia-smi's.
	Index int
	// UUID as in nvidia-smi: "GPU-…".
	UUID, Name string
	// PCIBusID as in sysfs, "0000:1b:00.0".
	PCIBusID                   string
	TotalBytes                 uint64
	ComputeMajor, ComputeMinor int
	// MIGEnabled: the card is cut up, and only its instances can be used.
	MIGEnabled bool
	Instances  []Instance
	// CPUs are the processors near it as the driver knows them, empty if unknown.
	CPUs CPUSet
}

// Instance is a MIG instance.
type Instance struct {
	// UUID as in nvidia-smi: "MIG-…".
	UUID, Name string
	TotalBytes uint64
	// GPUInstance and ComputeInstance are the numbers of the older notation,
	// MIG-GPU-…/1/0.
	GPUInstance, ComputeInstance int
}

// Link is how one GPU reaches another one.
type Link struct {
	// NVLinks is how many links lie between them, through a switch or directly.
	NVLinks int
	// P2P: the one can read the other's memory; if not, Why says what NVML does.
	P2P bool
	Why string
}

// Config is what Discover looks at.
type Config struct {
	// Library is nil where NVML cannot be had; WithoutLibrary says why.
	Library        Library
	WithoutLibrary error
	// Known are the GPUs that the CUDA driver sees, used where NVML says nothing.
	Known []GPU
	// KnownLinks says at [i][j] how the one reaches the other; nil if it is not known.
	KnownLinks [][]Link
	// Root is where sysfs is mounted; "" is /sys.
	Root string
	// Visible is the value of CUDA_VISIBLE_DEVICES, nil if it is not set.
	Visible *string
	// DeviceOrder is the value of CUDA_DEVICE_ORDER.
	DeviceOrder string
	// Granted are the processors and memory nodes that this process may use.
	// Empty nodes: all.
	Granted CPUSet
	Nodes   CPUSet
	// NoAffinity leaves processors and memory as they were granted.
	NoAffinity bool
	// NetDevices is the value of UCX_NET_DEVICES: it overrides the choice.
	NetDevices string
}

// Topology is what was found.
type Topology struct {
	Driver, CUDA string
	// Devices are what workers can be started on, one each, in the order in which
	// CUDA_VISIBLE_DEVICES names them.
	Devices []Device
	// Links says at [i][j] how device i reaches device j. Nil if it is not known.
	Links [][]Link
	// NICs are the RDMA cards of the machine.
	NICs []NIC
	// Wrong says what CUDA_VISIBLE_DEVICES names that there is not.
	Wrong error
	// Notes say what was not found, not granted or not understood.
	Notes []string
}

// Device is a GPU or a MIG instance, with what lies near it.
type Device struct {
	// UUID is what CUDA_VISIBLE_DEVICES of the device's worker must be.
	UUID string
	// GPU is the whole card. GPU.Index is not the worker's: there it is 0.
	GPU GPU
	// Instance is set for a part of a card.
	Instance   *Instance
	Name       string
	TotalBytes uint64
	Placement  Placement
	// NICs are all RDMA cards, nearest first.
	NICs []Near
	// NetDevices is what UCX_NET_DEVICES should be; "" leaves the choice to UCX.
	NetDevices string
}

// Near is a network card and how far it is.
type Near struct {
	NIC      NIC
	Distance Distance
}

// Discover never fails: what it cannot find out it says in Notes.
func Discover(c Config) *Topology {
	if c.Root == "" {
		c.Root = "/sys"
	}
	t := &Topology{}
	report := t.ask(c)
	t.Driver, t.CUDA = report.Driver, report.CUDA
	pick, wrong := pickVisible(report.GPUs, c.Visible, c.DeviceOrder, t.note)
	t.Wrong = wrong
	t.NICs = findNICs(c.Root, t.note)
	for _, p := range pick {
		d := Device{UUID: p.gpu.UUID, GPU: p.gpu, Name: p.gpu.Name, TotalBytes: p.gpu.TotalBytes}
		if p.instance != nil {
			d.UUID, d.Instance, d.Name, d.TotalBytes = p.instance.UUID, p.instance, p.instance.Name, p.instance.TotalBytes
		}
		d.Placement = place(c, p.gpu)
		d.NICs = nearest(c.Root, p.gpu.PCIBusID, t.NICs)
		t.Devices = append(t.Devices, d)
	}
	t.chooseNICs(c.NetDevices)
	t.Links = linksOf(report, t.Devices)
	return t
}

func (t *Topology) note(format string, args ...any) {
	t.Notes = append(t.Notes, fmt.Sprintf(format, args...))
}

// ask returns what NVML says, or what else is known.
func (t *Topology) ask(c Config) Report {
	if c.Library != nil {
		r, err := c.Library.Report()
		if err == nil {
			t.Notes = append(t.Notes, r.Notes...)
			if len(r.GPUs) == 0 {
				t.note("nvml: no GPU")
			}
			return r
		}
		t.note("nvml: %v", err)
	} else if c.WithoutLibrary != nil {
		t.note("nvml: %v", c.WithoutLibrary)
	}
	cards := cardsOf(c.Root)
	switch {
	case len(c.Known) > 0:
		t.note("the %d GPUs are what the CUDA driver sees; NVLink, MIG and health are unknown", len(c.Known))
	case len(cards) > 0:
		t.note("sysfs has %d NVIDIA GPUs (%s), but no driver answers: look at nvidia-smi and, in a container, at the NVIDIA runtime", len(cards), strings.Join(cards, ", "))
	default:
		t.note("this machine has no NVIDIA GPU")
	}
	return Report{GPUs: c.Known, Links: c.KnownLinks}
}

// cardsOf lists the PCI addresses of NVIDIA's display controllers.
func cardsOf(root string) (cards []string) {
	dir := filepath.Join(root, "bus/pci/devices")
	entries, _ := os.ReadDir(dir) // none: no PCI bus
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if readText(at, "vendor") == "0x10de" && strings.HasPrefix(readText(at, "class"), "0x03") {
			cards = append(cards, e.Name())
		}
	}
	return cards
}

// readText returns a file of sysfs without its line end, "" if it cannot be read.
func readText(elements ...string) string {
	b, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// linksOf arranges the links of a report by devices. Instances of MIG reach
// nobody: NVLink and P2P are off for them.
func linksOf(r Report, devices []Device) [][]Link {
	if len(r.Links) == 0 {
		return nil
	}
	at := func(d Device) int {
		return slices.IndexFunc(r.GPUs, func(g GPU) bool { return g.UUID == d.GPU.UUID })
	}
	links := make([][]Link, len(devices))
	for i, a := range devices {
		links[i] = make([]Link, len(devices))
		for j, b := range devices {
			switch {
			case i == j:
				links[i][j] = Link{P2P: true}
			case a.Instance != nil || b.Instance != nil:
				links[i][j] = Link{Why: "MIG instances have no peer access"}
			default:
				links[i][j] = r.Links[at(a)][at(b)]
			}
		}
	}
	return links
}

// chooseNICs gives each device the nearest card; devices that are as near to the
// same cards share them out.
func (t *Topology) chooseNICs(override string) {
	if override != "" {
		t.note("UCX_NET_DEVICES=%s is set and used for all devices", override)
		for i := range t.Devices {
			t.Devices[i].NetDevices = override
		}
		return
	}
	given := map[string]int{}
	for i := range t.Devices {
		d := &t.Devices[i]
		var best []Near
		for _, n := range d.NICs {
			if len(n.NIC.Ports) > 0 && (len(best) == 0 || n.Distance == best[0].Distance) {
				best = append(best, n)
			}
		}
		if len(best) == 0 {
			continue
		}
		slices.SortStableFunc(best, func(a, b Near) int { return cmp.Compare(given[a.NIC.Name], given[b.NIC.Name]) })
		nic := best[0].NIC
		given[nic.Name]++
		d.NetDevices = nic.Ports[0]
	}
}
