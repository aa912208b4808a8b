//go:build cgo && linux

package cuda

import (
	"testing"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// elsewhere is memory of the device outside of its slab, like the mapped memory of a peer.
type elsewhere struct {
	*gpu.Slab
	next uint64
}

func (b *bench) elsewhere(tb testing.TB, bytes uint64) *elsewhere {
	tb.Helper()
	slab, err := b.gpu.NewSlab(gpu.SlabConfig{Size: gpu.Size{Bytes: bytes}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := slab.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &elsewhere{slab, memory.HeaderBytes}
}

// put copies a tensor there. The result is a view of it, as an operation that reads in place sees
// it.
func (e *elsewhere) put(tb testing.TB, t *ops.Tensor) *ops.Tensor {
	tb.Helper()
	f := memory.Frame{Offset: e.next, Bytes: uint64(len(t.Data))}
	e.next += aligned(f.Bytes)
	if err := e.WriteFrom(f.Offset, t.Data); err != nil {
		tb.Fatal(err)
	}
	out := *t
	out.Data = nil
	view(e.Slab, f, &out)
	return &out
}

func counting(tb testing.TB, dtype ops.DType, shape ...int64) *ops.Tensor {
	tb.Helper()
	t, err := ops.NewTensor(dtype, shape)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range t.Data {
		t.Data[i] = byte(i*7) & 0x3F // positive numbers of any type
	}
	return t
}

// TestGPUReadsInPlace checks that operations that read in place compute the same from memory
// outside of the slab. This includes operations that the CPU computes.
func TestGPUReadsInPlace(t *testing.T) {
	b := open(t, 64<<20, Options{})
	far := b.elsewhere(t, 16<<20)
	x, row := counting(t, ops.Float32, 300, 200), counting(t, ops.Float32, 200)
	bytes := counting(t, ops.Uint8, 4099)
	stamped, err := b.call(t.Context(), "bench.stamp", ops.Args{Positional: []any{int64(4), int64(5000), []any{}}})
	if err != nil {
		t.Fatal(err)
	}
	stamp := resultOnHost(t, stamped).(*ops.Tensor)
	for _, c := range []struct {
		name    string
		named   named
		kernels bool // the driver that computes nothing does not run these
		args    func(put func(*ops.Tensor) *ops.Tensor) []any
	}{
		{"array.slice", named{"start": int64(100)}, false, func(put func(*ops.Tensor) *ops.Tensor) []any { return []any{put(x)} }},
		{"array.slice", named{"step": []any{nil, int64(2)}}, true, func(put func(*ops.Tensor) *ops.Tensor) []any { return []any{put(x)} }},
		{"array.concat", nil, false, func(put func(*ops.Tensor) *ops.Tensor) []any { return []any{put(x), put(x)} }},
		{"array.transpose", nil, true, func(put func(*ops.Tensor) *ops.Tensor) []any { return []any{put(x)} }},
		{"core.identity", nil, false, func(put func(*ops.Tensor) *ops.Tensor) []any { return []any{put(bytes)} }},
		{"core.item", nil, true, func(put func(*ops.Tensor) *ops.Tensor) []any { return []any{put(x), int64(7)} }},
		{"bench.checksum", nil, false, func(put func(*ops.Tensor) *ops.Tensor) []any { return []any{put(bytes)} }},
		{"bench.stamp", nil, false, func(put func(*ops.Tensor) *ops.Tensor) []any {
			return []any{int64(5), int64(64), []any{int64(4)}, put(stamp)}
		}},
		{"array.map", nil, true, func(put func(*ops.Tensor) *ops.Tensor) []any { return []any{"x0*2+x1", put(x), put(row)} }},
		{"array.reduce", nil, true, func(put func(*ops.Tensor) *ops.Tensor) []any { return []any{put(x)} }},
		{"array.cast", nil, true, func(put func(*ops.Tensor) *ops.Tensor) []any { return []any{put(x), "int64"} }},
	} {
		if b.Reads(c.name) == device.ReadsAgain {
			t.Errorf("%s does not read in place", c.name)
		}
		if c.kernels && fake != nil {
			continue
		}
		got, err := b.call(t.Context(), c.name, ops.Args{Positional: c.args(func(x *ops.Tensor) *ops.Tensor { return far.put(t, x) }), Named: c.named})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		want, err := b.call(t.Context(), c.name, ops.Args{Positional: c.args(func(x *ops.Tensor) *ops.Tensor { return b.onDevice(t, x) }), Named: c.named})
		if err != nil {
			t.Fatal(err)
		}
		got, want = resultOnHost(t, got), resultOnHost(t, want)
		tensor, ok := got.(*ops.Tensor)
		if !ok {
			if got != want {
				t.Errorf("%s: %v, want %v", c.name, got, want)
			}
			continue
		}
		if diff := sameTensor(tensor, want.(*ops.Tensor), 0); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
	for _, name := range []string{"array.matmul", "array.svd", "array.qr", "cuda.kernel", "core.replicate", "bench.noop", "no.such"} {
		if b.Reads(name) != device.ReadsAgain {
			t.Errorf("%s reads in place", name)
		}
	}
}

// TestBroadcastInputsOfPeersAreCopied checks that an input that a kernel reads many times is copied
// first, and that an input that it reads once is not.
func TestBroadcastInputsOfPeersAreCopied(t *testing.T) {
	b := onFake(t)
	far := b.elsewhere(t, 16<<20)
	x, row := far.put(t, counting(t, ops.Float32, 300, 200)), far.put(t, counting(t, ops.Float32, 200))
	launches, _ := b.launchesOf(t, "array.map", nil, "x0*2+x1", x, row)
	if len(launches) != 1 {
		t.Fatalf("%d launches", len(launches))
	}
	// The parameters: n, the flag, the output, x, the row.
	parameters := launches[0].Parameters[:]
	if at := le.Uint64(parameters[24:]); !within(far.Pointer(0, 0), far.Size(), at) {
		t.Errorf("x is read at %#x, which is not where it is", at)
	}
	if at := le.Uint64(parameters[32:]); !within(b.scratch.Pointer(0, 0), b.scratch.Size(), at) {
		t.Errorf("the row is read at %#x, which is not in the scratch memory", at)
	}
}

func within(base, size, at uint64) bool { return at >= base && at-base < size }
