package route

import (
	"time"

	"github.com/millrace/millrace/transfer"
)

// atOnceLender returns the path that lends at once, or nil if there is none.
func (s *Selector) atOnceLender() transfer.Lender {
	if s.atOnce < 0 {
		return nil
	}
	return s.capabilities[s.atOnce].Lend
}

// CanLend is part of transfer.Lender. It does not use a path that has just failed.
func (s *Selector) CanLend(peer transfer.Peer, ref transfer.Ref) bool {
	lender := s.atOnceLender()
	if lender == nil {
		return false
	}
	s.mu.Lock()
	promising := s.machine.Promising(time.Now(), peer.Address, s.atOnce)
	s.mu.Unlock()
	return promising && lender.CanLend(peer, ref)
}

// Lend is part of transfer.Lender.
func (s *Selector) Lend(peer transfer.Peer, ref transfer.Ref, into *transfer.Loan) bool {
	lender := s.atOnceLender()
	return lender != nil && lender.Lend(peer, ref, into)
}

// Read is part of transfer.Lender. It counts bytes that were read in place among the bytes of that
// path.
func (s *Selector) Read(peer transfer.Peer, bytes uint64) {
	lender := s.atOnceLender()
	if lender == nil {
		return
	}
	s.mu.Lock()
	s.machine.Read(peer.Address, s.atOnce, bytes)
	s.mu.Unlock()
	lender.Read(peer, bytes)
}
