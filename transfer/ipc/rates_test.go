package ipc

import (
	"testing"
	"time"
)

// The faster way is chosen, by the times of H200s: a first copy takes 8 µs and each further one
// 3.3, a gather 14 µs and what its bytes take at 300 GB/s.
func TestTheFasterMethodIsChosen(t *testing.T) {
	const us = time.Microsecond
	for copies := 1; copies <= maxCopies; copies++ {
		for bytes := uint64(copies) * 256; bytes <= batchBytes; bytes *= 2 {
			engine := 8*us + max(time.Duration(copies-1)*3300, over(bytes, 350e9))
			kernel := 14*us + over(bytes, 300e9)
			chosen, other := engine, kernel
			if gathers(copies, bytes) {
				chosen, other = kernel, engine
			}
			if copies == 1 && gathers(copies, bytes) || chosen > other+us {
				t.Errorf("%d copies of %d KiB in all: gathered %v; %v by the copy engine, %v by the kernel", copies, bytes>>10, gathers(copies, bytes), engine, kernel)
			}
		}
	}
}

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
