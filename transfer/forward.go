package transfer

import "context"

// Forwarder is a Sink whose objects others copy on while they arrive.
type Forwarder interface {
	Sink
	// Forward is asked once for an object that was placed, by paths that can tell how
	// far it has come. If it is to be told, arrived is called with how many bytes are
	// in place, over the frames in their order: from any goroutine, by one at a time,
	// and not after Done or the end of the fetch. It waits for nothing. No more than
	// step bytes should come between two calls, if that is not 0.
	Forward(index int) (arrived func(bytes uint64), step uint64)
	// Withdraw says that what was told of an object is void: its bytes are going to be
	// written anew, or not to come.
	Withdraw(index int)
}

// Follower is a Path that can read what a peer is fetching itself.
type Follower interface {
	// Follow is Fetch from a peer that has the objects or will begin to fetch them in
	// a moment. What it has not, when it should have begun, or gives up again is
	// ErrNotHere. An object is done when the peer has found its own copy to be valid.
	Follow(ctx context.Context, peer Peer, refs []Ref, sink Sink) error
}
