package millrace

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const pageSize = 1000

// ClusterInfo returns a summary of the cluster.
func (c *Client) ClusterInfo(ctx context.Context) (*millracev1.ClusterInfo, error) {
	out, err := c.service.GetClusterInfo(ctx, &millracev1.GetClusterInfoRequest{})
	if err != nil {
		return nil, callError(ctx, "GetClusterInfo", err)
	}
	return out.GetCluster(), nil
}

// Workers lists the workers in the given states; without states, all workers that are not lost.
// The lists that grow with the number of a worker's peers and deaths are left out.
func (c *Client) Workers(ctx context.Context, states ...millracev1.WorkerState) ([]*millracev1.Worker, error) {
	return c.listWorkers(ctx, millracev1.WorkerView_WORKER_VIEW_BASIC, states)
}

// FullWorkers is Workers with all fields: also the routes to peers, the links of GPUs, and the
// causes of deaths.
func (c *Client) FullWorkers(ctx context.Context, states ...millracev1.WorkerState) ([]*millracev1.Worker, error) {
	return c.listWorkers(ctx, millracev1.WorkerView_WORKER_VIEW_FULL, states)
}

// Worker returns the newest incarnation of a worker, with all fields. A lost worker is known for a
// while.
func (c *Client) Worker(ctx context.Context, name string) (*millracev1.Worker, error) {
	out, err := c.service.GetWorker(ctx, &millracev1.GetWorkerRequest{Worker: workerNamed(name)})
	return out.GetWorker(), callError(ctx, "GetWorker", err)
}

func workerNamed(name string) *millracev1.WorkerRef {
	return &millracev1.WorkerRef{Worker: &millracev1.WorkerRef_Name{Name: name}}
}

func (c *Client) listWorkers(ctx context.Context, view millracev1.WorkerView, states []millracev1.WorkerState) ([]*millracev1.Worker, error) {
	in := &millracev1.ListWorkersRequest{PageSize: pageSize, States: states, View: view}
	var all []*millracev1.Worker
	for {
		out, err := c.service.ListWorkers(ctx, in)
		if err != nil {
			return nil, callError(ctx, "ListWorkers", err)
		}
		all = append(all, out.GetWorkers()...)
		if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
			return all, nil
		}
	}
}

// WaitForWorkers waits until at least n workers are active.
func (c *Client) WaitForWorkers(ctx context.Context, n int) error {
	active := make(map[uint32]bool)
	for batch, err := range c.Watch(ctx, WatchOptions{Workers: true}) {
		if err != nil {
			return fmt.Errorf("millrace: %d of %d workers are active: %w", len(active), n, err)
		}
		if batch.GetSnapshot() {
			clear(active)
		}
		for _, w := range batch.GetWorkers() {
			if w.GetState() == millracev1.WorkerState_WORKER_STATE_ACTIVE {
				active[w.GetWorkerId()] = true
			} else {
				delete(active, w.GetWorkerId())
			}
		}
		for _, id := range batch.GetRemovedWorkerIds() {
			delete(active, id)
		}
		if len(active) >= n {
			return nil
		}
	}
	return fmt.Errorf("millrace: %d of %d workers are active: the scheduler ended the stream", len(active), n)
}

// ref names a task of the client's namespace.
func (c *Client) ref(key string) *millracev1.TaskRef {
	return &millracev1.TaskRef{Task: &millracev1.TaskRef_Key{Key: key}, Namespace: c.config.namespace}
}

// Explain returns why a task is not running, or how it ran.
func (c *Client) Explain(ctx context.Context, key string) (*millracev1.ExplainTaskResponse, error) {
	out, err := c.service.ExplainTask(ctx, &millracev1.ExplainTaskRequest{Task: c.ref(key)})
	return out, callError(ctx, "ExplainTask", err)
}

// Task returns the scheduler's record of a task, with its history.
func (c *Client) Task(ctx context.Context, key string) (*millracev1.Task, error) {
	out, err := c.service.GetTask(ctx, &millracev1.GetTaskRequest{Task: c.ref(key), History: true})
	return out.GetTask(), callError(ctx, "GetTask", err)
}

// Graph returns one graph.
func (c *Client) Graph(ctx context.Context, id uint64) (*millracev1.Graph, error) {
	out, err := c.service.GetGraph(ctx, &millracev1.GetGraphRequest{GraphId: id})
	return out.GetGraph(), callError(ctx, "GetGraph", err)
}

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

// unknownPatience limits the wait for updates on tasks that the scheduler does not know: they may
// have ended.
const unknownPatience = time.Second

// settleUnknown returns the error of futures whose tasks could not be cancelled because the
// scheduler does not know them. It returns nil if all of them have ended.
func settleUnknown(ctx context.Context, futures []*Future) error {
	patience, cancel := context.WithTimeout(ctx, unknownPatience)
	defer cancel()
	for _, f := range futures {
		ended, err := endedBy(ctx, patience, f)
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

// endedBy waits for the end of a future, at most until the end of patience.
// It fails if the caller's context ends.
func endedBy(ctx, patience context.Context, f *Future) (bool, error) {
	select {
	case <-f.Done():
		return true, nil
	case <-patience.Done():
		if ctx.Err() != nil {
			return false, fmt.Errorf("millrace: cancel: task %q is %s: %w", f.key, stateName(f.State()), context.Cause(ctx))
		}
		return false, nil
	}
}

func ended(f *Future) bool { return f.end.Load() != nil }

// settlePatience limits the wait for the update of a task that has ended. It is long, since such an
// update always comes, with one exception: the task ended while other clients held it, just when
// this client's hold was given up.
const settlePatience = 5 * time.Second

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
	patience, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	for _, f := range futures {
		ended, err := endedBy(ctx, patience, f)
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
	out, err := c.service.RetryTasks(ctx, &millracev1.RetryTasksRequest{ClientId: c.lease.Load(), Tasks: &millracev1.TaskSet{Ids: ids}})
	if err != nil {
		return 0, callError(ctx, "RetryTasks", err)
	}
	c.futures.revive(futures, before)
	return out.GetRetriedTasks(), nil
}

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
	c.futures.bind(futures, out.GetTaskIds(), math.MaxUint64)
	return futures, nil
}

// WaitGraph waits until every task of a graph has ended, and returns the graph.
func (c *Client) WaitGraph(ctx context.Context, id uint64) (*millracev1.Graph, error) {
	var last *millracev1.Graph
	for batch, err := range c.Watch(ctx, WatchOptions{GraphIDs: []uint64{id}, UntilEnded: true}) {
		if err != nil {
			return nil, err
		}
		for _, g := range batch.GetGraphs() {
			last = g
		}
	}
	if last == nil || last.GetEndTime() == nil {
		// The graph ended, and was dropped from the catalogue, between two batches.
		return c.Graph(ctx, id)
	}
	return last, nil
}

// Shutdown stops the cluster: first the workers, then the scheduler.
func (c *Client) Shutdown(ctx context.Context, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err := c.service.Shutdown(ctx, &millracev1.ShutdownRequest{Reason: reason})
	return callError(ctx, "Shutdown", err)
}
