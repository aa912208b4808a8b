//go:build cgo && linux

package cuda

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/worker/ops"
)

type goldenTensor struct {
	DType          string
	Shape, Strides []int64
	Offset         int64
	Data           []byte
}

func (g *goldenTensor) tensor(tb testing.TB) *ops.Tensor {
	tb.Helper()
	d, err := ops.ParseDType(g.DType)
	if err != nil {
		tb.Fatal(err)
	}
	room, err := ops.NewTensor(ops.Uint8, []int64{int64(len(g.Data))})
	if err != nil {
		tb.Fatal(err)
	}
	copy(room.Data, g.Data)
	return &ops.Tensor{DType: d, Shape: g.Shape, Strides: g.Strides, Offset: g.Offset, Data: room.Data}
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

type goldenFile struct {
	name    string
	Tensors []goldenTensor
	Cases   []goldenCase
}

// golden reads the golden files of worker/ops. On a GPU machine they are elsewhere: MILLRACE_GOLDEN
// names their folder.
func golden(tb testing.TB) []*goldenFile {
	tb.Helper()
	folder := os.Getenv("MILLRACE_GOLDEN")
	if folder == "" {
		folder = "../../ops/testdata/golden"
	}
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(names) == 0 {
		tb.Fatalf("no golden files in %s: %v", folder, err)
	}
	var files []*goldenFile
	for _, name := range names {
		source, err := os.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		g := &goldenFile{name: filepath.Base(name)}
		if err := json.Unmarshal(source, g); err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		files = append(files, g)
	}
	return files
}

func leafOf(tb testing.TB, g *goldenFile, raw json.RawMessage) any {
	tb.Helper()
	var boxed struct{ Tensor *int }
	if json.Unmarshal(raw, &boxed) == nil && boxed.Tensor != nil {
		return g.Tensors[*boxed.Tensor].tensor(tb)
	}
	var items []json.RawMessage
	if raw[0] == '[' && json.Unmarshal(raw, &items) == nil {
		out := make([]any, len(items))
		for i, item := range items {
			out[i] = leafOf(tb, g, item)
		}
		return out
	}
	var n int64
	if raw[0] != 'n' && json.Unmarshal(raw, &n) == nil {
		return n
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		tb.Fatal(err)
	}
	return v
}

func (g *goldenFile) args(tb testing.TB, c *goldenCase) ops.Args {
	tb.Helper()
	args := ops.Args{Named: map[string]any{}}
	for _, a := range c.Args {
		args.Positional = append(args.Positional, leafOf(tb, g, a))
	}
	for k, v := range c.Named {
		args.Named[k] = leafOf(tb, g, v)
	}
	return args
}

// goldenTolerance is the largest allowed difference of results, relative to 1+|x|. For complex
// numbers and sums in float64 it is the host's tolerance, for float32 a few units in the last
// place.
func goldenTolerance(c *goldenCase, d ops.DType) float64 {
	switch {
	case c.Exact:
		return 0
	case c.Op == "array.cumsum" && (d == ops.Float32 || d == ops.Complex64):
		return 5e-4 // NumPy rounds each sum
	case d == ops.Float32 || d == ops.Complex64:
		return 2e-5
	}
	return 1e-12
}

func TestGPUResultsAreNumPys(t *testing.T) {
	onGPU(t)
	for _, g := range golden(t) {
		t.Run(strings.TrimSuffix(g.name, ".json"), func(t *testing.T) { goldenOnGPU(t, g) })
	}
}

func goldenOnGPU(t *testing.T, g *goldenFile) {
	t.Helper()
	b := open(t, 4<<30, Options{})
	var next, failed atomic.Int64
	var wait sync.WaitGroup
	for range min(16, runtime.GOMAXPROCS(0)) {
		wait.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(g.Cases) || failed.Load() > 30 {
					return
				}
				if message := b.checkGolden(t, g, i); message != "" {
					failed.Add(1)
					t.Errorf("%s: case %d: %s %s %v: %s", g.name, i, g.Cases[i].Op, g.Cases[i].Args, g.Cases[i].Named, message)
				}
			}
		})
	}
	wait.Wait()
	tell(t, "golden cases that fail", float64(failed.Load()), fmt.Sprintf("of_%d in %s", len(g.Cases), g.name))
}

