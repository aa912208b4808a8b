// Package web is an Adapter: the scheduler's HTTP port. It serves the dashboard, the API as JSON
// (package bridge), the streams of the dashboard (package stream), health, and metrics.
//
// All links are relative, so that it works behind any prefix of the path that a proxy removes.
package web

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/admission"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/web/bridge"
	"github.com/millrace/millrace/server/web/stream"
)

// readTimeout is the longest time that a request waits for the scheduler.
const readTimeout = 2 * time.Second

// Config sets up a site.
type Config struct {
	Scheduler schedapi.Scheduler
	Metrics   prometheus.Gatherer
	// Tokens are the accepted tokens. Empty: everybody on this host may do everything.
	Tokens access.Tokens
	// API is a connection to the gRPC server of the scheduler, and Gate its check of tokens.
	API  grpc.ClientConnInterface
	Gate admission.Check
	// Rows converts rows for the streams.
	Rows stream.Rows
	// Alarms are shown on the dashboard; nil: there are none.
	Alarms stream.Alarms
	// Leads returns an error if another scheduler may lead; nil: this one is alone. Without an
	// error only, pages tell of what all schedulers share.
	Leads func(context.Context) error
	// Version of the program.
	Version string
	// Profiles serves profiles of this process under /debug/pprof.
	Profiles bool
	// Port of the listener: it keeps the cookies of clusters on one host apart.
	Port string
}

// Site is the handler of the HTTP port.
type Site struct {
	config  Config
	hub     *stream.Hub
	handler http.Handler
	// reports has a value for each report that is being made.
	reports chan struct{}
}

// New returns a site. Its streams and samples begin with Run.
func New(config Config) *Site {
	s := &Site{config: config, reports: make(chan struct{}, reportsAtOnce), hub: stream.New(stream.Config{
		Scheduler: config.Scheduler, Rows: config.Rows, Alarms: config.Alarms,
	})}
	mux := http.NewServeMux()
	files := loadFiles()
	mux.Handle("GET /{$}", files.page("index.html"))
	mux.Handle("GET /status", files.page("index.html")) // Links of Dask's form lead there.
	mux.Handle("GET /{path...}", files)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	mux.Handle("GET /readyz", s.current(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-config.Scheduler.Draining():
			plain(w, http.StatusServiceUnavailable, "draining")
		default:
			plain(w, http.StatusOK, "ok")
		}
	})))
	mux.Handle("GET /metrics", promhttp.HandlerFor(config.Metrics, promhttp.HandlerOpts{}))
	mux.Handle("GET /api/v1/status", s.current(http.HandlerFunc(s.status)))
	if config.Profiles {
		s.serveProfiles(mux)
	}

	mux.HandleFunc("POST /login", s.login)
	mux.HandleFunc("POST /logout", s.logout)
	mux.Handle("GET /api/session", s.current(http.HandlerFunc(s.session)))
	mux.Handle("GET /api/stream", s.current(s.admitted(pb.SchedulerService_Watch_FullMethodName, s.hub.Serve)))
	mux.Handle("GET /api/runs", s.current(s.admitted(pb.SchedulerService_ListTaskRuns_FullMethodName, s.hub.ServeRuns)))
	mux.Handle("GET /api/holders", s.current(s.admitted(pb.SchedulerService_GetTask_FullMethodName, s.hub.ServeHolders)))
	mux.Handle("GET /api/samples", s.current(s.admitted(pb.SchedulerService_GetClusterInfo_FullMethodName, s.hub.ServeSamples)))
	mux.Handle("GET /api/trace", s.current(s.admitted(pb.SchedulerService_ListTaskRuns_FullMethodName, s.trace)))
	mux.Handle("GET /api/report", s.current(s.admitted(pb.SchedulerService_GetReport_FullMethodName, s.report)))
	mux.Handle("GET /api/profile", s.current(s.admitted(pb.SchedulerService_GetWorker_FullMethodName, s.profile)))
	mux.HandleFunc("POST /api/{service}/{call}", s.call) // The server of gRPC finds out who leads.
	mux.Handle("POST /api/workers/{worker}/{service}/{call}", s.current(http.HandlerFunc(s.workerCall)))
	s.handler = s.guarded(mux)
	return s
}

// Run keeps the samples and the streams up to date until ctx ends.
func (s *Site) Run(ctx context.Context) { s.hub.Run(ctx) }

// ServeHTTP is part of http.Handler.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// admitted serves a request whose caller may make a call of the API that shows as much.
func (s *Site) admitted(method string, serve func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := s.admit(r, method)
		if err == nil {
			err = serve(w, r)
		}
		if err != nil {
			bridge.WriteError(w, err)
		}
	})
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n")) // An error means that the reader has left.
}
