package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

const (
	latencyWarmUp  = 100
	dependentHops  = 20
	dependentRuns  = 200
	leastLatencies = 200
)

// LatencyResult is the result of `bench latency`.
type LatencyResult struct {
	Bench string `json:"bench"`
	// SubmitResult is the time from Submit of one no-op task to its result in the client, one task
	// at a time.
	SubmitResult Percentiles `json:"submit_result_us"`
	// DependentStart is the time from the finish of a task on one worker to the start of its
	// dependent on another: a hop of a chain that goes back and forth between two workers. A sample
	// is the mean of the 20 hops of one chain.
	DependentStart Percentiles `json:"dependent_start_us"`
	Workers        int         `json:"workers"`
	Version        string      `json:"version"`
	Machine        string      `json:"machine"`
}

// Latency measures latencies with real workers, one task at a time.
func Latency(ctx context.Context, executable string, samples int, progress func(done, of int)) (out LatencyResult, err error) {
	if samples < leastLatencies {
		return out, fmt.Errorf("bench latency: %d samples; percentiles need at least %d", samples, leastLatencies)
	}
	cluster, err := StartCluster(ctx, ClusterConfig{Executable: executable, Workers: 2, Slots: 1})
	if err != nil {
		return out, err
	}
	defer func() {
		if closed := cluster.Close(); err == nil {
			err = closed
		}
	}()
	if progress == nil {
		progress = func(int, int) {}
	}
	all := samples + dependentRuns
	var single []time.Duration
	// The futures are held to the end: releases are not measured, and would run during the next
	// sample.
	var held []*millrace.Future
	for i := range latencyWarmUp + samples {
		began := time.Now()
		f, err := cluster.Client.Submit(ctx, noop, millrace.Args())
		if err != nil {
			return out, err
		}
		if _, err := f.Value(ctx); err != nil {
			return out, err
		}
		if took := time.Since(began); i >= latencyWarmUp {
			single = append(single, took)
			progress(i-latencyWarmUp+1, all)
		}
		held = append(held, f)
	}
	cluster.Client.Release(held...)
	out.SubmitResult = percentiles(single)
	workers, err := cluster.Client.Workers(ctx)
	if err != nil {
		return out, err
	}
	var hops []time.Duration
	for i := range dependentRuns + dependentRuns/10 {
		took, err := chainHop(ctx, cluster.Client, "hop"+strconv.Itoa(i)+"-", workers[0].GetName(), workers[1].GetName())
		if err != nil {
			return out, err
		}
		if i >= dependentRuns/10 {
			hops = append(hops, took)
			progress(samples+len(hops), all)
		}
	}
	out.DependentStart = percentiles(hops)
	out.Bench, out.Workers, out.Version, out.Machine = "latency", 2, version.String(), Machine()
	return out, nil
}

// chainHop returns the mean time of a hop: the time of a chain of dependentHops hops without that
// of one task alone, per hop.
func chainHop(ctx context.Context, client *millrace.Client, prefix string, names ...string) (time.Duration, error) {
	run := func(prefix string, tasks int) (time.Duration, error) {
		g := client.NewGraph("hops")
		args := millrace.Args()
		for i := range tasks {
			options := []millrace.TaskOption{millrace.WithWorkers(names[i%len(names)])}
			if i == tasks-1 {
				options = append(options, millrace.Hold())
			}
			args = millrace.Args(g.Add(prefix+strconv.Itoa(i), noop, args, options...))
		}
		began := time.Now()
		r, err := g.Submit(ctx)
		if err != nil {
			return 0, err
		}
		if err := r.Wait(ctx); err != nil {
			return 0, err
		}
		took := time.Since(began)
		r.Release()
		return took, nil
	}
	one, err := run(prefix+"one-", 1)
	if err != nil {
		return 0, err
	}
	many, err := run(prefix, 1+dependentHops)
	if err != nil {
		return 0, err
	}
	return max(many-one, 0) / dependentHops, nil
}
