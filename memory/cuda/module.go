package cuda

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
)

// Module is code that was loaded onto a device.
type Module struct {
	device *Device
	handle uint64
	closed atomic.Bool
}

// Function is a kernel of a module. It must not be used after the module is closed.
type Function struct {
	device *Device
	handle uint64
	name   string

	mu sync.Mutex
	// shared is the largest size that was passed to AllowShared; guarded by mu.
	shared uint32
}

// Load loads a CUBIN for the device's architecture, or PTX. The driver translates PTX first, which
// takes at least 90 ms, so use it only on devices without a CUBIN.
func (d *Device) Load(code []byte) (*Module, error) {
	if err := d.Health(); err != nil {
		return nil, err
	}
	// The driver takes the length from the image itself: PTX ends with a zero byte.
	switch elf := len(code) >= 64 && string(code[:4]) == "\x7fELF"; {
	case elf:
	case bytes.Contains(code[:min(len(code), 4096)], []byte(".version")):
		code = append(bytes.TrimRight(bytes.Clone(code), "\x00"), 0)
	default:
		return nil, fmt.Errorf("cuda: %d bytes that are no CUBIN and no PTX", len(code))
	}
	if err := d.adopt(kindModule); err != nil {
		return nil, err
	}
	handle, r := d.api.moduleLoad(d.context, code)
	if err := d.check("cuModuleLoadData", r); err != nil {
		d.forget(kindModule)
		return nil, err
	}
	return &Module{device: d, handle: handle}, nil
}

// Function finds a kernel by its name in the code.
func (m *Module) Function(name string) (*Function, error) {
	if err := m.device.Health(); err != nil {
		return nil, err
	}
	handle, r := m.device.api.moduleFunction(m.device.context, m.handle, name)
	if err := m.device.check("cuModuleGetFunction", r); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	return &Function{device: m.device, handle: handle, name: name}, nil
}

// Close unloads the code.
// REQUIRES: none of its kernels is running.
func (m *Module) Close() error {
	if !m.closed.CompareAndSwap(false, true) {
		return nil
	}
	defer m.device.forget(kindModule)
	err := m.device.check("cuModuleUnload", m.device.api.moduleUnload(m.device.context, m.handle))
	if m.device.lost.Load() != nil {
		return nil
	}
	return err
}

// AllowShared lets launches use so many bytes of dynamic shared memory, if that is more than 48
// KiB. The limit of the device is Attributes.SharedBytes. AllowShared never lowers the limit,
// because another launch may be about to use the memory that was allowed before.
func (f *Function) AllowShared(bytes uint32) error {
	if err := f.device.Health(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes <= f.shared {
		return nil
	}
	if err := f.device.check("cuFuncSetAttribute of "+f.name, f.device.api.functionShared(f.device.context, f.handle, int(bytes))); err != nil {
		return err
	}
	f.shared = bytes
	return nil
}
