package topology_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/worker/topology"
)

// tree is a directory with the parts of sysfs that the package reads.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) tree { t.Helper(); return tree{t, t.TempDir()} }

func (s tree) write(path, text string) {
	s.t.Helper()
	at := filepath.Join(s.root, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s tree) link(path, to string) {
	s.t.Helper()
	at := filepath.Join(s.root, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(s.root, to), at); err != nil {
		s.t.Fatal(err)
	}
}

// pci creates a PCI device at the end of a chain below a host bridge.
func (s tree) pci(chain string, node int, cpus string) {
	s.t.Helper()
	at := "devices/" + chain
	s.write(at+"/numa_node", fmt.Sprint(node))
	s.write(at+"/local_cpulist", cpus)
	s.link("bus/pci/devices/"+filepath.Base(chain), at)
}

func (s tree) gpu(chain string, node int, cpus string) {
	s.t.Helper()
	s.pci(chain, node, cpus)
	s.write("devices/"+chain+"/vendor", "0x10de")
	s.write("devices/"+chain+"/class", "0x030200")
}

func (s tree) nic(name, chain string, node int, cpus, state string) {
	s.t.Helper()
	s.pci(chain, node, cpus)
	at := "class/infiniband/" + name
	s.link(at+"/device", "devices/"+chain)
	s.write(at+"/ports/1/state", state)
}

// machine is a Library that returns a given report.
type machine struct {
	report topology.Report
	err    error
}

func (m machine) Report() (topology.Report, error) { return m.report, m.err }

// cards returns a report of n GPUs at the given addresses, all linked with each other.
func cards(buses ...string) topology.Report {
	r := topology.Report{Driver: "580.159.04", CUDA: "13.0"}
	for i, bus := range buses {
		r.GPUs = append(r.GPUs, topology.GPU{
			Index: i, UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i+1), Name: "NVIDIA H200", PCIBusID: bus,
			TotalBytes: 150109880320, ComputeMajor: 9,
		})
	}
	for i := range buses {
		r.Links = append(r.Links, make([]topology.Link, len(buses)))
		for j := range buses {
			r.Links[i][j] = topology.Link{NVLinks: 18, P2P: true}
			if i == j {
				r.Links[i][j].NVLinks = 0
			}
		}
	}
	return r
}

