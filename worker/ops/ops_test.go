package ops

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// run calls an operation with positional and named arguments; its memory comes from the Go heap.
func run(tb testing.TB, name string, named map[string]any, positional ...any) (any, error) {
	tb.Helper()
	return runWith(tb, Env{}, name, named, positional...)
}

func runWith(tb testing.TB, env Env, name string, named map[string]any, positional ...any) (any, error) {
	tb.Helper()
	op, err := NewRegistry().Lookup(name)
	if err != nil {
		return nil, err
	}
	args := Args{positional, named}
	var asked int64
	result, err := op.Run(WithEnv(tb.Context(), env), args, func(d DType, shape []int64) (*Tensor, error) {
		out, err := NewTensor(d, shape)
		if err == nil {
			asked += out.Bytes()
			for i := range out.Data {
				out.Data[i] = 0xFF // outputs are not zeroed: these bytes are NaN
			}
		}
		return out, err
	})
	if err == nil {
		p, err := op.Plan(args)
		if err != nil {
			tb.Fatal(err)
		}
		if estimate, ok := op.OutputBytes(args); ok == p.Late || ok && estimate != asked {
			tb.Fatalf("%s: estimated %d bytes (%v), asked for %d", name, estimate, ok, asked)
		}
	}
	return result, err
}

func mustRun(tb testing.TB, name string, named map[string]any, positional ...any) any {
	tb.Helper()
	return mustRunWith(tb, Env{}, name, named, positional...)
}

func mustRunWith(tb testing.TB, env Env, name string, named map[string]any, positional ...any) any {
	tb.Helper()
	result, err := runWith(tb, env, name, named, positional...)
	if err != nil {
		tb.Fatal(err)
	}
	return result
}

type named = map[string]any

// list converts Go values to a list of leaves.
func list[T any](values ...T) []any {
	out := make([]any, len(values))
	for i, v := range values {
		if n, ok := any(v).(int); ok {
			out[i] = int64(n)
		} else {
			out[i] = v
		}
	}
	return out
}

// tensorOf builds a contiguous tensor from leaves.
func tensorOf(tb testing.TB, d DType, shape []int64, values ...any) *Tensor {
	tb.Helper()
	out, err := NewTensor(d, shape)
	if err != nil {
		tb.Fatal(err)
	}
	for i, v := range values {
		if n, ok := v.(int); ok {
			v = int64(n)
		}
		if err := putScalar(&Tensor{DType: d, Data: out.Data[int64(i)*d.Size():]}, v); err != nil {
			tb.Fatal(err)
		}
	}
	return out
}

// show returns a tensor's type, shape and elements in C order as text.
func show(tb testing.TB, v any) string {
	tb.Helper()
	x, ok := v.(*Tensor)
	if !ok {
		return fmt.Sprint(v)
	}
	var parts []string
	if err := eachIndex(x.Shape, func(index []int64) error {
		item, err := x.At(index...)
		parts = append(parts, fmt.Sprint(item))
		return err
	}); err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprintf("%v%v %s", x.DType, x.Shape, strings.Join(parts, " "))
}

