package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Spread is the lowest and the highest of several repetitions.
type Spread struct {
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// likely returns the interval that has the median of all that could be measured in 95 of 100 cases:
// that of the sign test, which assumes nothing about the figures but that they are independent. Of
// fewer than six it knows none, and returns false.
func likely(figures []float64) (Spread, bool) {
	sorted := slices.Sorted(slices.Values(figures))
	n, low := len(sorted), -1
	// tail is the probability that at most low+1 of n tosses of a coin are heads.
	tail, choose := 0.0, 1.0
	for k := range n {
		if tail += choose * math.Pow(0.5, float64(n)); 2*tail > 0.05 {
			break
		}
		low, choose = k, choose*float64(n-k)/float64(k+1)
	}
	if low < 0 {
		return Spread{}, false
	}
	return Spread{Min: sorted[low], Max: sorted[n-1-low]}, true
}

// Percentiles are taken over single samples.
type Percentiles struct {
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	Samples int     `json:"samples"`
}

func percentiles(samples []time.Duration) Percentiles {
	slices.Sort(samples)
	at := func(q float64) float64 {
		i := int(math.Ceil(q*float64(len(samples)))) - 1
		return micros(samples[min(max(i, 0), len(samples)-1)])
	}
	return Percentiles{P50: at(0.50), P99: at(0.99), Samples: len(samples)}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// median returns the median run by the given figure, and the spread of that figure.
func median[T any](runs []T, figure func(T) float64) (T, Spread) {
	slices.SortFunc(runs, func(a, b T) int { return cmp.Compare(figure(a), figure(b)) })
	return runs[len(runs)/2], Spread{Min: figure(runs[0]), Max: figure(runs[len(runs)-1])}
}
