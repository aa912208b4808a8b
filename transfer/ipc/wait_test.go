package ipc

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/transfer"
)

// link simulates a device that copies one post after the other, with a simulated clock.
type link struct {
	now time.Time
	// rate is in bytes per second; sways are relative deviations of it for successive posts. base
	// is the extra time of a post on an idle link, turn the extra time of each post.
	rate       float64
	sways      []float64
	posts      int
	base, turn time.Duration
	// late has the lateness of successive sleeps.
	late []time.Duration
	naps int
	// shared: all posts under way are copied concurrently and end together with the last one.
	shared bool
	last   *done
	// free is when all submitted posts are over. slept is the total time slept.
	free  time.Time
	slept time.Duration
}

// done is the event behind a post: the time of its end.
type done struct {
	*link
	at time.Time
}

func (d *done) Query() (bool, error) {
	d.now = d.now.Add(1500 * time.Nanosecond)
	return !d.at.After(d.now), nil
}

func (d *done) Await(spin time.Duration) (bool, error) {
	if left := d.at.Sub(d.now); left > spin {
		d.now = d.now.Add(spin)
		return false, nil
	} else if left > 0 {
		d.now = d.at
	}
	d.now = d.now.Add(time.Microsecond)
	return true, nil
}

// sleep sleeps. Falling asleep and waking up takes the processor 3 µs.
func (k *link) sleep(d time.Duration) {
	const cost = 3 * time.Microsecond
	d += k.late[k.naps%len(k.late)]
	k.naps++
	k.now = k.now.Add(d + cost)
	k.slept += d
}

func (d *done) submit(p *post) {
	d.now = d.now.Add(3 * time.Microsecond)
	begins := d.now.Add(d.base)
	if d.free.After(begins) {
		begins = d.free
	}
	sway := d.sways[d.posts%len(d.sways)]
	d.posts++
	d.at = begins.Add(d.turn + durationOf(p.bytes, d.rate*(1+sway)))
	d.free = d.at
	if d.shared && d.last != nil && d.last != d && d.last.at.After(d.now) {
		d.last.at = d.at.Add(-time.Microsecond)
	}
	d.last = d
}

// copyQueue returns a copy queue over the link.
func (k *link) copyQueue() *copyQueue {
	var places [2][]place
	for kind := range places {
		for range window {
			places[kind] = append(places[kind], place{event: &done{link: k}})
		}
	}
	cq := newCopyQueue(places)
	cq.now, cq.sleep = func() time.Time { return k.now }, k.sleep
	cq.submit = func(p *post) error {
		p.event.(*done).submit(p)
		return nil
	}
	return cq
}

