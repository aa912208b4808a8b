package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

// TaskBenchConfig configures `bench taskbench`.
type TaskBenchConfig struct {
	Cluster ClusterConfig
	// Pattern is one of Patterns. Radix is the number of inputs of the pattern nearest. Width is
	// the number of points per step; 0: one for each worker. Steps is the largest number of steps:
	// graphs of long tasks have fewer, so that a graph takes about roundTime.
	Pattern             string
	Width, Steps, Radix int
	// OutputBytes is the size of each task's result, a multiple of 16.
	OutputBytes int
	// Device is "host" or "cuda". CUDALibrary is the driver, "" for the system's.
	Device, CUDALibrary string
	// Iterations of the longest tasks. Each further measurement halves them, down to 1. 0: some
	// milliseconds of work on the device.
	Iterations int
	// Repetitions of each measurement. The best one counts. The paper's scripts also do not use the
	// mean of few repetitions.
	Repetitions int
	// Progress is called after each repetition.
	Progress func(done, of int)
}

const (
	// roundTime is the longest time that one graph should take, and leastSteps the number of steps
	// that it has in any case. The cost of submitting a graph and of receiving its end is spread
	// over its steps.
	roundTime  = 250 * time.Millisecond
	leastSteps = 40
	// hostIterations and gpuIterations take 2 to 8 ms, many times the overhead of a task.
	hostIterations = 1 << 17
	gpuIterations  = 1 << 13
)

// TaskBenchRow is the result for one granularity.
type TaskBenchRow struct {
	Iterations int `json:"iterations"`
	Steps      int `json:"steps"`
	// Granularity is the elapsed time times the number of workers, divided by the number of tasks.
	Granularity Micros `json:"granularity_us"`
	// Efficiency is the rate of operations relative to the best one of all rows.
	Efficiency float64 `json:"efficiency"`
	Seconds    float64 `json:"seconds"`
}

// TaskBenchResult is the result of `bench taskbench`. METG(50 %) is the smallest granularity at
// which half of the best rate is reached, interpolated to the next smaller row.
type TaskBenchResult struct {
	Bench       string `json:"bench"`
	Pattern     string `json:"pattern"`
	Kernel      string `json:"kernel"`
	Workers     int    `json:"workers"`
	Width       int    `json:"width"`
	Steps       int    `json:"steps"`
	Tasks       int    `json:"tasks"`
	OutputBytes int    `json:"output_bytes"`
	METG50      Micros `json:"metg50_us"`
	// Account divides up the time of the smallest tasks.
	Account
	Rows    []TaskBenchRow `json:"rows"`
	Version string         `json:"version"`
	Machine string         `json:"machine"`
}

// Account is the mean time that a task of the last row spends in each phase of its life, in their
// order, as the workers report it (NativeTimes).
type Account struct {
	Admitted  Micros `json:"admitted_us"`
	Queued    Micros `json:"queued_us"`
	Submitted Micros `json:"submitted_us"`
	Worked    Micros `json:"worked_us"`
	Stored    Micros `json:"stored_us"`
	Notified  Micros `json:"notified_us"`
	// Between is the rest of the granularity: the path from worker to worker, and waiting if no
	// task follows at once. It is negative if tasks overlap.
	Between Micros `json:"between_us"`
}

// nativeTimes returns the sums over all workers.
func (c *Cluster) nativeTimes(ctx context.Context) (attempts uint64, sums [6]time.Duration, err error) {
	workers, err := c.Client.Workers(ctx)
	if err != nil {
		return 0, sums, err
	}
	for _, w := range workers {
		m, err := c.Client.DescribeMemory(ctx, w, 0, 0)
		if err != nil {
			return 0, sums, fmt.Errorf("bench: what %s spends its time on: %w", w.GetName(), err)
		}
		t := m.GetNativeTimes()
		attempts += t.GetAttempts()
		for i, d := range [...]*durationpb.Duration{
			t.GetAdmissionTime(), t.GetQueueTime(), t.GetSubmissionTime(), t.GetDeviceTime(), t.GetStoreTime(), t.GetNotifyTime(),
		} {
			sums[i] += d.AsDuration()
		}
	}
	return attempts, sums, nil
}

// account returns the means of the times that were added between two readings.
func account(attempts uint64, before, after [6]time.Duration, granularity Micros) (a Account) {
	a.Between = granularity
	for i, to := range [...]*Micros{&a.Admitted, &a.Queued, &a.Submitted, &a.Worked, &a.Stored, &a.Notified} {
		*to = Micros(float64(after[i]-before[i]) / 1e3 / float64(max(attempts, 1)))
		a.Between -= *to
	}
	return a
}

