package web

import (
	"context"
	"net/http"

	"github.com/millrace/millrace/server/web/bridge"
)

// current refuses what was read if another scheduler may lead, as rpc does for calls: each part of
// an answer is written only after this one was found to lead. Streams end then.
func (s *Site) current(next http.Handler) http.Handler {
	if s.config.Leads == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&currentWriter{ResponseWriter: w, ctx: r.Context(), leads: s.config.Leads}, r) // All write a body.
	})
}

// currentWriter is the answer to one request.
type currentWriter struct {
	http.ResponseWriter
	ctx   context.Context //nolint:containedctx // It is that of the request, and lives as long.
	leads func(context.Context) error
	// code is that of the header, which waits for the first part; 0: 200. begun: a part was
	// written. lost: nothing more is.
	code        int
	begun, lost bool
}

// Unwrap is for http.ResponseController.
func (w *currentWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader is part of http.ResponseWriter.
func (w *currentWriter) WriteHeader(code int) { w.code = code }

// Write is part of http.ResponseWriter. An answer of which a part was written is broken off, so
// that nobody takes that part for all.
func (w *currentWriter) Write(data []byte) (int, error) {
	if w.lost {
		return 0, http.ErrAbortHandler
	}
	if err := w.leads(w.ctx); err != nil {
		if w.begun {
			panic(http.ErrAbortHandler) // The server of HTTP takes this for an order.
		}
		w.lost = true
		w.Header().Del("Content-Disposition")
		w.Header().Del("Content-Length")
		bridge.WriteError(w.ResponseWriter, err)
		return 0, err
	}
	if !w.begun && w.code != 0 {
		w.ResponseWriter.WriteHeader(w.code)
	}
	w.begun = true
	return w.ResponseWriter.Write(data)
}
