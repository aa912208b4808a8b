package ipc

import (
	"sync"
	"time"
)

// egressToken is the egress token of a source for large frames: objindex.EgressToken.
type egressToken interface {
	Acquire(now, until time.Time) bool
	Release()
}

const (
	// tokenPoll is the interval at which a copy queue polls for the token. After tokenWait it
	// proceeds without. So a token that is taken expires after tokenWait, too.
	tokenPoll = 15 * time.Microsecond
	tokenWait = 10 * time.Millisecond
	// tokenBytes is the number of bytes after which a copy queue passes the token on.
	tokenBytes = 1 << 30
)

// chunkGate is shared by the copy queues of one device. The copy engine of a device carries out one
// large copy after the other, whatever streams they are on. So the copy queues take turns with
// their chunks: the next one posts its first chunk while the last chunk of the one before is under
// way. A copy queue that has waited for tokenWait does not wait for its turn.
type chunkGate struct {
	mu     sync.Mutex
	holder *gateState
}

// gateState is the state of one copy queue with regard to the gate and the egress token. All fields
// but gate are guarded by copyQueue.mu.
type gateState struct {
	gate  *chunkGate  // nil: copies need no permission
	token egressToken // nil: the source has no token
	// admitted: this copy queue may post chunks, because it holds gate and token or has waited for
	// them for tokenWait. postedBytes is what it has posted since then.
	admitted    bool
	postedBytes uint64
	// waitingSince is when the copy queue began to wait for gate and token. Zero: it does not wait.
	waitingSince time.Time
}

// admitLarge reports whether the next large piece may be posted. REQUIRES: copyQueue.mu.
func (c *copyQueue) admitLarge(now time.Time, q *queue) bool {
	in, next := &c.gateState, q.first().bytes
	if in.gate == nil {
		return true
	}
	if in.admitted && in.postedBytes >= tokenBytes {
		return false
	}
	if in.waitingSince.IsZero() {
		in.waitingSince = now
	}
	late := now.Sub(in.waitingSince) > tokenWait
	if !in.gate.tryAcquire(in) && !late {
		return false
	}
	if in.token != nil && !in.token.Acquire(now, now.Add(tokenWait)) && !in.admitted && !late {
		in.gate.release(in)
		return false
	}
	in.admitted, in.waitingSince = true, time.Time{}
	in.postedBytes += next
	return true
}

// endLarge lets the next copy queue post chunks when at most one post is left, and releases the
// token when none is. REQUIRES: copyQueue.mu.
func (c *copyQueue) endLarge(q *queue) {
	in := &c.gateState
	if q.len() == 0 {
		in.waitingSince = time.Time{}
	}
	if in.gate == nil || !in.admitted {
		return
	}
	over := q.len() == 0 || in.postedBytes >= tokenBytes
	if over && len(q.posted) <= 1 {
		in.gate.release(in)
	}
	if over && len(q.posted) == 0 {
		if in.admitted, in.postedBytes = false, 0; in.token != nil {
			in.token.Release()
		}
	}
}

func (g *chunkGate) tryAcquire(in *gateState) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holder == nil {
		g.holder = in
	}
	return g.holder == in
}

func (g *chunkGate) release(in *gateState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holder == in {
		g.holder = nil
	}
}
