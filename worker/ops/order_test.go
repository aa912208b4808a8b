package ops

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

func TestAnIndexOutsideOfTheAxisIsNamed(t *testing.T) {
	x := tensorOf(t, Float64, []int64{2, 3}, 1, 2, 3, 4, 5, 6)
	for _, c := range []struct {
		axis    any
		indices []any
		reason  string
	}{
		{int64(1), list(0, 2, 3, -4), "index 3 at position 2 of indices is outside of axis 1 with length 3"},
		{int64(0), list(-3), "index -3 at position 0 of indices is outside of axis 0 with length 2"},
		{nil, list(5, 6), "index 6 at position 1 of indices is outside of x made flat with length 6"},
	} {
		_, err := run(t, "array.take", nil, x, c.indices, c.axis)
		var ours *Error
		if !errors.As(err, &ours) || ours.Kind != Failed || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%v along %v: %v", c.indices, c.axis, err)
		}
	}
}

func TestNullIsAnAxisOfItsOwnOnlyIfItIsGiven(t *testing.T) {
	x := tensorOf(t, Float64, []int64{2, 2}, 4, 3, 2, 1)
	for _, c := range []struct {
		named named
		args  []any
		want  string
	}{
		{nil, nil, "float64[2 2] 3 4 1 2"},
		{named{"axis": nil}, nil, "float64[4] 1 2 3 4"},
		{nil, []any{nil}, "float64[4] 1 2 3 4"},
	} {
		if got := show(t, mustRun(t, "array.sort", c.named, append([]any{x}, c.args...)...)); got != c.want {
			t.Errorf("%v %v: %s, want %s", c.named, c.args, got, c.want)
		}
	}
}

func TestSortedNaNsHaveTheSameBitsAndZerosTheirSigns(t *testing.T) {
	x := tensorOf(t, Float64, []int64{5}, 0, 0, 0, 1, 2)
	bits := elements[uint64](x)
	bits[0], bits[1], bits[3], bits[4] = 0xfff0000000000001, 0x7fffffffffffffff, 1<<63, 1<<63
	got := elements[uint64](mustRun(t, "array.sort", nil, x).(*Tensor))
	for i, want := range []uint64{1 << 63, 1 << 63, 0, nan64, nan64} {
		if got[i] != want {
			t.Errorf("%d: %x, want %x", i, got[i], want)
		}
	}
	if zero := elements[uint64](mustRun(t, "array.unique", nil, x).(*Tensor))[0]; zero != 0 {
		t.Errorf("the zero of array.unique is %x", zero)
	}
}

// patterns are keys in several orders, by their name.
func patterns[K keyType](n int) map[string][]K {
	all := map[string][]K{}
	most := K(1)
	for most<<1 > most {
		most = most<<1 | 1
	}
	seed := uint64(n)
	random := func() uint64 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return seed ^ seed>>29
	}
	for name, f := range map[string]func(i int) K{
		"random":   func(int) K { return K(random()) },
		"few":      func(int) K { return K(random() % 5) },
		"equal":    func(int) K { return -7 },
		"rising":   func(i int) K { return K(i) },
		"falling":  func(i int) K { return K(-i) },
		"saw":      func(i int) K { return K(i % 1000) },
		"extreme":  func(i int) K { return most + K(i%3) }, // wraps around to the least keys
		"alike":    func(i int) K { return K(i / 1000 * 1000) },
		"outliers": func(i int) K { return K(random() >> (random() % 64)) },
	} {
		keys := make([]K, n)
		for i := range keys {
			keys[i] = f(i)
		}
		all[name] = keys
	}
	return all
}

func TestKeysAreSorted(t *testing.T) {
	t.Run("32 bits", checkSorts[int32])
	t.Run("64 bits", checkSorts[int64])
}

func checkSorts[K keyType](t *testing.T) {
	t.Helper()
	ctx := WithEnv(t.Context(), Env{Cores: func() int { return 3 }})
	sizes := []int{300, 70_000, 200_001}
	for n := range 20 {
		sizes = append(sizes, n)
	}
	for n := 16; n < 5000; n *= 2 {
		sizes = append(sizes, n-1, n, n+1)
	}
	for _, n := range sizes {
		for name, keys := range patterns[K](n) {
			want := slices.Clone(keys)
			slices.Sort(want)
			other := make([]K, n)
			for way, sort := range map[string]func(a []K) error{
				"few":   func(a []K) error { sortFew(a, other); return nil },
				"keys":  func(a []K) error { return sortKeys(ctx, a, other) },
				"radix": func(a []K) error { return radixSort(ctx, a, other, func(k K) K { return k }) },
				"merge": func(a []K) error { return mergeSort(ctx, a, other, cmp.Compare) },
			} {
				got := slices.Clone(keys)
				if err := sort(got); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%d %s keys are not sorted by %s", n, name, way)
				}
			}
		}
	}
}

