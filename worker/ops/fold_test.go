package ops

import (
	"bytes"
	"math"
	"testing"

	"github.com/millrace/millrace/worker/ops/simd"
)

// foldedBy reduces with the kernels of a set on a number of processors; without a set, by the plain
// Go code.
func foldedBy(t *testing.T, set *simd.Set, cores int, x *Tensor, folded []bool, op string, work DType) []byte {
	t.Helper()
	var shape []int64
	for i, d := range x.Shape {
		if !folded[i] {
			shape = append(shape, d)
		}
	}
	out, err := NewTensor(work, shape)
	if err != nil {
		t.Fatal(err)
	}
	ctx := WithEnv(t.Context(), Env{Cores: func() int { return cores }})
	if err := reduceWith(ctx, set, out, x, folded, op, work); err != nil {
		t.Fatal(err)
	}
	return out.raw()
}

// foldCases are reductions of every kind: along runs and lanes, short and long, contiguous and not.
var foldCases = []struct {
	shape  []int64
	folded []bool
	view   string
}{
	{[]int64{7}, []bool{true}, ""},
	{[]int64{1000}, []bool{true}, ""},
	{[]int64{300_007}, []bool{true}, ""},
	{[]int64{300_007}, []bool{true}, "every second"},
	{[]int64{9001, 3}, []bool{false, true}, ""},
	{[]int64{50, 131}, []bool{false, true}, ""},
	{[]int64{3, 9001}, []bool{false, true}, "every second"},
	{[]int64{9001, 3}, []bool{true, false}, ""},
	{[]int64{131, 1100}, []bool{true, false}, ""},
	{[]int64{131, 40_000}, []bool{true, false}, ""},
	{[]int64{131, 1100}, []bool{true, false}, "transposed"},
	{[]int64{1100, 131}, []bool{true, false}, "every second"},
	{[]int64{2, 300, 500}, []bool{false, true, false}, ""},
	{[]int64{7, 5, 300}, []bool{true, false, true}, ""},
	{[]int64{9, 70, 11}, []bool{true, false, true}, ""},
	{[]int64{3, 2, 20_000}, []bool{true, false, true}, ""},
	{[]int64{40, 9, 40}, []bool{true, true, false}, ""},
	{[]int64{40, 9, 40}, []bool{true, true, false}, "every second"},
}

// foldInput makes a tensor with special values in it.
func foldInput(t *testing.T, d DType, shape []int64, view string, special bool) *Tensor {
	t.Helper()
	size := append([]int64(nil), shape...)
	last := len(size) - 1
	if view == "every second" {
		size[last] *= 2
	}
	if view == "transposed" {
		size[0], size[last] = size[last], size[0]
	}
	distribution, options := "integers", named{"dtype": d.String(), "high": int64(2)}
	switch d.kind() {
	case floatKind, complexKind:
		distribution, options = "normal", named{"dtype": d.String()}
	case intKind:
		options["high"] = int64(200)
	}
	x := mustRun(t, "array.random", options, list(size...), int64(3), distribution).(*Tensor)
	if special && d.kind() >= floatKind {
		place := func(i int64, v float64) {
			at := &Tensor{DType: d, Data: x.Data[i%x.Len()*d.Size():]}
			if err := putScalar(at, v); err != nil {
				t.Fatal(err)
			}
		}
		for i, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 0} {
			place(int64(i)*977+40, v)
		}
		if d == Float64 { // a NaN with a payload, after the others
			place(x.Len()-1, math.Float64frombits(0x7ff8000000000123))
		}
	}
	x.Shape = shape
	switch view {
	case "every second":
		x.Strides[last] *= 2
	case "transposed":
		x.Strides[0], x.Strides[last] = x.Strides[last], x.Strides[0]
	}
	return x
}

// TestEveryInstructionSetFoldsToTheBitsOfThePlainCode also uses several processors.
func TestEveryInstructionSetFoldsToTheBitsOfThePlainCode(t *testing.T) {
	for d := Bool; d <= Complex128; d++ {
		t.Run(d.String(), func(t *testing.T) {
			for _, c := range foldCases {
				for _, special := range []bool{false, true} {
					x := foldInput(t, d, c.shape, c.view, special)
					for _, op := range []string{"sum", "prod", "min", "max", "mean", "any", "all", "count"} {
						work, _, err := reduceTypes(&call{}, op, d, Invalid)
						if err != nil {
							t.Fatal(err)
						}
						want := foldedBy(t, nil, 1, x, c.folded, op, work)
						for _, set := range append(simd.Sets(), nil) {
							name := "plain code on 3 processors"
							if set != nil {
								name = set.Name
							}
							got := foldedBy(t, set, 3, x, c.folded, op, work)
							if !sameResults(work, got, want) {
								t.Fatalf("%s of %v %s %v along %v, special %v: %s differs\n%x\n%x", op, d, c.view, c.shape, c.folded, special, name, got[:min(64, len(got))], want[:min(64, len(got))])
							}
						}
					}
				}
			}
		})
	}
}

// sameResults compares results; NaNs that arithmetic makes have any bits.
func sameResults(d DType, a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	n := int64(len(a)) / d.Size()
	switch d.realPart() {
	case Float32:
		return sameFloats[float32](a, b, n*d.Size()/4)
	case Float64:
		return sameFloats[float64](a, b, n*d.Size()/8)
	}
	return false
}

func sameFloats[T floating](a, b []byte, n int64) bool {
	x, y := block[T](slicePointer(a), int(n)), block[T](slicePointer(b), int(n))
	for i := range x {
		if x[i] != y[i] && (x[i] == x[i] || y[i] == y[i]) || math.Signbit(float64(x[i])) != math.Signbit(float64(y[i])) && x[i] == 0 {
			return false
		}
	}
	return true
}
