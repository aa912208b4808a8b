// Package cuda is an Adapter: a GPU as a worker's device, that is a slab of its
// memory together with the operations of worker/ops, by kernels and by NVIDIA's
// libraries. Names, arguments, headers and results are those of the host.
package cuda

import (
	"errors"
	"fmt"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// Options say where a device finds what it needs beside the driver. The zero
// Options look in the usual places.
type Options struct {
	// Libraries are folders or files to look at first for NVRTC, cuBLAS and
	// cuSOLVER.
	Libraries []string
	// Python is the interpreter whose packages may bring the libraries; "" means
	// the one that runs tasks, by its usual names.
	Python string
	// CacheDir keeps compiled kernels; "" is millrace/kernels in the user's cache
	// folder, "-" keeps none.
	CacheDir string
	// Logf is told once of each library, where it was found or why it was not. May
	// be nil.
	Logf func(format string, args ...any)
}

// Device is one GPU.
type Device struct {
	gpu  *gpu.Device
	slab *gpu.Slab
	ops  *ops.Registry
}

var _ device.Device = (*Device)(nil)

// New makes a device of the slab, which it closes at its own end; the driver's
// device stays the caller's.
func New(dev *gpu.Device, slab *gpu.Slab, o Options) (*Device, error) {
	if slab.Device() != dev {
		return nil, fmt.Errorf("cuda: the slab lies on %v, not on %v", slab.Device(), dev)
	}
	_ = o
	return &Device{gpu: dev, slab: slab, ops: ops.NewRegistry()}, nil
}

// Kind is part of device.Device.
func (d *Device) Kind() device.Kind { return device.CUDA }

// Space is part of device.Device.
func (d *Device) Space() memory.Space { return d.slab }

// Ops is part of device.Device.
func (d *Device) Ops() []string { return d.ops.Names() }

// Close is part of device.Device.
func (d *Device) Close() error { return d.slab.Close() }

// Prepare is part of device.Device.
func (d *Device) Prepare(call device.Call) (device.Prepared, error) {
	return nil, &device.Error{Reason: "FUNCTION_NOT_FOUND", Message: errors.New(call.Op + ": not yet on a GPU").Error()}
}
