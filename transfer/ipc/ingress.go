package ipc

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// turn is whose turn it is to read large frames from a source: board.Turn.
type turn interface {
	Take(now, until time.Time) bool
	Give()
}

const (
	// turnPoll is how often a lane looks whether it is its turn, turnLong when it goes
	// on without.
	turnPoll = 15 * time.Microsecond
	turnLong = 10 * time.Millisecond
	// turnBytes is after how much a lane lets others have their turn.
	turnBytes = 1 << 30
	// turnSpare is by how much a turn outlasts what was posted under it.
	turnSpare = 2 * time.Millisecond
)

// entrance is what the lanes of a device share. Its copy engine does one large copy
// after the other, whatever their streams; so one lane has chunks queued at a time,
// and the next posts its first when that one's last is under way.
type entrance struct {
	mu     sync.Mutex
	inside *ingress
}

// ingress is a lane's part of it. All but entrance is guarded by lane.mu.
type ingress struct {
	entrance *entrance // nil: copies need not ask
	turn     turn      // nil: the source has none
	// has: it is our turn at the source, for so many bytes by now.
	has   bool
	under uint64
	// since is when the lane began to wait for its turn.
	since time.Time
}

// enter says whether the next large piece may be posted. REQUIRES: lane.mu.
func (l *lane) enter(now time.Time, q *queue) bool {
	in, next := &l.ingress, q.first().bytes
	if in.entrance == nil {
		return true
	}
	if in.has && in.under >= turnBytes {
		return false
	}
	if in.since.IsZero() {
		in.since = now
	}
	late := now.Sub(in.since) > turnLong
	if !in.entrance.let(in) && !late {
		return false
	}
	until := now.Add(turnSpare + 2*l.rates.engine(1, next))
	for _, p := range q.posted {
		until = until.Add(2 * l.rates.predict(p))
	}
	if in.turn != nil && !in.turn.Take(now, until) && !in.has && !late {
		in.entrance.out(in)
		return false
	}
	in.has, in.since = true, time.Time{}
	in.under += next
	return true
}

// leave lets others in when little is left, and gives the turn back when nothing
// is. REQUIRES: lane.mu.
func (l *lane) leave(q *queue) {
	in := &l.ingress
	if q.len() == 0 {
		in.since = time.Time{}
	}
	if in.entrance == nil || !in.has {
		return
	}
	over := q.len() == 0 || in.under >= turnBytes
	if over && len(q.posted) <= 1 {
		in.entrance.out(in)
	}
	if over && len(q.posted) == 0 {
		if in.has, in.under = false, 0; in.turn != nil {
			in.turn.Give()
		}
	}
}

func (e *entrance) let(in *ingress) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.inside == nil {
		e.inside = in
	}
	return e.inside == in
}

func (e *entrance) out(in *ingress) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.inside == in {
		e.inside = nil
	}
}

// nap sleeps for that long, not for a scheduler's idea of it.
func nap(d time.Duration) {
	const slack = 1000 // ns
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0)
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // an early return is as good
}
