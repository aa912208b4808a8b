package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
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
	// Against is another millrace binary. With it, each repetition is a pair: one run on a cluster
	// of this program, and one on a cluster of the other. Empty: none.
	Against string
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
	// took for them, per second: the median of the pairs of runs with and without them. The true
	// one is in ViewersCoresLikely in 95 of 100 cases; fewer than six pairs do not tell it.
	Viewers            int     `json:"viewers,omitempty"`
	StreamBytes        int64   `json:"stream_bytes,omitempty"`
	ViewersCores       float64 `json:"viewers_cores,omitempty"`
	ViewersCoresSpread Spread  `json:"viewers_cores_spread,omitzero"`
	ViewersCoresLikely Spread  `json:"viewers_cores_likely,omitzero"`
	// The scheduler's processors with viewers and without them, the rate without them, and the rate
	// with them by that without: medians over the pairs.
	SchedulerCores        float64 `json:"scheduler_cores,omitempty"`
	SchedulerCoresWithout float64 `json:"scheduler_cores_without_viewers,omitempty"`
	WithoutTasksPerSecond float64 `json:"tasks_per_second_without_viewers,omitempty"`
	WithoutSpread         Spread  `json:"tasks_per_second_without_viewers_spread,omitzero"`
	ViewersRatio          float64 `json:"tasks_per_second_viewers_ratio,omitempty"`
	ViewersRatioSpread    Spread  `json:"tasks_per_second_viewers_ratio_spread,omitzero"`

	Comparison

	Zero        bool   `json:"zero"`
	Shape       string `json:"shape,omitempty"`
	PerTask     Micros `json:"us_per_task,omitzero"`
	Repetitions int    `json:"repetitions"`
	// Spread of tasks_per_second.
	Spread  Spread `json:"tasks_per_second_spread"`
	Machine string `json:"machine"`
}

// Comparison is how another binary did, in turns with this one. All is of the median repetition.
// The client is this program in both.
type Comparison struct {
	Against                    string  `json:"against,omitempty"`
	AgainstVersion             string  `json:"against_version,omitempty"`
	AgainstTasksPerSecond      float64 `json:"against_tasks_per_second,omitempty"`
	AgainstSpread              Spread  `json:"against_tasks_per_second_spread,omitzero"`
	AgainstSchedulerCPUPerTask float64 `json:"against_scheduler_cpu_us_per_task,omitempty"`
	AgainstViewersCores        float64 `json:"against_viewers_cores,omitempty"`
	AgainstPeakRSSBytes        uint64  `json:"against_peak_rss_bytes,omitempty"`
	// Ratio is the rate of this program by that of the other, and CPURatio that of the times that
	// their schedulers took for a task: the medians of the pairs.
	Ratio          float64 `json:"tasks_per_second_ratio,omitempty"`
	RatioSpread    Spread  `json:"tasks_per_second_ratio_spread,omitzero"`
	CPURatio       float64 `json:"scheduler_cpu_ratio,omitempty"`
	CPURatioSpread Spread  `json:"scheduler_cpu_ratio_spread,omitzero"`
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
	series := []*measured{{binary: c.Cluster.Executable}}
	if c.Against != "" {
		series = append(series, &measured{binary: c.Against})
	}
	defer func() {
		for _, m := range series {
			if m.cluster == nil {
				continue
			}
			if closed := m.cluster.Close(); err == nil {
				err = closed
			}
		}
	}()
	for _, m := range series {
		cluster := c.Cluster
		cluster.Executable = m.binary
		if m.cluster, err = StartCluster(ctx, cluster); err != nil {
			return TasksResult{}, err
		}
		// The first large run makes the heap grow, which would count for the one of a pair that is
		// first.
		warmUp := min(warmUpTasks, c.Tasks)
		if c.Viewers > 0 {
			warmUp = c.Tasks
		}
		if err := run(ctx, m.cluster.Client, warmUp); err != nil {
			return TasksResult{}, err
		}
	}
	for i := range c.Repetitions {
		// The two take turns, so that what changes on the machine is no advantage of one.
		for turn := range series {
			if err := series[(i+turn)%len(series)].repeat(ctx, c, run); err != nil {
				return TasksResult{}, err
			}
		}
		if c.Progress != nil {
			c.Progress(i+1, c.Repetitions)
		}
	}
	out, err := series[0].result(c)
	if err != nil {
		return out, err
	}
	if c.Against != "" {
		if out.Comparison, err = against(ctx, c, series[0], series[1]); err != nil {
			return out, err
		}
	}
	out.Bench, out.Workers, out.Tasks, out.Version = name, c.Cluster.Workers, c.Tasks, version.String()
	out.Zero, out.Repetitions, out.Machine = c.Cluster.Zero, c.Repetitions, Machine()
	return out, nil
}

