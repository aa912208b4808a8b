package ops

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var errTestRoom = errors.New("no room in this test")

// limited provides working memory up to a limit, as a worker does.
type limited struct{ left int64 }

func (l *limited) Scratch(bytes int64) ([]byte, error) {
	if bytes > l.left {
		return nil, errTestRoom
	}
	l.left -= bytes
	data := heapBytes(bytes)
	for i := range data {
		data[i] = 0xA5 // working memory is not zeroed
	}
	return data, nil
}

// runLimited runs an operation with 16 MiB of working memory, 16 MiB for the outputs and a deadline
// of 50 ms.
func runLimited(ctx context.Context, op *Op, args Args) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	room := &limited{16 << 20}
	outputs := int64(16 << 20)
	op.OutputBytes(args)
	return op.Run(WithEnv(ctx, Env{Scratch: room}), args, func(d DType, shape []int64) (*Tensor, error) {
		n, err := countElements(shape)
		if err != nil {
			return nil, err
		}
		if n > outputs/d.Size() {
			return nil, errTestRoom
		}
		outputs -= n * d.Size()
		return NewTensor(d, shape)
	})
}

// refused checks an error, if there is one: it must be short and must not come from a recovered
// panic.
func refused(tb testing.TB, what string, err error) {
	tb.Helper()
	if err == nil {
		return
	}
	if strings.Contains(err.Error(), "internal error") {
		tb.Errorf("%s: %v", what, err)
	}
	if len(err.Error()) > 2*maxErrorBytes {
		tb.Errorf("%s: an error of %d bytes", what, len(err.Error()))
	}
}

// everywhere returns a tensor of any shape whose elements are all the same element in memory.
func everywhere(d DType, shape ...int64) *Tensor {
	return &Tensor{DType: d, Shape: shape, Strides: make([]int64, len(shape)), Data: heapBytes(16)}
}

// nowhere returns a tensor of any shape without bytes.
func nowhere(d DType, shape ...int64) *Tensor {
	return &Tensor{DType: d, Shape: shape, Strides: ContiguousStrides(d, shape)}
}

func TestHostileArgumentsAreRefused(t *testing.T) {
	const big = 1 << 50
	long := strings.Repeat("\x01", 1<<20)
	manyNames := make([]any, 60_000)
	for i := range manyNames {
		manyNames[i] = "name"
	}
	manyKeys := map[string]any{}
	for _, r := range long[:50_000] {
		manyKeys[strings.Repeat(string(r), 1+len(manyKeys))] = nil
		if len(manyKeys) == 5000 {
			break
		}
	}
	half := make([]any, maxLeaves/1000)
	thousand := make([]any, 1000)
	for i := range half {
		half[i] = thousand
	}
	for _, c := range []struct {
		op     string
		args   []any
		named  named
		reason string // a part of the error's text
	}{
		{"array.full", []any{list(0, 2, -1), int64(0)}, nil, "negative"},
		{"array.random", []any{list(0, 2, -1), int64(1)}, nil, "negative"},
		{"core.identity", []any{nowhere(Float64, 0, 2, -1)}, nil, "negative"},
		{"core.list", []any{nowhere(Float64, 0, 2, -1)}, nil, "negative"},
		{"array.map", []any{"x0+1", nowhere(Float64, 0, 2, -1)}, nil, "negative"},
		{"array.concat", []any{int64(0), nowhere(Float64, 0, 2, -1)}, nil, "negative"},
		{"array.reshape", []any{list[any](), list(0, 2, -5)}, nil, ""},
		{"bench.stamp", []any{int64(1), int64(32), list(5), list(1)}, nil, "stamp"},
		{"bench.checksum", []any{&Tensor{DType: Uint8, Shape: []int64{0}, Strides: []int64{1}, Offset: 9, Data: make([]byte, 1)}}, nil, "-"},
		{"bench.checksum", []any{&Tensor{DType: Uint8, Shape: []int64{100, 0}, Strides: []int64{0, 1}, Offset: 1 << 62, Data: make([]byte, 1)}}, nil, "-"},
		{"array.matmul", []any{everywhere(Float64, 1, big), everywhere(Float64, big, 1)}, nil, "working memory"},
		{"array.matmul", []any{everywhere(Float64, 1, 1<<34), everywhere(Float64, 1<<34, 1)}, nil, "working memory"},
		{"bench.checksum", []any{everywhere(Uint8, big)}, nil, "working memory"},
		{"bench.stamp", []any{int64(1), int64(32), list(5), everywhere(Uint8, big)}, nil, "working memory"},
		{"array.qr", []any{everywhere(Float64, big, 1)}, nil, ""},
		{"array.svd", []any{everywhere(Float64, 1, big)}, nil, ""},
		{"array.map", []any{long}, nil, "limit"},
		{"array.map", []any{"1", everywhere(Float64, 1)}, named{"names": manyNames}, ""},
		{"array.map", []any{"x0", everywhere(Float64, make([]int64, 200_000)...)}, nil, "axes"},
		{"array.map", append([]any{"x0"}, make([]any, 60_000)...), nil, "inputs"},
		{"array.reduce", []any{list(1, 2)}, named{"op": long}, ""},
		{"array.random", []any{list(2), int64(1)}, named{"distribution": long}, ""},
		{"array.full", []any{list(2), int64(1)}, named{"dtype": long}, ""},
		{"core.item", []any{manyKeys, long}, nil, "no key"},
		{"core.list", []any{half, half}, nil, "values"},
		{"core.list", []any{deep(maxLevels)}, nil, "inside of each other"},
		{"core.identity", []any{deep(maxLevels + 1)}, nil, "inside of each other"},
		{"bench.fail", []any{long}, nil, "bytes in all"},
	} {
		op, err := NewRegistry().Lookup(c.op)
		if err != nil {
			t.Fatal(err)
		}
		_, err = runLimited(t.Context(), op, Args{c.args, c.named})
		refused(t, c.op, err)
		switch {
		case c.reason == "-":
			if err != nil {
				t.Errorf("%s: %v", c.op, err)
			}
		case err == nil || !strings.Contains(err.Error(), c.reason):
			t.Errorf("%s: %v, expected an error with %q", c.op, err, c.reason)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: was stopped, rather than refused", c.op)
		}
	}
	if _, err := NewRegistry().Lookup(long); err == nil || len(err.Error()) > 2*maxErrorBytes {
		t.Errorf("an unknown operation with a long name: %v", err)
	}
}

