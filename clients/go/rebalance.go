package millrace

import (
	"context"
	"errors"
	"io"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// RebalanceOptions are the options of Rebalance. The zero value means all active workers.
type RebalanceOptions struct {
	// Workers are the names of the workers that take part; at least two, and all of them active.
	// Empty: all active workers, also those that join meanwhile.
	Workers []string
	// DryRun means that the moves are only planned.
	DryRun bool
	// Progress, if not nil, is called with the plan, then at most twice a second, and at the end.
	// It must not keep the report.
	Progress func(*RebalanceReport)
}

// RebalanceReport tells how many results a rebalance has moved, or would move, and how many bytes
// each worker holds.
type RebalanceReport = millracev1.RebalanceResponse

// Rebalance moves results from workers that hold a larger share of their memory to those that hold
// a smaller one, until all are within 5 % of the mean, or no move helps. No move costs a result:
// the source drops it only after the receiver has confirmed that it keeps it. Results stay that
// several workers have, that tasks need where they are, and that the scheduler holds itself.
//
// Results that could not move are no error; the report has the reasons. The rebalance ends with
// ctx, and what has moved stays moved. If another one is in progress, the error is
// ErrRebalanceRunning. Only operators may call it.
func (c *Client) Rebalance(ctx context.Context, o RebalanceOptions) (*RebalanceReport, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.service.Rebalance(ctx, &millracev1.RebalanceRequest{Workers: workersNamed(o.Workers), DryRun: o.DryRun})
	if err != nil {
		return nil, callError(ctx, "Rebalance", err)
	}
	for {
		report, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("millrace: Rebalance: the scheduler ended the call before the end: order it again")
		}
		if err != nil {
			return nil, callError(ctx, "Rebalance", err)
		}
		if o.Progress != nil {
			o.Progress(report)
		}
		if report.GetDone() {
			return report, nil
		}
	}
}
