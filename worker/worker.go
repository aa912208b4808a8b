// Package worker is a Loop: it puts one worker process together, out of the
// device, the store, the transfer path, the executors and the session with the
// scheduler, and runs it to its end.
package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/admission"
	"github.com/millrace/millrace/internal/board"
	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/herald"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/loop"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

// WorkingDirectoryEnv tells executors where functions run; without it that is their scratch directory.
const WorkingDirectoryEnv = "MILLRACE_WORKING_DIRECTORY"

// Config is one worker. Zero values are the defaults that each field names.
type Config struct {
	// Name is stable over restarts and unique in the cluster. Required.
	Name string
	// Incarnation names this life of the worker. Default: a fresh UUIDv7.
	Incarnation string
	// Scheduler is its host:port. Required.
	Scheduler string
	// Token is what the worker shows to the scheduler and to other workers.
	// Empty: none.
	Token string
	// AcceptTokens are those that clients and other workers may show to this
	// one, Token among them in any case; AcceptSums are further ones by their SHA-256, so that a worker need not
	// know what it accepts. All empty: nobody is asked for one.
	AcceptTokens []string
	AcceptSums   [][sha256.Size]byte
	// Listen is where the DataService listens. Default "127.0.0.1:0".
	Listen string
	// Advertise is the host:port at which others reach it, if that is not where
	// it listens; without a port, the one that it got.
	Advertise string
	// Slots is how many tasks run at once. Default 1.
	Slots int
	// Resources are declared amounts by name.
	Resources map[string]float64
	// MemoryLimitBytes is the size of a slab in host memory. Default 1 GiB.
	MemoryLimitBytes uint64
	// Device is the kind of memory: DeviceHost or DeviceCUDA. Default DeviceHost.
	Device string
	// GPU is the UUID of the GPU, or its number among those that CUDA_VISIBLE_DEVICES
	// leaves. Default 0.
	GPU string
	// DeviceMemoryLimit is how much of the GPU's memory the slab takes. Default 70 %, or
	// as much of what others leave.
	DeviceMemoryLimit cuda.Size
	// Restarted: the worker had a life before, whose slab its peers may still have mapped.
	Restarted bool
	// PinnedLimitBytes is how much host memory keeps what the GPU has no room for,
	// before the disk does. 0 means a share of what this process may use, NoSpill none.
	PinnedLimitBytes uint64
	// GPUWorkers is how many workers on GPUs share the memory of this machine. Default:
	// one for each GPU that this process sees.
	GPUWorkers int
	// CUDALibrary is the driver. Default: the system's libcuda.so.1.
	CUDALibrary string
	// GPUMonitor tells of the GPU's health; nil: nobody does. GPUFacts says how the
	// machine lies around it: of that, all that CUDA does not tell.
	GPUMonitor GPUMonitor
	GPUFacts   *millracev1.Gpu
	// ExecutorArenaBytes is how much of the slab on a GPU each executor process may
	// keep for the allocators of its libraries. 0: those are left alone.
	ExecutorArenaBytes uint64
	// ExecutorArenaLibraries are these libraries by name, of those that executors know.
	ExecutorArenaLibraries []string
	// PythonCommand starts a Python executor. Default "python3 -m
	// millrace.executor"; a single "" means that there is none.
	PythonCommand []string
	// Exec are further executors: command lines by name.
	Exec map[string][]string
	// Executors is how many Python processes are started at once, rather than at
	// their first use. Default 0.
	Executors int
	// SpareExecutors is how many processes of each kind of executor wait for the death of another one. 0: none.
	SpareExecutors int
	// Preload are modules that those import while they have nothing to do.
	Preload []string
	// ExecutorEnv is added to the environment of executors: NAME=value.
	ExecutorEnv []string
	// LocalDirectory is where the worker makes a directory of its own, for executors
	// to get theirs in and for results that the slab has no room for. What dead
	// workers left there is removed. Default: that of the system for temporary files.
	LocalDirectory string
	// SpillLimitBytes bounds those results. 0 means half of what is free there when
	// the worker starts, NoSpill that they are not kept on disk.
	SpillLimitBytes uint64
	// SchedulerTimeout is how long the scheduler may be away before the worker
	// ends. Default 60 s.
	SchedulerTimeout time.Duration
	// MemoryWait is how long a task waits for memory before it fails. Default
	// 30 s.
	MemoryWait time.Duration
	// StallTimeout is how long a fetch waits for the next byte. Default 5 s.
	StallTimeout time.Duration
	// BorrowWait is how long a task waits for peers to lend what it could also fetch.
	// Default 2 s.
	BorrowWait time.Duration
	// LookFor is for how long, at most, lanes and those who hear of results look for what
	// comes next before they sleep. 0: a millisecond on machines with 8 processors or more,
	// elsewhere not at all; negative: not at all.
	LookFor time.Duration
	// StopGrace is how long a run that is interrupted may take to end, before its
	// process is killed. Default 1 s.
	StopGrace time.Duration
	// Protocol forces how objects of other workers are fetched: ProtocolBorrow,
	// ProtocolUCX or ProtocolGRPC. Default: ProtocolAuto, the best that each pair has.
	Protocol string
	// UCXLibrary is libucp.so.0; UCXTLS and UCXNetDevices choose its transports and
	// devices. Empty: what is found and what it chooses.
	UCXLibrary, UCXTLS, UCXNetDevices string
	// Drain, if closed, has the worker leave as soon as what runs has ended and others have copied what only it has, or after
	// DrainGrace. May be nil. Alive, if set, is called every second or so while the worker does not hang.
	Drain      <-chan struct{}
	DrainGrace time.Duration
	Alive      func()
	// Zero makes a worker that answers each assignment at once and runs nothing:
	// it measures the rest of the system.
	Zero bool
	// Version is that of the program.
	Version string
	// Log takes messages. Default: slog.Default.
	Log *slog.Logger
	// Ready, if set, is called once, when the worker is first registered.
	Ready func(id ids.WorkerID, dataAddress string)

	// suspects are the GPUs of the host whose memory is not read; made when the configuration is checked.
	suspects *suspects
}