func set(t *testing.T, text string) topology.CPUSet {
	t.Helper()
	s, err := topology.ParseCPUSet(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func text(s string) *string { return &s }

// dgx is a machine like a DGX: two NUMA nodes. Below each there are two PCIe switches, each with
// two GPUs and one network card.
func dgx(t *testing.T) (tree, topology.Report) {
	t.Helper()
	s := newTree(t)
	var buses []string
	for sw := range 4 {
		node, cpus := sw/2, "0-55,112-167"
		if node == 1 {
			cpus = "56-111,168-223"
		}
		bridge := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", 0x10+16*sw, 0x10+16*sw, 0x11+16*sw)
		for k := range 2 {
			bus := fmt.Sprintf("0000:%02x:00.0", 0x13+16*sw+k)
			s.gpu(fmt.Sprintf("%s/0000:%02x:%02x.0/%s", bridge, 0x12+16*sw, k, bus), node, cpus)
			buses = append(buses, bus)
		}
		nic := fmt.Sprintf("0000:%02x:00.0", 0x18+16*sw)
		s.nic(fmt.Sprintf("mlx5_%d", sw), fmt.Sprintf("%s/0000:%02x:08.0/%s", bridge, 0x12+16*sw, nic), node, cpus, "4: ACTIVE")
	}
	// One card for the machine itself, below another host bridge of node 0.
	s.nic("mlx5_9", "pci0000:80/0000:80:01.0/0000:81:00.0", 0, "0-55,112-167", "4: ACTIVE")
	s.write("devices/system/node/node0/cpulist", "0-55,112-167")
	return s, cards(buses...)
}

func TestEachGPUOfADGXGetsItsNodeAndItsSwitchsCard(t *testing.T) {
	s, report := dgx(t)
	got := topology.Discover(topology.Config{Library: machine{report: report}, Root: s.root, Granted: set(t, "0-223"), Nodes: set(t, "0-1")})
	if len(got.Devices) != 8 || got.Driver != "580.159.04" || got.CUDA != "13.0" || len(got.Notes) != 0 || len(got.NICs) != 5 {
		t.Fatalf("%d devices, %d cards, notes %q", len(got.Devices), len(got.NICs), got.Notes)
	}
	for i, d := range got.Devices {
		cpus := "0-55,112-167"
		if i >= 4 {
			cpus = "56-111,168-223"
		}
		if d.Placement.Node != i/4 || d.Placement.CPUs.String() != cpus || !d.Placement.Prefer {
			t.Errorf("device %d: %+v", i, d.Placement)
		}
		if want := fmt.Sprintf("mlx5_%d:1", i/2); d.NetDevices != want || d.NICs[0].Distance != topology.PIX {
			t.Errorf("device %d: card %s at %v, want %s", i, d.NetDevices, d.NICs[0].Distance, want)
		}
		if last := d.NICs[len(d.NICs)-1]; len(d.NICs) != 5 || last.Distance != topology.SYS {
			t.Errorf("device %d: the farthest of %d cards is at %v", i, len(d.NICs), last.Distance)
		}
	}
	far := map[string]topology.Distance{}
	for _, n := range got.Devices[0].NICs {
		far[n.NIC.Name] = n.Distance
	}
	if far["mlx5_1"] != topology.NODE || far["mlx5_9"] != topology.NODE || far["mlx5_2"] != topology.SYS {
		t.Errorf("distances %v", far)
	}
	if l := got.Links[0][7]; l.NVLinks != 18 || !l.P2P {
		t.Errorf("link %+v", l)
	}
}

func TestDistancesAreThoseOfNvidiaSmi(t *testing.T) {
	s := newTree(t)
	s.gpu("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0", -1, "0-7")
	s.nic("a_pix", "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", -1, "0-7", "4: ACTIVE")
	s.nic("b_pxb", "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:02.0/0000:15:00.0/0000:16:00.0/0000:17:00.0", -1, "0-7", "4: ACTIVE")
	s.nic("c_phb", "pci0000:10/0000:10:02.0/0000:20:00.0", -1, "0-7", "4: ACTIVE")
	s.nic("d_sys", "pci0000:50/0000:50:01.0/0000:51:00.0", -1, "0-7", "4: ACTIVE")
	s.write("class/infiniband/rxe0/ports/1/state", "4: ACTIVE") // a software device
	got := topology.Discover(topology.Config{Library: machine{report: cards("0000:13:00.0")}, Root: s.root, Granted: set(t, "0-7")})
	var seen []string
	for _, n := range got.Devices[0].NICs {
		seen = append(seen, fmt.Sprint(n.NIC.Name, " ", n.Distance, " ", n.Bridges))
	}
	if !slices.Equal(seen, []string{
		"a_pix PIX [0000:12:00.0 0000:12:01.0]", "b_pxb PXB [0000:12:00.0 0000:12:02.0 0000:15:00.0 0000:16:00.0]", "c_phb PHB []", "d_sys SYS []",
	}) {
		t.Errorf("got %q", seen)
	}
	if p := got.Devices[0].Placement; p.Node != -1 || p.Prefer || p.CPUs.String() != "0-7" || !strings.Contains(p.Why, "NUMA node unknown") {
		t.Errorf("without a node: %+v", p)
	}
}

func TestDevicesThatAreAsNearShareTheCardsOut(t *testing.T) {
	s := newTree(t)
	for i := range 4 {
		s.gpu(fmt.Sprintf("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:%02x.0/0000:%02x:00.0", i, 0x20+i), 0, "0-7")
	}
	for i, state := range []string{"4: ACTIVE", "1: DOWN", "4: ACTIVE"} {
		s.nic(fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:%02x.0/0000:%02x:00.0", 8+i, 0x30+i), 0, "0-7", state)
	}
	config := topology.Config{Library: machine{report: cards("0000:20:00.0", "0000:21:00.0", "0000:22:00.0", "0000:23:00.0")}, Root: s.root, Granted: set(t, "0-7")}
	chosen := func() (list []string, got *topology.Topology) {
		got = topology.Discover(config)
		for _, d := range got.Devices {
			list = append(list, d.NetDevices)
		}
		return list, got
	}
	list, got := chosen()
	const both = "mlx5_0:1,mlx5_2:1"
	if want := []string{both, both, both, both}; !slices.Equal(list, want) {
		t.Errorf("got %q, want %q", list, want)
	}
	if len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "mlx5_1 has no active port") {
		t.Errorf("notes %q", got.Notes)
	}
	config.NetDevices = "mlx5_1:1,mlx5_2:1"
	list, got = chosen()
	if list[0] != config.NetDevices || list[3] != config.NetDevices || !slices.ContainsFunc(got.Notes, func(n string) bool { return strings.Contains(n, "UCX_NET_DEVICES=") }) {
		t.Errorf("with UCX_NET_DEVICES: %q, notes %q", list, got.Notes)
	}
}

// TestRailsAreAlike: a worker uses two cards together only if they are equally near and fast, and
// of one kind.
func TestRailsAreAlike(t *testing.T) {
	for name, tc := range map[string]struct {
		// cards are "DISTANCE LINK RATE" each, where the distance is near or far.
		cards []string
		want  []string // of each of two GPUs
	}{
		"one":                       {[]string{"near InfiniBand 400"}, []string{"mlx5_0:1", "mlx5_0:1"}},
		"two":                       {[]string{"near InfiniBand 400", "near InfiniBand 400"}, []string{"mlx5_0:1,mlx5_1:1", "mlx5_0:1,mlx5_1:1"}},
		"four":                      {[]string{"near Ethernet 400", "near Ethernet 400", "near Ethernet 400", "near Ethernet 400"}, []string{"mlx5_0:1,mlx5_1:1", "mlx5_2:1,mlx5_3:1"}},
		"three":                     {[]string{"near Ethernet 400", "near Ethernet 400", "near Ethernet 400"}, []string{"mlx5_0:1,mlx5_1:1", "mlx5_0:1,mlx5_2:1"}},
		"a slow one first":          {[]string{"near Ethernet 25", "near InfiniBand 400", "near InfiniBand 400"}, []string{"mlx5_1:1,mlx5_2:1", "mlx5_1:1,mlx5_2:1"}},
		"a slow one last":           {[]string{"near InfiniBand 400", "near Ethernet 25"}, []string{"mlx5_0:1", "mlx5_0:1"}},
		"a fast one far away":       {[]string{"far InfiniBand 400", "near InfiniBand 200"}, []string{"mlx5_1:1", "mlx5_1:1"}},
		"two networks":              {[]string{"near InfiniBand 400", "near Ethernet 400"}, []string{"mlx5_0:1", "mlx5_0:1"}},
		"of which nothing is known": {[]string{"near - -", "near - -"}, []string{"mlx5_0:1,mlx5_1:1", "mlx5_0:1,mlx5_1:1"}},
	} {
		s := newTree(t)
		for i := range 2 {
			s.gpu(fmt.Sprintf("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:%02x.0/0000:%02x:00.0", i, 0x20+i), 0, "0-7")
		}
		for i, card := range tc.cards {
			var distance, link, rate string
			if _, err := fmt.Sscan(card, &distance, &link, &rate); err != nil {
				t.Fatal(err)
			}
			chain := fmt.Sprintf("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:%02x.0/0000:%02x:00.0", 8+i, 0x30+i)
			if distance == "far" {
				chain = fmt.Sprintf("pci0000:50/0000:50:01.0/0000:%02x:00.0", 0x51+i)
			}
			card := fmt.Sprintf("mlx5_%d", i)
			s.nic(card, chain, 0, "0-7", "4: ACTIVE")
			if link != "-" {
				s.write("class/infiniband/"+card+"/ports/1/link_layer", link)
				s.write("class/infiniband/"+card+"/ports/1/rate", rate+" Gb/sec (4X NDR)")
			}
		}
		got := topology.Discover(topology.Config{Library: machine{report: cards("0000:20:00.0", "0000:21:00.0")}, Root: s.root, Granted: set(t, "0-7")})
		if list := []string{got.Devices[0].NetDevices, got.Devices[1].NetDevices}; !slices.Equal(list, tc.want) {
			t.Errorf("%s: %q, want %q", name, list, tc.want)
		}
	}
}

func TestProcessorsAreThoseThatWereGranted(t *testing.T) {
	s, report := dgx(t)
	for name, c := range map[string]struct {
		granted, nodes string
		off            bool
		want, why      string
		prefer         bool
	}{
		"all":              {"0-223", "0-1", false, "0-55,112-167", "near it by sysfs; memory of node 0 first", true},
		"some of them":     {"8-15,60-63", "0", false, "8-15", "the granted ones; memory of node 0 first", true},
		"none of them":     {"60-63", "1", false, "60-63", "none of the processors near it (0-55,112-167 by sysfs) were granted (60-63): all granted ones; NUMA node 0 was not granted (1)", false},
		"another node":     {"0-3", "1", false, "0-3", "NUMA node 0 was not granted (1)", false},
		"nothing is known": {"0-3", "", false, "0-3", "memory of node 0 first", true},
		"switched off":     {"0-223", "0-1", true, "0-223", "switched off", false},
	} {
		got := topology.Discover(topology.Config{Library: machine{report: report}, Root: s.root, Granted: set(t, c.granted), Nodes: set(t, c.nodes), NoAffinity: c.off})
		p := got.Devices[0].Placement
		if p.CPUs.String() != c.want || !strings.Contains(p.Why, c.why) || p.Prefer != c.prefer {
			t.Errorf("%s: %s (%s), prefer %v", name, p.CPUs, p.Why, p.Prefer)
		}
	}
}

func TestWithoutSysfsTheDriversProcessorsAreUsed(t *testing.T) {
	report := cards("0000:13:00.0")
	config := topology.Config{Library: machine{report: report}, Root: t.TempDir(), Granted: set(t, "0-7")}
	got := topology.Discover(config).Devices[0]
	if got.Placement.CPUs.String() != "0-7" || !strings.Contains(got.Placement.Why, "no processors are known") || got.NetDevices != "" {
		t.Errorf("nothing known: %+v", got.Placement)
	}
	report.GPUs[0].CPUs = set(t, "2-5")
	got = topology.Discover(config).Devices[0]
	if got.Placement.CPUs.String() != "2-5" || !strings.Contains(got.Placement.Why, "by nvml") {
		t.Errorf("by the driver: %+v", got.Placement)
	}
}

func mig(t *testing.T) topology.Report {
	t.Helper()
	r := cards("0000:13:00.0", "0000:14:00.0", "0000:15:00.0")
	r.GPUs[0].MIGEnabled = true
	r.GPUs[0].Instances = []topology.Instance{
		{UUID: "MIG-aaaa1111-0000-0000-0000-000000000000", Name: "NVIDIA H200 MIG 3g.71gb", TotalBytes: 75 << 30, GPUInstance: 1},
		{UUID: "MIG-aaaa2222-0000-0000-0000-000000000000", Name: "NVIDIA H200 MIG 3g.71gb", TotalBytes: 75 << 30, GPUInstance: 2},
	}
	r.GPUs[2].MIGEnabled = true
	return r
}

func TestVisibleDevicesAreThoseOfCUDA(t *testing.T) {
	all := []string{"MIG-aaaa1", "MIG-aaaa2", "GPU-00000002"}
	for name, c := range map[string]struct {
		visible *string
		want    []string
		note    string
	}{
		"not set":                    {nil, all, "GPU-00000003-0000-0000-0000-000000000000 (NVIDIA H200) has MIG enabled and no instance"},
		"empty":                      {text(""), nil, "hides all 3 GPUs"},
		"minus one":                  {text("-1"), nil, "hides all"},
		"index":                      {text("1"), []string{"GPU-00000002"}, ""},
		"order":                      {text("1, 0"), []string{"GPU-00000002", "MIG-aaaa1", "MIG-aaaa2"}, ""},
		"uuid":                       {text("GPU-00000002-0000-0000-0000-000000000000"), []string{"GPU-00000002"}, ""},
		"beginning of a uuid":        {text("gpu-00000002"), []string{"GPU-00000002"}, ""},
		"beginning of several":       {text("GPU-0000"), nil, "the beginning of several"},
		"instance":                   {text("MIG-AAAA2222"), []string{"MIG-aaaa2"}, ""},
		"instance in older notation": {text("MIG-GPU-00000001-0000-0000-0000-000000000000/2/0"), []string{"MIG-aaaa2"}, ""},
		"instance that is not there": {text("MIG-GPU-00000001-0000-0000-0000-000000000000/9/0"), nil, "names no MIG instance"},
		"what follows a wrong one":   {text("1,7,0"), []string{"GPU-00000002"}, "there is no GPU 7 among 3; there are: 0 (GPU-00000001"},
		"nonsense":                   {text("GPU-"), nil, `"GPU-" names no GPU`},
		"twice":                      {text("1,GPU-00000002"), []string{"GPU-00000002"}, "twice"},
		"instances of two cards":     {text("MIG-aaaa1111,1"), []string{"MIG-aaaa1", "GPU-00000002"}, ""},
	} {
		got := topology.Discover(topology.Config{Library: machine{report: mig(t)}, Root: t.TempDir(), Visible: c.visible})
		if len(got.Devices) != len(c.want) {
			t.Errorf("%s: %d devices, want %d; notes %q", name, len(got.Devices), len(c.want), got.Notes)
			continue
		}
		for i, d := range got.Devices {
			if !strings.HasPrefix(d.UUID, c.want[i]) {
				t.Errorf("%s: device %d is %s, want %s", name, i, d.UUID, c.want[i])
			}
		}
		if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
			t.Errorf("%s: notes %q, want %q", name, notes, c.note)
		}
	}
}

func TestInstancesAreDevicesWithoutPeers(t *testing.T) {
	got := topology.Discover(topology.Config{Library: machine{report: mig(t)}, Root: t.TempDir()})
	d := got.Devices[0]
	if d.Instance == nil || d.Name != "NVIDIA H200 MIG 3g.71gb" || d.TotalBytes != 75<<30 || d.GPU.Index != 0 {
		t.Errorf("%+v", d)
	}
	if l := got.Links[0][1]; l.P2P || l.NVLinks != 0 || !strings.Contains(l.Why, "MIG") {
		t.Errorf("two instances: %+v", l)
	}
	if l := got.Links[2][0]; l.P2P {
		t.Errorf("a card and an instance: %+v", l)
	}
}

func TestIndicesOfDifferentGPUsAreDoubtful(t *testing.T) {
	r := cards("0000:13:00.0", "0000:14:00.0")
	r.GPUs[1].Name = "NVIDIA L4"
	for order, want := range map[string]int{"": 1, "FASTEST_FIRST": 1, "PCI_BUS_ID": 0} {
		got := topology.Discover(topology.Config{Library: machine{report: r}, Root: t.TempDir(), Visible: text("0"), DeviceOrder: order})
		if len(got.Notes) != want {
			t.Errorf("order %q: notes %q", order, got.Notes)
		}
	}
}

func TestWithoutNVMLItSaysWhatItKnows(t *testing.T) {
	empty, withCard := newTree(t), newTree(t)
	withCard.gpu("pci0000:10/0000:10:01.0/0000:13:00.0", 0, "0-3")
	withCard.pci("pci0000:10/0000:10:02.0/0000:14:00.0", 0, "0-3") // not a GPU
	gone := errors.New("libnvidia-ml.so.1 is not there")
	for name, c := range map[string]struct {
		config topology.Config
		notes  []string
	}{
		"no gpu": {topology.Config{Root: empty.root, WithoutLibrary: gone}, []string{"nvml: libnvidia-ml.so.1 is not there", "this machine has no NVIDIA GPU"}},
		"gpu without driver": {topology.Config{Root: withCard.root, WithoutLibrary: gone},
			[]string{"is not there", "sysfs has 1 NVIDIA GPUs (0000:13:00.0), but no driver answers"}},
		"nvml that fails":  {topology.Config{Root: empty.root, Library: machine{err: errors.New("driver mismatch")}}, []string{"nvml: driver mismatch", "no NVIDIA GPU"}},
		"nvml without gpu": {topology.Config{Root: empty.root, Library: machine{}}, []string{"nvml: no GPU"}},
	} {
		got := topology.Discover(c.config)
		if len(got.Devices) != 0 || got.Links != nil || len(got.Notes) != len(c.notes) {
			t.Errorf("%s: %d devices, notes %q", name, len(got.Devices), got.Notes)
			continue
		}
		for i, want := range c.notes {
			if !strings.Contains(got.Notes[i], want) {
				t.Errorf("%s: note %q, want %q", name, got.Notes[i], want)
			}
		}
	}
	got := topology.Discover(topology.Config{Root: withCard.root, WithoutLibrary: gone, Known: cards("0000:13:00.0").GPUs, Granted: set(t, "0-7")})
	if len(got.Devices) != 1 || got.Devices[0].Placement.CPUs.String() != "0-3" || !strings.Contains(got.Notes[1], "what the CUDA driver sees") {
		t.Errorf("by the CUDA driver: %+v, notes %q", got.Devices, got.Notes)
	}
}

func TestThisMachine(t *testing.T) {
	cpus, nodes, err := topology.Granted()
	if err != nil || len(cpus) == 0 || len(nodes) == 0 {
		t.Fatalf("granted %s and nodes %s: %v", cpus, nodes, err)
	}
	t.Logf("granted %s and nodes %s", cpus, nodes)
	got := topology.Discover(topology.Config{Granted: cpus, Nodes: nodes})
	t.Logf("%+v", got)
}

func TestAProcessIsStartedInItsPlaceAndTheCallerStaysInHis(t *testing.T) {
	cpus, nodes, err := topology.Granted()
	if err != nil {
		t.Fatal(err)
	}
	p := topology.Placement{Node: nodes[0], CPUs: cpus[:1], Prefer: true}
	inside := ""
	refused, err := p.Start(func() error {
		var set unix.CPUSet
		err := unix.SchedGetaffinity(0, &set)
		inside = fmt.Sprint(set.Count(), set.IsSet(cpus[0]))
		return err
	})
	if err != nil || inside != "1 true" {
		t.Errorf("inside: %s, %v", inside, err)
	}
	if refused != nil {
		t.Logf("refused: %v", refused) // a container may forbid set_mempolicy
	}
	after, _, err := topology.Granted()
	if err != nil || after.String() != cpus.String() {
		t.Errorf("afterwards %s, want %s: %v", after, cpus, err)
	}
	broken := errors.New("no such program")
	if _, err := p.Start(func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if _, err := (topology.Placement{Node: -1, CPUs: topology.CPUSet{1023}}).Start(func() error { return nil }); err != nil {
		t.Errorf("a processor that is not there kept it from starting: %v", err)
	}
}

// memoryPolicy calls get_mempolicy for the calling thread, and returns the policy and the first 64
// nodes of its mask.
func memoryPolicy(t *testing.T) (policy int32, nodes uint64) {
	t.Helper()
	var mask [16]uint64
	if _, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&policy)), uintptr(unsafe.Pointer(&mask)), 1024, 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	return policy, mask[0]
}