func TestOperationsMatchHandComputedResults(t *testing.T) {
	x := tensorOf(t, Float64, []int64{2, 3}, 1, 2, 3, 4, 5, 6)
	i32 := tensorOf(t, Int32, []int64{3}, -7, 0, 7)
	for _, c := range []struct {
		op         string
		named      named
		positional []any
		want       string
	}{
		{"array.full", nil, list[any](list(2), 1.5), "float64[2] 1.5 1.5"},
		{"array.full", named{"dtype": "int32"}, list[any](list[any](), int64(7)), "int32[] 7"},
		{"array.arange", nil, list(5), "int64[5] 0 1 2 3 4"},
		{"array.arange", nil, list(5, 0, -2), "int64[3] 5 3 1"},
		{"array.arange", nil, list(0.0, 1.0, 0.25), "float64[4] 0 0.25 0.5 0.75"},
		{"array.map", nil, list[any]("x0*2+1", x), "float64[2 3] 3 5 7 9 11 13"},
		{"array.map", nil, list[any]("x0 // 2", i32), "int32[3] -4 0 3"},
		{"array.map", nil, list[any]("x0 % 4 == 1", i32), "bool[3] true false false"},
		{"array.map", nil, list[any]("-x0**2", i32), "int32[3] -49 0 -49"},
		{"array.map", nil, list[any]("x0/2", i32), "float64[3] -3.5 0 3.5"},
		{"array.map", named{"a": i32, "b": int64(3)}, list[any]("where(a < 0, b, a)"), "int32[3] 3 0 7"},
		{"array.map", named{"names": list("u", "v")}, list[any]("u+v", x, i32), "float64[2 3] -6 2 10 -3 5 13"},
		{"array.map", nil, list[any]("x0*x0 + x0*x0*x0", int64(3)), "int64[] 36"},
		{"array.reduce", nil, list[any](x), "float64[] 21"},
		{"array.reduce", named{"axes": list(0)}, list[any](x, "mean"), "float64[3] 2.5 3.5 4.5"},
		{"array.reduce", named{"axes": list(-1), "keepdims": true}, list[any](x, "max"), "float64[2 1] 3 6"},
		{"array.reduce", nil, list[any](i32, "prod"), "int64[] 0"},
		{"array.reduce", nil, list[any](i32, "count"), "int64[] 2"},
		{"array.reduce", nil, list[any](i32, "any"), "bool[] true"},
		{"array.reduce", nil, list[any](i32, "all"), "bool[] false"},
		{"array.matmul", nil, list[any](x, list(1, 0, -1)), "float64[2] -2 -2"},
		{"array.matmul", nil, list[any](i32, i32), "int32[] 98"},
		{"array.transpose", nil, list[any](x), "float64[3 2] 1 4 2 5 3 6"},
		{"array.slice", named{"start": list[any](nil, int64(-1)), "step": list(1, -2)}, list[any](x), "float64[2 2] 3 1 6 4"},
		{"array.slice", named{"index": list(1)}, list[any](x), "float64[3] 4 5 6"},
		{"array.reshape", nil, list[any](x, list(3, -1)), "float64[3 2] 1 2 3 4 5 6"},
		{"array.concat", nil, list[any](i32, i32), "int32[6] -7 0 7 -7 0 7"},
		{"array.concat", named{"axis": int64(1)}, list[any](list[any](x, x)), "float64[2 6] 1 2 3 1 2 3 4 5 6 4 5 6"},
		{"array.cast", nil, list[any](i32, "uint8"), "uint8[3] 249 0 7"},
		{"core.item", nil, list[any](list[any](x, int64(4)), int64(-1)), "4"},
		{"core.item", nil, list[any](x, int64(1)), "float64[3] 4 5 6"},
		{"core.identity", nil, list[any](i32), "int32[3] -7 0 7"},
		{"core.list", nil, list(1, 2), "[1 2]"},
		{"bench.noop", named{"k": int64(1)}, list(1, 2), "<nil>"},
		{"bench.spin", named{"iterations": int64(1000)}, nil, "1000"},
	} {
		got := show(t, mustRun(t, c.op, c.named, c.positional...))
		if got != c.want {
			t.Errorf("%s%v %v: got %s, want %s", c.op, c.positional, c.named, got, c.want)
		}
	}
}

func TestWrongArgumentsAreNamed(t *testing.T) {
	a := tensorOf(t, Float64, []int64{5, 6})
	b := tensorOf(t, Float64, []int64{3, 4})
	for _, c := range []struct {
		op         string
		named      named
		positional []any
		want       string
	}{
		{"array.matmul", nil, list[any](a, b), "array.matmul: argument b: shape [3 4] does not match a [5 6]: inner dimensions 6 and 3 differ"},
		{"array.mamtul", nil, nil, "array.mamtul: no such operation: did you mean array.matmul?"},
		{"matmul", nil, nil, "matmul: no such operation: did you mean array.matmul?"},
		{"array.matmul", nil, list[any](a), "array.matmul: argument b: missing: expected a tensor"},
		{"array.matmul", named{"c": b}, list[any](a, b), "array.matmul: argument c: no such parameter: did you mean a, b?"},
		{"array.matmul", nil, list[any](a, "b"), `array.matmul: argument b: expected a tensor, got the string "b": the string "b" is not a number`},
		{"array.full", nil, list[any]("x", int64(1)), `array.full: argument shape: expected an int or a list of ints, got the string "x"`},
		{"array.full", nil, list[any](list(-1), int64(1)), "array.full: argument shape: shape [-1] has a negative dimension"},
		{"array.full", named{"dtype": "float16"}, list[any](list(1), int64(1)), `array.full: argument dtype: unknown dtype "float16": use one of bool, uint8, int32, int64, float32, float64, complex64, complex128`},
		{"array.map", nil, list[any]("x0 +", a), `array.map: argument expr: "x0 +": at character 5: expected a value, got the end`},
		{"array.map", nil, list[any]("x0 + y", a), `array.map: argument expr: "x0 + y": at character 6: unknown name y: the inputs are x0`},
		{"array.map", nil, list[any]("sqr(x0)", a), `array.map: argument expr: "sqr(x0)": at character 1: unknown function sqr: did you mean sqrt?`},
		{"array.map", nil, list[any]("x0 & x1", a, a), `array.map: argument expr: "x0 & x1": at character 4: & is not defined for float64`},
		{"array.map", nil, list[any]("x0 + x1", a, b), "array.map: shapes do not broadcast together: x0 [5 6], x1 [3 4]"},
		{"array.map", nil, list[any]("0 < x0 < 1", a), `array.map: argument expr: "0 < x0 < 1": at character 8: comparisons cannot be chained: join them with &, each in parentheses`},
		{"array.map", nil, list[any]("x0 ** -1", list(1, 2)), `array.map: argument expr: "x0 ** -1": integers to negative integer powers are not allowed: make one of them a float`},
		{"array.map", nil, list[any]("x0 + 300", tensorOf(t, Uint8, []int64{1})), `array.map: argument expr: "x0 + 300": at character 4: 300 is outside the range of uint8`},
		{"array.reduce", named{"axes": int64(2)}, list[any](a), "array.reduce: argument axes: axis 2 is outside of 2 dimensions"},
		{"array.reduce", nil, list[any](list[any](), "max"), "array.reduce: argument x: max of no elements: shape [0]"},
		{"array.qr", nil, list[any](tensorOf(t, Float32, []int64{2, 2}), "R"), `array.qr: argument mode: expected one of [reduced r], got "R": did you mean r?`},
		{"array.qr", nil, list[any](tensorOf(t, Complex64, []int64{2, 2})), "array.qr: argument x: complex64 is not supported: expected real numbers"},
		{"array.slice", named{"step": int64(0)}, list[any](a), "array.slice: argument step: is zero on axis 0"},
		{"array.reshape", nil, list[any](a, list(7, -1)), "array.reshape: argument shape: 30 elements of shape [5 6] do not fill [7 -1]"},
		{"array.concat", nil, list[any](a, b), "array.concat: argument xs[1]: shape [3 4] does not match xs[0] [5 6]: only axis 0 may differ"},
		{"array.transpose", nil, list[any](a, list(0, 0)), "array.transpose: argument axes: [0 0] names axis 0 twice"},
		{"array.random", nil, list[any](list(1), int64(1), "integers"), "array.random: argument high: missing: integers are drawn from low up to, but not including, high"},
		{"core.item", nil, list[any](list(1), int64(3)), "core.item: argument index: 3 is outside of axis 0 with length 1"},
		{"bench.fail", nil, list[any]("no luck"), "bench.fail: no luck"},
	} {
		_, err := run(t, c.op, c.named, c.positional...)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s:\n got %v\nwant %s", c.op, err, c.want)
		}
	}
}

