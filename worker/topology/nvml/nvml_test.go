package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/worker/topology"
)

// dgx returns a DGX A100: eight GPUs, each with twelve links to switches.
func dgx() *fakeSystem {
	s := &fakeSystem{}
	for i := range 8 {
		s.cards = append(s.cards, &fakeCard{
			id: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i), model: "NVIDIA A100-SXM4-40GB", bus: bus(i),
			total: 40 << 30, cpus: []uint64{0xf << (8 * (i / 4)), 1},
			link: func(link int) (bool, code) {
				if link >= 12 {
					return false, invalidArgument
				}
				return true, success
			},
			linkKind: func(int) (int, code) { return kindSwitch, success },
			p2p:      func(*fakeCard, int) (int, code) { return p2pOK, success },
			kinds:    func() (uint64, code) { return eventXid | eventDoubleBitECC | 4, success },
		})
	}
	return s
}

func bus(i int) string { return fmt.Sprintf("00000000:%02X:00.0", 0xb0+i) }

func report(t *testing.T, s system) topology.Report {
	t.Helper()
	n, err := open(s)
	if err != nil {
		t.Fatal(err)
	}
	r, err := n.Report()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	return r
}

func TestReportOfADGX(t *testing.T) {
	r := report(t, dgx())
	if r.Driver != "550.54.15" || r.CUDA != "12.4" || len(r.GPUs) != 8 || len(r.Notes) != 0 {
		t.Fatalf("driver %s, cuda %s, %d GPUs, notes %q", r.Driver, r.CUDA, len(r.GPUs), r.Notes)
	}
	g := r.GPUs[5]
	if g.Index != 5 || g.UUID != "GPU-00000005-0000-0000-0000-000000000000" || g.PCIBusID != "0000:b5:00.0" || g.Name != "NVIDIA A100-SXM4-40GB" ||
		g.TotalBytes != 40<<30 || g.ComputeMajor != 8 || g.MIGEnabled || g.CPUs.String() != "8-11,64" {
		t.Errorf("%+v", g)
	}
	for i := range r.Links {
		for j, l := range r.Links[i] {
			want := topology.Link{NVLinks: 12, P2P: true}
			if i == j {
				want.NVLinks = 0
			}
			if l != want {
				t.Errorf("%d to %d: %+v", i, j, l)
			}
		}
	}
}

func TestLinksBetweenPairs(t *testing.T) {
	s := dgx()
	// GPUs 0 and 1 are linked directly by four NVLinks. GPUs 0 and 2 are connected only by PCIe,
	// and P2P between them is refused.
	for _, pair := range [][2]int{{0, 1}, {1, 0}} {
		d := s.cards[pair[0]]
		d.linkKind = func(int) (int, code) { return kindGPU, success }
		d.linkTo = func(int) (string, code) { return bus(pair[1]), success }
		d.link = func(link int) (bool, code) {
			if link >= 6 {
				return false, notSupported
			}
			return link < 4, success
		}
	}
	s.cards[0].p2p = func(other *fakeCard, _ int) (int, code) {
		switch other {
		case s.cards[1]:
			return p2pOK, success
		case s.cards[3]:
			return 0, gpuIsLost
		}
		return p2pTopology, success
	}
	r := report(t, s)
	if l := r.Links[0][1]; l.NVLinks != 4 || !l.P2P {
		t.Errorf("direct: %+v", l)
	}
	if l := r.Links[0][2]; l.NVLinks != 0 || l.P2P || l.Why != "the PCIe topology does not support it" {
		t.Errorf("refused: %+v", l)
	}
	if l := r.Links[0][3]; l.P2P || l.Why == "" {
		t.Errorf("lost: %+v", l)
	}
}

func TestLinksOfAVirtualMachineThatHidesTheSwitch(t *testing.T) {
	s := dgx()
	for _, g := range s.cards {
		g.linkKind = func(int) (int, code) { return kindUnknown, notSupported }
	}
	if l := report(t, s).Links[2][6]; l.NVLinks != 12 || !l.P2P {
		t.Errorf("%+v", l)
	}
}

func TestInstancesOfMIG(t *testing.T) {
	s := dgx()
	d := s.cards[1]
	d.mig = true
	part := func(i int) *fakeCard {
		return &fakeCard{id: fmt.Sprintf("MIG-%d", i), model: "MIG 3g.20gb", total: 20 << 30, gi: i + 1}
	}
	d.parts = []*fakeCard{part(0), nil, part(2), nil, nil, nil, nil}
	g := report(t, s).GPUs[1]
	want := []topology.Instance{
		{UUID: "MIG-0", Name: "MIG 3g.20gb", TotalBytes: 20 << 30, GPUInstance: 1},
		{UUID: "MIG-2", Name: "MIG 3g.20gb", TotalBytes: 20 << 30, GPUInstance: 3},
	}
	if !g.MIGEnabled || !slices.Equal(g.Instances, want) {
		t.Errorf("%+v", g)
	}
	visible := "MIG-2,0"
	got := topology.Discover(topology.Config{Library: &NVML{library: s}, Root: t.TempDir(), Visible: &visible})
	if len(got.Devices) != 2 || got.Devices[0].UUID != "MIG-2" || got.Devices[1].GPU.Index != 0 {
		t.Errorf("%+v", got)
	}
}