// NoSpill is the SpillLimitBytes of a worker that uses no disk, and the
// PinnedLimitBytes of one that keeps nothing in pinned memory.
const NoSpill = ^uint64(0)

// lookFor is Config.LookFor on machines with processors enough: see internal/patience.
const lookFor = time.Millisecond

// The values of Device.
const (
	DeviceHost = "host"
	DeviceCUDA = "cuda"
)

// The values of Protocol.
const (
	ProtocolAuto   = "auto"
	ProtocolBorrow = "borrow"
	ProtocolUCX    = "ucx"
	ProtocolGRPC   = "grpc"
	ProtocolIPC    = "ipc"
)

// ConfigError says what is wrong with a Config.
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
	if c.Name == "" {
		errs = append(errs, errors.New("worker: a worker needs a name (--name)"))
	}
	if c.Scheduler == "" {
		errs = append(errs, errors.New("worker: the scheduler's address is missing (--address)"))
	}
	if c.Slots < 0 {
		errs = append(errs, fmt.Errorf("worker: %d slots (--slots): at least 1", c.Slots))
	}
	if c.SpareExecutors < 0 {
		errs = append(errs, fmt.Errorf("worker: %d spare executors (--spare-executors): at least 0", c.SpareExecutors))
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
		c.MemoryLimitBytes = 1 << 30
	}
	page := uint64(os.Getpagesize())
	c.MemoryLimitBytes = c.MemoryLimitBytes / page * page
	if c.PythonCommand == nil {
		c.PythonCommand = []string{"python3", "-m", "millrace.executor"}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.suspects = new(suspects)
	if len(errs) > 0 {
		return c, &ConfigError{errors.Join(errs...)}
	}
	return c, nil
}