// patterns return the points of the step before that a point needs, in a row of the given width.
// The names and meanings are those of Task Bench (Slaughter et al., SC20, core.cc).
var patterns = map[string]func(step, point, width, radix int) []int{
	"trivial": func(int, int, int, int) []int { return nil },
	"no_comm": func(_, p, _, _ int) []int { return []int{p} },
	"stencil_1d": func(_, p, width, _ int) []int {
		return span(max(p-1, 0), min(p+1, width-1))
	},
	"stencil_1d_periodic": func(_, p, width, _ int) []int {
		from := []int{(p + width - 1) % width, p, (p + 1) % width}
		slices.Sort(from)
		return slices.Compact(from)
	},
	"fft": func(step, p, width, _ int) []int {
		stride := 1 << ((step - 1) % max(bits.Len(uint(width-1)), 1))
		from := []int{p}
		if p-stride >= 0 {
			from = append(from, p-stride)
		}
		if p+stride < width {
			from = append(from, p+stride)
		}
		slices.Sort(from)
		return from
	},
	"nearest": func(_, p, width, radix int) []int {
		first := max(min(p-radix/2, width-radix), 0)
		return span(first, min(first+radix, width)-1)
	},
	"all_to_all": func(_, _, width, _ int) []int { return span(0, width-1) },
}

// Patterns returns the names of the graphs that TaskBench knows.
func Patterns() []string { return slices.Sorted(maps.Keys(patterns)) }

func span(first, last int) (out []int) {
	for i := first; i <= last; i++ {
		out = append(out, i)
	}
	return out
}

// TaskBench measures the smallest tasks that keep workers half busy.
func TaskBench(ctx context.Context, c TaskBenchConfig) (out TaskBenchResult, err error) {
	from, ok := patterns[c.Pattern]
	if !ok {
		return out, fmt.Errorf("bench taskbench: pattern %q; one of %s", c.Pattern, strings.Join(Patterns(), ", "))
	}
	if c.Width == 0 {
		c.Width = c.Cluster.Workers
	}
	if c.Iterations == 0 {
		c.Iterations = hostIterations
		if c.Device == "cuda" {
			c.Iterations = gpuIterations
		}
	}
	if c.Cluster.Workers < 1 || c.Width < 1 || c.Steps < 1 || c.Iterations < 1 || c.OutputBytes < 16 || c.OutputBytes%16 != 0 || c.Radix < 0 {
		return out, fmt.Errorf("bench taskbench: %d workers, width %d, %d steps, radix %d, %d iterations, %d bytes: at least 1 of each, and a multiple of 16 bytes",
			c.Cluster.Workers, c.Width, c.Steps, c.Radix, c.Iterations, c.OutputBytes)
	}
	c.Repetitions = max(c.Repetitions, 1)
	if c.Cluster.Slots == 0 {
		c.Cluster.Slots = 1
	}
	// Without the flag, a machine with GPUs would use them.
	c.Cluster.Arguments = append(c.Cluster.Arguments, "--device", c.Device)
	if c.CUDALibrary != "" {
		c.Cluster.Arguments = append(c.Cluster.Arguments, "--cuda-library", c.CUDALibrary)
	}
	cluster, err := StartCluster(ctx, c.Cluster)
	if err != nil {
		return out, err
	}
	defer func() {
		if closed := cluster.Close(); err == nil {
			err = closed
		}
	}()
	sweep := []int{}
	for n := c.Iterations; n > 0; n /= 2 {
		sweep = append(sweep, n)
	}
	out = TaskBenchResult{
		Bench: "taskbench", Pattern: c.Pattern, Kernel: "compute_bound", Workers: c.Cluster.Workers, Width: c.Width, Steps: c.Steps,
		Tasks: c.Width * c.Steps, OutputBytes: c.OutputBytes, Version: version.String(), Machine: Machine(),
	}
	round := func(name string, iterations, steps int) (time.Duration, error) {
		return taskBenchRound(ctx, cluster, c, from, name, iterations, steps)
	}
	// Warm up, and measure the time of the longest tasks without the overhead that all tasks have.
	few := min(c.Steps, leastSteps)
	if _, err := round("warm", 1, few); err != nil {
		return out, err
	}
	empty, err := round("empty", 1, few)
	if err != nil {
		return out, err
	}
	longest, err := round("longest", sweep[0], few)
	if err != nil {
		return out, err
	}
	work := max(longest-empty, 0) / time.Duration(few)
	for i, n := range sweep {
		steps := stepsFor(c.Steps, work>>i)
		best := time.Duration(0)
		for r := range c.Repetitions {
			attempts, before, err := cluster.nativeTimes(ctx)
			if err != nil {
				return out, err
			}
			took, err := round(fmt.Sprintf("n%d-%d", n, r), n, steps)
			if err != nil {
				return out, err
			}
			later, after, err := cluster.nativeTimes(ctx)
			if err != nil {
				return out, err
			}
			if best == 0 || took < best {
				best = took
				out.Account = account(later-attempts, before, after, granularity(c, steps, took))
			}
			if c.Progress != nil {
				c.Progress(i*c.Repetitions+r+1, len(sweep)*c.Repetitions)
			}
		}
		out.Rows = append(out.Rows, TaskBenchRow{Iterations: n, Steps: steps, Seconds: best.Seconds(), Granularity: granularity(c, steps, best)})
	}
	out.METG50 = metg50(out.Rows)
	return out, nil
}

