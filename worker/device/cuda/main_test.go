//go:build cgo && linux

package cuda

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/leaktest"
	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/wire"
	"github.com/millrace/millrace/worker/ops"
)

const (
	// realEnv makes the tests use the machine's driver. Only the tests named TestGPU can do so.
	realEnv = "MILLRACE_CUDA_REAL"
	// ratesEnv names a file to which measured rates are appended.
	ratesEnv = "MILLRACE_RATES"
)

var (
	fake   *cudatest.Fake // nil on a real GPU
	driver *gpu.Driver
	// compiledIn is the folder of the compiled kernels that the tests share.
	compiledIn string
)

func TestMain(m *testing.M) {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var err error
	if compiledIn, err = os.MkdirTemp("", "millrace-kernels-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(compiledIn); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		err = leaktest.Find()
	}
	if err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if fake != nil {
		if left := fake.Left(); left != "" && code == 0 {
			fmt.Fprintln(os.Stderr, "left in the driver:", left)
			code = 1
		}
		if err := fake.Close(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func start() (err error) {
	library := ""
	if os.Getenv(realEnv) == "" {
		if fake, err = cudatest.Start(1, 512<<20); err != nil {
			return err
		}
		library = fake.Library
	}
	driver, err = gpu.Load(gpu.Config{Library: library})
	return err
}

// bench is a device whose slab memory is allocated from the front.
type bench struct {
	*Device
	mu   sync.Mutex // guards next
	next uint64
}

// launch submits one kernel on the compute stream.
func (b *bench) launch(l gpu.Launch) error {
	var batch gpu.Batch
	batch.Launch(l)
	return b.stream.Submit(&batch, nil)
}

func open(tb testing.TB, slabBytes uint64, o Options) *bench {
	tb.Helper()
	dev, err := driver.Open(0)
	if err != nil {
		tb.Fatal(err)
	}
	slab, err := dev.NewSlab(gpu.SlabConfig{Size: gpu.Size{Bytes: slabBytes}})
	if err != nil {
		tb.Fatal(err)
	}
	if o.CacheDir == "" {
		o.CacheDir = filepath.Join(compiledIn, "cache")
	}
	if fake != nil {
		o.ScratchBytes = 8 << 20
	}
	o.Logf = tb.Logf
	d, err := New(dev, slab, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
		if err := dev.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &bench{Device: d, next: memory.HeaderBytes}
}

func (b *bench) alloc(n uint64) (memory.Frame, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := memory.Frame{Offset: b.next, Bytes: n}
	if !f.Within(b.slab.Size()) {
		return memory.Frame{}, device.ErrNoRoom
	}
	b.next += aligned(n)
	return f, nil
}

func (b *bench) reset() { b.mu.Lock(); b.next = memory.HeaderBytes; b.mu.Unlock() }

// onDevice copies a tensor to the slab, with all of its memory.
func (b *bench) onDevice(tb testing.TB, t *ops.Tensor) *ops.Tensor {
	tb.Helper()
	if t.Far != nil || t.Len() == 0 {
		return t
	}
	f, err := b.alloc(uint64(len(t.Data)))
	if err != nil {
		tb.Fatal(err)
	}
	if err := b.slab.WriteFrom(f.Offset, t.Data); err != nil {
		tb.Fatal(err)
	}
	out := *t
	out.Data = nil
	view(b.slab, f, &out)
	return &out
}

// call runs an operation on the device and returns its result. Tensors in frames stay on the
// device.
func (b *bench) call(ctx context.Context, name string, args ops.Args) (any, error) {
	op, err := b.ops.Lookup(name)
	if err != nil {
		return nil, err
	}
	p := &prepared{device: b.Device, op: op, args: args, attempt: 1, scratch: &rooms{b: b}}
	var asked uint64
	result, err := p.Run(ctx, func(n uint64) (memory.Frame, error) {
		asked += n
		return b.alloc(n)
	})
	if err != nil {
		return nil, err
	}
	if want := p.OutputBytes(); len(want) == 1 && want[0] < asked {
		return nil, fmt.Errorf("%s said %d bytes and asked for %d", name, want[0], asked)
	}
	arguments, err := proto.Marshal(&millracev1.Arguments{Positional: []*millracev1.Value{{Kind: &millracev1.Value_Input{}}}})
	if err != nil {
		return nil, err
	}
	back, err := wire.Arguments(device.Call{Op: name, Arguments: arguments, Inputs: []device.Input{{Header: result.Header, Frames: result.Frames}}}, b.slab, view)
	if err != nil {
		return nil, err
	}
	return back.Positional[0], nil
}

// resultOnHost copies a result to the CPU's memory.
func resultOnHost(tb testing.TB, v any) any {
	tb.Helper()
	args, err := argsOnHost(ops.Args{Positional: []any{v}})
	if err != nil {
		tb.Fatal(err)
	}
	return args.Positional[0]
}

// tell records a rate that was measured on a real GPU.
func tell(tb testing.TB, name string, value float64, unit string) {
	tb.Helper()
	tb.Logf("%-48s %10.2f %s", name, value, unit)
	file, err := os.OpenFile(os.Getenv(ratesEnv), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // no file was requested
	}
	defer file.Close()
	if _, err := fmt.Fprintf(file, "%-48s %10.2f %s\n", name, value, unit); err != nil {
		tb.Error(err)
	}
}

func onGPU(tb testing.TB) {
	tb.Helper()
	if fake != nil {
		tb.Skip("needs a GPU")
	}
}

// sameTensor describes how got differs from want by more than the tolerance, which is relative to
// 1+|want|; with tolerance 0 they must be equal. "" means that they agree.
func sameTensor(got, want *ops.Tensor, tolerance float64) string {
	if got.DType != want.DType || !slices.Equal(got.Shape, want.Shape) {
		return fmt.Sprintf("%v%v, want %v%v", got.DType, got.Shape, want.DType, want.Shape)
	}
	index := make([]int64, len(got.Shape))
	for range got.Len() {
		a, errA := got.At(index...)
		b, errB := want.At(index...)
		if errA != nil || errB != nil {
			return fmt.Sprint(errA, errB)
		}
		if !near(a, b, tolerance) {
			return fmt.Sprintf("at %v: %v, want %v", index, a, b)
		}
		for axis := len(index) - 1; axis >= 0; axis-- {
			if index[axis]++; index[axis] < got.Shape[axis] {
				break
			}
			index[axis] = 0
		}
	}
	return ""
}
