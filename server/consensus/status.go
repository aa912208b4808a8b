package consensus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/internal/leader"
	"github.com/millrace/millrace/internal/pause"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// attendTime is the pace at which the leader looks at the others, and a peer without a leader
	// asks whether it was removed. silentTime is the silence after which it asks.
	attendTime = 2 * time.Second
	silentTime = 5 * time.Second
)

// Peers is part of schedapi.Peers.
func (r *Peer) Peers(ctx context.Context) []schedapi.Peer {
	answers, errs := r.inquire(ctx, question{})
	answers[r.config.Own] = r.consider(question{})
	last := uint64(0)
	for _, a := range answers { // order-free: a maximum
		last = max(last, a.Last)
	}
	votes := map[string]bool{}
	for _, s := range r.members() {
		votes[string(s.Address)] = s.Suffrage == raft.Voter
	}
	var list []schedapi.Peer
	for address := range r.addresses() { // order-free: the list is sorted
		p := schedapi.Peer{Address: address, Votes: votes[address], Role: schedapi.PeerAway}
		if a, ok := answers[address]; ok {
			p.Client, p.Version, p.Term, p.Index, p.Silence = a.Client, a.Version, a.Term, a.Applied, a.Silence
			p.Behind = last - min(last, a.Applied)
			switch {
			case a.Leads:
				p.Role = schedapi.PeerLeader
			case p.Votes && a.Phase != phaseEmpty:
				p.Role = schedapi.PeerFollower
			default:
				p.Role = schedapi.PeerJoining
			}
		} else {
			p.Trouble = "it does not answer"
			if err := errs[address]; err != nil {
				p.Trouble = err.Error()
			}
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b schedapi.Peer) int { return cmp.Compare(a.Address, b.Address) })
	return list
}

// Seen is part of schedapi.Peers.
func (r *Peer) Seen() []schedapi.Peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// Own is part of schedapi.Peers.
func (r *Peer) Own() schedapi.OwnPeer {
	own := schedapi.OwnPeer{Leader: r.Leader()}
	started := r.started()
	if started == nil {
		return own
	}
	own.Leads, own.Votes = started.State() == raft.Leader, r.votes()
	for _, s := range r.members() {
		if s.Suffrage == raft.Voter {
			own.Voters++
		}
	}
	own.Term, own.Last, own.Committed, own.Applied = started.CurrentTerm(), started.LastIndex(), started.CommitIndex(), started.AppliedIndex()
	if !own.Leads {
		own.Silence = r.silence(started)
	}
	return own
}

// silence returns the time since a peer has heard of a leader; since its start, if it has of none.
func (r *Peer) silence(started *raft.Raft) time.Duration {
	contact := started.LastContact()
	if contact.IsZero() {
		contact = r.begun // It was set before started.
	}
	return time.Since(contact)
}

// leading returns Raft if this peer leads, else an error that names the leader.
func (r *Peer) leading() (*raft.Raft, error) {
	if started := r.started(); started != nil && started.State() == raft.Leader {
		return started, nil
	}
	return nil, r.refusal()
}

// refusal is the answer of a peer that does not lead, or cannot find out whether it does. It never
// names this one.
func (r *Peer) refusal() error {
	address := r.Leader()
	if address == r.config.Advertise {
		address = ""
	}
	return leader.Refusal(address)
}

// AddPeer is part of schedapi.Peers. The peer has a place without a vote, which it takes when it
// comes.
func (r *Peer) AddPeer(ctx context.Context, address string) error {
	leads, err := r.leading()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(r.members(), func(s raft.Server) bool { return string(s.Address) == address }) {
		return nil // The call is repeated.
	}
	return r.settle(ctx, func() error {
		return leads.AddNonvoter(raft.ServerID(address), raft.ServerAddress(address), 0, joinTime).Error()
	})
}

