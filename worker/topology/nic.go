package topology

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// NIC is an RDMA network card.
type NIC struct {
	// Name is the name of the RDMA device: "mlx5_0".
	Name string
	// PCIBusID is "" for a device without hardware.
	PCIBusID string
	// Ports are the active ports in UCX's format: "mlx5_0:1".
	Ports []string
	// LinkLayer is that of the first active port: "InfiniBand" or "Ethernet". Gigabits is its rate
	// per second. "" and 0 if they are not known.
	LinkLayer string
	Gigabits  float64
	// Node is its NUMA node; -1: none, or not known.
	Node int
}

// Distance is the distance between two PCI devices; a larger value is farther. The names are those
// of nvidia-smi.
type Distance int

// The distances: below the same PCIe switch, across several PCIe switches, across the host bridge,
// on the same NUMA node, any other.
const (
	PIX Distance = iota
	PXB
	PHB
	NODE
	SYS
)

// String returns the name, "PIX".
func (d Distance) String() string {
	return [...]string{"PIX", "PXB", "PHB", "NODE", "SYS"}[d]
}

func findNICs(root string, note func(string, ...any)) (nics []NIC) {
	dir := filepath.Join(root, "class/infiniband")
	entries, _ := os.ReadDir(dir) // an error means that there is no RDMA
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		n := NIC{Name: e.Name(), Node: -1}
		if path, err := filepath.EvalSymlinks(filepath.Join(at, "device")); err == nil && isPCI(filepath.Base(path)) {
			n.PCIBusID = filepath.Base(path)
			if node, err := strconv.Atoi(readText(path, "numa_node")); err == nil {
				n.Node = node
			}
		}
		ports, _ := os.ReadDir(filepath.Join(at, "ports")) // an error means that no port is active
		for _, p := range ports {
			if !strings.Contains(readText(at, "ports", p.Name(), "state"), "ACTIVE") {
				continue
			}
			if n.Ports = append(n.Ports, n.Name+":"+p.Name()); len(n.Ports) == 1 {
				n.LinkLayer, n.Gigabits = readText(at, "ports", p.Name(), "link_layer"), gigabits(readText(at, "ports", p.Name(), "rate"))
			}
		}
		if len(n.Ports) == 0 {
			note("network card %s has no active port", n.Name)
		}
		nics = append(nics, n)
	}
	return nics
}

// gigabits reads the rate of a port, "400 Gb/sec (4X NDR)". 0: it is not known.
func gigabits(rate string) float64 {
	number, _, _ := strings.Cut(rate, " ")
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return n
}

// nearest sorts the cards by their distance from a PCI device, then by name.
func nearest(root, busID string, nics []NIC) []Near {
	from := pciPath(root, busID)
	node := -1
	if n, err := strconv.Atoi(readText(root, "bus/pci/devices", busID, "numa_node")); err == nil {
		node = n
	}
	var list []Near
	for _, n := range nics {
		if n.PCIBusID == "" {
			continue // a software device has no distance
		}
		to := pciPath(root, n.PCIBusID)
		list = append(list, Near{NIC: n, Distance: distance(from, to, node, n.Node), Bridges: bridges(from, to)})
	}
	slices.SortStableFunc(list, func(a, b Near) int {
		return cmp.Or(cmp.Compare(a.Distance, b.Distance), cmp.Compare(a.NIC.Name, b.NIC.Name))
	})
	return list
}

// bridges returns the PCI bridges on the way from one device to the other, below the bridge that
// both share; nil if they share none.
func bridges(a, b []string) (between []string) {
	common := shared(a, b)
	if common < 2 {
		return nil
	}
	for _, chain := range [][]string{a, b} {
		between = append(between, chain[common:max(common, len(chain)-1)]...)
	}
	return between
}

// shared returns the length of the common beginning of two PCI paths. The first part is the host
// bridge.
func shared(a, b []string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// pciPath returns the chain from the host bridge to a device: "pci0000:16", "0000:16:01.0" and so
// on; nil if it is not known.
func pciPath(root, busID string) (chain []string) {
	if busID == "" {
		return nil
	}
	path, err := filepath.EvalSymlinks(filepath.Join(root, "bus/pci/devices", busID))
	if err != nil {
		return nil
	}
	for part := range strings.SplitSeq(path, string(filepath.Separator)) {
		if isPCI(part) || strings.HasPrefix(part, "pci") && strings.Contains(part, ":") {
			chain = append(chain, part)
		}
	}
	return chain
}

// isPCI reports whether a name is a PCI address like 0000:1b:00.0.
func isPCI(name string) bool {
	return strings.Count(name, ":") == 2 && strings.Contains(name, ".")
}

// distance compares the PCI paths and the NUMA nodes of two devices.
func distance(a, b []string, nodeA, nodeB int) Distance {
	common := shared(a, b)
	switch {
	case common == 0 && nodeA >= 0 && nodeA == nodeB:
		return NODE
	case common == 0:
		return SYS
	case common == 1:
		return PHB // they share only the host bridge
	// Below one switch, the paths share the switch's upstream port. After the shared part, each
	// path has a downstream port and the device.
	case len(a)-common <= 2 && len(b)-common <= 2:
		return PIX
	default:
		return PXB
	}
}
