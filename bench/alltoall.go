package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

// AllToAllConfig is `bench alltoall`.
type AllToAllConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	Workers    int
	// Protocol is how bytes go: "auto", "borrow", "ucx" or "grpc".
	Protocol string
	// GPUs: the workers' memory is that of GPUs.
	GPUs bool
	// Sizes are of what goes from each worker to each other one.
	Sizes       []int
	Repetitions int
	Progress    func(done, of int)
}

// AllToAllRow is one size. Every worker has an object for each other one; the time is that from the submission of one task
// on each worker, which needs all objects meant for it, to the last one's end; with GPUs it is a task for each object.
type AllToAllRow struct {
	// Bytes of one object.
	Bytes int    `json:"bytes"`
	Path  string `json:"path"`
	// Rate is of all bytes that change the worker, WorkerRate of those that one worker gets.
	Rate       float64 `json:"gb_per_s"`
	WorkerRate float64 `json:"worker_gb_per_s"`
	P50        float64 `json:"us_p50"`
	P99        float64 `json:"us_p99"`
	Samples    int     `json:"samples"`
	// Raw is a copy of as many bytes in the memory of one process, by as many threads as there are workers; not with GPUs.
	RawRate float64 `json:"raw_gb_per_s,omitempty"`
	RawP50  float64 `json:"raw_us_p50,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"`
}

// AllToAllResult is the result of `bench alltoall`.
type AllToAllResult struct {
	Bench   string        `json:"bench"`
	Workers int           `json:"workers"`
	Rows    []AllToAllRow `json:"rows"`
	Version string        `json:"version"`
	Machine string        `json:"machine"`
}

// AllToAll measures an exchange in which every worker gets something from every other one.
func AllToAll(ctx context.Context, c AllToAllConfig) (out AllToAllResult, err error) {
	most := 0
	for _, size := range c.Sizes {
		most = max(most, size)
	}
	slots := 1
	if c.GPUs { // a task for each object
		slots = c.Workers
	}
	cluster, err := StartCluster(ctx, ClusterConfig{
		Executable: c.Executable, Workers: c.Workers, Slots: slots, MemoryLimit: fmt.Sprint(uint64(most)*uint64(3*c.Workers) + 64<<20),
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
	x := &exchange{AllToAllConfig: c, client: cluster.Client}
	for i, size := range c.Sizes {
		row, err := x.measure(ctx, size)
		if err != nil {
			return out, fmt.Errorf("bench alltoall, %d bytes: %w", size, err)
		}
		out.Rows = append(out.Rows, row)
		if c.Progress != nil {
			c.Progress(i+1, len(c.Sizes))
		}
	}
	out.Bench, out.Workers, out.Version, out.Machine = "alltoall", c.Workers, version.String(), Machine()
	return out, nil
}

type exchange struct {
	AllToAllConfig
	client *millrace.Client
	round  int
}

func (x *exchange) measure(ctx context.Context, size int) (row AllToAllRow, err error) {
	var took, raw []time.Duration
	for i := range x.Repetitions + 1 {
		d, err := x.once(ctx, size)
		if err != nil {
			return row, err
		}
		if i > 0 {
			took = append(took, d)
		}
	}
	p := percentiles(took)
	moved := float64(x.Workers*(x.Workers-1)) * float64(size)
	row = AllToAllRow{
		Bytes: size, Path: x.Protocol, Rate: moved / p.P50 / 1e3, WorkerRate: moved / float64(x.Workers) / p.P50 / 1e3,
		P50: p.P50, P99: p.P99, Samples: p.Samples,
	}
	if x.GPUs {
		return row, nil
	}
	copies := newCopies(x.Workers, size)
	for i := range x.Repetitions + 1 {
		if d := copies.once(); i > 0 {
			raw = append(raw, d)
		}
	}
	row.RawP50 = percentiles(raw).P50
	row.RawRate = moved / row.RawP50 / 1e3
	row.Ratio = row.Rate / row.RawRate
	return row, nil
}

// once makes the objects, waits for them, and then measures the exchange.
func (x *exchange) once(ctx context.Context, size int) (time.Duration, error) {
	x.round++
	name := func(i int) string { return fmt.Sprint("host-", i) }
	meant := make([][]any, x.Workers)
	var made []*millrace.Future
	for from := range x.Workers {
		for to := range x.Workers {
			if from == to {
				continue
			}
			f, err := x.client.Submit(ctx, millrace.Native("array.full"), millrace.Args([]any{(size + 7) / 8}, float64(x.round)), millrace.WithWorkers(name(from)))
			if err != nil {
				return 0, err
			}
			made, meant[to] = append(made, f), append(meant[to], f)
		}
	}
	for _, f := range made {
		if err := f.Wait(ctx); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	var uses []*millrace.Future
	for to := range x.Workers {
		tasks := [][]any{meant[to]}
		if x.GPUs {
			tasks = slices.Collect(slices.Chunk(meant[to], 1))
		}
		for _, inputs := range tasks {
			op, args := noop, millrace.Args(inputs...)
			if x.GPUs {
				op, args = touching(inputs...)
			}
			f, err := x.client.Submit(ctx, op, args, millrace.WithWorkers(name(to)))
			if err != nil {
				return 0, err
			}
			uses = append(uses, f)
		}
	}
	for _, f := range uses {
		if err := f.Wait(ctx); err != nil {
			return 0, err
		}
	}
	took := time.Since(began)
	x.client.Release(append(made, uses...)...)
	return took, nil
}

// copies are bare copies in memory, one thread for each worker.
type copies struct{ from, to [][]byte }

func newCopies(workers, size int) *copies {
	c := new(copies)
	for range workers {
		data := make([]byte, (workers-1)*size)
		for i := range data {
			data[i] = byte(i) // pages that were never written are all the same one
		}
		c.from, c.to = append(c.from, data), append(c.to, make([]byte, (workers-1)*size))
	}
	return c
}

func (c *copies) once() time.Duration {
	began := time.Now()
	var all sync.WaitGroup
	for i := range c.from {
		all.Go(func() { copy(c.to[i], c.from[i]) })
	}
	all.Wait()
	return time.Since(began)
}
