package topology

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Placement says on which CPUs and with which memory the process of a device should run.
type Placement struct {
	// Node is the NUMA node near the device. It is -1 if there is none or it is not known, as in
	// many virtual machines.
	Node int
	// CPUs are the CPUs for the process. They are not empty if any CPUs were granted.
	CPUs CPUSet
	// Prefer says whether memory should be allocated on Node first.
	Prefer bool
	// Why describes the decision for users.
	Why string
}

// place finds the CPUs near a card and takes those that were granted. It never fails: if they are
// unknown or not granted, the placement has all granted CPUs.
func place(c Config, g GPU) Placement {
	at := filepath.Join(c.Root, "bus/pci/devices", g.PCIBusID)
	node := -1
	if n, err := strconv.Atoi(readText(at, "numa_node")); err == nil && g.PCIBusID != "" {
		node = n
	}
	p := Placement{Node: node, CPUs: c.Granted}
	if c.NoAffinity {
		p.Why = "affinity is switched off"
		return p
	}
	near, source := nearCPUs(c.Root, at, node, g)
	switch both := near.Intersect(c.Granted); {
	case len(near) == 0:
		p.Why = fmt.Sprintf("no processors are known to be near %s: all %d granted ones", g.PCIBusID, len(c.Granted))
	case len(both) == 0:
		p.Why = fmt.Sprintf("none of the processors near it (%s by %s) were granted (%s): all granted ones", near, source, c.Granted)
	case len(both) < len(near):
		p.CPUs = both
		p.Why = fmt.Sprintf("%s: of those near it (%s by %s) the granted ones", both, near, source)
	default:
		p.CPUs = both
		p.Why = fmt.Sprintf("%s: near it by %s", both, source)
	}
	p.Prefer = node >= 0 && len(p.CPUs) > 0 && (len(c.Nodes) == 0 || c.Nodes.Contains(node))
	switch {
	case node < 0:
		p.Why += "; NUMA node unknown"
	case p.Prefer:
		p.Why += fmt.Sprintf("; memory of node %d first", node)
	default:
		p.Why += fmt.Sprintf("; NUMA node %d was not granted (%s)", node, c.Nodes)
	}
	return p
}

func nearCPUs(root, at string, node int, g GPU) (CPUSet, string) {
	// For a card without a node, the list has all CPUs of the machine, which does no harm.
	if set, err := ParseCPUSet(readText(at, "local_cpulist")); err == nil && len(set) > 0 && g.PCIBusID != "" {
		return set, "sysfs"
	}
	if node >= 0 {
		list := readText(root, "devices/system/node", "node"+strconv.Itoa(node), "cpulist")
		if set, err := ParseCPUSet(list); err == nil && len(set) > 0 {
			return set, "its NUMA node"
		}
	}
	return g.CPUs, "nvml"
}

// Granted returns the CPUs and NUMA nodes that this process may use.
func Granted() (cpus, nodes CPUSet, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, nil, fmt.Errorf("topology: the granted processors: %w", err)
	}
	for n := range len(set) * int(unsafe.Sizeof(set[0])) * 8 {
		if set.IsSet(n) {
			cpus = append(cpus, n)
		}
	}
	for line := range strings.Lines(readText("/proc/thread-self/status")) {
		if list, ok := strings.CutPrefix(line, "Mems_allowed_list:"); ok {
			if nodes, err = ParseCPUSet(list); err != nil {
				return cpus, nil, err
			}
		}
	}
	return cpus, nodes, nil
}

// Start calls start, which should start a process, with the CPUs and the memory policy of the
// placement. The process inherits them for all of its threads. Afterwards Start restores the CPUs
// and the memory policy of the calling thread. If the kernel refuses a setting, the error is in
// refused, and the process is started all the same: a worker in the wrong place is better than
// none.
func (p Placement) Start(start func() error) (refused, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, want unix.CPUSet
	for _, n := range p.CPUs {
		want.Set(n)
	}
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		refused = fmt.Errorf("topology: the granted processors: %w", err)
	} else if len(p.CPUs) > 0 && want != before {
		if err := unix.SchedSetaffinity(0, &want); err != nil {
			refused = fmt.Errorf("topology: processors %s: %w", p.CPUs, err)
		} else {
			defer func() { refused = errors.Join(refused, unix.SchedSetaffinity(0, &before)) }()
		}
	}
	if p.Prefer {
		earlier, err := currentPolicy()
		if err == nil {
			err = prefer(p.Node)
		}
		if err != nil {
			refused = errors.Join(refused, fmt.Errorf("topology: memory of node %d: %w", p.Node, err))
		} else {
			defer func() {
				if err := earlier.set(); err != nil {
					refused = errors.Join(refused, fmt.Errorf("topology: restore memory policy %d: %w", earlier.mode, err))
				}
			}()
		}
	}
	err = start()
	return refused, err
}

// policy is a memory policy of a thread: the kernel's number of it, with its flags, and its nodes.
type policy struct {
	mode  int32
	nodes [maxNodes / 64]uint64
}

// prefer makes the calling thread allocate memory on a node first.
func prefer(node int) error {
	if node >= maxNodes {
		return unix.EINVAL
	}
	const mpolPreferred = 1
	p := policy{mode: mpolPreferred}
	p.nodes[node/64] = 1 << (node % 64)
	return p.set()
}

// currentPolicy returns the policy of the calling thread.
func currentPolicy() (p policy, err error) {
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&p.mode)), uintptr(unsafe.Pointer(&p.nodes)), maxNodes, 0, 0, 0)
	if errno != 0 {
		return p, errno
	}
	return p, nil
}

// set makes p the policy of the calling thread.
func (p policy) set() error {
	_, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, uintptr(p.mode), uintptr(unsafe.Pointer(&p.nodes)), maxNodes)
	if errno != 0 {
		return errno
	}
	return nil
}

// maxNodes is the largest number of NUMA nodes that the kernel supports.
const maxNodes = 1024
