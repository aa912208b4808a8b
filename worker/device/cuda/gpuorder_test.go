//go:build cgo && linux

package cuda

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/millrace/millrace/worker/ops"
)

// exactly compares the results of a call with the host's, to the bit.
func (b *bench) exactly(t *testing.T, label, name string, options named, positional ...any) {
	t.Helper()
	mark := b.next
	defer func() { b.next = mark }()
	got, err := b.call(t.Context(), name, ops.Args{Positional: positional, Named: options})
	if err != nil {
		t.Errorf("%s: %v", label, err)
		return
	}
	args, err := argsOnHost(ops.Args{Positional: positional})
	if err != nil {
		t.Fatal(err)
	}
	want, err := hostOp(t.Context(), name, ops.Args{Positional: args.Positional, Named: options})
	if err != nil {
		t.Fatal(err)
	}
	gots := listed(resultOnHost(t, got))
	for i, w := range listed(want) {
		g, w := gots[i].(*ops.Tensor), w.(*ops.Tensor)
		if fmt.Sprint(g.DType, g.Shape) != fmt.Sprint(w.DType, w.Shape) {
			t.Errorf("%s: result %d is %v%v, want %v%v", label, i, g.DType, g.Shape, w.DType, w.Shape)
			continue
		}
		if bytes.Equal(g.Data[g.Offset:g.Offset+g.Bytes()], w.Data[w.Offset:w.Offset+w.Bytes()]) {
			continue
		}
		size := w.DType.Size()
		for k := range w.Len() {
			if at := k * size; !bytes.Equal(g.Data[g.Offset+at:][:size], w.Data[w.Offset+at:][:size]) {
				t.Errorf("%s: result %d: element %d is %x, want %x", label, i, k, g.Data[g.Offset+at:][:size], w.Data[w.Offset+at:][:size])
				break
			}
		}
	}
}

// special draws numbers on the device. Some floats are NaN, infinities and zeros of both signs.
func (b *bench) special(t *testing.T, dtype string, shape ...int64) *ops.Tensor {
	t.Helper()
	words := b.must(t, "array.random", named{"low": int64(-1 << 62), "high": int64(1 << 62), "dtype": "int64"}, ints(shape...), int64(7), "integers")
	few := b.must(t, "array.map", nil, "x0 % 50", words)
	expr := "x0"
	switch dtype {
	case "float32", "float64":
		expr = "where(x1 == 0, nan, where(x1 == 1, -inf, where(x1 == 2, -0.0, where(x1 == 3, 0.0, x0 / 1e15))))"
	case "complex64", "complex128":
		expr = "where(x1 == 0, nan+1j, where(x1 == 1, 1j*nan, where(x1 == 2, x0*0j, (x0 // 2**52) + 1j*(x1 - 20))))"
	}
	return b.must(t, "array.map", named{"dtype": dtype}, expr, words, few).(*ops.Tensor)
}

// orderElements is the number of elements of the large arrays.
const orderElements = 10_000_000

func TestGPUOrdersLargeArrays(t *testing.T) {
	onGPU(t)
	b := open(t, 8<<30, Options{})
	for _, d := range []string{"uint8", "int32", "int64", "float32", "float64", "complex64"} {
		b.reset()
		x := b.special(t, d, orderElements)
		b.exactly(t, "sort of "+d, "array.sort", nil, x)
		b.exactly(t, "sort of "+d+", descending", "array.sort", named{"descending": true}, x)
		if d == "float32" || d == "complex64" {
			b.exactly(t, "unique of "+d, "array.unique", named{"inverse": true, "counts": true}, x)
			for _, rows := range []int64{10, 1000, 10_000, 1_000_000} {
				lanes := *x
				lanes.Shape = []int64{rows, orderElements / rows}
				lanes.Strides = ops.ContiguousStrides(x.DType, lanes.Shape)
				b.exactly(t, fmt.Sprintf("sort of %s%v", d, lanes.Shape), "array.sort", nil, &lanes)
				b.exactly(t, fmt.Sprintf("sort of %s%v, axis 0", d, lanes.Shape), "array.sort", named{"axis": int64(0)}, &lanes)
			}
		}
	}
	b.reset()
	numbers := b.must(t, "array.random", named{"high": int64(100_000), "dtype": "int64"}, ints(orderElements), int64(3), "integers").(*ops.Tensor)
	b.exactly(t, "unique of int64", "array.unique", named{"inverse": true, "counts": true}, numbers)
	b.exactly(t, "cumsum of int64", "array.cumsum", nil, numbers)
	for _, columns := range []int64{3, 1000, 100_000} {
		lanes := *numbers
		lanes.Shape = []int64{orderElements / columns, columns}
		lanes.Strides = ops.ContiguousStrides(numbers.DType, lanes.Shape)
		b.exactly(t, fmt.Sprint("cumsum of int64 along axis 0 of ", lanes.Shape), "array.cumsum", named{"axis": int64(0)}, &lanes)
		b.exactly(t, fmt.Sprint("cumsum of int64 along axis 1 of ", lanes.Shape), "array.cumsum", named{"axis": int64(1)}, &lanes)
	}
	places := b.must(t, "array.random", named{"low": int64(-orderElements), "high": int64(orderElements), "dtype": "int64"}, ints(orderElements), int64(4), "integers")
	b.exactly(t, "take of int64", "array.take", nil, numbers, places)
	again, other := b.must(t, "array.cumsum", named{"dtype": "float64"}, numbers), b.must(t, "array.cumsum", named{"dtype": "float64"}, numbers)
	if off := b.worst(t, "x0-x1", again, other); off != 0 {
		t.Errorf("two sums of the same numbers differ by %g", off)
	}
}