// measured is the series of runs on one cluster.
type measured struct {
	binary  string // empty: this program
	cluster *Cluster
	runs    []TasksResult
	without []TasksResult // the runs without viewers, if there are any with them
	bytes   int64         // that viewers have read
}

// repeat adds a run to the series. With viewers it is a pair, one with them and one without. Which
// one is first alternates, so that what changes from run to run is no advantage of one.
func (m *measured) repeat(ctx context.Context, c TasksConfig, run workload) error {
	if c.Viewers == 0 {
		one, err := timed(ctx, m.cluster, c.Tasks, run)
		m.runs = append(m.runs, one)
		return err
	}
	first := len(m.runs) % 2
	for i := range 2 {
		if i != first {
			one, err := timed(ctx, m.cluster, c.Tasks, run)
			if err != nil {
				return err
			}
			m.without = append(m.without, one)
			continue
		}
		one, read, err := viewed(ctx, m.cluster, c, run)
		if err != nil {
			return err
		}
		m.bytes += read
		m.runs = append(m.runs, one)
	}
	return nil
}

// cores is the time of processors that the scheduler took in a second.
func (r *TasksResult) cores() float64 { return r.SchedulerCPUPerTask * r.TasksPerSecond / 1e6 }

// compareViewers sets what the pairs of runs say about viewers.
func (m *measured) compareViewers(out *TasksResult) {
	same := func(x float64) float64 { return x }
	var took, ratios, with, without []float64
	for i := range m.runs {
		a, b := &m.runs[i], &m.without[i]
		// Each task costs what it costs without viewers. The rest is theirs.
		took = append(took, (a.SchedulerCPUPerTask-b.SchedulerCPUPerTask)*a.TasksPerSecond/1e6)
		ratios = append(ratios, a.TasksPerSecond/b.TasksPerSecond)
		with, without = append(with, a.cores()), append(without, b.cores())
	}
	out.ViewersCoresLikely, _ = likely(took)
	out.ViewersCores, out.ViewersCoresSpread = median(took, same)
	out.ViewersRatio, out.ViewersRatioSpread = median(ratios, same)
	out.SchedulerCores, _ = median(with, same)
	out.SchedulerCoresWithout, _ = median(without, same)
	middle, spread := median(slices.Clone(m.without), func(r TasksResult) float64 { return r.TasksPerSecond })
	out.WithoutTasksPerSecond, out.WithoutSpread = middle.TasksPerSecond, spread
}

// result returns the run with the median rate, and what all runs have shown. The runs keep their
// order.
func (m *measured) result(c TasksConfig) (out TasksResult, err error) {
	out, out.Spread = median(slices.Clone(m.runs), func(r TasksResult) float64 { return r.TasksPerSecond })
	if c.Viewers > 0 {
		out.Viewers, out.StreamBytes = c.Viewers, m.bytes
		m.compareViewers(&out)
	}
	out.PeakRSSBytes, err = statusBytes(m.cluster.Scheduler.PID(), "VmHWM")
	return out, err
}

// against compares two series, pair by pair.
func against(ctx context.Context, c TasksConfig, this, other *measured) (Comparison, error) {
	theirs, err := other.result(c)
	if err != nil {
		return Comparison{}, err
	}
	info, err := other.cluster.Client.ClusterInfo(ctx)
	if err != nil {
		return Comparison{}, err
	}
	out := Comparison{
		Against: other.binary, AgainstVersion: info.GetVersion(), AgainstTasksPerSecond: theirs.TasksPerSecond, AgainstSpread: theirs.Spread,
		AgainstSchedulerCPUPerTask: theirs.SchedulerCPUPerTask, AgainstViewersCores: theirs.ViewersCores, AgainstPeakRSSBytes: theirs.PeakRSSBytes,
	}
	same := func(x float64) float64 { return x }
	var rates, cpus []float64
	for i, a := range this.runs {
		b := other.runs[i]
		rates = append(rates, a.TasksPerSecond/b.TasksPerSecond)
		if b.SchedulerCPUPerTask > 0 { // A short run may take less than the clock of processes shows.
			cpus = append(cpus, a.SchedulerCPUPerTask/b.SchedulerCPUPerTask)
		}
	}
	out.Ratio, out.RatioSpread = median(rates, same)
	if len(cpus) > 0 {
		out.CPURatio, out.CPURatioSpread = median(cpus, same)
	}
	return out, nil
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
