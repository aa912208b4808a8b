package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// port is a port of an RDMA device, as sysfs describes it. Texts are empty if sysfs has none.
type port struct {
	number string
	// state is "ACTIVE", physical "LinkUp", layer "InfiniBand" or "Ethernet", rate "400 Gb/sec (4X
	// NDR)".
	state, physical, layer, rate string
	// mtu is that of the network interface of a RoCE port; 0 if it is not known.
	mtu  int
	gids []gid
}

// gid is an entry of a port's table of addresses.
type gid struct {
	index   int
	address netip.Addr
	// kind is "RoCE v2" or "IB/RoCE v1". interfaceName is "" on InfiniBand.
	kind, interfaceName string
}

// routable reports whether other subnets can reach the address.
func (g gid) routable() bool { return !g.address.IsLinkLocalUnicast() }

// sysfsText returns the text of a file without the line end, "" if it cannot be read.
func sysfsText(elements ...string) string {
	b, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// named returns the name of a numbered value of sysfs: "ACTIVE" of "4: ACTIVE".
func named(text string) string {
	_, name, found := strings.Cut(text, ": ")
	if !found {
		return text
	}
	return name
}

// portsOf returns the ports of an RDMA device.
func portsOf(sysfs, device string) (ports []port) {
	dir := filepath.Join(sysfs, "class/infiniband", device, "ports")
	entries, _ := os.ReadDir(dir) // an error means that there is no port
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		p := port{
			number: e.Name(), state: named(sysfsText(at, "state")), physical: named(sysfsText(at, "phys_state")),
			layer: sysfsText(at, "link_layer"), rate: sysfsText(at, "rate"), gids: gidsOf(at),
		}
		for _, g := range p.gids {
			if mtu, err := strconv.Atoi(sysfsText(sysfs, "class/net", g.interfaceName, "mtu")); err == nil && g.interfaceName != "" {
				p.mtu = mtu
			}
		}
		ports = append(ports, p)
	}
	return ports
}

// gidsOf returns the addresses that are set, by index.
func gidsOf(at string) (gids []gid) {
	entries, _ := os.ReadDir(filepath.Join(at, "gids")) // an error means that there is none
	for _, e := range entries {
		index, err := strconv.Atoi(e.Name())
		address, wrong := netip.ParseAddr(sysfsText(at, "gids", e.Name()))
		if err != nil || wrong != nil || address.IsUnspecified() {
			continue
		}
		g := gid{
			index: index, address: address.Unmap(),
			kind: sysfsText(at, "gid_attrs/types", e.Name()), interfaceName: sysfsText(at, "gid_attrs/ndevs", e.Name()),
		}
		// The subnet prefix of InfiniBand alone is no address: fe80::.
		if g.address != netip.MustParseAddr("fe80::") {
			gids = append(gids, g)
		}
	}
	slices.SortFunc(gids, func(a, b gid) int { return a.index - b.index })
	return gids
}

// largestRoCE is the MTU of RoCE that cards use at best. Each packet has up to headersRoCE bytes
// more: the kernel uses the largest power of two that fits into the interface's MTU beside them.
const largestRoCE, headersRoCE = 4096, 96

// mtuRoCE returns the MTU of RoCE over an interface.
func mtuRoCE(ethernet int) int {
	n := largestRoCE
	for n > 256 && n+headersRoCE > ethernet {
		n /= 2
	}
	return n
}

// String describes the port.
func (p port) String() string {
	text := "port " + p.number + ": " + p.state
	for _, part := range []string{p.layer, p.rate} {
		if part != "" {
			text += ", " + part
		}
	}
	return text
}

// examine returns what keeps the port from carrying data well: a description with addresses and
// MTU, and pairs of a deficiency and its remedy.
func (p port) examine(device string) (found string, wrong [][2]string) {
	found = p.String()
	switch {
	case p.state == "INIT" || p.state == "ARMED":
		return found, [][2]string{{"the port has a link, and no subnet manager has set it up", "start a subnet manager in the fabric (opensm, or that of a switch)"}}
	case p.state != "ACTIVE":
		cause := "the port has no link"
		if p.physical != "" {
			cause += " (" + p.physical + ")"
		}
		return found, [][2]string{{cause, "look at the cable, the switch and `ip link`; or leave the port out with --ucx-net-devices"}}
	case p.layer != "Ethernet":
		return found + "; its MTU is not in sysfs (ibv_devinfo prints active_mtu; 4096 is best)", nil
	}
	var usable []gid
	for _, g := range p.gids {
		if g.kind == "RoCE v2" {
			usable = append(usable, g)
		}
	}
	if len(usable) == 0 {
		wrong = append(wrong, [2]string{
			"no address of type RoCE v2", fmt.Sprintf("give its interface an IP address, and let %s use RoCE v2 (cma_roce_mode -d %s -p %s -m 2)", device, device, p.number),
		})
	} else {
		best := slices.IndexFunc(usable, func(g gid) bool { return g.routable() && g.address.Is4() })
		if best < 0 {
			best = max(0, slices.IndexFunc(usable, gid.routable))
		}
		g := usable[best]
		found += fmt.Sprintf("; GID index %d is RoCE v2, %s", g.index, g.address)
		if g.interfaceName != "" {
			found += " (" + g.interfaceName + ")"
		}
		if !g.routable() {
			wrong = append(wrong, [2]string{
				"its addresses are link-local, so only hosts of the same subnet reach it", "give its interface an IP address; UCX_IB_GID_INDEX chooses the index",
			})
		}
	}
	if p.mtu == 0 {
		return found + "; the MTU of its interface is not known here", wrong
	}
	found += fmt.Sprintf("; MTU %d, so %d over RoCE", p.mtu, mtuRoCE(p.mtu))
	if mtuRoCE(p.mtu) < largestRoCE {
		wrong = append(wrong, [2]string{
			fmt.Sprintf("an MTU of %d is small", p.mtu), fmt.Sprintf("set the MTU of the interface to %d or more on all hosts and switches (ip link set dev ... mtu 9000)", largestRoCE+headersRoCE),
		})
	}
	return found, wrong
}
