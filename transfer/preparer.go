package transfer

import (
	"context"
	"time"
)

// Preparer is a Path that can do beforehand what the first fetch from a peer would have to
// wait for.
type Preparer interface {
	// Prepare returns when a fetch has nothing more to wait for, and what the way there was
	// measured to be. Its error says nothing that a fetch would not find out again.
	Prepare(ctx context.Context, peer Peer) (Measured, error)
}

// Measured is what a path knows of the way to a peer; 0 where it does not.
type Measured struct {
	Latency        time.Duration
	BytesPerSecond float64
}
