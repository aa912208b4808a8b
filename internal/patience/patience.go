// Package patience is a Machine: for how long to look for what is likely to come soon,
// before sleeping until one is woken. To be woken takes tens of microseconds on a machine
// with many processors, and hundreds on a virtual one whose processors have gone idle;
// to look takes a processor.
package patience

import "time"

// Patience grows to its most where waits are short, and shrinks where they are not: a loop
// whose waits are long loses next to nothing to it. The zero value has none.
type Patience struct {
	most, now time.Duration
}

// least is the part of the most that is always left, or it could not be found out that
// waits have become short.
const least = 16

// New returns one of so much at most.
func New(most time.Duration) Patience { return Patience{most: most, now: most} }

// Now is for how long to look.
func (p *Patience) Now() time.Duration { return p.now }

// Waited says how long a wait was, looking and sleeping.
func (p *Patience) Waited(d time.Duration) {
	if d <= p.most {
		p.now = p.most
	} else {
		p.now = max(p.now/4, p.most/least)
	}
}
