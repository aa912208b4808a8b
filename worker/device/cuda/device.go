// Package cuda is an Adapter: a GPU as a worker's device, that is a slab of its
// memory together with the operations of worker/ops, by kernels and by NVIDIA's
// libraries. Names, arguments, headers and results are those of the host.
//
// What is moved, integers, comparisons, the four arithmetics and uniform random
// numbers agree with the host to the bit. Functions of floats agree within a few
// units in the last place, sums of floats within the rounding of a sum in float64.
//
// All work is submitted to the device's one Compute stream, each call as a whole
// under a lock, so that what one call left in the scratch memory may be overwritten
// by the next. What no kernel does (bench.checksum, bench.stamp, reductions of
// nothing, tensors of more than eight axes that do not join) is computed by the
// processor on a copy of its inputs.
//
// NVRTC, cuBLAS and cuSOLVER are loaded when an operation first needs them. What
// needs none of them (copies, fills, numbers) runs from code that is compiled
// beforehand: see kernels.
package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

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
	// ScratchBytes is the device memory beside the slab that operations share for
	// what they need between kernels; 0 is 128 MiB. It grows when a call needs more.
	ScratchBytes uint64
	// Logf is told of each library, where it was found or why it was not. May be
	// nil.
	Logf func(format string, args ...any)
}

const defaultScratchBytes = 128 << 20

// Device is one GPU.
type Device struct {
	gpu    *gpu.Device
	slab   *gpu.Slab
	ops    *ops.Registry
	logf   func(format string, args ...any)
	finder finder
	arch   string
	code   code
	slots  *slots
	stream *gpu.Stream
	// spins: there are processors enough to look for the end of a kernel without
	// leaving room for others.
	spins bool

	blas   once[*blas]
	solver once[*solver]

	// What was decided for calls of the usual kinds.
	mappers  remembered[*mapper]
	reducers remembered[*reducer]
	moves    remembered[*move]

	// write copies to the slab.
	write func(f memory.Frame, b []byte) error

	// submitting makes what a call submits one piece, and guards what follows: batch is
	// what is gathered of it, parameters those of the next launch.
	submitting sync.Mutex
	// scratch is nil when there was room neither for what a call needed nor for what was there
	// before: the next call that needs some asks again.
	scratch    *gpu.Scratch
	batch      gpu.Batch
	parameters parameters
}

var _ device.Device = (*Device)(nil)

// once makes something when it is first asked for, and keeps an error too.
type once[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (o *once[T]) get(makeIt func() (T, error)) (T, error) {
	o.once.Do(func() { o.value, o.err = makeIt() })
	return o.value, o.err
}

// New makes a device of the slab, which it closes at its own end; the driver's
// device stays the caller's.
func New(dev *gpu.Device, slab *gpu.Slab, o Options) (*Device, error) {
	if slab.Device() != dev {
		return nil, fmt.Errorf("cuda: the slab lies on %v, not on %v", slab.Device(), dev)
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	a := dev.Info().Attributes
	d := &Device{
		gpu: dev, slab: slab, ops: ops.NewRegistry(ops.CUDAKernel()), logf: o.Logf, stream: dev.Stream(gpu.Compute),
		finder: finder{given: o.Libraries, python: o.Python}, spins: min(runtime.GOMAXPROCS(0), runtime.NumCPU()) >= 8,
		arch: fmt.Sprintf("sm_%d%d", a.ComputeMajor, a.ComputeMinor),
	}
	d.write = func(f memory.Frame, b []byte) error { return slab.WriteFrom(f.Offset, b) }
	d.code = code{device: d, functions: map[string]*entry{}, builtins: map[string]*gpu.Function{}, users: map[string]*userModule{}, maxUsers: maxUserModules, disk: diskCache{dir: cacheDir(o.CacheDir), maxBytes: defaultCacheBytes}}
	if o.ScratchBytes == 0 {
		o.ScratchBytes = defaultScratchBytes
	}
	var err error
	if d.slots, err = newSlots(dev); err != nil {
		return nil, err
	}
	if d.scratch, err = dev.NewScratch(o.ScratchBytes, 0); err != nil {
		return nil, errors.Join(err, d.slots.close())
	}
	return d, nil
}

func cacheDir(given string) string {
	if given == "-" {
		return ""
	}
	if given != "" {
		return given
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(base, "millrace", "kernels")
}

// Kind is part of device.Device.
func (d *Device) Kind() device.Kind { return device.CUDA }

// Space is part of device.Device.
func (d *Device) Space() memory.Space { return d.slab }

// Ops is part of device.Device.
func (d *Device) Ops() []string { return d.ops.Names() }

// Close is part of device.Device. It waits for what was submitted.
func (d *Device) Close() error {
	d.submitting.Lock()
	defer d.submitting.Unlock()
	var errs []error
	if d.gpu.Health() == nil {
		errs = append(errs, d.stream.Sync())
	}
	if d.solver.value != nil {
		errs = append(errs, d.solver.value.close())
	}
	if d.blas.value != nil {
		errs = append(errs, d.blas.value.close())
	}
	for i := range d.slots.runs {
		if r := &d.slots.runs[i]; r.event != nil {
			errs = append(errs, r.event.Close())
			r.event = nil
		}
	}
	errs = append(errs, d.code.close(), d.slots.close(), d.scratch.Close(), d.slab.Close())
	return errors.Join(errs...)
}
