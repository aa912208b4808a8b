package topology

import (
	"path/filepath"
	"strconv"
	"strings"
)

// octetsPerCount is the unit of the counters of RDMA ports. The kernel's documentation,
// Documentation/ABI/stable/sysfs-class-infiniband, says of port_xmit_data and port_rcv_data: total
// number of data octets, divided by 4 (lanes), 64 bits.
const octetsPerCount = 4

// CarriedBy returns what a network device of this machine has carried since its driver was loaded,
// for all programs. root is the mount point of sysfs. The device is an RDMA port in UCX's notation,
// "mlx5_0:1" (without a port: port 1), or a network interface, "eth0". For RoCE, the driver mlx5
// counts the bytes of RDMA at the port, and the others at its network interface. Nil: one of the
// two counters cannot be read.
func CarriedBy(root, device string) *Carried {
	name, port, numbered := strings.Cut(device, ":")
	if !isFileName(name) || numbered && !isFileName(port) {
		return nil
	}
	if !numbered {
		// Documentation/ABI/testing/sysfs-class-net-statistics: number of bytes.
		if c := carried(filepath.Join(root, "class/net", name, "statistics"), "rx_bytes", "tx_bytes", 1); c != nil {
			return c
		}
		port = "1"
	}
	return carried(filepath.Join(root, "class/infiniband", name, "ports", port, "counters"), "port_rcv_data", "port_xmit_data", octetsPerCount)
}

// isFileName reports whether the name of a device leads to no other directory.
func isFileName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsRune(name, '/')
}

func carried(dir, received, sent string, unit uint64) *Carried {
	in, err := strconv.ParseUint(readText(dir, received), 10, 64)
	if err != nil {
		return nil
	}
	out, err := strconv.ParseUint(readText(dir, sent), 10, 64)
	if err != nil {
		return nil
	}
	return &Carried{ReceivedBytes: in * unit, SentBytes: out * unit}
}
