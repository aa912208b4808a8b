// Package worker is a Loop: it puts one worker process together, out of the
// device, the store, the transfer path, the executors and the session with the
// scheduler, and runs it to its end.
package worker

import (
	"context"
	"crypto/rand"
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

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/localdir"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/disk"
	hostmemory "github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/ladder"
	"github.com/millrace/millrace/transfer/ucx"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/host"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/loop"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

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
	// one, Token among them in any case. Both empty: nobody is asked for one.
	AcceptTokens []string
	// Listen is where the DataService listens. Default "127.0.0.1:0".
	Listen string
	// Advertise is the host:port at which others reach it, if that is not where
	// it listens; without a port, the one that it got.
	Advertise string
	// Slots is how many tasks run at once. Default 1.
	Slots int
	// Resources are declared amounts by name.
	Resources map[string]float64
	// MemoryLimitBytes is the size of the slab. Default 1 GiB.
	MemoryLimitBytes uint64
	// PythonCommand starts a Python executor. Default "python3 -m
	// millrace.executor"; a single "" means that there is none.
	PythonCommand []string
	// Exec are further executors: command lines by name.
	Exec map[string][]string
	// Executors is how many Python processes are started at once, rather than at
	// their first use. Default 0.
	Executors int
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
	// Protocol forces how objects of other workers are fetched: ProtocolBorrow,
	// ProtocolUCX or ProtocolGRPC. Default: ProtocolAuto, the best that each pair has.
	Protocol string
	// UCXLibrary is libucp.so.0; UCXTLS and UCXNetDevices choose its transports and
	// devices. Empty: what is found and what it chooses.
	UCXLibrary, UCXTLS, UCXNetDevices string
	// Zero makes a worker that answers each assignment at once and runs nothing:
	// it measures the rest of the system.
	Zero bool
	// Version is that of the program.
	Version string
	// Log takes messages. Default: slog.Default.
	Log *slog.Logger
	// Ready, if set, is called once, when the worker is first registered.
	Ready func(id ids.WorkerID, dataAddress string)
}

// NoSpill is the SpillLimitBytes of a worker that uses no disk.
const NoSpill = ^uint64(0)

// The values of Protocol.
const (
	ProtocolAuto   = "auto"
	ProtocolBorrow = "borrow"
	ProtocolUCX    = "ucx"
	ProtocolGRPC   = "grpc"
)

