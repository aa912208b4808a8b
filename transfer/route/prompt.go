package route

import (
	"time"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
)

var (
	_ transfer.Prompt = (*Selector)(nil)
	_ transfer.Waiter = (*attempt)(nil)
)

// prompt returns the path of the best candidate if that can begin at once, nil otherwise.
func (s *Selector) prompt() transfer.Prompt {
	if s.config.Candidates[0].Eligible != nil {
		return nil // the check may block
	}
	path, _ := s.config.Candidates[0].Path.(transfer.Prompt)
	return path
}

// Prompt is part of transfer.Prompt: the best path can begin at once and works. If Fetch falls back
// to another path, which may wait, it notifies the sink before.
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
	if w, ok := a.sink.(transfer.Waiter); ok {
		w.Waits(left)
	}
}
