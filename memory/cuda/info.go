package cuda

import (
	"encoding/hex"
	"strings"
)

// UUID permanently identifies a GPU, or a MIG instance of a GPU.
type UUID [16]byte

// String returns the form of nvidia-smi for a whole GPU. Use Info.ID for a device that may be a MIG
// instance.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return "GPU-" + strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// Matches compares with a UUID as NVML and CUDA_VISIBLE_DEVICES write it. It ignores the prefix
// (GPU- or MIG-).
func (u UUID) Matches(text string) bool {
	_, rest, found := strings.Cut(u.String(), "-")
	_, other, otherFound := strings.Cut(text, "-")
	return found && otherFound && strings.EqualFold(rest, other)
}

// Attributes are the attributes of a device that Millrace uses.
type Attributes struct {
	// ComputeMajor and ComputeMinor are the compute capability: 9 and 0 are sm_90.
	ComputeMajor, ComputeMinor int
	Multiprocessors            int
	// SharedBytes is the largest shared memory of a block, which a kernel must opt in to.
	SharedBytes uint64
	// ReadOnlyRegistration: the device can register host memory that this process may only read.
	ReadOnlyRegistration bool
	// Shareable: the driver says that the device's memory can be shared with other processes. Only
	// Slab.Export shows whether that works.
	Shareable bool
	// Pageable: the device reads the host's pageable memory itself (GH200, HMM). A copy from such
	// memory may still read its source after the call has returned.
	Pageable bool
	// DirectRDMA: the driver can let other PCI devices, such as network cards, access the device's
	// memory. DMABuf: it can do so by dma-buf, without the kernel module nvidia_peermem.
	DirectRDMA, DMABuf bool
	// OrdersWrites: when a network card has reported the end of a write to the device's memory, all
	// devices see the bytes. FlushesWrites: if not, Device.FlushWrites waits until they do.
	OrdersWrites, FlushesWrites bool
}

const (
	// hostFlush is a bit of the attribute GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, and orderedForAll
	// the value of GPU_DIRECT_RDMA_WRITES_ORDERING for all devices.
	hostFlush     = 1
	orderedForAll = 200
)

// Info describes a device that this process can see.
type Info struct {
	// Ordinal is the driver's number in this process. It depends on CUDA_VISIBLE_DEVICES.
	Ordinal int
	UUID    UUID
	Name    string
	// PCIBusID is written as in sysfs: "0000:1b:00.0".
	PCIBusID   string
	TotalBytes uint64
	Attributes Attributes
}

// Instance says whether the device is a MIG instance of a GPU. CUDA shows that only in the name
// ("NVIDIA H200 MIG 1g.18gb"). The UUID is then that of the instance.
func (i Info) Instance() bool { return strings.Contains(i.Name, " MIG ") }

// ID returns the UUID as nvidia-smi, NVML and CUDA_VISIBLE_DEVICES write it. The UUID of a MIG
// instance must begin with MIG-; with GPU- it identifies no device, or another one.
func (i Info) ID() string {
	id := i.UUID.String()
	if i.Instance() {
		id = "MIG-" + strings.TrimPrefix(id, "GPU-")
	}
	return id
}

// Visible returns the CUDA_VISIBLE_DEVICES that shows only this device to another process. given is
// the value in this process, nil if it is not set. If given has a UUID for this device, Visible
// returns that text unchanged: it has worked, in whatever notation it is (MIG-GPU-…/1/0 of older
// drivers).
func (i Info) Visible(given *string) string {
	if given == nil {
		return i.ID()
	}
	// The driver numbers the devices in the order of the entries.
	entries := strings.Split(*given, ",")
	if i.Ordinal < len(entries) {
		if entry := strings.TrimSpace(entries[i.Ordinal]); strings.HasPrefix(entry, "GPU-") || strings.HasPrefix(entry, "MIG-") {
			return entry
		}
	}
	return i.ID()
}
