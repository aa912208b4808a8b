package millrace

import (
	"context"
	"fmt"
	"slices"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

var replicateOp = Native("core.replicate")

// Replicate copies the results of tasks to more workers, until n have each of them (all workers if n is 0), and returns when
// they are there. Each fresh copy serves the next ones, so that a result reaches n workers in the time of about log2 n copies.
func (c *Client) Replicate(ctx context.Context, n int, futures ...*Future) error {
	if err := WaitAll(ctx, futures...); err != nil {
		return err
	}
	listed, err := c.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
	if err != nil {
		return err
	}
	names := make(map[uint32]string, len(listed))
	var workers []uint32
	for _, w := range listed {
		names[w.GetWorkerId()] = w.GetName()
		workers = append(workers, w.GetWorkerId())
	}
	slices.Sort(workers)
	if n <= 0 || n > len(workers) {
		n = len(workers)
	}
	in := &millracev1.LocateObjectsRequest{}
	for _, f := range futures {
		in.TaskIds = append(in.TaskIds, f.TaskID())
	}
	located, err := c.service.LocateObjects(ctx, in)
	if err != nil {
		return callError(ctx, "LocateObjects", err)
	}
	holders := make([][]uint32, len(futures))
	for i, o := range located.GetObjects() {
		holders[i] = slices.DeleteFunc(o.GetWorkerIds(), func(w uint32) bool { return names[w] == "" })
	}
	for {
		var copies []*Future
		for i, f := range futures {
			// As many at once as there are copies to read from.
			for left := min(n-len(holders[i]), max(len(holders[i]), 1)); left > 0; left-- {
				at := slices.IndexFunc(workers, func(w uint32) bool { return !slices.Contains(holders[i], w) })
				done, err := c.Submit(ctx, replicateOp, Args(f), WithWorkers(names[workers[at]]))
				if err != nil {
					return err
				}
				copies, holders[i] = append(copies, done), append(holders[i], workers[at])
			}
		}
		if len(copies) == 0 {
			return nil
		}
		err := WaitAll(ctx, copies...)
		c.Release(copies...)
		if err != nil {
			return fmt.Errorf("millrace: replicate: %w", err)
		}
	}
}