// genHostile draws a value that a client may pass for any parameter.
func genHostile(rt *rapid.T, label string) any {
	number := rapid.SampledFrom([]int64{0, 1, 2, 3, -1, -2, 5, 64, 1 << 20, 1 << 31, 1 << 40, 1 << 61, 1 << 62, math.MaxInt64, math.MinInt64})
	switch rapid.IntRange(0, 9).Draw(rt, label) {
	case 0:
		return nil
	case 1, 2:
		return number.Draw(rt, "int")
	case 3:
		return rapid.SampledFrom([]float64{0, -0.5, 1e-320, 1e300, math.Inf(1), math.Inf(-1), math.NaN(), 1 << 60}).Draw(rt, "float")
	case 4:
		return rapid.SampledFrom([]string{"", "sum", "int32", "complex128", "uint8", "normal", "x0", "x0/x1", "where(x0, x1, 2)", "\xff", "é", strings.Repeat("a", 5000)}).Draw(rt, "string")
	case 5:
		return rapid.SampledFrom([]any{true, 1i, complex(math.NaN(), 1), []byte{}, []byte("abc"), map[string]any{}, map[string]any{"a": int64(1)}}).Draw(rt, "other")
	case 6:
		n := rapid.IntRange(0, 4).Draw(rt, "length")
		values := make([]any, n)
		for i := range values {
			values[i] = genHostile(rt, "item")
		}
		return values
	}
	shape := rapid.SliceOfN(number, 0, 4).Draw(rt, "shape")
	x := &Tensor{DType: DType(rapid.IntRange(0, 10).Draw(rt, "dtype")), Shape: shape, Data: heapBytes(rapid.SampledFrom([]int64{0, 1, 16, 64, 4096}).Draw(rt, "bytes"))}
	x.Offset = rapid.SampledFrom([]int64{0, 0, 0, 1, 8, -8, 1 << 62, math.MinInt64}).Draw(rt, "offset")
	switch rapid.IntRange(0, 3).Draw(rt, "strides") {
	case 0:
		x.Strides = make([]int64, len(shape))
	case 1:
		x.Strides = rapid.SliceOfN(number, len(shape), len(shape)).Draw(rt, "any strides")
	default:
		if x.DType != Invalid && x.DType <= Complex128 {
			x.Strides = ContiguousStrides(x.DType, shape)
		}
	}
	return x
}

// anyArguments runs a random operation with random arguments.
func anyArguments(rt *rapid.T) {
	registry := NewRegistry()
	op, err := registry.Lookup(rapid.SampledFrom(registry.Names()).Draw(rt, "op"))
	if err != nil {
		rt.Fatal(err)
	}
	args := Args{Named: named{}}
	for range rapid.IntRange(0, 4).Draw(rt, "positional") {
		args.Positional = append(args.Positional, genHostile(rt, "argument"))
	}
	for _, p := range op.Params {
		if rapid.IntRange(0, 3).Draw(rt, "give "+p.Name) == 0 {
			args.Named[p.Name] = genHostile(rt, p.Name)
		}
	}
	_, err = runLimited(context.Background(), op, args)
	if err != nil && (strings.Contains(err.Error(), "internal error") || len(err.Error()) > 2*maxErrorBytes) {
		rt.Fatalf("%s %+v: %v", op.Name, args, err)
	}
}

// TestAnyArgumentsGiveAResultOrAnError checks that an operation with any arguments gives a result
// or an error: it does not panic, uses no more memory than it was given, and ends when the context
// ends.
func TestAnyArgumentsGiveAResultOrAnError(t *testing.T) { rapid.Check(t, anyArguments) }

func FuzzAnyArguments(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyArguments)) }

