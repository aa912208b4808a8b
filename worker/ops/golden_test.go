package ops

import (
	"encoding/json"
	"fmt"
	"math"
	"math/cmplx"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type goldenTensor struct {
	DType          string
	Shape, Strides []int64
	Offset         int64
	Data           []byte
}

func (g *goldenTensor) tensor(t *testing.T) *Tensor {
	t.Helper()
	d, err := ParseDType(g.DType)
	if err != nil {
		t.Fatal(err)
	}
	// NewTensor aligns the data; the JSON decoder does not.
	room, err := NewTensor(Uint8, []int64{int64(len(g.Data))})
	if err != nil {
		t.Fatal(err)
	}
	copy(room.Data, g.Data)
	return &Tensor{DType: d, Shape: g.Shape, Strides: g.Strides, Offset: g.Offset, Data: room.Data}
}

type goldenCase struct {
	Op    string
	Args  []json.RawMessage
	Named map[string]json.RawMessage
	// Wants are the indices of the expected tensors; nil: NumPy raised an error.
	Wants []int
	Exact bool
	// Signs: the signs of the numbers may differ from NumPy's.
	Signs bool
}

func leafOf(t *testing.T, pool []goldenTensor, raw json.RawMessage) any {
	t.Helper()
	var boxed struct{ Tensor *int }
	if json.Unmarshal(raw, &boxed) == nil && boxed.Tensor != nil {
		return pool[*boxed.Tensor].tensor(t)
	}
	var items []json.RawMessage
	if raw[0] == '[' && json.Unmarshal(raw, &items) == nil {
		out := make([]any, len(items))
		for i, item := range items {
			out[i] = leafOf(t, pool, item)
		}
		return out
	}
	var n int64
	if raw[0] != 'n' && json.Unmarshal(raw, &n) == nil {
		return n
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestResultsAreNumPys repeats the calls of each file of testdata/golden.
func TestResultsAreNumPys(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			eachLinalg(t, func(t *testing.T, env Env) {
				t.Helper()
				checkGolden(t, env, file)
			})
		})
	}
}

func checkGolden(t *testing.T, env Env, file string) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Tensors []goldenTensor
		Cases   []goldenCase
	}
	if err := json.Unmarshal(source, &golden); err != nil {
		t.Fatal(err)
	}
	for i, c := range golden.Cases {
		var args []any
		for _, a := range c.Args {
			args = append(args, leafOf(t, golden.Tensors, a))
		}
		options := map[string]any{}
		for k, v := range c.Named {
			options[k] = leafOf(t, golden.Tensors, v)
		}
		label := fmt.Sprintf("case %d: %s", i, c.Op)
		for _, a := range args {
			if s, ok := a.(string); ok {
				label += fmt.Sprintf(" %q", s)
			} else {
				label += " " + describe(a)
			}
		}
		label += fmt.Sprint(options)
		got, err := runWith(t, env, c.Op, options, args...)
		switch {
		case c.Wants == nil && err == nil:
			t.Errorf("%s: NumPy raises an error, we answer %v", label, got)
		case c.Wants != nil && err != nil:
			t.Errorf("%s: %v", label, err)
		case c.Wants != nil:
			outs, several := got.([]any)
			if !several {
				outs = []any{got}
			}
			if len(outs) != len(c.Wants) {
				t.Errorf("%s: %d results, want %d", label, len(outs), len(c.Wants))
				continue
			}
			for k, out := range outs {
				want := golden.Tensors[c.Wants[k]].tensor(t)
				if message := differs(t, unsigned(t, c, out.(*Tensor)), unsigned(t, c, want), c.Exact); message != "" {
					t.Errorf("%s: result %d: %s\n got %s\nwant %s", label, k, message, show(t, out), show(t, want))
				}
			}
		}
	}
}

// unsigned returns the absolute values of the numbers if their signs do not matter.
func unsigned(t *testing.T, c goldenCase, x *Tensor) *Tensor {
	t.Helper()
	if !c.Signs {
		return x
	}
	return mustRun(t, "array.map", nil, "abs(x0)", x).(*Tensor)
}

// differs describes how got differs from want: at all if exact, otherwise by more than rounding.
// The text is empty if they agree.
func differs(t *testing.T, got, want *Tensor, exact bool) string {
	t.Helper()
	if got.DType != want.DType || fmt.Sprint(got.Shape) != fmt.Sprint(want.Shape) {
		return fmt.Sprintf("type or shape: %s, want %s", describe(got), describe(want))
	}
	tolerance := 1e-12
	if exact {
		tolerance = 0
	} else if got.DType == Float32 || got.DType == Complex64 {
		tolerance = 2e-5
	}
	message := ""
	if err := eachIndex(got.Shape, func(index []int64) error {
		a, err := got.At(index...)
		if err != nil {
			return err
		}
		b, err := want.At(index...)
		if err != nil {
			return err
		}
		var near bool
		switch x := a.(type) {
		case float64:
			near = nearFloats(x, b.(float64), tolerance)
		case complex128:
			y := b.(complex128)
			near = nearFloats(real(x), real(y), tolerance) && nearFloats(imag(x), imag(y), tolerance) ||
				cmplx.Abs(x-y) <= tolerance*(1+cmplx.Abs(y)) ||
				// It is not defined which parts of an infinite or undefined complex number are NaN.
				(cmplx.IsNaN(x) || cmplx.IsInf(x)) && (cmplx.IsNaN(y) || cmplx.IsInf(y)) ||
				complexNaN(x) && complexNaN(y)
		default:
			near = a == b
		}
		if !near {
			message = fmt.Sprintf("at %v: %v, want %v", index, a, b)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return message
}

func nearFloats(a, b, tolerance float64) bool {
	return a == b || a != a && b != b || math.Abs(a-b) <= tolerance*(1+math.Abs(b))
}
