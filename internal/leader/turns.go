package leader

import (
	"slices"
	"sync"
)

// turns say which of several addresses the next call goes to. Two addresses are one only if their
// texts are.
type turns struct {
	addresses []string

	mu sync.Mutex
	// at is the address of the next call. It is the one whose turn it is, except while named: then
	// the latter has named the leader. If that is not the leader, the turn goes on: two schedulers
	// that name each other, or one that is gone, do not keep calls from a third one.
	at, turn int
	named    bool
}

func (t *turns) current() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// leave makes the next calls go elsewhere: to the leader that a refusal has named, else to the next
// address in turn. at is the address that refused, or that cannot be reached; nothing changes if
// calls go to another one already.
//
// NB: a leader that is not in the list is not called. Calls carry the client's token, and a
// scheduler, or somebody at its address, must not be able to have it sent to a place that the user
// of the client did not name.
func (t *turns) leave(at int, leader string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at != t.at {
		return
	}
	if i := slices.Index(t.addresses, leader); i >= 0 && i != at && !t.named {
		t.at, t.named = i, true
		return
	}
	if t.turn = (t.turn + 1) % len(t.addresses); t.turn == at {
		t.turn = (t.turn + 1) % len(t.addresses)
	}
	t.at, t.named = t.turn, false
}
