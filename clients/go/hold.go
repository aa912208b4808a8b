package millrace

import (
	"context"
	"fmt"
	"math"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// HoldKeys makes the client hold results by key, and returns their futures in order.
// In this way a client can use results that another process computes.
func (c *Client) HoldKeys(ctx context.Context, keys ...string) ([]*Future, error) {
	if c.config.leaseless {
		return nil, fmt.Errorf("millrace: the client has no lease (WithoutLease), so it cannot hold results")
	}
	if err := c.Flush(ctx); err != nil && ctx.Err() != nil {
		return nil, err
	}
	done, err := c.takeHolds(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	c.futures.begin()
	defer c.futures.end()
	out, err := c.service.HoldTasks(ctx, &millracev1.HoldTasksRequest{ClientId: c.lease.Load(), Tasks: &millracev1.TaskSet{Keys: keys}})
	if err != nil {
		return nil, callError(ctx, "HoldTasks", err)
	}
	if n := len(out.GetTaskIds()); n != len(keys) {
		return nil, fmt.Errorf("millrace: HoldTasks: the scheduler answered %d numbers for %d keys", n, len(keys))
	}
	futures := make([]*Future, len(keys))
	for i, k := range keys {
		futures[i] = &Future{client: c, key: k}
	}
	// The answer contains no revision. With the largest one, no snapshot counts as proof that the
	// tasks are gone.
	c.futures.bind(futures, out.GetTaskIds(), math.MaxUint64, nil)
	return futures, nil
}
