package millrace

import (
	"context"
	"fmt"

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

// WaitGraph waits until every task of a graph has ended, and returns the graph.
func (c *Client) WaitGraph(ctx context.Context, id uint64) (*millracev1.Graph, error) {
	return c.FollowGraph(ctx, id, func(*millracev1.Graph) {})
}

// FollowGraph is WaitGraph that calls tell with the graph as it is now and whenever it has changed.
func (c *Client) FollowGraph(ctx context.Context, id uint64, tell func(now *millracev1.Graph)) (*millracev1.Graph, error) {
	var last *millracev1.Graph
	for batch, err := range c.Watch(ctx, WatchOptions{GraphIDs: []uint64{id}, UntilEnded: true}) {
		if err != nil {
			return nil, err
		}
		for _, g := range batch.GetGraphs() {
			last = g
			tell(g)
		}
	}
	if last == nil || last.GetEndTime() == nil {
		// The graph ended, and was dropped from the catalogue, between two batches.
		return c.Graph(ctx, id)
	}
	return last, nil
}
