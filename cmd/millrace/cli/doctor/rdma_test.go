//go:build cgo && linux

package doctor_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/millrace/cli/doctor"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/worker/topology"
)

// machine is a directory with the parts of sysfs and of /dev that the checks read.
type machine struct {
	t    *testing.T
	root string
}

func (m machine) write(path, text string) {
	m.t.Helper()
	at := filepath.Join(m.root, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m machine) link(path, to string) {
	m.t.Helper()
	at := filepath.Join(m.root, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(m.root, to), at); err != nil {
		m.t.Fatal(err)
	}
}

const (
	gpuBus = "0000:13:00.0"
	nicBus = "0000:18:00.0"
	// The GPU and the card are below one PCI switch, each below a port of it.
	gpuBridge, nicBridge = "0000:12:00.0", "0000:12:08.0"
)

// healthy is a machine on which a card may read the memory of a GPU, with a card for InfiniBand and
// one for RoCE.
func healthy(t *testing.T) machine {
	t.Helper()
	m := machine{t, t.TempDir()}
	const top = "pci0000:10/0000:10:01.0/0000:11:00.0/"
	for _, chain := range []string{top + gpuBridge, top + gpuBridge + "/" + gpuBus, top + nicBridge, top + nicBridge + "/" + nicBus, "pci0000:80/0000:80:01.0/0000:81:00.0"} {
		m.write("sys/devices/"+chain+"/numa_node", "0\n")
		m.link("sys/bus/pci/devices/"+filepath.Base(chain), "sys/devices/"+chain)
	}
	for _, bridge := range []string{gpuBridge, nicBridge} {
		m.acs(bridge, 0)
	}
	m.write("sys/bus/pci/devices/"+gpuBus+"/resource",
		"0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n0x0000000000000000 0x0000000000000000 0x0000000000000000\n")
	for i, bus := range []string{nicBus, "0000:81:00.0", gpuBus} {
		group := fmt.Sprintf("sys/kernel/iommu_groups/%d", i)
		m.write(group+"/type", "identity\n")
		m.link("sys/bus/pci/devices/"+bus+"/iommu_group", group)
	}
	m.card("mlx5_0", nicBus, "InfiniBand", "400 Gb/sec (4X NDR)")
	m.card("mlx5_1", "0000:81:00.0", "Ethernet", "100 Gb/sec (4X EDR)")
	m.gid("mlx5_1", 0, "fe80:0000:0000:0000:5054:00ff:fe88:0010", "IB/RoCE v1")
	m.gid("mlx5_1", 1, "fe80:0000:0000:0000:5054:00ff:fe88:0010", "RoCE v2")
	m.gid("mlx5_1", 2, "0000:0000:0000:0000:0000:ffff:0a00:0007", "IB/RoCE v1")
	m.gid("mlx5_1", 3, "0000:0000:0000:0000:0000:ffff:0a00:0007", "RoCE v2")
	m.gid("mlx5_1", 4, "0000:0000:0000:0000:0000:0000:0000:0000", "")
	m.write("sys/class/net/eth5/mtu", "9000\n")
	m.write("sys/module/mlx5_core/version", "24.10-1.1.4\n")
	m.write("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n")
	m.write("sys/class/infiniband_verbs/uverbs_rxe0/ibdev", "rxe0\n")
	m.write("dev/infiniband/uverbs_rxe0", "")
	return m
}

func (m machine) card(name, bus, layer, rate string) {
	m.t.Helper()
	at := "sys/class/infiniband/" + name
	m.link(at+"/device", "sys/bus/pci/devices/"+bus)
	m.link("sys/bus/pci/devices/"+bus+"/driver", "sys/bus/pci/drivers/mlx5_core")
	for file, text := range map[string]string{
		"hca_type": "MT4129", "fw_ver": "28.39.1002", "ports/1/state": "4: ACTIVE", "ports/1/phys_state": "5: LinkUp", "ports/1/link_layer": layer, "ports/1/rate": rate,
	} {
		m.write(at+"/"+file, text+"\n")
	}
	for file, text := range map[string]string{"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_width": "16"} {
		m.write("sys/bus/pci/devices/"+bus+"/"+file, text+"\n")
	}
	m.write("sys/class/infiniband_verbs/uverbs_"+name+"/ibdev", name+"\n")
	m.write("dev/infiniband/uverbs_"+name, "")
}

func (m machine) gid(card string, index int, address, kind string) {
	m.t.Helper()
	at := "sys/class/infiniband/" + card + "/ports/1"
	m.write(fmt.Sprintf("%s/gids/%d", at, index), address+"\n")
	m.write(fmt.Sprintf("%s/gid_attrs/types/%d", at, index), kind+"\n")
	m.write(fmt.Sprintf("%s/gid_attrs/ndevs/%d", at, index), "eth5\n")
}

// acs writes the configuration space of a bridge: another capability, then ACS with the given
// control bits.
func (m machine) acs(bridge string, control uint16) {
	m.t.Helper()
	space := make([]byte, 4096)
	binary.LittleEndian.PutUint32(space[0x100:], 0x0001|2<<16|0x148<<20)
	binary.LittleEndian.PutUint32(space[0x148:], 0x000d|1<<16)
	binary.LittleEndian.PutUint16(space[0x148+6:], control)
	m.write("sys/bus/pci/devices/"+bridge+"/config", string(space))
}

// gpu is the first GPU of a driver that lets network cards access its memory. A process loads one
// driver only.
var gpu struct{ library, uuid string }

func TestMain(m *testing.M) {
	code, err := withDriver(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withDriver(run func() int) (code int, err error) {
	fake, err := cudatest.Start(1, 1<<30, "FAKE_DIRECT_RDMA")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, fake.Close()) }()
	driver, err := cuda.Load(cuda.Config{Library: fake.Library})
	if err != nil {
		return 0, err
	}
	gpu.library, gpu.uuid = fake.Library, driver.Devices()[0].ID()
	code = run()
	fake.Reap()
	if left := fake.Left(); code == 0 && left != "" {
		return 1, errors.New("left behind: " + left)
	}
	return code, nil
}

// ucxLibrary is the UCX that the tests use.
func ucxLibrary() string {
	return cmp.Or(os.Getenv("MILLRACE_UCX_LIBRARY"), "../../../../.tools/ucx/lib/libucp.so.0")
}

// findings runs all checks on the machine. The names of checks are without the UUID of the GPU.
// Without a library of UCX there are no trial reads.
func (m machine) findings(library, kernel string) map[string]doctor.Finding {
	m.t.Helper()
	sysfs := filepath.Join(m.root, "sys")
	known := topology.GPU{UUID: gpu.uuid, Name: "Fake GPU 0", PCIBusID: gpuBus, TotalBytes: 150109880320}
	top := topology.Discover(topology.Config{Root: sysfs, Known: []topology.GPU{known}})
	out := map[string]doctor.Finding{}
	for _, f := range doctor.Run(m.t.Context(), doctor.Config{
		// The tests' UCX has no RDMA. A process can read its own memory without.
		Library: library, TLS: "posix,cma", Sysfs: sysfs, Dev: filepath.Join(m.root, "dev"), Kernel: kernel,
		GPUs: doctor.GPUs{CUDALibrary: gpu.library, NVMLLibrary: "none", Topology: top},
	}) {
		if f.State != doctor.OK && f.Remedy == "" {
			m.t.Errorf("%s is %s without a remedy: %s", f.Check, f.State, f.Found)
		}
		out[strings.TrimSuffix(f.Check, " "+gpu.uuid)] = f
	}
	return out
}

const goodKernel = "6.8.0-60-generic"

func TestRDMAOfAHealthyMachine(t *testing.T) {
	got := healthy(t).findings(ucxLibrary(), goodKernel)
	for check, want := range map[string]string{
		"rdma mlx5_0": "MT4129, driver mlx5_core 24.10-1.1.4, firmware 28.39.1002; port 1: ACTIVE, InfiniBand, 400 Gb/sec (4X NDR); its MTU is not in sysfs (ibv_devinfo",
		"rdma mlx5_1": "port 1: ACTIVE, Ethernet, 100 Gb/sec (4X EDR); GID index 3 is RoCE v2, 10.0.0.7 (eth5); MTU 9000, so 4096 over RoCE",
		"gpu-rdma":    "network cards can access its memory by dma-buf (Linux 6.8.0-60-generic)",
		"gpu-nic":     "mlx5_0 (0000:18:00.0) at distance PIX: below the same PCI switch",
		"pci-acs":     "the bridges between the GPU and its network cards (0000:12:00.0, 0000:12:08.0) pass traffic on directly",
		"iommu":       "it passes the addresses of network cards and GPUs through",
		"ucx":         "with the modules cma, cuda, RDMA devices: 3",
		"rdma rxe0":   "a software device; port 1: ACTIVE",
	} {
		if f := got[check]; f.State != doctor.OK || !strings.Contains(f.Found, want) || f.Remedy != "" {
			t.Errorf("%s: %+v", check, f)
		}
	}
	// Here no network device reads the GPU, although the machine looks as if one could.
	if f := got["rdma-read"]; f.State != doctor.Warn || !strings.HasPrefix(f.Found, "cma, staged at the source, ") || !strings.Contains(f.Remedy, "built with CUDA") {
		t.Errorf("%+v", f)
	}
	if f := got["rdma-read host"]; f.State != doctor.OK || !strings.HasPrefix(f.Found, "cma, ") || !strings.Contains(f.Found, " GB/s") {
		t.Errorf("%+v", f)
	}
}

// Each case changes one thing of the healthy machine.
func TestRDMAThatLacksSomething(t *testing.T) {
	const port0, port1 = "sys/class/infiniband/mlx5_0/ports/1/", "sys/class/infiniband/mlx5_1/ports/1/"
	hide := func(path string) func(machine) {
		return func(m machine) {
			if err := os.RemoveAll(filepath.Join(m.root, path)); err != nil {
				m.t.Fatal(err)
			}
		}
	}
	set := func(path, text string) func(machine) { return func(m machine) { m.write(path, text+"\n") } }
	type wrong struct {
		change               func(machine)
		check, found, remedy string
		kernel               string
	}
	for name, c := range map[string]wrong{
		"no subnet manager": {change: set(port0+"state", "2: INIT"), check: "rdma mlx5_0", found: "port 1: INIT, InfiniBand", remedy: "opensm"},
		"no cable": {change: func(m machine) {
			m.write(port0+"state", "1: DOWN")
			m.write(port0+"phys_state", "2: Polling")
		}, check: "rdma mlx5_0", found: "the port has no link (Polling)", remedy: "--ucx-net-devices"},
		"no ports":            {change: hide(port0), check: "rdma mlx5_0", found: "it has no port", remedy: "kernel's log"},
		"few lanes":           {change: set("sys/bus/pci/devices/"+nicBus+"/current_link_width", "8"), check: "rdma mlx5_0", found: "current link width 8 of 16", remedy: "slot"},
		"slow lanes":          {change: set("sys/bus/pci/devices/"+nicBus+"/current_link_speed", "8.0 GT/s PCIe"), check: "rdma mlx5_0", found: "current link speed 8.0 GT/s PCIe of 32.0 GT/s PCIe", remedy: "LnkSta"},
		"no verbs":            {change: hide("sys/class/infiniband_verbs"), check: "rdma mlx5_0", found: "no verbs", remedy: "ib_uverbs"},
		"not in a container":  {change: hide("dev"), check: "rdma mlx5_1", found: "/dev/infiniband/uverbs_mlx5_1 cannot be opened", remedy: "--device /dev/infiniband"},
		"RoCE v1 only":        {change: hide(port1 + "gid_attrs/types"), check: "rdma mlx5_1", found: "no address of type RoCE v2", remedy: "cma_roce_mode -d mlx5_1 -p 1 -m 2"},
		"link-local":          {change: hide(port1 + "gids/3"), check: "rdma mlx5_1", found: "link-local", remedy: "UCX_IB_GID_INDEX"},
		"small packets":       {change: set("sys/class/net/eth5/mtu", "1500"), check: "rdma mlx5_1", found: "MTU 1500, so 1024 over RoCE", remedy: "4192 or more"},
		"packets of 4096":     {change: set("sys/class/net/eth5/mtu", "4096"), check: "rdma mlx5_1", found: "MTU 4096, so 2048 over RoCE", remedy: "4192 or more"},
		"an old kernel":       {kernel: "5.11.22", check: "gpu-rdma", found: "the kernel 5.11.22 cannot pass the memory of GPUs to RDMA devices", remedy: "load the kernel module nvidia_peermem, or install Linux 5.12"},
		"a small window":      {change: set("sys/bus/pci/devices/"+gpuBus+"/resource", "0x0 0x0 0x0\n0x380000000000 0x38000fffffff 0x0"), check: "gpu-rdma", found: "256 MiB of its 140 GiB", remedy: "Resizable BAR"},
		"ACS":                 {change: func(m machine) { m.acs(nicBridge, 0x1d) }, check: "pci-acs", found: "up to the processor, at " + nicBridge, remedy: "setpci -s " + nicBridge + " ECAP_ACS+6.w=0000"},
		"hidden ACS":          {change: set("sys/bus/pci/devices/"+gpuBridge+"/config", strings.Repeat("x", 63)), check: "pci-acs", found: "cannot tell", remedy: "as root"},
		"no configuration":    {change: hide("sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/" + gpuBridge + "/config"), check: "pci-acs", found: "cannot tell", remedy: "lspci -vvv -s " + gpuBridge},
		"IOMMU":               {change: set("sys/kernel/iommu_groups/2/type", "DMA-FQ"), check: "iommu", found: gpuBus + " (DMA-FQ)", remedy: "iommu=pt"},
		"IOMMU without types": {change: hide("sys/kernel/iommu_groups/0/type"), check: "iommu", found: "cannot tell", remedy: "passthrough"},
		"far card": {change: func(m machine) {
			m.write(port0+"state", "1: DOWN")
			m.write("sys/bus/pci/devices/0000:81:00.0/numa_node", "1")
		}, check: "gpu-nic", found: "mlx5_1 (0000:81:00.0) at distance SYS", remedy: "nvidia-smi topo -m"},
		"no active port": {change: func(m machine) {
			m.write(port0+"state", "1: DOWN")
			m.write(port1+"state", "1: DOWN")
		}, check: "gpu-nic", found: "uses no network card", remedy: "--ucx-net-devices"},
	} {
		t.Run(name, func(t *testing.T) {
			m := healthy(t)
			if c.change != nil {
				c.change(m)
			}
			f := m.findings("/nowhere/libucp.so.0", cmp.Or(c.kernel, goodKernel))[c.check]
			if f.State != doctor.Warn || !strings.Contains(f.Found, c.found) || !strings.Contains(f.Remedy, c.remedy) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// The module does what dma-buf does, also with an old kernel.
func TestPeermemLetsCardsReadGPUs(t *testing.T) {
	m := healthy(t)
	m.write("sys/module/nvidia_peermem/version", "580.159.04\n")
	if f := m.findings("/nowhere/libucp.so.0", "5.4.0")["gpu-rdma"]; f.State != doctor.OK || f.Found != "network cards can access its memory by nvidia_peermem (Linux 5.4.0)" {
		t.Errorf("%+v", f)
	}
}

func TestMachineWithoutRDMA(t *testing.T) {
	if f := find(t, doctor.Config{Sysfs: t.TempDir()}, "rdma"); f.State != doctor.OK || !strings.Contains(f.Found, "TCP streams") {
		t.Errorf("%+v", f)
	}
}

// A UCX without verbs, such as that of the wheels, cannot use the devices that are there.
func TestUCXWithoutVerbs(t *testing.T) {
	f := find(t, doctor.Config{Library: ucxLibrary(), Sysfs: filepath.Join(healthy(t).root, "sys")}, "ucx")
	if f.State != doctor.Warn || !strings.Contains(f.Found, "RDMA devices: 3; it cannot use them") || !strings.Contains(f.Remedy, "--ucx-library") {
		t.Errorf("%+v", f)
	}
}
