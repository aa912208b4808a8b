package cuda

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// libraryName is the driver's library. The dynamic linker searches for it.
const libraryName = "libcuda.so.1"

// Config selects the driver library.
type Config struct {
	// Library is a path, or a name for the dynamic linker; "" means libcuda.so.1. A process can
	// load only one library.
	Library string
}

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
	// CopyEngines is the number of copies that can run beside kernels.
	CopyEngines int
	L2Bytes     uint64
	// SharedBytes is the largest shared memory of a block, which a kernel must opt in to.
	SharedBytes       uint64
	UnifiedAddressing bool
	// Integrated: the device uses the host's memory.
	Integrated bool
	// ReadOnlyRegistration: the device can register host memory that this process may only read.
	ReadOnlyRegistration bool
	// Shareable: the driver says that the device's memory can be shared with other processes. Only
	// Slab.Export shows whether that works.
	Shareable bool
	// Pageable: the device reads the host's pageable memory itself (GH200, HMM). A copy from such
	// memory may still read its source after the call has returned.
	Pageable bool
}

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

// Driver is the loaded library.
type Driver struct {
	api     api
	library string
	version int
	devices []Info
}

// Load loads the driver and lists its devices. It creates no context.
func Load(c Config) (*Driver, error) {
	if c.Library == "" {
		c.Library = libraryName
	}
	a, err := loadLibrary(c.Library)
	if err != nil {
		return nil, err
	}
	return newDriver(a, c.Library)
}

func newDriver(a api, library string) (*Driver, error) {
	d := &Driver{api: a, library: library}
	version, count, r := a.initialize()
	if r != success {
		return nil, fmt.Errorf("%w: %w; look at nvidia-smi and CUDA_VISIBLE_DEVICES", ErrUnavailable, newError(a, "cuInit", "", r))
	}
	d.version = version
	for i := range count {
		info, r := a.describe(i)
		if r != success {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, newError(a, "describe", fmt.Sprintf("device %d", i), r))
		}
		d.devices = append(d.devices, info)
	}
	return d, nil
}

// Version returns the newest version of CUDA that the driver supports: "13.0".
func (d *Driver) Version() string { return fmt.Sprintf("%d.%d", d.version/1000, d.version%1000/10) }

// Library returns the path or name of the loaded library.
func (d *Driver) Library() string { return d.library }

// Devices returns the devices that CUDA_VISIBLE_DEVICES allows, in the driver's order. The caller
// must not change the slice.
func (d *Driver) Devices() []Info { return d.devices }

// Find returns the device with a UUID as NVML writes it.
func (d *Driver) Find(uuid string) (Info, error) {
	for _, info := range d.devices {
		if info.UUID.Matches(uuid) {
			return info, nil
		}
	}
	return Info{}, fmt.Errorf("%w: this process sees no device %s among its %d; look at CUDA_VISIBLE_DEVICES", ErrUnavailable, uuid, len(d.devices))
}

// PeerAccess says at [i][j] whether device i can access the memory of device j. A device can access
// its own memory.
func (d *Driver) PeerAccess() ([][]bool, error) {
	matrix := make([][]bool, len(d.devices))
	for i := range matrix {
		matrix[i] = make([]bool, len(d.devices))
		for j := range matrix[i] {
			if i == j {
				matrix[i][j] = true
				continue
			}
			can, r := d.api.canAccess(i, j)
			if r != success {
				return nil, newError(d.api, "cuDeviceCanAccessPeer", fmt.Sprintf("devices %d and %d", i, j), r)
			}
			matrix[i][j] = can
		}
	}
	return matrix, nil
}
