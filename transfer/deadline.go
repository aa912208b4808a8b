package transfer

import (
	"context"
	"time"
)

const (
	// DefaultStallTimeout is how long the paths wait for a sign of progress of a peer. Then the
	// next path is tried. It is as long as the default lease of a worker, after which the scheduler
	// takes a silent peer for lost.
	DefaultStallTimeout = 5 * time.Second
	// DefaultLeaseTTL is how long a lease for copies lasts without renewal. It must exceed
	// DefaultStallTimeout, after which a fetch gives its peer up.
	DefaultLeaseTTL = 30 * time.Second
)

// ContextErr returns ctx.Err(). It also returns context.DeadlineExceeded if the deadline of ctx has
// passed but its timer has not fired yet. gRPC compares deadlines with the clock, so a call may
// fail with DeadlineExceeded a moment before ctx.Err() is set. Without this check, the caller would
// treat that as a failure of the peer.
func ContextErr(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}
