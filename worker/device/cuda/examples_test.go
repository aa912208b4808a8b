//go:build cgo && linux

package cuda

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/worker/ops"
	"github.com/millrace/millrace/worker/ops/opstest"
)

// lookup returns the operation of that name on the device.
func (b *bench) lookup(t *testing.T, name string) *ops.Op {
	t.Helper()
	op, err := b.ops.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// opened returns the libraries that the device has tried to open.
func (b *bench) opened() (names []string) {
	tried := func(name string, err error, is bool) {
		if is || err != nil {
			names = append(names, name)
		}
	}
	tried("cublas", b.blas.err, b.blas.value != nil)
	tried("cusolver", b.solver.err, b.solver.value != nil)
	tried("nvrtc", b.code.compiler.err, b.code.compiler.value != nil)
	return names
}

// TestDescriptionsTellWhatTheGPUNeeds checks with its example whether an operation has kernels, and
// that it opens no library but those that it names. The compiler is there, the others are not.
func TestDescriptionsTellWhatTheGPUNeeds(t *testing.T) {
	for _, name := range ops.NewRegistry(ops.CUDAKernel()).Names() {
		t.Run(name, func(t *testing.T) {
			b := onFake(t)
			op := b.lookup(t, name)
			var err error
			opstest.Run(t, op.Example, func(c opstest.Call) any {
				called := b.lookup(t, c.Op)
				if !c.Last { // the fake driver computes nothing, so the host makes the inputs
					result, err := called.Run(t.Context(), c.Args, ops.NewTensor)
					if err != nil {
						t.Fatalf("%s: %v", c.Op, err)
					}
					return result
				}
				planned, wrong := called.Plan(c.Args)
				if wrong != nil {
					t.Fatal(wrong)
				}
				if kernels := planned.Work != nil; kernels == called.Processor {
					t.Errorf("there are kernels: %v, but Processor is %v", kernels, called.Processor)
				}
				_, err = b.call(t.Context(), c.Op, c.Args)
				return nil
			})
			all := !slices.ContainsFunc(op.Libraries, func(l string) bool { return l != "nvrtc" })
			if all != (err == nil) && name != "bench.fail" {
				t.Errorf("with the compiler alone, of %v: %v", op.Libraries, err)
			}
			for _, l := range b.opened() {
				if !slices.Contains(op.Libraries, l) {
					t.Errorf("it has opened lib%s, and needs %v", l, op.Libraries)
				}
			}
			if all && len(b.opened()) != len(op.Libraries) {
				t.Errorf("it has opened %v, and needs %v", b.opened(), op.Libraries)
			}
		})
	}
}

func TestGPUExamplesGiveTheirResults(t *testing.T) {
	onGPU(t)
	for _, name := range ops.NewRegistry(ops.CUDAKernel()).Names() {
		if name == "bench.fail" { // bench.call knows the first attempt only
			continue
		}
		t.Run(name, func(t *testing.T) {
			// The libraries of the inputs do not count.
			b, inputs := open(t, 64<<20, Options{}), open(t, 64<<20, Options{})
			op := b.lookup(t, name)
			got := opstest.Run(t, op.Example, func(c opstest.Call) any {
				on := inputs
				if c.Last {
					on = b
				}
				result, err := on.call(t.Context(), c.Op, c.Args)
				if err != nil {
					t.Fatalf("%s: %v", c.Op, err)
				}
				return resultOnHost(t, result)
			})
			if op.Example.Result != "" {
				if message := opstest.Diff(t, got, op.Example.Result); message != "" {
					t.Error(message)
				}
			}
			if opened := b.opened(); !slices.Equal(opened, slices.Sorted(slices.Values(op.Libraries))) {
				t.Errorf("it has opened %v, and needs %v", opened, op.Libraries)
			}
		})
	}
}
