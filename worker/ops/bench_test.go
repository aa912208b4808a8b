package ops

import (
	"testing"
)

// benchmark runs an operation repeatedly; its outputs use the same memory each time.
func benchmark(b *testing.B, elements int64, name string, named map[string]any, positional ...any) {
	b.Helper()
	op, err := NewRegistry().Lookup(name)
	if err != nil {
		b.Fatal(err)
	}
	var outs []*Tensor
	next := 0
	alloc := func(d DType, shape []int64) (*Tensor, error) {
		if next == len(outs) {
			t, err := NewTensor(d, shape)
			if err != nil {
				return nil, err
			}
			outs = append(outs, t)
		}
		next++
		return outs[next-1], nil
	}
	for b.Loop() {
		next = 0
		if _, err := op.Run(b.Context(), Args{positional, named}, alloc); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(elements)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gelem/s")
}

func benchTensor(b *testing.B, shape ...any) *Tensor {
	b.Helper()
	for i, d := range shape {
		shape[i] = int64(d.(int))
	}
	return mustRun(b, "array.random", nil, shape, int64(1), "normal").(*Tensor)
}

func BenchmarkMap(b *testing.B) {
	x := benchTensor(b, 1000, 1000)
	b.Run("affine", func(b *testing.B) { benchmark(b, 1e6, "array.map", nil, "x0*2+1", x) })
	b.Run("broadcast", func(b *testing.B) { benchmark(b, 1e6, "array.map", nil, "x0-x1", x, benchTensor(b, 1000)) })
	b.Run("exp", func(b *testing.B) { benchmark(b, 1e6, "array.map", nil, "exp(x0)", x) })
	b.Run("small", func(b *testing.B) { benchmark(b, 10, "array.map", nil, "x0*2+1", benchTensor(b, 10)) })
}

func BenchmarkReduce(b *testing.B) {
	x := benchTensor(b, 10000, 100)
	b.Run("all", func(b *testing.B) { benchmark(b, 1e6, "array.reduce", nil, x) })
	b.Run("axis0", func(b *testing.B) { benchmark(b, 1e6, "array.reduce", map[string]any{"axes": int64(0)}, x) })
	b.Run("axis1", func(b *testing.B) { benchmark(b, 1e6, "array.reduce", map[string]any{"axes": int64(1)}, x) })
}

func BenchmarkMatmul(b *testing.B) {
	x := benchTensor(b, 512, 512)
	benchmark(b, 2*512*512*512, "array.matmul", nil, x, x) // counts operations
}

func BenchmarkGram(b *testing.B) {
	x := benchTensor(b, 20000, 100)
	xt := *x
	xt.Shape, xt.Strides = []int64{100, 20000}, []int64{8, 800}
	benchmark(b, 2*20000*100*100, "array.matmul", nil, &xt, x) // counts operations
}

func BenchmarkQR(b *testing.B) { benchmark(b, 2e6, "array.qr", nil, benchTensor(b, 20000, 100)) }

func BenchmarkSVD(b *testing.B) { benchmark(b, 1e4, "array.svd", nil, benchTensor(b, 100, 100)) }

func BenchmarkTranspose(b *testing.B) {
	benchmark(b, 1e6, "array.transpose", nil, benchTensor(b, 1000, 1000))
}

func BenchmarkRandom(b *testing.B) {
	b.Run("uniform", func(b *testing.B) { benchmark(b, 1e6, "array.random", nil, list(1000000), int64(1)) })
	b.Run("normal", func(b *testing.B) { benchmark(b, 1e6, "array.random", nil, list(1000000), int64(1), "normal") })
}

func BenchmarkNoop(b *testing.B) { benchmark(b, 1, "bench.noop", nil) }