// Run runs one worker until the context ends (it leaves properly, nil), the
// scheduler stops it (*loop.StoppedError) or drains it (nil), or something is
// wrong.
func Run(ctx context.Context, config Config) (err error) {
	c, err := config.validated()
	if err != nil {
		return err
	}
	c.Log = c.Log.With("worker", c.Name)
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
	registration := &millracev1.Registration{
		Name: c.Name, Incarnation: incarnation.String(), Pid: int64(os.Getpid()), Device: millracev1.DeviceKind_DEVICE_KIND_HOST,
		Slots: uint32(c.Slots), Resources: c.Resources, MemoryLimitBytes: c.MemoryLimitBytes, Version: c.Version,
		Executors: []string{"native"}, Zero: c.Zero,
	}
	if registration.Host, err = os.Hostname(); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	if c.Zero {
		// It has nothing that could be handed over.
		ctx, leave := context.WithCancel(ctx)
		defer leave()
		go func() {
			select {
			case <-c.Drain:
				leave()
			case <-ctx.Done():
			}
		}()
		return loop.RunZero(ctx, loop.ZeroConfig{
			Registration: registration, Scheduler: scheduler, SchedulerTimeout: c.SchedulerTimeout, Log: c.Log,
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

// runOn runs a worker on its memory.
func runOn(ctx context.Context, c Config, registration *millracev1.Registration, scheduler *grpc.ClientConn, m *opened) (err error) {
	d := m.device
	objects, err := store.New(d.Space(), c.Log, m.below...)
	if err != nil {
		return err
	}
	shown, err := board.New(0, 0)
	if err != nil {
		c.Log.Warn("peers on this host ask for every object that they read", "error", err)
	} else {
		defer func() { err = errors.Join(err, shown.Close()) }()
		objects.ShowOn(shown)
	}
	defer objects.Close()
	registration.NativeOps = d.Ops()
	logs := new(tasklog.Logs)

	var w *loop.Worker
	pools, err := c.executors(m.local.Path(), objects, logs, m.executors, func(r []executor.Result) { w.PostResults(r) })
	if err != nil {
		return err
	}
	registration.Executors = append(registration.Executors, pools.Kinds()...)

	var received atomic.Uint64
	path, lanes, streams, err := c.paths(d.Space(), objects.Source(), func() ids.WorkerID { return w.Self() }, func(n int) { received.Add(uint64(n)) },
		func(at transfer.Peer, dead bool) { w.Unmapped(at, dead) },
		func() bool { return computes(d) || pools.Working() })
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("worker: listen for data on %s: %w; choose another --listen", c.Listen, err), path.Close())
	}
	if registration.DataAddress, err = advertised(c.Advertise, listener.Addr()); err != nil {
		return errors.Join(err, listener.Close(), path.Close())
	}
	data := &grpcpath.Server{Source: objects.Source(), Incarnation: registration.GetIncarnation(), Logs: logs.Read, Lane: lanes.accept, Log: c.Log}
	looks := max(c.LookFor, 0)
	if c.LookFor == 0 && slabshare.Spins() {
		looks = lookFor
	}
	tells := herald.New(herald.Config{
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			if conn, err := slabshare.DialWords(ctx, address, c.Token); err == nil {
				return conn, nil
			}
			return streams.DialWords(ctx, address) // it is on another host, or cannot be reached at all
		},
		Spin:   looks,
		Heard:  func(words []herald.Word) { w.Heard(words) },
		Asked:  func(r *herald.Reader, asks []herald.Ask) { w.Asked(r, asks) },
		Handle: func() { w.Handle() },
		Left:   func(r *herald.Reader) { w.Left(r) },
		Log:    c.Log,
	})
	defer tells.Close()
	data.Words, registration.Awaits = tells.Serve, true
	var lender *borrow.Server
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	health := &gpuHealth{config: c, uuid: registration.GetGpu().GetUuid(), doubt: m.doubt, leave: func(why error) {
		c.Log.Error("the worker leaves, so that its GPU can be seen to", "gpu", registration.GetGpu().GetUuid(), "error", why)
		leave(why)
	}}
	w = loop.New(loop.Config{
		Registration: registration, Scheduler: scheduler, Device: d, Health: m.health, GPUHealth: health.current, Store: objects, Path: path, Herald: tells, Executors: pools, Logs: logs,
		Traffic: func() (uint64, uint64) {
			in, out := data.Traffic()
			if lender != nil {
				written, lent := lender.Traffic()
				in, out = in+written, out+lent
			}
			out += lanes.served()
			return in + received.Load(), out
		},
		SchedulerTimeout: c.SchedulerTimeout, MemoryWait: c.MemoryWait, BorrowWait: c.BorrowWait, Linger: looks, Log: c.Log, Lifecycle: lifecycle.Config{},
		Ready: func(id ids.WorkerID) { c.ready(id, registration.GetDataAddress()) },
		Alive: c.Alive, Drain: c.Drain, DrainGrace: c.DrainGrace,
	})
	data.Receiver, data.Memory = w.Receiver(), w.DescribeMemory
	lender, err = borrow.Listen(registration.GetDataAddress(), borrow.ServerConfig{
		Space: d.Space(), Device: m.lent, Host: m.shown(objects.Source(), data.Receiver), Source: objects.Source(), Receiver: data.Receiver, Incarnation: registration.GetIncarnation(),
		Words: tells.Serve, Board: shown, Accept: accepts(c), Log: c.Log,
	})
	if err != nil {
		lender = nil
		c.Log.Warn("nobody on this host can borrow from this worker", "error", err)
	}
	options := append(rawframe.ServerOptions(), grpc.Creds(admission.Credentials(data.Credentials(accepts(c)))))
	options = append(options, admission.ServerOptions(authentication(c))...)
	checks, err := checking(c.Log)
	if err != nil {
		return err
	}
	options = append(options, checks...)
	server := grpc.NewServer(append(options, keepaliveServer()...)...)
	millracev1.RegisterDataServiceServer(server, data)
	served := make(chan error, 1)
	go func() { served <- server.Serve(admission.Listen(listener, admission.Limits{})) }()

	pools.Begin()
	watched, sampled := m.watch(w.Fail), health.watch(w.Fail)
	err = w.Run(ctx)
	tells.Close()
	sampled()
	watched()
	// Peers that are reading get a moment; what they do not have then, they get
	// elsewhere.
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.GracefulStop()
		data.Drain()
	}()
	select {
	case <-stopped:
	case <-time.After(500 * time.Millisecond):
		server.Stop()
		data.Close()
		<-stopped
	}
	pools.Close()
	if lender != nil {
		err = errors.Join(err, lender.Close())
	}
	return errors.Join(err, <-served, path.Close())
}

