package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench"
)

const benchHelp = `Measures this machine and this version. Each benchmark starts a cluster of its own, of real processes, and stops it
afterwards. It warms up, repeats, and reports the median; the client's own work counts. With --json it prints exactly one
JSON object.`

func (a *app) bench() *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Measure this machine", Long: benchHelp, Args: noArgs}
	cmd.AddCommand(
		a.benchTasks("tasks", "Independent no-op tasks", 100_000, bench.Tasks),
		a.benchGraph(),
		a.benchTemplate(),
		a.benchTaskBench(),
		a.benchLatency(),
		a.benchJournal(),
		a.benchRestart(),
		a.benchHop(),
		a.benchMemory(),
		a.benchTasks("python", "Python functions, really called", 20_000, bench.Python),
		a.benchData(),
		a.benchTransfer(),
		a.benchBroadcast(),
		a.benchAllToAll(),
		a.benchSpill(),
		a.benchIdle(),
	)
	return cmd
}

// benchmark makes the command of a benchmark. run returns a struct whose JSON is the result.
func (a *app) benchmark(name, short string, run func(ctx context.Context, progress func(done, of int)) (any, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			progress, stop := a.progress("bench " + name)
			result, err := run(cmd.Context(), progress)
			stop()
			if err != nil {
				return err
			}
			if a.settings.Bool("json") {
				return json.NewEncoder(a.out).Encode(result)
			}
			return a.benchTable(result)
		},
	}
	cmd.Flags().Bool("json", false, "print one JSON object instead of a table")
	return cmd
}

func (a *app) benchTasks(name, short string, tasks int, run func(context.Context, bench.TasksConfig) (bench.TasksResult, error)) *cobra.Command {
	cmd := a.benchmark(name, short, func(ctx context.Context, progress func(done, of int)) (any, error) {
		c, err := a.tasksConfig(progress)
		if err != nil {
			return nil, err
		}
		return run(ctx, c)
	})
	workers := 4
	if name == "python" {
		workers = 1
		cmd.Flags().String("python", "", "interpreter of Python executors; default: .venv of the checkout, else python3")
	}
	tasksFlags(cmd, workers, tasks)
	cmd.Flags().Int("viewers", 0, "open pages of the dashboard")
	cmd.Flags().String("against", "", "another millrace binary: both run in turns, and the result compares them")
	return cmd
}

func tasksFlags(cmd *cobra.Command, workers, tasks int) {
	cmd.Flags().Int("workers", workers, "worker processes")
	cmd.Flags().Int("tasks", tasks, "tasks of one repetition")
	cmd.Flags().Int("repetitions", 3, "how often it is repeated")
	cmd.Flags().Bool("zero", false, "workers that run nothing and answer at once: measures the rest of the system")
}

func (a *app) tasksConfig(progress func(done, of int)) (bench.TasksConfig, error) {
	s := a.settings
	c := bench.TasksConfig{
		Cluster:     bench.ClusterConfig{Workers: s.Int("workers"), Zero: s.Bool("zero"), Python: s.String("python")},
		Tasks:       s.Int("tasks"),
		Repetitions: s.Int("repetitions"),
		Viewers:     s.Int("viewers"),
		Against:     s.String("against"),
		Progress:    progress,
	}
	if c.Tasks < 1 || c.Cluster.Workers < 1 || c.Repetitions < 1 {
		return c, usageError{fmt.Errorf("--tasks %d --workers %d --repetitions %d: at least 1 of each", c.Tasks, c.Cluster.Workers, c.Repetitions)}
	}
	return c, nil
}

