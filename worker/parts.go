package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/admission"
	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/transfer/route"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/loop"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

// part is a part of a worker. open opens it and returns the function that closes it.
type part struct {
	name string
	open func(context.Context) (end func() error, err error)
}

// parts are the parts of a worker that runs. Each field is set by the part of the table that opens
// it, which uses only the fields of parts before it.
type parts struct {
	Config
	identity     memory.Identity
	registration *workerv1.Registration
	scheduler    grpc.ClientConnInterface
	leave        context.CancelCauseFunc
	logs         *tasklog.Logs
	pulse        *pulse
	received     atomic.Uint64 // bytes

	memory   *opened
	index    *objindex.Index // nil: there is none
	objects  *store.Store
	listener net.Listener
	path     *route.Selector
	oneSided *oneSided
	streams  *grpcpath.Path
	notifier *notify.Notifier
	health   *gpuHealth
	network  *networkWatch
	data     *grpcpath.Server
	late     late
}

// late are the parts that parts before them in the table call. They are set before anything that
// calls them starts.
type late struct {
	pools  *executor.Pools
	worker *loop.Worker
	lender *borrow.Server // nil: nobody on this host can borrow
}

// table has the parts in the order in which they open. They close in the reverse order.
func (p *parts) table() []part {
	return []part{
		{"memory", p.openMemory},
		{"store", p.openStore},
		{"listener", p.openListener},
		{"paths", p.openPaths},
		{"executors", p.openExecutors},
		{"notifier", p.openNotifier},
		{"loop", p.openLoop},
		{"lender", p.openLender},
		{"http", p.openHTTP},
		{"server", p.openServer},
		{"watchers", p.watch},
	}
}

// undo has a function for each thing that is open, which closes it.
type undo []func() error

func (u *undo) then(end func() error) { *u = append(*u, end) }

// parts opens parts, up to the first that fails.
func (u *undo) parts(ctx context.Context, table []part, log *slog.Logger) error {
	for _, part := range table {
		end, err := part.open(ctx)
		if err != nil {
			log.Debug("a part of the worker does not open", "part", part.name, "error", err)
			return err
		}
		u.then(end)
	}
	return nil
}

// close closes everything, last first.
func (u *undo) close() error {
	var errs []error
	for _, end := range slices.Backward(*u) {
		errs = append(errs, end())
	}
	*u = nil
	return errors.Join(errs...)
}

// none closes a part that needs no closing.
func none() error { return nil }

// run opens the parts, runs the worker until it ends, and closes all that is open.
func (p *parts) run(ctx context.Context) (err error) {
	ctx, p.leave = context.WithCancelCause(ctx)
	defer p.leave(nil)
	var open undo
	defer func() { err = errors.Join(err, open.close()) }()
	if err := open.parts(ctx, p.table(), p.Log); err != nil {
		return err
	}
	p.late.pools.Begin()
	return p.late.worker.Run(ctx)
}

func (p *parts) openMemory(ctx context.Context) (func() error, error) {
	m, err := p.open(ctx, p.identity)
	if err != nil {
		return nil, err
	}
	p.memory = m
	m.describe(p.registration)
	p.facts(p.registration.GetGpu())
	p.registration.NativeOps = m.device.Ops()
	return m.close, nil
}

func (p *parts) openStore(context.Context) (_ func() error, err error) {
	if p.objects, err = store.New(p.memory.device.Space(), p.Log, p.memory.below...); err != nil {
		return nil, err
	}
	end := func() error { p.objects.Close(); return nil }
	if p.index, err = objindex.New(0, 0); err != nil {
		p.Log.Warn("peers on this host ask for every object that they read", "error", err)
		return end, nil
	}
	p.objects.PublishTo(p.index)
	return func() error { return errors.Join(end(), p.index.Close()) }, nil
}

func (p *parts) openListener(context.Context) (func() error, error) {
	listener, err := net.Listen("tcp", p.Listen)
	if err != nil {
		return nil, fmt.Errorf("worker: listen for data on %s: %w; choose another --listen", p.Listen, err)
	}
	if p.registration.DataAddress, err = advertised(p.Advertise, listener.Addr()); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	p.listener = listener
	return func() error { _ = listener.Close(); return nil }, nil // it fails if the server has closed it
}

