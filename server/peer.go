package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/leader"
	"github.com/millrace/millrace/internal/version"
	"github.com/millrace/millrace/server/consensus"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/rpc"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/web"
)

// Peer is one of several schedulers with one journal. While another one leads, it refuses all
// calls and names that one. While it leads, it is a Server.
type Peer struct {
	config Config
	id     string
	peer   *consensus.Peer
	calls  *door
	web    *door // nil: no HTTP port
}

// leading is what a Server does as one of several.
type leading struct {
	// restored is called when the journal was read, and release when nobody is answered any more.
	restored, release func()
	// leads returns an error if another scheduler may lead.
	leads func(context.Context) error
}

// NewPeer listens on the addresses. The owner of the peer closes it after Run. config has
// no journal.
func NewPeer(config Config, r *consensus.Peer) (*Peer, error) {
	ports := &Server{config: config, listener: config.Listener}
	if err := ports.listen(); err != nil {
		ports.close()
		return nil, err
	}
	s := &Peer{config: config, id: uuid.NewString(), peer: r, calls: newDoor(ports.listener)}
	if ports.web != nil {
		s.web = newDoor(ports.web)
	}
	return s, nil
}

// Address returns host:port of the gRPC port.
func (s *Peer) Address() string { return s.calls.listener.Addr().String() }

// HTTPAddress returns host:port of the HTTP port; empty if there is none.
func (s *Peer) HTTPAddress() string {
	if s.web == nil {
		return ""
	}
	return s.web.listener.Addr().String()
}

// ID returns a random id of this process.
func (s *Peer) ID() string { return s.id }

// Run serves until ctx ends, or a client shuts the cluster down. Call it once.
func (s *Peer) Run(ctx context.Context) error {
	defer s.calls.close()
	defer s.web.close()
	ready := s.config.Ready
	for {
		term, err := s.follow(ctx, ready)
		if err != nil || term == nil {
			return err
		}
		ready = nil
		if again, err := s.lead(ctx, term); !again {
			return err
		}
	}
}

// follow refuses calls until this scheduler leads. It returns nil if it is to stop.
func (s *Peer) follow(ctx context.Context, ready func() error) (term *consensus.Term, err error) {
	refusing, err := s.newStandby()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	refusing.serve(group, s.calls.open(), s.web)
	group.Go(func() error {
		defer refusing.stop()
		if ready != nil {
			if err := ready(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.peer.Stopped():
			return nil
		case t := <-s.leads(ctx):
			term = t
			return nil
		case <-s.peer.Failed():
			return s.peer.Cause()
		}
	})
	return term, group.Wait()
}

// takeoverGrace is the time that workers have to come back when another scheduler leads: that after
// a restart, behind the time for which they stay with a leader that hangs.
func takeoverGrace(restart time.Duration) time.Duration {
	return cmp.Or(restart, members.DefaultRestartGrace) + leader.HangTime
}

// leads gives the term in which this scheduler leads. A term that nobody takes ends with the
// context.
func (s *Peer) leads(ctx context.Context) <-chan *consensus.Term {
	terms := make(chan *consensus.Term)
	go func() {
		if term, err := s.peer.Lead(ctx); err == nil {
			select {
			case terms <- term:
			case <-ctx.Done():
				term.Release()
			}
		}
	}()
	return terms
}

// lead serves while this scheduler leads, and reports whether it is to follow after that.
func (s *Peer) lead(ctx context.Context, term *consensus.Term) (again bool, err error) {
	s.config.Log.Info("this scheduler leads")
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-term.Lost():
			stop()
		case <-s.peer.Stopped():
			stop()
		case <-serving.Done():
		}
	}()
	defer term.Release()
	// Until the journal is read nobody is answered, so the reader may hear of the end of the term.
	unread := context.AfterFunc(serving, term.Release)
	config := s.config
	config.Journal, config.Listener, config.Ready = term, s.calls.open(), nil
	config.HTTPAddress = ""
	config.RestartGrace = takeoverGrace(config.RestartGrace)
	if s.web != nil {
		config.httpListener = s.web.open()
	}
	config.peers = s.peer
	config.leading = &leading{restored: func() { unread() }, release: term.Release, leads: term.Leads}
	server, err := New(config)
	if err == nil {
		err = server.Run(serving)
	}
	select {
	case <-s.peer.Failed():
		return false, s.peer.Cause()
	case <-s.peer.Stopped():
		return false, nil // The leader before has stopped all.
	case <-term.Lost():
		s.config.Log.Warn("this scheduler leads no more")
		return ctx.Err() == nil, nil
	default:
	}
	switch {
	case ctx.Err() != nil:
		s.peer.HandOver()
	case err == nil:
		err = term.Stop(ctx) // A client shuts the cluster down.
	}
	return false, err
}

// standby is the server of a scheduler that does not lead.
type standby struct {
	rpc  *rpc.Server
	http *http.Server
}

func (s *Peer) newStandby() (*standby, error) {
	var tokens access.Tokens
	for token, role := range s.config.Tokens { // order-free: each token is compared with all
		tokens = append(tokens, access.TokenOf(token, role))
	}
	unused := loop.New(loop.Config{Cluster: schedapi.Cluster{StartedAt: time.Now()}, Log: s.config.Log})
	calls, err := rpc.New(rpc.Config{
		Tokens: tokens, Credentials: s.config.Credentials, Log: s.config.Log, Version: version.String(),
		NotReady: func() error { return leader.Refusal(s.peer.Leader()) }, Peers: s.peer,
	}, unused)
	if err != nil {
		return nil, err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), web.PeerMetrics(s.peer))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		text := "this scheduler does not lead, and there is no leader now: try again"
		if address := s.peer.Leader(); address != "" {
			text = "this scheduler does not lead: the one at " + address + " does, look at its pages"
		}
		http.Error(w, text, http.StatusServiceUnavailable)
	})
	return &standby{rpc: calls, http: &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout}}, nil
}

func (s *standby) serve(group *errgroup.Group, calls net.Listener, web *door) {
	group.Go(func() error { return s.rpc.Serve(calls) })
	if web != nil {
		listener := web.open()
		group.Go(func() error {
			if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
}

func (s *standby) stop() {
	s.rpc.Cut()
	_ = s.http.Close() // Requests are cut off: they are refused in any case.
}