func TestGPUTransformsLargeArrays(t *testing.T) {
	onGPU(t)
	b := open(t, 8<<30, Options{})
	for _, c := range []struct {
		dtype, kind, back string
		tolerance         float64
		shape             []int64
		axes              []any
	}{
		{"complex128", "fft", "ifft", 1e-11, []int64{1 << 22}, ints(0)},
		{"complex64", "fft", "ifft", 1e-4, []int64{2048, 1000}, ints(0, 1)},
		{"float64", "rfft", "irfft", 1e-11, []int64{60, 90, 100, 12}, ints(0, 1, 2, 3)},
		{"float32", "rfft", "irfft", 1e-4, []int64{300, 1 << 14}, ints(0)},
	} {
		b.reset()
		x := b.random(t, c.dtype, c.shape...)
		there := b.must(t, "array.fft", named{"axes": c.axes}, x, c.kind)
		back := b.must(t, "array.fft", named{"axes": c.axes}, there, c.back)
		if off := b.worst(t, "x0-x1", back, x); off > c.tolerance {
			t.Errorf("%s and %s of %s%v are off by %g", c.kind, c.back, c.dtype, c.shape, off)
		}
	}
	// More shapes than plans that are kept.
	for n := int64(1000); n < 1000+3*maxFFTPlans; n++ {
		b.reset()
		x := b.random(t, "complex128", 4, n)
		if off := b.worst(t, "x0-x1", b.must(t, "array.fft", nil, b.must(t, "array.fft", nil, x), "ifft"), x); off > 1e-12 {
			t.Errorf("fft and ifft of length %d are off by %g", n, off)
		}
	}
}

func TestGPURatesOfOrder(t *testing.T) {
	onGPU(t)
	b := open(t, 24<<30, Options{})
	const n = 100_000_000
	measure := func(label, name string, options named, positional ...any) {
		tell(t, label, float64(b.timed(t, 5, name, ops.Args{Positional: positional, Named: options}))/1e6, "ms")
	}
	for _, d := range []string{"float32", "float64", "complex64"} {
		b.reset()
		x := b.random(t, d, n)
		measure("sort of 1e8 "+d, "array.sort", nil, x)
		lanes := *x
		lanes.Shape = []int64{n / 1000, 1000}
		lanes.Strides = ops.ContiguousStrides(x.DType, lanes.Shape)
		measure("sort of 1e5 lanes of 1000 "+d, "array.sort", nil, &lanes)
		measure("cumsum of 1e8 "+d, "array.cumsum", nil, x)
		measure("cumsum of 1e5 x 1000 "+d+", axis 0", "array.cumsum", named{"axis": int64(0)}, &lanes)
		measure("unique of 1e8 "+d, "array.unique", nil, x)
	}
	b.reset()
	x := b.must(t, "array.random", named{"high": int64(1_000_000), "dtype": "int64"}, ints(n), int64(3), "integers")
	measure("sort of 1e8 int64", "array.sort", nil, x)
	measure("unique of 1e8 int64 with inverse and counts", "array.unique", named{"inverse": true, "counts": true}, x)
	y := b.random(t, "float32", 1_000_000)
	measure("take of 1e8 float32 of 1e6", "array.take", nil, y, x)
	z := b.random(t, "float32", 1_000_000, 100)
	rows := b.must(t, "array.random", named{"high": int64(1_000_000), "dtype": "int64"}, ints(1_000_000), int64(5), "integers")
	measure("take of 1e6 rows of 100 float32", "array.take", named{"axis": int64(0)}, z, rows)
	for _, d := range []string{"complex64", "complex128"} {
		b.reset()
		measure("fft of 2**24 "+d, "array.fft", nil, b.random(t, d, 1<<24))
		measure("fft of 4096 x 4096 "+d+", both axes", "array.fft", named{"axes": ints(0, 1)}, b.random(t, d, 4096, 4096))
		measure("fft of 4096 x 4096 "+d+", axis 0", "array.fft", named{"axes": ints(0)}, b.random(t, d, 4096, 4096))
	}
	small := b.random(t, "float32", 1<<14)
	for name, positional := range map[string][]any{"array.sort": {small}, "array.cumsum": {small}, "array.unique": {small}, "array.fft": {small}} {
		tell(t, name+" of 16384 float32, whole call", float64(b.timed(t, 100, name, ops.Args{Positional: positional}))/1e3, "us")
	}
}
