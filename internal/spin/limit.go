// Package spin is a Machine: an adaptive spin limit, the time for which a goroutine polls for
// an event before it blocks. Waking a blocked thread takes tens of microseconds on a machine with
// many processors, and hundreds on a virtual one whose processors have gone idle. Polling occupies
// a processor.
package spin

import "time"

// Limit is the spin limit of one loop: the maximum after a short wait, a quarter of the last
// value (but at least a sixteenth of the maximum) after a long one. So a loop with long waits
// spends next to nothing on polling. The zero value is a limit of 0.
type Limit struct {
	most, now time.Duration
}

// most/least is the lower bound of the limit. Without it a loop could never find out that its waits
// have become short.
const least = 16

// New returns a limit with the given maximum, which is also its first value.
func New(most time.Duration) Limit { return Limit{most: most, now: most} }

// Now returns the current limit.
func (p *Limit) Now() time.Duration { return p.now }

// Waited updates the limit with the duration of a wait, polling and blocking together.
func (p *Limit) Waited(d time.Duration) {
	if d <= p.most {
		p.now = p.most
	} else {
		p.now = max(p.now/4, p.most/least)
	}
}
