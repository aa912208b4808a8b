package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

// BroadcastConfig is `bench broadcast`.
type BroadcastConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	Workers    int
	Sizes      []int
	// Protocol of the workers: "auto", "borrow", "ucx", "grpc".
	Protocol string
	// GPUs: the workers' memory is that of GPUs.
	GPUs        bool
	Repetitions int
	Progress    func(done, of int)
}

// BroadcastRow is one size: from an object on one worker to a copy on each.
type BroadcastRow struct {
	Bytes   int     `json:"bytes"`
	Workers int     `json:"workers"`
	P50     float64 `json:"us_p50"`
	Max     float64 `json:"us_max"`
	// Rate counts the bytes of all copies.
	Rate        float64 `json:"gb_per_s"`
	Repetitions int     `json:"repetitions"`
	// Single is one copy alone, and Ratio how many of these the broadcast takes: a tree needs about log2 of the workers,
	// if they have cores and links of their own.
	Single float64 `json:"one_copy_us_p50"`
	Ratio  float64 `json:"ratio"`
}

// BroadcastResult is the result of `bench broadcast`.
type BroadcastResult struct {
	Bench    string         `json:"bench"`
	Protocol string         `json:"protocol"`
	Rows     []BroadcastRow `json:"rows"`
	Version  string         `json:"version"`
	Machine  string         `json:"machine"`
}

// Broadcast measures how one object gets to all workers.
func Broadcast(ctx context.Context, c BroadcastConfig) (out BroadcastResult, err error) {
	cluster, err := StartCluster(ctx, ClusterConfig{
		Executable: c.Executable, Workers: c.Workers, Slots: 1, MemoryLimit: fmt.Sprint(uint64(slices.Max(c.Sizes))*3 + 64<<20),
		GPUs: c.GPUs, Arguments: []string{"--protocol", c.Protocol},
	})
	if err != nil {
		return out, err
	}
	defer func() {
		if closed := cluster.Close(); err == nil {
			err = closed
		}
	}()
	for i, size := range c.Sizes {
		one, err := replications(ctx, cluster, size, 2, c.Repetitions)
		if err != nil {
			return out, err
		}
		all, err := replications(ctx, cluster, size, c.Workers, c.Repetitions)
		if err != nil {
			return out, err
		}
		middle := micros(all[len(all)/2])
		row := BroadcastRow{
			Bytes: size, Workers: c.Workers, P50: middle, Max: micros(all[len(all)-1]), Repetitions: c.Repetitions,
			Rate: float64(size) * float64(c.Workers-1) / middle / 1e3, Single: micros(one[len(one)/2]),
		}
		row.Ratio = row.P50 / row.Single
		out.Rows = append(out.Rows, row)
		if c.Progress != nil {
			c.Progress(i+1, len(c.Sizes))
		}
	}
	out.Bench, out.Protocol, out.Version, out.Machine = "broadcast", c.Protocol, version.String(), Machine()
	return out, nil
}

// replications times copies of a fresh object to n workers in all; the times are sorted.
func replications(ctx context.Context, cluster *Cluster, size, n, repetitions int) ([]time.Duration, error) {
	var took []time.Duration
	for i := range repetitions + 1 {
		f, err := cluster.Client.Submit(ctx, millrace.Native("array.full"), millrace.Args([]any{(size + 7) / 8}, float64(i)), millrace.WithWorkers(transferSource))
		if err != nil {
			return nil, err
		}
		if err := f.Wait(ctx); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := cluster.Client.Replicate(ctx, n, f); err != nil {
			return nil, err
		}
		if i > 0 { // The first one warms up.
			took = append(took, time.Since(began))
		}
		f.Release()
		if err := cluster.settle(ctx); err != nil {
			return nil, err
		}
	}
	slices.Sort(took)
	return took, nil
}
