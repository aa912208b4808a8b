//go:build cgo && linux

package cuda

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/worker/ops"
)

// sample is the distance between the kernels that the tests of this file compile: one of five in
// the short size. It has no factor in common with the number of types, so that each function is
// compiled for some type.
func sample() int {
	if testing.Short() {
		return 5
	}
	return 1
}

// checked returns what the tests compile for an architecture: its machine code, or PTX in the short
// size. NVRTC finds the errors of a source in both, and PTX takes less than half of the time.
func checked(arch string) string {
	if testing.Short() {
		return strings.Replace(arch, "sm_", "compute_", 1)
	}
	return arch
}

// TestEveryFunctionCompiles compiles every function and conversion for every type, spread over the
// architectures. It finds code that does not compile without a GPU.
func TestEveryFunctionCompiles(t *testing.T) {
	b := onFake(t)
	sources := make([]strings.Builder, len(builtinArchs))
	seen, count := 0, 0
	add := func(label, source string) {
		if seen++; seen%sample() != 0 {
			return
		}
		to := &sources[count%len(sources)]
		fmt.Fprintf(to, "namespace n%d { // %s\n%s}\n", count, label, strings.ReplaceAll(source, "extern \"C\" ", ""))
		count++
	}
	dtypes := []ops.DType{ops.Bool, ops.Uint8, ops.Int32, ops.Int64, ops.Float32, ops.Float64, ops.Complex64, ops.Complex128}
	mapOp, err := b.ops.Lookup("array.map")
	if err != nil {
		t.Fatal(err)
	}
	var expressions []string
	for _, op := range strings.Fields("+ - * / // % ** == != < <= > >= & | ^") {
		expressions = append(expressions, "x0 "+op+" x1")
	}
	expressions = append(expressions, "-x0", "~x0", "where(x0, x0, x1)", "clip(x0, x1, x1)", "x0**2", "x0**0.5", "x0**-1")
	for _, f := range strings.Fields("minimum maximum arctan2 hypot") {
		expressions = append(expressions, f+"(x0, x1)")
	}
	for _, f := range strings.Fields("abs sqrt square cbrt reciprocal sign exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan " +
		"sinh cosh tanh arcsinh arccosh arctanh floor ceil trunc round isnan isinf isfinite conj real imag angle") {
		expressions = append(expressions, f+"(x0)")
	}
	undefined := 0
	for _, d := range dtypes {
		x := b.onDevice(t, tensor(t, d.String(), 64))
		for _, e := range expressions {
			inputs := []any{e, x, x}
			p, err := mapOp.Plan(ops.Args{Positional: inputs})
			if err != nil {
				undefined++
				continue
			}
			out := &ops.Tensor{DType: p.Outputs[0].DType, Shape: p.Outputs[0].Shape, Far: &scratchMemory{}}
			out.Strides = ops.ContiguousStrides(out.DType, out.Shape)
			m, err := mapperFor(p.Work.(*ops.Mapping), out)
			if err != nil {
				t.Fatal(err)
			}
			add(e+" of "+d.String(), m.source())
		}
		for _, to := range dtypes {
			out := &ops.Tensor{DType: to, Shape: x.Shape, Strides: ops.ContiguousStrides(to, x.Shape), Far: &scratchMemory{}}
			m, err := mapperFor(ops.Convert(to, x), out)
			if err != nil {
				t.Fatal(err)
			}
			add(d.String()+" to "+to.String(), m.source())
		}
	}
	// Bools and complex numbers lack some functions; most pairs are defined.
	if total := len(expressions) * len(dtypes); undefined > total/5 {
		t.Errorf("%d of %d are not defined", undefined, total)
	}
	for i, arch := range builtinArchs {
		if _, err := nvrtc(t).compile("functions.cu", kernelText("prelude.cuh")+sources[i].String(), checked(arch), compileFlags); err != nil {
			t.Errorf("%s: %.3000s", arch, err)
		}
	}
}

func mapperFor(w *ops.Mapping, out *ops.Tensor) (*mapper, error) {
	return mapperOf(w.Program(), append([]*ops.Tensor{out}, w.Inputs...))
}

