package ipc

import (
	"sync"
	"time"
)

// turn is the egress token of a source for large frames: objindex.EgressToken.
type turn interface {
	Acquire(now, until time.Time) bool
	Release()
}

const (
	// turnPoll is the interval at which a lane polls for the token. After turnLong it proceeds
	// without. So a token that is taken expires after turnLong, too.
	turnPoll = 15 * time.Microsecond
	turnLong = 10 * time.Millisecond
	// turnBytes is the number of bytes after which a lane passes the token on.
	turnBytes = 1 << 30
)

// entrance is shared by the lanes of one device. The copy engine of a device carries out one large
// copy after the other, whatever streams they are on. So only one lane at a time has chunks queued;
// the next lane posts its first chunk while the last chunk of that lane is under way.
type entrance struct {
	mu     sync.Mutex
	inside *ingress
}

// ingress is the state of one lane with regard to the entrance and the egress token. All fields but
// entrance are guarded by lane.mu.
type ingress struct {
	entrance *entrance // nil: copies need no permission
	turn     turn      // nil: the source has no token
	// has: this lane holds the token of the source, and under it has posted this many bytes so far.
	has   bool
	under uint64
	// since is when the lane began to wait for the token.
	since time.Time
}

// enter reports whether the next large piece may be posted. REQUIRES: lane.mu.
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
	if in.turn != nil && !in.turn.Acquire(now, now.Add(turnLong)) && !in.has && !late {
		in.entrance.out(in)
		return false
	}
	in.has, in.since = true, time.Time{}
	in.under += next
	return true
}

// leave lets the next lane enter when at most one post is left, and releases the token when none
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
			in.turn.Release()
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
