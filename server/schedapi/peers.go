package schedapi

import (
	"context"
	"time"
)

// PeerRole is what a peer does. The values equal those of the API.
type PeerRole uint8

// Roles of peers.
const (
	PeerLeader   PeerRole = 1
	PeerFollower PeerRole = 2
	// PeerJoining: it gets what it lacks, and has no vote until then.
	PeerJoining PeerRole = 3
	// PeerAway: it does not answer.
	PeerAway PeerRole = 4
)

// Peer is one of several schedulers with one journal, as another one sees it.
type Peer struct {
	// Address is where the others reach it, Client where clients do; empty: it is not known.
	Address, Client string
	Role            PeerRole
	// Votes: it counts for a majority. It does not while it joins.
	Votes bool
	// Term is the number of the election that it knows of. Index is that of the last entry of the
	// log that it has carried out, and Behind the number of entries that it lacks.
	Term, Index, Behind uint64
	// Silence is the time since a follower has heard of the leader.
	Silence time.Duration
	Version string
	// Trouble is why it does not answer; empty: it does.
	Trouble string
}

// OwnPeer is what a peer knows of itself, without asking others.
type OwnPeer struct {
	Leads, Votes    bool
	Leader          string // its address for clients; empty: there is none, or it is not known
	Voters          int
	Term            uint64
	Last, Committed uint64 // indexes of the log
	Applied         uint64
	Silence         time.Duration // 0 for the leader
}

// Peers are several schedulers with one journal.
type Peers interface {
	// Peers asks all for their state.
	Peers(ctx context.Context) []Peer
	// Seen returns what the leader saw last; nil: this one does not lead.
	Seen() []Peer
	Own() OwnPeer
	// AddPeer lets the scheduler of an address join, RemovePeer removes one for good. Only the
	// leader can; any other one returns an error that names the leader.
	AddPeer(ctx context.Context, address string) error
	RemovePeer(ctx context.Context, address string) error
}
