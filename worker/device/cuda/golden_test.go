//go:build cgo && linux

package cuda

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
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
	Want  *int // index of the expected tensor; nil: NumPy raised an error
	Exact bool
}

type goldenFile struct {
	Tensors []goldenTensor
	Cases   []goldenCase
}

// golden reads the golden file of worker/ops. On a GPU machine the file is elsewhere:
// MILLRACE_GOLDEN names it.
func golden(tb testing.TB) goldenFile {
	tb.Helper()
	name := os.Getenv("MILLRACE_GOLDEN")
	if name == "" {
		name = "../../ops/testdata/golden.json"
	}
	source, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	var g goldenFile
	if err := json.Unmarshal(source, &g); err != nil {
		tb.Fatal(err)
	}
	return g
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
	case d == ops.Float32 || d == ops.Complex64:
		return 2e-5
	}
	return 1e-12
}

func TestGPUResultsAreNumPys(t *testing.T) {
	onGPU(t)
	b := open(t, 4<<30, Options{})
	g := golden(t)
	var next, failed atomic.Int64
	var wait sync.WaitGroup
	for range min(16, runtime.GOMAXPROCS(0)) {
		wait.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(g.Cases) {
					return
				}
				if message := b.checkGolden(t, &g, i); message != "" && failed.Add(1) < 60 {
					t.Errorf("case %d: %s %s %v: %s", i, g.Cases[i].Op, g.Cases[i].Args, g.Cases[i].Named, message)
				}
			}
		})
	}
	wait.Wait()
	tell(t, "golden cases that fail", float64(failed.Load()), fmt.Sprintf("of_%d", len(g.Cases)))
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
	case c.Want == nil && err == nil:
		return "NumPy raises an error"
	case c.Want != nil && err != nil:
		return err.Error()
	case c.Want == nil:
		return ""
	}
	want := g.Tensors[*c.Want].tensor(tb)
	out, ok := resultOnHost(tb, got).(*ops.Tensor)
	if !ok {
		return fmt.Sprintf("%T", got)
	}
	return sameTensor(out, want, goldenTolerance(c, want.DType))
}

// TestGoldenCasesAreDispatched runs every fiftieth case, and fewer in the short size.
// It finds, without a GPU, calls that cannot be compiled or dispatched.
func TestGoldenCasesAreDispatched(t *testing.T) {
	if fake == nil {
		t.Skip("results are looked at by TestGPUResultsAreNumPys")
	}
	b := open(t, 64<<20, Options{Libraries: []string{nvrtcFolder()}, Python: "none"})
	g := golden(t)
	step := 50
	if testing.Short() {
		step = 199 // odd, so that every second case has its arrays on the device
	}
	for i := 0; i < len(g.Cases); i += step {
		c := &g.Cases[i]
		if c.Want == nil || c.Op == "array.matmul" {
			continue
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
			t.Errorf("case %d: %s %s %v: %v", i, c.Op, c.Args, c.Named, err)
			continue
		}
		want := g.Tensors[*c.Want].tensor(t)
		if out, ok := got.(*ops.Tensor); !ok || out.DType != want.DType || fmt.Sprint(out.Shape) != fmt.Sprint(want.Shape) {
			t.Errorf("case %d: %s: %v", i, c.Op, got)
		}
	}
}