func (c Config) validated() (Config, error) {
	var errs []error
	switch c.Protocol {
	case "":
		c.Protocol = ProtocolAuto
	case ProtocolAuto, ProtocolBorrow, ProtocolUCX, ProtocolGRPC:
	default:
		errs = append(errs, fmt.Errorf("worker: protocol %q (--protocol): auto, borrow, ucx or grpc", c.Protocol))
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
	for name, command := range c.Exec {
		if name == "" || name == "native" || name == "python" || strings.Contains(name, "/") || len(command) == 0 {
			errs = append(errs, fmt.Errorf("worker: executor %q with command %q (--exec): a name other than native and python, without a slash, and a command", name, command))
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
	return c, errors.Join(errs...)
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
	slab, err := hostmemory.NewSlab(c.MemoryLimitBytes, identity)
	if err != nil {
		return err
	}
	d := host.New(slab)
	defer func() { err = errors.Join(err, d.Close()) }()
	return runOn(ctx, c, registration, scheduler, d)
}

func (c Config) ready(id ids.WorkerID, address string) {
	if c.Ready != nil {
		c.Ready(id, address)
	}
}

// runOn runs a worker on a device.
func runOn(ctx context.Context, c Config, registration *millracev1.Registration, scheduler *grpc.ClientConn, d device.Device) (err error) {
	localdir.Clean(c.LocalDirectory)
	own, err := localdir.Make(c.LocalDirectory, c.Name)
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	defer func() {
		if failed := own.Close(); failed != nil {
			// A task may have made what its worker cannot remove.
			c.Log.Warn("the worker's directory is left behind", "directory", own.Path(), "error", failed)
		}
	}()
	below, closeBelow, err := c.tiers(own.Path())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBelow()) }()
	objects, err := store.New(d.Space(), c.Log, below...)
	if err != nil {
		return err
	}
	defer objects.Close()
	registration.NativeOps = d.Ops()
	logs := new(tasklog.Logs)

	var w *loop.Worker
	pools, err := c.executors(own.Path(), objects, logs, func(r []executor.Result) { w.PostResults(r) })
	if err != nil {
		return err
	}
	registration.Executors = append(registration.Executors, pools.Kinds()...)

	var received atomic.Uint64
	path, lanes, err := c.paths(d.Space(), objects.Source(), func() ids.WorkerID { return w.Self() }, func(n int) { received.Add(uint64(n)) })
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
	data := &grpcpath.Server{Source: objects.Source(), Incarnation: registration.GetIncarnation(), Logs: logs.Read, Lane: lanes.accept}
	var lender *borrow.Server
	w = loop.New(loop.Config{
		Registration: registration, Scheduler: scheduler, Device: d, Store: objects, Path: path, Executors: pools, Logs: logs,
		Traffic: func() (uint64, uint64) {
			in, out := data.Traffic()
			if lender != nil {
				written, lent := lender.Traffic()
				in, out = in+written, out+lent
			}
			out += lanes.served()
			return in + received.Load(), out
		},
		SchedulerTimeout: c.SchedulerTimeout, MemoryWait: c.MemoryWait, Log: c.Log, Lifecycle: lifecycle.Config{},
		Ready: func(id ids.WorkerID) { c.ready(id, registration.GetDataAddress()) },
	})
	data.Receiver, data.Memory = w.Receiver(), w.DescribeMemory
	lender, err = borrow.Listen(registration.GetDataAddress(), borrow.ServerConfig{
		Space: d.Space(), Source: objects.Source(), Receiver: data.Receiver, Incarnation: registration.GetIncarnation(),
		Accept: accepts(c), Log: c.Log,
	})
	if err != nil {
		lender = nil
		c.Log.Warn("nobody on this host can borrow from this worker", "error", err)
	}
	options := append(rawframe.ServerOptions(), grpc.Creds(data.Credentials(accepts(c))))
	server := grpc.NewServer(append(options, append(authentication(c), keepaliveServer()...)...)...)
	millracev1.RegisterDataServiceServer(server, data)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	pools.Begin()
	err = w.Run(ctx)
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

// tiers opens what lies below the slab, in a directory.
func (c Config) tiers(directory string) (below []memory.Tier, done func() error, err error) {
	if c.SpillLimitBytes == NoSpill {
		return nil, func() error { return nil }, nil
	}
	tier, err := disk.Open(disk.Config{Directory: directory, SizeBytes: c.SpillLimitBytes})
	if err != nil {
		return nil, nil, fmt.Errorf("worker: %w", err)
	}
	c.Log.Info("results that the slab has no room for go to disk", "directory", directory, "limit_bytes", tier.Size(), "direct_io", tier.Direct())
	return []memory.Tier{tier}, tier.Close, nil
}

// paths are the ways to the objects of other workers, best first.
func (c Config) paths(space memory.Space, source transfer.Source, self func() ids.WorkerID, received func(int)) (*ladder.Path, *oneSided, error) {
	streams := grpcpath.New(grpcpath.Config{Worker: self, Token: c.Token, StallTimeout: c.StallTimeout, Received: received})
	devices := c.UCXNetDevices
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && devices == "" && os.Getenv("UCX_NET_DEVICES") == "" && net.ParseIP(host).IsLoopback() {
		// Who serves this machine only must not listen on its network.
		devices = "lo"
	}
	lanes := &oneSided{
		config: ucx.Config{
			Library: c.UCXLibrary, TLS: c.UCXTLS, NetDevices: devices, Space: space, Source: source, SourceIsQuick: true, Log: c.Log,
		},
		path:   ucx.PathConfig{Connect: streams.ConnectLane, Worker: self, StallTimeout: c.StallTimeout, Received: received},
		forced: c.Protocol == ProtocolUCX, log: c.Log,
	}
	if lanes.forced {
		if _, _, err := lanes.open(); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("worker: --protocol ucx: %w", err), streams.Close())
		}
	}
	mapped := borrow.New(borrow.Config{Worker: self, Token: c.Token, StallTimeout: c.StallTimeout, Received: received})
	all := []ladder.Rung{{Path: mapped}, {Path: lanes, Suits: lanes.suits, NoWay: leadsNowhere}, {Path: streams}}
	// One-sided reads see the slab only: what was spilled comes in a stream, also if they are asked for.
	taken := func(r ladder.Rung) bool {
		return c.Protocol == ProtocolAuto || r.Path.Name() == c.Protocol || c.Protocol == ProtocolUCX && r.Path == transfer.Path(streams)
	}
	var rungs, unused []ladder.Rung
	for _, r := range all {
		if taken(r) {
			rungs = append(rungs, r)
		} else {
			// The others serve, or carry the wire-up of lanes: they are closed with the rest.
			unused = append(unused, r)
		}
	}
	return ladder.New(ladder.Config{Rungs: rungs, Unused: paths(unused), Log: c.Log}), lanes, nil
}

func paths(rungs []ladder.Rung) (out []transfer.Path) {
	for _, r := range rungs {
		out = append(out, r.Path)
	}
	return out
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
		if _, _, err := net.SplitHostPort(wanted); err == nil {
			return wanted, nil
		}
		return net.JoinHostPort(wanted, port), nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("worker: listening on all addresses, and %w; set --advertise", err)
		}
	}
	return net.JoinHostPort(host, port), nil
}

// executors makes the pools of processes, which work below a directory.
func (c Config) executors(scratch string, objects *store.Store, logs *tasklog.Logs, done func([]executor.Result)) (*executor.Pools, error) {
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
	})
}
