//go:build cgo && linux

package cuda

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/sharedlib"

	"pgregory.net/rapid"

	gpu "github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/ops"
)

type named = map[string]any

func ints(values ...int64) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}

// hostOp runs an operation on the CPU.
func hostOp(ctx context.Context, name string, args ops.Args) (any, error) {
	op, err := ops.NewRegistry().Lookup(name)
	if err != nil {
		return nil, err
	}
	return op.Run(ctx, args, ops.NewTensor)
}

// genStrided draws a tensor of small integers with strides that stay inside its
// memory: gaps, reversed and broadcast axes.
func genStrided(rt *rapid.T, label string, d ops.DType, shape []int64) *ops.Tensor {
	view := &ops.Tensor{DType: d, Shape: shape, Strides: make([]int64, len(shape))}
	axes := make([]int, len(shape))
	for i := range axes {
		axes[i] = i
	}
	step := d.Size()
	for _, axis := range rapid.Permutation(axes).Draw(rt, label+" order") {
		stride := step * rapid.Int64Range(1, 2).Draw(rt, label+" gap")
		switch rapid.IntRange(0, 5).Draw(rt, label+" way") {
		case 0:
			stride = 0
		case 1:
			view.Offset += stride * max(shape[axis]-1, 0)
			step = stride * max(shape[axis], 1)
			stride = -stride
		default:
			step = stride * max(shape[axis], 1)
		}
		view.Strides[axis] = stride
	}
	room, err := hostOp(context.Background(), "array.random", ops.Args{Positional: []any{ints(step/d.Size() + 1), rapid.Int64().Draw(rt, label), "integers"}, Named: named{"high": int64(7)}})
	if err != nil {
		rt.Fatal(err)
	}
	cast, err := hostOp(context.Background(), "array.cast", ops.Args{Positional: []any{room, d.String()}})
	if err != nil {
		rt.Fatal(err)
	}
	view.Data = cast.(*ops.Tensor).Data
	return view
}

// agree runs a call on the host and on the device and compares the results.
func (b *bench) agree(t *testing.T, rt *rapid.T, tolerance float64, name string, options named, positional ...any) {
	t.Helper()
	far := slices.Clone(positional)
	if rapid.IntRange(0, 3).Draw(rt, "where") > 0 {
		for i, v := range far {
			if x, ok := v.(*ops.Tensor); ok {
				far[i] = b.onDevice(t, x)
			}
		}
	}
	want, hostErr := hostOp(t.Context(), name, ops.Args{Positional: positional, Named: options})
	got, err := b.call(t.Context(), name, ops.Args{Positional: far, Named: options})
	if (err == nil) != (hostErr == nil) {
		rt.Fatalf("%s: the host says %v, the device %v", name, hostErr, err)
	}
	if err != nil {
		if err.Error() != hostErr.Error() {
			rt.Fatalf("%s: the host says %v, the device %v", name, hostErr, err)
		}
		return
	}
	gots := listed(resultOnHost(t, got))
	for i, w := range listed(want) {
		w, ok := w.(*ops.Tensor)
		if !ok {
			if fmt.Sprint(want) != fmt.Sprint(got) {
				rt.Fatalf("%s: %v, want %v", name, got, want)
			}
			return
		}
		if message := sameTensor(gots[i].(*ops.Tensor), w, tolerance); message != "" {
			rt.Fatalf("%s %v: result %d: %s", name, options, i, message)
		}
	}
}

