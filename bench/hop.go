package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

// hopsPerSample is the length of a chain: a sample is the mean of its hops.
const hopsPerSample = 20

// HopConfig configures `bench hop`.
type HopConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	// GPUs: two workers with a GPU each, with the driver CUDALibrary ("": the system's).
	GPUs        bool
	CUDALibrary string
	// Environment holds further variables for the processes.
	Environment []string
	// Sizes in bytes of the object that a task passes to the next; multiples of 16.
	Sizes []int
	// Samples per size.
	Samples  int
	Progress func(done, of int)
}

// HopRow is the result for one size. All times are from the end of one task to the end of the next,
// which does almost no work. The next task starts earlier by the time of a kernel that checks its
// input and fills its output.
type HopRow struct {
	Bytes int `json:"bytes"`
	// Hop is for a chain that goes back and forth between two workers, Local for the same chain on
	// one worker.
	HopP50   Micros `json:"hop_p50_us"`
	HopP99   Micros `json:"hop_p99_us"`
	LocalP50 Micros `json:"local_p50_us"`
	LocalP99 Micros `json:"local_p99_us"`
	// OverLocal is the difference of the medians: the cost of the path between the workers.
	OverLocal Micros `json:"over_local_us"`
}

// HopResult is the result of `bench hop`.
type HopResult struct {
	Bench   string   `json:"bench"`
	Memory  string   `json:"memory"`
	Rows    []HopRow `json:"rows"`
	Version string   `json:"version"`
	Machine string   `json:"machine"`
}

// Hop measures the time between the end of a task on one worker and its dependent on another one.
func Hop(ctx context.Context, c HopConfig) (out HopResult, err error) {
	for _, n := range c.Sizes {
		if n < 16 || n%16 != 0 {
			return out, fmt.Errorf("bench hop: %d bytes; a multiple of 16", n)
		}
	}
	config := ClusterConfig{Executable: c.Executable, Workers: 2, Slots: 1, MemoryLimit: "128MiB", GPUs: c.GPUs, Environment: c.Environment}
	if out.Memory = "host"; c.GPUs {
		out.Memory = "cuda"
		if c.CUDALibrary != "" {
			config.Arguments = []string{"--cuda-library", c.CUDALibrary}
		}
	} else {
		config.Arguments = []string{"--device", "host"}
	}
	cluster, err := StartCluster(ctx, config)
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
	a, b := workers[0].GetName(), workers[1].GetName()
	warm := max(c.Samples/5, 3)
	for i, bytes := range c.Sizes {
		var hops, local []time.Duration
		for n := range warm + c.Samples {
			one, err := pointHop(ctx, cluster.Client, fmt.Sprintf("local-%d-%d-", bytes, n), bytes, a, a)
			if err != nil {
				return out, err
			}
			two, err := pointHop(ctx, cluster.Client, fmt.Sprintf("hop-%d-%d-", bytes, n), bytes, a, b)
			if err != nil {
				return out, err
			}
			if n >= warm {
				local, hops = append(local, one), append(hops, two)
			}
			if c.Progress != nil {
				c.Progress(i*(warm+c.Samples)+n+1, len(c.Sizes)*(warm+c.Samples))
			}
		}
		hop, here := percentiles(hops), percentiles(local)
		out.Rows = append(out.Rows, HopRow{
			Bytes: bytes, HopP50: Micros(hop.P50), HopP99: Micros(hop.P99), LocalP50: Micros(here.P50), LocalP99: Micros(here.P99),
			OverLocal: Micros(hop.P50 - here.P50),
		})
	}
	out.Bench, out.Version, out.Machine = "hop", version.String(), Machine()
	return out, nil
}

// pointHop returns the mean time of a hop: the time of a chain without that of its first task
// alone, per hop.
func pointHop(ctx context.Context, client *millrace.Client, prefix string, bytes int, names ...string) (time.Duration, error) {
	op := millrace.Native("bench.point")
	run := func(prefix string, tasks int) (time.Duration, error) {
		g := client.NewGraph("hop")
		for i := range tasks {
			options := []millrace.TaskOption{millrace.WithWorkers(names[i%len(names)])}
			if i == tasks-1 {
				options = append(options, millrace.Hold())
			}
			args := []any{i, 0, []int64{}, 1, bytes}
			if i > 0 {
				args = []any{i, 0, []int64{0}, 1, bytes, millrace.Key(prefix + strconv.Itoa(i-1))}
			}
			g.Add(prefix+strconv.Itoa(i), op, millrace.Args(args...), options...)
		}
		began := time.Now()
		r, err := g.Submit(ctx)
		if err != nil {
			return 0, err
		}
		defer r.Release()
		if err := r.Wait(ctx); err != nil {
			return 0, err
		}
		took := time.Since(began)
		return took, checkPoint(ctx, r.Future(millrace.Key(prefix+strconv.Itoa(tasks-1))), tasks-1, 0, bytes)
	}
	one, err := run(prefix+"one-", 1)
	if err != nil {
		return 0, err
	}
	many, err := run(prefix, 1+hopsPerSample)
	if err != nil {
		return 0, err
	}
	return max(many-one, 0) / hopsPerSample, nil
}
