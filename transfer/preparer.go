package transfer

import (
	"context"
	"time"
)

// Preparer is a Path that can do the set-up for a peer before the first fetch needs it.
type Preparer interface {
	// Prepare returns when a fetch from the peer would have no set-up left to wait for, and returns
	// the measurements of the connection. A caller may ignore the error: a fetch would find the
	// same error again.
	Prepare(ctx context.Context, peer Peer) (Measured, error)
}

// Measured holds measurements of the connection to a peer. 0 means unknown.
type Measured struct {
	Latency        time.Duration
	BytesPerSecond float64
}