// asked is a context that counts how often an operation checks it, and that is cancelled after some
// of these checks.
type asked struct {
	context.Context //nolint:containedctx // it is one itself
	times           atomic.Int64
	until           int64
}

func (a *asked) Err() error {
	if a.times.Add(1) > a.until {
		return context.Canceled
	}
	return nil
}

// TestTransformsOfPrimeLengthsLookWhetherTheyWereCancelled counts: each stretch of checkEvery
// numbers, in each of the passes over the line and its convolution, is a look.
func TestTransformsOfPrimeLengthsLookWhetherTheyWereCancelled(t *testing.T) {
	const n = 2_097_143
	x := mustRun(t, "array.random", nil, list(n), int64(1)).(*Tensor)
	op, err := NewRegistry().Lookup("array.fft")
	if err != nil {
		t.Fatal(err)
	}
	ctx := &asked{Context: t.Context(), until: math.MaxInt64}
	tr := newTransformer(ctx, true)
	p, err := newLinePlan(ctx, tr.fft, smoothFrom(2*n-1), true)
	if err != nil {
		t.Fatal(err)
	}
	ctx.times.Store(0)
	one := make([]byte, 16*p.n)
	if err := tr.line(p, tr.contiguous(one, p.n), tr.contiguous(one, p.n), false, 1); err != nil {
		t.Fatal(err)
	}
	transform := ctx.times.Load()
	ctx.times.Store(0)
	if _, err := op.Run(ctx, Args{Positional: []any{x}}, NewTensor); err != nil {
		t.Fatal(err)
	}
	// Three passes over the line: the chirp, before and after the convolution; two over the
	// convolution: the spectrum, when it is made and when it is used.
	if least := 3*transform + (3*n+2*int64(p.n))/checkEvery; ctx.times.Load() < least {
		t.Errorf("looked %d times, expected %d, of which %d are those of each of three transforms", ctx.times.Load(), least, transform)
	}
}

func TestFactorisationsLookWhetherTheyWereCancelled(t *testing.T) {
	for _, c := range []struct {
		op    string
		named named
		shape []int64
		least int64
	}{
		{"array.svd", nil, []int64{300, 300}, 50},
		{"array.svd", nil, []int64{2000, 60}, 50},
		{"array.svd", nil, []int64{60, 2000}, 50},
		{"array.svd", named{"vectors": false}, []int64{2000, 60}, 50},
		{"array.qr", nil, []int64{3000, 100}, 50},
		{"array.qr", named{"mode": "r"}, []int64{3000, 100}, 50},
	} {
		op, err := NewRegistry().Lookup(c.op)
		if err != nil {
			t.Fatal(err)
		}
		x := mustRun(t, "array.random", nil, list(int(c.shape[0]), int(c.shape[1])), int64(1)).(*Tensor)
		whole := &asked{Context: t.Context(), until: math.MaxInt64}
		if _, err := op.Run(whole, Args{Positional: []any{x}, Named: c.named}, NewTensor); err != nil {
			t.Fatal(err)
		}
		if whole.times.Load() < c.least {
			t.Errorf("%s%v of %v looked %d times only", c.op, c.named, c.shape, whole.times.Load())
		}
		for until := int64(0); until < whole.times.Load(); until += 1 + whole.times.Load()/17 {
			ctx := &asked{Context: t.Context(), until: until}
			if _, err := op.Run(ctx, Args{Positional: []any{x}, Named: c.named}, NewTensor); !errors.Is(err, context.Canceled) {
				t.Errorf("%s%v of %v, cancelled after %d looks: %v", c.op, c.named, c.shape, until, err)
			}
		}
	}
}

func TestFactorsOfExtremeMatricesMultiplyToThem(t *testing.T) {
	for _, scale := range []float64{1e308, 1, 1e-300, 5e-324} {
		for _, shape := range [][]int64{{1, 1}, {3, 3}, {7, 2}, {2, 7}, {70, 65}, {200, 70}} {
			x := mustRun(t, "array.random", nil, list(int(shape[0]), int(shape[1])), int64(3)).(*Tensor)
			for i, v := range elements[float64](x) {
				elements[float64](x)[i] = v * scale / 100
			}
			parts := mustRun(t, "array.svd", nil, x).([]any)
			u, s, vt := parts[0].(*Tensor), elements[float64](parts[1].(*Tensor)), parts[2].(*Tensor)
			k := int(min(shape[0], shape[1]))
			most := s[0]
			for i := range int(shape[0]) {
				for j := range int(shape[1]) {
					sum := 0.0
					for l := range k {
						sum += elements[float64](u)[i*k+l] * (s[l] / most) * elements[float64](vt)[l*int(shape[1])+j]
					}
					if most == 0 {
						sum = 0
					}
					if got, want := sum*most, elements[float64](x)[i*int(shape[1])+j]; math.Abs(got-want) > 1e-12*most+5e-324 {
						t.Fatalf("%v at %v: %g, want %g", shape, scale, got, want)
					}
				}
			}
		}
	}
}

// deep returns a number that is nested in that many lists.
func deep(levels int) any {
	var v any = int64(1)
	for range levels {
		v = []any{v}
	}
	return v
}
