package route

import (
	"time"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
)

// prompt returns the path of the best candidate if that can begin at once, nil otherwise.
func (s *Selector) prompt() transfer.Prompter {
	if s.config.Candidates[0].Eligible != nil {
		return nil // the check may block
	}
	return s.capabilities[0].Prompt
}

// Prompt is part of transfer.Prompter: the best path can begin at once and works. If Fetch falls
// back to another path, which may wait, it notifies the sink before.
func (s *Selector) Prompt(peer transfer.Peer) bool {
	path := s.prompt()
	if path == nil {
		return false
	}
	s.mu.Lock()
	state := s.machine.State(peer.Address, 0)
	s.mu.Unlock()
	return state == flow.Open && path.Prompt(peer)
}

// Waits is part of transfer.Waiter.
func (a *attempt) Waits(left time.Duration) {
	a.able.Wait.Waits(left)
}