func (b *bench) checkGolden(tb testing.TB, g *goldenFile, i int) string {
	tb.Helper()
	c := &g.Cases[i]
	args := g.args(tb, c)
	if i%3 != 0 { // the other tensors are sent with the call
		for k, v := range args.Positional {
			if t, ok := v.(*ops.Tensor); ok {
				args.Positional[k] = b.onDevice(tb, t)
			}
		}
	}
	got, err := b.call(tb.Context(), c.Op, args)
	switch {
	case c.Wants == nil && err == nil:
		return "NumPy raises an error"
	case c.Wants != nil && err != nil:
		return err.Error()
	case c.Wants == nil:
		return ""
	}
	result := resultOnHost(tb, got)
	outs, several := result.([]any)
	if !several {
		outs = []any{result}
	}
	if len(outs) != len(c.Wants) {
		return fmt.Sprintf("%d results, want %d", len(outs), len(c.Wants))
	}
	for k, v := range outs {
		want := g.Tensors[c.Wants[k]].tensor(tb)
		out, ok := v.(*ops.Tensor)
		if !ok {
			return fmt.Sprintf("result %d is a %T", k, v)
		}
		if message := sameTensor(unsigned(tb, c, out), unsigned(tb, c, want), goldenTolerance(c, want.DType)); message != "" {
			return fmt.Sprintf("result %d: %s", k, message)
		}
	}
	return ""
}

// unsigned returns the absolute values of the numbers if their signs do not matter.
func unsigned(tb testing.TB, c *goldenCase, x *ops.Tensor) *ops.Tensor {
	tb.Helper()
	if !c.Signs {
		return x
	}
	op, err := ops.NewRegistry().Lookup("array.map")
	if err != nil {
		tb.Fatal(err)
	}
	result, err := op.Run(tb.Context(), ops.Args{Positional: []any{"abs(x0)", x}}, ops.NewTensor)
	if err != nil {
		tb.Fatal(err)
	}
	return result.(*ops.Tensor)
}

// TestGoldenCasesAreDispatched runs every fiftieth case, but at least ten of each file, and fewer
// in the short size. It finds, without a GPU, calls that cannot be compiled or dispatched.
func TestGoldenCasesAreDispatched(t *testing.T) {
	if fake == nil {
		t.Skip("results are looked at by TestGPUResultsAreNumPys")
	}
	b := onStandIns(t)
	most, least := 50, 10
	if testing.Short() {
		most, least = 200, 5
	}
	for _, g := range golden(t) {
		step := max(min(most, len(g.Cases)/least), 1) - 1 | 1 // odd, so that every second case has its arrays on the device
		for i := 0; i < len(g.Cases); i += step {
			b.checkDispatch(t, g, i)
		}
	}
}

func (b *bench) checkDispatch(t *testing.T, g *goldenFile, i int) {
	t.Helper()
	c := &g.Cases[i]
	if c.Wants == nil || needsLibrary(t, c.Op) {
		return
	}
	args := g.args(t, c)
	if i%2 != 0 {
		for k, v := range args.Positional {
			if x, ok := v.(*ops.Tensor); ok {
				args.Positional[k] = b.onDevice(t, x)
			}
		}
	}
	got, err := b.call(t.Context(), c.Op, args)
	if err != nil {
		t.Errorf("%s: case %d: %s %s %v: %v", g.name, i, c.Op, c.Args, c.Named, err)
		return
	}
	want := g.Tensors[c.Wants[0]].tensor(t)
	if outs, several := got.([]any); several {
		got = outs[0]
	}
	if c.Op == "array.unique" { // kernels find the sizes, and here they compute nothing
		want.Shape = []int64{0}
	}
	if out, ok := got.(*ops.Tensor); !ok || out.DType != want.DType || fmt.Sprint(out.Shape) != fmt.Sprint(want.Shape) {
		t.Errorf("%s: case %d: %s: %v", g.name, i, c.Op, got)
	}
}

// needsLibrary reports whether the operation calls a library of NVIDIA that has no stand-in. These
// need a GPU.
func needsLibrary(tb testing.TB, name string) bool {
	tb.Helper()
	op, err := ops.NewRegistry().Lookup(name)
	if err != nil {
		tb.Fatal(err)
	}
	return slices.ContainsFunc(op.Libraries, func(library string) bool { return library != "nvrtc" && !slices.Contains(stoodIn, library) })
}
