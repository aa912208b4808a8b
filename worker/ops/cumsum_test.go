package ops

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestCumsumAddsUpAlongTheAxis(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 1, 4).Draw(rt, "shape")
		axis := rapid.IntRange(0, len(shape)-1).Draw(rt, "axis")
		if rapid.Bool().Draw(rt, "long") {
			shape[rapid.IntRange(0, len(shape)-1).Draw(rt, "which")] = 1030
		}
		x := genStrided(rt, "x", genDType(rt), shape)
		got := mustRun(t, "array.cumsum", map[string]any{"axis": int64(axis)}, x)
		var sums []complex128
		expectAt(rt, got, shape, func(index []int64) complex128 {
			// The sum that belongs to the element before this one lies one step back in C order.
			sum := complexAt(rt, x, index)
			if index[axis] > 0 {
				step := int64(1)
				for _, d := range shape[axis+1:] {
					step *= d
				}
				sum += sums[int64(len(sums))-step]
			}
			sums = append(sums, sum)
			return sum
		})
	})
}

func TestCumsumDoesNotDependOnTheNumberOfProcessors(t *testing.T) {
	x := mustRun(t, "array.random", nil, list(3, 70, 1100), int64(4), "normal").(*Tensor)
	for _, axis := range []any{nil, int64(0), int64(1), int64(2)} {
		one := mustRun(t, "array.cumsum", named{"axis": axis}, x).(*Tensor)
		op, err := NewRegistry().Lookup("array.cumsum")
		if err != nil {
			t.Fatal(err)
		}
		ctx := WithEnv(t.Context(), Env{Cores: func() int { return 5 }})
		five, err := op.Run(ctx, Args{Named: named{"axis": axis}, Positional: []any{x}}, NewTensor)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(one.raw(), five.(*Tensor).raw()) {
			t.Errorf("axis %v: one processor and five give different sums", axis)
		}
	}
}

func TestCumsumOfNegativeZerosIsANegativeZero(t *testing.T) {
	zeros := tensorOf(t, Float64, []int64{2, 2}, math.Copysign(0, -1), math.Copysign(0, -1), math.Copysign(0, -1), math.Copysign(0, -1))
	for _, axis := range []any{nil, int64(0), int64(1)} {
		for i, x := range elements[float64](mustRun(t, "array.cumsum", named{"axis": axis}, zeros).(*Tensor)) {
			if x != 0 || !math.Signbit(x) {
				t.Errorf("axis %v: sum %d is %v, want -0", axis, i, x)
			}
		}
	}
}
