// Package worker is a Loop: it builds one worker process from the device, the object store,
// the transfer paths, the executors and the session with the scheduler, and runs it until it ends.
package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/admission"
	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/logring"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/loop"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
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
	// Scheduler is the scheduler's host:port. Required.
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
	// UCXLibrary is the path of libucp.so.0; UCXTLS and UCXNetDevices select its transports and
	// network devices. Empty: the library is searched for, and UCX chooses by itself.
	UCXLibrary, UCXTLS, UCXNetDevices string
	// NearNetDevices are the RDMA ports near the GPU, one or two that are alike, in UCX's notation.
	// UCX uses them, unless UCXNetDevices or UCX_NET_DEVICES name others. Empty: UCX chooses.
	NearNetDevices string
	// UCXRCTimeout is how long an RDMA connection waits for the acknowledgement of a packet before
	// it sends the packet again; UCXRCRetries, 1 to 7, is how often it does so before the peer
	// counts as dead. 0: UCX_RC_TIMEOUT and UCX_RC_RETRY_COUNT, else UCX's defaults, 1 s and 7.
	UCXRCTimeout time.Duration
	UCXRCRetries int
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

// The limits of UCXRCTimeout and UCXRCRetries. A card cannot repeat a packet more than 7 times. A
// connection with the longest timeout notices a dead peer after 8 minutes.
const (
	MinRCTimeout = time.Millisecond
	MaxRCTimeout = time.Minute
	MaxRCRetries = 7
)

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
	// the time that a reader has to answer, schedulerTimeout that of the scheduler.
	pingAfter        = 10 * time.Second
	peerTimeout      = 10 * time.Second
	schedulerTimeout = 5 * time.Second
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

func (c Config) validated() (Config, error) {
	var errs []error
	switch c.Protocol {
	case "":
		c.Protocol = ProtocolAuto
	case ProtocolAuto, ProtocolBorrow, ProtocolUCX, ProtocolGRPC, ProtocolIPC:
	default:
		errs = append(errs, fmt.Errorf("worker: protocol %q (--protocol): auto, borrow, ucx, ipc or grpc", c.Protocol))
	}
	switch c.Device {
	case "":
		c.Device = DeviceHost
	case DeviceHost, DeviceCUDA:
	default:
		errs = append(errs, fmt.Errorf("worker: device %q (--device): host or cuda", c.Device))
	}
	if c.Protocol == ProtocolIPC && c.Device == DeviceHost {
		errs = append(errs, fmt.Errorf("worker: %w", ErrNoIPC))
	}
	if c.Name == "" {
		errs = append(errs, errors.New("worker: a worker needs a name (--name)"))
	}
	if c.Scheduler == "" {
		errs = append(errs, errors.New("worker: the scheduler's address is missing (--address)"))
	}
	if c.Slots < 0 {
		errs = append(errs, fmt.Errorf("worker: %d slots (--slots): at least 1", c.Slots))
	}
	if c.UCXRCTimeout != 0 && (c.UCXRCTimeout < MinRCTimeout || c.UCXRCTimeout > MaxRCTimeout) {
		errs = append(errs, fmt.Errorf("worker: a timeout of %v (--ucx-rc-timeout): %v to %v", c.UCXRCTimeout, MinRCTimeout, MaxRCTimeout))
	}
	if c.UCXRCRetries < 0 || c.UCXRCRetries > MaxRCRetries {
		errs = append(errs, fmt.Errorf("worker: %d repetitions (--ucx-rc-retries): 1 to %d", c.UCXRCRetries, MaxRCRetries))
	}
	if c.SpareExecutors < 0 {
		errs = append(errs, fmt.Errorf("worker: %d spare executors (--spare-executors): at least 0", c.SpareExecutors))
	}
	if c.MaxWaiting < 0 {
		errs = append(errs, fmt.Errorf("worker: %d waiting tasks (--max-waiting): at least 0", c.MaxWaiting))
	}
	if c.Zero && c.HTTPAddress != "" {
		errs = append(errs, fmt.Errorf("worker: HTTP on %s (--metrics-listen): a worker that runs nothing (--zero) has no metrics; leave one of them out", c.HTTPAddress))
	}
	for name, command := range c.Exec {
		if name == "" || name == "native" || name == "python" || strings.Contains(name, "/") || len(command) == 0 {
			errs = append(errs, fmt.Errorf("worker: executor %q with command %q (--exec): a name other than native and python, without a slash, and a command", name, command))
		}
	}
	for _, limit := range []struct {
		flag  string
		bytes uint64
	}{{"--memory-limit", c.MemoryLimitBytes}, {"--pinned-limit", c.PinnedLimitBytes}, {"--device-memory-limit", c.DeviceMemoryLimit.Bytes}} {
		if limit.bytes > alloc.MaxBytes && limit.bytes != NoSpill {
			errs = append(errs, fmt.Errorf("worker: %s %s: a worker manages 1 TiB at most in each tier; start more workers (--workers), each with its part", limit.flag, humanize.IBytes(limit.bytes)))
		}
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
	if len(errs) > 0 {
		return c, &ConfigError{errors.Join(errs...)}
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
			Registration: registration, Scheduler: scheduler, RSS: loop.RSS, Log: c.Log,
			Ready: func(id ids.WorkerID) { c.ready(id, "") },
		})
	}
	identity := memory.Identity{WorkerUUID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(c.Name)), Incarnation: incarnation}
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	identity.Nonce = binary.LittleEndian.Uint64(nonce[:])
	m, err := c.open(ctx, identity)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	m.describe(registration)
	c.facts(registration.GetGpu())
	return runOn(ctx, c, registration, scheduler, m)
}

