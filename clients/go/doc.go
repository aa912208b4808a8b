// Package millrace is an Adapter: the Go client of a Millrace cluster.
//
// A Client holds a lease on the scheduler. Tasks are submitted through it and their results stay in the cluster for as
// long as its Futures hold them:
//
//	c, err := millrace.Dial(ctx)
//	defer c.Close()
//	a, err := c.Submit(ctx, millrace.Native("array.arange"), millrace.Args(10.0))
//	b, err := c.Submit(ctx, millrace.Python("statistics:fmean"), millrace.Args([]float64{1, 2, 6}))
//	mean, err := millrace.Get[float64](ctx, b)
//
// Submit never waits for the network: calls are coalesced, and whatever was queued while one request was under way
// travels together in the next. An error that only the scheduler can see (an unknown op, a key that is taken) therefore
// reaches the caller through the Future, or through Flush.
//
// Graphs of many tasks are built with NewGraph, which encodes each task once, straight into the bytes that are sent.
//
// Errors of calls match the Err... sentinels with errors.Is, by the stable reason that the scheduler gave; an error of a
// task is a *TaskError as well.
package millrace
