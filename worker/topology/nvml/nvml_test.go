//go:build cgo && linux

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"github.com/millrace/millrace/worker/topology"
)

// dgx is a DGX A100: eight GPUs with twelve links each to switches.
func dgx() *dgxa100.Server {
	s := dgxa100.New()
	for i := range s.Devices {
		d := s.Devices[i].(*dgxa100.Device)
		d.UUID = fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i)
		d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
			return pciInfo(fmt.Sprintf("00000000:%02X:00.0", 0xb0+i)), nvml.SUCCESS
		}
		d.GetCpuAffinityWithinScopeFunc = func(int, nvml.AffinityScope) ([]uint, nvml.Return) {
			return []uint{0xf << (8 * (i / 4)), 1}, nvml.SUCCESS
		}
		d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
			if link >= 12 {
				return 0, nvml.ERROR_INVALID_ARGUMENT
			}
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
		d.GetNvLinkRemoteDeviceTypeFunc = func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		}
		d.GetP2PStatusFunc = func(nvml.Device, nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
			return nvml.P2P_STATUS_OK, nvml.SUCCESS
		}
	}
	return s
}

func device(s *dgxa100.Server, i int) *dgxa100.Device { return s.Devices[i].(*dgxa100.Device) }

func pciInfo(bus string) (p nvml.PciInfo) {
	for i, c := range []byte(bus) {
		p.BusId[i] = int8(c)
	}
	return p
}

func report(t *testing.T, s nvml.Interface) topology.Report {
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
	if g.Index != 5 || g.UUID != "GPU-00000005-0000-0000-0000-000000000000" || g.PCIBusID != "0000:b5:00.0" || g.Name != "Mock NVIDIA A100-SXM4-40GB" ||
		g.TotalBytes != 42949672960 || g.ComputeMajor != 8 || g.MIGEnabled || g.CPUs.String() != "8-11,64" {
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
	// 0 and 1 are linked directly by four, 0 to 2 only by PCIe, and refused.
	for _, pair := range [][2]int{{0, 1}, {1, 0}} {
		d := device(s, pair[0])
		d.GetNvLinkRemoteDeviceTypeFunc = func(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
		}
		d.GetNvLinkRemotePciInfoFunc = func(link int) (nvml.PciInfo, nvml.Return) {
			return pciInfo(fmt.Sprintf("00000000:%02X:00.0", 0xb0+pair[1])), nvml.SUCCESS
		}
		d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
			switch {
			case link >= 6:
				return 0, nvml.ERROR_NOT_SUPPORTED
			case link >= 4:
				return nvml.FEATURE_DISABLED, nvml.SUCCESS
			}
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
	}
	device(s, 0).GetP2PStatusFunc = func(other nvml.Device, caps nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
		switch {
		case other == s.Devices[1]:
			return nvml.P2P_STATUS_OK, nvml.SUCCESS
		case other == s.Devices[3]:
			return 0, nvml.ERROR_GPU_IS_LOST
		}
		return nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED, nvml.SUCCESS
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
	for i := range s.Devices {
		device(s, i).GetNvLinkRemoteDeviceTypeFunc = func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, nvml.ERROR_NOT_SUPPORTED
		}
	}
	if l := report(t, s).Links[2][6]; l.NVLinks != 12 || !l.P2P {
		t.Errorf("%+v", l)
	}
}

func TestInstancesOfMIG(t *testing.T) {
	s := dgx()
	d := device(s, 1)
	d.MigMode = nvml.DEVICE_MIG_ENABLE
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i != 0 && i != 2 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetUUIDFunc:              func() (string, nvml.Return) { return fmt.Sprintf("MIG-%d", i), nvml.SUCCESS },
			GetNameFunc:              func() (string, nvml.Return) { return "MIG 3g.20gb", nvml.SUCCESS },
			GetMemoryInfoFunc:        func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 20 << 30}, nvml.SUCCESS },
			GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return i + 1, nvml.SUCCESS },
			GetComputeInstanceIdFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		}, nvml.SUCCESS
	}
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

func TestWhatIsMissingIsNoted(t *testing.T) {
	s := dgx()
	handle := s.DeviceGetHandleByIndexFunc
	s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 3 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return handle(i)
	}
	device(s, 4).GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_UNKNOWN }
	device(s, 5).GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_NOT_SUPPORTED }
	r := report(t, s)
	if len(r.GPUs) != 6 || len(r.Links) != 6 || len(r.Notes) != 3 {
		t.Fatalf("%d GPUs, notes %q", len(r.GPUs), r.Notes)
	}
	for i, want := range []string{"GPU 3: ", "GPU 4: its UUID", "GPU-00000005-0000-0000-0000-000000000000: name"} {
		if !strings.Contains(r.Notes[i], want) {
			t.Errorf("note %q, want %q", r.Notes[i], want)
		}
	}
	s.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	if _, err := (&NVML{library: s}).Report(); err == nil || !strings.Contains(err.Error(), "count the GPUs") {
		t.Errorf("got %v", err)
	}
}

func TestWithoutALibraryItSaysWhatToInstall(t *testing.T) {
	_, err := Open("/nonexistent/libnvidia-ml.so.1")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "install NVIDIA's driver") {
		t.Errorf("got %v", err)
	}
	s := dgx()
	s.InitFunc = func() nvml.Return { return nvml.ERROR_LIB_RM_VERSION_MISMATCH }
	if _, err := open(s); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "look at nvidia-smi") {
		t.Errorf("got %v", err)
	}
}

