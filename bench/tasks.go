package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

const (
	defaultRepetitions = 3
	warmUpTasks        = 20_000
)

var noop = millrace.Native("bench.noop")

// TasksConfig configures `bench tasks`.
type TasksConfig struct {
	Cluster     ClusterConfig
	Tasks       int
	Repetitions int
	// Viewers is the number of streams of the dashboard that are read meanwhile. With any, each
	// repetition is a pair: one run with them, and one without.
	Viewers int
	// Progress, if not nil, is called with the number of finished repetitions.
	Progress func(done, of int)
}

// TasksResult is the result of `bench tasks`: the repetition with the median rate.
type TasksResult struct {
	Bench               string  `json:"bench"`
	Workers             int     `json:"workers"`
	Tasks               int     `json:"tasks"`
	Seconds             float64 `json:"seconds"`
	TasksPerSecond      float64 `json:"tasks_per_second"`
	SchedulerCPUPerTask float64 `json:"scheduler_cpu_us_per_task"`
	ClientCPUPerTask    float64 `json:"client_cpu_us_per_task"`
	// PeakRSSBytes is the scheduler's, over all repetitions.
	PeakRSSBytes uint64 `json:"peak_rss_bytes"`
	Version      string `json:"version"`

	// Viewers read StreamBytes in all. ViewersCores is the time of processors that the scheduler
	// took for them, per second: the median of the pairs of runs with and without them.
	Viewers            int     `json:"viewers,omitempty"`
	StreamBytes        int64   `json:"stream_bytes,omitempty"`
	ViewersCores       float64 `json:"viewers_cores,omitempty"`
	ViewersCoresSpread Spread  `json:"viewers_cores_spread,omitzero"`

	Zero        bool   `json:"zero"`
	Shape       string `json:"shape,omitempty"`
	PerTask     Micros `json:"us_per_task,omitzero"`
	Repetitions int    `json:"repetitions"`
	// Spread of tasks_per_second.
	Spread  Spread `json:"tasks_per_second_spread"`
	Machine string `json:"machine"`
}

// Micros is a time in microseconds.
type Micros float64

// Tasks measures independent no-op tasks: one client submits them, holds them, and receives the end
// of each.
func Tasks(ctx context.Context, c TasksConfig) (TasksResult, error) {
	return measure(ctx, "tasks", c, func(ctx context.Context, client *millrace.Client, n int) error {
		calls := func(yield func(millrace.Arguments) bool) {
			for range n {
				if !yield(millrace.Arguments{}) {
					return
				}
			}
		}
		futures, err := client.Map(ctx, noop, calls)
		if err != nil {
			return err
		}
		if err := millrace.WaitAll(ctx, futures...); err != nil {
			return err
		}
		defer client.Release(futures...)
		return nil
	})
}

// workload runs n tasks.
type workload func(ctx context.Context, client *millrace.Client, n int) error

// measure runs a workload of n tasks several times.
func measure(ctx context.Context, name string, c TasksConfig, run workload) (_ TasksResult, err error) {
	if c.Repetitions <= 0 {
		c.Repetitions = defaultRepetitions
	}
	if c.Tasks <= 0 || c.Cluster.Workers <= 0 {
		return TasksResult{}, fmt.Errorf("bench %s: %d tasks on %d workers; at least one of each", name, c.Tasks, c.Cluster.Workers)
	}
	c.Cluster.Dashboard = c.Viewers > 0
	cluster, err := StartCluster(ctx, c.Cluster)
	if err != nil {
		return TasksResult{}, err
	}
	defer func() {
		if closed := cluster.Close(); err == nil {
			err = closed
		}
	}()
	if err := run(ctx, cluster.Client, min(warmUpTasks, c.Tasks)); err != nil {
		return TasksResult{}, err
	}
	var runs []TasksResult
	var bytes int64
	var cores []float64
	for i := range c.Repetitions {
		one, err := timed(ctx, cluster, c.Tasks, run)
		if err != nil {
			return TasksResult{}, err
		}
		if c.Viewers > 0 {
			without := one
			var read int64
			if one, read, err = viewed(ctx, cluster, c, run); err != nil {
				return TasksResult{}, err
			}
			bytes += read
			cores = append(cores, (one.SchedulerCPUPerTask-without.SchedulerCPUPerTask)*one.TasksPerSecond/1e6)
		}
		runs = append(runs, one)
		if c.Progress != nil {
			c.Progress(i+1, c.Repetitions)
		}
	}
	out, spread := median(runs, func(r TasksResult) float64 { return r.TasksPerSecond })
	if out.Viewers, out.StreamBytes = c.Viewers, bytes; c.Viewers > 0 {
		out.ViewersCores, out.ViewersCoresSpread = median(cores, func(x float64) float64 { return x })
	}
	out.Bench, out.Workers, out.Tasks, out.Version = name, c.Cluster.Workers, c.Tasks, version.String()
	out.Zero, out.Repetitions, out.Spread, out.Machine = c.Cluster.Zero, c.Repetitions, spread, Machine()
	out.PeakRSSBytes, err = statusBytes(cluster.Scheduler.PID(), "VmHWM")
	return out, err
}

// viewed is timed while viewers read the dashboard. It also returns what they read.
func viewed(ctx context.Context, cluster *Cluster, c TasksConfig, run workload) (out TasksResult, bytes int64, err error) {
	leave, err := cluster.view(ctx, c.Viewers)
	if err != nil {
		return out, 0, err
	}
	out, err = timed(ctx, cluster, c.Tasks, run)
	bytes, left := leave()
	if err == nil {
		err = left
	}
	return out, bytes, err
}

func timed(ctx context.Context, cluster *Cluster, n int, run workload) (out TasksResult, err error) {
	if err := cluster.settle(ctx); err != nil {
		return out, err
	}
	// The garbage of the last repetition is not this one's work.
	runtime.GC()
	scheduler, err := cpuTime(cluster.Scheduler.PID())
	if err != nil {
		return out, err
	}
	client, err := ownCPU()
	if err != nil {
		return out, err
	}
	began := time.Now()
	if err := run(ctx, cluster.Client, n); err != nil {
		return out, err
	}
	took := time.Since(began)
	clientAfter, err := ownCPU()
	if err != nil {
		return out, err
	}
	schedulerAfter, err := cpuTime(cluster.Scheduler.PID())
	if err != nil {
		return out, err
	}
	out.Seconds = took.Seconds()
	out.TasksPerSecond = float64(n) / took.Seconds()
	out.SchedulerCPUPerTask = micros(schedulerAfter-scheduler) / float64(n)
	out.ClientCPUPerTask = micros(clientAfter-client) / float64(n)
	return out, nil
}

// Python measures real calls of Python functions, by import path, in the executors of the cluster's
// workers.
func Python(ctx context.Context, c TasksConfig) (TasksResult, error) {
	if c.Cluster.Executors == 0 {
		c.Cluster.Executors = 1
	}
	call := millrace.Python("builtins:int")
	return measure(ctx, "python", c, func(ctx context.Context, client *millrace.Client, n int) error {
		futures, err := client.Map(ctx, call, func(yield func(millrace.Arguments) bool) {
			for range n {
				if !yield(millrace.Arguments{}) {
					return
				}
			}
		})
		if err != nil {
			return err
		}
		values, err := millrace.Gather[int](ctx, futures...)
		if err != nil {
			return err
		}
		for i, v := range values {
			if v != 0 {
				return fmt.Errorf("bench python: int() of task %d is %d", i, v)
			}
		}
		client.Release(futures...)
		return nil
	})
}
