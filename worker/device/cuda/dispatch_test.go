//go:build cgo && linux

package cuda

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/wire"
	"github.com/millrace/millrace/worker/ops"
)

var rewrite = flag.Bool("rewrite", false, "accept the sources that are generated now")

// onFake opens a device on the fake driver, which computes nothing. With a real driver it skips the
// test.
func onFake(t *testing.T) *bench {
	t.Helper()
	if fake == nil {
		t.Skip("the driver of this machine takes no notes")
	}
	t.Cleanup(fake.Heal)
	return open(t, 64<<20, Options{Libraries: []string{nvrtcFolder()}, Python: "none"})
}

func tensor(t *testing.T, dtype string, shape ...int64) *ops.Tensor {
	t.Helper()
	d, err := ops.ParseDType(dtype)
	if err != nil {
		t.Fatal(err)
	}
	x, err := ops.NewTensor(d, shape)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// launchesOf runs one call and returns its launches and its result.
func (b *bench) launchesOf(t *testing.T, name string, options named, positional ...any) ([]*cudatest.Launch, any) {
	t.Helper()
	before := fake.Launches.Load()
	got, err := b.call(t.Context(), name, ops.Args{Positional: positional, Named: options})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return fake.Launched(before), got
}

func kernelNames(launches []*cudatest.Launch) string {
	var names []string
	for _, l := range launches {
		names = append(names, l.Name())
	}
	return strings.Join(names, " ")
}

func TestOperationsLaunchTheirKernels(t *testing.T) {
	b := onFake(t)
	x := b.onDevice(t, tensor(t, "float32", 300, 200))
	y := b.onDevice(t, tensor(t, "float64", 300, 200))
	for _, c := range []struct {
		name       string
		options    named
		positional []any
		want       string
	}{
		{"array.full", nil, []any{ints(1000), 1.5}, "fill"},
		{"array.full", nil, []any{ints(1000), int64(0)}, ""}, // a memset
		{"array.arange", nil, []any{int64(1000)}, "count_int64"},
		{"array.random", named{"dtype": "complex64"}, []any{ints(1000), int64(1)}, "draw_uniform_float32"},
		{"array.random", nil, []any{ints(1000), int64(1), "normal"}, "draw_normal_float64"},
		{"array.transpose", nil, []any{x}, "turn_4"},
		{"array.slice", named{"start": int64(100)}, []any{x}, ""}, // one copy
		{"array.slice", named{"stop": []any{nil, int64(100)}}, []any{x}, "copy_16"},
		{"array.slice", named{"step": []any{nil, int64(2)}}, []any{x}, "copy_4"},
		{"array.concat", named{"axis": int64(1)}, []any{x, x}, "copy_16 copy_16"},
		{"array.concat", named{"axis": int64(1)}, []any{x, y}, "map copy_16"},
		{"array.cast", nil, []any{x, "float64"}, "map"},
		{"array.map", nil, []any{"x0*2+x1", x, y}, "map"},
		{"array.reduce", nil, []any{x}, "runs join_splits"},
		{"array.reduce", named{"axes": int64(1)}, []any{x, "max"}, "runs"},
		{"array.reduce", named{"axes": int64(0)}, []any{x, "mean"}, "lanes"},
		{"core.list", nil, []any{x, y}, ""},
		{"bench.bytes", nil, []any{int64(5000)}, "draw_bytes"},
		{"bench.point", nil, []any{int64(2), int64(0), []any{int64(0)}, int64(5), int64(1600), b.onDevice(t, tensor(t, "uint8", 1600))}, "bench_point"},
		{"array.matmul", nil, []any{b.onDevice(t, tensor(t, "int32", 4, 30, 20)), b.onDevice(t, tensor(t, "int64", 20, 50))}, "map product_int64"},
		{"bench.noop", nil, []any{x}, ""},
	} {
		launches, _ := b.launchesOf(t, c.name, c.options, c.positional...)
		if got := kernelNames(launches); got != c.want {
			t.Errorf("%s %v launches %q, want %q", c.name, c.options, got, c.want)
		}
	}
}

func TestSmallResultsComeInTheHeader(t *testing.T) {
	b := onFake(t)
	_, got := b.launchesOf(t, "array.reduce", nil, b.onDevice(t, tensor(t, "float64", 50, 50)))
	x, ok := got.(*ops.Tensor)
	if !ok || x.Far != nil || len(x.Data) != 8 {
		t.Errorf("got %+v", got)
	}
	_, got = b.launchesOf(t, "array.arange", nil, int64(1000))
	if x := got.(*ops.Tensor); x.Far == nil || x.Far.Size() != 8000 {
		t.Errorf("got %+v", x)
	}
}

func TestNumbersTravelWithTheLaunch(t *testing.T) {
	b := onFake(t)
	launches, _ := b.launchesOf(t, "array.random", named{"low": int64(-5), "high": int64(7), "offset": int64(9)}, ints(1000), int64(-2), "integers")
	p := launches[0].Parameters[8:]
	var got []uint64
	for i := range 7 {
		got = append(got, le.Uint64(p[8*i:]))
	}
	want := []uint64{9, 1000, math.MaxUint64 - 1, 0, 0, math.MaxUint64 - 4, 12}
	if !slices.Equal(got, want) || launches[0].Grid != [3]uint32{2, 1, 1} {
		t.Errorf("parameters %v, want %v; grid %v", got, want, launches[0].Grid)
	}
	launches, _ = b.launchesOf(t, "array.arange", named{"dtype": "float32"}, 1.0, 1000.0, 0.5)
	p = launches[0].Parameters[16:]
	if first, step := math.Float32frombits(le.Uint32(p)), math.Float32frombits(le.Uint32(p[4:])); first != 1 || step != 0.5 {
		t.Errorf("first %v, step %v", first, step)
	}
}

func TestArgumentsAreRefusedAsOnTheHost(t *testing.T) {
	b := onFake(t)
	x := tensor(t, "float64", 3, 4)
	for name, positional := range map[string][]any{
		"array.map":       {"x0 +", x},
		"array.reduce":    {x, "median"},
		"array.transpose": {x, ints(0, 0)},
		"array.matmul":    {x, x},
		"array.svd":       {ints(1, 2)},
		"array.nothing":   {},
	} {
		_, want := hostOp(t.Context(), name, ops.Args{Positional: positional})
		far := slices.Clone(positional)
		for i, v := range far {
			if x, ok := v.(*ops.Tensor); ok {
				far[i] = b.onDevice(t, x)
			}
		}
		_, err := b.call(t.Context(), name, ops.Args{Positional: far})
		if want == nil || err == nil || !strings.HasPrefix(err.Error(), strings.Split(want.Error(), ": did you")[0]) {
			t.Errorf("%s: %v, on the host %v", name, err, want)
		}
	}
}

func TestAMissingLibraryIsNamed(t *testing.T) {
	b := onFake(t)
	x := b.onDevice(t, tensor(t, "float64", 30, 30))
	_, err := b.call(t.Context(), "array.matmul", ops.Args{Positional: []any{x, x}})
	var failed *device.Error
	if !errors.As(err, &failed) || failed.Reason != "OP_FAILED" || !strings.Contains(err.Error(), "libcublas.so not found: install") {
		t.Errorf("got %v", err)
	}
}

func TestTheProcessorComputesWhatKernelsDoNot(t *testing.T) {
	b := onFake(t)
	empty := b.onDevice(t, tensor(t, "int32", 3, 0))
	_, sum := b.launchesOf(t, "array.reduce", named{"axes": int64(1)}, empty, "prod")
	if v, err := sum.(*ops.Tensor).At(2); err != nil || v != int64(1) {
		t.Errorf("%v, %v", v, err)
	}
	long := tensor(t, "uint8", 3000)
	want, err := hostOp(t.Context(), "bench.checksum", ops.Args{Positional: []any{long}})
	if err != nil {
		t.Fatal(err)
	}
	if _, got := b.launchesOf(t, "bench.checksum", nil, b.onDevice(t, long)); got != want {
		t.Errorf("checksum %v, want %v", got, want)
	}
}

// rooms is a device.Scratch that records the requests.
type rooms struct {
	b     *bench
	asked []uint64
	err   error
}

// Scratch is part of device.Scratch.
func (r *rooms) Scratch(bytes uint64) (memory.Frame, error) {
	r.asked = append(r.asked, bytes)
	if r.err != nil {
		return memory.Frame{}, r.err
	}
	return r.b.alloc(bytes)
}

// preparedWith prepares a call whose arguments do not come in messages.
func (b *bench) preparedWith(t *testing.T, name string, scratch device.Scratch, positional ...any) *prepared {
	t.Helper()
	p, err := b.Prepare(device.Call{Op: name, Scratch: scratch})
	if err != nil {
		t.Fatal(err)
	}
	p.(*prepared).args = ops.Args{Positional: positional}
	return p.(*prepared)
}

// TestTheProcessorsWorkingMemoryCounts checks that the working memory of calls that the CPU
// computes counts against the worker's memory limit, and that it is bounded even without such a
// limit.
func TestTheProcessorsWorkingMemoryCounts(t *testing.T) {
	b := onFake(t)
	wide := func(n int64) *ops.Tensor { // n times the same byte
		return &ops.Tensor{DType: ops.Uint8, Shape: []int64{n}, Strides: []int64{0}, Data: make([]byte, 16)}
	}
	room := &rooms{b: b}
	if _, err := b.preparedWith(t, "bench.checksum", room, wide(200_000)).Run(t.Context(), b.alloc); err != nil || !slices.Equal(room.asked, []uint64{200_000}) {
		t.Errorf("a checksum of 200,000 bytes asks for %v: %v", room.asked, err)
	}
	room = &rooms{b: b, err: device.ErrNoRoom}
	if _, err := b.preparedWith(t, "bench.checksum", room, wide(200_000)).Run(t.Context(), b.alloc); !errors.Is(err, device.ErrNoRoom) {
		t.Errorf("without memory: %v", err)
	}
	room = &rooms{b: b}
	_, err := b.preparedWith(t, "bench.checksum", room, wide(hostWorkBytes+1)).Run(t.Context(), b.alloc)
	var failed *device.Error
	if !errors.As(err, &failed) || failed.Reason != "OUT_OF_MEMORY" || len(room.asked) != 0 {
		t.Errorf("too much at once: %v, asked for %v", err, room.asked)
	}

	// A join that kernels cannot do: nine axes in an order that cannot be joined, and two types.
	shape := []int64{3, 3, 3, 3, 3, 3, 3, 3, 3}
	x, y := tensor(t, "float64", shape...), tensor(t, "float32", shape...)
	for i := range x.Data {
		x.Data[i] = byte(i) & 0x3f // no NaN
	}
	slices.Reverse(x.Strides)
	want, err := hostOp(t.Context(), "array.concat", ops.Args{Positional: []any{x, y}})
	if err != nil {
		t.Fatal(err)
	}
	idle := func() {
		t.Helper()
		if n := len(b.slots.free); n != slotCount {
			t.Errorf("%d slots are taken after the call", slotCount-n)
		}
	}
	for _, c := range []struct {
		started, cancelled bool
		err                error
	}{{}, {started: true}, {started: true, cancelled: true}, {err: device.ErrNoRoom}, {started: true, err: device.ErrNoRoom}} {
		room := &rooms{b: b, err: c.err}
		p := b.preparedWith(t, "array.concat", room, b.onDevice(t, x), b.onDevice(t, y))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if c.started {
			// Start never waits, so it leaves the work of the CPU to Run.
			if s, err := p.Start(ctx, b.alloc); s != nil || err != nil || len(room.asked) != 0 {
				t.Fatalf("started %v, asked for %v: %v", s, room.asked, err)
			}
		}
		if c.cancelled {
			cancel()
			if _, err := p.Run(ctx, b.alloc); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
			idle()
			continue
		}
		result, err := p.Run(ctx, b.alloc)
		if !errors.Is(err, c.err) || !slices.Equal(room.asked, []uint64{uint64(x.Bytes())}) {
			t.Errorf("%+v: asked for %v: %v", c, room.asked, err)
		}
		idle()
		if err != nil {
			continue
		}
		back, err := wire.Arguments(device.Call{Arguments: firstInput, Inputs: []device.Input{{Header: result.Header, Frames: result.Frames}}}, b.slab, view)
		if err != nil {
			t.Fatal(err)
		}
		if diff := sameTensor(resultOnHost(t, back.Positional[0]).(*ops.Tensor), want.(*ops.Tensor), 0); diff != "" {
			t.Errorf("%+v: %s", c, diff)
		}
	}
}

// TestOperationsThatReadNoDataCopyNoInput checks that the inputs of an operation that reads no
// elements are not copied to the CPU's memory.
func TestOperationsThatReadNoDataCopyNoInput(t *testing.T) {
	b := onFake(t)
	x := b.onDevice(t, tensor(t, "uint8", 3000))
	for _, name := range []string{"bench.noop", "core.replicate"} {
		fake.Fail("cuMemcpyDtoHAsync_v2", 999, 0, 1)
		if _, got := b.launchesOf(t, name, nil, []any{x, x}, x); got != nil {
			t.Errorf("%s returns %v", name, got)
		}
		fake.Heal()
	}
}

func TestACancelledCallWaitsForItsKernels(t *testing.T) {
	b := onFake(t)
	x := b.onDevice(t, tensor(t, "float32", 1000))
	ctx, cancel := context.WithCancel(t.Context())
	fake.Hold.Store(1)
	before := fake.Launches.Load()
	ended := make(chan error, 1)
	go func() {
		_, err := b.call(ctx, "array.arange", ops.Args{Positional: []any{int64(5000)}})
		ended <- err
	}()
	for fake.Launches.Load() == before {
		if len(ended) > 0 {
			t.Fatal(<-ended)
		}
	}
	if !b.Computing() {
		t.Error("it is not said to compute while a kernel runs")
	}
	cancel()
	select {
	case err := <-ended:
		t.Errorf("ended while its kernel ran: %v", err)
	default:
	}
	fake.Hold.Store(0)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if b.Computing() {
		t.Error("it is said to compute when all has ended")
	}
	if _, err := b.call(ctx, "array.transpose", ops.Args{Positional: []any{x}}); !errors.Is(err, context.Canceled) {
		t.Errorf("begun although cancelled: %v", err)
	}
}

func TestWithoutRoomTheErrorSaysSo(t *testing.T) {
	b := onFake(t)
	op, err := b.ops.Lookup("array.arange")
	if err != nil {
		t.Fatal(err)
	}
	p := &prepared{device: b.Device, op: op, args: ops.Args{Positional: []any{int64(5000)}}}
	_, err = p.Run(t.Context(), func(uint64) (memory.Frame, error) { return memory.Frame{}, device.ErrNoRoom })
	if !errors.Is(err, device.ErrNoRoom) {
		t.Errorf("got %v", err)
	}
	// The scratch memory lies outside of the slab.
	if err := b.growScratch(1 << 40); !errors.Is(err, device.ErrNoRoom) || b.scratch == nil {
		t.Errorf("got %v", err)
	}
	if err := b.growScratch(100 << 20); err != nil || b.scratch.Size() < 100<<20 {
		t.Errorf("%d bytes, %v", b.scratch.Size(), err)
	}
}

// TestScratchMemoryGrowsOnce checks that scratch memory of sufficient size is kept: a new
// allocation for each call took longer than small factorisations.
func TestScratchMemoryGrowsOnce(t *testing.T) {
	b := onFake(t)
	for _, need := range []uint64{20<<20 + 12345, 20<<20 + 12345, 20 << 20, 40 << 20, 40 << 20} {
		before := b.scratch
		if err := b.growScratch(need); err != nil || b.scratch.Size() < need {
			t.Fatalf("%d bytes for %d: %v", b.scratch.Size(), need, err)
		}
		if before.Size() >= need && b.scratch != before {
			t.Errorf("%d bytes were there, and allocated again for %d", before.Size(), need)
		}
	}
}

// TestScratchMemoryThatCouldNotGrowIsNotUsed simulates another user of the GPU that takes the
// memory while the scratch memory grows. Later calls must not use the freed scratch memory.
func TestScratchMemoryThatCouldNotGrowIsNotUsed(t *testing.T) {
	b := onFake(t)
	// Inputs that must be copied to the device first go through scratch memory.
	x := tensor(t, "float64", 100_000)
	for _, refused := range []int{1, 2, 3, 4} {
		fake.Fail("cuMemAlloc_v2", cudatest.OutOfMemory, 0, refused)
		err := b.growScratch(b.scratch.Size() + 1)
		if (err == nil) != (refused == 1) || err != nil && !errors.Is(err, device.ErrNoRoom) {
			t.Errorf("%d allocations refused: %v", refused, err)
		}
		fake.Heal()
		before := fake.Allocations.Load()
		got, err := b.call(t.Context(), "array.map", ops.Args{Positional: []any{"x0+1", x}})
		if err != nil {
			t.Fatalf("after %d allocations were refused: %v", refused, err)
		}
		if got.(*ops.Tensor).Len() != x.Len() || fake.Allocations.Load() > before+1 {
			t.Errorf("after %d refused allocations: %d elements, %d allocations, before %d", refused, got.(*ops.Tensor).Len(), fake.Allocations.Load(), before)
		}
	}
}

// TestInputsOfTheProcessorAreReadBeforeTheyAreGivenBack uses a device that reads pageable memory
// itself, perhaps after the copy call has returned. The call must wait for that copy before it
// returns.
func TestInputsOfTheProcessorAreReadBeforeTheyAreGivenBack(t *testing.T) {
	if fake == nil {
		t.Skip("needs a device that reads pageable memory")
	}
	fake.Pageable.Store(1)
	defer fake.Heal()
	before := driver
	defer func() { driver = before }()
	var err error
	if driver, err = gpu.Load(gpu.Config{Library: fake.Library}); err != nil {
		t.Fatal(err)
	}
	b := open(t, 64<<20, Options{Libraries: []string{nvrtcFolder()}, Python: "none"})
	x := tensor(t, "uint8", 100_000)
	for i := range x.Data {
		x.Data[i] = byte(i) | 1
	}
	want := bytes.Clone(x.Data)
	fake.DelayMicros.Store(2000)
	r, err := b.begin(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer r.end()
	r.ahead = true
	if err := r.submit(t.Context(), uploadBytes(x), func(s *submission) { s.at(x) }); err != nil {
		t.Fatal(err)
	}
	clear(x.Data)
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want)+16)
	if err := b.scratch.ReadInto(0, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(got, want) {
		t.Error("the device has read what was there later")
	}
}

func TestMatricesThatCuSOLVERCannotCountAreRefused(t *testing.T) {
	for _, c := range []struct {
		rows, columns int64
		refused       bool
	}{{1, 1, false}, {0, 5, false}, {46340, 46340, false}, {46341, 46341, true}, {1 << 31, 1, true}, {1<<31 - 1, 1, false}, {1 << 20, 1 << 11, true}} {
		var failed *ops.Error
		if err := narrow("array.svd", c.rows, c.columns); errors.As(err, &failed) != c.refused || err != nil && !strings.Contains(err.Error(), "use chunks with fewer rows") {
			t.Errorf("%d x %d: %v", c.rows, c.columns, err)
		}
	}
}

func TestALostDeviceFailsTheCall(t *testing.T) {
	b := onFake(t)
	fake.Fail("cuEventQuery", cudatest.IllegalAddress, 0, 1)
	_, err := b.call(t.Context(), "array.arange", ops.Args{Positional: []any{int64(5000)}})
	if err == nil || !strings.Contains(err.Error(), "ILLEGAL_ADDRESS") || !errors.Is(b.gpu.Health(), gpu.ErrUnhealthy) {
		t.Errorf("got %v, health %v", err, b.gpu.Health())
	}
}

const userSource = `extern "C" __global__ void scale(const double *x, long long n, float a, bool flip, double *out) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = flip ? -a * x[i] : a * x[i];
}`

func TestUserKernelsGetTheirParameters(t *testing.T) {
	b := onFake(t)
	x := b.onDevice(t, tensor(t, "float64", 40, 25))
	turned := *x
	turned.Shape, turned.Strides = []int64{25, 40}, []int64{8, 200}
	outputs := []any{map[string]any{"dtype": "float64", "shape": ints(25, 40)}}
	half := map[string]any{"dtype": "float32", "value": 0.5}
	launches, got := b.launchesOf(t, "cuda.kernel", named{"shared": int64(100 << 10)}, userSource, "scale", ints(4, 2), int64(128), outputs, &turned, int64(1000), half, true)
	if kernelNames(launches) != "turn_8 scale" {
		t.Fatalf("launches %s", kernelNames(launches))
	}
	l, out := launches[1], got.(*ops.Tensor)
	if l.Grid != [3]uint32{4, 2, 1} || l.Block != [3]uint32{128, 1, 1} || l.SharedBytes != 100<<10 {
		t.Errorf("grid %v, block %v, %d bytes of shared memory", l.Grid, l.Block, l.SharedBytes)
	}
	p := l.Parameters[:]
	if le.Uint64(p[8:]) != 1000 || math.Float32frombits(le.Uint32(p[16:])) != 0.5 || p[20] != 1 || le.Uint64(p[24:]) != out.Far.Address() || l.ParameterBytes != 32 {
		t.Errorf("parameters %v", p[:l.ParameterBytes])
	}
}

// TestModulesOfUsersAreUnloaded checks that a program that generates sources does not fill the GPU
// with code that is not used any more.
func TestModulesOfUsersAreUnloaded(t *testing.T) {
	b := onFake(t)
	b.code.maxUsers = 2
	run := func(i int) {
		t.Helper()
		source := fmt.Sprintf("extern \"C\" __global__ void f(double *x) { x[0] = %d; }", i)
		outputs := []any{map[string]any{"dtype": "float64", "shape": ints(1000)}}
		if _, err := b.call(t.Context(), "cuda.kernel", ops.Args{Positional: []any{source, "f", int64(1), int64(1), outputs}}); err != nil {
			t.Fatal(err)
		}
	}
	before := fake.Modules.Load()
	for i := range 5 {
		run(i)
		run(0) // stays in use
	}
	if n := fake.Modules.Load() - before; n != 2 {
		t.Errorf("%d modules are loaded, 2 are kept", n)
	}
	if u := b.code.recent.Front().Value.(*userModule); !strings.Contains(u.key, "x[0] = 0") || u.uses != 0 || len(b.code.users) != 2 {
		t.Errorf("the last used is %q, used by %d; %d are kept", u.key, u.uses, len(b.code.users))
	}
	// A module that a call uses is not unloaded.
	f, release, err := b.code.user("extern \"C\" __global__ void g() {}", "g")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		run(100 + i)
	}
	if err := b.launch(gpu.Launch{Function: f}); err != nil {
		t.Error(err)
	}
	if b.code.users["extern \"C\" __global__ void g() {}"] == nil {
		t.Error("it was given up while it was in use")
	}
	release()
}

