// Package millrace is an Adapter: the Go client of a Millrace cluster.
//
// A Client holds a lease on the scheduler. Tasks are submitted through the Client, and their
// results stay in the cluster as long as its Futures hold them:
//
//	c, err := millrace.Dial(ctx)
//	defer c.Close()
//	a, err := c.Submit(ctx, millrace.Native("array.arange"), millrace.Args(10.0))
//	b, err := c.Submit(ctx, millrace.Python("statistics:fmean"), millrace.Args([]float64{1, 5}))
//	mean, err := millrace.Get[float64](ctx, b)
//
// Submit does not wait for the network: calls are coalesced, and all calls that were queued during
// one request are sent together in the next one. Therefore an error that only the scheduler can
// detect (an unknown op, a key that is taken) reaches the caller through the Future, or through
// Flush.
//
// NewGraph builds graphs of many tasks. It encodes each task once, directly into the bytes that are
// sent.
//
// Errors of calls match the Err... sentinels with errors.Is, by the stable reason that the
// scheduler gave. An error of a task is also a *TaskError.
package millrace
