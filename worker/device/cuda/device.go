// Package cuda is an Adapter: a GPU as a worker's device, that is a slab of its memory together
// with the operations of worker/ops, which run as kernels and in NVIDIA's libraries. Names,
// arguments, headers and results are the same as on the host.
//
// Copies, integers, comparisons, the four basic arithmetic operations and uniform random numbers
// agree with the host to the bit. Functions of floats agree within a few units in the last place,
// sums of floats within the rounding of a sum in float64.
//
// All work is submitted to the device's one Compute stream. Each call is submitted as a whole under
// a lock, so that the next call may overwrite the scratch memory of the one before. The CPU
// computes the operations that have no kernel (bench.checksum, bench.stamp, reductions of empty
// tensors, tensors of more than eight axes that cannot be joined), on a copy of their inputs.
//
// NVRTC, cuBLAS, cuSOLVER and cuFFT are loaded when an operation first needs them. Operations that
// need none of them (copies, fills, number sequences) run from code that is compiled in advance:
// see the folder kernels.
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
	"github.com/millrace/millrace/worker/ops/lapack"
)

// Options are the settings of a device: the locations of the libraries and files that it needs
// besides the driver, and the size of its scratch memory. The zero Options use the usual places.
type Options struct {
	// Libraries are folders or files to search first for NVRTC, cuBLAS, cuSOLVER and
	// cuFFT.
	Libraries []string
	// Python is the interpreter whose packages may contain the libraries; "" means the interpreter
	// that runs tasks, by its usual names.
	Python string
	// CacheDir keeps compiled kernels; "" means millrace/kernels in the user's cache folder, "-"
	// keeps none.
	CacheDir string
	// ScratchBytes is the size of the scratch memory: device memory outside of the slab that all
	// operations share for intermediate data; 0 means 128 MiB. It grows when a call needs more.
	ScratchBytes uint64
	// Linalg is the library for operations of linear algebra that the CPU computes. Nil: they are
	// computed in pure Go.
	Linalg *lapack.Loading
	// Logf receives a message for each library: its file, or the reason why it was not found. May
	// be nil.
	Logf func(format string, args ...any)
}

// defaultScratchBytes is the default of Options.ScratchBytes. It counts against the GPU's memory
// from the start, so it is small beside that; a call that needs more makes it grow.
const defaultScratchBytes = 128 << 20

// Device is one GPU.
type Device struct {
	gpu    *gpu.Device
	slab   *gpu.Slab
	ops    *ops.Registry
	logf   func(format string, args ...any)
	finder finder
	linalg *lapack.Loading
	arch   string
	code   code
	slots  *slots
	stream *gpu.Stream
	// spins says that there are enough CPUs to spin for the end of a kernel without a loss for
	// other goroutines.
	spins bool

	blas   once[*blas]
	solver once[*solver]
	fft    once[*fft]

	// together is factoredTogether. Tests measure both ways.
	together func(rows, count int64) bool

	// Decisions for calls that came before, to be used again for calls of the same types and
	// shapes.
	mappers  remembered[*mapper]
	reducers remembered[*reducer]
	moves    remembered[*move]

	// write copies bytes to the slab.
	write func(f memory.Frame, b []byte) error

	// submitting serialises the submissions of calls and guards the fields below. batch collects
	// launches and copies that are to be submitted; parameters are those of the next launch.
	submitting sync.Mutex
	// scratch is nil if there was not enough memory, neither for the size that a call needed nor
	// for the old size again: the next call that needs scratch memory tries again.
	scratch    *gpu.Scratch
	batch      gpu.Batch
	parameters parameters
}

var _ device.Device = (*Device)(nil)

// once creates a value at its first use. It keeps an error, too.
type once[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (o *once[T]) get(makeIt func() (T, error)) (T, error) {
	o.once.Do(func() { o.value, o.err = makeIt() })
	return o.value, o.err
}

// New creates a device on the slab. Close closes the slab; the driver's device dev still belongs to
// the caller.
func New(dev *gpu.Device, slab *gpu.Slab, o Options) (*Device, error) {
	if slab.Device() != dev {
		return nil, fmt.Errorf("cuda: the slab lies on %v, not on %v", slab.Device(), dev)
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	a := dev.Info().Attributes
	d := &Device{
		gpu: dev, slab: slab, ops: ops.NewRegistry(ops.CUDAKernel()), logf: o.Logf, stream: dev.Stream(gpu.Compute), together: factoredTogether,
		finder: finder{given: o.Libraries, python: o.Python}, linalg: o.Linalg, spins: min(runtime.GOMAXPROCS(0), runtime.NumCPU()) >= 8,
		arch: fmt.Sprintf("sm_%d%d", a.ComputeMajor, a.ComputeMinor),
	}
	d.write = func(f memory.Frame, b []byte) error { return slab.WriteFrom(f.Offset, b) }
	d.code = code{
		device: d, functions: map[string]*entry{}, builtinModules: map[string]*entry{}, maxModules: maxModules, current: &generation{},
		builtins: map[string]*gpu.Function{}, users: map[string]*userModule{}, maxUsers: maxUserModules,
		disk: diskCache{dir: cacheDir(o.CacheDir), maxBytes: defaultCacheBytes},
	}
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

// Close is part of device.Device. It waits for the work that was submitted.
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
	if d.fft.value != nil {
		errs = append(errs, d.fft.value.close())
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
