package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// rememberedFetches is the number of last fetches that a worker reports.
const rememberedFetches = 256

// fetched holds fetches as the fetching workers report them, by the task that made the object.
type fetched map[uint64][]*millracev1.MemoryFetch

// fetched asks the named workers for their last fetches, or all workers if none is named.
func (c *Cluster) fetched(ctx context.Context, names ...string) (fetched, error) {
	return fetchesOf(ctx, c.Client, names...)
}

// fetchesOf asks the named workers for their last fetches, or all workers if none is named.
func fetchesOf(ctx context.Context, client *millrace.Client, names ...string) (fetched, error) {
	workers, err := client.Workers(ctx)
	if err != nil {
		return nil, err
	}
	out := make(fetched)
	for _, w := range workers {
		if len(names) > 0 && !slices.Contains(names, w.GetName()) {
			continue
		}
		m, err := client.DescribeMemory(ctx, w, rememberedFetches, 0)
		if err != nil {
			return nil, fmt.Errorf("bench: the fetches of %s: %w", w.GetName(), err)
		}
		for _, f := range m.GetFetches() {
			if f.GetObjectCount() > 0 && f.GetReadByTaskId() == 0 {
				out[f.GetTaskId()] = append(out[f.GetTaskId()], f)
			}
		}
	}
	return out, nil
}

// span is the time from the first request for one of the objects until the last one is usable; 0 if
// nothing was fetched.
func (f fetched) span(tasks ...uint64) time.Duration {
	var first, last time.Time
	for _, task := range tasks {
		for _, x := range f[task] {
			ordered := x.GetCreateTime().AsTime()
			usable := ordered.Add(x.GetUsableAfter().AsDuration())
			if first.IsZero() || ordered.Before(first) {
				first = ordered
			}
			if usable.After(last) {
				last = usable
			}
		}
	}
	return last.Sub(first)
}

// spans returns the span of each set of objects that was fetched.
func (f fetched) spans(sets [][]uint64) (out []time.Duration) {
	for _, tasks := range sets {
		if d := f.span(tasks...); d > 0 {
			out = append(out, d)
		}
	}
	return out
}

// steps returns medians over the fetches of the objects, in microseconds after the request: when
// the fetch began, when it had memory for the object, and when the object had arrived.
func (f fetched) steps(tasks []uint64) (begun, placed, arrived float64) {
	var all [3][]time.Duration
	for _, task := range tasks {
		for _, x := range f[task] {
			for i, after := range []*durationpb.Duration{x.GetBegunAfter(), x.GetPlacedAfter(), x.GetArrivedAfter()} {
				all[i] = append(all[i], after.AsDuration())
			}
		}
	}
	if len(all[0]) == 0 {
		return 0, 0, 0
	}
	return percentiles(all[0]).P50, percentiles(all[1]).P50, percentiles(all[2]).P50
}