func TestFailStopsFailingAfterTheGivenAttempts(t *testing.T) {
	op, err := NewRegistry().Lookup("bench.fail")
	if err != nil {
		t.Fatal(err)
	}
	for attempt, fails := range map[int]bool{1: true, 2: true, 3: false} {
		_, err := op.Run(WithEnv(t.Context(), Env{Attempt: attempt}), Args{Positional: list[any]("m", int64(2))}, NewTensor)
		if (err != nil) != fails {
			t.Errorf("attempt %d: %v", attempt, err)
		}
	}
}

func TestRunningOperationsStopWhenCancelled(t *testing.T) {
	big := tensorOf(t, Float64, []int64{1})
	big.Shape, big.Strides = []int64{1 << 40}, []int64{0}
	for name, args := range map[string]Args{
		"bench.sleep":  {Positional: list(1000)},
		"bench.spin":   {Positional: list(1000)},
		"array.reduce": {Positional: list[any](big)},
		"array.matmul": {Positional: list[any](tensorOf(t, Int64, []int64{3000, 3000}), tensorOf(t, Int64, []int64{3000, 3000}))},
	} {
		op, err := NewRegistry().Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		start := time.Now()
		_, err = op.Run(ctx, args, NewTensor)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%s: %v", name, err)
		}
		// Without the deadline each of these calls would take far longer.
		if spent := time.Since(start); spent > 20*time.Second {
			t.Errorf("%s stopped %v after it was told to", name, spent)
		}
	}
}

func TestPhiloxMatchesPublishedVectors(t *testing.T) {
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{
			[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
			[2]uint32{0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
			[2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		if got := philox(c.counter, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

func identity(tb testing.TB, n int64) *Tensor {
	tb.Helper()
	out := tensorOf(tb, Float64, []int64{n, n})
	for i := range n {
		elements[float64](out)[i*n+i] = 1
	}
	return out
}

func near(tb testing.TB, want, got *Tensor, tolerance float64) {
	tb.Helper()
	if fmt.Sprint(want.Shape) != fmt.Sprint(got.Shape) {
		tb.Fatalf("shape %v, want %v", got.Shape, want.Shape)
	}
	if got.Len() == 0 {
		return
	}
	d := mustRun(tb, "array.reduce", nil, mustRun(tb, "array.map", nil, "abs(x0-x1)", want, got), "max").(*Tensor)
	item, err := d.Item()
	if err != nil {
		tb.Fatal(err)
	}
	if diff := item.(float64); !(diff <= tolerance) || math.IsNaN(diff) {
		tb.Errorf("largest difference %v is above %v", diff, tolerance)
	}
}

func TestAnIntThatTheResultOfWhereCannotHoldIsRefused(t *testing.T) {
	_, err := run(t, "array.where", nil, true, list(1, 2), int64(256))
	if err != nil {
		t.Fatal(err) // a list of ints is an int64 tensor
	}
	small := mustRun(t, "array.cast", nil, list(1, 2), "uint8")
	_, err = run(t, "array.where", nil, list(true, false), small, int64(256))
	if ours := (*Error)(nil); !errors.As(err, &ours) || ours.Kind != BadArgument || err.Error() != "array.where: 256 is outside the range of uint8" {
		t.Error(err)
	}
}
