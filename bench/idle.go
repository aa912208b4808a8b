package bench

import (
	"context"
	"fmt"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/pause"
	"github.com/millrace/millrace/internal/version"
)

// IdleConfig configures `bench idle`.
type IdleConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	// Protocol by which the workers have read from each other before.
	Protocol string
	// For is the duration of the idle phase.
	For time.Duration
}

// IdleResult is the result of `bench idle`: the share of a core that each of two workers uses while
// there is no work. The workers have read from each other before, and the client has mapped their
// memory. The scheduler's share is added.
type IdleResult struct {
	Bench       string    `json:"bench"`
	Protocol    string    `json:"protocol"`
	Seconds     float64   `json:"seconds"`
	WorkerCores []float64 `json:"worker_cores"`
	// MostCores is the largest of WorkerCores.
	MostCores     float64 `json:"most_cores"`
	SchedulerCore float64 `json:"scheduler_cores"`
	Version       string  `json:"version"`
	Machine       string  `json:"machine"`
}

// Idle opens all paths and then measures the CPU time of the idle processes.
func Idle(ctx context.Context, c IdleConfig) (out IdleResult, err error) {
	cluster, err := StartCluster(ctx, ClusterConfig{Executable: c.Executable, Workers: 2, Slots: 1, Arguments: []string{"--protocol", c.Protocol}})
	if err != nil {
		return out, err
	}
	defer func() {
		if closed := cluster.Close(); err == nil {
			err = closed
		}
	}()
	workers, err := cluster.Client.Workers(ctx)
	if err != nil {
		return out, err
	}
	// Each worker reads from the other one, by UCX or gRPC, and the client reads from both, in
	// mapped memory.
	var held []*millrace.Future
	for i, w := range workers {
		on := func(i int) millrace.TaskOption { return millrace.WithWorkers(workers[i%len(workers)].GetName()) }
		data, err := cluster.Client.Submit(ctx, millrace.Native("bench.bytes"), millrace.Args(32<<20), on(i))
		if err != nil {
			return out, err
		}
		read, err := cluster.Client.Submit(ctx, millrace.Native("bench.checksum"), millrace.Args(data), on(i+1))
		if err != nil {
			return out, err
		}
		if err := read.Wait(ctx); err != nil {
			return out, err
		}
		if _, err := data.Array(ctx); err != nil {
			return out, fmt.Errorf("bench: read from %s: %w", w.GetName(), err)
		}
		held = append(held, data, read)
	}
	if err := pause.For(ctx, 2*time.Second); err != nil { // work that has begun ends in this time
		return out, err
	}
	pids := []int{cluster.Scheduler.PID()}
	for _, w := range workers {
		pids = append(pids, int(w.GetPid()))
	}
	before, err := cpuTimes(pids)
	if err != nil {
		return out, err
	}
	began := time.Now()
	if err := pause.For(ctx, c.For); err != nil {
		return out, err
	}
	took := time.Since(began)
	after, err := cpuTimes(pids)
	if err != nil {
		return out, err
	}
	for i := range pids {
		cores := (after[i] - before[i]).Seconds() / took.Seconds()
		if i == 0 {
			out.SchedulerCore = cores
			continue
		}
		out.WorkerCores = append(out.WorkerCores, cores)
		out.MostCores = max(out.MostCores, cores)
	}
	for _, f := range held {
		f.Release()
	}
	out.Bench, out.Protocol, out.Seconds, out.Version, out.Machine = "idle", c.Protocol, took.Seconds(), version.String(), Machine()
	return out, nil
}

func cpuTimes(pids []int) (out []time.Duration, err error) {
	for _, pid := range pids {
		d, err := cpuTime(pid)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}