func (c Config) ready(id ids.WorkerID, address string) {
	if c.Ready != nil {
		c.Ready(id, address)
	}
}

// runOn runs a worker on the memory that was opened for it.
func runOn(ctx context.Context, c Config, registration *workerv1.Registration, scheduler *grpc.ClientConn, m *opened) (err error) {
	d := m.device
	objects, err := store.New(d.Space(), c.Log, m.below...)
	if err != nil {
		return err
	}
	index, err := objindex.New(0, 0)
	if err != nil {
		c.Log.Warn("peers on this host ask for every object that they read", "error", err)
	} else {
		defer func() { err = errors.Join(err, index.Close()) }()
		objects.PublishTo(index)
	}
	defer objects.Close()
	registration.NativeOps = d.Ops()
	logs := new(tasklog.Logs)

	// opened has a closing function for each thing that was opened so far. They run if a later step
	// fails. It is empty once the worker serves: then the end of this function closes everything.
	var opened []func() error
	defer func() {
		for _, end := range slices.Backward(opened) {
			err = errors.Join(err, end())
		}
	}()
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("worker: listen for data on %s: %w; choose another --listen", c.Listen, err)
	}
	opened = append(opened, listener.Close)
	if registration.DataAddress, err = advertised(c.Advertise, listener.Addr()); err != nil {
		return err
	}
	var w *loop.Worker
	pools, err := c.executors(m.local.Path(), registration.GetDataAddress(), objects, logs, m.executors, func(r []executor.Result) { w.PostResults(r) })
	if err != nil {
		return err
	}
	opened = append(opened, func() error { pools.Close(); return nil })
	registration.Executors = append(registration.Executors, pools.Kinds()...)

	var received atomic.Uint64
	path, oneSided, streams, err := c.paths(d.Space(), objects.Source(), func() ids.WorkerID { return w.Self() }, func(n int) { received.Add(uint64(n)) },
		func(at transfer.Peer, dead bool) { w.Unmapped(at, dead) },
		func() bool { return computes(d) || pools.Working() })
	if err != nil {
		return err
	}
	opened = append(opened, path.Close)
	data := &grpcpath.Server{Source: objects.Source(), Logs: logs.Read, Follow: following{logs, followPause}.serve, OwnLog: c.lines.Last, OneSided: oneSided.accept, Log: c.Log}
	spinTime := max(c.SpinTime, 0)
	if c.SpinTime == 0 && slabshare.Spins() {
		spinTime = defaultSpinTime
	}
	notifier := notify.New(notify.Config{
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			if conn, err := slabshare.DialNotify(ctx, address, c.Token); err == nil {
				return conn, nil
			}
			return streams.DialNotify(ctx, address) // the peer is on another host, or cannot be reached at all
		},
		DialTimeout: c.SubscriptionWait,
		Spin:        spinTime,
		Completed:   func(completions []notify.Completion) { w.Completed(completions) },
		Requested:   func(r *notify.Subscriber, requests []notify.Request) { w.Requested(r, requests) },
		Handle:      func() { w.Handle() },
		Left:        func(r *notify.Subscriber) { w.Left(r) },
		Log:         c.Log,
	})
	defer notifier.Close()
	data.Notify, registration.Notifies = notifier.Serve, true
	var lender *borrow.Server
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	if registration.LinearAlgebra, err = c.linearAlgebra(m); err != nil {
		return err
	}
	health := &gpuHealth{config: c, uuid: registration.GetGpu().GetUuid(), doubt: m.doubt, leave: func(why error) {
		c.Log.Error("the worker leaves, so that its GPU can be seen to", "gpu", registration.GetGpu().GetUuid(), "error", why)
		leave(why)
	}}
	traffic := func() (uint64, uint64) {
		in, out := data.Traffic()
		if lender != nil {
			written, lent := lender.Traffic()
			in, out = in+written, out+lent
		}
		out += oneSided.served()
		return in + received.Load(), out
	}
	pulse := newPulse(c.Alive)
	w = loop.New(loop.Config{
		Registration: registration, Scheduler: scheduler, GPUHealth: health.current, Store: objects, Path: path, Notifier: notifier, Executors: pools, Logs: logs,
		Native: native.New(native.Config{
			Slots: int(registration.GetSlots()), Device: d, Store: objects, Health: m.health, MemoryWait: c.MemoryWait, SpinTime: spinTime, Cores: c.Cores,
		}),
		Traffic:          traffic,
		SchedulerTimeout: c.SchedulerTimeout, MemoryWait: c.MemoryWait, BorrowWait: c.BorrowWait, Log: c.Log,
		Lifecycle: lifecycle.Config{MaxBlocked: c.maxWaiting(m.executors != nil), SubscriptionWait: max(c.SubscriptionWait, 0)},
		Ready:     func(id ids.WorkerID) { c.ready(id, registration.GetDataAddress()) },
		Alive:     pulse.beat, Drain: c.Drain, DrainGrace: c.DrainGrace,
	})
	data.Receiver, data.Memory = w.Receiver(), w.DescribeMemory
	lender, err = borrow.Listen(registration.GetDataAddress(), borrow.ServerConfig{
		Space: d.Space(), Device: m.lent, Host: m.shown(objects.Source(), data.Receiver), Source: objects.Source(), Receiver: data.Receiver,
		Notify: notifier.Serve, Index: index, Accept: c.accepts(millracev1.DataService_ReadObjects_FullMethodName),
		AcceptWriter: c.accepts(millracev1.DataService_WriteObject_FullMethodName), Log: c.Log,
	})
	if err != nil {
		lender = nil
		c.Log.Warn("nobody on this host can borrow from this worker", "error", err)
	} else {
		opened = append(opened, lender.Close)
	}
	port, err := c.serveHTTP(watched{loop: w, objects: objects, path: path, pools: pools, traffic: traffic, pulse: pulse})
	if err != nil {
		return err
	}
	opened = append(opened, port.Close)
	options := append(rawframe.ServerOptions(), grpc.Creds(admission.Credentials(data.Credentials(c.accepts(millracev1.DataService_ReadObjects_FullMethodName)))))
	var server *grpc.Server
	services := sync.OnceValue(func() map[string]grpc.ServiceInfo { return server.GetServiceInfo() })
	options = append(options, admission.ServerOptions(admission.Gate(c.tokens(), services))...)
	checks, err := checking(c.Log)
	if err != nil {
		return err
	}
	opened = nil
	options = append(options, checks...)
	server = grpc.NewServer(append(options, keepaliveServer()...)...)
	data.Register(server)
	millracev1.RegisterExecutorServiceServer(server, &executor.Service{Pools: pools})
	reflection.Register(server) // v1 and v1alpha
	served := make(chan error, 1)
	go func() { served <- server.Serve(admission.Listen(listener, admission.Limits{})) }()

	followed, unfollow := context.WithCancel(ctx)
	defer unfollow()
	var followers sync.WaitGroup
	followers.Go(func() {
		(&pluginFollower{worker: c.Name, scheduler: scheduler, pools: pools, log: c.Log}).run(followed)
	})
	pools.Begin()
	looked, sampled := m.watch(w.Fail), health.watch(w.Fail)
	err = w.Run(ctx)
	unfollow()
	followers.Wait()
	notifier.Close()
	sampled()
	looked()
	logs.Close()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.GracefulStop()
		data.Drain()
	}()
	select {
	case <-stopped:
	case <-time.After(farewell):
		server.Stop()
		data.Close()
		<-stopped
	}
	err = errors.Join(err, port.Close())
	pools.Close()
	if lender != nil {
		err = errors.Join(err, lender.Close())
	}
	return errors.Join(err, <-served, path.Close())
}

