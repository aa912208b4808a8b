package transfer

import (
	"context"
	"time"
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
