package millrace

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// acknowledged returns the task numbers of futures. It waits until the scheduler has acknowledged
// all of them.
func (c *Client) acknowledged(ctx context.Context, futures []*Future) ([]uint64, error) {
	var flush bool
	for _, f := range futures {
		flush = flush || f.TaskID() == 0
	}
	if flush {
		if err := c.Flush(ctx); err != nil && ctx.Err() != nil {
			return nil, err
		}
	}
	ids := make([]uint64, 0, len(futures))
	for _, f := range futures {
		if id := f.TaskID(); id != 0 {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Cancel stops tasks and all tasks that need their results, and returns how many were stopped.
// A task that other clients also hold continues; only this client's hold ends. When Cancel returns,
// the futures have ended: as cancelled, unless they had ended before. If the scheduler no longer
// knows one of the tasks, the others are cancelled and the error is ErrUnknownTask.
func (c *Client) Cancel(ctx context.Context, futures ...*Future) (uint64, error) {
	active := slices.DeleteFunc(slices.Clone(futures), ended)
	ids, err := c.acknowledged(ctx, active)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	out, err := c.service.CancelTasks(ctx, &millracev1.CancelTasksRequest{ClientId: c.lease.Load(), Tasks: &millracev1.TaskSet{Ids: ids}})
	if err != nil {
		if active = slices.DeleteFunc(active, ended); len(active) == 0 {
			return 0, nil // they ended, or were released, in the meantime
		}
		return 0, callError(ctx, "CancelTasks", err)
	}
	unknown := make(map[uint64]bool)
	for _, id := range out.GetUnknownTaskIds() {
		unknown[id] = true
	}
	lost := func(f *Future) bool { return unknown[f.TaskID()] }
	if err := c.settleCancelled(ctx, slices.DeleteFunc(slices.Clone(active), lost)); err != nil || len(unknown) == 0 {
		return out.GetCancelledTasks(), err
	}
	return out.GetCancelledTasks(), settleUnknown(ctx, slices.DeleteFunc(active, func(f *Future) bool { return !lost(f) }))
}

// unknownTimeout limits the wait for updates on tasks that the scheduler does not know: they may
// have ended.
const unknownTimeout = time.Second

// settleUnknown returns the error of futures whose tasks could not be cancelled because the
// scheduler does not know them. It returns nil if all of them have ended.
func settleUnknown(ctx context.Context, futures []*Future) error {
	limited, cancel := context.WithTimeout(ctx, unknownTimeout)
	defer cancel()
	for _, f := range futures {
		ended, err := endedBy(ctx, limited, f)
		if err != nil {
			return err
		}
		if !ended {
			return &Error{Op: "CancelTasks", Code: codes.NotFound, Reason: "UNKNOWN_TASK", Metadata: map[string]string{"key": f.key}, Message: fmt.Sprintf(
				"the scheduler has no task %q any more, or others alone hold it: submit it again if its result is wanted", f.key)}
		}
	}
	return nil
}

// endedBy waits for the end of a future, at most until limited ends.
// It fails if the caller's context ends.
func endedBy(ctx, limited context.Context, f *Future) (bool, error) {
	select {
	case <-f.Done():
		return true, nil
	case <-limited.Done():
		if ctx.Err() != nil {
			return false, fmt.Errorf("millrace: cancel: task %q is %s: %w", f.key, stateName(f.State()), context.Cause(ctx))
		}
		return false, nil
	}
}

func ended(f *Future) bool { return f.end.Load() != nil }

// settleTimeout limits the wait for the update of a task that has ended. It is long, since such an
// update always comes, with one exception: the task ended while other clients held it, just when
// this client's hold was given up.
const settleTimeout = 5 * time.Second

// settleCancelled returns when the futures of cancelled tasks have ended. For a task that continues
// for other clients, no update will come, since this client does not hold it any more.
// So settleCancelled ends its future itself.
func (c *Client) settleCancelled(ctx context.Context, futures []*Future) error {
	futures = slices.DeleteFunc(futures, ended)
	tasks, asked := make([]uint64, 0, len(futures)), make([]*Future, 0, len(futures))
	for _, f := range futures {
		if id := f.TaskID(); id != 0 {
			tasks, asked = append(tasks, id), append(asked, f)
		}
	}
	located, err := c.locate(ctx, tasks)
	if err != nil {
		return err
	}
	var gone []*Future
	for i, o := range located.GetObjects() {
		if s := o.GetState(); s != Succeeded && s != Failed && s != Cancelled {
			gone = append(gone, asked[i])
		}
	}
	c.futures.abandon(gone)
	limited, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for _, f := range futures {
		ended, err := endedBy(ctx, limited, f)
		if err != nil {
			return err
		}
		if !ended {
			c.futures.abandon([]*Future{f})
		}
	}
	return nil
}

// CancelGraph stops all tasks of a graph, and returns how many were stopped.
func (c *Client) CancelGraph(ctx context.Context, id uint64) (uint64, error) {
	out, err := c.service.CancelTasks(ctx, &millracev1.CancelTasksRequest{ClientId: c.lease.Load(), GraphIds: []uint64{id}})
	return out.GetCancelledTasks(), callError(ctx, "CancelTasks", err)
}

// Retry runs failed or cancelled tasks again, with their failed inputs, and returns how many run.
func (c *Client) Retry(ctx context.Context, futures ...*Future) (uint64, error) {
	ids, err := c.acknowledged(ctx, futures)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	before := make([]*outcome, len(futures))
	for i, f := range futures {
		before[i] = f.end.Load()
	}
	c.futures.forgetJoined(futures) // the update for the next failure may be the first one that arrives
	out, err := c.service.RetryTasks(ctx, &millracev1.RetryTasksRequest{ClientId: c.lease.Load(), Tasks: &millracev1.TaskSet{Ids: ids}})
	if err != nil {
		return 0, callError(ctx, "RetryTasks", err)
	}
	c.futures.revive(futures, before)
	return out.GetRetriedTasks(), nil
}
