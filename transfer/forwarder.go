package transfer

import "context"

// Forwarder is a Sink whose objects can be read by other workers while they still arrive (pipelined
// reads in a broadcast chain).
type Forwarder interface {
	// Forward asks whether the sink wants reports about the progress of an object. A path that can
	// report progress calls it once for each object, after Place. If arrived is not nil, the path
	// calls it with the number of bytes that are in place, counted over the frames in their order.
	// The calls may come from any goroutine, one at a time, and none comes after Done or after the
	// end of the fetch. arrived does not block. At most step bytes should arrive between two calls;
	// 0: no limit.
	Forward(index int) (arrived func(bytes uint64), step uint64)
	// Withdraw takes back the progress that was reported for an object: its bytes will be written
	// again, or will not come.
	Withdraw(index int)
}

// PipelinedFetcher is a Path that can read objects from a peer that is still fetching them itself.
type PipelinedFetcher interface {
	// FetchPipelined is Fetch from a peer that has the objects or will soon begin to fetch them. An
	// object fails with ErrNotHere if the peer does not begin to fetch it in time, or gives it up.
	// An object is done only after the peer has found its own copy to be valid.
	FetchPipelined(ctx context.Context, peer Peer, refs []Ref, sink Sink) error
}
