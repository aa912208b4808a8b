//go:build cgo && linux

package cuda

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	gpu "github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// emulated opens a device whose kernels run on the CPU: the fake driver executes what a C++
// compiler has made of them.
func emulated(t *testing.T) *bench {
	t.Helper()
	if fake == nil {
		t.Skip("the driver of this machine has a GPU")
	}
	t.Cleanup(fake.Heal)
	fake.Capability.Store(75) // older than the built-in kernels' machine code: they are compiled, too
	before := driver
	t.Cleanup(func() { driver = before })
	var err error
	if driver, err = gpu.Load(gpu.Config{Library: fake.Library}); err != nil {
		t.Fatal(err)
	}
	b := open(t, 64<<20, Options{Libraries: []string{nvrtcFolder(), fftOnTheCPU(t)}, Python: "none"})
	b.code.compiler.once.Do(func() { b.code.compiler.value = &compiler{version: "CPU", instead: compileForCPU(t)} })
	return b
}

// fftOnTheCPU returns a folder with a cuFFT that computes on the CPU.
func fftOnTheCPU(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	t.Setenv("FAKE_CUFFT_DRIVER", fake.Library)
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	out, err := exec.CommandContext(t.Context(), compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o", filepath.Join(folder, "libcufft.so.12"), "testdata/cufft.c", "-lm", "-ldl").CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", compiler, err, out)
	}
	return folder
}

// compileForCPU compiles kernels to a library that the fake driver loads.
func compileForCPU(t *testing.T) func(source string) ([]byte, error) {
	t.Helper()
	return func(source string) ([]byte, error) {
		head, err := os.ReadFile("testdata/emulator.hpp")
		if err != nil {
			return nil, err
		}
		text := append(head, source...)
		library := filepath.Join(compiledIn, fmt.Sprintf("%x.so", sha256.Sum256(text)))
		if _, err := os.Stat(library); err == nil {
			return append([]byte(".version emulated:"+library), 0), nil
		}
		compiler := os.Getenv("CXX")
		if compiler == "" {
			compiler = "c++"
		}
		file := library + ".cpp"
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return nil, err
		}
		out, err := exec.CommandContext(context.Background(), compiler, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-o", library, file).CombinedOutput()
		if err != nil {
			return nil, &compileError{fmt.Sprintf("%v: %s", err, out)}
		}
		return append([]byte(".version emulated:"+library), 0), nil
	}
}

// checkOnHost runs a call on the device and compares its results with the host's.
func (b *bench) checkOnHost(t *testing.T, tolerance float64, name string, options named, positional ...any) {
	t.Helper()
	b.reset()
	far := slices.Clone(positional)
	for i, v := range far {
		if x, ok := v.(*ops.Tensor); ok {
			far[i] = b.onDevice(t, x)
		}
	}
	want, err := hostOp(t.Context(), name, ops.Args{Positional: positional, Named: options})
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.call(t.Context(), name, ops.Args{Positional: far, Named: options})
	if err != nil {
		t.Errorf("%s %v: %v", name, options, err)
		return
	}
	wants, gots := listed(want), listed(resultOnHost(t, got))
	for i, w := range wants {
		if message := sameTensor(gots[i].(*ops.Tensor), w.(*ops.Tensor), tolerance); message != "" {
			t.Errorf("%s %v of %v: result %d: %s", name, options, described(positional), i, message)
		}
	}
}

// described returns the dtypes and shapes of arguments, and the others as they are.
func described(positional []any) (list []string) {
	for _, v := range positional {
		if x, ok := v.(*ops.Tensor); ok {
			v = fmt.Sprint(x.DType, x.Shape)
		}
		list = append(list, fmt.Sprint(v))
	}
	return list
}

// listed returns the results of a call as a list.
func listed(result any) []any {
	if list, several := result.([]any); several {
		return list
	}
	return []any{result}
}

