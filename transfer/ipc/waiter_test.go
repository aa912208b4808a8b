package ipc

import (
	"testing"
	"time"

	"github.com/millrace/millrace/memory/cuda"
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

func (d *done) Await(nap, spin time.Duration) (w cuda.Waited, err error) {
	if nap > 0 {
		w.Late = d.late[d.naps%len(d.late)]
		d.naps++
		d.now = d.now.Add(nap + w.Late)
		d.slept += nap + w.Late
	}
	if !d.at.After(d.now) {
		w.Done, w.Overslept = true, nap > 0
		return w, nil
	}
	if left := d.at.Sub(d.now); left <= spin {
		d.now, w.Done = d.at.Add(time.Microsecond), true
	} else {
		d.now = d.now.Add(spin)
	}
	return w, nil
}

func (d *done) submit(p *post) {
	d.now = d.now.Add(3 * time.Microsecond)
	begins := d.now.Add(d.base)
	if d.free.After(begins) {
		begins = d.free
	}
	sway := d.sways[d.posts%len(d.sways)]
	d.posts++
	d.at = begins.Add(d.turn + over(p.bytes, d.rate*(1+sway)))
	d.free = d.at
	if d.shared && d.last != nil && d.last != d && d.last.at.After(d.now) {
		d.last.at = d.at.Add(-time.Microsecond)
	}
	d.last = d
}

// lane returns a lane over the link.
func (k *link) lane() *lane {
	var places [2][]place
	for kind := range places {
		for range window {
			places[kind] = append(places[kind], place{event: &done{link: k}})
		}
	}
	l := newLane(places)
	l.now = func() time.Time { return k.now }
	l.submit = func(p *post) error {
		p.event.(*done).submit(p)
		return nil
	}
	return l
}

// fetch copies an object as a fetch does. It returns the time that this took, and the part of it
// spent awake.
func (k *link) fetch(t *testing.T, l *lane, bytes uint64) (took, awake time.Duration) {
	t.Helper()
	k.now = k.now.Add(20 * time.Microsecond)
	began, slept := k.now, k.slept
	var c cutting
	g := newGroup()
	c.large(0, 0, bytes, chunkBytes, g, 0)
	l.add(c.pieces)
	for {
		ended, err := l.wait(t.Context(), g, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if len(ended) == 0 {
			took = k.now.Sub(began)
			return took, took - (k.slept - slept)
		}
	}
}

// For any initial error of the rate, and after any earlier fetches, a lane learns to end its
// fetches when the copies end, and sleeps in between.
func TestFetchesEndWhenTheirCopiesDo(t *testing.T) {
	us := func(list ...int) (out []time.Duration) {
		for _, n := range list {
			out = append(out, time.Duration(n)*time.Microsecond)
		}
		return out
	}
	sways := map[string][]float64{"sharp": {0}, "dull": {.01, -.03, .02, 0, -.02, .03, -.01}}
	for name, late := range map[string][]time.Duration{"sharp": us(5, 5, 6, 5, 5, 5, 9), "dull": us(30, 35, 40, 30, 50, 32)} {
		for _, rate := range []float64{390e9, 190e9, 120e9} {
			for _, known := range []float64{.4, 1, 2.5} {
				k := &link{now: time.Unix(1, 0), rate: rate, base: 8 * time.Microsecond, turn: 2 * time.Microsecond, late: late, sways: sways[name]}
				l := k.lane()
				l.rates.engineRate = known * rate
				for _, bytes := range []uint64{64 << 20, 256 << 20, 1 << 30, 256 << 20, 64 << 20, 100 << 20} {
					var took, awake time.Duration
					const warm, counted = 15, 20
					for i := range warm + counted {
						one, spun := k.fetch(t, l, bytes)
						if i >= warm {
							took, awake = took+one, awake+spun
						}
					}
					took, awake = took/counted, awake/counted
					bare := k.base + over(bytes, rate)
					if took > bare+bare/20+10*time.Microsecond || awake > max(took/4, 45*time.Microsecond) {
						t.Errorf("%s sleeps, %.0f GB/s, %.1f of it assumed: %d MiB took %v, the copy alone %v; awake for %v; now %.0f GB/s",
							name, rate/1e9, known, bytes>>20, took, bare, awake, l.rates.engineRate/1e9)
					}
				}
			}
		}
	}
}

// gathered is fetch for the given number of small objects, submitted as they are cut.
func (k *link) gathered(t *testing.T, l *lane, count int, bytes uint64) (took time.Duration) {
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
		l.add(c.pieces)
	}
	for {
		ended, err := l.wait(t.Context(), g, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if len(ended) == 0 {
			return k.now.Sub(began)
		}
	}
}

// With any initial gather rate, a waiter must not sleep until the predicted end, as it would then
// find the wrong rate confirmed.
func TestGathersEndWhenTheyAreOver(t *testing.T) {
	const truth, objects, bytes = 340e9, 1000, 64 << 10
	for _, known := range []float64{100e9, 150e9, 190e9, 300e9, 600e9} {
		k := &link{now: time.Unix(1, 0), rate: truth, base: 8 * time.Microsecond, turn: 2 * time.Microsecond, late: []time.Duration{5 * time.Microsecond}, sways: []float64{0}, shared: true}
		l := k.lane()
		l.gather = &gather{free: []int{0, 1, 2, 3}}
		l.rates.gatherRate = known
		bare := k.base + over(objects*bytes, truth)
		for n := range 20 {
			if took := k.gathered(t, l, objects, bytes); took > bare+bare/10+10*time.Microsecond {
				t.Errorf("%.0f GB/s assumed: fetch %d took %v, the copies alone %v; now %.0f GB/s", known/1e9, n, took, bare, l.rates.gatherRate/1e9)
			}
		}
	}
}

// The goroutine that carries out a fetch is notified, before it waits, of the expected duration,
// and again if it takes longer. It is not notified if there is nothing to wait for.
func TestWaitsAreToldBeforehand(t *testing.T) {
	k := &link{now: time.Unix(1, 0), rate: 390e9, base: 8 * time.Microsecond, turn: 2 * time.Microsecond, late: []time.Duration{5 * time.Microsecond}, sways: []float64{0}}
	l := k.lane()
	for range 20 {
		k.fetch(t, l, 64<<20)
	}
	wait := func(g *group) (told []time.Duration) {
		t.Helper()
		g.waits = func(left time.Duration) {
			if !l.mu.TryLock() {
				t.Fatal("it is told under the lane's lock")
			}
			l.mu.Unlock()
			told = append(told, left)
		}
		for {
			ended, err := l.wait(t.Context(), g, time.Minute)
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
		l.add(c.pieces)
		return g
	}
	copied := over(64<<20, k.rate)
	if told := wait(post(64 << 20)); len(told) != 1 || told[0] < copied-copied/10 || told[0] > copied+copied/5 {
		t.Errorf("of a copy of %v it was told %v", copied, told)
	}
	k.rate /= 4
	if told := wait(post(64 << 20)); len(told) != 2 || told[1] != transfer.Long {
		t.Errorf("of a copy that took four times as long as it should it was told %v", told)
	}
	if told := wait(newGroup()); len(told) != 0 {
		t.Errorf("of nothing it was told %v", told)
	}
	if told := wait(post(5 * chunkBytes)); len(told) == 0 || told[0] != transfer.Long {
		t.Errorf("of what cannot be posted at once it was told %v", told)
	}
}