// TestGeneratedModulesAreUnloaded checks that an endless stream of different expressions does not
// fill the GPU with code, and that the code of an open call stays.
func TestGeneratedModulesAreUnloaded(t *testing.T) {
	b := onFake(t)
	b.code.maxModules = 2
	x := b.onDevice(t, tensor(t, "float64", 1000))
	next := 0
	run := func() {
		t.Helper()
		next++
		// Another number of terms is another kernel.
		b.reset()
		expr := "x0" + strings.Repeat("+x0", next)
		if launches, _ := b.launchesOf(t, "array.map", nil, expr, x); kernelNames(launches) != "map" {
			t.Fatalf("%s launches %q", expr, kernelNames(launches))
		}
	}
	b.launchesOf(t, "array.transpose", nil, b.onDevice(t, tensor(t, "float32", 300, 200))) // a built-in kernel
	before := fake.Modules.Load()
	for range 5 {
		run()
	}
	const most = 2 + 1 // a full table, and the module for which it was emptied
	if n := fake.Modules.Load() - before; n > most {
		t.Errorf("%d modules are loaded after 5 expressions, at most %d are kept", n, most)
	}
	// A call that has not ended keeps its code, though the table has been emptied since.
	open, err := b.begin(t.Context(), "array.map")
	if err != nil {
		t.Fatal(err)
	}
	f, err := b.code.kernel("map.cu", "held", "map", func() string { return "extern \"C\" __global__ void map() {}" })
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		run()
	}
	if err := b.launch(gpu.Launch{Function: f, Grid: gpu.Dim{1}, Block: gpu.Dim{1}}); err != nil {
		t.Errorf("the code was unloaded while a call used it: %v", err)
	}
	open.end()
	for range 5 {
		run()
	}
	if n := fake.Modules.Load() - before; n > most {
		t.Errorf("%d modules are loaded after 13 expressions, at most %d are kept", n, most)
	}
	if launches, _ := b.launchesOf(t, "array.transpose", nil, b.onDevice(t, tensor(t, "float32", 300, 200))); kernelNames(launches) != "turn_4" {
		t.Errorf("launches %q", kernelNames(launches))
	}
}