// RemovePeer is part of schedapi.Peers.
func (r *Peer) RemovePeer(ctx context.Context, address string) error {
	leads, err := r.leading()
	if err != nil {
		return err
	}
	answers, _ := r.inquire(ctx, question{}) // One without an answer does not count.
	answers[r.config.Own] = r.consider(question{})
	var found *raft.Server
	left, living := 0, 0
	for _, s := range r.members() {
		switch {
		case string(s.Address) == address:
			found = &s
		case s.Suffrage == raft.Voter:
			left++
			if answers[string(s.Address)].Phase == phaseMember {
				living++
			}
		}
	}
	switch {
	case found == nil:
		return nil // The call is repeated, or there is nothing to do.
	case found.Suffrage == raft.Voter && living <= left/2:
		return &schedapi.Error{Kind: schedapi.ErrPeersMissing, Object: address, Message: fmt.Sprintf(
			"%s stays: without it, %d of %d schedulers would answer, and nobody could lead: start the others, or add one, first", address, living, left)}
	case address == r.config.Own:
		r.HandOver() // The next leader removes it.
		return r.refusal()
	}
	r.vacate(address, false)
	return r.settle(ctx, func() error { return leads.RemoveServer(found.ID, 0, joinTime).Error() })
}

// settle makes a change of the configuration, and waits for it as long as its caller and changeTime
// allow. A change that was proposed goes on: nothing can take it back.
func (r *Peer) settle(ctx context.Context, change func() error) error {
	limit := cmp.Or(r.config.changeTime, changeTime)
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := r.propose(waiting, change)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrRaftShutdown):
		return r.refusal()
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("peer: change the list of peers: %w: nothing has changed: repeat the call", err)
	case ctx.Err() != nil:
		return fmt.Errorf("peer: change the list of peers: %w before most schedulers had it: it may still happen: see \"millrace peers list\", and repeat the call", ctx.Err())
	case waiting.Err() != nil:
		return fmt.Errorf("peer: change the list of peers: within %v, most schedulers did not have it: it may still happen: see \"millrace peers list\", start those that are away, and repeat the call", limit)
	}
	return fmt.Errorf("peer: change the list of peers: %w: repeat the call", err)
}

// propose calls what asks something of Raft and waits for its answer: a change of the
// configuration, or whether this peer leads. It returns when that, the context or the peer ends.
// Close waits for the answer itself: Raft gives it before it is shut down, and perhaps never after
// that.
func (r *Peer) propose(ctx context.Context, ask func() error) error {
	done := make(chan error, 1)
	r.mu.Lock()
	if ended := r.closing.Err() != nil || isClosed(r.state.failed); ended {
		r.mu.Unlock()
		return raft.ErrRaftShutdown
	}
	r.commits.Go(func() { done <- ask() })
	r.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-r.closing.Done():
		return raft.ErrRaftShutdown
	}
}

// attend looks at the others while this peer leads, and ends with an error if this one was removed.
func (r *Peer) attend(ctx context.Context) error {
	removed := 0
	for {
		if err := pause.For(ctx, attendTime); err != nil {
			return err
		}
		started := r.started()
		var seen []schedapi.Peer
		leads := started.State() == raft.Leader
		if leads {
			seen = r.Peers(ctx)
		}
		r.mu.Lock()
		r.seen = seen
		r.mu.Unlock()
		if leads || r.silence(started) < silentTime || !r.isRemoved(ctx) {
			removed = 0
			continue
		}
		// A configuration that was just changed may be seen by one look.
		if removed++; removed > 1 {
			return ErrRemoved
		}
	}
}

// isRemoved reports whether a leader says that this peer is none of the peers.
func (r *Peer) isRemoved(ctx context.Context) bool {
	answers, _ := r.seek(ctx, question{}) // Silence says nothing.
	for _, a := range answers {           // order-free: any leader
		if a.Leads && len(a.Members) > 0 && !slices.Contains(a.Members, r.identity.ID) {
			return true
		}
	}
	return false
}
