package bench

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestPatternsNeedPointsOfTheStepBefore(t *testing.T) {
	for name, from := range patterns {
		for _, width := range []int{1, 2, 3, 7, 16} {
			for step := 1; step < 6; step++ {
				for p := range width {
					got := from(step, p, width, 5)
					if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
						t.Errorf("%s: point %d of %d needs %v: not in order, or twice", name, p, width, got)
					}
					for _, q := range got {
						if q < 0 || q >= width {
							t.Errorf("%s: point %d of %d needs point %d", name, p, width, q)
						}
					}
				}
			}
		}
	}
	if got := patterns["stencil_1d"](1, 3, 8, 0); !slices.Equal(got, []int{2, 3, 4}) {
		t.Errorf("stencil: %v", got)
	}
	if got := patterns["nearest"](1, 0, 8, 5); !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Errorf("nearest: %v", got)
	}
	if got := patterns["fft"](2, 3, 8, 0); !slices.Equal(got, []int{1, 3, 5}) {
		t.Errorf("fft: %v", got)
	}
}

func TestMETGIsInterpolated(t *testing.T) {
	rows := []TaskBenchRow{
		{Iterations: 1000, Seconds: 10, Granularity: 100},
		{Iterations: 100, Seconds: 1.25, Granularity: 12.5}, // 80 %
		{Iterations: 10, Seconds: 0.5, Granularity: 5},      // 20 %
	}
	if got := metg50(rows); math.Abs(float64(got)-8.75) > 1e-9 {
		t.Errorf("METG(50%%) = %v, rows %+v", got, rows)
	}
	for n, want := range map[time.Duration]int{10 * time.Millisecond: 40, time.Millisecond: 250, time.Microsecond: 1000, 0: 1000} {
		if got := stepsFor(1000, n); got != want {
			t.Errorf("steps of %v: %d, want %d", n, got, want)
		}
	}
	if got := metg50(rows[:2]); got != 0 {
		t.Errorf("never below half, and METG(50%%) = %v", got)
	}
}
