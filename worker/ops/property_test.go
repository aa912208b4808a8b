package ops

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// genStrided draws a tensor of small integers with any strides that stay inside its memory: gaps,
// reversed axes and broadcast axes.
func genStrided(rt *rapid.T, label string, d DType, shape []int64) *Tensor {
	view := &Tensor{DType: d, Shape: shape, Strides: make([]int64, len(shape))}
	order := rapid.Permutation(axesOf(len(shape))).Draw(rt, label+" order")
	step := d.Size()
	for _, axis := range order {
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
	memory, err := NewTensor(d, []int64{step/d.Size() + 1})
	if err != nil {
		rt.Fatal(err)
	}
	view.Data = memory.Data
	size := d.Size()
	for i := range memory.Len() {
		v := rapid.Int64Range(0, 6).Draw(rt, "v")
		if d != Uint8 {
			v -= 3
		}
		if err := putScalar(&Tensor{DType: d, Data: memory.Data[i*size:]}, v); err != nil {
			rt.Fatal(err)
		}
	}
	return view
}

func axesOf(n int) []int {
	axes := make([]int, n)
	for i := range axes {
		axes[i] = i
	}
	return axes
}

func genDType(rt *rapid.T) DType {
	return DType(rapid.IntRange(int(Bool), int(Complex128)).Draw(rt, "dtype"))
}

func genShape(rt *rapid.T, maxDims int) []int64 {
	return rapid.SliceOfN(rapid.Int64Range(0, 5), 0, maxDims).Draw(rt, "shape")
}

// complexAt returns one element as a complex number, for any type.
func complexAt(rt *rapid.T, x *Tensor, index []int64) complex128 {
	v, err := x.At(index...)
	if err != nil {
		rt.Fatal(err)
	}
	switch v := v.(type) {
	case bool:
		return complex(float64(truth(v)), 0)
	case int64:
		return complex(float64(v), 0)
	case float64:
		return complex(v, 0)
	}
	return v.(complex128)
}

// expectAt compares each element of a result with the value that want returns for it.
func expectAt(rt *rapid.T, got any, shape []int64, want func(index []int64) complex128) {
	x := got.(*Tensor)
	if !slices.Equal(x.Shape, shape) {
		rt.Fatalf("shape %v, want %v", x.Shape, shape)
	}
	if err := eachIndex(shape, func(index []int64) error {
		if a, b := complexAt(rt, x, index), want(index); a != b {
			return fmt.Errorf("at %v: %v, want %v", index, a, b)
		}
		return nil
	}); err != nil {
		rt.Fatal(err)
	}
}

func TestMapIsElementWise(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := genShape(rt, 4)
		d := genDType(rt)
		x := genStrided(rt, "x", d, shape)
		small := slices.Clone(shape[rapid.IntRange(0, len(shape)).Draw(rt, "dropped"):])
		for i := range small {
			if rapid.Bool().Draw(rt, "one") {
				small[i] = 1
			}
		}
		y := genStrided(rt, "y", Int64, small)
		got := mustRun(t, "array.map", nil, "x0*3+x1", x, y)
		expectAt(rt, got, shape, func(index []int64) complex128 {
			at := slices.Clone(index[len(shape)-len(small):])
			for i := range at {
				at[i] = min(at[i], small[i]-1)
			}
			return 3*complexAt(rt, x, index) + complexAt(rt, y, at)
		})
	})
}

func TestReduceFoldsEveryElementOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := genShape(rt, 4)
		if len(shape) > 0 && rapid.Bool().Draw(rt, "long") {
			shape[rapid.IntRange(0, len(shape)-1).Draw(rt, "which")] = 300
		}
		x := genStrided(rt, "x", genDType(rt), shape)
		op := rapid.SampledFrom([]string{"sum", "count", "any", "all"}).Draw(rt, "op")
		var axes []any
		var kept []int
		for i := range shape {
			if rapid.Bool().Draw(rt, "folded") {
				axes = append(axes, int64(i))
			} else {
				kept = append(kept, i)
			}
		}
		var outShape []int64
		for _, i := range kept {
			outShape = append(outShape, shape[i])
		}
		want := map[string]complex128{}
		rows := map[string]float64{}
		_ = eachIndex(shape, func(index []int64) error {
			var key []int64
			for _, i := range kept {
				key = append(key, index[i])
			}
			v := complexAt(rt, x, index)
			if op != "sum" && v != 0 {
				v = 1
			}
			want[fmt.Sprint(key)] += v
			rows[fmt.Sprint(key)]++
			return nil
		})
		if axes == nil {
			axes = []any{}
		}
		got := mustRun(t, "array.reduce", map[string]any{"axes": axes}, x, op)
		expectAt(rt, got, outShape, func(index []int64) complex128 {
			key := fmt.Sprint(append([]int64(nil), index...))
			sum := want[key]
			switch op {
			case "any":
				return complex(math.Min(real(sum), 1), 0)
			case "all":
				return complex(float64(truth(real(sum) == rows[key])), 0)
			}
			return sum
		})
	})
}

