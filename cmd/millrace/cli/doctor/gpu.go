package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/host"
	gpudevice "github.com/millrace/millrace/worker/device/cuda"
	"github.com/millrace/millrace/worker/topology"
	"github.com/millrace/millrace/worker/topology/nvml"
)

// GPUs describes the GPUs that workers would use.
type GPUs struct {
	// CUDALibrary is the driver, NVMLLibrary is NVML ("none": not used). Empty: the system's.
	CUDALibrary, NVMLLibrary string
	// Topology lists the devices on which workers would be started.
	Topology *topology.Topology
	// Retired maps workers to the cause for which the cluster retired their devices.
	Retired map[string]string
}

// gpus makes the checks of GPUs. On a machine without GPUs the result is one finding.
func (c Config) gpus() []Finding {
	t := c.GPUs.Topology
	if t == nil {
		return nil
	}
	driver := c.driver()
	if len(t.Devices) == 0 && t.Driver == "" && t.Wrong == nil && driver.State != OK {
		f := Finding{Check: "gpu", State: OK, Found: "none: workers use host memory (" + driver.Found + ")"}
		for _, n := range t.Notes {
			if strings.Contains(n, "sysfs has") {
				f.State, f.Found, f.Remedy = Warn, n, "install NVIDIA's driver or, in a container, use NVIDIA's runtime (--gpus all)"
			}
		}
		return []Finding{f}
	}
	findings := []Finding{driver, c.visible(), c.nvml()}
	for _, d := range t.Devices {
		findings = append(findings, c.device(d))
	}
	if len(t.Devices) > 1 {
		findings = append(findings, c.peers())
	}
	for _, l := range gpudevice.FindLibraries(firstOf(c.Python)) {
		f := Finding{Check: l.Name, State: OK, Found: l.File}
		if l.Err != nil {
			f.State, f.Found = Warn, fmt.Sprintf("lib%s.so was not found: %s will fail on GPUs", l.Name, l.For)
			f.Remedy = "install CUDA's wheels into the Python that runs tasks (pip install nvidia-cuda-nvrtc nvidia-cublas nvidia-cusolver nvidia-cufft, or cupy-cuda13x[ctk]), or the toolkit"
		}
		findings = append(findings, f)
	}
	return append(findings, pinned(), devShm())
}

func firstOf(command []string) string {
	if len(command) == 0 {
		return ""
	}
	return command[0]
}

func (c Config) driver() Finding {
	f := Finding{Check: "gpu-driver", State: OK}
	driver, err := cuda.Load(cuda.Config{Library: c.GPUs.CUDALibrary})
	if err != nil {
		f.State, f.Found = Fail, err.Error()
		f.Remedy = "install NVIDIA's driver; in a container let its runtime mount libcuda.so.1 (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
		return f
	}
	f.Found = fmt.Sprintf("%s, CUDA %s, %d GPUs", driver.Library(), driver.Version(), len(driver.Devices()))
	if v := c.GPUs.Topology.Driver; v != "" {
		f.Found += ", driver " + v
	}
	for _, d := range driver.Devices() {
		if !d.Attributes.Shareable {
			f.State, f.Found = Warn, fmt.Sprintf("%s; memory of %s (%s) cannot be shared with other processes (as under WSL, on some virtual GPUs and on Tegra)", f.Found, d.ID(), d.Name)
			f.Remedy = "a worker on it runs native operations and serves others by way of pinned memory or by streams; run Python tasks on workers with --device host"
		}
	}
	return f
}

func (c Config) visible() Finding {
	f := Finding{Check: "gpu-visible", State: OK}
	t := c.GPUs.Topology
	if t.Wrong != nil {
		f.State, f.Found, f.Remedy = Fail, t.Wrong.Error(), "correct or unset CUDA_VISIBLE_DEVICES"
		return f
	}
	f.Found = fmt.Sprintf("workers would be started on %d", len(t.Devices))
	for _, n := range t.Notes {
		if strings.HasPrefix(n, "CUDA_VISIBLE_DEVICES") || strings.Contains(n, "MIG") {
			f.State, f.Found = Warn, f.Found+"; "+n
			f.Remedy = "look at CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and nvidia-smi -L"
		}
	}
	return f
}

func (c Config) nvml() Finding {
	f := Finding{Check: "nvml", State: OK, Found: "it tells of health, links and places"}
	if c.GPUs.NVMLLibrary == "none" {
		f.Found = "not used (--nvml-library none)"
		return f
	}
	library, err := nvml.Open(c.GPUs.NVMLLibrary)
	if err != nil {
		f.State, f.Found = Warn, err.Error()
		f.Remedy = "workers run without it, but nobody hears of Xid and ECC errors: mount libnvidia-ml.so.1 (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
		return f
	}
	if err := library.Close(); err != nil {
		f.State, f.Found = Warn, err.Error()
	}
	return f
}

