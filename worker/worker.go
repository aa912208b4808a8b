// Package worker is a Loop: it builds one worker process from the device, the object store,
// the transfer paths, the executors and the session with the scheduler, and runs it until it ends.
package worker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/leader"
	"github.com/millrace/millrace/internal/logring"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/stats"
	"github.com/millrace/millrace/worker/tasklog"
)

// WorkingDirectoryEnv names the environment variable that tells executors in which directory
// functions run. If it is not set, functions run in the scratch directory of their executor.
const WorkingDirectoryEnv = "MILLRACE_WORKING_DIRECTORY"

// Config describes one worker. A zero value means the default that the field's comment gives.
type Config struct {
	// Name identifies the worker. It stays the same over restarts and is unique in the cluster.
	// Required.
	Name string
	// Incarnation identifies one run of the worker; a restart gets a new one. Default:
	// a fresh UUIDv7.
	Incarnation string
	// Scheduler is the scheduler's host:port, or the addresses of several with commas between them,
	// of which one leads. Required.
	Scheduler string
	// Token is the token that the worker sends to the scheduler and to other workers. Empty:
	// it sends none.
	Token string
	// Accept are the tokens that clients may send to this worker, with their roles. Token is always
	// accepted, as that of other workers. If both are empty, no token is required.
	Accept access.Tokens
	// Listen is the address at which the DataService listens. Default "127.0.0.1:0".
	Listen string
	// Advertise is the host:port at which others reach the DataService, if it differs from the
	// address at which it listens. Without a port, the port of the listener is used.
	Advertise string
	// HTTPAddress is host:port at which the worker serves metrics of its process (/metrics) and its
	// health (/healthz, /readyz). Without tokens it must be on loopback. Empty: nowhere.
	HTTPAddress string
	// Slots is the number of tasks that run at the same time. Default 1.
	Slots int
	// Cores is the number of processors that native operations may use together: the worker's share
	// of the host's. Default: all that this process may use.
	Cores int
	// Resources are the declared amounts of custom resources, by name.
	Resources map[string]float64
	// MemoryLimitBytes is the size of a slab in host memory. Default 1 GiB.
	MemoryLimitBytes uint64
	// Device is the kind of memory: DeviceHost or DeviceCUDA. Default DeviceHost.
	Device string
	// GPU is the UUID of the GPU, or its index among those that CUDA_VISIBLE_DEVICES leaves
	// visible. Default 0.
	GPU string
	// DeviceMemoryLimit is the size of the slab in GPU memory. Default 70 % of the GPU's memory,
	// or of its free memory if other processes leave too little.
	DeviceMemoryLimit cuda.Size
	// Restarted says that this worker name ran before; its peers may still have the previous slab
	// mapped.
	Restarted bool
	// Supervised says that a supervisor starts the process again when Run returns
	// *session.RestartError.
	Supervised bool
	// FunctionMemory bounds the memory of executor processes. The zero value has no limit.
	FunctionMemory executor.MemoryLimit
	// PinnedLimitBytes is the size of the tier of pinned host memory. Results that do not fit on
	// the GPU are moved there first, and to the disk only when this tier is full.
	// 0 means a share of the memory that this process may use, NoSpill means no such tier.
	PinnedLimitBytes uint64
	// GPUWorkers is the number of GPU workers that share the host memory of this machine. Default:
	// one for each GPU that this process sees.
	GPUWorkers int
	// CUDALibrary is the path of the CUDA driver library. Default: the system's libcuda.so.1.
	CUDALibrary string
	// GPUMonitor reports the GPU's health; nil: the health is not monitored. GPUFacts describes the
	// GPU's place in the machine (NUMA node, network devices, links), which CUDA does not report.
	GPUMonitor GPUMonitor
	GPUFacts   *millracev1.Gpu
	// Sysfs is the mount point of sysfs, which has the counters of network devices. Default "/sys".
	Sysfs string
	// ExecutorArenaBytes is the part of a GPU slab that the allocators of each library may keep in
	// each executor process. 0: the libraries keep their own allocators.
	ExecutorArenaBytes uint64
	// ExecutorArenaLibraries are the names of these libraries, out of those that executors support.
	ExecutorArenaLibraries []string
	// PythonCommand is the command line of a Python executor.
	// Default "python3 -m millrace.executor"; a single "" means that there is no Python executor.
	PythonCommand []string
	// Exec maps the names of further kinds of executors to their command lines.
	Exec map[string][]string
	// Executors is the number of Python processes that the worker starts immediately,
	// instead of at their first use. Default 0.
	Executors int
	// SpareExecutors is the number of idle processes that are kept ready for each kind of executor,
	// to replace a process that dies. 0: none.
	SpareExecutors int
	// MaxWaiting is the number of tasks that may wait for other tasks without a slot. Each keeps
	// its process meanwhile, on a GPU with its context. 0: 100, and 16 on a GPU.
	MaxWaiting int
	// Preload are the modules that executor processes import while they are idle.
	Preload []string
	// ExecutorEnv is added to the environment of executors: NAME=value.
	ExecutorEnv []string
	// LocalDirectory is the directory in which the worker makes a directory of its own,
	// for its executors and for results that do not fit in memory. Directories that dead workers
	// left there are removed. Default: the system's directory for temporary files.
	LocalDirectory string
	// SpillLimitBytes limits the results on disk. 0 means half of the space that is free there when
	// the worker starts; NoSpill means that no results are kept on disk.
	SpillLimitBytes uint64
	// SchedulerTimeout is the longest time without a connection to the scheduler before the worker
	// ends. Default 60 s.
	SchedulerTimeout time.Duration
	// MemoryWait is the longest time that a task waits for memory before it fails. Default 30 s.
	MemoryWait time.Duration
	// StallTimeout is the longest time that a fetch waits for the next byte. Default 5 s.
	StallTimeout time.Duration
	// BorrowWait is the longest time that a task waits for peers to lend inputs that it could also
	// fetch. Default 2 s.
	BorrowWait time.Duration
	// SubscriptionWait limits two waits for the result of a task of a peer that is not assigned yet
	// or not made yet: that of the reader for a connection to the peer, and that of the peer for
	// the assignment of the task. Then the reader's task is returned to the scheduler. Default 2 s.
	SubscriptionWait time.Duration
	// SpinTime is the longest time that an execution slot or a notification reader busy-polls
	// before it blocks. 0: one millisecond on machines with 8 processors or more, otherwise no
	// polling. Negative: no polling.
	SpinTime time.Duration
	// StopGrace is the time that an interrupted run gets to end before its process is killed.
	// Default 1 s.
	StopGrace time.Duration
	// Protocol selects how objects of other workers are fetched: ProtocolBorrow, ProtocolUCX,
	// ProtocolIPC or ProtocolGRPC. Default: ProtocolAuto, which takes the best path that each pair
	// of workers has.
	Protocol string
	// BLASLibrary is the library of BLAS and LAPACK for linear algebra on the CPU: a path, a name
	// that the dynamic linker searches for, or "none" for pure Go. Empty: it is searched for, and
	// there may be none.
	BLASLibrary string
	// UCX configures one-sided reads.
	UCX UCX
	// Drain, when closed, makes the worker leave: as soon as the running tasks have ended and the
	// objects that only this worker has were copied elsewhere, or after DrainGrace. Drain may be
	// nil. Alive, if set, is called about every second as long as the worker does not hang.
	// ControlPage, if set, is called with the control page of each new executor process.
	Drain       <-chan struct{}
	DrainGrace  time.Duration
	Alive       func()
	ControlPage func(*os.File)
	// Zero makes a worker that answers each assignment immediately and runs nothing.
	// It serves to measure the rest of the system.
	Zero bool
	// Version is the version of the program.
	Version string
	// Log receives log messages. Default: slog.Default.
	Log *slog.Logger
	// Ready, if set, is called once, after the first registration.
	Ready func(id ids.WorkerID, dataAddress string)

	// suspects are the GPUs of this host whose memory must not be read. Set when the configuration
	// is validated.
	suspects *suspects
	// lines are the last lines of the log.
	lines *logring.Ring
}