func TestMatmulIsTheSumOfProducts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dim := rapid.Int64Range(0, 6)
		m, k, n := dim.Draw(rt, "m"), dim.Draw(rt, "k"), dim.Draw(rt, "n")
		d := DType(rapid.IntRange(int(Int32), int(Complex128)).Draw(rt, "dtype"))
		a, b := genStrided(rt, "a", d, []int64{2, m, k}), genStrided(rt, "b", d, []int64{k, n})
		expectAt(rt, mustRun(t, "array.matmul", nil, a, b), []int64{2, m, n}, func(index []int64) complex128 {
			var sum complex128
			for l := range k {
				sum += complexAt(rt, a, []int64{index[0], index[1], l}) * complexAt(rt, b, []int64{l, index[2]})
			}
			return sum
		})
	})
}

func TestMovesKeepEveryElement(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := genShape(rt, 4)
		d := genDType(rt)
		x := genStrided(rt, "x", d, shape)
		order := rapid.Permutation(axesOf(len(shape))).Draw(rt, "axes")
		var turned []int64
		for _, i := range order {
			turned = append(turned, shape[i])
		}
		expectAt(rt, mustRun(t, "array.transpose", nil, x, list(order...)), turned, func(index []int64) complex128 {
			from := make([]int64, len(index))
			for i, axis := range order {
				from[axis] = index[i]
			}
			return complexAt(rt, x, from)
		})
		if len(shape) == 0 {
			return
		}
		first := rapid.Int64Range(0, shape[0]).Draw(rt, "first")
		rest := slices.Clone(shape)
		rest[0] -= first
		part := mustRun(t, "array.slice", map[string]any{"start": first}, x)
		expectAt(rt, part, rest, func(index []int64) complex128 {
			from := slices.Clone(index)
			from[0] += first
			return complexAt(rt, x, from)
		})
		head := mustRun(t, "array.slice", map[string]any{"stop": first}, x)
		expectAt(rt, mustRun(t, "array.concat", nil, head, part), shape, func(index []int64) complex128 {
			return complexAt(rt, x, index)
		})
	})
}

// TestPiecesOfJoinedTensorsBeginAnywhere joins tensors of many pieces, whose bounds lie inside of
// rows, on two processors.
func TestPiecesOfJoinedTensorsBeginAnywhere(t *testing.T) {
	const rows, most = 301, 997
	x, err := NewTensor(Float64, []int64{rows, most})
	if err != nil {
		t.Fatal(err)
	}
	for i := range elements[float64](x) {
		elements[float64](x)[i] = float64(i)
	}
	ctx := WithEnv(t.Context(), Env{Cores: func() int { return 2 }})
	widths := []int64{most, 0, 3, 700}
	parts, total := make([]*Tensor, len(widths)), int64(0)
	for i, width := range widths {
		part := *x
		part.Shape = []int64{rows, width}
		parts[i], total = &part, total+width
	}
	out, err := NewTensor(Float64, []int64{rows, total})
	if err != nil {
		t.Fatal(err)
	}
	if err := concatInto(ctx, out, parts, 1); err != nil {
		t.Fatal(err)
	}
	at := 0
	for i := range rows {
		for _, width := range widths {
			for j := range width {
				if got, want := elements[float64](out)[at], float64(int64(i)*most+j); got != want {
					t.Fatalf("element %d is %v, want %v", at, got, want)
				}
				at++
			}
		}
	}
}

func TestRandomChunksJoinIntoTheWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.Int64Range(1, 50).Draw(rt, "n")
		cut := rapid.Int64Range(0, n).Draw(rt, "cut")
		offset := rapid.Int64Range(0, 1<<40).Draw(rt, "offset")
		distribution := rapid.SampledFrom([]string{"uniform", "normal", "integers"}).Draw(rt, "distribution")
		dtype := rapid.SampledFrom([]string{"float32", "float64", "complex64", "complex128"}).Draw(rt, "dtype")
		if distribution == "integers" {
			dtype = rapid.SampledFrom([]string{"uint8", "int32", "int64"}).Draw(rt, "int dtype")
		}
		draw := func(from, to int64) any {
			options := map[string]any{"dtype": dtype, "offset": offset + from}
			if distribution != "normal" {
				options["high"] = int64(100)
			}
			return mustRun(t, "array.random", options, to-from, int64(9), distribution)
		}
		whole, joined := draw(0, n), mustRun(t, "array.concat", nil, draw(0, cut), draw(cut, n))
		if a, b := show(t, whole), show(t, joined); a != b {
			rt.Fatalf("in one piece %s, in two %s", a, b)
		}
	})
}

func FuzzExpression(f *testing.F) {
	for _, seed := range []string{"x0*2+1", "where(x0>0,-x0**2,~x1)", "(((1)))", "1e-3j+0x1f", "a b", "-(", "x0<x1<2", "clip(x0,0,1)//.5"} {
		f.Add(seed)
	}
	x := tensorOf(f, Float64, []int64{3}, 1.5, -2, 0)
	y := tensorOf(f, Int32, []int64{3}, 1, 2, -3)
	f.Fuzz(func(t *testing.T, source string) {
		got, err := run(t, "array.map", nil, source, x, y)
		if err == nil && got.(*Tensor).Check() != nil {
			t.Errorf("%q gave a broken tensor", source)
		}
	})
}