func keepaliveServer() []grpc.ServerOption {
	return []grpc.ServerOption{
		// A reader that is stopped or cut off holds leases: it is found out.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
	}
}

func dial(c Config) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 2 * time.Second}),
		grpc.WithInitialWindowSize(4 << 20), grpc.WithInitialConnWindowSize(8 << 20),
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

// advertised is the address that others are told.
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

// computes says whether kernels of a device run; one in host memory has none.
func computes(d device.Device) bool {
	gpu, ok := d.(interface{ Computing() bool })
	return ok && gpu.Computing()
}

// executors makes the pools of processes, which work below a directory.
func (c Config) executors(scratch string, objects *store.Store, logs *tasklog.Logs, on *executor.Device, done func([]executor.Result)) (*executor.Pools, error) {
	commands := maps.Clone(c.Exec)
	if commands == nil {
		commands = make(map[string][]string)
	}
	if len(c.PythonCommand) > 0 && c.PythonCommand[0] != "" {
		commands["python"] = c.PythonCommand
	}
	start := map[string]int{"python": c.Executors}
	return executor.New(executor.Config{
		Worker: c.Name, Scheduler: c.Scheduler, Commands: commands, Processes: c.Slots, StartAtOnce: start,
		Env: c.ExecutorEnv, Scratch: scratch, Store: objects, Logs: logs, Done: done, Log: c.Log, MemoryWait: c.MemoryWait,
		StopGrace: c.StopGrace, Device: on, Preload: c.Preload, Spares: c.SpareExecutors,
	})
}
