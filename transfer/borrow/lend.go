package borrow

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/transfer"
)

// An object in the shared object index can also be lent at once, to readers that do not copy it but
// finish soon: kernels that read it in place. Such a loan has no lease; it shares an epoch guard
// (ReadGuard). A connection has few reader slots, and a slot in use delays the lender's frees. So
// loans that begin close together share one guard, and some slots remain for fetches.

const (
	// sharedFor is how long after its first loan a guard accepts more loans. Without this limit, a
	// sequence of overlapping loans would keep one guard for ever.
	sharedFor = time.Millisecond
	// lendingSlots is the number of reader slots of a connection that loans may use.
	lendingSlots = 8
)

// lending holds the loans of one connection that have not ended.
type lending struct {
	mu sync.Mutex
	// All below is guarded by mu, which is locked before peer.mu. open are the guards that have
	// loans, the newest at the end.
	open []*sharedGuard
	// read is the number of bytes read in place that were not yet reported to the lender.
	read uint64
}

// sharedGuard is an epoch guard that several loans share.
type sharedGuard struct {
	guard *ReadGuard
	began time.Time
	loans int
}

// at returns the connection to a peer, or nil if there is none or it came without an index.
func (p *Path) at(peer transfer.Peer) *peer {
	p.mu.Lock()
	c := p.peers[peer.Address]
	p.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c.ready:
	default:
		return nil
	}
	if c.err != nil || c.index == nil || c.conn.Err() != nil {
		return nil
	}
	return c
}

// Prompt is part of transfer.Prompter: it needs a connection to the peer, and the peer's index.
func (p *Path) Prompt(at transfer.Peer) bool { return p.at(at) != nil }

// CanLend is part of transfer.Lender.
func (p *Path) CanLend(at transfer.Peer, ref transfer.Ref) bool {
	c := p.at(at)
	if c == nil || !c.lends || ref.Generation == 0 || ref.Item != 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.unmapped && c.index.Contains(ref)
}

// Lend is part of transfer.Lender. The bytes are protected until the TTL of the lender's index
// revokes the guard; End says whether that happened.
func (p *Path) Lend(at transfer.Peer, ref transfer.Ref, into *transfer.Loan) bool {
	c := p.at(at)
	if c == nil || !c.lends {
		return false
	}
	l := &c.lending
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.join(c, time.Now())
	if s == nil {
		return false
	}
	var found Lent
	if !s.guard.Find(ref, &found) {
		if s.loans == 0 {
			l.end(s)
		}
		return false
	}
	s.loans++
	*into = transfer.Loan{Head: found.Head, Regions: make([]transfer.Region, len(found.Frames)), End: func() bool { return l.leave(c, s) }}
	for i, f := range found.Frames {
		into.Regions[i] = transfer.Region{Space: s.guard.Memory, Frame: f}
	}
	return true
}

// Read is part of transfer.Lender.
func (p *Path) Read(at transfer.Peer, bytes uint64) {
	if p.config.Received != nil {
		p.config.Received(int(bytes))
	}
	if c := p.at(at); c != nil {
		c.lending.mu.Lock()
		c.lending.read += bytes
		c.lending.mu.Unlock()
	}
}

// join returns the guard for one more loan, or nil if there is none. REQUIRES: mu.
func (l *lending) join(c *peer, now time.Time) *sharedGuard {
	if n := len(l.open); n > 0 && now.Sub(l.open[n-1].began) < sharedFor && l.open[n-1].guard.Held() {
		return l.open[n-1]
	}
	if len(l.open) == lendingSlots {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unmapped {
		return nil
	}
	slot, ok := c.index.Pin()
	if !ok {
		return nil
	}
	c.guards++
	s := &sharedGuard{guard: c.newGuard(slot, math.MaxUint64, 1), began: now}
	l.open = append(l.open, s)
	return s
}

// leave is Loan.End: it ends one loan, and with the last loan of the guard the guard.
func (l *lending) leave(c *peer, s *sharedGuard) (held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.loans--; s.loans > 0 {
		return s.guard.Held()
	}
	c.mu.Lock()
	gone := c.gone
	c.mu.Unlock()
	if !gone {
		return l.end(s)
	}
	// The memory of a dead peer is unmapped with its last reader. That can take long, so a
	// goroutine does it, and the end of a loan does not wait for it.
	held = s.guard.Held()
	p := c.path
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.wait.Add(1)
	}
	p.mu.Unlock()
	if closed {
		return l.end(s) && held
	}
	l.open = slices.DeleteFunc(l.open, func(x *sharedGuard) bool { return x == s })
	go func() {
		defer p.wait.Done()
		s.guard.End()
	}()
	return held
}

// end ends the guard and gives its reader slot back. REQUIRES: mu.
func (l *lending) end(s *sharedGuard) (held bool) {
	l.open = slices.DeleteFunc(l.open, func(x *sharedGuard) bool { return x == s })
	s.guard.bytes, l.read = l.read, 0
	return s.guard.End()
}
