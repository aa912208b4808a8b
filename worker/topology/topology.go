// Package topology is an Adapter: it finds the GPUs of this machine, selects those that this
// process may use, and finds the CPUs, memory and network cards near each. It also reads what
// network devices have carried. It reads sysfs itself and queries NVML through Library. So it also
// works, and reports the missing information, on a machine without NVML or without a GPU, and in a
// container with few permissions.
package topology

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Library is NVML or a substitute for it. Its methods may be called from any goroutine.
type Library interface {
	// Report returns all GPUs of the machine in the order of their PCI addresses.
	Report() (Report, error)
}

// Report is NVML's information about a machine. CUDA_VISIBLE_DEVICES has no influence on it.
type Report struct {
	// Driver is the driver's version, "580.159.04". CUDA is the newest version of CUDA that it
	// supports, "13.0".
	Driver, CUDA string
	GPUs         []GPU
	// Links has at [i][j] the link from GPU i to GPU j.
	Links [][]Link
	// Notes describe the information that could not be obtained.
	Notes []string
}

// GPU is a whole card.
type GPU struct {
	// Index is the index that nvidia-smi shows.
	Index int
	// UUID is in the format of nvidia-smi: "GPU-…".
	UUID, Name string
	// PCIBusID is in the format of sysfs: "0000:1b:00.0".
	PCIBusID                   string
	TotalBytes                 uint64
	ComputeMajor, ComputeMinor int
	// MIGEnabled says that the card is divided into MIG instances and that only these can be used.
	MIGEnabled bool
	Instances  []Instance
	// CPUs are the CPUs near the card according to the driver; empty if unknown.
	CPUs CPUSet
}

// Instance is a MIG instance.
type Instance struct {
	// UUID is in the format of nvidia-smi: "MIG-…".
	UUID, Name string
	TotalBytes uint64
	// GPUInstance and ComputeInstance are the numbers in the older notation, MIG-GPU-…/1/0.
	GPUInstance, ComputeInstance int
}

// Link is the connection from one GPU to another.
type Link struct {
	// NVLinks is the number of NVLinks between them, direct or through a switch.
	NVLinks int
	// P2P says that the first GPU can read the memory of the second. If it is false, Why has NVML's
	// reason.
	P2P bool
	Why string
}

// Config is the input of Discover.
type Config struct {
	// Library is nil if NVML is not available; WithoutLibrary then says why.
	Library        Library
	WithoutLibrary error
	// Known are the GPUs that the CUDA driver sees. They are used if NVML gives no information.
	Known []GPU
	// KnownLinks has at [i][j] the link from Known[i] to Known[j]; nil if the links are not known.
	KnownLinks [][]Link
	// Root is the mount point of sysfs; "" means /sys.
	Root string
	// Visible is the value of CUDA_VISIBLE_DEVICES, nil if it is not set.
	Visible *string
	// DeviceOrder is the value of CUDA_DEVICE_ORDER.
	DeviceOrder string
	// Granted and Nodes are the CPUs and NUMA nodes that this process may use. Empty Nodes mean
	// all.
	Granted CPUSet
	Nodes   CPUSet
	// NoAffinity leaves CPUs and memory as they were granted.
	NoAffinity bool
	// NetDevices is the value of UCX_NET_DEVICES, which overrides the choice of network cards.
	NetDevices string
}

// Topology is the result of Discover.
type Topology struct {
	Driver, CUDA string
	// Devices are the devices for workers, one worker each, in the order of CUDA_VISIBLE_DEVICES.
	Devices []Device
	// Links has at [i][j] the link from device i to device j; nil if the links are not known.
	Links [][]Link
	// NICs are the RDMA network cards of the machine.
	NICs []NIC
	// Wrong is the error for the first entry of CUDA_VISIBLE_DEVICES that names no device; nil if
	// there is none.
	Wrong error
	// Notes describe everything that was not found, not granted or not understood.
	Notes []string
}

// Device is a GPU or a MIG instance, with the CPUs, memory and network cards near it.
type Device struct {
	// UUID is the value that CUDA_VISIBLE_DEVICES must have for the device's worker.
	UUID string
	// GPU is the whole card. GPU.Index is not the index in the worker: there the device has index
	// 0.
	GPU GPU
	// Instance is set if the device is a MIG instance.
	Instance   *Instance
	Name       string
	TotalBytes uint64
	Placement  Placement
	// NICs are all RDMA network cards, nearest first.
	NICs []Near
	// NetDevices is the recommended value of UCX_NET_DEVICES, the ports of one or two cards; ""
	// leaves the choice to UCX.
	NetDevices string
}

// Near is a network card and its distance.
type Near struct {
	NIC      NIC
	Distance Distance
	// Bridges are the addresses of the PCI bridges between the two devices, below the bridge that
	// both share. It is empty if they share only the host bridge, or nothing.
	Bridges []string
}

// Discover finds the topology. It never fails: Notes describe the information that it could not
// find.
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

// ask returns the report of NVML or, without NVML, the information from the CUDA driver.
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

// cardsOf returns the PCI addresses of NVIDIA's display controllers.
func cardsOf(root string) (cards []string) {
	dir := filepath.Join(root, "bus/pci/devices")
	entries, _ := os.ReadDir(dir) // an error means that there is no PCI bus
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if readText(at, "vendor") == "0x10de" && strings.HasPrefix(readText(at, "class"), "0x03") {
			cards = append(cards, e.Name())
		}
	}
	return cards
}

// readText returns the text of a sysfs file without the line end, "" if it cannot be read.
func readText(elements ...string) string {
	b, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// linksOf arranges the links of a report by devices. MIG instances have no links: NVLink and P2P
// are off for them.
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

// maxRails is the largest number of cards that one worker uses at the same time.
const maxRails = 2

// chooseNICs assigns the nearest cards to each device: up to maxRails that are equally near, of one
// kind and of one rate. Devices with the same nearest cards are distributed evenly over them.
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
		rails := rails(d.NICs)
		slices.SortStableFunc(rails, func(a, b NIC) int { return cmp.Compare(given[a.Name], given[b.Name]) })
		var ports []string
		for _, nic := range rails[:min(len(rails), maxRails)] {
			given[nic.Name]++
			ports = append(ports, nic.Ports[0])
		}
		slices.Sort(ports)
		d.NetDevices = strings.Join(ports, ",")
	}
}

// rails returns the cards that a device may use together: of those with an active port the nearest,
// of these the fastest, and of these only the ones that reach the same network as the first can.
func rails(near []Near) (rails []NIC) {
	var distance Distance
	for _, n := range near { // sorted by distance
		switch {
		case len(n.NIC.Ports) == 0:
		case len(rails) > 0 && n.Distance > distance:
			return rails
		case len(rails) == 0 || n.NIC.Gigabits > rails[0].Gigabits:
			rails, distance = []NIC{n.NIC}, n.Distance
		case n.NIC.Gigabits == rails[0].Gigabits && n.NIC.LinkLayer == rails[0].LinkLayer:
			rails = append(rails, n.NIC)
		}
	}
	return rails
}
