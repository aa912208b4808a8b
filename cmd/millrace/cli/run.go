package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/leader"
	"github.com/millrace/millrace/internal/localdir"
	"github.com/millrace/millrace/internal/roletoken"
	"github.com/millrace/millrace/internal/version"
	"github.com/millrace/millrace/memory/alloc"
	"github.com/millrace/millrace/memory/disk"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/server"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/ops"
	"github.com/millrace/millrace/worker/supervisor"
)

// workerFlags adds the flags that `worker` and `up` share.
func workerFlags(f *pflag.FlagSet) {
	f.Int("workers", 0, "worker processes; 0: one for each GPU, or without GPUs for each core, or for each --slots cores, 8 at most")
	f.Int("first", 0, "number of the first worker in its name and among the GPUs, where other processes run the workers before it")
	f.String("device", "auto", "memory that workers own: host, cuda (one worker for each GPU), or auto: cuda where there is a GPU, else host")
	gpuFlags(f)
	f.Int("slots", 0, "tasks that a worker runs at once; 0: its share of the cores; on a GPU one for each 16 GiB of its memory, 4 at most")
	f.String("memory-limit", "auto", "slab of each worker in host memory: bytes (1GiB), a share of this machine's memory (0.2), or auto for half of it, shared by the workers")
	f.String("function-memory-limit", "auto", "memory that the Python functions of each worker may use together, besides results: bytes (4GiB), a share of this machine's memory (0.2), none, or auto for as much again as --memory-limit, at least 512MiB for each slot and 1GiB")
	f.StringSlice("function-memory-levels", []string{"0.7", "0.8", "0.95"}, "shares of --function-memory-limit above which functions are warned about, no further task begins, and the process that uses most is ended; 0: never")
	f.String("protocol", "auto", "how workers fetch from each other: auto (the best that each pair has), ipc (GPUs), borrow, ucx or grpc")
	f.String("blas-library", "", "BLAS and LAPACK for linear algebra on the CPU: a path, a name such as libopenblas.so.0, or none for pure Go, which is many times slower; default: the first of scipy-openblas64, MKL and NumPy's copy in the interpreter of --python, else the system's")
	ucxFlags(f)
	f.String("spill-limit", "auto", "what each worker keeps on disk when its slab is full: bytes (10GiB), none, or auto for half of the free space, shared by the workers")
	f.Duration("memory-wait", 30*time.Second, "how long a task waits for room in the slab before it fails with OUT_OF_MEMORY")
	f.String("local-directory", "", "where results go that there is no room for in memory, and where executors get their scratch directories; default: the system's for temporary files")
	f.String("working-directory", "", "directory in which Python functions run, and at which relative paths in them begin; default: a scratch directory of each process")
	f.StringToString("resources", nil, "what each worker has of a resource: gpu_memory=8,license=1")
	f.String("python", "", "interpreter of Python executors, which must have the package millrace; default: .venv of the checkout, else python3")
	f.StringArray("exec", nil, "further executor, name=command (repeat)")
	f.StringSlice("preload", nil, "modules that Python executors import while they have nothing to do (--preload pandas,torch); on a GPU cupy is one anyway")
	f.Int("executors", 0, "Python processes to start at once, instead of at their first use")
	f.Int("spare-executors", 1, "processes of each kind of executor that wait, with everything imported, to take the place of one that dies; each costs the memory of its imports; 0: none")
	f.Int("max-waiting", 0, "tasks of a worker that may wait for other tasks at a time, each in a process of its own beside those that work; 0: 100, and 16 on a GPU")
	f.String("name", "", "prefix of the workers' names, which are unique in a cluster: NAME-0, NAME-1, ...; default: host, or gpu on GPUs, and for \"millrace worker\" the name of this machine before that")
	f.Bool("zero", false, "workers that run nothing and answer at once, for measurements")
}

