package alarms

import (
	"fmt"
	"time"
)

// memory is what the rules remember of earlier observations.
type memory struct {
	spilled       map[string]*window // by worker
	failed, ended map[string]*window // by op
	gpus          map[string]*gpuErrors
}

func newMemory() memory {
	return memory{spilled: map[string]*window{}, failed: map[string]*window{}, ended: map[string]*window{}, gpus: map[string]*gpuErrors{}}
}

// gpuErrors are the counts of errors of a worker's GPU at the last observation.
type gpuErrors struct {
	xids, ecc uint64
	at        time.Time // of the last new error; zero: none
	what      string
}

// windowSamples bounds the samples of a window.
const windowSamples = 16

// window remembers a counter over a time, in steps.
type window struct {
	samples []sample // oldest first; the first one may be older than the time
	last    uint64
	lost    uint64 // what the counter had reached before it began anew
}

type sample struct {
	at    time.Time
	value uint64
}

// grown notes the value of a counter and returns how much it has grown in the time before now, as
// far as that is known. A counter that shrinks has begun anew.
func (w *window) grown(now time.Time, value uint64, span time.Duration) uint64 {
	if value < w.last {
		w.lost += w.last
	}
	w.last = value
	total := w.lost + value
	if n := len(w.samples); n == 0 || now.Sub(w.samples[n-1].at) >= span/(windowSamples-2) {
		w.samples = append(w.samples, sample{now, total})
	}
	for len(w.samples) > 1 && now.Sub(w.samples[1].at) >= span {
		w.samples = w.samples[1:]
	}
	return total - w.samples[0].value
}

// windowOf returns the window of a subject, which it makes if needed.
func windowOf(all map[string]*window, subject string) *window {
	w := all[subject]
	if w == nil {
		w = &window{}
		all[subject] = w
	}
	return w
}

// from makes a new window begin at 0: all that the counter has by now is new.
func (w *window) from(now time.Time) *window {
	if len(w.samples) == 0 {
		w.samples = append(w.samples, sample{at: now})
	}
	return w
}

// keep forgets the subjects that were not observed.
func keep[V any](all map[string]V, seen map[string]struct{}) {
	for subject := range all { // order-free: each is looked at alone
		if _, ok := seen[subject]; !ok {
			delete(all, subject)
		}
	}
}

func (k *memory) check() error {
	for _, all := range []map[string]*window{k.spilled, k.failed, k.ended} {
		for subject, w := range all { // order-free: any error will do
			if len(w.samples) == 0 || len(w.samples) > windowSamples+1 {
				return fmt.Errorf("the window of %s has %d samples", subject, len(w.samples))
			}
		}
	}
	return nil
}