func TestGPUAgreesWithTheHost(t *testing.T) {
	onGPU(t)
	b := open(t, 4<<30, Options{})
	dtypes := []ops.DType{ops.Bool, ops.Uint8, ops.Int32, ops.Int64, ops.Float32, ops.Float64, ops.Complex64, ops.Complex128}
	rapid.Check(t, func(rt *rapid.T) {
		b.reset()
		shape := rapid.SliceOfN(rapid.Int64Range(0, 40), 0, 4).Draw(rt, "shape")
		d := rapid.SampledFrom(dtypes).Draw(rt, "dtype")
		x := genStrided(rt, "x", d, shape)
		var axes []any
		for i := range shape {
			if rapid.Bool().Draw(rt, "axis") {
				axes = append(axes, int64(i))
			}
		}
		if axes == nil {
			axes = []any{}
		}
		order := make([]int, len(shape))
		for i := range order {
			order[i] = i
		}
		var turned []any
		for _, i := range rapid.Permutation(order).Draw(rt, "turned") {
			turned = append(turned, int64(i))
		}
		switch rapid.IntRange(0, 13).Draw(rt, "op") {
		case 0:
			b.agree(t, rt, 0, "array.transpose", named{"axes": turned}, x)
		case 1:
			b.agree(t, rt, 0, "array.slice", named{"start": rapid.Int64Range(-3, 30).Draw(rt, "start"), "step": rapid.SampledFrom([]int64{-2, -1, 1, 3}).Draw(rt, "step")}, x)
		case 2:
			b.agree(t, rt, 0, "array.cast", nil, x, rapid.SampledFrom(dtypes).Draw(rt, "to").String())
		case 3:
			b.agree(t, rt, 0, "array.concat", named{"axis": int64(max(len(shape)-1, 0))}, x, genStrided(rt, "y", rapid.SampledFrom(dtypes).Draw(rt, "other"), shape))
		case 4:
			op := rapid.SampledFrom([]string{"sum", "count", "any", "all", "min", "max"}).Draw(rt, "reduce")
			b.agree(t, rt, 0, "array.reduce", named{"axes": axes}, x, op)
		case 5:
			small := slices.Clone(shape[rapid.IntRange(0, len(shape)).Draw(rt, "dropped"):])
			for i := range small {
				if rapid.Bool().Draw(rt, "one") {
					small[i] = 1
				}
			}
			b.agree(t, rt, 0, "array.map", nil, "x0*3+x1", x, genStrided(rt, "y", ops.Int64, small))
		case 6:
			distribution := rapid.SampledFrom([]string{"uniform", "integers", "normal"}).Draw(rt, "distribution")
			dtype := rapid.SampledFrom([]string{"float32", "float64", "complex64", "complex128"}).Draw(rt, "float")
			if distribution == "integers" {
				dtype = rapid.SampledFrom([]string{"uint8", "int32", "int64"}).Draw(rt, "int")
			}
			options := named{"dtype": dtype, "offset": rapid.Int64Range(0, 1<<40).Draw(rt, "offset")}
			tolerance := 0.0
			if distribution == "normal" {
				tolerance = map[string]float64{"float32": 2e-7, "complex64": 2e-7}[dtype]
				tolerance = max(tolerance, 1e-14)
			} else {
				options["high"] = int64(100)
			}
			var list []any
			for _, n := range shape {
				list = append(list, n)
			}
			if list == nil {
				list = []any{}
			}
			b.agree(t, rt, tolerance, "array.random", options, list, rapid.Int64().Draw(rt, "seed"), distribution)
		case 7:
			m, k, n := rapid.Int64Range(0, 40).Draw(rt, "m"), rapid.Int64Range(0, 40).Draw(rt, "k"), rapid.Int64Range(0, 40).Draw(rt, "n")
			b.agree(t, rt, 0, "array.matmul", nil, genStrided(rt, "a", d, []int64{2, m, k}), genStrided(rt, "b", d, []int64{k, n}))
		case 8:
			b.agree(t, rt, 0, "bench.bytes", nil, rapid.Int64Range(0, 5000).Draw(rt, "bytes"), rapid.Int64().Draw(rt, "seed"))
		case 9:
			dtype := rapid.SampledFrom([]string{"uint8", "int32", "int64", "float32", "float64", "complex64", "complex128"}).Draw(rt, "to")
			b.agree(t, rt, 0, "array.arange", named{"dtype": dtype}, rapid.Int64Range(0, 3).Draw(rt, "from"), rapid.Int64Range(0, 200).Draw(rt, "stop"))
		case 10:
			b.agree(t, rt, 0, "array.sort", named{"axis": maybeAxis(rt, len(shape)), "descending": rapid.Bool().Draw(rt, "descending")}, x)
		case 11:
			b.agree(t, rt, 0, "array.unique", named{"inverse": rapid.Bool().Draw(rt, "inverse"), "counts": rapid.Bool().Draw(rt, "counts")}, x)
		case 12:
			indices := genStrided(rt, "indices", rapid.SampledFrom([]ops.DType{ops.Uint8, ops.Int32, ops.Int64}).Draw(rt, "index"), rapid.SliceOfN(rapid.Int64Range(0, 9), 0, 2).Draw(rt, "of indices"))
			b.agree(t, rt, 0, "array.take", named{"axis": maybeAxis(rt, len(shape))}, x, indices)
		case 13:
			b.agree(t, rt, 0, "array.cumsum", named{"axis": maybeAxis(rt, len(shape))}, x)
		}
	})
}

