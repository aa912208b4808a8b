package ipc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/transfer"
)

// The waiter sleeps as long as a post cannot be over, then polls for spinFor, and then sleeps
// between polls. Polling notices an end within a microsecond, but occupies a processor. Each sleep
// takes 5 to 20 µs of one, and ends 5 to 30 µs late.
const (
	// fastestLink is the rate of NVLink 4 into one GPU, in bytes per second. No copy is faster: 64
	// MiB take at least 149 µs.
	fastestLink = 450e9
	// spinFor is enough for all short fetches: 1,000 objects of 64 KiB take 200 µs over NVLink.
	spinFor = 200 * time.Microsecond
	// pollInterval is the length of a sleep between polls, or 1/pollShare of the time that was
	// waited, but at most maxPollInterval. On average the end of a copy is noticed half a sleep
	// late. Small frames that other fetches post meanwhile wait for the end of the sleep.
	pollInterval    = 50 * time.Microsecond
	pollShare       = 16
	maxPollInterval = 500 * time.Microsecond
	// minSleep is the shortest sleep: a sleep saves little of a shorter time, and may end late. So
	// the end of 16 MiB over NVLink, after 50 µs, is polled for.
	minSleep = 40 * time.Microsecond
)

// wait returns the objects of a group that have ended: at least one, or none if the group has no
// open pieces. The list is valid until the next call. After an error of the context, or after a
// time of stall without any progress, wait drops the pieces that are not posted, waits for the
// posted ones and returns that error. At any time one of the waiting goroutines polls the queue for
// all of them.
func (c *copyQueue) wait(ctx context.Context, g *group, stall time.Duration) (ended []span, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for fresh := true; len(g.ended) == 0 && g.open > 0; {
		if err == nil {
			if err = c.givenUp(ctx, g, stall); err != nil {
				c.mu.Unlock()
				c.cancel(g, err)
				c.mu.Lock()
				fresh = false
				continue
			}
		}
		if c.polling {
			if c.reportWait(g, false) {
				continue
			}
			c.waiting = append(c.waiting, g)
			c.mu.Unlock()
			await(ctx, g, err == nil, stall)
			c.mu.Lock()
			c.waiting = slices.DeleteFunc(c.waiting, func(w *group) bool { return w == g })
			fresh = false
			continue
		}
		c.polling = true
		c.poll(c.now())
		if len(g.ended) == 0 && g.open > 0 {
			c.reportWait(g, fresh)
			c.pause()
		}
		c.polling, fresh = false, false
	}
	ended, g.ended, g.seen = g.ended, g.seen[:0], g.ended
	select {
	case <-g.wake:
	default:
	}
	if !c.polling && c.busy() && len(c.waiting) > 0 {
		c.waiting[0].notify() // it polls the queue from now on
	}
	return ended, err
}

// check is wait without blocking, for a group with a single object to which pieces are added over
// time. It reports whether pieces are open, when the last progress was, and the object's first
// error. The caller must call check again and again, since that polls the queue.
func (c *copyQueue) check(g *group) (open bool, moved time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.polling {
		c.poll(c.now())
	}
	g.ended = g.ended[:0]
	return g.open > 0, c.progress(g), g.part(0).err
}

// progress returns the time at which a piece of a group last ended, or any post before it on the
// queue: all fetches from one peer share it. REQUIRES: mu.
func (c *copyQueue) progress(g *group) time.Time {
	if c.moved.After(g.moved) {
		return c.moved
	}
	return g.moved
}

// givenUp returns the error because of which a group should stop waiting, or nil. REQUIRES: mu.
func (c *copyQueue) givenUp(ctx context.Context, g *group, stall time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if quiet := c.now().Sub(c.progress(g)); quiet > stall {
		return fmt.Errorf("%w: no copy ended for %v", transfer.ErrStalled, quiet.Round(time.Millisecond))
	}
	return nil
}