func (a *app) benchGraph() *cobra.Command {
	cmd := a.benchmark("graph", "No-op tasks with dependencies", func(ctx context.Context, progress func(done, of int)) (any, error) {
		c, err := a.tasksConfig(progress)
		if err != nil {
			return nil, err
		}
		return bench.Graph(ctx, a.settings.String("shape"), c)
	})
	tasksFlags(cmd, 4, 100_000)
	cmd.Flags().String("shape", "merge", strings.Join(bench.Shapes(), ", "))
	_ = cmd.RegisterFlagCompletionFunc("shape", cobra.FixedCompletions(bench.Shapes(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) benchTemplate() *cobra.Command {
	cmd := a.benchmark("template", "Graphs of one shape: as instances of a template, beside plain submissions", func(ctx context.Context, progress func(done, of int)) (any, error) {
		s := a.settings
		c := bench.TemplateConfig{Tasks: s.Int("tasks"), TasksPerInstance: s.Int("tasks-per-instance"), Batch: s.Int("batch"), Repetitions: s.Int("repetitions"), Progress: progress}
		if c.Tasks < 1 || c.TasksPerInstance < 1 || c.Batch < 1 || c.Repetitions < 1 {
			return nil, usageError{errors.New("--tasks, --tasks-per-instance, --batch, --repetitions: at least 1 of each")}
		}
		return bench.Template(ctx, c)
	})
	cmd.Flags().Int("tasks", 100_000, "tasks of one repetition")
	cmd.Flags().Int("tasks-per-instance", 10, "tasks of a graph, which is a chain")
	cmd.Flags().Int("batch", 1000, "graphs in one submission")
	cmd.Flags().Int("repetitions", 5, "how often both ways are repeated, in turns")
	return cmd
}

func (a *app) benchTaskBench() *cobra.Command {
	cmd := a.benchmark("taskbench", "Task Bench: the smallest tasks that keep the workers half busy", func(ctx context.Context, progress func(done, of int)) (any, error) {
		s := a.settings
		n, err := humanize.ParseBytes(s.String("output-bytes"))
		if err != nil {
			return nil, usageError{fmt.Errorf("--output-bytes: %w", err)}
		}
		if kernel := s.String("kernel"); kernel != "compute_bound" {
			return nil, usageError{fmt.Errorf("--kernel %s: compute_bound is the one that there is", kernel)}
		}
		c := bench.TaskBenchConfig{
			Cluster: bench.ClusterConfig{Workers: s.Int("workers"), Slots: s.Int("slots")},
			Pattern: s.String("pattern"), Width: s.Int("width"), Steps: s.Int("steps"), Radix: s.Int("radix"), OutputBytes: int(n),
			Iterations: s.Int("iterations"), Repetitions: s.Int("repetitions"), Progress: progress,
		}
		if device := s.String("device"); device != "host" && device != "cuda" {
			return nil, usageError{fmt.Errorf("--device %s: host or cuda", device)}
		}
		c.Device, c.CUDALibrary = s.String("device"), s.String("cuda-library")
		result, err := bench.TaskBench(ctx, c)
		if s.Bool("metg") && err == nil {
			result.Rows = nil
		}
		return result, err
	})
	f := cmd.Flags()
	f.Int("workers", 2, "worker processes; GPUs with --device cuda")
	f.String("device", "host", "host or cuda")
	f.Int("slots", 1, "slots of a worker")
	f.String("pattern", "stencil_1d", strings.Join(bench.Patterns(), ", "))
	f.Int("width", 0, "points of a step; 0: one for each worker")
	f.Int("steps", 1000, "steps; graphs of long tasks have fewer, down to 40")
	f.Int("radix", 5, "inputs of each point, for nearest")
	f.String("kernel", "compute_bound", "what a point computes: 64 multiplications and additions an iteration (on a GPU, each of its threads)")
	f.Int("iterations", 0, "iterations of the longest tasks; they are halved down to 1. 0: some milliseconds of the device")
	f.String("cuda-library", "", "CUDA driver to use; default: the system's libcuda.so.1")
	f.String("output-bytes", "16", "size of each result")
	f.Int("repetitions", 3, "how often each length is repeated; the shortest time counts")
	f.Bool("metg", false, "print the smallest granularity only")
	_ = cmd.RegisterFlagCompletionFunc("pattern", cobra.FixedCompletions(bench.Patterns(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) benchLatency() *cobra.Command {
	cmd := a.benchmark("latency", "One task at a time: submit to result, and finish to dependent's start", func(ctx context.Context, progress func(done, of int)) (any, error) {
		return bench.Latency(ctx, "", a.settings.Int("samples"), progress)
	})
	cmd.Flags().Int("samples", 1000, "tasks that are timed")
	return cmd
}

func (a *app) benchJournal() *cobra.Command {
	cmd := a.benchmark("journal", "Work on a cluster whose scheduler has a journal, beside one without", func(ctx context.Context, progress func(done, of int)) (any, error) {
		s := a.settings
		argument, err := humanize.ParseBytes(s.String("argument"))
		if err != nil || argument > 1<<30 {
			return nil, usageError{fmt.Errorf("--argument %s: bytes such as 100kB", s.String("argument"))}
		}
		c := bench.JournalConfig{
			Directory: s.String("directory"), Tasks: s.Int("tasks"), Graph: s.Int("graph"), ArgumentBytes: int(argument),
			Samples: s.Int("samples"), Repetitions: s.Int("repetitions"), Progress: progress,
		}
		if c.Tasks < 1 || c.Graph < 1 || c.Samples < 1 || c.Repetitions < 1 {
			return nil, usageError{errors.New("--tasks, --graph, --samples, --repetitions: at least 1 of each")}
		}
		return bench.Journal(ctx, c)
	})
	cmd.Flags().String("directory", "", "which disk the journal is on; default: the system's for temporary files")
	cmd.Flags().Int("tasks", 50_000, "tasks of one repetition")
	cmd.Flags().Int("graph", 100, "tasks of a graph")
	cmd.Flags().String("argument", "100kB", "size of large arguments")
	cmd.Flags().Int("samples", 500, "single tasks that are timed")
	cmd.Flags().Int("repetitions", 3, "how often both are repeated, in turns")
	return cmd
}

func (a *app) benchRestart() *cobra.Command {
	cmd := a.benchmark("restart", "The start of a scheduler that was killed, with a journal of many tasks", func(ctx context.Context, progress func(done, of int)) (any, error) {
		c := bench.RestartConfig{Directory: a.settings.String("directory"), Finished: a.settings.Int("finished"), Live: a.settings.Int("live"), Progress: progress}
		if c.Finished < 1 || c.Live < 2 {
			return nil, usageError{errors.New("--finished, --live: at least one finished task and two live ones")}
		}
		return bench.Restart(ctx, c)
	})
	cmd.Flags().String("directory", "", "which disk the journal is on; default: the system's for temporary files")
	cmd.Flags().Int("finished", 1_000_000, "tasks that are run and released before")
	cmd.Flags().Int("live", 100_000, "tasks that are there when the scheduler is killed")
	return cmd
}

func (a *app) benchHop() *cobra.Command {
	cmd := a.benchmark("hop", "A chain of tasks between two workers, beside the same on one", func(ctx context.Context, progress func(done, of int)) (any, error) {
		c := bench.HopConfig{Samples: a.settings.Int("samples"), CUDALibrary: a.settings.String("cuda-library"), Progress: progress}
		var err error
		if c.GPUs, err = a.onGPUs(); err != nil {
			return nil, err
		}
		if c.Sizes, err = a.sizesFrom(16); err != nil {
			return nil, err
		}
		if c.Samples < 1 {
			return nil, usageError{fmt.Errorf("--samples %d: at least 1", c.Samples)}
		}
		return bench.Hop(ctx, c)
	})
	memoryFlag(cmd)
	cmd.Flags().StringSlice("sizes", []string{"16B", "64KiB", "1MiB"}, "sizes of what one task hands to the next, multiples of 16")
	cmd.Flags().Int("samples", 100, "samples of each size; each is the mean of 20 hops")
	cmd.Flags().String("cuda-library", "", "CUDA driver to use; default: the system's libcuda.so.1")
	return cmd
}

func (a *app) benchMemory() *cobra.Command {
	cmd := a.benchmark("memory", "Memory that the scheduler keeps for finished, held tasks, and gives back", func(ctx context.Context, _ func(done, of int)) (any, error) {
		if a.settings.Int("tasks") < 1 {
			return nil, usageError{fmt.Errorf("--tasks %d: at least 1", a.settings.Int("tasks"))}
		}
		return bench.Memory(ctx, "", a.settings.Int("tasks"))
	})
	cmd.Flags().Int("tasks", 1_000_000, "tasks that are held")
	return cmd
}

func (a *app) benchData() *cobra.Command {
	cmd := a.benchmark("data", "One array from the client to a worker and back", func(ctx context.Context, _ func(done, of int)) (any, error) {
		n, err := humanize.ParseBytes(a.settings.String("bytes"))
		if err != nil || n < 1<<10 || n > 1<<40 {
			return nil, usageError{fmt.Errorf("--bytes %s: bytes such as 256MiB, at least 1KiB", a.settings.String("bytes"))}
		}
		c := bench.DataConfig{Bytes: int(n), Repetitions: a.settings.Int("repetitions")}
		if c.GPUs, err = a.onGPUs(); err != nil {
			return nil, err
		}
		switch client := a.settings.String("client"); client {
		case "go":
		case "python":
			c.Python = a.python()[0]
		default:
			return nil, usageError{fmt.Errorf("--client %s: go or python", client)}
		}
		switch protocol := a.settings.String("protocol"); protocol {
		case "auto":
		case "grpc":
			c.GRPC = true
		default:
			return nil, usageError{fmt.Errorf("--protocol %s: auto or grpc", protocol)}
		}
		return bench.Data(ctx, c)
	})
	memoryFlag(cmd)
	cmd.Flags().String("protocol", "auto", "auto: the memory of the worker, which is on this host; grpc: by DataService")
	cmd.Flags().String("client", "go", "go or python: whose client is measured")
	cmd.Flags().String("python", "", "interpreter of the Python client; default: .venv of the checkout, else python3")
	cmd.Flags().String("bytes", "256MiB", "size of the array")
	cmd.Flags().Int("repetitions", 5, "how often it is repeated")
	return cmd
}

func memoryFlag(cmd *cobra.Command) {
	cmd.Flags().String("memory", "host", "whose memory objects lie in: host, or cuda, on GPUs")
}

// onGPUs reads --memory and reports whether it is "cuda".
func (a *app) onGPUs() (bool, error) {
	switch memory := a.settings.String("memory"); memory {
	case "host":
		return false, nil
	case "cuda":
		return true, nil
	default:
		return false, usageError{fmt.Errorf("--memory %s: host or cuda", memory)}
	}
}

// sizes reads --sizes.
func (a *app) sizes() (sizes []int, err error) { return a.sizesFrom(2 << 10) }

func (a *app) sizesFrom(least uint64) (sizes []int, err error) {
	for _, text := range a.settings.Strings("sizes") {
		n, err := humanize.ParseBytes(text)
		if err != nil || n < least || n > 1<<40 {
			return nil, usageError{fmt.Errorf("--sizes %s: bytes such as 64KiB, at least %s", text, humanize.IBytes(least))}
		}
		sizes = append(sizes, int(n))
	}
	if len(sizes) == 0 {
		return nil, usageError{errors.New("--sizes: at least one")}
	}
	return sizes, nil
}

func (a *app) benchAllToAll() *cobra.Command {
	cmd := a.benchmark("alltoall", "An object from every worker to every other one, beside copies in memory", func(ctx context.Context, progress func(done, of int)) (any, error) {
		s := a.settings
		sizes, err := a.sizes()
		if err != nil {
			return nil, err
		}
		c := bench.AllToAllConfig{Workers: s.Int("workers"), Protocol: s.String("protocol"), Sizes: sizes, Repetitions: s.Int("repetitions"), Progress: progress}
		if c.Workers < 2 || c.Repetitions < 1 {
			return nil, usageError{errors.New("--workers, --repetitions: at least two workers and one repetition")}
		}
		if c.GPUs, err = a.onGPUs(); err != nil {
			return nil, err
		}
		return bench.AllToAll(ctx, c)
	})
	memoryFlag(cmd)
	cmd.Flags().Int("workers", 4, "how many workers")
	cmd.Flags().String("protocol", "auto", "auto, borrow, ucx or grpc")
	cmd.Flags().StringSlice("sizes", []string{"64KiB", "1MiB", "32MiB"}, "sizes of what goes from one worker to another")
	cmd.Flags().Int("repetitions", 20, "how often each size is repeated")
	return cmd
}

func (a *app) benchBroadcast() *cobra.Command {
	cmd := a.benchmark("broadcast", "One object to all workers, each fresh copy serving the next", func(ctx context.Context, progress func(done, of int)) (any, error) {
		s := a.settings
		c := bench.BroadcastConfig{Workers: s.Int("workers"), Protocol: s.String("protocol"), Repetitions: s.Int("repetitions"), Progress: progress}
		sizes, err := a.sizes()
		if err != nil {
			return nil, err
		}
		if c.Sizes = sizes; c.Workers < 2 || c.Repetitions < 1 {
			return nil, usageError{fmt.Errorf("--workers %d --repetitions %d: at least 2 and 1", c.Workers, c.Repetitions)}
		}
		if c.GPUs, err = a.onGPUs(); err != nil {
			return nil, err
		}
		return bench.Broadcast(ctx, c)
	})
	memoryFlag(cmd)
	cmd.Flags().Int("workers", 4, "worker processes")
	cmd.Flags().String("protocol", "auto", "auto, borrow, ucx or grpc")
	cmd.Flags().StringSlice("sizes", []string{"1MiB", "64MiB"}, "sizes of the object")
	cmd.Flags().Int("repetitions", 5, "how often it is repeated")
	return cmd
}

func (a *app) benchSpill() *cobra.Command {
	cmd := a.benchmark("spill", "More results than the slab holds, through the disk and back, beside raw IO", func(ctx context.Context, progress func(done, of int)) (any, error) {
		c := bench.SpillConfig{Directory: a.settings.String("local-directory"), Progress: progress}
		for _, x := range []struct {
			flag  string
			least uint64
			into  *int
		}{{"total", 1 << 20, &c.TotalBytes}, {"slab", 1 << 20, &c.SlabBytes}, {"chunk", 1 << 12, &c.ChunkBytes}} {
			n, err := humanize.ParseBytes(a.settings.String(x.flag))
			if err != nil || n < x.least || n > 1<<45 {
				return nil, usageError{fmt.Errorf("--%s %s: bytes such as 64MiB, at least %s", x.flag, a.settings.String(x.flag), size(x.least))}
			}
			*x.into = int(n)
		}
		if c.ChunkBytes > c.TotalBytes || 4*c.ChunkBytes > c.SlabBytes {
			return nil, usageError{fmt.Errorf("--chunk %s: no larger than --total, and a quarter of --slab at most", a.settings.String("chunk"))}
		}
		return bench.Spill(ctx, c)
	})
	cmd.Flags().String("total", "2GiB", "what goes through in each phase; the disk needs four times that")
	cmd.Flags().String("slab", "256MiB", "memory of the worker")
	cmd.Flags().String("chunk", "16MiB", "size of each result")
	cmd.Flags().String("local-directory", "", "which disk; default: the system's for temporary files")
	return cmd
}

func (a *app) benchIdle() *cobra.Command {
	cmd := a.benchmark("idle", "Share of a core that idle workers with all paths open take", func(ctx context.Context, _ func(done, of int)) (any, error) {
		return bench.Idle(ctx, bench.IdleConfig{Protocol: a.settings.String("protocol"), For: a.settings.Duration("for")})
	})
	cmd.Flags().String("protocol", "ucx", "how the workers read from each other before: ucx, borrow or grpc")
	cmd.Flags().Duration("for", 10*time.Second, "how long nothing is done")
	return cmd
}

// benchTable prints the fields of a result as a table with their JSON names, and then the result's
// rows.
func (a *app) benchTable(result any) error {
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	v := reflect.ValueOf(result)
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, option, _ := strings.Cut(f.Tag.Get("json"), ",")
		if value := v.FieldByIndex(f.Index); !f.Anonymous && name != "rows" && (option == "" || !value.IsZero()) {
			row(w, strings.ReplaceAll(name, "_", " "), benchCell(name, value))
		}
	}
	if rows := v.FieldByName("Rows"); rows.IsValid() && rows.Len() > 0 {
		if err := w.Flush(); err != nil {
			return err
		}
		benchRows(w, rows)
	}
	return w.Flush()
}

// benchRows prints rows of one type under their JSON names.
func benchRows(w *tabwriter.Writer, rows reflect.Value) {
	of := rows.Type().Elem()
	names := make([]string, of.NumField())
	cells := make([]any, of.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(of.Field(i).Tag.Get("json"), ",")
		cells[i] = strings.ToUpper(strings.ReplaceAll(names[i], "_", " "))
	}
	row(w)
	row(w, cells...)
	for i := range rows.Len() {
		for k := range cells {
			cells[k] = benchCell(names[k], rows.Index(i).Field(k))
		}
		row(w, cells...)
	}
}

func benchCell(name string, v reflect.Value) string {
	switch x := v.Interface().(type) {
	case bench.Spread:
		return fmt.Sprintf("%s .. %s", figure(x.Min), figure(x.Max))
	case bench.Percentiles:
		return fmt.Sprintf("p50 %s  p99 %s  (%d samples)", figure(x.P50), figure(x.P99), x.Samples)
	case uint64:
		if strings.HasSuffix(name, "bytes") {
			return size(x)
		}
	}
	if v.CanFloat() {
		return figure(v.Float())
	}
	if v.CanInt() {
		return humanize.Comma(v.Int())
	}
	return fmt.Sprint(v.Interface())
}

func figure(x float64) string {
	switch {
	case x >= 10_000:
		return humanize.Comma(int64(x))
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