func granularity(c TaskBenchConfig, steps int, took time.Duration) Micros {
	return Micros(took.Seconds() * 1e6 * float64(c.Cluster.Workers) / float64(c.Width*steps))
}

// stepsFor returns the number of steps of a graph whose tasks take the given time.
func stepsFor(most int, work time.Duration) int {
	return min(most, max(leastSteps, int(roundTime/max(work, 1))))
}

// metg50 fills in the efficiencies and returns METG(50 %). It returns 0 if no row is below 50 %:
// the true value is smaller than all rows.
func metg50(rows []TaskBenchRow) Micros {
	rate := func(r TaskBenchRow) float64 { return float64(r.Iterations) / float64(r.Granularity) }
	peak := 0.0
	for _, r := range rows {
		peak = max(peak, rate(r))
	}
	for i := range rows {
		rows[i].Efficiency = rate(rows[i]) / peak
	}
	for i := 1; i < len(rows); i++ {
		above, below := rows[i-1], rows[i]
		if above.Efficiency >= 0.5 && below.Efficiency < 0.5 {
			part := (above.Efficiency - 0.5) / (above.Efficiency - below.Efficiency)
			return above.Granularity + Micros(part)*(below.Granularity-above.Granularity)
		}
	}
	return 0
}

// taskBenchRound builds, submits and awaits one graph, and checks the results of its last row.
func taskBenchRound(ctx context.Context, cluster *Cluster, c TaskBenchConfig, from func(step, point, width, radix int) []int, name string, iterations, steps int) (time.Duration, error) {
	op := millrace.Native("bench.point")
	if err := cluster.settle(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	g := cluster.Client.NewGraph("taskbench")
	at := func(step, point int) string { return name + "-" + strconv.Itoa(step) + "-" + strconv.Itoa(point) }
	for step := range steps {
		for p := range c.Width {
			needs := []int64{}
			var inputs []any
			if step > 0 {
				for _, q := range from(step, p, c.Width, c.Radix) {
					needs = append(needs, int64(q))
					inputs = append(inputs, millrace.Key(at(step-1, q)))
				}
			}
			var options []millrace.TaskOption
			if step == steps-1 || c.Pattern == "trivial" {
				options = append(options, millrace.Hold())
			}
			g.Add(at(step, p), op, millrace.Args(append([]any{step, p, needs, iterations, c.OutputBytes}, inputs...)...), options...)
		}
	}
	run, err := g.Submit(ctx)
	if err != nil {
		return 0, err
	}
	defer run.Release()
	if err := run.Wait(ctx); err != nil {
		return 0, err
	}
	took := time.Since(began)
	for p := range c.Width {
		if err := checkPoint(ctx, run.Future(millrace.Key(at(steps-1, p))), steps-1, p, c.OutputBytes); err != nil {
			return 0, err
		}
	}
	return took, nil
}

// checkPoint checks the result of a bench.point. On a GPU the result also shows a wrong input of
// any point before it.
func checkPoint(ctx context.Context, f *millrace.Future, step, point, size int) error {
	data, err := millrace.Get[[]byte](ctx, f)
	if err != nil {
		return err
	}
	var pair [16]byte
	binary.LittleEndian.PutUint64(pair[:], uint64(step))
	binary.LittleEndian.PutUint64(pair[8:], uint64(point))
	if len(data) != size || !bytes.Equal(data, bytes.Repeat(pair[:], size/len(pair))) {
		return fmt.Errorf("bench: point %d of step %d has wrong bytes", point, step)
	}
	return nil
}
