package bench

import (
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

func TestShapesHaveAboutAsManyTasksAsAsked(t *testing.T) {
	for _, name := range Shapes() {
		for _, n := range []int{1, 2, 3, 64, 1000, 1001} {
			g := new(millrace.Client).NewGraph(name)
			shapes[name](g, "p-", n)
			if got := g.Len(); got < n-stencilWidth || got > n+stencilWidth || got < 1 {
				t.Errorf("%s of %d has %d tasks", name, n, got)
			}
		}
	}
}

func TestPercentiles(t *testing.T) {
	var samples []time.Duration
	for i := 200; i > 0; i-- {
		samples = append(samples, time.Duration(i)*time.Microsecond)
	}
	if got := percentiles(samples); got != (Percentiles{P50: 100, P99: 198, Samples: 200}) {
		t.Errorf("%+v", got)
	}
}

func TestMedian(t *testing.T) {
	same := func(x float64) float64 { return x }
	if got, spread := median([]float64{3, 9, 1}, same); got != 3 || spread != (Spread{Min: 1, Max: 9}) {
		t.Errorf("%v, %+v", got, spread)
	}
}