// numactl, for example, sets a memory policy for a whole program.
func TestStartKeepsTheMemoryPolicyOfTheCaller(t *testing.T) {
	_, nodes, err := topology.Granted()
	if err != nil {
		t.Fatal(err)
	}
	const preferred, interleaved = 1, 3
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	mask := [16]uint64{1 << nodes[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, interleaved, uintptr(unsafe.Pointer(&mask)), 1024); errno != 0 {
		t.Skipf("set_mempolicy: %v", errno) // a container may forbid it
	}
	refused, err := topology.Placement{Node: nodes[0], Prefer: true}.Start(func() error {
		if policy, in := memoryPolicy(t); policy != preferred || in != mask[0] {
			t.Errorf("inside: policy %d of nodes %#x", policy, in)
		}
		return nil
	})
	if refused != nil || err != nil {
		t.Errorf("refused: %v; %v", refused, err)
	}
	if policy, in := memoryPolicy(t); policy != interleaved || in != mask[0] {
		t.Errorf("afterwards: policy %d of nodes %#x", policy, in)
	}
}

func TestCPUSetsAreReadAndWritten(t *testing.T) {
	for in, want := range map[string]string{"": "", "0": "0", "0-3,8": "0-3,8", "8,0-3,2": "0-3,8", "5-5": "5", "1,3,4,5\n": "1,3-5"} {
		got, err := topology.ParseCPUSet(in)
		if err != nil || got.String() != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"a", "3-1", "-1", "1-", "0-99999999999", "1,,2"} {
		if got, err := topology.ParseCPUSet(in); err == nil {
			t.Errorf("%q: %s", in, got)
		}
	}
}

func TestEachXidHasAReaction(t *testing.T) {
	for xid, want := range map[uint64]struct {
		verdict topology.Verdict
		poison  bool
	}{
		13: {topology.Harmless, false}, 31: {topology.Harmless, false}, 43: {topology.Harmless, false}, 45: {topology.Harmless, false},
		63: {topology.Harmless, false}, 92: {topology.Harmless, false},
		48: {topology.Doubtful, true}, 74: {topology.Doubtful, true}, 94: {topology.Doubtful, true},
		119: {topology.Doubtful, false}, 120: {topology.Doubtful, false}, 154: {topology.Doubtful, false}, 12345: {topology.Doubtful, false},
		64: {topology.Drain, true}, 140: {topology.Drain, true},
		79: {topology.Fatal, true}, 95: {topology.Fatal, true},
	} {
		e := topology.Event{UUID: "GPU-1", Kind: topology.Xid, Xid: xid}
		if e.Verdict() != want.verdict || e.Poisons() != want.poison || !strings.HasPrefix(e.String(), fmt.Sprintf("GPU-1: Xid %d: ", xid)) {
			t.Errorf("%v: %v, others keep away: %v", e, e.Verdict(), e.Poisons())
		}
	}
	if e := (topology.Event{Kind: topology.ECC}); e.Verdict() != topology.Doubtful || !e.Poisons() || !strings.Contains(e.String(), "all GPUs: a memory error") {
		t.Errorf("%v: %v", e, e.Verdict())
	}
}