// maybeAxis draws an axis or nil.
func maybeAxis(rt *rapid.T, axes int) any {
	axis := rapid.IntRange(-1, axes-1).Draw(rt, "along")
	if axis < 0 {
		return nil
	}
	return int64(axis)
}

// timed returns the median time of a call, by the CPU's clock.
func (b *bench) timed(t *testing.T, times int, name string, args ops.Args) time.Duration {
	t.Helper()
	var all []time.Duration
	mark := b.next
	for range times + 1 {
		b.next = mark
		begin := time.Now()
		if _, err := b.call(t.Context(), name, args); err != nil {
			t.Fatal(err)
		}
		all = append(all, time.Since(begin))
	}
	b.next = mark
	all = all[1:] // the first call compiles
	slices.Sort(all)
	return all[len(all)/2]
}

func (b *bench) random(t *testing.T, dtype string, shape ...int64) *ops.Tensor {
	t.Helper()
	x, err := b.call(t.Context(), "array.random", ops.Args{Positional: []any{ints(shape...), int64(1), "normal"}, Named: named{"dtype": dtype}})
	if err != nil {
		t.Fatal(err)
	}
	return x.(*ops.Tensor)
}

func TestGPURatesOfMapAndReduce(t *testing.T) {
	onGPU(t)
	b := open(t, 24<<30, Options{})
	const n = 1 << 29 // 2 GiB of float32
	x := b.random(t, "float32", 1<<14, n>>14)
	row := b.random(t, "float32", n>>14)
	out, err := b.alloc(4 * n)
	if err != nil {
		t.Fatal(err)
	}
	// The rate of the device's own copy, as a reference for the other rates.
	event, err := b.gpu.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer event.Close()
	copied := func() time.Duration {
		begin := time.Now()
		if err := b.stream.Copy([]gpu.Copy{gpu.OnDevice(b.slab.Pointer(out.Offset, out.Bytes), x.Far.Address(), 4*n)}, event); err != nil {
			t.Fatal(err)
		}
		if err := event.Sync(); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	}
	copied()
	best := min(copied(), copied(), copied())
	tell(t, "memcpy on the device, read and written", 8*n/best.Seconds()/1e9, "GB/s")
	rate := func(name string, bytes float64, op string, options named, positional ...any) {
		d := b.timed(t, 5, op, ops.Args{Positional: positional, Named: options})
		tell(t, name, bytes/d.Seconds()/1e9, "GB/s")
	}
	rate("map x0*2+1 of float32", 8*n, "array.map", nil, "x0*2+1", x)
	rate("map exp(x0) of float32", 8*n, "array.map", nil, "exp(x0)", x)
	rate("map x0-x1, x1 a row", 8*n, "array.map", nil, "x0-x1", x, row)
	rate("reduce sum of float32", 4*n, "array.reduce", nil, x)
	rate("reduce max of float32", 4*n, "array.reduce", nil, x, "max")
	rate("reduce sum of float32, axis 0", 4*n, "array.reduce", named{"axes": int64(0)}, x)
	rate("reduce sum of float32, axis 1", 4*n, "array.reduce", named{"axes": int64(1)}, x)
	rate("transpose of float32", 8*n, "array.transpose", nil, x)
	rate("cast float32 to float64", 12*n, "array.cast", nil, x, "float64")
	rate("slice, every other column", 4*n, "array.slice", named{"step": []any{nil, int64(2)}}, x)
	rate("random uniform float32", 4*n, "array.random", named{"dtype": "float32"}, ints(n), int64(1))
	rate("random normal float32", 4*n, "array.random", named{"dtype": "float32"}, ints(n), int64(1), "normal")
	rate("fill float32", 4*n, "array.full", named{"dtype": "float32"}, ints(n), 1.5)
	small := b.random(t, "float32", 1<<14)
	tell(t, "map of 16384 float32, whole call", float64(b.timed(t, 200, "array.map", ops.Args{Positional: []any{"x0*2+1", small}}))/1e3, "us")
	tell(t, "reduce of 16384 float32, whole call", float64(b.timed(t, 200, "array.reduce", ops.Args{Positional: []any{small}}))/1e3, "us")
}

