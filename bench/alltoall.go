package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

// AllToAllConfig configures `bench alltoall`.
type AllToAllConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	Workers    int
	// Protocol of the workers: "auto", "borrow", "ucx" or "grpc".
	Protocol string
	// GPUs: the workers' memory is GPU memory.
	GPUs bool
	// CUDALibrary is the driver; "": the system's. Environment holds further variables for the
	// processes.
	CUDALibrary string
	Environment []string
	// Sizes in bytes of the object that each worker sends to each other worker.
	Sizes       []int
	Repetitions int
	Progress    func(done, of int)
}

// AllToAllRow is the result for one size. Every worker has an object for each other worker. The
// client submits one task on each worker, which needs all objects for that worker. The time is from
// the submission to the end of the last task.
type AllToAllRow struct {
	// Bytes of one object.
	Bytes int    `json:"bytes"`
	Path  string `json:"path"`
	// Rate counts all bytes that move between workers, WorkerRate the bytes that one worker
	// receives.
	Rate       float64 `json:"gb_per_s"`
	WorkerRate float64 `json:"worker_gb_per_s"`
	P50        float64 `json:"us_p50"`
	P99        float64 `json:"us_p99"`
	Samples    int     `json:"samples"`
	// SeenP50 is the time from the first worker's order of an object until the last worker had all
	// of its objects, as the workers report it. It is 0 if nothing is fetched because memory is
	// used in place. SeenRate is the rate of all bytes in that time.
	SeenP50  float64 `json:"seen_us_p50,omitempty"`
	SeenRate float64 `json:"seen_gb_per_s,omitempty"`
	// Raw is a plain copy of the same number of bytes in the memory of one process, by as many
	// threads as there are workers. With GPUs it is the time of copies by the driver in one
	// process, between all pairs of GPUs at once.
	RawRate float64 `json:"raw_gb_per_s,omitempty"`
	RawP50  float64 `json:"raw_us_p50,omitempty"`
	// Ratio and SeenRatio are the rates relative to the raw one.
	Ratio     float64 `json:"ratio,omitempty"`
	SeenRatio float64 `json:"seen_ratio,omitempty"`
}

// AllToAllResult is the result of `bench alltoall`.
type AllToAllResult struct {
	Bench   string        `json:"bench"`
	Workers int           `json:"workers"`
	Rows    []AllToAllRow `json:"rows"`
	Version string        `json:"version"`
	Machine string        `json:"machine"`
}

// AllToAll measures an exchange in which every worker gets an object from every other one.
func AllToAll(ctx context.Context, c AllToAllConfig) (out AllToAllResult, err error) {
	most := 0
	for _, size := range c.Sizes {
		most = max(most, size)
	}
	arguments := []string{"--protocol", c.Protocol}
	if c.CUDALibrary != "" {
		arguments = append(arguments, "--cuda-library", c.CUDALibrary)
	}
	cluster, err := StartCluster(ctx, ClusterConfig{
		Executable: c.Executable, Workers: c.Workers, Slots: 1, MemoryLimit: fmt.Sprint(uint64(most)*uint64(3*c.Workers) + 64<<20),
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
	x := &exchange{AllToAllConfig: c, cluster: cluster, client: cluster.Client}
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
	cluster *Cluster
	client  *millrace.Client
	round   int
}

func (x *exchange) measure(ctx context.Context, size int) (row AllToAllRow, err error) {
	var took, raw []time.Duration
	var rounds [][]uint64
	for i := range x.Repetitions + 1 {
		d, tasks, err := x.once(ctx, size)
		if err != nil {
			return row, err
		}
		if i > 0 {
			took, rounds = append(took, d), append(rounds, tasks)
		}
	}
	p := percentiles(took)
	moved := float64(x.Workers*(x.Workers-1)) * float64(size)
	row = AllToAllRow{
		Bytes: size, Path: x.Protocol, Rate: moved / p.P50 / 1e3, WorkerRate: moved / float64(x.Workers) / p.P50 / 1e3,
		P50: p.P50, P99: p.P99, Samples: p.Samples,
	}
	seen, err := x.cluster.fetched(ctx)
	if err != nil {
		return row, err
	}
	if spans := seen.spans(rounds); len(spans) > 0 {
		row.SeenP50 = percentiles(spans).P50
		row.SeenRate = moved / row.SeenP50 / 1e3
	}
	if x.GPUs {
		if row.RawP50, err = x.driverTime(ctx, size); err != nil {
			return row, err
		}
	} else {
		copies := newCopies(x.Workers, size)
		for i := range x.Repetitions + 1 {
			if d := copies.once(); i > 0 {
				raw = append(raw, d)
			}
		}
		row.RawP50 = percentiles(raw).P50
	}
	row.RawRate = moved / row.RawP50 / 1e3
	row.Ratio, row.SeenRatio = row.Rate/row.RawRate, row.SeenRate/row.RawRate
	return row, nil
}

// driverTime returns the time of the slowest of the plain copies between all pairs of GPUs, in
// microseconds.
func (x *exchange) driverTime(ctx context.Context, size int) (longest float64, err error) {
	var pairs [][2]string
	for from := range x.Workers {
		for to := range x.Workers {
			if from != to {
				pairs = append(pairs, [2]string{worker(from), worker(to)})
			}
		}
	}
	took, err := x.cluster.driverCopies(ctx, x.CUDALibrary, size, 0, pairs...)
	for _, one := range took {
		if len(one) > 0 {
			longest = max(longest, percentiles(one).P50)
		}
	}
	return longest, err
}

// worker returns the name of worker i.
func worker(i int) string { return fmt.Sprint("host-", i) }

// once creates the objects, waits for them, and then measures the exchange.
func (x *exchange) once(ctx context.Context, size int) (took time.Duration, tasks []uint64, err error) {
	x.round++
	meant := make([][]any, x.Workers)
	var made []*millrace.Future
	for from := range x.Workers {
		for to := range x.Workers {
			if from == to {
				continue
			}
			f, err := x.client.Submit(ctx, millrace.Native("array.full"), millrace.Args([]any{(size + 7) / 8}, float64(x.round)), millrace.WithWorkers(worker(from)))
			if err != nil {
				return 0, nil, err
			}
			made, meant[to] = append(made, f), append(meant[to], f)
		}
	}
	for _, f := range made {
		if err := f.Wait(ctx); err != nil {
			return 0, nil, err
		}
	}
	for _, f := range made {
		tasks = append(tasks, f.TaskID())
	}
	// One submission, so that no worker can start before the tasks of all workers are submitted.
	uses := x.client.NewGraph("exchange")
	for to := range x.Workers {
		uses.Add("", noop, millrace.Args(meant[to]...), millrace.WithWorkers(worker(to)), millrace.Hold())
	}
	began := time.Now()
	run, err := uses.Submit(ctx)
	if err == nil {
		err = run.Wait(ctx)
	}
	if err != nil {
		return 0, nil, err
	}
	took = time.Since(began)
	run.Release()
	x.client.Release(made...)
	return took, tasks, nil
}

// copies holds buffers for plain copies in memory, with one thread for each worker.
type copies struct{ from, to [][]byte }

func newCopies(workers, size int) *copies {
	c := new(copies)
	for range workers {
		data := make([]byte, (workers-1)*size)
		for i := range data {
			data[i] = byte(i) // pages that were never written share one physical page
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