func TestMissingFunctionsAreRecorded(t *testing.T) {
	s := dgx()
	s.handle = func(i int) (card, code) {
		if i == 3 {
			return nil, gpuIsLost
		}
		return s.cards[i], success
	}
	s.cards[4].idCode = unknownError
	s.cards[5].nameCode = notSupported
	r := report(t, s)
	if len(r.GPUs) != 6 || len(r.Links) != 6 || len(r.Notes) != 3 {
		t.Fatalf("%d GPUs, notes %q", len(r.GPUs), r.Notes)
	}
	for i, want := range []string{"GPU 3: ", "GPU 4: its UUID", "GPU-00000005-0000-0000-0000-000000000000: name"} {
		if !strings.Contains(r.Notes[i], want) {
			t.Errorf("note %q, want %q", r.Notes[i], want)
		}
	}
	s.counted = unknownError
	if _, err := (&NVML{library: s}).Report(); err == nil || !strings.Contains(err.Error(), "count the GPUs") {
		t.Errorf("got %v", err)
	}
}

func TestALibraryThatRefusesSaysWhereToLook(t *testing.T) {
	s := dgx()
	s.initCode = libVersionMismatch
	if _, err := open(s); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "look at nvidia-smi") {
		t.Errorf("got %v", err)
	}
}

func TestSample(t *testing.T) {
	s := dgx()
	d := s.cards[2]
	d.used, d.busy, d.clocks, d.ecc, d.watts = 3<<30, [2]int{90, 30}, true, true, 123456
	d.slow = 1 | slowPowerCap | slowHardwareThermal // 1 means idle, which is not reported
	d.list = []process{{10, 1 << 30}, {11, notReported}}
	n := &NVML{library: s}
	got, err := n.Sample(d.id)
	if err != nil {
		t.Fatal(err)
	}
	if got.UsedBytes != 3<<30 || got.UtilizationPercent != 90 || got.MemoryPercent != 30 || got.ClockMHz != 1001 || got.MemoryClockMHz != 1002 ||
		got.Watts != 123.456 || got.Celsius != 0 || got.CorrectedECC != 7 || got.UncorrectedECC != 8 ||
		!slices.Equal(got.Throttled, []string{"power cap", "temperature, by the hardware"}) ||
		!slices.Equal(got.Processes, []topology.Process{{PID: 10, UsedBytes: 1 << 30}, {PID: 11}}) {
		t.Errorf("%+v", got)
	}
	d.slowCode = notSupported
	if got, err := n.Sample(d.id); err != nil || got.Throttled != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := n.Sample("GPU-of-another-machine"); err == nil {
		t.Error("sampled a GPU that is not there")
	}
}

// The counters of NVLink are sums. Those of PCIe have 32 bits, so that only two looks shortly after
// each other give a rate.
func TestTheBytesOfLinksAreCounted(t *testing.T) {
	s := dgx()
	d := s.cards[2]
	n := &NVML{library: s}
	links := func() (*topology.Carried, *topology.Rates) {
		t.Helper()
		got, err := n.Sample(d.id)
		if err != nil {
			t.Fatal(err)
		}
		return got.NVLink, n.PCIe(d.id)
	}
	if nvLink, pcie := links(); nvLink != nil || pcie != nil {
		t.Errorf("without counters: %+v, %+v", nvLink, pcie)
	}
	looks := map[uint32]int64{}
	period := int64(10_000)
	d.counts = func(f field) value {
		i := looks[f.id]
		looks[f.id]++
		switch f {
		case field{fieldNVLinkReceived, allLinks}:
			return value{number: 1 << 40}
		case field{fieldNVLinkSent, allLinks}:
			return value{number: 5}
		case field{fieldPCIeReceived, 0}:
			return value{number: uint64(uint32(1<<32 - 1000 + i*500_000)), narrow: true, micros: 7 + i*period}
		case field{fieldPCIeSent, 0}:
			return value{number: uint64(i * 10), micros: 8 + i*period}
		}
		return value{code: notSupported}
	}
	if nvLink, pcie := links(); nvLink == nil || *nvLink != (topology.Carried{ReceivedBytes: 1 << 50, SentBytes: 5120}) ||
		pcie == nil || *pcie != (topology.Rates{Received: 50_000_000, Sent: 1000}) {
		t.Errorf("%+v, %+v", nvLink, pcie)
	}
	// On a busy machine the looks are too far apart: the counter may have wrapped between them.
	period = 40_000
	if nvLink, pcie := links(); pcie != nil || nvLink == nil {
		t.Errorf("looks too far apart: %+v, %+v", nvLink, pcie)
	}
	all := d.counts
	d.counts = func(f field) value {
		if f.id == fieldNVLinkSent || f.id == fieldPCIeSent {
			return value{code: notSupported}
		}
		return all(f)
	}
	if nvLink, pcie := links(); nvLink != nil || pcie != nil {
		t.Errorf("with one direction: %+v, %+v", nvLink, pcie)
	}
}

