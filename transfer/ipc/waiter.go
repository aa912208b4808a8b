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
	// napFor is the length of a sleep between polls, or 1/napShare of the time that was waited, but
	// at most longest. On average the end of a copy is noticed half a sleep late. Small frames that
	// other fetches post meanwhile wait for the end of the sleep.
	napFor   = 50 * time.Microsecond
	napShare = 16
	longest  = 500 * time.Microsecond
	// leastNap is the shortest sleep: a sleep saves little of a shorter time, and may end late. So
	// the end of 16 MiB over NVLink, after 50 µs, is polled for.
	leastNap = 40 * time.Microsecond
)

// wait returns the objects of a group that have ended: at least one, or none if the group has no
// open pieces. The list is valid until the next call. After an error of the context, or after a
// time of stall without any progress, wait drops the pieces that are not posted, waits for the
// posted ones and returns that error. At any time one of the waiting goroutines drives the lane for
// all of them.
func (l *lane) wait(ctx context.Context, g *group, stall time.Duration) (ended []span, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for fresh := true; len(g.ended) == 0 && g.open > 0; {
		if err == nil {
			if err = l.givenUp(ctx, g, stall); err != nil {
				l.mu.Unlock()
				l.cancel(g, err)
				l.mu.Lock()
				fresh = false
				continue
			}
		}
		if l.driving {
			if l.tell(g, false) {
				continue
			}
			l.waiting = append(l.waiting, g)
			l.mu.Unlock()
			await(ctx, g, err == nil, stall)
			l.mu.Lock()
			l.waiting = slices.DeleteFunc(l.waiting, func(w *group) bool { return w == g })
			fresh = false
			continue
		}
		l.driving = true
		l.poll(l.now())
		if len(g.ended) == 0 && g.open > 0 {
			l.tell(g, fresh)
			l.pause()
		}
		l.driving, fresh = false, false
	}
	ended, g.ended, g.seen = g.ended, g.seen[:0], g.ended
	select {
	case <-g.wake:
	default:
	}
	if !l.driving && l.busy() && len(l.waiting) > 0 {
		l.waiting[0].notify() // it drives the lane from now on
	}
	return ended, err
}

// look is wait without blocking, for a group with a single object to which pieces are added over
// time. It reports whether pieces are open, when the last progress was, and the object's first
// error. The caller must call look again and again, since that drives the lane.
func (l *lane) look(g *group) (open bool, moved time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.driving {
		l.poll(l.now())
	}
	g.ended = g.ended[:0]
	return g.open > 0, l.progress(g), g.part(0).err
}

// progress returns the time at which a piece of a group last ended, or any post before it on the
// lane: all fetches from one peer share the lane. REQUIRES: mu.
func (l *lane) progress(g *group) time.Time {
	if l.moved.After(g.moved) {
		return l.moved
	}
	return g.moved
}

// givenUp returns the error because of which a group should stop waiting, or nil. REQUIRES: mu.
func (l *lane) givenUp(ctx context.Context, g *group, stall time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if quiet := l.now().Sub(l.progress(g)); quiet > stall {
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
func (l *lane) busy() bool {
	return len(l.queues[small].posted) > 0 || len(l.queues[large].posted) > 0 || l.queues[large].len() > 0
}

// tell calls the group's waits function with the expected duration of the wait, unless it already
// reported one at least as long. The duration is known only if all pieces were posted just now
// (fresh), otherwise it is transfer.Long. tell reports whether it released mu for the call.
// REQUIRES: mu.
func (l *lane) tell(g *group, fresh bool) bool {
	if g.waits == nil {
		return false
	}
	left := transfer.Long
	if fresh {
		left = l.expected()
	}
	if left <= g.told {
		return false
	}
	g.told = left
	l.mu.Unlock()
	g.waits(left)
	l.mu.Lock()
	return true
}

// expected returns about how long the posted bytes take over NVLink; transfer.Long if some pieces
// are not posted. Over a slower link tell corrects it. REQUIRES: mu.
func (l *lane) expected() time.Duration {
	const (
		start = 10 * time.Microsecond
		rate  = 300e9
	)
	bytes := uint64(0)
	for kind := range l.queues {
		q := &l.queues[kind]
		if q.len() > 0 {
			return transfer.Long
		}
		for _, p := range q.posted {
			bytes += p.bytes
		}
	}
	return start + over(bytes, rate)
}

// pause waits until the next query is worthwhile. It waits for a post of small frames if there is
// one, as these take less time. REQUIRES: mu, which it releases while it waits.
func (l *lane) pause() {
	few, many := l.queues[small].posted, l.queues[large].posted
	// A lane with unposted large pieces and room in the window waits for its egress token, and
	// polls for it every turnPoll.
	waits := l.queues[large].len() > 0 && len(many) < window
	var post *post
	switch {
	case len(few) > 0:
		post = few[0]
	case len(many) > 0:
		post = many[0]
	}
	if post == nil || post.unsure {
		if waits || post != nil {
			l.mu.Unlock()
			l.nap(turnPoll)
			l.mu.Lock()
		}
		return
	}
	// behind: another large post keeps the link busy after this one, and the next lane of the
	// device may enter only after this one has ended. So noticing the end a little late costs
	// nothing.
	behind := len(few) == 0 && len(many) == window
	sleep, spin := post.patience(l.now(), behind)
	if waits || len(few) > 0 && len(many) > 0 {
		sleep, spin = min(sleep, turnPoll), min(spin, turnPoll) // the other kind may end first
	}
	l.mu.Unlock()
	if sleep > 0 {
		l.nap(sleep)
	}
	done, err := post.event.Await(spin)
	l.mu.Lock()
	// NB: only the driving goroutine polls, so the post still exists. The next poll sees an error
	// of Await, too.
	post.done = done && err == nil
}

// patience returns for how long to sleep before the next query of a post, and for how long to poll
// after the sleep.
func (p *post) patience(now time.Time, behind bool) (sleep, spin time.Duration) {
	left := p.least.Sub(now)
	switch {
	case left <= -spinFor:
		return min(max(napFor, -left/napShare), longest), 0
	case p.pieces[0].step: // a follower waits for the bytes
		return 0, left + spinFor
	case left >= leastNap:
		return left, 0
	case behind:
		return napFor, 0
	}
	return 0, left + spinFor
}

// nap sleeps by a system call: the timers of the Go runtime are too coarse.
func nap(d time.Duration) {
	const slack = 1000 // ns of timer slack for this thread; the kernel's default is 50 µs
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0)
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // returning early does no harm
}
