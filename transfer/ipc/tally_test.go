package ipc

import (
	"testing"
	"time"
)

// tallied posts each of the given posts once the one before it is under way, and ends them all
// after the given time.
func tallied(t *tally, took time.Duration, posts ...*post) {
	now := time.Unix(1, 0)
	for i, p := range posts {
		t.add(p, now.Add(time.Duration(i)), i == 0)
	}
	t.end(now.Add(took))
}

func carries(slot int, bytes uint64, step bool) *post {
	return &post{slot: slot, bytes: bytes, pieces: []piece{{step: step}}}
}

// The rate of a copy queue is that of whole batches by one method. Other batches say nothing about
// it.
func TestRatesAreThoseOfWholeBatches(t *testing.T) {
	const proved = 200e9
	r := &tally{rates: [methods]float64{proved, proved}}
	for range 20 {
		tallied(r, time.Millisecond, carries(-1, 128<<20, false), carries(-1, 128<<20, false))
		tallied(r, 10*time.Millisecond, carries(-1, 1<<20, false))
		tallied(r, 10*time.Millisecond, carries(-1, 64<<20, false), carries(0, 64<<20, false))
		tallied(r, 10*time.Millisecond, carries(-1, 64<<20, true))
	}
	if want := 256e6 * 1.048576e3; r.rates[byEngine] < .99*want || r.rates[byEngine] > want {
		t.Errorf("copies at %.0f GB/s, want %.0f", r.rates[byEngine]/1e9, want/1e9)
	}
	if r.rates[byKernel] != proved {
		t.Errorf("gathers at %.0f GB/s though nothing was gathered", r.rates[byKernel]/1e9)
	}
	r.add(carries(0, 64<<20, false), time.Unix(2, 0), true)
	r.drop()
	if r.end(time.Unix(3, 0)); r.rates[byKernel] != proved {
		t.Errorf("gathers at %.0f GB/s by one that failed", r.rates[byKernel]/1e9)
	}
}