// TestHeapsortTakesOver: a segment without passes left is sorted all the same.
func TestHeapsortTakesOver(t *testing.T) {
	set := simd.Best()
	if !set.Sorts() {
		t.Skip("this processor has no AVX-512, or there is no cgo")
	}
	for _, across := range []int32{0, 1} {
		for name, keys := range patterns[int32](3000) {
			want := slices.Clone(keys)
			slices.Sort(want)
			other := make([]int32, len(keys))
			s := segmentOf(keys, other)
			s.Depth, s.Across = 2, across
			set.Sort(false, &s)
			if got := [2][]int32{keys, other}[across]; !slices.Equal(got, want) {
				t.Errorf("%s keys are not sorted, across %d", name, across)
			}
		}
	}
}

func TestOrderIsTheSameOnAnyNumberOfProcessors(t *testing.T) {
	for _, dtype := range []string{"uint8", "int64", "float32", "complex128"} {
		x := mustRun(t, "array.random", named{"dtype": dtype, "high": int64(100)}, list(150_000), int64(5), map[bool]string{true: "uniform", false: "integers"}[dtype[0] == 'f' || dtype[0] == 'c'])
		for name, options := range map[string]named{"array.sort": nil, "array.unique": {"inverse": true, "counts": true}} {
			var shown []string
			for cores := range 3 {
				op, err := NewRegistry().Lookup(name)
				if err != nil {
					t.Fatal(err)
				}
				got, err := op.Run(WithEnv(t.Context(), Env{Cores: func() int { return 1 + cores }}), Args{[]any{x}, options}, NewTensor)
				if err != nil {
					t.Fatal(err)
				}
				outs, several := got.([]any)
				if !several {
					outs = []any{got}
				}
				text := ""
				for _, out := range outs {
					text += string(out.(*Tensor).Data)
				}
				shown = append(shown, text)
			}
			if shown[0] != shown[1] || shown[0] != shown[2] {
				t.Errorf("%s of %s: the bits differ", name, dtype)
			}
		}
	}
}

// TestLongCallsLookWhetherTheyWereCancelled: however often they have looked before they are
// cancelled, they stop.
func TestLongCallsLookWhetherTheyWereCancelled(t *testing.T) {
	for _, c := range []struct {
		op    string
		dtype string
		named named
		least int64
	}{
		{"array.sort", "float64", nil, 10}, {"array.sort", "complex128", nil, 10}, {"array.sort", "uint8", nil, 3},
		{"array.unique", "float64", nil, 10}, {"array.unique", "float32", named{"inverse": true, "counts": true}, 10},
		{"array.unique", "complex64", nil, 10}, {"array.fft", "float64", nil, 10}, {"array.fft", "float64", named{"n": int64(200_009)}, 10},
		{"array.take", "int64", named{"indices": "x"}, 4},
	} {
		op, err := NewRegistry().Lookup(c.op)
		if err != nil {
			t.Fatal(err)
		}
		options := named{"dtype": c.dtype}
		distribution := "uniform"
		if c.dtype == "uint8" || c.dtype == "int64" {
			distribution, options["high"] = "integers", int64(200)
		}
		x := mustRun(t, "array.random", options, list(200_000), int64(1), distribution).(*Tensor)
		args := Args{[]any{x}, c.named}
		if c.named["indices"] != nil {
			args.Named = named{"indices": x}
		}
		var whole *asked
		for range 2 { // the first call makes tables for the others
			whole = &asked{Context: t.Context(), until: math.MaxInt64}
			if _, err := op.Run(whole, args, NewTensor); err != nil {
				t.Fatal(err)
			}
		}
		looks := whole.times.Load()
		if looks < c.least {
			t.Errorf("%s of %s looked %d times only", c.op, c.dtype, looks)
		}
		for until := int64(0); until < looks; until += 1 + looks/7 {
			ctx := &asked{Context: t.Context(), until: until}
			if _, err := op.Run(ctx, args, NewTensor); !errors.Is(err, context.Canceled) {
				t.Errorf("%s of %s, cancelled after %d looks: %v", c.op, c.dtype, until, err)
			}
		}
	}
}

// TestKeysOfASegmentDoNotMoveWithTheStack: a segment has their addresses as numbers.
func TestKeysOfASegmentDoNotMoveWithTheStack(t *testing.T) {
	moved := make(chan bool)
	go func() {
		var keys, other [4]int32
		s := segmentOf(keys[:], other[:])
		keys[0] = grow(1000)
		moved <- s.From != uint64(uintptr(unsafe.Pointer(&keys))) || s.Other != uint64(uintptr(unsafe.Pointer(&other)))
	}()
	if <-moved {
		t.Error("the keys have moved")
	}
}

// grow makes the stack grow by more than depth KiB.
//
//go:noinline
func grow(depth int) int32 {
	var frame [256]int32
	if depth > 0 {
		frame[depth%256] = grow(depth - 1)
	}
	return frame[0] + frame[depth%256]
}
