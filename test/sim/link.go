package sim

import "time"

// link is one stream between the scheduler and a worker or client. It keeps the order in both
// directions until it breaks. Then all messages in flight are lost, and so are those sent before
// the break is noticed.
type link struct {
	w *world
	// number is the id of the stream.
	number uint64
	broken bool
	// stream is the scheduler's end of a worker's link, once the worker has registered.
	stream *stream
	// upAt and downAt are the arrival times of the last message in each direction.
	upAt, downAt time.Time
	// upBroken and downBroken are called when the two ends notice a break: upBroken at the
	// scheduler, downBroken at the worker or client. nil: that end does not notice.
	upBroken, downBroken func()
}

func (w *world) newLink() *link {
	w.server.lastLink++
	return &link{w: w, number: w.server.lastLink, upAt: w.now, downAt: w.now}
}

// send delivers a message once or twice, or breaks the stream instead. again delivers a late
// duplicate; nil: no duplicates.
func (l *link) send(up bool, deliver, again func()) {
	w := l.w
	w.counts.messages++
	if l.broken {
		return
	}
	if w.fault(w.plan.drop) {
		l.cut()
		return
	}
	delay := w.between(50*time.Microsecond, 2*time.Millisecond)
	if w.fault(w.plan.slow) {
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
	if again != nil && w.fault(w.plan.duplicate) {
		w.counts.duplicates++
		late := w.between(0, 50*time.Millisecond)
		if w.chance(0.3) {
			late = w.between(0, 8*time.Second)
		}
		w.at(arrival.Add(late), again)
	}
}

// cut cuts the stream. Both ends notice after a delay.
func (l *link) cut() {
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
