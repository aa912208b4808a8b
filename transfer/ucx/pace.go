package ucx

import "time"

// spinAhead is how long before the predicted end of a read the progress thread begins to poll.
const spinAhead = 60 * time.Microsecond

// pace predicts when reads from a peer end; owned by the progress thread.
type pace struct {
	// rate is in bytes per second.
	rate float64
	// free is the predicted time at which the link becomes free.
	free time.Time
	// last is when the last read ended.
	last time.Time
}

const (
	// assumedRate is the initial rate, that of NVLink on an H200. readBase is the fixed time of a
	// read.
	assumedRate = 380e9
	readBase    = 9 * time.Microsecond
)

// posted returns the predicted end of a read that is posted now.
func (p *pace) posted(r *read, now time.Time) time.Time {
	if p.rate == 0 {
		p.rate = assumedRate
	}
	if p.free.Before(now) {
		p.free = now.Add(readBase)
	}
	r.began = p.free
	p.free = p.free.Add(time.Duration(float64(r.length) / p.rate * float64(time.Second)))
	return p.free
}

// ended corrects the rate after large reads.
func (p *pace) ended(r *read, now time.Time) {
	if began := r.began; r.length >= chunkBytes/4 && !began.IsZero() {
		if began.Before(p.last) {
			began = p.last
		}
		if took := now.Sub(began); took > 0 {
			p.rate += 0.1 * (float64(r.length)/took.Seconds() - p.rate)
		}
	}
	p.last = now
}
