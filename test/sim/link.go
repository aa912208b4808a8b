package sim

import "time"

// link is one stream between two parties, in order both ways until it breaks;
// then whatever is in flight is lost, and so is what is sent before the break is
// noticed.
type link struct {
	w *world
	// number tells streams apart.
	number uint64
	broken bool
	// upAt and downAt are when the last message of each direction arrives.
	upAt, downAt time.Time
	// upBroken and downBroken tell the ends: above is who the up direction leads
	// to.
	upBroken, downBroken func()
}

func (w *world) newLink() *link {
	w.server.lastLink++
	return &link{w: w, number: w.server.lastLink, upAt: w.now, downAt: w.now}
}

// send delivers a message once, or twice, or breaks the stream instead. again,
// if there is one, is how a late duplicate is delivered.
func (l *link) send(up bool, deliver, again func()) {
	w := l.w
	w.counts.messages++
	if l.broken {
		return
	}
	if w.trouble(w.plan.drop) {
		l.breaks()
		return
	}
	delay := w.between(50*time.Microsecond, 2*time.Millisecond)
	if w.trouble(w.plan.slow) {
		delay = w.between(2*time.Millisecond, time.Second)
	}
	last := &l.downAt
	if up {
		last = &l.upAt
	}
	arrival := w.now.Add(delay)
	if arrival.Before(*last) {
		arrival = *last
	}
	*last = arrival
	w.at(arrival, func() {
		if !l.broken {
			deliver()
		}
	})
	if again != nil && w.trouble(w.plan.duplicate) {
		w.counts.duplicates++
		late := w.between(0, 50*time.Millisecond)
		if w.chance(0.3) {
			late = w.between(0, 8*time.Second)
		}
		w.at(arrival.Add(late), again)
	}
}

// breaks cuts the stream; both ends notice sooner or later.
func (l *link) breaks() {
	if l.broken {
		return
	}
	w := l.w
	l.broken = true
	w.counts.broken++
	w.log("stream %d breaks", l.number)
	notice := func(end func()) {
		if end == nil {
			return
		}
		d := w.between(0, 20*time.Millisecond)
		if w.chance(0.2) {
			d = w.between(0, 4*time.Second)
		}
		w.after(d, end)
	}
	notice(l.upBroken)
	notice(l.downBroken)
}