// NoSpill switches a tier off: as SpillLimitBytes the disk, as PinnedLimitBytes the pinned host
// memory.
const NoSpill = ^uint64(0)

// defaultSpinTime is the default of Config.SpinTime on machines with enough processors; see
// internal/spin.
const defaultSpinTime = time.Millisecond

// defaultMemoryLimit is the default of Config.MemoryLimitBytes: small enough for any machine.
const defaultMemoryLimit = 1 << 30

// farewell is how long peers that read from a worker that ends may take to finish. They fetch the
// rest from elsewhere, so it is short beside the time that a supervisor waits.
const farewell = 500 * time.Millisecond

const (
	// pingAfter is the silence of a connection after which the worker asks the other side for a
	// sign of life. The scheduler allows no shorter time (leastPing in server/rpc). peerTimeout is
	// the time that a reader has to answer.
	pingAfter   = leader.PingAfter
	peerTimeout = 10 * time.Second
	// leastPing is the shortest time between the pings of a reader.
	leastPing = 2 * time.Second
	// dialTimeout is how long one attempt to connect to the scheduler may take: a host that does
	// not answer by then is tried again.
	dialTimeout = 2 * time.Second
	// window and connectionWindow are the initial flow-control windows of a stream and of the
	// connection to the scheduler, in bytes: many batches of assignments fit.
	window           = 4 << 20
	connectionWindow = 2 * window
)

