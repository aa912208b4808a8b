package ipc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/transfer"
)

// The waiter: what is over within spinFor is waited for by asking. For all else it sleeps
// once, until as long before the time that the rates predict as its sleeps are late, and
// spinAhead. Where another post keeps the link busy, slack behind it is soon enough. A wait
// is no longer than longest.
const (
	spinFor   = 200 * time.Microsecond
	spinAhead = 8 * time.Microsecond
	slack     = 60 * time.Microsecond
	longest   = 500 * time.Microsecond
	// shortest is for what to sleep at all.
	shortest = 20 * time.Microsecond
)

// alarm is what a lane knows of its sleeps: how late they end, and how much that varies.
type alarm struct{ late, spread time.Duration }

// assumedAlarm is for a virtual machine that has to be woken itself.
var assumedAlarm = alarm{late: 30 * time.Microsecond, spread: 5 * time.Microsecond}

// learn takes in how late a sleep ended. One that ended far too late says something of
// another program, not of the next sleep.
func (a *alarm) learn(late time.Duration) {
	const most = 100 * time.Microsecond
	off := min(late, most) - a.late
	a.late += off / 8
	a.spread += (max(off, -off) - a.spread) / 8
}

// lead is how long before something a sleep should end.
func (a *alarm) lead() time.Duration { return a.late + 2*a.spread + spinAhead }

// wait returns the objects of a group that have ended, at least one, or none if
// the group has none left; the list is good until the next call. After an error of the context, or stall without any
// progress, it drops what is not posted, waits for the rest and returns that error.
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
		// To ask costs a microsecond: not for what was posted just now.
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
		l.waiting[0].notify() // it drives from now on
	}
	return ended, err
}

// look is wait without waiting, for a group with one object that gets more and more
// pieces: it says whether some of them are not over, when the last was, and what went
// wrong. Who looks sees to it that the lane goes on.
func (l *lane) look(g *group) (open bool, moved time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.driving {
		l.poll(l.now())
	}
	g.ended = g.ended[:0]
	return g.open > 0, l.progress(g), g.part(0).err
}

// progress is when something last ended that a group waits for: of its own, or of what is before it on the lane, which all
// fetches from one peer share. REQUIRES: mu.
func (l *lane) progress(g *group) time.Time {
	if l.moved.After(g.moved) {
		return l.moved
	}
	return g.moved
}

// givenUp says why a group should not wait any longer. REQUIRES: mu.
func (l *lane) givenUp(ctx context.Context, g *group, stall time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if quiet := l.now().Sub(l.progress(g)); quiet > stall {
		return fmt.Errorf("%w: no copy ended for %v", transfer.ErrStalled, quiet.Round(time.Millisecond))
	}
	return nil
}

// await waits until somebody has news for the group.
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

// busy says whether something is under way, or waits for its turn. REQUIRES: mu.
func (l *lane) busy() bool {
	return len(l.queues[small].posted) > 0 || len(l.queues[large].posted) > 0 || l.queues[large].len() > 0
}

// tell tells for how long a group waits, if it is to be told and does not know: as long as the rates say, if it was posted
// just now, else nobody knows. It says whether mu was given up for that. REQUIRES: mu.
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

// left is how long it takes until all that is posted should be over, more than nothing; what is not posted takes as
// long as can be. REQUIRES: mu.
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

// due says whether something should be over by now, or could be posted. REQUIRES: mu.
func (l *lane) due(now time.Time) bool {
	for kind := range l.queues {
		q := &l.queues[kind]
		if len(q.posted) > 0 && !q.posted[0].ends.After(now) || len(q.posted) < window && q.len() > 0 {
			return true
		}
	}
	return false
}

// pause passes the time until it is worth asking again. REQUIRES: mu, which it gives
// up meanwhile.
func (l *lane) pause() {
	var next *queue
	for kind := range l.queues {
		q := &l.queues[kind]
		if len(q.posted) > 0 && (next == nil || q.posted[0].ends.Before(next.posted[0].ends)) {
			next = q
		}
	}
	// Who has no more than one chunk under way looks for a turn.
	waits := l.queues[large].len() > 0 && len(l.queues[large].posted) < window
	if next == nil || next.posted[0].unsure {
		if waits || next != nil {
			l.mu.Unlock()
			nap(turnPoll)
			l.mu.Lock()
		}
		return
	}
	// What is behind it keeps the link busy, and the next lane may enter when it is over.
	post, behind := next.posted[0], next == &l.queues[large] && len(next.posted) == window && !l.queuesSmall()
	behind = behind && !post.pieces[0].step
	left := post.ends.Sub(l.now())
	sleep, spin := max(left-l.alarm.lead()-l.rates.sooner(post), 0), spinFor
	switch {
	case behind:
		sleep, spin = max(left, 0)+slack, 0
	case left < -spinFor:
		sleep, spin = longest, 0 // late for a reason that the rates do not know
	}
	if sleep > longest {
		sleep, spin = longest, 0 // others may have small frames to post before long
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
	// NB: nobody polls who does not drive, so it is there still. What went wrong the next poll
	// hears, too.
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