// memoryLimit returns the value of --memory-limit for each of n workers.
func (a *app) memoryLimit(n int) (uint64, error) {
	text := a.settings.String("memory-limit")
	limit, err := host.MemoryLimit()
	if err != nil {
		return 0, err
	}
	if text == "auto" || text == "" {
		return min(limit.Bytes/2/uint64(n), alloc.MaxBytes), nil
	}
	if share, err := strconv.ParseFloat(text, 64); err == nil && share > 0 && share <= 1 {
		return uint64(math.Round(share * float64(limit.Bytes))), nil
	}
	bytes, err := humanize.ParseBytes(text)
	if err != nil || bytes < 1<<20 {
		return 0, usageError{fmt.Errorf("--memory-limit %s: bytes such as 1GiB (at least 1MiB), a share up to 1, or auto", text)}
	}
	if bytes > limit.Bytes {
		return 0, unusableError{fmt.Errorf("--memory-limit %s: one worker would have more than there is: %s (%s); give each of %s less",
			text, size(limit.Bytes), limit.Source, several(n, "worker"))}
	}
	return bytes, nil
}

// functionMemory returns the limit of the memory of functions, for a worker with this number of
// slots and this --memory-limit.
func (a *app) functionMemory(slots int, slab uint64) (limit executor.MemoryLimit, err error) {
	const least, leastOfSlot = 1 << 30, 512 << 20
	switch text := a.settings.String("function-memory-limit"); text {
	case "none":
		return limit, nil
	case "auto", "":
		limit.Bytes = max(slab, least, uint64(slots)*leastOfSlot)
	default:
		if share, err := strconv.ParseFloat(text, 64); err == nil && share > 0 && share <= 1 {
			machine, err := host.MemoryLimit()
			if err != nil {
				return limit, err
			}
			limit.Bytes = uint64(share * float64(machine.Bytes))
		} else if limit.Bytes, err = humanize.ParseBytes(text); err != nil || limit.Bytes < 1<<20 {
			return limit, usageError{fmt.Errorf("--function-memory-limit %s: bytes such as 4GiB (at least 1MiB), a share up to 1, none, or auto", text)}
		}
	}
	levels := a.settings.Strings("function-memory-levels")
	if err := areLevels(strings.Join(levels, ",")); err != nil {
		return limit, usageError{fmt.Errorf("--function-memory-levels %w", err)}
	}
	for i, level := range []*float64{&limit.Warn, &limit.Pause, &limit.End} {
		*level, _ = strconv.ParseFloat(levels[i], 64) // areLevels has parsed it
	}
	return limit, nil
}

// schedulerMemory returns the value of --scheduler-memory.
func (a *app) schedulerMemory() (uint64, error) {
	text := a.settings.String("scheduler-memory")
	if bytes, err := humanize.ParseBytes(text); err == nil && bytes >= 1<<20 {
		return bytes, nil
	}
	share := 0.25
	if text != "auto" && text != "" {
		var err error
		if share, err = strconv.ParseFloat(text, 64); err != nil || share <= 0 || share > 1 {
			return 0, usageError{fmt.Errorf("--scheduler-memory %s: bytes such as 1GiB (at least 1MiB), a share up to 1, or auto", text)}
		}
	}
	limit, err := host.MemoryLimit()
	if err != nil {
		return 0, err
	}
	return uint64(share * float64(limit.Bytes)), nil
}

// spillLimit returns the value of --spill-limit for each of n workers.
func (a *app) spillLimit(n int) (uint64, error) {
	switch text := a.settings.String("spill-limit"); text {
	case "none":
		return worker.NoSpill, nil
	case "auto", "":
		directory := localdir.Or(a.settings.String("local-directory"))
		if err := os.MkdirAll(directory, 0o700); err != nil {
			return 0, usageError{fmt.Errorf("--local-directory: %w", err)}
		}
		free, err := disk.FreeBytes(directory)
		if err != nil {
			return 0, err
		}
		if limit := free / 2 / uint64(n); limit >= 1<<20 {
			return limit, nil
		}
		return worker.NoSpill, nil
	default:
		bytes, err := humanize.ParseBytes(text)
		if err != nil || bytes < 1<<20 {
			return 0, usageError{fmt.Errorf("--spill-limit %s: bytes such as 10GiB (at least 1MiB), none, or auto", text)}
		}
		return bytes, nil
	}
}