// device checks one GPU: its placement, the processes that use it, and its health.
func (c Config) device(d topology.Device) Finding {
	f := Finding{Check: "gpu " + d.UUID, State: OK}
	f.Found = fmt.Sprintf("%s, %s; %s", d.Name, humanize.IBytes(d.TotalBytes), d.Placement.Why)
	for worker, cause := range c.GPUs.Retired {
		if strings.Contains(cause, d.UUID) {
			f.warn(fmt.Sprintf("%s was retired: %s", worker, cause), "look at nvidia-smi -q and the kernel's log; then start millrace again")
		}
	}
	if c.GPUs.NVMLLibrary == "none" {
		return f
	}
	library, err := nvml.Open(c.GPUs.NVMLLibrary)
	if err != nil {
		return f
	}
	defer func() { _ = library.Close() }() // it is not needed any more
	s, err := library.Sample(d.UUID)
	if err != nil {
		f.warn(err.Error(), "look at nvidia-smi")
		return f
	}
	f.Found += fmt.Sprintf("; %s in use by %d processes", humanize.IBytes(s.UsedBytes), len(s.Processes))
	if s.UncorrectedECC > 0 {
		f.warn(fmt.Sprintf("%d memory errors that ECC could not correct", s.UncorrectedECC), "reset the GPU or replace it (nvidia-smi -q -d ECC,ROW_REMAPPER)")
	}
	if len(s.Throttled) > 0 {
		f.warn("slowed by: "+strings.Join(s.Throttled, ", "), "look at cooling and power (nvidia-smi -q -d PERFORMANCE)")
	}
	if s.TotalBytes > 0 && s.UsedBytes > s.TotalBytes/4 {
		f.warn("more than a quarter of its memory is in use", "end what uses it, unless that is this cluster, or lower --device-memory-limit")
	}
	return f
}

// peers checks whether all GPUs can reach each other.
func (c Config) peers() Finding {
	f := Finding{Check: "gpu-peers", State: OK}
	t := c.GPUs.Topology
	if t.Links == nil {
		f.State, f.Found, f.Remedy = Warn, "it is not known how GPUs reach each other", "let workers have NVML, or look at nvidia-smi topo -m"
		return f
	}
	least, refused, why := -1, 0, ""
	for i, line := range t.Links {
		for j, l := range line {
			switch {
			case i == j:
			case !l.P2P:
				refused++
				why = l.Why
			case least < 0 || l.NVLinks < least:
				least = l.NVLinks
			}
		}
	}
	switch {
	case refused > 0:
		f.State, f.Found = Warn, fmt.Sprintf("%d pairs do not reach each other's memory: %s; objects between them go through the host", refused, why)
		f.Remedy = "look at nvidia-smi topo -p2p r; MIG, some virtual machines and IOMMU settings forbid it"
	case least == 0:
		f.Found = "all reach each other, some by PCIe only"
	default:
		f.Found = fmt.Sprintf("all reach each other, by %d NVLinks or more", least)
	}
	return f
}

// littlePinned is too little pinned memory to be useful as a tier below a GPU.
const littlePinned = 8 << 30

// pinned checks the memory that GPUs spill to first.
func pinned() Finding {
	f := Finding{Check: "pinned-memory", State: OK}
	limit, err := host.UsableMemory()
	if err != nil {
		f.State, f.Found, f.Remedy = Warn, err.Error(), "set --pinned-limit"
		return f
	}
	f.Found = fmt.Sprintf("half of %s (%s) is for what GPUs have no room for, shared by them", humanize.IBytes(limit.Bytes), limit.Source)
	if limit.Bytes/2 < littlePinned {
		f.State, f.Remedy = Warn, "give the container more memory, or set --pinned-limit; the rest goes to disk"
	}
	return f
}

// devShm checks /dev/shm. Millrace does not use it, but libraries of users share memory there.
func devShm() Finding {
	f := Finding{Check: "dev-shm", State: OK}
	var s unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &s); err != nil {
		f.State, f.Found, f.Remedy = Warn, errors.Join(errors.New("/dev/shm"), err).Error(), "mount a tmpfs there: torch's loaders and NCCL want it"
		return f
	}
	size := s.Blocks * uint64(s.Bsize)
	f.Found = fmt.Sprintf("/dev/shm has %s; workers keep objects in memfds, which do not count there", humanize.IBytes(size))
	if size < 1<<30 {
		f.State, f.Remedy = Warn, "torch's loaders, NCCL and UCX's shared memory may want more: --shm-size 8g of docker, or --ipc=host"
	}
	return f
}