// The values of Config.Device.
const (
	DeviceHost = "host"
	DeviceCUDA = "cuda"
)

// The values of Config.Protocol.
const (
	ProtocolAuto   = "auto"
	ProtocolBorrow = "borrow"
	ProtocolUCX    = "ucx"
	ProtocolGRPC   = "grpc"
	ProtocolIPC    = "ipc"
)

// ErrNoIPC is the error of workers in host memory that are to use ProtocolIPC.
var ErrNoIPC = errors.New("--protocol ipc copies from GPU to GPU, and workers in host memory have no other path then: " +
	"use --protocol auto or borrow, or put the workers on GPUs (--device cuda)")

// ConfigError describes the errors of a Config.
type ConfigError struct{ error }

func (e *ConfigError) Unwrap() error { return e.error }

// refusals are the reasons why a Config is refused.
type refusals []error

func (r *refusals) when(wrong bool, format string, args ...any) {
	if wrong {
		*r = append(*r, fmt.Errorf("worker: "+format, args...))
	}
}

func (c Config) validated() (Config, error) {
	var wrong refusals
	switch c.Protocol {
	case "":
		c.Protocol = ProtocolAuto
	case ProtocolAuto, ProtocolBorrow, ProtocolUCX, ProtocolGRPC, ProtocolIPC:
	default:
		wrong.when(true, "protocol %q (--protocol): auto, borrow, ucx, ipc or grpc", c.Protocol)
	}
	switch c.Device {
	case "":
		c.Device = DeviceHost
	case DeviceHost, DeviceCUDA:
	default:
		wrong.when(true, "device %q (--device): host or cuda", c.Device)
	}
	wrong.when(c.Protocol == ProtocolIPC && c.Device == DeviceHost, "%w", ErrNoIPC)
	wrong.when(c.Name == "", "a worker needs a name (--name)")
	wrong.when(c.Scheduler == "", "the scheduler's address is missing (--address)")
	wrong.when(c.Slots < 0, "%d slots (--slots): at least 1", c.Slots)
	c.UCX.check(&wrong)
	wrong.when(c.SpareExecutors < 0, "%d spare executors (--spare-executors): at least 0", c.SpareExecutors)
	wrong.when(c.MaxWaiting < 0, "%d waiting tasks (--max-waiting): at least 0", c.MaxWaiting)
	wrong.when(c.Zero && c.HTTPAddress != "", "HTTP on %s (--metrics-listen): a worker that runs nothing (--zero) has no metrics; leave one of them out", c.HTTPAddress)
	for name, command := range c.Exec {
		wrong.when(name == "" || name == "native" || name == "python" || strings.Contains(name, "/") || len(command) == 0, "executor %q with command %q (--exec): a name other than native and python, without a slash, and a command", name, command)
	}
	for _, limit := range []struct {
		flag  string
		bytes uint64
	}{{"--memory-limit", c.MemoryLimitBytes}, {"--pinned-limit", c.PinnedLimitBytes}, {"--device-memory-limit", c.DeviceMemoryLimit.Bytes}} {
		wrong.when(limit.bytes > alloc.MaxBytes && limit.bytes != NoSpill, "%s %s: a worker manages 1 TiB at most in each tier; start more workers (--workers), each with its part", limit.flag, humanize.IBytes(limit.bytes))
	}
	c.Slots = max(c.Slots, 1)
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.MemoryLimitBytes == 0 {
		c.MemoryLimitBytes = defaultMemoryLimit
	}
	page := uint64(os.Getpagesize())
	c.MemoryLimitBytes = c.MemoryLimitBytes / page * page
	if c.PythonCommand == nil {
		c.PythonCommand = []string{"python3", "-m", "millrace.executor"}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.suspects, c.lines = new(suspects), new(logring.Ring)
	if len(wrong) > 0 {
		return c, &ConfigError{errors.Join(wrong...)}
	}
	return c, nil
}

// Run runs one worker. It returns nil when the context ends (after an orderly leave) or when the
// scheduler drains the worker, *session.StoppedError when the scheduler stops it, and another error
// when something fails.
func Run(ctx context.Context, config Config) (err error) {
	c, err := config.validated()
	if err != nil {
		return err
	}
	c.Log = c.lines.Logger(c.Log).With("worker", c.Name)
	incarnation, err := uuid.NewV7()
	if c.Incarnation != "" {
		incarnation, err = uuid.Parse(c.Incarnation)
	}
	if err != nil {
		return fmt.Errorf("worker: incarnation %q: %w", c.Incarnation, err)
	}
	scheduler, err := dial(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, scheduler.Close()) }()
	registration := &workerv1.Registration{
		Name: c.Name, Incarnation: incarnation.String(), Pid: int64(os.Getpid()), Device: millracev1.DeviceKind_DEVICE_KIND_HOST,
		Slots: uint32(c.Slots), Resources: c.Resources, MemoryLimitBytes: c.MemoryLimitBytes, Version: c.Version,
		Executors: []string{"native"}, Supervised: c.Supervised,
	}
	if registration.Host, err = os.Hostname(); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	if c.Zero {
		// A zero worker has no objects to hand over, so it leaves immediately.
		ctx, leave := context.WithCancel(ctx)
		defer leave()
		go func() {
			select {
			case <-c.Drain:
				leave()
			case <-ctx.Done():
			}
		}()
		return session.RunZero(ctx, session.ZeroConfig{
			Registration: registration, Scheduler: scheduler, RSS: stats.RSS, Log: c.Log,
			Ready: func(id ids.WorkerID) { c.ready(id, "") },
		})
	}
	identity := memory.Identity{WorkerUUID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(c.Name)), Incarnation: incarnation}
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	identity.Nonce = binary.LittleEndian.Uint64(nonce[:])
	return (&parts{Config: c, identity: identity, registration: registration, scheduler: scheduler, logs: new(tasklog.Logs), pulse: newPulse(c.Alive)}).run(ctx)
}

func (c Config) ready(id ids.WorkerID, address string) {
	if c.Ready != nil {
		c.Ready(id, address)
	}
}

func dial(c Config) (leader.Conn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: leader.PingTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: dialTimeout}),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(connectionWindow),
		grpc.WithNoProxy(),
	}
	if c.Token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(c.Token)))
	}
	conn, err := leader.Dial(c.Scheduler, c.SchedulerTimeout, options...)
	if err != nil {
		return nil, fmt.Errorf("worker: scheduler %s: %w", c.Scheduler, err)
	}
	return conn, nil
}
