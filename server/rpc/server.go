// Package rpc is an Adapter: it serves the scheduler's API over gRPC.
//
// Messages are converted to the scheduler's own types, and back, in convert.go. Long messages have
// files of their own: submission.go, dataset.go, gpu.go, template.go, and session_message.go for
// the messages to a worker. Only errors.go converts errors to statuses.
package rpc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/admission"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/alarms"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// MaxMessageBytes is the size of the largest message that is accepted.
	MaxMessageBytes = 64 << 20
	// window is the initial flow-control window of streams and connections.
	window = 4 << 20
	// buffers are the sizes of the read and write buffers of a connection.
	buffers = 256 << 10
	// pingAfter is the silence of a connection after which it is asked for a sign of life, and
	// pingTimeout the time that the sign may take. So the calls of a peer that cannot be reached
	// any more end within 30 s. The leases of workers and clients end by themselves.
	pingAfter   = 20 * time.Second
	pingTimeout = 10 * time.Second
	// leastPing is the shortest time between the pings of a client (docs/client-authors.md tells
	// it). Clients of this project ask every 10 s, as workers do, or every 20 s.
	leastPing = 10 * time.Second
)

// Config sets up a server.
type Config struct {
	// Tokens are the accepted tokens. Empty: everybody may do everything.
	Tokens access.Tokens
	// Credentials are the transport's; nil: no encryption.
	Credentials credentials.TransportCredentials
	Log         *slog.Logger
	// Metrics registers the server's metrics; nil: they are not registered.
	Metrics prometheus.Registerer
	// Version of the program, for ClusterInfo.
	Version string
	// SubmissionBytes bounds one submission; 0: 1 GiB.
	SubmissionBytes int64
	// OwnLog returns the last lines of the scheduler's log, at most limit; 0 means all.
	// Nil: there is none.
	OwnLog func(limit int) []*pb.LogLine
	// Alarms returns what is raised now. Nil: nothing ever is.
	Alarms func() []alarms.Alarm
	// Peers are several schedulers with one journal; nil: this one is alone.
	Peers schedapi.Peers
	// Traces hears of accepted submissions; nil: nobody does.
	Traces Traces
	// Report returns the pages of the dashboard as a file. Nil: there are none.
	Report func(context.Context, *pb.GetReportRequest) ([]byte, error)
	// Leads returns an error if another scheduler may lead. Calls that only read are answered after
	// it, and so is each message of streams that only read. Other calls with one request and one
	// answer begin after it. Nil: this one is alone.
	Leads func(context.Context) error
	// NotReady is the answer to all calls before Ready; nil: SCHEDULER_STARTING.
	NotReady func() error
}

// Traces makes traces of graphs.
type Traces interface {
	// Submitted hears of a submission that arrived at a time and was accepted into a graph, with
	// the values of the caller's headers traceparent and tracestate (W3C Trace Context).
	Submitted(graph ids.GraphID, what *sched.GraphSubmitted, at time.Time, traceparent, tracestate string)
}

// Server serves the API.
type Server struct {
	config    Config
	scheduler schedapi.Scheduler
	grpc      *grpc.Server
	health    *health.Server
	ready     atomic.Bool
	// streams counts the goroutines of open sessions and watches.
	streams sync.WaitGroup
	// submitting is the number of bytes in submissions whose chunks are still arriving.
	submitting atomic.Int64
	inProcess  *inProcess
	gate       admission.Check
	validator  protovalidate.Validator
}

// New returns a server that answers calls once Serve is called.
func New(config Config, scheduler schedapi.Scheduler) (*Server, error) {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.NotReady == nil {
		config.NotReady = errNotReady
	}
	config.SubmissionBytes = cmp.Or(config.SubmissionBytes, defaultSubmission)
	validator, err := protovalidate.New()
	if err != nil {
		return nil, err
	}
	metrics := grpcprom.NewServerMetrics()
	if config.Metrics != nil {
		if err := config.Metrics.Register(handledCalls{metrics}); err != nil {
			return nil, err
		}
	}
	s := &Server{config: config, scheduler: scheduler, health: health.NewServer(), inProcess: newInProcess(), validator: validator}
	unary, stream := interceptors(config, validation{validator, scheduler.OwnerOf}, metrics)
	options := []grpc.ServerOption{
		unary, stream,
		grpc.WaitForHandlers(true),
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(4 * window),
		grpc.ReadBufferSize(buffers),
		grpc.WriteBufferSize(buffers),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPing, PermitWithoutStream: true}),
	}
	services := sync.OnceValue(func() map[string]grpc.ServiceInfo { return s.grpc.GetServiceInfo() })
	s.gate = admission.Gate(config.Tokens, services)
	options = append(options, admission.ServerOptions(func(ctx context.Context, method string) (context.Context, bool, error) {
		handled, open, err := s.gate(ctx, method)
		// A scheduler that does not lead tells how the others are, above all when nobody leads.
		answers := s.ready.Load() || access.Open(method) || config.Peers != nil && method == pb.SchedulerService_ListPeers_FullMethodName
		if err == nil && !answers {
			return ctx, open, config.NotReady()
		}
		if err != nil {
			config.Log.Warn("a call was refused", "method", text.Cut(method, 200), "error", err)
		}
		return handled, open, err
	})...)
	if config.Credentials != nil {
		options = append(options, grpc.Creds(inProcessCredentials{config.Credentials}))
	}
	s.grpc = grpc.NewServer(options...)
	pb.RegisterSchedulerServiceServer(s.grpc, &schedulerService{Server: s})
	pb.RegisterCoordinationServiceServer(s.grpc, &coordinationService{Server: s})
	workerv1.RegisterWorkerServiceServer(s.grpc, &workerService{Server: s})
	keeper := newPluginService(s)
	pb.RegisterPluginServiceServer(s.grpc, keeper)
	workerv1.RegisterPluginOrderServiceServer(s.grpc, keeper)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc) // v1 and v1alpha
	s.setHealth(healthpb.HealthCheckResponse_NOT_SERVING)
	return s, nil
}

func (s *Server) setHealth(state healthpb.HealthCheckResponse_ServingStatus) {
	for _, service := range []string{"", pb.SchedulerService_ServiceDesc.ServiceName, pb.CoordinationService_ServiceDesc.ServiceName, workerv1.WorkerService_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(service, state)
	}
}

// Ready means that calls can be answered. Before it, they are refused, and health says that they
// are.
func (s *Server) Ready() {
	s.ready.Store(true)
	s.setHealth(healthpb.HealthCheckResponse_SERVING)
}

// errNotReady is a sign of life: a client that waits for its scheduler goes on waiting.
func errNotReady() error {
	return edge.Refusal(codes.Unavailable, "SCHEDULER_STARTING", "the scheduler reads its journal: try again", nil)
}

// Serve answers calls on a listener until Stop is called, and closes the listener.
func (s *Server) Serve(listener net.Listener) error {
	return unlessStopped(s.grpc.Serve(admission.Listen(listener, admission.Limits{})))
}

// unlessStopped drops the error of a service that was stopped before it began.
func unlessStopped(err error) error {
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Stop ends the service: new calls are refused, and running calls may finish until ctx ends.
// REQUIRES: the scheduler is draining, so that sessions and watches end.
func (s *Server) Stop(ctx context.Context) {
	s.health.Shutdown()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.grpc.GracefulStop()
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		s.grpc.Stop()
		<-stopped
	}
	s.streams.Wait()
}

// Cut ends the service at once: connections are closed, and callers are told nothing.
func (s *Server) Cut() {
	s.health.Shutdown()
	s.grpc.Stop()
	s.streams.Wait()
}
