package ops

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// TestCachedProgramsEqualCompiledOnes checks that expressions with the same cache key
// compile to the same program.
func TestCachedProgramsEqualCompiledOnes(t *testing.T) {
	cache := &exprCache{}
	sources := []string{"x0+x1", "x0*2", "x1**2-x0", "where(x0 > x1, x0, 1.5)", "a + b", "-x0 * x1 + x0*x1"}
	values := []any{int64(1), int64(2), int64(-300), 1.0, 0.0, math.Copysign(0, -1), math.NaN(), true, false, 2i, complex(0, math.Copysign(0, -1))}
	rapid.Check(t, func(rt *rapid.T) {
		for range 20 {
			source := rapid.SampledFrom(sources).Draw(rt, "source")
			names := rapid.SampledFrom([][]string{{"x0", "x1"}, {"a", "b"}, {"x1", "x0"}, {"x0x1", ""}}).Draw(rt, "names")
			want := DType(rapid.IntRange(int(Invalid), int(Complex128)).Draw(rt, "dtype"))
			inputs := func() []compiled {
				list := make([]compiled, len(names))
				for i := range list {
					if rapid.Bool().Draw(rt, "scalar") {
						list[i] = constant(rapid.SampledFrom(values).Draw(rt, "value"))
					} else {
						list[i] = compiled{operand: operand{dtype: genDType(rt)}}
					}
				}
				return list
			}()
			root, err := cache.parse(source)
			if err != nil {
				rt.Fatal(err)
			}
			again := append([]compiled{}, inputs...)
			got, gotErr := cache.compile(source, root, names, inputs, want)
			fresh, freshErr := compile(root, names, again, want)
			if fmt.Sprint(gotErr) != fmt.Sprint(freshErr) {
				rt.Fatalf("%s: %v, and compiled anew %v", source, gotErr, freshErr)
			}
			if gotErr == nil && !reflect.DeepEqual(bitsOf(got.exported), bitsOf(fresh.exported)) {
				rt.Fatalf("%s: %+v, and compiled anew %+v", source, got.exported, fresh.exported)
			}
		}
	})
	if len(cache.programs) < 100 {
		t.Errorf("%d programs were kept", len(cache.programs))
	}
}

// bitsOf returns the program in a form that can be compared to the bit.
func bitsOf(p Program) any {
	var values []string
	for _, r := range p.Registers {
		values = append(values, fmt.Sprintf("%v %T %v", r.DType, r.Value, r.Value))
	}
	return []any{p.Inputs, values, fmt.Sprint(p.Code), p.Out}
}

func TestAFloodOfExpressionsEmptiesTheirCache(t *testing.T) {
	cache := &exprCache{}
	for i := range maxCachedExprs + 10 {
		root, err := cache.parse("x0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cache.compile("x0", root, []string{"x0", "y"}, []compiled{{operand: operand{dtype: Float32}}, constant(int64(i))}, Invalid); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(cache.programs); n == 0 || n > maxCachedExprs {
		t.Errorf("%d programs are kept", n)
	}
}
