package ipc

import "time"

// rates are what a lane knows of its link. A post by the copy engine takes
// engineBase, and then engineCopy for each copy or its bytes over engineRate,
// whatever is longer; one by the gather kernel gatherBase and its bytes over
// gatherRate.
type rates struct {
	engineBase, engineCopy, gatherBase time.Duration
	// In bytes a second.
	engineRate, gatherRate float64
}

// assumed is measured on H200s over NVLink; each figure is replaced by what is
// seen.
var assumed = rates{
	engineBase: 8 * time.Microsecond, engineCopy: 3300 * time.Nanosecond, gatherBase: 14 * time.Microsecond,
	engineRate: 350e9, gatherRate: 300e9,
}

// assumedOfHost is of memory that is not registered.
var assumedOfHost = rates{engineBase: 20 * time.Microsecond, engineCopy: 10 * time.Microsecond, engineRate: 8e9, gatherRate: 1}

func over(bytes uint64, rate float64) time.Duration {
	return time.Duration(float64(bytes) / rate * float64(time.Second))
}

func (r *rates) engine(copies int, bytes uint64) time.Duration {
	return r.engineBase + max(time.Duration(copies-1)*r.engineCopy, over(bytes, r.engineRate))
}

func (r *rates) gathered(bytes uint64) time.Duration { return r.gatherBase + over(bytes, r.gatherRate) }

// gathers says whether the gather kernel is the faster way.
func (r *rates) gathers(copies int, bytes uint64) bool {
	return copies > 1 && r.gathered(bytes) < r.engine(copies, bytes)
}

func (r *rates) predict(p *post) time.Duration {
	if p.slot >= 0 {
		return r.gathered(p.bytes)
	}
	return r.engine(len(p.pieces), p.bytes)
}

// learn takes a post in that ended now. Only such figures are learnt as dominate
// its time.
func (r *rates) learn(p *post, now time.Time) {
	took := now.Sub(p.began)
	if took <= 0 {
		return
	}
	// What took long was perhaps looked at late.
	weight := gain
	if took > 2*r.predict(p) {
		weight = doubt
	}
	rate := func(known *float64, base time.Duration) {
		if took > base {
			*known += weight * (float64(p.bytes)/(took-base).Seconds() - *known)
		}
	}
	span := func(known *time.Duration, seen time.Duration) {
		*known += time.Duration(weight * float64(max(seen, 500*time.Nanosecond)-*known))
	}
	switch {
	case p.slot >= 0 && p.bytes >= rateBytes:
		rate(&r.gatherRate, r.gatherBase)
	case p.slot >= 0:
		span(&r.gatherBase, took-over(p.bytes, r.gatherRate))
	case p.bytes/uint64(len(p.pieces)) >= rateBytes:
		rate(&r.engineRate, r.engineBase)
	case len(p.pieces) >= 8:
		span(&r.engineCopy, (took-r.engineBase)/time.Duration(len(p.pieces)))
	case len(p.pieces) == 1 && p.bytes <= latencyBytes:
		span(&r.engineBase, took)
	}
}

const (
	// rateBytes is from which size on a post tells a rate, latencyBytes up to which
	// it tells the base.
	rateBytes    = 4 << 20
	latencyBytes = 256 << 10
	// gain of one measurement, and of one that may say nothing.
	gain  = 0.25
	doubt = 0.05
)