func TestGPUMatmulIsAsFastAsRawCUBLAS(t *testing.T) {
	onGPU(t)
	b := open(t, 20<<30, Options{})
	const n = 16384
	for _, c := range []struct {
		name, dtype string
		tf32        bool
	}{{"float32", "float32", false}, {"tf32", "float32", true}, {"float64", "float64", false}} {
		b.reset()
		x, y := b.random(t, c.dtype, n, n), b.random(t, c.dtype, n, n)
		lib, err := b.getBLAS()
		if err != nil {
			t.Fatal(err)
		}
		out, err := b.alloc(uint64(x.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		raw := func() time.Duration {
			begin := time.Now()
			if err := b.enter(func() error {
				return lib.multiply(product{
					dtype: x.DType, tf32: c.tf32, m: n, n: n, k: n, factor: 1,
					a: matrix{at: x.Far.Address(), distance: n}, b: matrix{at: y.Far.Address(), distance: n},
					c: matrix{at: b.slab.Pointer(out.Offset, out.Bytes), distance: n},
				})
			}); err != nil {
				t.Fatal(err)
			}
			if err := b.stream.Sync(); err != nil {
				t.Fatal(err)
			}
			return time.Since(begin)
		}
		raw()
		// The two alternate, because clock rates change as the device warms up.
		var times, own []time.Duration
		for range 9 {
			times = append(times, raw())
			own = append(own, b.timed(t, 1, "array.matmul", ops.Args{Positional: []any{x, y}, Named: named{"tf32": c.tf32}}))
		}
		slices.Sort(times)
		slices.Sort(own)
		alone, op := times[4], own[4]
		flops := 2 * float64(n) * n * n / 1e12
		tell(t, "matmul 16384 "+c.name+", cuBLAS alone", flops/alone.Seconds(), "TFLOPS")
		tell(t, "matmul 16384 "+c.name+", the operation", flops/op.Seconds(), "TFLOPS")
		if ratio := alone.Seconds() / op.Seconds(); ratio < 0.95 {
			t.Errorf("%s: the operation has %.3f of the rate of cuBLAS", c.name, ratio)
		}
	}
}

// worst returns the largest element of |expr|, computed on the device.
func (b *bench) worst(t *testing.T, expr string, inputs ...any) float64 {
	t.Helper()
	d, err := b.call(t.Context(), "array.map", ops.Args{Positional: append([]any{"abs(" + expr + ")"}, inputs...)})
	if err != nil {
		t.Fatal(err)
	}
	m, err := b.call(t.Context(), "array.reduce", ops.Args{Positional: []any{d, "max"}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := resultOnHost(t, m).(*ops.Tensor).Item()
	if err != nil {
		t.Fatal(err)
	}
	return v.(float64)
}

func (b *bench) must(t *testing.T, name string, options named, positional ...any) any {
	t.Helper()
	v, err := b.call(t.Context(), name, ops.Args{Positional: positional, Named: options})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (b *bench) transposed(t *testing.T, x any) *ops.Tensor {
	t.Helper()
	return b.must(t, "array.transpose", nil, x).(*ops.Tensor)
}

func TestGPUFactorisations(t *testing.T) {
	onGPU(t)
	b := open(t, 24<<30, Options{})
	for _, c := range []struct {
		m, n      int64
		dtype     string
		tolerance float64
	}{
		{1000, 20, "float64", 1e-12}, {100, 80, "float64", 1e-12}, {30, 70, "float64", 1e-12}, {1, 1, "float64", 1e-12},
		{5, 1, "float64", 1e-12}, {1, 5, "float64", 1e-12}, {700, 9, "float32", 2e-5}, {50, 60, "float32", 2e-5}, {64, 64, "float64", 1e-12},
		{600000, 70, "float32", 2e-4}, {100000, 1000, "float64", 1e-11},
	} {
		b.reset()
		x := b.random(t, c.dtype, c.m, c.n)
		k := min(c.m, c.n)
		eye := b.must(t, "array.map", named{"dtype": c.dtype}, "x0 == x1", b.must(t, "array.arange", nil, k), b.must(t, "array.reshape", nil, b.must(t, "array.arange", nil, k), ints(k, 1)))
		label := fmt.Sprintf("%dx%d %s", c.m, c.n, c.dtype)
		qr := b.must(t, "array.qr", nil, x).([]any)
		if off := b.worst(t, "x0-x1", b.must(t, "array.matmul", nil, qr[0], qr[1]), x); off > c.tolerance*10 {
			t.Errorf("%s: q*r is off by %g", label, off)
		}
		if off := b.worst(t, "x0-x1", b.must(t, "array.matmul", nil, b.transposed(t, qr[0]), qr[0]), eye); off > c.tolerance {
			t.Errorf("%s: q'q is off by %g", label, off)
		}
		f := b.must(t, "array.svd", nil, x).([]any)
		us := b.must(t, "array.map", nil, "x0*x1", f[0], f[1])
		if off := b.worst(t, "x0-x1", b.must(t, "array.matmul", nil, us, f[2]), x); off > c.tolerance*10 {
			t.Errorf("%s: u*s*vt is off by %g", label, off)
		}
		if off := b.worst(t, "x0-x1", b.must(t, "array.matmul", nil, b.transposed(t, f[0]), f[0]), eye); off > c.tolerance {
			t.Errorf("%s: u'u is off by %g", label, off)
		}
		if off := b.worst(t, "x0-x1", b.must(t, "array.matmul", nil, f[2], b.transposed(t, f[2])), eye); off > c.tolerance {
			t.Errorf("%s: vt*v is off by %g", label, off)
		}
		if off := b.worst(t, "x0-x1", qr[1], b.must(t, "array.qr", named{"mode": "r"}, x)); off > c.tolerance*10 {
			t.Errorf("%s: r alone differs by %g", label, off)
		}
		if off := b.worst(t, "x0-x1", f[1], b.must(t, "array.svd", named{"vectors": false}, x)); off > c.tolerance*10 {
			t.Errorf("%s: the values alone differ by %g", label, off)
		}
		if c.m == 100000 {
			tell(t, "qr 100000 x 1000 float64", float64(b.timed(t, 3, "array.qr", ops.Args{Positional: []any{x}}))/1e6, "ms")
			tell(t, "qr 100000 x 1000 float64, r alone", float64(b.timed(t, 3, "array.qr", ops.Args{Positional: []any{x}, Named: named{"mode": "r"}}))/1e6, "ms")
			tell(t, "svd 100000 x 1000 float64", float64(b.timed(t, 3, "array.svd", ops.Args{Positional: []any{x}}))/1e6, "ms")
			tell(t, "svd 100000 x 1000 float64, values alone", float64(b.timed(t, 3, "array.svd", ops.Args{Positional: []any{x}, Named: named{"vectors": false}}))/1e6, "ms")
			b.stepsOfSVD(t, x)
		}
	}
	// Nearly singular: the second column is almost the first.
	b.reset()
	x := b.random(t, "float64", 1000, 1)
	y := b.must(t, "array.concat", named{"axis": int64(1)}, x, b.must(t, "array.map", nil, "x0*(1+1e-14*x1)", x, b.random(t, "float64", 1000, 1)))
	q := b.must(t, "array.qr", nil, y).([]any)[0]
	if off := b.worst(t, "x0-x1", b.must(t, "array.matmul", nil, b.transposed(t, q), q), b.must(t, "array.map", named{"dtype": "float64"}, "x0 == x1", b.must(t, "array.arange", nil, int64(2)), b.must(t, "array.reshape", nil, b.must(t, "array.arange", nil, int64(2)), ints(2, 1)))); off > 1e-12 {
		t.Errorf("q'q of a nearly singular matrix is off by %g", off)
	}
}

// TestGPUFactorsOfNearlySingularMatrices compares r alone and the singular values alone with those
// of the whole factorisations, for condition numbers around the one at which Householder's method
// replaces Cholesky's. The smallest values show errors that grow with the square of that number.
func TestGPUFactorsOfNearlySingularMatrices(t *testing.T) {
	onGPU(t)
	b := open(t, 4<<30, Options{})
	const n = 60
	for _, m := range []int64{n, 50 * n, 5000 * n} {
		for _, exponent := range []float64{3, 6, 7, 8, 12, 15} {
			b.reset()
			scale := b.must(t, "array.map", nil, "10.0**(x0*x1)", b.must(t, "array.arange", nil, int64(n)), -exponent/(n-1))
			// A product with another matrix, because small columns alone do no harm.
			x := b.must(t, "array.matmul", nil, b.must(t, "array.map", nil, "x0*x1", b.random(t, "float64", m, n), scale), b.random(t, "float64", n, n))
			label := fmt.Sprintf("%d x %d, condition 1e%v", m, n, exponent)
			r := b.must(t, "array.qr", named{"mode": "r"}, x)
			all := b.must(t, "array.svd", nil, x).([]any)[1]
			for what, y := range map[string]any{"values alone": x, "values of r alone": r} {
				only := b.must(t, "array.svd", named{"vectors": false}, y)
				if off := b.worst(t, "x0-x1", only, all) / b.worst(t, "x0", all); off > 1e-13 {
					t.Errorf("%s: %s differ by %g of the largest", label, what, off)
				}
			}
			// The columns of r have the norms of those of x: also the small ones.
			norms := func(y any) any {
				return b.must(t, "array.reduce", named{"axes": int64(0)}, b.must(t, "array.map", nil, "x0*x0", y))
			}
			if off := b.worst(t, "x0/x1-1", norms(r), norms(x)); off > 1e-11 {
				t.Errorf("%s: the columns of r differ by %g of their squares", label, off)
			}
		}
	}
}

// TestGPUSystemsAndDefiniteMatrices checks cholesky and solve with matrices that are larger than
// those of the golden cases, and that failures name the matrix.
func TestGPUSystemsAndDefiniteMatrices(t *testing.T) {
	onGPU(t)
	b := open(t, 16<<30, Options{})
	diagonal := func(n int64) any {
		return b.must(t, "array.map", named{"dtype": "float32"}, "(x0 == x1)*x2", b.must(t, "array.arange", nil, n),
			b.must(t, "array.reshape", nil, b.must(t, "array.arange", nil, n), ints(n, 1)), float64(2*n))
	}
	turned := func(x any) any {
		last := int64(len(x.(*ops.Tensor).Shape) - 1)
		axes := make([]int64, last+1)
		for i := range axes {
			axes[i] = int64(i)
		}
		axes[last], axes[last-1] = last-1, last
		return b.must(t, "array.map", nil, "conj(x0)", b.must(t, "array.transpose", named{"axes": ints(axes...)}, x))
	}
	for _, c := range []struct {
		shape     []int64
		dtype     string
		tolerance float64
	}{
		{[]int64{2000, 2000}, "float64", 1e-12}, {[]int64{1500, 1500}, "complex64", 1e-4}, {[]int64{700, 700}, "complex128", 1e-12},
		{[]int64{1000, 1000}, "float32", 1e-4}, {[]int64{300, 40, 40}, "float64", 1e-13}, {[]int64{20, 256, 256}, "complex64", 2e-5},
		{[]int64{3, 300, 300}, "complex128", 1e-12}, {[]int64{100, 90, 90}, "float32", 2e-5},
	} {
		b.reset()
		n := c.shape[len(c.shape)-1]
		x := b.must(t, "array.map", named{"dtype": c.dtype}, "x0+x1", b.random(t, c.dtype, c.shape...), diagonal(n))
		label := fmt.Sprintf("%v %s", c.shape, c.dtype)
		definite := b.must(t, "array.matmul", nil, x, turned(x))
		l := b.must(t, "array.cholesky", nil, definite)
		if off := b.worst(t, "x0-x1", b.must(t, "array.matmul", nil, l, turned(l)), definite); off > c.tolerance*4*float64(n*n) {
			t.Errorf("%s: l*l' is off by %g", label, off)
		}
		for _, columns := range []int64{1, 7} {
			side := b.random(t, c.dtype, n, columns)
			y := b.must(t, "array.solve", nil, x, side)
			if off := b.worst(t, "x0-x1", b.must(t, "array.matmul", nil, x, y), side); off > c.tolerance {
				t.Errorf("%s: a*x is off by %g for %d columns", label, off, columns)
			}
		}
	}
	b.reset()
	for _, n := range []int64{30, 300} {
		eyes := b.must(t, "array.map", nil, "x0+x1", diagonal(n), b.must(t, "array.full", nil, ints(2, 3, n, n), 0.0))
		at := func(matrix int64, f string) any {
			return b.must(t, "array.map", nil, "where((x1 == x2) & (x2 == 20) & (x3 == 4), "+f+", x0)", eyes, b.must(t, "array.arange", nil, n),
				b.must(t, "array.reshape", nil, b.must(t, "array.arange", nil, n), ints(n, 1)),
				b.must(t, "array.reshape", nil, b.must(t, "array.arange", nil, int64(6)), ints(2, 3, 1, 1)))
		}
		for _, f := range []string{"-1.0", "sqrt(x0-1e6)"} {
			_, err := b.call(t.Context(), "array.cholesky", ops.Args{Positional: []any{at(4, f)}})
			if err == nil || !strings.Contains(err.Error(), "matrix x[1 1] is not positive definite: so says its row 20") {
				t.Errorf("%d rows, %s: %v", n, f, err)
			}
		}
		_, err := b.call(t.Context(), "array.solve", ops.Args{Positional: []any{at(4, "0.0"), b.random(t, "float64", n)}})
		if err == nil || !strings.Contains(err.Error(), "matrix a[1 1] is singular: its column 20") {
			t.Errorf("%d rows: %v", n, err)
		}
	}
	b.reset()
	x := b.must(t, "array.map", nil, "x0+x1", b.random(t, "float64", 8192, 8192), diagonal(8192))
	definite := b.must(t, "array.map", nil, "x0+x1", x, b.transposed(t, x))
	tell(t, "cholesky 8192 float64", float64(b.timed(t, 3, "array.cholesky", ops.Args{Positional: []any{definite}}))/1e6, "ms")
	tell(t, "solve 8192 float64, 100 columns", float64(b.timed(t, 3, "array.solve", ops.Args{Positional: []any{x, b.random(t, "float64", 8192, 100)}}))/1e6, "ms")
	b.ratesOfStacks(t, diagonal)
}

// ratesOfStacks reports the times of both ways to factor several matrices: one call for all and one
// for each. factoredTogether follows from these.
func (b *bench) ratesOfStacks(t *testing.T, diagonal func(n int64) any) {
	t.Helper()
	defer func() { b.together = factoredTogether }()
	for _, c := range [][2]int64{{2000, 64}, {4, 256}, {20, 256}, {200, 256}, {4, 512}, {20, 512}, {200, 512}, {4, 1024}, {20, 1024}, {200, 1024}} {
		count, n := c[0], c[1]
		b.reset()
		many := b.must(t, "array.map", nil, "x0+x1", b.random(t, "float64", count, n, n), diagonal(n))
		side := b.random(t, "float64", n, 1)
		definite := b.must(t, "array.map", nil, "x0+x1", many, b.must(t, "array.transpose", named{"axes": ints(0, 2, 1)}, many))
		for _, together := range []bool{true, false} {
			b.together = func(int64, int64) bool { return together }
			name := fmt.Sprintf("%d of %d x %d float64, together: %v", count, n, n, together)
			tell(t, "solve "+name, float64(b.timed(t, 3, "array.solve", ops.Args{Positional: []any{many, side}}))/1e6, "ms")
			tell(t, "cholesky "+name, float64(b.timed(t, 3, "array.cholesky", ops.Args{Positional: []any{definite}}))/1e6, "ms")
		}
	}
}

// stepsOfSVD reports the times of the single steps of the factorisation, and the time of cuSOLVER's
// other routine.
func (b *bench) stepsOfSVD(t *testing.T, x *ops.Tensor) {
	t.Helper()
	r, err := b.begin(t.Context(), "steps")
	if err != nil {
		t.Fatal(err)
	}
	defer r.end()
	f, err := r.newFactoring(x)
	if err != nil {
		t.Fatal(err)
	}
	m, n := f.m, f.n
	frame := func(bytes uint64) uint64 {
		f, err := b.alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		return b.slab.Pointer(f.Offset, f.Bytes)
	}
	square := uint64(8 * n * n)
	work, gram, a, values, left, right := frame(uint64(8*m*n)), frame(square), frame(square), frame(uint64(8*n)), frame(square), frame(square)
	info := frame(64)
	measure := func(name string, from, to uint64, bytes uint64, call func() error) {
		var all []time.Duration
		for range 4 {
			if err := b.stream.Copy([]gpu.Copy{gpu.OnDevice(to, from, bytes)}, nil); err != nil {
				t.Fatal(err)
			}
			if err := b.stream.Sync(); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if err := b.enter(call); err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			if err := b.stream.Sync(); err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Since(begin))
		}
		slices.Sort(all)
		tell(t, name, float64(all[1])/1e6, "ms")
	}
	at := x.Far.Address()
	measure("svd steps: Gram matrix", at, work, uint64(8*m*n), func() error {
		return f.blas.multiply(product{
			dtype: ops.Float64, m: n, n: n, k: m, factor: 1,
			a: matrix{at: work, transposed: true, distance: n}, b: matrix{at: work, distance: n}, c: matrix{at: gram, distance: n},
		})
	})
	var pinner runtime.Pinner
	defer pinner.Unpin()
	one, zero := [1]float64{1}, [1]float64{}
	measure("svd steps: Gram matrix by syrk", at, work, uint64(8*m*n), func() error {
		return f.blas.call("cublasDsyrk_v2_64", f.blas.handle, blasUpper, blasPlain, uint64(n), uint64(m),
			sharedlib.AddressOf(&pinner, &one[0]), work, uint64(n), sharedlib.AddressOf(&pinner, &zero[0]), a, uint64(n))
	})
	lwork, err := f.solver.workSize("cusolverDnDpotrf_bufferSize", solverUpper, uint64(n), 8, uint64(n))
	if err != nil {
		t.Fatal(err)
	}
	room := frame(8 * lwork)
	measure("svd steps: Cholesky", gram, a, square, func() error {
		return f.solver.call("cusolverDnDpotrf", f.solver.handle, solverUpper, uint64(n), a, uint64(n), room, lwork, info)
	})
	measure("svd steps: division by r", at, work, uint64(8*m*n), func() error {
		return f.divide(work, m, a)
	})
	measure("svd steps: division by r, trsm alone", at, work, uint64(8*m*n), func() error {
		return f.blas.call("cublasDtrsm_v2_64", f.blas.handle, blasLeft, blasUpper, blasTransposed, blasNonUnit, uint64(n), uint64(m),
			sharedlib.AddressOf(&pinner, &one[0]), a, uint64(n), work, uint64(n))
	})
	triangle := frame(square)
	if err := b.launch(gpu.Launch{
		Function: f.upper, Grid: gpu.Dim{uint32(blocksOf(n*n, threads))}, Block: gpu.Dim{threads},
		Parameters: new(parameters).u64(a, triangle).i64(n, n, n).bytes,
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ polar, vectors bool }{{true, true}, {false, true}, {false, false}} {
		v, err := f.newRoutine(&pinner, c.polar, c.vectors, n, n)
		if err != nil {
			t.Fatal(err)
		}
		room := frame(v.workBytes + 8)
		measure(fmt.Sprintf("svd steps: of r, gesvdp: %v, vectors: %v", c.polar, c.vectors), triangle, a, square, func() error { return v.call(a, values, left, right, room) })
		if err := b.stream.Copy([]gpu.Copy{gpu.ToHost(v.infoAt, v.infoIn(room), 8)}, nil); err != nil {
			t.Fatal(err)
		}
		if err := b.stream.Sync(); err != nil {
			t.Fatal(err)
		}
		if ok, err := v.outcome(); !ok || err != nil {
			t.Errorf("%+v: %v, %v", c, ok, err)
		}
	}
}

func TestGPUUserKernel(t *testing.T) {
	onGPU(t)
	b := open(t, 1<<30, Options{})
	const source = `
template <class T> __device__ T twice(T x) { return x + x; }
extern "C" __global__ void axpy(const float *x, long long n, float a, float *out, int *count) {
  extern __shared__ float shared[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  shared[threadIdx.x] = i < n ? x[i] : 0;
  __syncthreads();
  if (i < n) { out[i] = a * twice(shared[threadIdx.x]); atomicAdd(count, 1); }
}`
	x := b.random(t, "float32", 40, 25)
	turned := *x
	turned.Shape, turned.Strides = []int64{25, 40}, []int64{4, 100}
	outputs := []any{map[string]any{"dtype": "float32", "shape": ints(25, 40)}, map[string]any{"dtype": "int32", "shape": ints()}}
	half := map[string]any{"dtype": "float32", "value": 0.5}
	got := b.must(t, "cuda.kernel", named{"shared": int64(60 << 10), "zero": true}, source, "axpy", int64(8), int64(128), outputs, &turned, int64(1000), half).([]any)
	if off := b.worst(t, "x0-x1", got[0], &turned); off != 0 {
		t.Errorf("off by %g", off)
	}
	if n, err := resultOnHost(t, got[1]).(*ops.Tensor).Item(); err != nil || n != int64(1000) {
		t.Errorf("%v threads, %v", n, err)
	}
	for name, c := range map[string]struct {
		source, entry, want string
		shared              int64
	}{
		"does not compile":  {"\n__global__ void f() { x = 1; }", "f", "source(2): error", 0},
		"another name":      {source, "missing_one", "has no kernel missing_one", 0},
		"too much memory":   {source, "axpy", "argument shared", 1 << 30},
		"too many for regs": {source, "axpy", "argument shared", 230 << 10},
	} {
		_, err := b.call(t.Context(), "cuda.kernel", ops.Args{Positional: []any{c.source, c.entry, int64(1), int64(1), outputs, x, int64(0), half}, Named: named{"shared": c.shared}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