func TestSample(t *testing.T) {
	s := dgx()
	d := device(s, 2)
	d.MemoryInfo = nvml.Memory{Total: 40 << 30, Used: 3 << 30}
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
		return nvml.Utilization{Gpu: 90, Memory: 30}, nvml.SUCCESS
	}
	d.GetClockInfoFunc = func(kind nvml.ClockType) (uint32, nvml.Return) { return 1000 + uint32(kind), nvml.SUCCESS }
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) {
		return nvml.ClocksEventReasonGpuIdle | nvml.ClocksEventReasonSwPowerCap | nvml.ClocksThrottleReasonHwThermalSlowdown, nvml.SUCCESS
	}
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 123456, nvml.SUCCESS }
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetTotalEccErrorsFunc = func(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
		return 7 + uint64(kind), nvml.SUCCESS
	}
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 10, UsedGpuMemory: 1 << 30}, {Pid: 11, UsedGpuMemory: ^uint64(0)}}, nvml.SUCCESS
	}
	n := &NVML{library: s}
	got, err := n.Sample(d.UUID)
	if err != nil {
		t.Fatal(err)
	}
	if got.UsedBytes != 3<<30 || got.UtilizationPercent != 90 || got.MemoryPercent != 30 || got.ClockMHz != 1001 || got.MemoryClockMHz != 1002 ||
		got.Watts != 123.456 || got.Celsius != 0 || got.CorrectedECC != 7 || got.UncorrectedECC != 8 ||
		!slices.Equal(got.Throttled, []string{"power cap", "temperature, by the hardware"}) ||
		!slices.Equal(got.Processes, []topology.Process{{PID: 10, UsedBytes: 1 << 30}, {PID: 11}}) {
		t.Errorf("%+v", got)
	}
	// A driver without a function is not called for it.
	s.LookupSymbolFunc = func(string) error { return errors.New("undefined symbol") }
	if got, err := n.Sample(d.UUID); err != nil || got.Throttled != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := n.Sample("GPU-of-another-machine"); err == nil {
		t.Error("sampled a GPU that is not there")
	}
}

func TestWatchTellsOfXidAndECCErrors(t *testing.T) {
	s := dgx()
	type told struct {
		data nvml.EventData
		r    nvml.Return
	}
	ctx, cancel := context.WithCancel(t.Context())
	script := []told{
		{nvml.EventData{Device: s.Devices[1], EventType: nvml.EventTypeXidCriticalError, EventData: 79}, nvml.SUCCESS},
		{nvml.EventData{}, nvml.ERROR_TIMEOUT},
		{nvml.EventData{Device: s.Devices[2], EventType: nvml.EventTypeDoubleBitEccError}, nvml.SUCCESS},
		{nvml.EventData{EventType: nvml.EventTypeXidCriticalError, EventData: 31}, nvml.SUCCESS},
	}
	freed := 0
	set := &mock.EventSet{
		FreeFunc: func() nvml.Return { freed++; return nvml.SUCCESS },
		WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
			if len(script) == 0 {
				cancel()
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}
			next := script[0]
			script = script[1:]
			return next.data, next.r
		},
	}
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS }
	registered := 0
	for i := range s.Devices {
		device(s, i).GetSupportedEventTypesFunc = func() (uint64, nvml.Return) {
			if i == 7 {
				return 0, nvml.ERROR_NOT_SUPPORTED
			}
			return nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypePState, nvml.SUCCESS
		}
		device(s, i).RegisterEventsFunc = func(kinds uint64, _ nvml.EventSet) nvml.Return {
			if kinds != nvml.EventTypeXidCriticalError|nvml.EventTypeDoubleBitEccError {
				t.Errorf("registered for %#x", kinds)
			}
			registered++
			return nvml.SUCCESS
		}
	}
	n := &NVML{library: s}
	var got []string
	if err := n.Watch(ctx, func(e topology.Event) { got = append(got, fmt.Sprint(e, e.Fatal())) }); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"GPU-00000001-0000-0000-0000-000000000000: Xid 79: the GPU has fallen off the bus true",
		"GPU-00000002-0000-0000-0000-000000000000: a memory error that ECC could not correct true",
		"all GPUs: Xid 31: a program used an address that is not mapped false",
	}
	if registered != 7 || freed != 1 || !slices.Equal(got, want) {
		t.Errorf("%d registered, %d freed, got %q", registered, freed, got)
	}
	script = []told{{r: nvml.ERROR_GPU_IS_LOST}}
	if err := n.Watch(t.Context(), func(topology.Event) {}); err == nil || !strings.Contains(err.Error(), "wait for events") {
		t.Errorf("a wait that fails: %v", err)
	}
	for i := range s.Devices {
		device(s, i).GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	}
	if err := n.Watch(t.Context(), func(topology.Event) {}); err == nil || !strings.Contains(err.Error(), "none of the 8 GPUs") {
		t.Errorf("no events here: %v", err)
	}
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	if err := n.Watch(t.Context(), func(topology.Event) {}); err == nil {
		t.Error("watched without a set")
	}
}

func TestBusIDsAreSysfs(t *testing.T) {
	for in, want := range map[string]string{"00000000:1B:00.0": "0000:1b:00.0", "00010000:1B:00.0": "00010000:1b:00.0", "0001:1b:00.0": "0001:1b:00.0", "": ""} {
		if got := busID(pciInfo(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestGPUTopologyOfThisMachine shows what a real machine says; without a driver
// it shows that.
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
		t.Logf("sample %+v", s)
	}
}
