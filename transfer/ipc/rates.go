package ipc

import "time"

// rates is a lane's model of its link. A post by the copy engine takes engineBase plus the larger
// of engineCopy for each further copy and its bytes divided by engineRate. A post by the gather
// kernel takes gatherBase plus its bytes divided by gatherRate.
type rates struct {
	engineBase, engineCopy, gatherBase time.Duration
	// In bytes per second.
	engineRate, gatherRate float64
	// early is the relative correction that hurry made last. 0 if an exact measurement came since.
	early float64
}

// assumed holds the initial figures, measured on H200s over NVLink. Measurements replace each of
// them.
var assumed = rates{
	engineBase: 8 * time.Microsecond, engineCopy: 3300 * time.Nanosecond, gatherBase: 14 * time.Microsecond,
	engineRate: 350e9, gatherRate: 300e9,
}

// assumedOfHost holds the initial figures for host memory that is not registered with the driver.
var assumedOfHost = rates{engineBase: 20 * time.Microsecond, engineCopy: 10 * time.Microsecond, engineRate: 8e9, gatherRate: 1}

func over(bytes uint64, rate float64) time.Duration {
	return time.Duration(float64(bytes) / rate * float64(time.Second))
}

func (r *rates) engine(copies int, bytes uint64) time.Duration {
	return r.engineBase + max(time.Duration(copies-1)*r.engineCopy, over(bytes, r.engineRate))
}

func (r *rates) gathered(bytes uint64) time.Duration { return r.gatherBase + over(bytes, r.gatherRate) }

// gathers reports whether the gather kernel is faster than the copy engine.
func (r *rates) gathers(copies int, bytes uint64) bool {
	return copies > 1 && r.gathered(bytes) < r.engine(copies, bytes)
}

// predict returns how long a post should take once it has the link for itself.
func (r *rates) predict(p *post) time.Duration {
	if p.slot >= 0 {
		return p.base + over(p.bytes, r.gatherRate)
	}
	return p.base + max(time.Duration(p.copies-1)*r.engineCopy, over(p.bytes, r.engineRate))
}

// sooner returns by how much a post may end before its predicted end. The gather rate is uncertain:
// it depends on the rows, and two concurrent gathers share the link. If we slept for the predicted
// time we would always find the copy done and could never learn that it was faster. So wake early,
// using the copy-engine rate as an upper bound: no gather is faster than the copy engine.
func (r *rates) sooner(p *post) time.Duration {
	if p.slot < 0 || r.engineRate <= r.gatherRate {
		return 0
	}
	return over(p.bytes, r.gatherRate) - over(p.bytes, r.engineRate)
}

// base returns the part of a post's time that does not depend on its bytes. It is an eighth if the
// post is queued behind another one.
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

// learn updates the model with a post that ended now, or that was found to have ended some time ago
// (loose). It updates only the figure that dominates the post's time.
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
	// A long time may only mean that the end was noticed late.
	weight := gain
	if took > 2*predicted {
		weight = doubt
	}
	rate := func(known *float64) {
		if took <= p.base {
			return
		}
		// Overestimating a rate makes us poll too early, which costs less than oversleeping. So
		// faster measurements get twice the weight.
		seen, weight := float64(bytes)/(took-p.base).Seconds(), weight
		if seen > *known {
			weight *= 2
		}
		*known += weight * (seen - *known)
	}
	// A stall of some milliseconds says nothing about the next post. If the model believed it, the
	// waiter would sleep through the next post. So the growth is limited.
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

// hurry corrects the model after an oversleep: the copy had finished before our timed sleep ended,
// so its true duration is unknown but shorter than predicted. With the same prediction the next
// sleep would hide the truth again. hurry therefore shrinks the dominant term (base, per-copy time
// or the time for the bytes) by 2 %, doubling up to 32 % on consecutive oversleeps. early is false
// if the post was noticed only after its predicted time; that says nothing.
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
	// leastSpan is the lower bound of learned times. mostOff is the largest factor by which one
	// measurement may exceed the known time; more is cut off.
	leastSpan = 500 * time.Nanosecond
	mostOff   = 4
	// hurry blames the base if baseShare times the base is at least the rest of the time. A correct
	// base is a tenth of any post that is long enough to sleep for.
	baseShare = 4
	// leastHurry and mostHurry bound the relative correction of hurry.
	leastHurry = 0.02
	mostHurry  = 0.32
	// A post of at least rateBytes measures a rate. A post of at most latencyBytes measures the
	// base.
	rateBytes    = 4 << 20
	latencyBytes = 256 << 10
	// gain is the weight of one measurement, doubt the weight of one that may be too long.
	gain  = 0.25
	doubt = 0.05
)
