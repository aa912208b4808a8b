package web

import (
	"context"
	"net/http"

	"github.com/millrace/millrace/server/web/bridge"
)

// current refuses what was read if another scheduler may lead, as rpc does for calls: each part of
// an answer is written only after this one was found to lead, and so is a header without a body.
// Streams end then.
func (s *Site) current(next http.Handler) http.Handler {
	if s.config.Leads == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := &currentWriter{ResponseWriter: w, ctx: r.Context(), leads: s.config.Leads}
		next.ServeHTTP(to, r)
		if !to.begun && !to.lost {
			_ = to.begin() // It has told the error.
		}
	})
}

// currentWriter is the answer to one request.
type currentWriter struct {
	http.ResponseWriter
	ctx   context.Context //nolint:containedctx // It is that of the request, and lives as long.
	leads func(context.Context) error
	// code is that of the header, which waits for the first part, the first flush or the end; 0:
	// 200. begun: the header was written. lost: nothing more is.
	code        int
	begun, lost bool
}

// Unwrap is for http.ResponseController.
func (w *currentWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader is part of http.ResponseWriter.
func (w *currentWriter) WriteHeader(code int) { w.code = code }

// Write is part of http.ResponseWriter.
func (w *currentWriter) Write(data []byte) (int, error) {
	if err := w.begin(); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(data)
}

// FlushError is for http.ResponseController. The first one writes the header.
func (w *currentWriter) FlushError() error {
	if !w.begun {
		if err := w.begin(); err != nil {
			return err
		}
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// begin finds out whether another part may be written, and writes the header before the first one.
// An answer of which a part was written is broken off, so that nobody takes that part for all.
func (w *currentWriter) begin() error {
	if w.lost {
		return http.ErrAbortHandler
	}
	if err := w.leads(w.ctx); err != nil {
		if w.begun {
			panic(http.ErrAbortHandler) // The server of HTTP takes this for an order.
		}
		w.lost = true
		w.Header().Del("Content-Disposition")
		w.Header().Del("Content-Length")
		bridge.WriteError(w.ResponseWriter, err)
		return err
	}
	if !w.begun && w.code != 0 {
		w.ResponseWriter.WriteHeader(w.code)
	}
	w.begun = true
	return nil
}