// fetch copies an object as a fetch does. It returns the time that this took, and the part of it
// spent awake.
func (k *link) fetch(t *testing.T, cq *copyQueue, bytes uint64) (took, awake time.Duration) {
	t.Helper()
	k.now = k.now.Add(20 * time.Microsecond)
	began, slept := k.now, k.slept
	var c cutting
	g := newGroup()
	c.large(0, 0, bytes, chunkBytes, g, 0)
	cq.add(c.pieces)
	for {
		ended, err := cq.wait(t.Context(), g, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if len(ended) == 0 {
			took = k.now.Sub(began)
			return took, took - (k.slept - slept)
		}
	}
}

// times is a list of times in microseconds.
func times(list ...int) (out []time.Duration) {
	for _, n := range list {
		out = append(out, time.Duration(n)*time.Microsecond)
	}
	return out
}

// A fetch ends at most a sleep after its copies, and near NVLink's rate much sooner. The waiter is
// awake while it may poll, and for a tenth of the rest.
func TestFetchesEndWhenTheirCopiesDo(t *testing.T) {
	sways := map[string][]float64{"sharp": {0}, "dull": {.01, -.03, .02, 0, -.02, .03, -.01}}
	for name, late := range map[string][]time.Duration{"sharp": times(5, 5, 6, 5, 5, 5, 9), "dull": times(30, 35, 40, 30, 50, 32)} {
		for _, rate := range []float64{396e9, 190e9, 25e9} {
			for _, bound := range []float64{0, fastestLink} {
				for _, bytes := range []uint64{64 << 20, 256 << 20, 1 << 30, 100 << 20} {
					k := &link{now: time.Unix(1, 0), rate: rate, base: 8 * time.Microsecond, turn: 2 * time.Microsecond, late: late, sways: sways[name]}
					cq := k.copyQueue()
					cq.fastest = bound
					var took, awake time.Duration
					const counted = 20
					for range counted {
						one, spun := k.fetch(t, cq, bytes)
						took, awake = took+one, awake+spun
					}
					took, awake = took/counted, awake/counted
					bare := k.base + durationOf(bytes, rate)
					most, busy := bare+bare/50+max(pollInterval, bare/pollShare)+slices.Max(late), spinFor+took/10
					if bound > 0 && rate > bound/2 {
						most, busy = bare+bare/25+10*time.Microsecond, 60*time.Microsecond+took/10
					}
					if took > most || awake > busy {
						t.Errorf("%s sleeps, %.0f GB/s, at most %.0f: %d MiB took %v, the copy alone %v; awake for %v",
							name, rate/1e9, bound/1e9, bytes>>20, took, bare, awake)
					}
				}
			}
		}
	}
}

// A fetch that was delayed, by another program or by the device, does not make later ones slower.
func TestADelayedFetchLeavesNoTrace(t *testing.T) {
	fresh := func() (*link, *copyQueue) {
		k := &link{now: time.Unix(1, 0), rate: 390e9, base: 8 * time.Microsecond, late: times(5), sways: []float64{0}, shared: true}
		cq := k.copyQueue()
		cq.gather, cq.fastest = &gather{free: []int{0, 1, 2, 3}}, fastestLink
		return k, cq
	}
	for _, bytes := range []uint64{1 << 20, 64 << 20, 1 << 30} {
		k, cq := fresh()
		before, _ := k.fetch(t, cq, bytes)
		small := k.gathered(t, cq, 100, 4<<10)
		k.rate /= 1000
		k.fetch(t, cq, bytes)
		k.gathered(t, cq, 100, 64<<10)
		k.rate *= 1000
		if after, _ := k.fetch(t, cq, bytes); after != before {
			t.Errorf("%d MiB took %v before a delay and %v after it", bytes>>20, before, after)
		}
		if after := k.gathered(t, cq, 100, 4<<10); after != small {
			t.Errorf("a gather took %v before a delay and %v after it", small, after)
		}
	}
}

// The waiter polls for what is short, sleeps briefly for what is long, and polls without a pause
// for a piece that a downstream reader waits for.
func TestHowLongTheWaiterPolls(t *testing.T) {
	now := time.Unix(1, 0)
	for name, c := range map[string]struct {
		left         time.Duration
		step, behind bool
		sleep, spin  time.Duration
	}{
		"just posted":                            {spin: spinFor},
		"for half of the time":                   {left: -spinFor / 2, spin: spinFor / 2},
		"for all of the time":                    {left: -spinFor, sleep: pollInterval},
		"for a long time":                        {left: -4 * time.Millisecond, sleep: 250 * time.Microsecond},
		"for a very long time":                   {left: -time.Second, sleep: maxPollInterval},
		"before it can be over":                  {left: time.Millisecond, sleep: time.Millisecond},
		"just before it can be over":             {left: minSleep / 2, spin: spinFor + minSleep/2},
		"another one behind it":                  {behind: true, sleep: pollInterval},
		"a downstream reader waits":              {left: time.Millisecond, step: true, behind: true, spin: spinFor + time.Millisecond},
		"a downstream reader has waited in vain": {left: -spinFor, step: true, sleep: pollInterval},
	} {
		p := &post{pieces: []piece{{step: c.step}}, least: now.Add(c.left)}
		if sleep, spin := p.waitTimes(now, c.behind); sleep != c.sleep || spin != c.spin {
			t.Errorf("%s: sleeps %v and polls %v, want %v and %v", name, sleep, spin, c.sleep, c.spin)
		}
	}
}

// gathered is fetch for the given number of small objects, submitted as they are cut.
func (k *link) gathered(t *testing.T, cq *copyQueue, count int, bytes uint64) (took time.Duration) {
	t.Helper()
	k.now = k.now.Add(20 * time.Microsecond)
	began := k.now
	g := newGroup()
	for first, enough := 0, uint64(firstBytes); first < count; enough = min(2*enough, laterBytes) {
		var c cutting
		c.open = piece{group: g, object: first}
		for ; first < count && c.open.bytes < enough; first++ {
			k.now = k.now.Add(30 * time.Nanosecond)
			c.small(uint64(2*first)*bytes, uint64(2*first)*bytes, bytes, chunkBytes)
			c.open.count++
			c.open.bytes += bytes
		}
		c.close()
		cq.add(c.pieces)
	}
	for {
		ended, err := cq.wait(t.Context(), g, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if len(ended) == 0 {
			return k.now.Sub(began)
		}
	}
}

// A batch of small objects ends when its gathers do.
func TestGathersEndWhenTheyAreOver(t *testing.T) {
	const objects, bytes = 1000, 64 << 10
	for _, rate := range []float64{340e9, 150e9, 25e9} {
		k := &link{now: time.Unix(1, 0), rate: rate, base: 8 * time.Microsecond, turn: 2 * time.Microsecond, late: times(5), sways: []float64{0}, shared: true}
		cq := k.copyQueue()
		cq.gather, cq.fastest = &gather{free: []int{0, 1, 2, 3}}, fastestLink
		bare := k.base + durationOf(objects*bytes, rate)
		if took := k.gathered(t, cq, objects, bytes); took > bare+bare/10+10*time.Microsecond {
			t.Errorf("%.0f GB/s: it took %v, the copies alone %v", rate/1e9, took, bare)
		}
	}
}

// The goroutine that carries out a fetch is notified, before it waits, of the expected duration,
// and again if it takes longer. It is not notified if there is nothing to wait for.
func TestWaitsAreToldBeforehand(t *testing.T) {
	k := &link{now: time.Unix(1, 0), rate: 390e9, base: 8 * time.Microsecond, turn: 2 * time.Microsecond, late: []time.Duration{5 * time.Microsecond}, sways: []float64{0}}
	cq := k.copyQueue()
	wait := func(g *group) (told []time.Duration) {
		t.Helper()
		g.waits = func(left time.Duration) {
			if !cq.mu.TryLock() {
				t.Fatal("it is told under the queue's lock")
			}
			cq.mu.Unlock()
			told = append(told, left)
		}
		for {
			ended, err := cq.wait(t.Context(), g, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if len(ended) == 0 {
				return told
			}
		}
	}
	post := func(bytes uint64) *group {
		var c cutting
		g := newGroup()
		c.large(0, 0, bytes, chunkBytes, g, 0)
		cq.add(c.pieces)
		return g
	}
	if told := wait(post(4 << 20)); len(told) != 1 || told[0] > 30*time.Microsecond {
		t.Errorf("of a short copy it was told %v", told)
	}
	if copied, told := durationOf(64<<20, k.rate), wait(post(64<<20)); told[0] < copied/2 || told[0] > 2*copied {
		t.Errorf("of a copy of %v it was told %v", copied, told)
	}
	k.rate /= 100
	if told := wait(post(4 << 20)); len(told) != 2 || told[1] != transfer.Long {
		t.Errorf("of a copy that took much longer than it should it was told %v", told)
	}
	if told := wait(newGroup()); len(told) != 0 {
		t.Errorf("of nothing it was told %v", told)
	}
	if told := wait(post(5 * chunkBytes)); len(told) == 0 || told[0] != transfer.Long {
		t.Errorf("of what cannot be posted at once it was told %v", told)
	}
}
