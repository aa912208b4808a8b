// Package web is an Adapter: a worker's own HTTP port. It serves metrics of the worker's process
// and its health.
package web

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace/millrace/internal/hostport"
)

// Config sets up a port.
type Config struct {
	// Address is host:port to listen at; port 0 takes a free one.
	Address string
	// Guarded says that the worker demands tokens. Otherwise it must not be reachable from other
	// hosts.
	Guarded bool
	// Worker is the name of the worker, Version that of the program.
	Worker, Version string
	// Figures returns what the metrics show. Any goroutine calls it.
	Figures func() Figures
	// Hangs and Unready return the reason why the worker hangs, and why it takes no tasks; nil if
	// it does not hang, or takes tasks. Any goroutine calls them.
	Hangs, Unready func() error
}

const (
	// headerTimeout is the time that a connection has to send the header of a request, and
	// idleTimeout how long it stays open between requests: a client that sends nothing keeps no
	// connection for good.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// Port serves HTTP until it is closed.
type Port struct {
	listener net.Listener
	server   *http.Server
	served   chan error
}

// Open listens and serves.
func Open(c Config) (*Port, error) {
	listener, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for HTTP: %w: choose another address (--metrics-listen), or stop what uses it", c.Address, err)
	}
	if !c.Guarded && !hostport.Loopback(listener.Addr()) {
		return nil, errors.Join(fmt.Errorf("listen on %s for HTTP: others can reach it, and no token is set: set one, or listen on 127.0.0.1", listener.Addr()), listener.Close())
	}
	p := &Port{listener: listener, server: &http.Server{Handler: handler(c), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout}, served: make(chan error, 1)}
	go func() { p.served <- p.server.Serve(listener) }()
	return p, nil
}

// Address returns host:port of the listener.
func (p *Port) Address() string { return p.listener.Addr().String() }

// Close ends all requests. Call it once. A nil port has none.
func (p *Port) Close() error {
	if p == nil {
		return nil
	}
	err := p.server.Close()
	if served := <-p.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

func handler(c Config) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newCollector(c), buildInfo(c.Version))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", answer(c.Hangs))
	mux.HandleFunc("GET /readyz", answer(c.Unready))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !c.Guarded && !hostport.NamesThisHost(r.Host) {
			http.Error(w, "without tokens only names of this host, such as localhost, are answered: use one, or set a token", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// answer says "ok", or the trouble.
func answer(trouble func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := trouble(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err) // An error means that the reader has left.
			return
		}
		_, _ = fmt.Fprintln(w, "ok") // As above.
	}
}