func keepaliveServer() []grpc.ServerOption {
	return []grpc.ServerOption{
		// A reader that is stopped or cut off from the network holds leases. Keepalive detects it.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: peerTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPing, PermitWithoutStream: true}),
	}
}

func dial(c Config) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: schedulerTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: dialTimeout}),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(connectionWindow),
		grpc.WithNoProxy(),
	}
	if c.Token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(c.Token)))
	}
	conn, err := grpc.NewClient("passthrough:///"+c.Scheduler, options...)
	if err != nil {
		return nil, fmt.Errorf("worker: scheduler %s: %w", c.Scheduler, err)
	}
	return conn, nil
}

// advertised returns the address at which other processes reach the DataService.
func advertised(wanted string, listening net.Addr) (string, error) {
	host, port, err := net.SplitHostPort(listening.String())
	if err != nil {
		return "", fmt.Errorf("worker: listening on %s: %w", listening, err)
	}
	if wanted != "" {
		host, other, err := hostport.Advertise(wanted)
		if err != nil {
			return "", &ConfigError{fmt.Errorf("--advertise %w", err)}
		}
		return net.JoinHostPort(host, cmp.Or(other, port)), nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("worker: listening on all addresses, and %w; set --advertise", err)
		}
	}
	return net.JoinHostPort(host, port), nil
}

