package cuda

import "fmt"

// libraryName is the driver's library. The dynamic linker searches for it.
const libraryName = "libcuda.so.1"

// Config selects the driver library.
type Config struct {
	// Library is a path, or a name for the dynamic linker; "" means libcuda.so.1. A process can
	// load only one library.
	Library string
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