// openExecutors makes the pools of executor processes.
func (p *parts) openExecutors(context.Context) (_ func() error, err error) {
	commands := maps.Clone(p.Exec)
	if commands == nil {
		commands = make(map[string][]string)
	}
	if len(p.PythonCommand) > 0 && p.PythonCommand[0] != "" {
		commands["python"] = p.PythonCommand
	}
	p.late.pools, err = executor.New(executor.Config{
		Worker: p.Name, Address: p.registration.GetDataAddress(), Scheduler: p.Scheduler, Commands: commands, Processes: p.Slots, Waiting: p.maxWaiting(p.memory.executors != nil),
		StartAtOnce: map[string]int{"python": p.Executors}, Env: p.ExecutorEnv, Scratch: p.memory.local.Path(), Store: p.objects, Logs: p.logs,
		Done: func(r []executor.Result) { p.late.worker.PostResults(r) }, Log: p.Log, MemoryWait: p.MemoryWait,
		StopGrace: p.StopGrace, Device: p.memory.executors, Preload: p.Preload, Spares: p.SpareExecutors, Plugins: true,
		Memory: p.FunctionMemory, ControlPage: p.ControlPage,
	})
	if err != nil {
		return nil, err
	}
	p.registration.Executors = append(p.registration.Executors, p.late.pools.Kinds()...)
	return func() error {
		p.late.pools.Close()
		if w := p.late.worker; w != nil {
			w.EndLoans()
		}
		return nil
	}, nil
}

func (p *parts) openNotifier(context.Context) (func() error, error) {
	p.notifier = notify.New(notify.Config{
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			if conn, err := slabshare.DialNotify(ctx, address, p.Token); err == nil {
				return conn, nil
			}
			return p.streams.DialNotify(ctx, address) // the peer is on another host, or cannot be reached at all
		},
		DialTimeout: p.SubscriptionWait,
		Spin:        p.spinTime(),
		Completed:   func(completions []notify.Completion) { p.late.worker.Completed(completions) },
		Requested:   func(r *notify.Subscriber, requests []notify.Request) { p.late.worker.Requested(r, requests) },
		Handle:      func() { p.late.worker.Handle() },
		Left:        func(r *notify.Subscriber) { p.late.worker.Left(r) },
		Log:         p.Log,
	})
	p.registration.Notifies = true
	return func() error { p.notifier.Close(); return nil }, nil
}

func (p *parts) openLoop(context.Context) (_ func() error, err error) {
	if p.registration.LinearAlgebra, err = p.linearAlgebra(p.memory); err != nil {
		return nil, err
	}
	gpu := p.registration.GetGpu().GetUuid()
	p.health = &gpuHealth{config: p.Config, uuid: gpu, doubt: p.memory.doubt, leave: func(why error) {
		p.Log.Error("the worker leaves, so that its GPU can be seen to", "gpu", gpu, "error", why)
		p.leave(why)
	}}
	p.network = &networkWatch{root: p.sysfs(), devices: func(ctx context.Context) []string {
		return p.networkDevices(ctx, p.registration.GetDataAddress())
	}}
	w := loop.New(loop.Config{
		Registration: p.registration, GPUHealth: p.health.current, NetworkDevices: p.network.current, Store: p.objects, Path: p.path, Notifier: p.notifier, Executors: p.late.pools, Logs: p.logs,
		Native: native.New(native.Config{
			Slots: p.Slots, Device: p.memory.device, Store: p.objects, Health: p.memory.health, MemoryWait: p.MemoryWait, SpinTime: p.spinTime(), Cores: p.Cores,
		}),
		Sessions: func(c session.Config) loop.Sessions {
			c.Scheduler = p.scheduler
			return session.New(c)
		},
		Traffic:          p.traffic,
		SchedulerTimeout: p.SchedulerTimeout, MemoryWait: p.MemoryWait, BorrowWait: p.BorrowWait, Log: p.Log,
		Lifecycle: lifecycle.Config{MaxBlocked: p.maxWaiting(p.memory.executors != nil), SubscriptionWait: max(p.SubscriptionWait, 0)},
		Ready:     func(id ids.WorkerID) { p.ready(id, p.registration.GetDataAddress()) },
		Alive:     p.pulse.beat, Drain: p.Drain, DrainGrace: p.DrainGrace,
	})
	p.late.worker = w
	p.data = &grpcpath.Server{
		Source: p.objects.Source(), Receiver: w.Receiver(), Memory: w.Stats().Memory, Notify: p.notifier.Serve, OneSided: p.oneSided.accept,
		Logs: p.logs.Read, Follow: following{p.logs, followPause}.serve, OwnLog: p.lines.Last, Log: p.Log,
	}
	return none, nil
}

