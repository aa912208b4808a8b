package borrow

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/transfer"
)

// What a peer shows can be lent at once as well, for readers that do not copy it but are
// soon done with it: kernels that read it in place. Such a loan has no lease, but a part of
// a glance. A connection has few slots, and whoever has one delays the lender's frees; so
// loans that begin close together share a glance, and some slots are left to fetches.

const (
	// sharedFor is how long others may join a glance after its first loan. Loans that follow
	// each other without a gap would keep it for ever otherwise.
	sharedFor = time.Millisecond
	// lendingSlots are how many slots of a connection loans may have.
	lendingSlots = 8
)

// lending are the loans of one connection that have not ended.
type lending struct {
	mu sync.Mutex
	// All below is guarded by mu, which is locked before peer.mu. open are the glances
	// that have loans, the youngest at the end.
	open []*shared
	// read are bytes that the lender was not told of.
	read uint64
}

// shared is a glance of several loans.
type shared struct {
	glance *Glance
	began  time.Time
	loans  int
}

// at returns the connection to a peer, nil if there is none, or none that shows anything.
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
	if c.err != nil || c.view == nil || c.conn.Err() != nil {
		return nil
	}
	return c
}

// Prompt is part of transfer.Prompt: the peer is connected, and shows what it has.
func (p *Path) Prompt(at transfer.Peer) bool { return p.at(at) != nil }

// Shows is part of transfer.Lender.
func (p *Path) Shows(at transfer.Peer, ref transfer.Ref) bool {
	c := p.at(at)
	if c == nil || !c.lends || ref.Generation == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.unmapped && c.view.Shows(ref)
}

// Lend is part of transfer.Lender. The bytes are protected for as long as the lender's board
// has patience with its readers: End tells whether that was long enough.
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
	if !s.glance.Find(ref, &found) {
		if s.loans == 0 {
			l.end(s)
		}
		return false
	}
	s.loans++
	*into = transfer.Loan{Head: found.Head, Regions: make([]transfer.Region, len(found.Frames)), End: func() bool { return l.leave(c, s) }}
	for i, f := range found.Frames {
		into.Regions[i] = transfer.Region{Space: s.glance.Memory, Frame: f}
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

// join returns the glance for one more loan, nil if there is none. REQUIRES: mu.
func (l *lending) join(c *peer, now time.Time) *shared {
	if n := len(l.open); n > 0 && now.Sub(l.open[n-1].began) < sharedFor && l.open[n-1].glance.Held() {
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
	slot, ok := c.view.Look()
	if !ok {
		return nil
	}
	c.glances++
	s := &shared{glance: c.glance(slot, math.MaxUint64, 1), began: now}
	l.open = append(l.open, s)
	return s
}

// leave is Loan.End.
func (l *lending) leave(c *peer, s *shared) (held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.loans--; s.loans > 0 {
		return s.glance.Held()
	}
	c.mu.Lock()
	gone := c.gone
	c.mu.Unlock()
	if !gone {
		return l.end(s)
	}
	// Memory of the dead is unmapped with the last of its readers. That may take long, and
	// who ends a loan shall not wait for it.
	held = s.glance.Held()
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
	l.open = slices.DeleteFunc(l.open, func(x *shared) bool { return x == s })
	go func() {
		defer p.wait.Done()
		s.glance.End()
	}()
	return held
}

// end gives a slot back. REQUIRES: mu.
func (l *lending) end(s *shared) (held bool) {
	l.open = slices.DeleteFunc(l.open, func(x *shared) bool { return x == s })
	s.glance.bytes, l.read = l.read, 0
	return s.glance.End()
}
