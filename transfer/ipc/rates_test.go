package ipc

import (
	"testing"
	"time"
)

// Who sleeps until shortly before the time that a rate predicts finds out that the link is
// faster than that, though it was never awake when a copy was over.
func TestARateThatIsTooLowIsFoundOutAsleep(t *testing.T) {
	const truth, lead = 390e9, 15 * time.Microsecond
	for _, known := range []float64{truth / 3, truth * .9, truth * 1.5} {
		r := assumed
		r.engineRate = known
		rounds := 0
		for ; rounds < 40 && (r.engineRate < truth*.97 || r.engineRate > truth*1.1); rounds++ {
			now := time.Unix(1, 0)
			p := &post{slot: -1, copies: 1, bytes: chunkBytes, began: now, base: r.engineBase}
			ends, wakes := now.Add(p.base+over(p.bytes, truth)), now.Add(r.predict(p)-lead)
			if p.loose = wakes.After(ends); p.loose {
				ends = wakes
			}
			r.learn(p, ends)
		}
		if rounds > 20 {
			t.Errorf("from %.0f GB/s: %.0f after %d copies at %.0f", known/1e9, r.engineRate/1e9, rounds, truth/1e9)
		}
	}
}

// Copies that nobody saw end are measured with the next one that somebody did.
func TestCopiesThatNobodySawEndAreMeasuredTogether(t *testing.T) {
	const truth = 300e9
	r, now := assumed, time.Unix(1, 0)
	for range 30 {
		first := &post{slot: -1, copies: 1, bytes: chunkBytes, began: now, base: r.engineBase, loose: true}
		second := &post{slot: -1, copies: 1, bytes: chunkBytes, began: now.Add(r.predict(first)), queued: true}
		second.base = r.base(second, true)
		ends := now.Add(first.base + second.base + over(first.bytes+second.bytes, truth))
		r.learn(first, ends)
		second.follow(first, ends, &r)
		r.learn(second, ends)
	}
	if r.engineRate < truth*.99 || r.engineRate > truth*1.01 {
		t.Errorf("%.1f GB/s, want %.1f", r.engineRate/1e9, truth/1e9)
	}
}
