package lifecycle_test

import (
	"testing"
	"time"

	"github.com/millrace/millrace/worker/lifecycle"
)

// Nothing is predicted before four runs, nor for runs that are long or vary much.
func TestRunTimesArePredicted(t *testing.T) {
	for _, x := range []struct {
		runs         []time.Duration
		estimate     time.Duration
		short, brief bool
	}{
		{runs: []time.Duration{10, 10, 10}},
		{runs: []time.Duration{10, 10, 10, 10}, estimate: 10, short: true, brief: true},
		{runs: []time.Duration{100, 100, 100, 100}, estimate: 100, short: true},
		{runs: []time.Duration{600, 600, 600, 600}},
		{runs: []time.Duration{10, 400, 10, 400}},
		{runs: []time.Duration{0, 0, 0, 0}, estimate: 1, short: true, brief: true},
	} {
		var r lifecycle.RunTimes
		for _, d := range x.runs {
			r.Observe(d * time.Microsecond)
		}
		short, brief := r.Expected()
		if got := r.Estimate(); got != x.estimate*time.Microsecond || short != x.short || brief != x.brief {
			t.Errorf("after %v µs: %v, short %v, brief %v", x.runs, got, short, brief)
		}
	}
}