// await blocks until the group is notified. If impatient, it also returns when the context is done
// or stall has passed.
func await(ctx context.Context, g *group, impatient bool, stall time.Duration) {
	if !impatient {
		<-g.wake
		return
	}
	timer := time.NewTimer(stall)
	defer timer.Stop()
	select {
	case <-g.wake:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// busy reports whether posts are under way or large pieces wait to be posted. REQUIRES: mu.
func (c *copyQueue) busy() bool {
	return len(c.queues[small].posted) > 0 || len(c.queues[large].posted) > 0 || c.queues[large].len() > 0
}

// reportWait calls the group's waits function with the expected duration of the wait, unless it
// already reported one at least as long. The duration is known only if all pieces were posted just
// now (fresh), otherwise it is transfer.Long. reportWait reports whether it released mu for the
// call. REQUIRES: mu.
func (c *copyQueue) reportWait(g *group, fresh bool) bool {
	if g.waits == nil {
		return false
	}
	left := transfer.Long
	if fresh {
		left = c.expected()
	}
	if left <= g.reportedWait {
		return false
	}
	g.reportedWait = left
	c.mu.Unlock()
	g.waits(left)
	c.mu.Lock()
	return true
}

// expected returns about how long the posted bytes take over NVLink; transfer.Long if some pieces
// are not posted. Over a slower link reportWait corrects it. REQUIRES: mu.
func (c *copyQueue) expected() time.Duration {
	const (
		// start is about the time that a copy of few bytes takes, rate that of large ones in bytes
		// per second. An estimate is enough, since it only says how long nobody needs to look.
		start = 10 * time.Microsecond
		rate  = 300e9
	)
	bytes := uint64(0)
	for kind := range c.queues {
		q := &c.queues[kind]
		if q.len() > 0 {
			return transfer.Long
		}
		for _, p := range q.posted {
			bytes += p.bytes
		}
	}
	return start + durationOf(bytes, rate)
}

// pause waits until the next query is worthwhile. It waits for a post of small frames if there is
// one, as these take less time. REQUIRES: mu, which it releases while it waits.
func (c *copyQueue) pause() {
	smalls, larges := c.queues[small].posted, c.queues[large].posted
	// A copy queue with unposted large pieces and room in the window waits for its egress token,
	// and polls for it every tokenPoll.
	waits := c.queues[large].len() > 0 && len(larges) < window
	var post *post
	switch {
	case len(smalls) > 0:
		post = smalls[0]
	case len(larges) > 0:
		post = larges[0]
	}
	if post == nil || post.unsure {
		if waits || post != nil {
			c.mu.Unlock()
			c.sleep(tokenPoll)
			c.mu.Lock()
		}
		return
	}
	// behind: another large post keeps the link busy after this one, and the next copy queue of the
	// device may post only after this one has ended. So noticing the end a little late costs
	// nothing.
	behind := len(smalls) == 0 && len(larges) == window
	sleep, spin := post.waitTimes(c.now(), behind)
	if waits || len(smalls) > 0 && len(larges) > 0 {
		sleep, spin = min(sleep, tokenPoll), min(spin, tokenPoll) // the other kind may end first
	}
	c.mu.Unlock()
	if sleep > 0 {
		c.sleep(sleep)
	}
	done, err := post.event.Await(spin)
	c.mu.Lock()
	// NB: only the polling goroutine ends posts, so this one still exists. The next poll sees an
	// error of Await, too.
	post.done = done && err == nil
}

// waitTimes returns for how long to sleep before the next query of a post, and for how long to poll
// after the sleep.
func (p *post) waitTimes(now time.Time, behind bool) (sleep, spin time.Duration) {
	left := p.least.Sub(now)
	switch {
	case left <= -spinFor:
		return min(max(pollInterval, -left/pollShare), maxPollInterval), 0
	case p.pieces[0].step: // a downstream reader waits for the bytes
		return 0, left + spinFor
	case left >= minSleep:
		return left, 0
	case behind:
		return pollInterval, 0
	}
	return 0, left + spinFor
}

// preciseSleep sleeps by a system call: the timers of the Go runtime are too coarse.
func preciseSleep(d time.Duration) {
	const slack = 1000 // ns of timer slack for this thread; the kernel's default is 50 µs
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0)
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // returning early does no harm
}
