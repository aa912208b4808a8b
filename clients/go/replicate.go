package millrace

import (
	"context"
	"fmt"
	"slices"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

var replicateOp = Native("core.replicate")

// Replicate copies the results of tasks to more workers, until n active workers have each of them,
// and returns when the copies are complete. If n is 0 or less, or more than there are, it means all
// active workers. Copies are made in rounds, and those of one round are read from in the next, so a
// result reaches n workers in the time of about log2 n copies. If all active workers have GPUs,
// there is only one round, because the copies on one host form a broadcast chain: each worker reads
// from the previous one while the data is still arriving there.
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
	chained := true
	for _, w := range listed {
		names[w.GetWorkerId()] = w.GetName()
		workers = append(workers, w.GetWorkerId())
		chained = chained && w.GetDevice() == millracev1.DeviceKind_DEVICE_KIND_CUDA
	}
	slices.Sort(workers)
	if n <= 0 || n > len(workers) {
		n = len(workers)
	}
	tasks := make([]uint64, len(futures))
	for i, f := range futures {
		tasks[i] = f.TaskID()
	}
	located, err := c.locate(ctx, tasks)
	if err != nil {
		return err
	}
	holders := make([][]uint32, len(futures))
	for i, o := range located.GetObjects() {
		holders[i] = slices.DeleteFunc(o.GetWorkerIds(), func(w uint32) bool { return names[w] == "" })
	}
	for {
		// All copies of this round are one submission, so that the scheduler places them together.
		g := c.NewGraph("replicate")
		for i, f := range futures {
			left := n - len(holders[i])
			if !chained {
				left = min(left, max(len(holders[i]), 1)) // as many at once as there are copies to read from
			}
			for ; left > 0; left-- {
				at := slices.IndexFunc(workers, func(w uint32) bool { return !slices.Contains(holders[i], w) })
				g.Add("", replicateOp, Args(f), WithWorkers(names[workers[at]]), Hold())
				holders[i] = append(holders[i], workers[at])
			}
		}
		if g.Len() == 0 {
			return nil
		}
		copies, err := g.Submit(ctx)
		if err != nil {
			return fmt.Errorf("millrace: replicate: %w", err)
		}
		err = copies.Wait(ctx)
		copies.Release()
		if err != nil {
			return fmt.Errorf("millrace: replicate: %w", err)
		}
	}
}