func (a *app) worker() *cobra.Command {
	cmd := &cobra.Command{
		Use: "worker [scheduler]", Short: "Run workers of a cluster on this machine", Args: between(0, 1),
		Long: `Runs worker processes and keeps them alive: one that dies or hangs is started again, and its cause of death reported.
One that would end in the same way again is not: the exit code says why, and the last line on stderr.

Ctrl-C and SIGTERM let them leave properly: they take nothing new, end what runs, and other workers copy what only they
have, for --stop-grace at most. A second signal has them leave at once. A worker's process that gets SIGTERM itself does the
same, and is not started again.

The scheduler is found as by every other command, or given as host:port. The flags of dask-cuda-worker are understood: each
is translated, or a line in the log says why none is needed, or it is refused with the reason. The names of workers are unique in a cluster: with --name you choose
them, and two commands on one machine need different ones.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name := os.Getenv(supervisor.ChildEnv); name != "" {
				return a.runChild(cmd.Context(), name)
			}
			address, token, err := a.schedulerAddress()
			if err != nil {
				return err
			}
			withdraw()
			f, err := a.fleet()
			if err != nil {
				return err
			}
			workers, slots, err := a.workerCount(f)
			if err != nil {
				return err
			}
			if _, err := a.memoryLimit(workers); err != nil {
				return err
			}
			if _, port, err := net.SplitHostPort(a.settings.String("listen")); err == nil && port != "0" && workers > 1 {
				return usageError{fmt.Errorf("--listen %s: %d workers cannot share one port; use port 0, or --workers 1", a.settings.String("listen"), workers)}
			}
			if err := a.demandProtocol(cmd.Context(), f); err != nil {
				return err
			}
			if warning, err := a.demandPython(cmd.Context()); err != nil {
				return err
			} else if warning != "" {
				slog.Warn(warning)
			}
			slog.Info("workers start", "workers", workers, "device", f.line)
			children, err := a.children(f, workers, slots)
			if err != nil {
				return err
			}
			if err := a.giveHTTP(children); err != nil {
				return err
			}
			// A child ends when its grace is over, and that takes a moment more.
			grace := a.settings.Duration("stop-grace")
			return a.supervise(cmd.Context(), address, token, children, supervisor.Config{Args: withoutToken(a.args), DrainGrace: grace + grace/10, Hurry: a.hurry})
		},
	}
	workerFlags(cmd.Flags())
	cmd.Flags().String("listen", "127.0.0.1:0", "where the DataService listens")
	cmd.Flags().String("advertise", "", "host or host:port at which others reach it; default: where it listens")
	cmd.Flags().String("metrics-listen", "", "where metrics and health of the workers are served, each on a port of its own: the first worker on this one, the next on the next ones; port 0 takes free ones; empty: nowhere")
	cmd.Flags().Var(newSeconds(time.Minute), "death-timeout", "end, with exit code 4, when the scheduler was away for so long")
	cmd.Flags().Duration("stop-grace", 30*time.Second, "how long a worker that is told to stop may take to finish its running tasks, and to hand over the objects that only it has")
	daskWorkerFlags(cmd.Flags())
	return cmd
}

func (a *app) schedulerAddress() (address, token string, err error) {
	if address = a.settings.String("address"); address != "" {
		if address, err = hostport.Dial(address); err != nil {
			return "", "", usageError{fmt.Errorf("--address %w", err)}
		}
		token, err = a.token()
		return address, token, err
	}
	name := a.settings.String("scheduler-file")
	if name == "" {
		return "", "", errNoCluster
	}
	file, err := millrace.ReadSchedulerFile(name)
	if err != nil {
		return "", "", err
	}
	return file.Address, file.Token, nil
}

// ballastBytes is the size of an allocation that only affects the garbage collector. It uses no
// memory, because nothing writes to it. A worker's own heap is a few MiB, so without the ballast
// the collector would run after every few hundred small tasks, on as many processors as are idle.
// With it, the heap may grow by the same amount more before the collector runs.
const ballastBytes = 32 << 20

// runChild runs one worker in this process.
func (a *app) runChild(ctx context.Context, name string) error {
	link, secret, err := inherited()
	if err != nil {
		return err
	}
	// A supervisor that stops uses two signals. SIGTERM means: leave when no object would be lost.
	// A second signal, or any other one, means: leave at once.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	told := make(chan os.Signal, 4)
	signal.Notify(told, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(told)
	drain := make(chan struct{})
	go func() {
		if s := <-told; s == syscall.SIGTERM {
			close(drain)
			<-told
		}
		stop()
	}()
	ballast := make([]byte, ballastBytes)
	defer runtime.KeepAlive(ballast)
	s := a.settings
	gpu, err := ofSupervisor()
	if err != nil {
		return err
	}
	var workers, slots, cores int
	address := s.String("address")
	if gpu != nil {
		workers, slots, cores = gpu.Workers, gpu.Slots, min(gpu.Cores, runtime.NumCPU())
	} else if workers, slots, err = a.workerCount(&fleet{}); err != nil {
		return err
	} else {
		cores = coresOf(workers)
	}
	limit, err := a.memoryLimit(workers)
	if err != nil {
		return err
	}
	spill, err := a.spillLimit(workers)
	if err != nil {
		return err
	}
	functions, err := a.functionMemory(slots, limit)
	if err != nil {
		return err
	}
	c := worker.Config{
		SpillLimitBytes: spill, FunctionMemory: functions,
		Protocol: s.String("protocol"), UCX: a.ucx(), BLASLibrary: s.String("blas-library"),
		Name: name, Incarnation: os.Getenv(supervisor.IncarnationEnv), Restarted: os.Getenv(supervisor.RestartedEnv) != "", Supervised: true, Scheduler: address, Token: secret.Token, Accept: secret.Accept,
		Drain: drain, DrainGrace: s.Duration("stop-grace"), Alive: link.Alive, ControlPage: link.Page,
		Listen: s.String("listen"), Advertise: s.String("advertise"), HTTPAddress: os.Getenv(httpEnv), Sysfs: os.Getenv("MILLRACE_SYSFS"), Slots: slots, Cores: cores, MemoryLimitBytes: limit,
		PythonCommand: a.python(), Preload: s.Strings("preload"), Executors: s.Int("executors"), SpareExecutors: s.Int("spare-executors"), MaxWaiting: s.Int("max-waiting"), LocalDirectory: s.String("local-directory"),
		SchedulerTimeout: s.Duration("death-timeout"), MemoryWait: s.Duration("memory-wait"), Zero: s.Bool("zero"), Version: version.String(), Log: slog.Default(),
		Exec: map[string][]string{},
		// Functions that open a client find their own cluster, but their token does not allow them
		// to stop it.
		ExecutorEnv: []string{millrace.EnvAddress + "=" + address},
		Ready:       func(ids.WorkerID, string) { link.Registered() },
	}
	if secret.Task != "" {
		c.ExecutorEnv = append(c.ExecutorEnv, millrace.EnvToken+"="+secret.Task)
	}
	if dir, err := a.workingDirectory(); err != nil {
		return err
	} else if dir != "" {
		c.ExecutorEnv = append(c.ExecutorEnv, worker.WorkingDirectoryEnv+"="+dir)
	}
	if c.Resources, err = amounts(s.StringMap("resources")); err != nil {
		return usageError{fmt.Errorf("--resources %w", err)}
	}
	for _, e := range s.Strings("exec") {
		name, command, ok := strings.Cut(e, "=")
		if !ok {
			return usageError{fmt.Errorf("--exec %s: name=command", e)}
		}
		c.Exec[name] = strings.Fields(command)
	}
	if gpu != nil {
		if err := a.onDevice(&c, gpu); err != nil {
			return err
		}
	}
	return worker.Run(ctx, c)
}

// childExit reports to the supervisor why a worker's process ends, and returns its exit code.
func (a *app) childExit(err error) int {
	supervisor.Tell(a.err, err)
	var usage usageError
	var config *worker.ConfigError
	if errors.As(err, &usage) || errors.As(err, &config) {
		return supervisor.ExitUsage
	}
	return supervisor.ExitCode(err)
}

// withoutToken returns arguments without the token, for processes that get it in another way.
func withoutToken(args []string) []string {
	var rest []string
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--token" || args[i] == "--token-file":
			i++
		case strings.HasPrefix(args[i], "--token=") || strings.HasPrefix(args[i], "--token-file="):
		default:
			rest = append(rest, args[i])
		}
	}
	return rest
}

// reconnect says how soon a broken connection is tried again.
var reconnect = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// reportTimeout is how long a report of a death waits while no scheduler leads.
const reportTimeout = 10 * time.Second

// supervise runs workers until the context ends. c holds the settings that differ between callers.
func (a *app) supervise(ctx context.Context, address, token string, children []supervisor.Child, c supervisor.Config) error {
	scheduler, err := leader.Dial(address, reportTimeout, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(bearer(roletoken.Worker(token))),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 2 * time.Second}))
	if err != nil {
		return fmt.Errorf("scheduler address %q: %w", address, err)
	}
	defer func() { _ = scheduler.Close() }()
	format, err := a.logFormat()
	if err != nil {
		return err
	}
	c.Children, c.Scheduler, c.Output, c.Log = children, scheduler, a.err, slog.Default()
	// Children write their log through this process, so they use its format.
	c.Env = []string{millrace.EnvAddress + "=" + address, envPrefix + "LOG_FORMAT=" + format}
	c.Without = []string{millrace.EnvToken, millrace.EnvSchedulerFile, envPrefix + "TOKEN_FILE", httpEnv}
	if c.Secret, err = hand(token); err != nil {
		return err
	}
	if c.Executable, err = os.Executable(); err != nil {
		return err
	}
	// Killed workers leave their directories behind.
	defer localdir.Clean(a.settings.String("local-directory"))
	return supervisor.Run(ctx, c)
}

type bearer string

// GetRequestMetadata is part of credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if b == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity is part of credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return false }

func schedulerFlags(f *pflag.FlagSet) {
	f.String("listen", "127.0.0.1:0", "where the scheduler listens; port 0 takes a free one")
	f.String("http", "127.0.0.1:0", "where metrics and status are served; empty: nowhere")
	f.Bool("http-any-port", false, "take a free port if that of --http is in use")
	f.Bool("pprof", false, "serve profiles of the scheduler's process under /debug/pprof on the port of --http, for operators")
	f.Duration("worker-lease", 5*time.Second, "how long a silent worker is waited for")
	f.Duration("restart-grace", 15*time.Second, "after a restart from --journal, how long the workers that were known are waited for before their tasks are assigned to others")
	f.Duration("reconnect-grace", 5*time.Second, "how long a worker whose connection broke is waited for; a network may take seconds to find another way")
	f.String("scheduler-memory", "auto", "what the scheduler may hold for tasks before it refuses submissions: bytes (1GiB), a share of this machine's memory (0.2), or auto for a quarter of it")
	f.StringSlice("namespace-weight", nil, "shares of the clients of namespaces while several have tasks, such as research=3,batch=0.5; others have 1")
	f.StringSlice("namespace-tasks", nil, "how many tasks namespaces may hold before submissions are refused, such as research=1000000; *=100000 is for all others")
	f.StringSlice("namespace-memory", nil, "what tasks of namespaces may use of --scheduler-memory, such as research=1GiB; *=100MiB is for all others")
	f.String("journal", "", "directory in which the scheduler keeps what it has accepted, so that it goes on after its end; empty: nowhere")
	otlpFlags(f)
	f.String("inline-result", "64KiB", "largest result that travels with updates instead of from a worker: 1 B to 1 MiB")
}

// newServer makes the scheduler. The function that it returns gives back what the scheduler used;
// call it after Run. ready is called once the scheduler answers; nil: nobody is told.
func (a *app) newServer(ready func() error) (srv served, token string, end func(), err error) {
	end = func() {}
	s := a.settings
	several, err := a.peers()
	if err != nil {
		return nil, "", end, err
	}
	inline, err := humanize.ParseBytes(s.String("inline-result"))
	if err != nil || inline > 1<<20 {
		return nil, "", end, usageError{fmt.Errorf("--inline-result %s: bytes, at most 1MiB", s.String("inline-result"))}
	}
	budget, err := a.schedulerMemory()
	if err != nil {
		return nil, "", end, err
	}
	if token, err = a.token(); err != nil {
		return nil, "", end, err
	}
	traces, err := a.traces()
	if err != nil {
		return nil, "", end, err
	}
	directory, err := a.journal()
	if err != nil {
		return nil, "", end, err
	}
	if directory != nil {
		end = func() { _ = directory.Close() } // The lock ends with the process in any case.
	}
	if token == "" {
		var random [16]byte
		if _, err := rand.Read(random[:]); err != nil {
			return nil, "", end, err
		}
		if token = hex.EncodeToString(random[:]); directory != nil {
			if token, err = keptToken(directory, token); err != nil {
				return nil, "", end, err
			}
		}
	}
	namespaces, err := namespaceLimits(s.Strings("namespace-weight"), s.Strings("namespace-tasks"), s.Strings("namespace-memory"))
	if err != nil {
		return nil, "", end, err
	}
	config := server.Config{
		Traces:  traces,
		Address: s.String("listen"), HTTPAddress: s.String("http"), HTTPAnyPort: s.Bool("http-any-port"), Profiles: s.Bool("pprof"),
		Tokens: map[string]server.Role{
			token: server.RoleOperator, roletoken.Worker(token): server.RoleWorker, roletoken.Task(token): server.RoleTask,
			roletoken.Reader(token): server.RoleReader,
		},
		WorkerLease: s.Duration("worker-lease"), ReconnectGrace: s.Duration("reconnect-grace"), RestartGrace: s.Duration("restart-grace"), Ready: ready,
		Machine:           sched.Config{MemoryBytes: budget, Namespaces: namespaces},
		InlineResultBytes: uint32(inline), NativeOps: ops.NewRegistry().Names(), Log: slog.Default(),
	}
	if len(several) == 0 {
		if directory != nil {
			config.Journal = directory
			if err := demandAlone(directory); err != nil {
				return nil, "", end, err
			}
		}
		srv, err = server.New(config)
		return srv, token, end, err
	}
	srv, leave, err := a.newPeer(config, directory, token)
	closed := end
	return srv, token, func() { leave(); closed() }, err
}

// served is a scheduler, alone or one of several.
type served interface {
	ID() string
	Address() string
	HTTPAddress() string
	Run(ctx context.Context) error
}

func (a *app) scheduler() *cobra.Command {
	cmd := &cobra.Command{
		Use: "scheduler", Short: "Run a scheduler", Args: noArgs,
		Long: `Runs a scheduler until Ctrl-C or SIGTERM. Without --token it makes one, and prints it. Workers join with "millrace
worker --address ADDRESS" and the token in MILLRACE_TOKEN.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			withdraw()
			name, err := a.schedulerFile()
			if err != nil {
				return err
			}
			var srv served
			var token string
			var file *heldFile
			defer func() { file.remove() }()
			srv, token, end, err := a.newServer(func() (err error) {
				if file, err = writeSchedulerFile(name, srv, token); err != nil {
					return err
				}
				_, _ = fmt.Fprintf(a.out, "address %s\nhttp    %s\ntoken   %s\nready\n", pastable(srv.Address()), pastable(srv.HTTPAddress()), token)
				return nil
			})
			defer end()
			if err != nil {
				return err
			}
			return srv.Run(cmd.Context())
		},
	}
	schedulerFlags(cmd.Flags())
	peerFlags(cmd.Flags())
	return cmd
}

// workingDirectory returns the value of --working-directory: empty, or the absolute path of an
// existing directory.
func (a *app) workingDirectory() (string, error) {
	name := a.settings.String("working-directory")
	if name == "" {
		return "", nil
	}
	info, err := os.Stat(name)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", name)
	}
	if err == nil {
		name, err = filepath.Abs(name)
	}
	if err != nil {
		return "", usageError{fmt.Errorf("--working-directory: %w; name a directory of this machine", err)}
	}
	return name, nil
}
