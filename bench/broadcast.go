package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

// BroadcastConfig configures `bench broadcast`.
type BroadcastConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	Workers    int
	Sizes      []int
	// Protocol of the workers: "auto", "borrow", "ucx" or "grpc".
	Protocol string
	// GPUs: the workers' memory is GPU memory.
	GPUs bool
	// CUDALibrary is the driver; "": the system's. Environment holds further variables for the
	// processes.
	CUDALibrary string
	Environment []string
	Repetitions int
	Progress    func(done, of int)
}

// BroadcastRow is the result for one size: from an object on one worker to a copy on each.
type BroadcastRow struct {
	Bytes   int     `json:"bytes"`
	Workers int     `json:"workers"`
	P50     float64 `json:"us_p50"`
	Max     float64 `json:"us_max"`
	// Rate counts the bytes of all copies.
	Rate        float64 `json:"gb_per_s"`
	Repetitions int     `json:"repetitions"`
	// SeenP50 is the time from the first worker's order of its copy until the last worker had its
	// copy, as the workers report it.
	SeenP50 float64 `json:"seen_us_p50"`
	// Single is the time of one copy alone, and Ratio is the broadcast's time relative to it: a
	// tree needs about log2 of the number of workers, if they have cores and links of their own.
	Single float64 `json:"one_copy_us_p50"`
	Ratio  float64 `json:"ratio"`
	// SeenSingle is the time of one copy alone as its worker reports it. RawP50, with GPUs, is that
	// of a plain copy by the driver.
	SeenSingle float64 `json:"seen_one_copy_us_p50"`
	RawP50     float64 `json:"raw_us_p50,omitempty"`
}

// BroadcastResult is the result of `bench broadcast`.
type BroadcastResult struct {
	Bench    string         `json:"bench"`
	Protocol string         `json:"protocol"`
	Rows     []BroadcastRow `json:"rows"`
	Version  string         `json:"version"`
	Machine  string         `json:"machine"`
}

// Broadcast measures the distribution of one object to all workers.
func Broadcast(ctx context.Context, c BroadcastConfig) (out BroadcastResult, err error) {
	arguments := []string{"--protocol", c.Protocol}
	if c.CUDALibrary != "" {
		arguments = append(arguments, "--cuda-library", c.CUDALibrary)
	}
	cluster, err := StartCluster(ctx, ClusterConfig{
		Executable: c.Executable, Workers: c.Workers, Slots: 1, MemoryLimit: fmt.Sprint(uint64(slices.Max(c.Sizes))*3 + 64<<20),
		GPUs: c.GPUs, Environment: c.Environment, Arguments: arguments,
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
		one, oneSeen, err := replications(ctx, cluster, size, 2, c.Repetitions)
		if err != nil {
			return out, err
		}
		all, allSeen, err := replications(ctx, cluster, size, c.Workers, c.Repetitions)
		if err != nil {
			return out, err
		}
		p := percentiles(all)
		row := BroadcastRow{
			Bytes: size, Workers: c.Workers, P50: p.P50, Max: micros(all[len(all)-1]), Repetitions: c.Repetitions,
			Rate: float64(size) * float64(c.Workers-1) / p.P50 / 1e3, Single: percentiles(one).P50,
			SeenP50: percentiles(allSeen).P50, SeenSingle: percentiles(oneSeen).P50,
		}
		row.Ratio = row.P50 / row.Single
		if c.GPUs {
			raw, err := cluster.driverCopies(ctx, c.CUDALibrary, size, 0, [2]string{transferSource, transferReader})
			if err != nil {
				return out, err
			}
			row.RawP50 = percentiles(raw[0]).P50
		}
		out.Rows = append(out.Rows, row)
		if c.Progress != nil {
			c.Progress(i+1, len(c.Sizes))
		}
	}
	out.Bench, out.Protocol, out.Version, out.Machine = "broadcast", c.Protocol, version.String(), Machine()
	return out, nil
}

// replications times copies of a fresh object to n workers in all, as seen by the client and as
// reported by the workers.
func replications(ctx context.Context, cluster *Cluster, size, n, repetitions int) (took, seen []time.Duration, err error) {
	var objects [][]uint64
	for i := range repetitions + 1 {
		f, err := cluster.Client.Submit(ctx, millrace.Native("array.full"), millrace.Args([]any{(size + 7) / 8}, float64(i)), millrace.WithWorkers(transferSource))
		if err != nil {
			return nil, nil, err
		}
		if err := f.Wait(ctx); err != nil {
			return nil, nil, err
		}
		began := time.Now()
		if err := cluster.Client.Replicate(ctx, n, f); err != nil {
			return nil, nil, err
		}
		// The first run warms up.
		if i > 0 {
			took, objects = append(took, time.Since(began)), append(objects, []uint64{f.TaskID()})
		}
		f.Release()
		if err := cluster.settle(ctx); err != nil {
			return nil, nil, err
		}
	}
	fetches, err := cluster.fetched(ctx)
	if err != nil {
		return nil, nil, err
	}
	if seen = fetches.spans(objects); len(seen) == 0 {
		return nil, nil, errors.New("no worker reported its copies")
	}
	return took, seen, nil
}
