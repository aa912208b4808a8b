package web

import (
	"net/http"
	"net/http/pprof"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
)

// serveProfiles adds the profiles of this process under /debug/pprof, for operators: they show its
// memory and its command line, and making one costs time.
func (s *Site) serveProfiles(mux *http.ServeMux) {
	for path, serve := range map[string]http.HandlerFunc{ // order-free: each is a path of its own
		"/": pprof.Index, "/cmdline": pprof.Cmdline, "/profile": pprof.Profile, "/symbol": pprof.Symbol, "/trace": pprof.Trace,
	} {
		mux.Handle("GET /debug/pprof"+path, s.admitted(pb.SchedulerService_Shutdown_FullMethodName, func(w http.ResponseWriter, r *http.Request) error {
			serve(w, r)
			return nil
		}))
	}
}
