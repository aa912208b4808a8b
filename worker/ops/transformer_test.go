package ops

import (
	"fmt"
	"math"
	"math/cmplx"
	"slices"
	"testing"

	"github.com/millrace/millrace/worker/ops/simd"
)

// transformers returns one for each instruction set of this processor, and one in plain Go.
func transformers(t *testing.T, wide bool) map[string]*transformer {
	t.Helper()
	base := newTransformer(t.Context(), wide)
	all := map[string]*transformer{}
	with := func(name string, f simd.FFT) {
		one := *base
		one.fft = f
		all[name] = &one
	}
	for _, set := range simd.Sets() {
		with(set.Name, set.FFT(wide))
	}
	if wide {
		with("go", scalarFFT[float64]{})
	} else {
		with("go", scalarFFT[float32]{})
	}
	return all
}

// plainly computes a transform by its definition.
func plainly(x []complex128) []complex128 {
	n := len(x)
	roots, out := make([]complex128, n), make([]complex128, n)
	for k := range roots {
		roots[k] = root(uint64(k), uint64(n))
	}
	for k := range out {
		for j, z := range x {
			out[k] += z * roots[j*k%n]
		}
	}
	return out
}

func TestRootsAreExact(t *testing.T) {
	for n := uint64(1); n < 200; n++ {
		for k := range 2 * n {
			angle := -2 * math.Pi * float64(k%n) / float64(n)
			if z := root(k, n); cmplx.Abs(z-cmplx.Rect(1, angle)) > 4e-15 {
				t.Fatalf("root %d of %d: %v", k, n, z)
			}
		}
	}
	for k, want := range []complex128{1, -1i, -1, 1i} {
		if z := root(uint64(k), 4); z != want {
			t.Errorf("root %d of 4: %v", k, z)
		}
	}
}

// TestTransformsFollowTheirDefinition transforms lanes of many lengths in each way and on each
// instruction set: in buffers that lanes share, and line by line.
func TestTransformsFollowTheirDefinition(t *testing.T) {
	for _, wide := range []bool{true, false} {
		for name, tr := range transformers(t, wide) {
			for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 17, 26, 34, 60, 97, 121, 128, 210, 286, 331} {
				t.Run(fmt.Sprint(name, wide, n), func(t *testing.T) { checkTransforms(t, tr, n) })
			}
		}
	}
}

func checkTransforms(t *testing.T, tr *transformer, n int) {
	t.Helper()
	dtype, tolerance := Complex128, 2e-15*math.Sqrt(float64(n))*(1+math.Log2(float64(n)))
	if !tr.wide {
		dtype, tolerance = Complex64, tolerance*5e8
	}
	for _, lanes := range []int64{1, 11} {
		x := mustRun(t, "array.random", named{"dtype": dtype.String()}, list(int(lanes), n), int64(n), "normal").(*Tensor)
		for _, way := range []string{"lanes", "lines"} {
			for _, kind := range []string{"fft", "ifft", "rfft", "irfft"} {
				in, out, want := transformCase(t, x, kind, n)
				radices, smooth := radicesOf(n)
				var err error
				switch {
				case way == "lines":
					err = tr.alongLines(out, in, n, kind, 0.5)
				case smooth:
					err = tr.alongLanes(out, in, n, radices, kind, 0.5)
				default:
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				for lane := range lanes {
					for k := range out.Shape[1] {
						got, err := out.At(lane, k)
						if err != nil {
							t.Fatal(err)
						}
						z, ok := got.(complex128)
						if !ok {
							z = complex(got.(float64), 0)
						}
						if cmplx.Abs(z-want[lane][k]/2) > tolerance {
							t.Fatalf("%s by %s, %d lanes: number %d of lane %d is %v, want %v", kind, way, lanes, k, lane, z, want[lane][k]/2)
						}
					}
				}
			}
		}
	}
}

// transformCase returns the input and room for the output of a transform of the lanes of x, and the
// output by definition, if it is not scaled.
func transformCase(t *testing.T, x *Tensor, kind string, n int) (in, out *Tensor, want [][]complex128) {
	t.Helper()
	in, length, dtype := x, int64(n), x.DType
	switch kind {
	case "rfft":
		real := *x
		real.DType = x.DType.realPart()
		in, length = &real, int64(n/2+1)
	case "irfft":
		half := *x
		half.Shape = []int64{x.Shape[0], int64(n/2 + 1)}
		in, dtype = &half, x.DType.realPart()
	}
	out, err := NewTensor(dtype, []int64{x.Shape[0], length})
	if err != nil {
		t.Fatal(err)
	}
	for lane := range in.Shape[0] {
		line := make([]complex128, n)
		for k := range min(int64(n), in.Shape[1]) {
			v, err := in.At(lane, k)
			if err != nil {
				t.Fatal(err)
			}
			if r, ok := v.(float64); ok {
				v = complex(r, 0)
			}
			line[k] = v.(complex128)
		}
		if kind == "irfft" {
			line[0] = complex(real(line[0]), 0)
			for k := 1; k <= n/2; k++ {
				if 2*k == n {
					line[k] = complex(real(line[k]), 0)
				}
				line[n-k] = cmplx.Conj(line[k])
			}
		}
		if kind == "ifft" || kind == "irfft" {
			for k := range line {
				line[k] = cmplx.Conj(line[k])
			}
			line = plainly(line)
			for k := range line {
				line[k] = cmplx.Conj(line[k])
			}
		} else {
			line = plainly(line)
		}
		want = append(want, line[:length])
	}
	return in, out, want
}

// TestTransformsAreTheSameOnAnyNumberOfProcessors compares bits.
func TestTransformsAreTheSameOnAnyNumberOfProcessors(t *testing.T) {
	for _, shape := range [][]any{list(70_000), list(10_007), list(300, 500), list(5, 4099)} {
		x := mustRun(t, "array.random", nil, shape, int64(1)).(*Tensor)
		var results [][]byte
		for cores := range 3 {
			op, err := NewRegistry().Lookup("array.fft")
			if err != nil {
				t.Fatal(err)
			}
			got, err := op.Run(WithEnv(t.Context(), Env{Cores: func() int { return 1 + cores }}), Args{Positional: []any{x}}, NewTensor)
			if err != nil {
				t.Fatal(err)
			}
			results = append(results, got.(*Tensor).Data)
		}
		if !slices.Equal(results[0], results[1]) || !slices.Equal(results[0], results[2]) {
			t.Errorf("%v: the bits differ", shape)
		}
	}
}

// TestTablesOfTransformsAreBounded: as many tables are kept as fit the limit.
func TestTablesOfTransformsAreBounded(t *testing.T) {
	const size = maxTableBytes
	made := 0
	get := func(n int) {
		if _, err := keptTable(tableKey{kind: "test", n: n}, size, func() (int, error) { made++; return n, nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{1, 2, 1, 3, 1, 2} {
		get(n)
	}
	if made != 4 { // 3 takes the place of 2, which was not used for longer than 1
		t.Errorf("made %d tables", made)
	}
	if keptTables.bytes > keptTableBytes {
		t.Errorf("%d bytes are kept", keptTables.bytes)
	}
	for key, e := range keptTables.tables {
		if key.kind == "test" {
			keptTables.bytes -= e.bytes
			delete(keptTables.tables, key)
		}
	}
}