// TestCallsKeepTheirModules runs calls at once while modules are retired all the time: no call
// launches a kernel of a module that was unloaded.
func TestCallsKeepTheirModules(t *testing.T) {
	b := onFake(t)
	b.code.maxModules = 2
	x := b.onDevice(t, tensor(t, "float64", 1000))
	var calls errgroup.Group
	for first := range 4 {
		calls.Go(func() error {
			for i := range 100 {
				args := ops.Args{Positional: []any{"x0" + strings.Repeat("+x0", (first+i)%7), x}}
				op := "array.map"
				if i%5 == 0 {
					op, args = "array.reduce", ops.Args{Positional: []any{x, []string{"sum", "max", "mean"}[i/5%3]}}
				}
				if _, err := b.call(t.Context(), op, args); err != nil {
					return fmt.Errorf("%s %v: %w", op, args.Positional[0], err)
				}
			}
			return nil
		})
	}
	if err := calls.Wait(); err != nil {
		t.Error(err)
	}
}

func TestUserKernelsAreRefusedWithTheReason(t *testing.T) {
	b := onFake(t)
	// Every second element along nine axes: no two of them can be walked as one.
	jagged := *b.onDevice(t, tensor(t, "float32", 4, 4, 4, 4, 4, 4, 4, 4, 4))
	jagged.Shape, jagged.Strides = slices.Repeat([]int64{2}, 9), slices.Clone(jagged.Strides)
	for i := range jagged.Strides {
		jagged.Strides[i] *= 2
	}
	outputs := []any{map[string]any{"dtype": "float64", "shape": ints(4)}}
	call := func(source, entry string, options named, block any) error {
		_, err := b.call(t.Context(), "cuda.kernel", ops.Args{Positional: []any{source, entry, int64(1), block, outputs}, Named: options})
		return err
	}
	for want, err := range map[string]error{
		"argument source: does not compile:\nsource(2): error":   call("extern \"C\" __global__ void f() {\n  x = 1;\n}", "f", nil, int64(1)),
		"argument entry: the source has no kernel missing":       call(userSource, "missing", nil, int64(1)),
		"argument shared: 300000 bytes are more than the 232448": call(userSource, "scale", named{"shared": int64(300000)}, int64(1)),
		"argument block: [64 32] are 2048 threads":               call(userSource, "scale", nil, ints(64, 32)),
		"argument block: 100 is outside of 1 to 64":              call(userSource, "scale", nil, ints(1, 1, 100)),
		"argument grid": func() error {
			_, err := b.call(t.Context(), "cuda.kernel", ops.Args{Positional: []any{userSource, "scale", int64(0), int64(1), outputs}})
			return err
		}(),
		"argument inputs[1]: a view of 9 axes": func() error {
			_, err := b.call(t.Context(), "cuda.kernel", ops.Args{Positional: []any{userSource, "scale", int64(1), int64(1), outputs, int64(1), &jagged}})
			return err
		}(),
		"argument outputs: missing": func() error {
			_, err := b.call(t.Context(), "cuda.kernel", ops.Args{Positional: []any{userSource, "scale", int64(1), int64(1), []any{}}})
			return err
		}(),
		"argument inputs[0]: 300 is outside the range of uint8": func() error {
			_, err := b.call(t.Context(), "cuda.kernel", ops.Args{Positional: []any{userSource, "scale", int64(1), int64(1), outputs, map[string]any{"dtype": "uint8", "value": int64(300)}}})
			return err
		}(),
	} {
		var failed *device.Error
		if !errors.As(err, &failed) || failed.Reason != "INVALID_ARGUMENT" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestGeneratedSourcesAreAsAccepted(t *testing.T) {
	b := onFake(t)
	big := func(dtype string, shape ...int64) *ops.Tensor { return b.onDevice(t, tensor(t, dtype, shape...)) }
	var all strings.Builder
	for _, c := range []struct {
		expr   string
		dtype  any
		inputs []any
	}{
		{"x0*2+1", nil, []any{big("float32", 100, 20)}},
		{"x0-x1", nil, []any{big("float64", 100, 20), big("float64", 20)}},
		{"where(x0 > 0, sqrt(x0), x1**2)", nil, []any{big("float32", 100), big("int32", 100)}},
		{"x0**x1", nil, []any{big("int64", 100), int64(3)}},
		{"x0*1j", "complex64", []any{big("float32", 100)}},
		{"~x0 | x1", nil, []any{big("bool", 10, 1, 3), big("bool", 4, 1)}},
	} {
		op, err := b.ops.Lookup("array.map")
		if err != nil {
			t.Fatal(err)
		}
		p, err := op.Plan(ops.Args{Positional: append([]any{c.expr}, c.inputs...), Named: named{"dtype": c.dtype}})
		if err != nil {
			t.Fatal(err)
		}
		f, err := b.alloc(uint64(p.Outputs[0].Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		out := &ops.Tensor{DType: p.Outputs[0].DType, Shape: p.Outputs[0].Shape, Strides: ops.ContiguousStrides(p.Outputs[0].DType, p.Outputs[0].Shape)}
		view(b.slab, f, out)
		m, err := b.planMap(p.Work.(*ops.Mapping), out)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "// %s\n%s\n", c.expr, m.source())
	}
	const name = "testdata/map.txt"
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(all.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if all.String() != string(want) {
		t.Errorf("other sources than in %s; look at them and run with -rewrite:\n%s", name, all.String())
	}
}

func TestTheCacheSurvivesWhatIsBrokenAndStaysSmall(t *testing.T) {
	c := &diskCache{dir: filepath.Join(t.TempDir(), "kernels"), maxBytes: 1000}
	if c.get("none") != nil {
		t.Error("found what is not there")
	}
	if err := c.put("a", []byte("cubin")); err != nil || string(c.get("a")) != "cubin" {
		t.Errorf("%q, %v", c.get("a"), err)
	}
	whole, err := os.ReadFile(c.path("a"))
	if err != nil {
		t.Fatal(err)
	}
	for name, broken := range map[string][]byte{"short": whole[:10], "cut": whole[:len(whole)-1], "changed": append(slices.Clone(whole[:len(whole)-1]), 'x'), "empty": nil} {
		if err := os.WriteFile(c.path("a"), broken, 0o600); err != nil {
			t.Fatal(err)
		}
		if c.get("a") != nil {
			t.Errorf("a file that is %s was taken", name)
		}
	}
	if err := c.put("a", []byte("again")); err != nil || string(c.get("a")) != "again" {
		t.Errorf("not repaired: %v", err)
	}
	for i := range 2 * sweepEvery {
		if err := c.put(fmt.Sprint("k", i), make([]byte, 50)); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > sweepEvery+10 {
		t.Errorf("%d files of 82 bytes after %d writes", len(entries), c.writes.Load())
	}
	if err := (&diskCache{dir: "/proc/none"}).put("a", nil); err == nil {
		t.Error("a folder that cannot be made is no error")
	}
}

// TestTheCacheKeepsWhatIsInUse checks that sweep removes the files that were used longest ago, not
// those that were written longest ago, and the temporary files of processes that were killed.
func TestTheCacheKeepsWhatIsInUse(t *testing.T) {
	c := &diskCache{dir: t.TempDir(), maxBytes: 1000}
	set := func(path string, age time.Duration) {
		t.Helper()
		when := time.Now().Add(-age)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 12 {
		key := fmt.Sprint("k", i)
		if err := c.put(key, make([]byte, 68)); err != nil { // 100 bytes with the sum
			t.Fatal(err)
		}
		set(c.path(key), time.Duration(40-i)*time.Hour)
	}
	set(c.path("k11"), 30*time.Minute)
	left := filepath.Join(c.dir, tempPrefix+"killed")
	fresh := filepath.Join(c.dir, tempPrefix+"busy")
	for _, path := range []string{left, fresh} {
		if err := os.WriteFile(path, make([]byte, 10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set(left, 2*tempAge)
	before, err := os.Stat(c.path("k11"))
	if err != nil {
		t.Fatal(err)
	}
	if c.get("k0") == nil || c.get("k11") == nil {
		t.Fatal("not found")
	}
	if after, err := os.Stat(c.path("k11")); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the time of a file that was used within the hour changed: %v", err)
	}
	if err := c.sweep(); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		kept := i == 0 || i >= 8 // half of maxBytes
		if _, err := os.Stat(c.path(fmt.Sprint("k", i))); (err == nil) != kept {
			t.Errorf("k%d: %v, kept should be %v", i, err, kept)
		}
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("the temporary file of a killed process is still there")
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("the temporary file of a running process is gone: %v", err)
	}
}

func TestCompiledKernelsAreFoundOnDisk(t *testing.T) {
	b := onFake(t)
	dir := t.TempDir()
	b.code.disk.dir = dir
	x := b.onDevice(t, tensor(t, "float32", 1000))
	b.launchesOf(t, "array.map", nil, "x0+0.25", x)
	files, err := filepath.Glob(filepath.Join(dir, "*"+cubinSuffix))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	before, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	// Another value of the constant uses the same kernel, and so does another shape.
	b.launchesOf(t, "array.map", nil, "x0+0.75", b.onDevice(t, tensor(t, "float32", 10, 30)))
	if err := b.code.close(); err != nil {
		t.Fatal(err)
	}
	b.launchesOf(t, "array.map", nil, "x0+0.25", x)
	again, err := filepath.Glob(filepath.Join(dir, "*"+cubinSuffix))
	if err != nil || len(again) != 1 {
		t.Fatalf("%v, %v", again, err)
	}
	if after, err := os.Stat(again[0]); err != nil || after.ModTime() != before.ModTime() {
		t.Errorf("compiled again: %v", err)
	}
}

func TestASmallCallIsCheap(t *testing.T) {
	b := onFake(t)
	point := func() {
		inputs := []any{tensor(t, "uint8", 16), tensor(t, "uint8", 16), tensor(t, "uint8", 16)}
		b.launchesOf(t, "bench.point", nil, append([]any{int64(1), int64(1), ints(0, 1, 2), int64(1), int64(16)}, inputs...)...)
	}
	point() // loads the kernels
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const times = 50
	for range times {
		point()
	}
	runtime.ReadMemStats(&after)
	// A read of the kernels' code alone would allocate ten times as much.
	if each := (after.TotalAlloc - before.TotalAlloc) / times; each > 20<<10 {
		t.Errorf("a call allocates %d bytes", each)
	}
}
