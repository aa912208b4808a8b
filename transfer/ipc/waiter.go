package ipc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/transfer"
)

// The waiter sleeps once, then spins for up to spinFor. The sleep ends before the predicted end of
// the post: by the typical lateness of sleeps (alarm) plus spinAhead. If less than shortest would
// be slept, it spins only. If another large post keeps the link busy, noticing the end up to slack
// late is soon enough. One wait takes no longer than longest.
const (
	spinFor   = 200 * time.Microsecond
	spinAhead = 8 * time.Microsecond
	slack     = 60 * time.Microsecond
	longest   = 500 * time.Microsecond
	// shortest is the minimum sleep; below it the waiter spins only.
	shortest = 20 * time.Microsecond
)

// alarm is a lane's model of its sleeps: the mean of how late they end, and the mean deviation.
type alarm struct{ late, spread time.Duration }

// assumedAlarm fits a virtual machine whose processor has to be woken by the host.
var assumedAlarm = alarm{late: 30 * time.Microsecond, spread: 5 * time.Microsecond}

// learn updates the model with the lateness of one sleep. A very late end was caused by another
// program and says nothing about the next sleep, so the lateness is cut off at 100 µs.
func (a *alarm) learn(late time.Duration) {
	const most = 100 * time.Microsecond
	off := min(late, most) - a.late
	a.late += off / 8
	a.spread += (max(off, -off) - a.spread) / 8
}

// lead returns how long before an expected end a sleep should finish.
func (a *alarm) lead() time.Duration { return a.late + 2*a.spread + spinAhead }

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
		// A query takes a microsecond: skip it for posts that were submitted just now.
		if now := l.now(); !fresh || l.due(now) {
			l.poll(now)
		}
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
		left = l.left()
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

// left returns the time, more than 0, until all posts should be over; transfer.Long if some pieces
// are not posted. REQUIRES: mu.
func (l *lane) left() time.Duration {
	left, now := time.Nanosecond, l.now()
	for kind := range l.queues {
		q := &l.queues[kind]
		if q.len() > 0 {
			return transfer.Long
		}
		if n := len(q.posted); n > 0 {
			left = max(left, q.posted[n-1].ends.Sub(now))
		}
	}
	return left
}

// due reports whether a post should be over by now or a piece could be posted. REQUIRES: mu.
func (l *lane) due(now time.Time) bool {
	for kind := range l.queues {
		q := &l.queues[kind]
		if len(q.posted) > 0 && !q.posted[0].ends.After(now) || len(q.posted) < window && q.len() > 0 {
			return true
		}
	}
	return false
}

// pause waits until the next query is worthwhile: until the earliest post is expected to end.
// REQUIRES: mu, which it releases while it waits.
func (l *lane) pause() {
	var next *queue
	for kind := range l.queues {
		q := &l.queues[kind]
		if len(q.posted) > 0 && (next == nil || q.posted[0].ends.Before(next.posted[0].ends)) {
			next = q
		}
	}
	// A lane with unposted large pieces and room in the window waits for its egress token, and
	// polls for it every turnPoll.
	waits := l.queues[large].len() > 0 && len(l.queues[large].posted) < window
	if next == nil || next.posted[0].unsure {
		if waits || next != nil {
			l.mu.Unlock()
			nap(turnPoll)
			l.mu.Lock()
		}
		return
	}
	// behind: a second large post keeps the link busy after this one, and the next lane of the
	// device may enter only after this one has ended. So noticing the end a little late costs
	// nothing.
	post, behind := next.posted[0], next == &l.queues[large] && len(next.posted) == window && !l.queuesSmall()
	behind = behind && !post.pieces[0].step
	left := post.ends.Sub(l.now())
	sleep, spin := max(left-l.alarm.lead()-l.rates.sooner(post), 0), spinFor
	switch {
	case behind:
		sleep, spin = max(left, 0)+slack, 0
	case left < -spinFor:
		sleep, spin = longest, 0 // late for a reason that is not in the model
	}
	if sleep > longest {
		sleep, spin = longest, 0 // small frames that others post meanwhile must not wait longer
	}
	if spin > 0 && (sleep < shortest || post.pieces[0].step) {
		sleep = 0
	}
	if waits {
		sleep, spin = min(sleep, turnPoll), min(spin, turnPoll)
	}
	l.mu.Unlock()
	w, err := post.event.Await(sleep, spin)
	l.mu.Lock()
	if sleep > 0 {
		l.alarm.learn(w.Late)
	}
	// NB: only the driving goroutine polls, so the post still exists. The next poll sees an error
	// of Await, too.
	switch {
	case err != nil:
	case w.Done:
		post.done, post.loose = true, w.Overslept
	default:
		post.asked = l.now()
	}
}

func (l *lane) queuesSmall() bool {
	return l.queues[small].len()+len(l.queues[small].posted) > 0
}