func TestEveryReductionCompiles(t *testing.T) {
	b := onFake(t)
	reduceOp, err := b.ops.Lookup("array.reduce")
	if err != nil {
		t.Fatal(err)
	}
	sources := make([]strings.Builder, len(builtinArchs))
	seen, count := 0, 0
	for _, d := range []string{"bool", "uint8", "int32", "int64", "float32", "float64", "complex64", "complex128"} {
		x := b.onDevice(t, tensor(t, d, 6, 5, 64))
		for i, f := range []string{"sum", "prod", "min", "max", "mean", "any", "all", "count"} {
			options := named{}
			if i%2 != 0 {
				options["axes"] = ints(int64(i % 3))
			}
			p, err := reduceOp.Plan(ops.Args{Positional: []any{x, f}, Named: options})
			if err != nil {
				t.Fatal(err)
			}
			out := &ops.Tensor{DType: p.Outputs[0].DType, Shape: p.Outputs[0].Shape, Far: &scratchMemory{}}
			r, err := b.reducerOf(p.Work.(*ops.Reducing), out)
			if err != nil {
				t.Fatal(err)
			}
			if seen++; seen%sample() != 0 {
				continue
			}
			to := &sources[count%len(sources)]
			fmt.Fprintf(to, "namespace n%d { // %s of %s\n%s%s}\n#undef RUN\n#undef IDENTITY\n", count, f, d, r.source(), strings.ReplaceAll(kernelText("reduce.cuh"), "extern \"C\" ", ""))
			count++
		}
	}
	for i, arch := range builtinArchs {
		if _, err := nvrtc(t).compile("reductions.cu", kernelText("prelude.cuh")+sources[i].String(), checked(arch), compileFlags); err != nil {
			t.Errorf("%s: %.3000s", arch, err)
		}
	}
}

// TestEveryKernelOfOrderCompiles compiles the kernels that sort, find distinct elements, take
// elements, and sum up along an axis, for every type.
func TestEveryKernelOfOrderCompiles(t *testing.T) {
	b := onFake(t)
	// A plan of the device looks for its kernels, which would compile each of them here once more.
	b.code.compiler.once.Do(func() {
		b.code.compiler.value = &compiler{version: "none", instead: func(string) ([]byte, error) { return []byte(".version\x00"), nil }}
	})
	var kernels []string
	add := func(source string, err error) {
		if err != nil {
			t.Fatal(err)
		}
		kernels = append(kernels, source)
	}
	for _, d := range []ops.DType{ops.Bool, ops.Uint8, ops.Int32, ops.Int64, ops.Float32, ops.Float64, ops.Complex64, ops.Complex128} {
		for _, length := range []int64{100, shortRoom / d.Size(), 100_000} {
			v, err := b.planSort(d, 3, min(length, 3*shortLanes), false, false)
			add(v.source(), err)
		}
		v, err := b.planSort(d, 1, 1000, false, true)
		add(v.source(), err)
		add(distinctSource(d), nil)
		for _, work := range []ops.DType{ops.Uint8, ops.Int64, ops.Float32, ops.Complex128} {
			v, err := b.planScan(d, work, 1, 1000, 1)
			add(v.source(), err)
		}
	}
	for _, index := range []string{"uint8", "int32", "int64"} {
		for i, d := range []string{"uint8", "float32", "float64", "complex128"} {
			x, out := tensor(t, d, 3, 5, 7), tensor(t, d, 3, 6, 7)
			v, err := b.planTake(x, tensor(t, index, 6), i%3, out)
			add(v.source(), err)
		}
	}
	sources := make([]strings.Builder, len(builtinArchs))
	step := 1
	if testing.Short() { // these are the largest sources
		step = 3 // also has no factor in common with the number of kernels of a type
	}
	for i, source := range kernels {
		if i%step == 0 {
			fmt.Fprintf(&sources[i/step%len(sources)], "namespace n%d {\n%s}\n#undef COMPLEX_KEYS\n#undef VALUES\n#undef ZERO\n", i, strings.ReplaceAll(source, "extern \"C\" ", ""))
		}
	}
	for i, arch := range builtinArchs {
		if _, err := nvrtc(t).compile("order.cu", kernelText("prelude.cuh")+sources[i].String(), checked(arch), compileFlags); err != nil {
			t.Errorf("%s: %.3000s", arch, err)
		}
	}
}