// drawn returns random numbers of few different values. Every fifth float is special: NaN, an
// infinity or a zero.
func drawn(t *testing.T, dtype string, shape ...int64) *ops.Tensor {
	t.Helper()
	host := func(name string, options named, positional ...any) any {
		x, err := hostOp(t.Context(), name, ops.Args{Positional: positional, Named: options})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	draw := func(seed, high int64) any {
		return host("array.random", named{"high": high, "dtype": "int64"}, ints(shape...), seed, "integers")
	}
	x := host("array.cast", nil, host("array.map", nil, "x0 - 700", draw(1, 1400)), dtype)
	switch dtype {
	case "complex64", "complex128":
		x = host("array.map", named{"dtype": dtype}, "x0 + 1j*(x1 - 3)", x, draw(2, 7))
		x = host("array.map", named{"dtype": dtype}, "where(x1 == 0, nan+1j, where(x1 == 1, 1j*nan, where(x1 == 2, -x0*0.0, x0)))", x, draw(3, 15))
	case "float32", "float64":
		x = host("array.map", named{"dtype": dtype}, "where(x1 == 0, nan, where(x1 == 1, -inf, where(x1 == 2, -0.0, where(x1 == 3, 0.0, x0/7))))", x, draw(3, 20))
	}
	return x.(*ops.Tensor)
}

// TestKernelsOnTheCPU executes the kernels that sort, find distinct elements, take elements and sum
// up along an axis, and compares their results with the host's. The arrays have several tiles and
// lanes.
func TestKernelsOnTheCPU(t *testing.T) {
	b := emulated(t)
	dtypes := []string{"float32"}
	if !testing.Short() {
		dtypes = []string{"uint8", "int32", "int64", "float32", "float64", "complex64", "complex128"}
	}
	for _, d := range dtypes {
		long, lanes := drawn(t, d, 20_000), drawn(t, d, 3, 9000)
		b.checkOnHost(t, 0, "array.sort", nil, long)
		b.checkOnHost(t, 0, "array.sort", named{"descending": true}, lanes)
		b.checkOnHost(t, 0, "array.sort", named{"axis": int64(0)}, drawn(t, d, 9000, 2))
		b.checkOnHost(t, 0, "array.sort", named{"axis": int64(1), "descending": true}, drawn(t, d, 2, 100, 30))
		b.checkOnHost(t, 0, "array.sort", nil, drawn(t, d, 3, 3000))
		b.checkOnHost(t, 0, "array.unique", named{"inverse": true, "counts": true}, lanes)
		b.checkOnHost(t, 0, "array.unique", nil, long)
		tolerance := 0.0
		if d == "float32" || d == "complex64" {
			tolerance = 5e-4 // the host rounds each sum
		}
		numbers, err := hostOp(t.Context(), "array.cast", ops.Args{Positional: []any{drawn(t, "int32", 20_000), d}})
		if err != nil {
			t.Fatal(err)
		}
		for _, shape := range [][]int64{{20_000}, {4, 5000}, {5000, 4}, {2000, 10}, {400, 50}, {2, 100, 100}} {
			x := *numbers.(*ops.Tensor)
			x.Shape, x.Strides = shape, ops.ContiguousStrides(x.DType, shape)
			for axis := range shape {
				b.checkOnHost(t, tolerance, "array.cumsum", named{"axis": int64(axis)}, &x)
			}
			b.checkOnHost(t, tolerance, "array.cumsum", nil, &x)
		}
		small, err := hostOp(t.Context(), "array.map", ops.Args{Positional: []any{"x0 % 80 - 40", drawn(t, "int32", 50)}})
		if err != nil {
			t.Fatal(err)
		}
		wide := drawn(t, d, 40, 6, 16)
		b.checkOnHost(t, 0, "array.take", named{"axis": int64(0)}, wide, small.(*ops.Tensor))
	}
}

// TestTransformsOnTheCPU executes the golden cases of array.fft with the cuFFT of the CPU.
func TestTransformsOnTheCPU(t *testing.T) {
	b := emulated(t)
	step := 1
	if testing.Short() {
		step = 31
	}
	for _, g := range golden(t) {
		for i := 0; g.name == "fft.json" && i < len(g.Cases); i += step {
			b.reset()
			if message := b.checkGolden(t, g, i); message != "" {
				t.Errorf("case %d: %s %s %v: %s", i, g.Cases[i].Op, g.Cases[i].Args, g.Cases[i].Named, message)
			}
		}
	}
}

func TestPlansOfTransformsAreBounded(t *testing.T) {
	b := emulated(t)
	for n := range int64(2 * maxFFTPlans) {
		b.reset()
		b.must(t, "array.fft", nil, b.onDevice(t, tensor(t, "complex128", 3, n+1)))
	}
	for n := range int64(2) {
		b.must(t, "array.fft", nil, b.onDevice(t, tensor(t, "complex128", 3, n+1)))
	}
	f, err := b.getFFT()
	if err != nil {
		t.Fatal(err)
	}
	if plans, err := f.lib.call("fake_plans"); err != nil || plans != maxFFTPlans || len(f.plans) != maxFFTPlans || f.plans[0].lengths[0] != 2 {
		t.Errorf("%d plans, want %d: %v", plans, maxFFTPlans, err)
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
	if plans, err := f.lib.call("fake_plans"); err != nil || plans != 0 {
		t.Errorf("%d plans are left: %v", plans, err)
	}
	f.plans = nil
}

// TestNumbersBesideStridedTensors checks that a kernel finds numbers that are inputs of an
// expression, behind the strides of its tensors.
func TestNumbersBesideStridedTensors(t *testing.T) {
	b := emulated(t)
	x := drawn(t, "int64", 5, 70)
	x.Shape, x.Strides = []int64{70, 5}, []int64{8, 560}
	b.checkOnHost(t, 0, "array.map", nil, "x0*x1+x2", x, int64(3), int64(4))
	b.checkOnHost(t, 0, "array.where", nil, drawn(t, "uint8", 70, 5), x, int64(-1))
}

func TestTheFirstIndexOutsideIsNamed(t *testing.T) {
	b := emulated(t)
	for _, x := range []*ops.Tensor{tensor(t, "float32", 3, 100, 4), tensor(t, "float32", 0, 100, 4)} {
		indices := drawn(t, "int64", 20, 50)
		_, want := hostOp(t.Context(), "array.take", ops.Args{Positional: []any{x, indices, int64(1)}})
		_, err := b.call(t.Context(), "array.take", ops.Args{Positional: []any{b.onDevice(t, x), b.onDevice(t, indices), int64(1)}})
		var failed *device.Error
		if !errors.As(err, &failed) || failed.Reason != "OP_FAILED" || err.Error() != want.Error() {
			t.Errorf("%v, on the host %v", err, want)
		}
	}
}
