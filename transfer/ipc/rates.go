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
	// early is by how much a rate was last taken to be higher than it seemed, or a time to be
	// shorter, 0 if it was measured since.
	early float64
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

// predict says how long a post should take that has the link for itself.
func (r *rates) predict(p *post) time.Duration {
	if p.slot >= 0 {
		return p.base + over(p.bytes, r.gatherRate)
	}
	return p.base + max(time.Duration(p.copies-1)*r.engineCopy, over(p.bytes, r.engineRate))
}

// sooner is by how much a post may be over before it is predicted to be. Of gathers one rate
// is not known well: it differs with their rows, and two that are under way share the
// link. Who slept until a slow one should be over would be told that it was, whatever it was. None
// is faster than the copy engine, though.
func (r *rates) sooner(p *post) time.Duration {
	if p.slot < 0 || r.engineRate <= r.gatherRate {
		return 0
	}
	return over(p.bytes, r.gatherRate) - over(p.bytes, r.engineRate)
}

// base is what a post takes beside its bytes: little if it is queued behind another.
func (r *rates) base(p *post, queued bool) time.Duration {
	base := r.engineBase
	if p.slot >= 0 {
		base = r.gatherBase
	}
	if queued {
		base /= 8
	}
	return base
}

// learn takes a post in that ended now, or some time ago. Only such figures are learnt as
// dominate its time.
func (r *rates) learn(p *post, now time.Time) {
	took, predicted, bytes := now.Sub(p.began), r.predict(p), p.bytes
	if p.carried > 0 {
		rate := r.engineRate
		if p.slot >= 0 {
			rate = r.gatherRate
		}
		predicted, bytes = predicted+over(p.carried, rate), bytes+p.carried
	}
	if took <= 0 {
		return
	}
	if p.loose {
		r.hurry(p, took < predicted)
		return
	}
	r.early = 0
	// What took long was perhaps looked at late.
	weight := gain
	if took > 2*predicted {
		weight = doubt
	}
	rate := func(known *float64) {
		if took <= p.base {
			return
		}
		// Who expects too much asks too early, which costs less than to sleep too long.
		seen, weight := float64(bytes)/(took-p.base).Seconds(), weight
		if seen > *known {
			weight *= 2
		}
		*known += weight * (seen - *known)
	}
	// A stall of some milliseconds tells nothing of the next post, and who believed it would sleep
	// through that one.
	span := func(known *time.Duration, seen time.Duration) {
		*known += time.Duration(weight * float64(min(max(seen, leastSpan), mostOff**known)-*known))
	}
	switch {
	case p.slot >= 0 && p.bytes >= rateBytes:
		rate(&r.gatherRate)
	case p.slot >= 0 && !p.queued:
		span(&r.gatherBase, took-over(p.bytes, r.gatherRate))
	case p.bytes/uint64(p.copies) >= rateBytes:
		rate(&r.engineRate)
	case p.carried > 0 || p.queued:
	case p.copies >= 8:
		span(&r.engineCopy, (took-r.engineBase)/time.Duration(p.copies))
	case p.copies == 1 && p.bytes <= latencyBytes:
		span(&r.engineBase, took)
	}
}

// hurry takes in that a post was over when somebody woke who had slept until shortly before
// it should be. How early it was nobody knows, and nobody finds out who goes on sleeping as
// long: so what much of its time was thought to come from is taken to be less, by more each time
// that it happens again.
func (r *rates) hurry(p *post, early bool) {
	if !early {
		return
	}
	r.early = min(max(2*r.early, leastHurry), mostHurry)
	less := func(known *time.Duration) {
		*known = max(time.Duration(float64(*known)/(1+r.early)), leastSpan)
	}
	rate, base, each := &r.engineRate, &r.engineBase, time.Duration(p.copies-1)*r.engineCopy
	if p.slot >= 0 {
		rate, base, each = &r.gatherRate, &r.gatherBase, 0
	}
	switch bytes := over(p.bytes, *rate); {
	case baseShare*p.base >= max(bytes, each):
		less(base)
	case each > bytes:
		less(&r.engineCopy)
	default:
		*rate *= 1 + r.early
	}
}

const (
	// leastSpan bounds what is learnt of times, and mostOff by how much one is believed to be longer
	// than was known.
	leastSpan = 500 * time.Nanosecond
	mostOff   = 4
	// baseShare is which part of the rest a base has that is thought to be what is wrong: a sound one is
	// a tenth of what is long enough to sleep for.
	baseShare = 4
	// leastHurry and mostHurry bound by how much a rate is taken to be higher, or a time shorter.
	leastHurry = 0.02
	mostHurry  = 0.32
	// rateBytes is from which size on a post tells a rate, latencyBytes up to which
	// it tells the base.
	rateBytes    = 4 << 20
	latencyBytes = 256 << 10
	// gain of one measurement, and of one that may say nothing.
	gain  = 0.25
	doubt = 0.05
)