// openLender lends objects to readers on this host. A worker without it works, but slower.
func (p *parts) openLender(context.Context) (func() error, error) {
	lender, err := borrow.Listen(p.registration.GetDataAddress(), borrow.ServerConfig{
		Space: p.memory.device.Space(), Device: p.memory.lent, Host: p.memory.shown(p.data.Source, p.data.Receiver), Source: p.data.Source, Receiver: p.data.Receiver,
		Notify: p.notifier.Serve, Index: p.index, Accept: p.accepts(millracev1.DataService_ReadObjects_FullMethodName),
		AcceptWriter: p.accepts(millracev1.DataService_WriteObject_FullMethodName), Log: p.Log,
	})
	if err != nil {
		p.Log.Warn("nobody on this host can borrow from this worker", "error", err)
		return none, nil
	}
	p.late.lender = lender
	return lender.Close, nil
}

// traffic returns the bytes received and sent since the start.
func (p *parts) traffic() (in, out uint64) {
	in, out = p.data.Traffic()
	if p.late.lender != nil {
		written, lent := p.late.lender.Traffic()
		in, out = in+written, out+lent
	}
	return in + p.received.Load(), out + p.oneSided.served()
}

// openServer serves the data service.
func (p *parts) openServer(context.Context) (func() error, error) {
	checks, err := checking(p.Log)
	if err != nil {
		return nil, err
	}
	var server *grpc.Server
	services := sync.OnceValue(func() map[string]grpc.ServiceInfo { return server.GetServiceInfo() })
	options := append(rawframe.ServerOptions(), grpc.Creds(admission.Credentials(p.data.Credentials(p.accepts(millracev1.DataService_ReadObjects_FullMethodName)))))
	options = append(options, admission.ServerOptions(admission.Gate(p.tokens(), services))...)
	options = append(options, checks...)
	server = grpc.NewServer(append(options,
		// A reader that is stopped or cut off from the network holds leases. Keepalive detects it.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: peerTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPing, PermitWithoutStream: true}))...)
	p.data.Register(server)
	millracev1.RegisterExecutorServiceServer(server, &executor.Service{Pools: p.late.pools})
	reflection.Register(server) // v1 and v1alpha
	served := make(chan error, 1)
	go func() { served <- server.Serve(admission.Listen(p.listener, admission.Limits{})) }()
	return func() error {
		p.notifier.Close()
		p.logs.Close()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			server.GracefulStop()
			p.data.Drain()
		}()
		select {
		case <-stopped:
		case <-time.After(farewell):
			server.Stop()
			p.data.Close()
			<-stopped
		}
		return <-served
	}, nil
}

// watch watches the worker's device, whose failure ends the worker, its network devices, and the
// plugins of the cluster.
func (p *parts) watch(ctx context.Context) (func() error, error) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() {
		(&pluginFollower{worker: p.Name, scheduler: p.scheduler, pools: p.late.pools, log: p.Log}).run(ctx)
	})
	looked, sampled, counted := p.memory.watch(p.late.worker.Fail), p.health.watch(p.late.worker.Fail), p.network.watch()
	return func() error {
		cancel()
		following.Wait()
		counted()
		sampled()
		looked()
		return nil
	}, nil
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

// spinTime is SpinTime with its default, and 0 for no polling.
func (c Config) spinTime() time.Duration {
	if c.SpinTime == 0 && slabshare.Spins() {
		return defaultSpinTime
	}
	return max(c.SpinTime, 0)
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
