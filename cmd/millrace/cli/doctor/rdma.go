package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer/ucx"
	"github.com/millrace/millrace/worker/topology"
)

// fabric makes the checks of RDMA between hosts. On a machine without RDMA devices the result is
// one finding.
func (c Config) fabric() []Finding {
	devices := c.rdmaDevices()
	if len(devices) == 0 {
		return []Finding{{Check: "rdma", State: OK, Found: "no RDMA devices: objects come from other hosts in TCP streams"}}
	}
	var findings []Finding
	for _, device := range devices {
		findings = append(findings, c.card(device))
	}
	if c.GPUs.Topology == nil {
		return append(findings, c.iommu(nil))
	}
	for _, d := range c.GPUs.Topology.Devices {
		findings = append(findings, c.direct(d), c.distance(d), c.acs(d))
	}
	return append(findings, c.iommu(c.GPUs.Topology.Devices))
}

// sysfs returns the mount point of sysfs.
func (c Config) sysfs() string { return cmp.Or(c.Sysfs, "/sys") }

// rdmaDevices returns the names of the RDMA devices.
func (c Config) rdmaDevices() (names []string) {
	entries, _ := os.ReadDir(filepath.Join(c.sysfs(), "class/infiniband")) // an error means that there is none
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// warn adds a deficiency and its remedy to a finding.
func (f *Finding) warn(found, remedy string) {
	f.State, f.Found = Warn, f.Found+"; "+found
	if !strings.Contains(f.Remedy, remedy) {
		f.Remedy = strings.TrimPrefix(f.Remedy+"; "+remedy, "; ")
	}
}

// card checks one RDMA device: its driver, its link to the processor, whether this process may open
// it, and its ports.
func (c Config) card(name string) Finding {
	f := Finding{Check: "rdma " + name, State: OK}
	at := filepath.Join(c.sysfs(), "class/infiniband", name)
	device := filepath.Join(at, "device")
	f.Found = sysfsText(at, "hca_type")
	if _, err := os.Stat(device); err != nil {
		f.Found = "a software device"
	}
	f.Found = cmp.Or(f.Found, "a device of an unknown model")
	if driver, err := os.Readlink(filepath.Join(device, "driver")); err == nil {
		f.Found += ", driver " + filepath.Base(driver)
		if version := sysfsText(c.sysfs(), "module", filepath.Base(driver), "version"); version != "" {
			f.Found += " " + version
		}
	}
	if firmware := sysfsText(at, "fw_ver"); firmware != "" {
		f.Found += ", firmware " + firmware
	}
	for _, link := range []struct{ is, best string }{{"current_link_speed", "max_link_speed"}, {"current_link_width", "max_link_width"}} {
		is, best := sysfsText(device, link.is), sysfsText(device, link.best)
		if first(is) < first(best) {
			f.warn(fmt.Sprintf("its PCI link has %s %s of %s", strings.ReplaceAll(link.is, "_", " "), is, best), "put the card into a slot that has all of its lanes, and look at lspci -vv (LnkSta)")
		}
	}
	c.opened(&f, name)
	ports := portsOf(c.sysfs(), name)
	if len(ports) == 0 {
		f.warn("it has no port", "look at the kernel's log for its driver")
	}
	for _, p := range ports {
		found, wrong := p.examine(name)
		f.Found += "; " + found
		for _, x := range wrong {
			f.warn(x[0], x[1])
		}
	}
	return f
}

// first returns the number at the beginning of a text such as "32.0 GT/s PCIe", 0 if there is none.
func first(text string) float64 {
	number, _, _ := strings.Cut(text, " ")
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return n
}

// opened checks that this process may open the device for verbs.
func (c Config) opened(f *Finding, name string) {
	const remedy = "load ib_uverbs; for containers add --device /dev/infiniband; without root, be a member of its group"
	// The pattern is well-formed, so Glob returns no error.
	verbs, _ := filepath.Glob(filepath.Join(c.sysfs(), "class/infiniband_verbs/*/ibdev"))
	at := slices.IndexFunc(verbs, func(path string) bool { return sysfsText(path) == name })
	if at < 0 {
		f.warn("the kernel offers no verbs for it", remedy)
		return
	}
	file := filepath.Join(cmp.Or(c.Dev, "/dev"), "infiniband", filepath.Base(filepath.Dir(verbs[at])))
	if err := unix.Access(file, unix.R_OK|unix.W_OK); err != nil {
		f.warn(fmt.Sprintf("%s cannot be opened: %v", file, err), remedy)
	}
}

// direct checks whether network cards may access the memory of a GPU. If they may not, its objects
// pass through pinned memory of the host.
func (c Config) direct(d topology.Device) Finding {
	f := Finding{Check: "gpu-rdma " + d.UUID, State: OK}
	attributes, err := c.attributes(d)
	if err != nil {
		f.Found = "cannot tell"
		f.warn(err.Error(), "look at gpu-driver above")
		return f
	}
	kernel := cmp.Or(c.Kernel, ucx.KernelRelease())
	if open, err := ucx.NICWays(c.sysfs(), kernel, attributes); err != nil {
		why, remedy, _ := strings.Cut(err.Error(), "; ")
		f.State, f.Found, f.Remedy = Warn, "its objects pass through pinned memory of the host: "+why, remedy
	} else {
		f.Found = fmt.Sprintf("network cards can access its memory by %s (Linux %s)", strings.Join(open, ", or by "), kernel)
	}
	c.bar(&f, d)
	return f
}

// bar checks that all of a GPU's memory lies in the window that other PCI devices see (BAR1).
func (c Config) bar(f *Finding, d topology.Device) {
	lines := strings.Split(sysfsText(c.sysfs(), "bus/pci/devices", d.GPU.PCIBusID, "resource"), "\n")
	var start, end uint64
	if len(lines) < 2 {
		return // not known
	}
	if _, err := fmt.Sscanf(lines[1], "0x%x 0x%x", &start, &end); err != nil || end <= start {
		return // not known
	}
	if size := end - start + 1; size < d.GPU.TotalBytes {
		f.warn(
			fmt.Sprintf("they see %s of its %s (BAR1), so a larger slab cannot be registered with them", humanize.IBytes(size), humanize.IBytes(d.GPU.TotalBytes)),
			"switch on `Above 4G Decoding` and `Resizable BAR` in the firmware, or lower --device-memory-limit",
		)
	}
}

// attributes asks the CUDA driver about a device.
func (c Config) attributes(d topology.Device) (cuda.Attributes, error) {
	driver, err := cuda.Load(cuda.Config{Library: c.GPUs.CUDALibrary})
	if err != nil {
		return cuda.Attributes{}, err
	}
	info, err := driver.Find(d.UUID)
	return info.Attributes, err
}

// used returns the network cards that a worker on the device uses, of those with a known distance.
func used(d topology.Device) (cards []topology.Near) {
	ports := strings.Split(d.NetDevices, ",")
	for _, n := range d.NICs {
		if slices.ContainsFunc(n.NIC.Ports, func(p string) bool { return slices.Contains(ports, p) }) {
			cards = append(cards, n)
		}
	}
	return cards
}

// ways describes the distances.
var ways = map[topology.Distance]string{
	topology.PIX:  "below the same PCI switch",
	topology.PXB:  "below the same root port, across several PCI switches",
	topology.PHB:  "across the processor (or the PCI bus that a virtual machine shows)",
	topology.NODE: "across the processor, between its host bridges",
	topology.SYS:  "across the link between processors",
}

// distance checks how far a GPU is from the network cards that its worker uses.
func (c Config) distance(d topology.Device) Finding {
	f := Finding{Check: "gpu-nic " + d.UUID, State: OK}
	cards := used(d)
	if len(cards) == 0 {
		f.Found = "its worker uses no network card with a known distance"
		if slices.ContainsFunc(c.GPUs.Topology.NICs, func(n topology.NIC) bool { return n.PCIBusID != "" }) {
			f.State, f.Remedy = Warn, "look at the ports above, and at --ucx-net-devices"
		}
		return f
	}
	var texts []string
	for _, n := range cards {
		texts = append(texts, fmt.Sprintf("%s (%s) at distance %s: %s", n.NIC.Name, n.NIC.PCIBusID, n.Distance, ways[n.Distance]))
		if n.Distance == topology.SYS {
			f.State, f.Remedy = Warn, "put a network card below the GPU's processor (nvidia-smi topo -m shows the ways). Workers time reads of device memory and reads through pinned memory, and keep the faster"
		}
	}
	f.Found = strings.Join(texts, "; ")
	return f
}

// acs checks that the PCI bridges between a GPU and its network cards pass their traffic on
// directly.
func (c Config) acs(d topology.Device) Finding {
	f := Finding{Check: "pci-acs " + d.UUID, State: OK}
	var bridges []string
	for _, n := range used(d) {
		bridges = append(bridges, n.Bridges...)
	}
	slices.Sort(bridges)
	if bridges = slices.Compact(bridges); len(bridges) == 0 {
		f.Found = "no PCI switch is known between the GPU and the network cards of its worker, so Access Control Services change nothing (for a virtual machine, ask its host)"
		return f
	}
	var on []string
	for _, bridge := range bridges {
		redirected, err := redirects(c.sysfs(), bridge)
		if err != nil {
			f.State, f.Found = Warn, fmt.Sprintf("cannot tell whether the bridges between the GPU and its network cards redirect traffic: %v", err)
			f.Remedy = "run this command as root"
			if !errors.Is(err, errConfigHidden) {
				f.Remedy = fmt.Sprintf("look at lspci -vvv -s %s (ACSCtl) on the host", bridge)
			}
			return f
		}
		if redirected {
			on = append(on, bridge)
		}
	}
	f.Found = fmt.Sprintf("the bridges between the GPU and its network cards (%s) pass traffic on directly", strings.Join(bridges, ", "))
	if len(on) > 0 {
		f.State, f.Found = Warn, fmt.Sprintf("ACS sends the traffic between the GPU and its network cards up to the processor, at %s", strings.Join(on, ", "))
		f.Remedy = fmt.Sprintf("switch ACS off in the firmware, or on bare metal for each bridge: setpci -s %s ECAP_ACS+6.w=0000", on[0])
	}
	return f
}

// iommu checks whether the IOMMU translates the addresses of network cards and GPUs.
func (c Config) iommu(devices []topology.Device) Finding {
	f := Finding{Check: "iommu", State: OK}
	var buses []string
	for _, name := range c.rdmaDevices() {
		if path, err := filepath.EvalSymlinks(filepath.Join(c.sysfs(), "class/infiniband", name, "device")); err == nil {
			buses = append(buses, filepath.Base(path))
		}
	}
	for _, d := range devices {
		buses = append(buses, d.GPU.PCIBusID)
	}
	kinds := map[string][]string{}
	for _, bus := range buses {
		group := filepath.Join(c.sysfs(), "bus/pci/devices", bus, "iommu_group")
		if _, err := os.Stat(group); err != nil {
			continue // the kernel has no IOMMU for it
		}
		kind := cmp.Or(sysfsText(group, "type"), "unknown")
		kinds[kind] = append(kinds[kind], bus)
	}
	direct, unknown := kinds["identity"], kinds["unknown"]
	delete(kinds, "identity")
	delete(kinds, "unknown")
	switch {
	case len(kinds) > 0:
		var translated []string
		for kind, at := range kinds {
			translated = append(translated, fmt.Sprintf("%s (%s)", strings.Join(at, ", "), kind))
		}
		slices.Sort(translated)
		f.State, f.Found = Warn, "the IOMMU translates the addresses of "+strings.Join(translated, ", ")+": traffic between a card and a GPU goes through the processor, or fails with nvidia_peermem"
		f.Remedy = "boot the host with iommu=pt (with intel_iommu=on or amd_iommu=on), or without the IOMMU"
	case len(unknown) > 0:
		f.State, f.Found = Warn, "cannot tell whether the IOMMU translates the addresses of "+strings.Join(unknown, ", ")+": sysfs has no type of their group"
		f.Remedy = "look at the kernel's log (iommu: Default domain type), which should say passthrough"
	case len(direct) > 0:
		f.Found = "it passes the addresses of network cards and GPUs through"
	default:
		f.Found = "the kernel uses none for network cards and GPUs"
	}
	return f
}
