// Package server is a Loop: it connects the parts of a scheduler (machine, loop, gRPC, HTTP), runs
// them, and stops them in order.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/internal/logring"
	"github.com/millrace/millrace/internal/version"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/otlp"
	"github.com/millrace/millrace/server/rpc"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
	"github.com/millrace/millrace/server/web"
)

// Role is the set of rights that a token gives.
type Role = access.Role

// Roles; see package access.
const (
	RoleClient   = access.Client
	RoleTask     = access.Task
	RoleWorker   = access.Worker
	RoleOperator = access.Operator
	RoleReader   = access.Reader
)

const (
	// defaultStopGrace is the time that running calls have to finish when the scheduler stops.
	// Streams end when it begins to stop, so only short calls need it.
	defaultStopGrace = 5 * time.Second
	// headerTimeout is the time that a connection to the HTTP port has to send the header of a
	// request, and idleTimeout how long it stays open between requests: a client that sends nothing
	// keeps no connection for good.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// Config sets up a scheduler. Zero fields mean the defaults named here.
type Config struct {
	// Address to listen on, host:port; port 0 takes a free one. Required, unless Listener is set.
	Address string
	// Listener to use instead of Address; Run closes it.
	Listener net.Listener
	// HTTPAddress is host:port of the HTTP port; empty: none.
	HTTPAddress string
	// HTTPAnyPort takes a free port for HTTP if the port of HTTPAddress is in use.
	HTTPAnyPort bool
	// Profiles serves profiles of this process under /debug/pprof on the HTTP port, for operators.
	Profiles bool
	// Tokens gives each token its role. Empty: everybody may do everything; this is allowed on
	// loopback addresses only.
	Tokens map[string]Role
	// Credentials are the transport's; nil: no encryption.
	Credentials credentials.TransportCredentials
	// WorkerLease is the longest silence of a worker before it is declared lost (0: 5 s).
	// ReconnectGrace is the time that a worker whose connection broke has to reconnect (0: 2 s).
	WorkerLease    time.Duration
	ReconnectGrace time.Duration
	// RestartGrace is the time that workers have to come back after a restart from the journal (0:
	// 15 s).
	RestartGrace time.Duration
	// Ready is called once calls are answered; after an error the scheduler stops. nil: nobody is
	// told.
	Ready func() error
	// StopGrace is the time that running calls have to finish after Run's context has ended. 0: 5
	// s.
	StopGrace time.Duration
	// InlineResultBytes is the size of the largest result that the scheduler itself holds. 0: 64
	// KiB.
	InlineResultBytes uint32
	// SubmissionBytes bounds one submission. 0: 1 GiB.
	SubmissionBytes int64
	// Templates bounds the templates of graphs that are kept. Zero: see loop.Config.
	Templates templates.Limits
	// Journal is the directory in which the scheduler keeps what it has accepted; nil: nowhere. Its
	// owner closes it after Run.
	Journal journal.Files
	// NativeOps are native ops that are accepted before any worker has registered.
	NativeOps []string
	// Machine are the limits of the scheduler machine.
	Machine sched.Config
	// Traces sends traces of graphs to a collector; nil: nowhere. New sets its Version, its
	// Instance and its Log.
	Traces *otlp.Config
	Log    *slog.Logger

	// httpListener is used instead of HTTPAddress. leading: this is one of several schedulers, and
	// leads; nil: it is alone. peers are all of them; nil: it is alone.
	httpListener net.Listener
	leading      *leading
	peers        schedapi.Peers
}

// Server is one scheduler process.
type Server struct {
	config   Config
	listener net.Listener
	web      net.Listener // nil: no HTTP port
	loop     *loop.Loop
	rpc      *rpc.Server
	http     *http.Server
	site     *web.Site        // also without an HTTP port: it makes reports
	local    *grpc.ClientConn // of the site to rpc
	watch    *watch
	traces   *otlp.Exporter // nil: there are none
}

// New listens on the addresses. Connections that arrive before Run is called wait until it is.
func New(config Config) (*Server, error) {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.InlineResultBytes == 0 {
		config.InlineResultBytes = sched.DefaultInlineResultBytes
	}
	if config.StopGrace == 0 {
		config.StopGrace = defaultStopGrace
	}
	lines := new(logring.Ring)
	config.Log = lines.Logger(config.Log)
	s := &Server{config: config, listener: config.Listener, web: config.httpListener}
	if err := s.listen(); err != nil {
		s.close()
		return nil, err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	config.Machine.InlineResultBytes = uint64(config.InlineResultBytes)
	id, life := uuid.NewString(), uint64(0)
	if config.Journal != nil {
		config.Machine.Facts = true
		begun, err := journal.Identify(config.Journal)
		if err != nil {
			s.close()
			return nil, err
		}
		if begun != nil {
			id, life = begun.Cluster, begun.Life
		}
	}
	s.loop = loop.New(loop.Config{
		Machine: config.Machine,
		Cluster: schedapi.Cluster{
			ID: id, Life: life, StartedAt: time.Now(), InlineResultBytes: config.InlineResultBytes,
			MaxMessageBytes: rpc.MaxMessageBytes, HTTPAddress: s.HTTPAddress(), WorkerLease: config.WorkerLease,
		},
		ReconnectGrace: config.ReconnectGrace, RestartGrace: config.RestartGrace, Templates: config.Templates, NativeOps: config.NativeOps, Log: config.Log,
	})
	s.watch = newWatch(s.loop, config.Machine.MemoryBytes, config.Log)
	if s.watch.peers = config.peers; config.peers != nil {
		metrics.MustRegister(web.PeerMetrics(config.peers))
	}
	web.Register(metrics, s.loop, s.watch.Alarms, version.String())
	var tokens access.Tokens
	for token, role := range config.Tokens { // order-free: each token is compared with all
		tokens = append(tokens, access.TokenOf(token, role))
	}
	var err error
	calls := rpc.Config{
		Tokens: tokens, Credentials: config.Credentials, Log: config.Log, Metrics: metrics, Version: version.String(),
		SubmissionBytes: config.SubmissionBytes, OwnLog: lines.Last, Alarms: s.watch.Alarms, Peers: config.peers,
		Report: func(ctx context.Context, r *pb.GetReportRequest) ([]byte, error) { return s.site.Report(ctx, r) },
	}
	if config.leading != nil {
		calls.Leads = config.leading.leads
	}
	if config.Traces != nil {
		traces := *config.Traces
		traces.Version, traces.Log, traces.Instance = version.String(), config.Log, id
		if s.traces, err = otlp.New(traces, s.loop, metrics); err != nil {
			s.close()
			return nil, err
		}
		calls.Traces = s.traces
	}
	s.rpc, err = rpc.New(calls, s.loop)
	if err != nil {
		s.close()
		return nil, err
	}
	if err := s.newSite(metrics, tokens); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *Server) newSite(metrics prometheus.Gatherer, tokens access.Tokens) (err error) {
	if s.local, err = s.rpc.Connection(); err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(s.HTTPAddress()) // A listener's address has a port.
	pages := web.Config{
		Scheduler: s.loop, Metrics: metrics, Tokens: tokens, API: s.local, Gate: s.rpc.Gate(), Rows: rpc.Rows{}, Alarms: s.watch, Version: version.String(), Profiles: s.config.Profiles, Port: port,
	}
	if s.config.leading != nil {
		pages.Leads = s.config.leading.leads
	}
	s.site = web.New(pages)
	if s.web != nil {
		s.http = &http.Server{Handler: s.site, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout}
	}
	return nil
}

func (s *Server) listen() (err error) {
	if s.listener == nil {
		if s.listener, err = net.Listen("tcp", s.config.Address); err != nil {
			return fmt.Errorf("listen on %s: %w: choose another address, or stop what uses it", s.config.Address, err)
		}
	}
	if len(s.config.Tokens) == 0 && !hostport.Loopback(s.listener.Addr()) {
		return fmt.Errorf("listen on %s: others can reach it, and no token is set: set one, or listen on 127.0.0.1", s.listener.Addr())
	}
	if s.web == nil && s.config.HTTPAddress != "" {
		s.web, err = net.Listen("tcp", s.config.HTTPAddress)
		if s.config.HTTPAnyPort && errors.Is(err, syscall.EADDRINUSE) {
			if host, _, split := net.SplitHostPort(s.config.HTTPAddress); split == nil {
				s.web, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
			}
		}
		if err != nil {
			return fmt.Errorf("listen on %s for HTTP: %w: choose another address, or stop what uses it", s.config.HTTPAddress, err)
		}
		if len(s.config.Tokens) == 0 && !hostport.Loopback(s.web.Addr()) {
			return fmt.Errorf("listen on %s for HTTP: others can reach it, and no token is set: set one, or listen on 127.0.0.1", s.web.Addr())
		}
	}
	return nil
}

func (s *Server) close() {
	for _, listener := range []net.Listener{s.listener, s.web} {
		if listener != nil {
			_ = listener.Close() // Nothing has used it.
		}
	}
}

// Address returns host:port of the gRPC port.
func (s *Server) Address() string { return s.listener.Addr().String() }

// HTTPAddress returns host:port of the HTTP port; empty if there is none.
func (s *Server) HTTPAddress() string {
	if s.web == nil {
		return ""
	}
	return s.web.Addr().String()
}

// ID returns the random id of this life of the scheduler.
func (s *Server) ID() string { return s.loop.Cluster().ID }

// Run serves until ctx ends or a client shuts the cluster down. Then it stops: health reports it
// first, sessions and watches are ended, and running calls may finish within the stop grace. If
// another scheduler may lead after ctx has ended, all calls are cut instead, and workers and
// clients are told nothing: they go to that one. Call it once. It returns an error if it could not
// serve.
func (s *Server) Run(ctx context.Context) error {
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	group, serving := errgroup.WithContext(serving)
	// The loop must outlive the streams, because it is the loop that ends them.
	loopContext, stopLoop := context.WithCancel(context.WithoutCancel(ctx))
	looped := make(chan struct{})
	group.Go(func() error {
		scavenge(serving)
		return nil
	})
	if s.config.Journal == nil {
		s.rpc.Ready() // Before the first call: calls wait for the loop.
	}
	group.Go(func() error {
		if err := s.rpc.Serve(s.listener); err != nil {
			return fmt.Errorf("serve on %s: %w", s.Address(), err)
		}
		return nil
	})
	if s.config.Journal != nil {
		if err := s.loop.Restore(serving, journal.Config{Files: s.config.Journal, Log: s.config.Log}); err != nil {
			stopServing()
			s.rpc.Stop(serving) // At once: only watches of the health are open.
			_ = s.local.Close() // It fails only if it is closed already.
			s.close()
			stopLoop()
			_ = group.Wait() // Nothing was served.
			if ctx.Err() != nil {
				err = nil // It was told to stop.
			}
			return errors.Join(err, s.loop.CloseJournal())
		}
	}
	if s.config.leading != nil {
		s.config.leading.restored()
	}
	go func() {
		defer close(looped)
		s.loop.Run(loopContext)
	}()
	s.rpc.Ready()
	group.Go(func() error {
		s.watch.run(serving)
		return nil
	})
	if s.traces != nil {
		group.Go(func() error {
			s.traces.Run(serving)
			return nil
		})
	}
	group.Go(func() error {
		if err := s.rpc.ServeInProcess(); err != nil {
			return fmt.Errorf("serve the dashboard's calls: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		s.site.Run(serving)
		return nil
	})
	if s.web != nil {
		group.Go(func() error {
			if err := s.http.Serve(s.web); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve HTTP on %s: %w", s.HTTPAddress(), err)
			}
			return nil
		})
	}
	s.config.Log.Info("the scheduler is ready", "address", s.Address(), "http", s.HTTPAddress(), "id", s.ID())
	var unready error
	if s.config.Ready != nil {
		unready = s.config.Ready()
	}
	if unready == nil {
		select {
		case <-serving.Done():
		case <-s.loop.ShutdownRequested():
		}
	}
	s.config.Log.Info("the scheduler stops")
	if s.config.leading != nil && ctx.Err() != nil {
		s.cut()
	} else {
		s.stop(context.WithoutCancel(ctx))
	}
	if s.config.leading != nil {
		s.config.leading.release()
	}
	stopServing()
	err := group.Wait()
	stopLoop()
	<-looped
	return errors.Join(unready, err, s.loop.CloseJournal())
}

// stop ends the service in good order.
func (s *Server) stop(ctx context.Context) {
	grace, cancel := context.WithTimeout(ctx, s.config.StopGrace)
	defer cancel()
	_ = s.loop.Drain(grace) // It fails only if the loop has stopped, and the loop runs.
	if s.web != nil {
		if err := s.http.Shutdown(grace); err != nil {
			_ = s.http.Close() // The grace is over: waiting requests are cut off.
		}
	}
	_ = s.local.Close() // It fails only if it is closed already.
	s.rpc.Stop(grace)
}

// cut ends the service at once.
func (s *Server) cut() {
	if s.web != nil {
		_ = s.http.Close() // Requests are cut off.
	}
	_ = s.local.Close() // It fails only if it is closed already.
	s.rpc.Cut()
}