func TestWatchTellsOfXidAndECCErrors(t *testing.T) {
	s := dgx()
	ctx, cancel := context.WithCancel(t.Context())
	set := &fakeEvents{end: cancel, script: []told{
		{event{of: s.cards[1], kind: eventXid, data: 79}, success},
		{event{}, timedOut},
		{event{of: s.cards[2], kind: eventDoubleBitECC}, success},
		{event{kind: eventXid, data: 31}, success},
	}}
	s.set = set
	s.cards[7].kinds = func() (uint64, code) { return 0, notSupported }
	n := &NVML{library: s}
	var got []string
	if err := n.Watch(ctx, func(e topology.Event) { got = append(got, fmt.Sprint(e, " ", e.Verdict())) }); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"GPU-00000001-0000-0000-0000-000000000000: Xid 79: the GPU has fallen off the bus fatal",
		"GPU-00000002-0000-0000-0000-000000000000: a memory error that ECC could not correct doubtful",
		"all GPUs: Xid 31: a program used an address that is not mapped harmless",
	}
	if set.registered != 7 || set.freed != 1 || !slices.Equal(got, want) {
		t.Errorf("%d registered, %d freed, got %q", set.registered, set.freed, got)
	}
	set.script = []told{{code: gpuIsLost}}
	if err := n.Watch(t.Context(), func(topology.Event) {}); err == nil || !strings.Contains(err.Error(), "wait for events") {
		t.Errorf("a wait that fails: %v", err)
	}
	for _, g := range s.cards {
		g.kinds = func() (uint64, code) { return 0, notSupported }
	}
	if err := n.Watch(t.Context(), func(topology.Event) {}); err == nil || !strings.Contains(err.Error(), "none of the 8 GPUs") {
		t.Errorf("no events here: %v", err)
	}
	s.noSet = true
	if err := n.Watch(t.Context(), func(topology.Event) {}); err == nil {
		t.Error("watched without a set")
	}
}

// TestEventsNameTheInstancesThatTheyAreAbout checks that events have the UUIDs of the MIG
// instances. NVML's events name the card, but a worker on a MIG instance knows only its own UUID.
func TestEventsNameTheInstancesThatTheyAreAbout(t *testing.T) {
	s := dgx()
	g := s.cards[3]
	g.mig, g.parts = true, []*fakeCard{{id: "MIG-a", gi: 1}, nil, {id: "MIG-b", gi: 2}}
	ctx, cancel := context.WithCancel(t.Context())
	s.set = &fakeEvents{end: cancel, script: []told{
		{event{of: g, kind: eventXid, data: 94, instance: 2}, success},
		{event{of: g, kind: eventXid, data: 79, instance: -1}, success},
		{event{of: s.cards[2], kind: eventXid, data: 79, instance: -1}, success},
	}}
	n := &NVML{library: s}
	var got []string
	if err := n.Watch(ctx, func(e topology.Event) {
		got = append(got, fmt.Sprint(e.Xid, e.Instances, e.Of("MIG-a"), e.Of("MIG-b"), e.Of(g.id), e.Of(s.cards[2].id)))
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{"94 [MIG-b] false true true false", "79 [MIG-a MIG-b] true true true false", "79 [] false false false true"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBusIDsAreSysfs(t *testing.T) {
	for in, want := range map[string]string{"00000000:1B:00.0": "0000:1b:00.0", "00010000:1B:00.0": "00010000:1b:00.0", "0001:1b:00.0": "0001:1b:00.0", "": ""} {
		if got := busID(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestGPUTopologyOfThisMachine logs the topology of a real machine. On a machine without a driver
// it checks and logs that there is none.
func TestGPUTopologyOfThisMachine(t *testing.T) {
	n, err := Open("")
	real := os.Getenv("MILLRACE_CUDA_REAL") != ""
	config := topology.Config{WithoutLibrary: err}
	if err == nil {
		defer func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}()
		config.Library, config.WithoutLibrary = n, nil
	} else if real || !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	if config.Granted, config.Nodes, err = topology.Granted(); err != nil {
		t.Fatal(err)
	}
	got := topology.Discover(config)
	t.Logf("driver %s, cuda %s, notes %q, cards %+v", got.Driver, got.CUDA, got.Notes, got.NICs)
	if real && (len(got.Devices) == 0 || got.Driver == "") {
		t.Error("no devices")
	}
	for i, d := range got.Devices {
		t.Logf("%+v", d)
		t.Logf("links %+v", got.Links[i])
		s, err := n.Sample(d.UUID)
		if err != nil || s.TotalBytes == 0 {
			t.Errorf("sample %+v, %v", s, err)
		}
		t.Logf("sample %+v, NVLink %+v, PCIe %+v", s, s.NVLink, n.PCIe(d.UUID))
	}
}
