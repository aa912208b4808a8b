package route

import (
	"time"

	"github.com/millrace/millrace/transfer"
)

// atOnceLender returns the path that lends at once, or nil if there is none.
func (p *Path) atOnceLender() transfer.Lender {
	if p.atOnce < 0 {
		return nil
	}
	return p.config.Rungs[p.atOnce].Path.(transfer.Lender)
}

// Shows is part of transfer.Lender. It does not use a path that has just failed.
func (p *Path) Shows(peer transfer.Peer, ref transfer.Ref) bool {
	lender := p.atOnceLender()
	if lender == nil {
		return false
	}
	p.mu.Lock()
	promising := p.machine.Promising(time.Now(), peer.Address, p.atOnce)
	p.mu.Unlock()
	return promising && lender.Shows(peer, ref)
}

// Lend is part of transfer.Lender.
func (p *Path) Lend(peer transfer.Peer, ref transfer.Ref, into *transfer.Loan) bool {
	lender := p.atOnceLender()
	return lender != nil && lender.Lend(peer, ref, into)
}

// Read is part of transfer.Lender. It counts bytes that were read in place among the bytes of that
// path.
func (p *Path) Read(peer transfer.Peer, bytes uint64) {
	lender := p.atOnceLender()
	if lender == nil {
		return
	}
	p.mu.Lock()
	p.machine.Read(peer.Address, p.atOnce, bytes)
	p.mu.Unlock()
	lender.Read(peer, bytes)
}
