package lifecycle

import "time"

// Limits of predictions. A run is short if waking another thread, some 50 µs, would be a good part
// of it.
const (
	// minRuns is the number of runs before a prediction is made.
	minRuns = 4
	// shortRun is the longest run that is predicted: nothing depends on predictions of longer ones.
	shortRun = 500 * time.Microsecond
	// briefRun is the longest run during which notifications from peers may wait unhandled: about
	// as long as it takes to wake a thread for them.
	briefRun = 50 * time.Microsecond
)

// RunTimes predicts the run times of an operation. The zero value has seen no run.
type RunTimes struct {
	runs int
	// mean and deviation are of the run times in nanoseconds, exponentially smoothed.
	mean, deviation float64
}

// Observe enters a measured run.
func (r *RunTimes) Observe(d time.Duration) {
	x := float64(d)
	if r.runs++; r.runs == 1 {
		r.mean = x
		return
	}
	gain := max(1/float64(r.runs), 1.0/16)
	diff := x - r.mean
	r.mean += gain * diff
	r.deviation += gain * (max(diff, -diff) - r.deviation)
}

// Estimate predicts the duration of the next run. It returns 0 if too few runs were measured, or if
// the run will probably not be short.
func (r *RunTimes) Estimate() time.Duration {
	if r.runs < minRuns {
		return 0
	}
	if d := time.Duration(r.mean + 3*r.deviation); d < shortRun {
		return max(d, time.Microsecond)
	}
	return 0
}

// Expected says whether the next run will probably be short, and whether it is so short that
// notifications from peers can wait for its end.
func (r *RunTimes) Expected() (short, brief bool) {
	d := r.Estimate()
	return d > 0, d > 0 && d < briefRun
}
