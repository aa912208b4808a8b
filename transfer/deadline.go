package transfer

import (
	"context"
	"time"
)

// ContextErr returns ctx.Err(), or context.DeadlineExceeded if the deadline of ctx has passed and its
// timer has not fired yet. gRPC compares deadlines with the clock, so that a call may fail with
// DeadlineExceeded a moment before ctx.Err() says so. Without this, the peer would be blamed.
func ContextErr(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}