// computes reports whether kernels are running on the device. A device in host memory has none.
func computes(d device.Device) bool {
	gpu, ok := d.(interface{ Computing() bool })
	return ok && gpu.Computing()
}

// maxWaiting is MaxWaiting with its default.
func (c Config) maxWaiting(gpu bool) int {
	const onGPU = 16
	switch {
	case c.MaxWaiting > 0:
		return c.MaxWaiting
	case gpu:
		return onGPU
	}
	return lifecycle.DefaultMaxBlocked
}

// executors makes the pools of executor processes, with scratch as their parent directory. address
// is that of the data service.
func (c Config) executors(scratch, address string, objects *store.Store, logs *tasklog.Logs, on *executor.Device, done func([]executor.Result)) (*executor.Pools, error) {
	commands := maps.Clone(c.Exec)
	if commands == nil {
		commands = make(map[string][]string)
	}
	if len(c.PythonCommand) > 0 && c.PythonCommand[0] != "" {
		commands["python"] = c.PythonCommand
	}
	start := map[string]int{"python": c.Executors}
	return executor.New(executor.Config{
		Worker: c.Name, Address: address, Scheduler: c.Scheduler, Commands: commands, Processes: c.Slots, Waiting: c.maxWaiting(on != nil), StartAtOnce: start,
		Env: c.ExecutorEnv, Scratch: scratch, Store: objects, Logs: logs, Done: done, Log: c.Log, MemoryWait: c.MemoryWait,
		StopGrace: c.StopGrace, Device: on, Preload: c.Preload, Spares: c.SpareExecutors, Plugins: true,
		Memory: c.FunctionMemory, ControlPage: c.ControlPage,
	})
}
