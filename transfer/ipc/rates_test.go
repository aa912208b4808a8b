package ipc

import (
	"testing"
	"time"
)

// A waiter that always sleeps until shortly before the predicted end still learns that the link is
// faster than its rate, although it was never awake at the end of a copy.
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

// The same holds for a time that does not depend on the bytes: the wrong figure shrinks, whichever
// it is, and no rate grows instead.
func TestATimeThatIsTooLongIsFoundOutAsleep(t *testing.T) {
	const lead, wrong = 48 * time.Microsecond, 3 * time.Millisecond
	for name, test := range map[string]struct {
		slot, copies int
		bytes        uint64
		known        func(r *rates) *time.Duration
	}{
		"a small gather":    {0, 1000, 1000 * 4096, func(r *rates) *time.Duration { return &r.gatherBase }},
		"a large gather":    {0, 1000, 1000 << 16, func(r *rates) *time.Duration { return &r.gatherBase }},
		"one copy":          {-1, 1, 1 << 20, func(r *rates) *time.Duration { return &r.engineBase }},
		"one large copy":    {-1, 1, chunkBytes, func(r *rates) *time.Duration { return &r.engineBase }},
		"several copies":    {-1, 64, 64 * 4096, func(r *rates) *time.Duration { return &r.engineCopy }},
		"several, base off": {-1, 64, 64 * 4096, func(r *rates) *time.Duration { return &r.engineBase }},
	} {
		t.Run(name, func(t *testing.T) {
			truth, r := assumed, assumed
			*test.known(&r) = wrong
			rounds := 0
			for ; rounds < 60; rounds++ {
				now := time.Unix(1, 0)
				p := &post{slot: test.slot, copies: test.copies, bytes: test.bytes, began: now}
				p.base = truth.base(p, false)
				ends := now.Add(truth.predict(p))
				p.base = r.base(p, false)
				wakes := now.Add(r.predict(p) - lead - r.sooner(p))
				if p.loose = wakes.After(ends); p.loose {
					ends = wakes
				}
				r.learn(p, ends)
				if !p.loose {
					break // it was awake at the end of the copy, so the normal model update follows
				}
			}
			if rounds == 60 {
				t.Errorf("after %d posts it sleeps too long as before: %v", rounds, *test.known(&r))
			}
			if r.gatherRate > 1.3*truth.gatherRate || r.engineRate > 1.3*truth.engineRate {
				t.Errorf("rates of %.0f and %.0f GB/s", r.gatherRate/1e9, r.engineRate/1e9)
			}
		})
	}
}

// A post that was delayed for some milliseconds, by another program or by the device, does not make
// later posts wait.
func TestAStallIsNotTakenForTheRule(t *testing.T) {
	r, now := assumed, time.Unix(1, 0)
	stalled := &post{slot: 0, copies: 100, bytes: 100 * 4096, began: now, base: r.gatherBase}
	r.learn(stalled, now.Add(9*time.Millisecond))
	if r.gatherBase > 5*assumed.gatherBase/4 {
		t.Errorf("a gather is thought to take %v from now on, before %v", r.gatherBase, assumed.gatherBase)
	}
	if !r.gathers(100, 100*4096) {
		t.Error("nothing is gathered any more")
	}
}

// A copy whose end was not observed is measured together with the next copy whose end was.
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
