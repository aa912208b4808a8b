// Package route is a Loop: a route selector that makes several paths look like one. It owns the
// clock and the flow machine, which chooses the path for a peer. If a path fails at a fetch or
// takes too long, the fetch continues on the next path, into the same memory.
package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
)

// Candidate is one path to choose from.
type Candidate struct {
	Path transfer.Path
	// Eligible, if set, returns the reason why another path should be used for a peer although this
	// one could reach it; nil if there is none. It may block.
	Eligible func(ctx context.Context, peer transfer.Peer) error
	// Unreachable reports whether an error means that this path cannot reach the peer. nil: errors
	// that match transfer.ErrUnreachable do.
	Unreachable func(error) bool
}

// Config is fixed for the life of a Selector.
type Config struct {
	// Candidates are the paths, best first.
	Candidates []Candidate
	// Unused are paths that are only closed together with the others.
	Unused []transfer.Path
	// Flow has the limits of the flow machine. New fills in its paths.
	Flow flow.Config
	Log  *slog.Logger
}

// Selector is the route selector.
type Selector struct {
	config Config
	// capabilities are those of the candidates, own those of the selector.
	capabilities []transfer.Capabilities
	own          transfer.Capabilities
	// lender is the first candidate that can lend on request (Borrower), atOnce the first that
	// lends at once (Lender); -1 if there is none.
	lender, atOnce int

	mu      sync.Mutex
	machine *flow.Machine // guarded by mu
	carried []Carried     // guarded by mu
}

// Carried is what a path has carried from all peers, those that are gone included.
type Carried struct {
	Path string
	// The numbers of successful and failed fetches, and the bytes that arrived.
	Succeeded, Failed, Bytes uint64
}

var _ transfer.Path = (*Selector)(nil)

// New returns a route selector, which closes its paths in the end.
func New(c Config) *Selector {
	s := &Selector{config: c, lender: -1, atOnce: -1}
	for i, r := range c.Candidates {
		c.Flow.Paths = append(c.Flow.Paths, r.Path.Name())
		s.carried = append(s.carried, Carried{Path: r.Path.Name()})
		able := r.Path.Capabilities()
		s.capabilities = append(s.capabilities, able)
		if able.Borrow != nil && s.lender < 0 {
			s.lender = i
		}
		if able.Lend != nil && s.atOnce < 0 {
			s.atOnce = i
		}
	}
	if s.config.Log == nil {
		s.config.Log = slog.New(slog.DiscardHandler)
	}
	s.machine = flow.New(c.Flow)
	s.own = s.combined()
	return s
}

// Name is part of transfer.Path.
func (s *Selector) Name() string { return "auto" }

// Capabilities is part of transfer.Path.
func (s *Selector) Capabilities() transfer.Capabilities { return s.own }

// combined returns the abilities of the selector: those that one of its candidates has.
func (s *Selector) combined() (out transfer.Capabilities) {
	for _, able := range s.capabilities {
		if able.Borrow != nil {
			out.Borrow = s
		}
		if able.Lend != nil {
			out.Lend = s
		}
		if able.Rescue != nil {
			out.Rescue = s
		}
		if able.Pipelined != nil {
			out.Pipelined = s
		}
		if able.Prepare != nil {
			out.Prepare = s
		}
	}
	if s.prompt() != nil {
		out.Prompt = s
	}
	return out
}

// Close is part of transfer.Path.
func (s *Selector) Close() error {
	var errs []error
	for _, r := range s.config.Candidates {
		errs = append(errs, r.Path.Close())
	}
	for _, path := range s.config.Unused {
		errs = append(errs, path.Close())
	}
	return errors.Join(errs...)
}

// Forget drops the connections to a peer that is gone, and what was learned about it.
func (s *Selector) Forget(address string) {
	s.mu.Lock()
	s.machine.Forget(address)
	s.mu.Unlock()
	for _, r := range s.config.Candidates {
		if f, ok := r.Path.(interface{ Forget(string) }); ok {
			f.Forget(address)
		}
	}
}

// Routes returns the state of each path to each peer. Peers are identified by their address.
func (s *Selector) Routes() []flow.Route {
	s.mu.Lock()
	routes := s.machine.Routes()
	s.mu.Unlock()
	for i, l := range routes {
		for _, r := range s.config.Candidates {
			if c, ok := r.Path.(laned); ok && r.Path.Name() == l.Path {
				lane := c.Lane(l.Peer)
				routes[i].Transport, routes[i].Staged, routes[i].ConnectRate, routes[i].ConnectionWhy = lane.Transport, lane.Staged, lane.BytesPerSecond, lane.Why
			}
		}
	}
	return routes
}

// laned is a path with several ways for the bytes.
type laned interface {
	// Lane describes the way from the peer with an address.
	Lane(address string) transfer.Lane
}

func (s *Selector) choose(peer transfer.Peer, tried []bool) (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Choose(time.Now(), peer.Address, tried)
}

func (s *Selector) ended(peer transfer.Peer, path int, e flow.End) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine.Ended(time.Now(), peer.Address, path, e)
	switch c := &s.carried[path]; e.Kind {
	case flow.OK:
		c.Succeeded++
		c.Bytes += e.Bytes
	case flow.Failed:
		c.Failed++
	case flow.CannotReach, flow.GivenUp:
	}
}

// Carried returns what each path has carried, best path first.
func (s *Selector) Carried() []Carried {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.carried)
}

func (s *Selector) state(peer transfer.Peer, path int) flow.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.State(peer.Address, path)
}

func (s *Selector) describe(peer transfer.Peer) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Describe(peer.Address)
}

func (c *Candidate) unreachable(err error) bool {
	if c.Unreachable != nil {
		return c.Unreachable(err)
	}
	return errors.Is(err, transfer.ErrUnreachable)
}

// Lends is part of transfer.Borrower.
func (s *Selector) Lends(peer transfer.Peer) bool {
	if s.lender < 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Promising(time.Now(), peer.Address, s.lender)
}

// Borrow is part of transfer.Borrower. Its error matches ErrPeerLost, and not ErrUnreachable, if
// the path has failed and is not tried for a while.
func (s *Selector) Borrow(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, needs bool) ([]transfer.Loan, error) {
	if s.lender < 0 {
		return nil, fmt.Errorf("%s: %w: no path lends", peer, transfer.ErrUnreachable)
	}
	tried := make([]bool, len(s.config.Candidates))
	for i := range tried {
		tried[i] = i != s.lender
	}
	at, ok := s.choose(peer, tried)
	if !ok {
		kind := transfer.ErrUnreachable
		if s.state(peer, s.lender) == flow.Shut {
			kind = transfer.ErrPeerLost
		}
		return nil, fmt.Errorf("%s: %w: %s", peer, kind, s.describe(peer))
	}
	candidate := &s.config.Candidates[at]
	began := time.Now()
	loans, err := s.capabilities[at].Borrow.Borrow(ctx, peer, refs, needs)
	end := flow.End{Took: time.Since(began)}
	for i := range loans {
		if loans[i].Err == nil {
			end.Bytes += loans[i].Head.Bytes()
		}
	}
	s.judge(ctx, candidate, &end, err)
	s.ended(peer, at, end)
	return loans, err
}

func (s *Selector) judge(ctx context.Context, candidate *Candidate, end *flow.End, err error) {
	switch {
	case err == nil:
		return
	case candidate.unreachable(err):
		end.Kind = flow.CannotReach
	case ctx.Err() != nil:
		end.Kind = flow.GivenUp
	default:
		end.Kind = flow.Failed
	}
	end.Message = err.Error()
}

// Rescue is part of transfer.Rescuer. It uses the first path that has the memory mapped.
func (s *Selector) Rescue(ctx context.Context, peer transfer.Peer, incarnation [16]byte, refs []transfer.Ref, sink transfer.Sink) error {
	err := fmt.Errorf("rescue from %s: %w: no path maps memory", peer, transfer.ErrUnreachable)
	for _, able := range s.capabilities {
		if able.Rescue != nil {
			if err = able.Rescue.Rescue(ctx, peer, incarnation, refs, sink); !errors.Is(err, transfer.ErrUnreachable) {
				return err
			}
		}
	}
	return err
}

// FetchPipelined is part of transfer.PipelinedFetcher. It uses the first suitable path; its error
// matches ErrUnreachable if there is none. The duration is not used as a measurement: it depends on
// the upstream worker.
func (s *Selector) FetchPipelined(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	tried := make([]bool, len(s.config.Candidates))
	for i, able := range s.capabilities {
		tried[i] = able.Pipelined == nil
	}
	at, ok := s.choose(peer, tried)
	if !ok {
		return fmt.Errorf("upstream %s: %w: no path reads what still arrives: %s", peer, transfer.ErrUnreachable, s.describe(peer))
	}
	candidate := &s.config.Candidates[at]
	end, err := flow.End{Kind: flow.GivenUp}, error(nil)
	if candidate.Eligible != nil {
		err = candidate.Eligible(ctx, peer)
	}
	if err == nil {
		err = s.capabilities[at].Pipelined.FetchPipelined(ctx, peer, refs, sink)
	}
	if err != nil {
		s.judge(ctx, candidate, &end, err)
	}
	s.ended(peer, at, end)
	return err
}

// Prepare is part of transfer.Preparer. It uses the first suitable path; its error matches
// ErrUnreachable if there is none.
func (s *Selector) Prepare(ctx context.Context, peer transfer.Peer) (transfer.Measured, error) {
	for i := range s.config.Candidates {
		candidate, path := &s.config.Candidates[i], s.capabilities[i].Prepare
		if path == nil {
			continue
		}
		if candidate.Eligible != nil {
			if err := candidate.Eligible(ctx, peer); err != nil {
				continue
			}
		}
		m, err := path.Prepare(ctx, peer)
		if err == nil {
			s.mu.Lock()
			s.machine.Proved(time.Now(), peer.Address, i, m.Latency, m.BytesPerSecond)
			s.mu.Unlock()
		}
		return m, err
	}
	return transfer.Measured{}, fmt.Errorf("%s: %w: no path prepares anything", peer, transfer.ErrUnreachable)
}

// Fetch is part of transfer.Path.
func (s *Selector) Fetch(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	f := &fetch{sink: sink, able: sink.Capabilities(), done: make([]bool, len(refs)), places: make([]place, len(refs)), left: len(refs)}
	tried := make([]bool, len(s.config.Candidates))
	var errs []error
	for f.left > 0 {
		at, ok := s.choose(peer, tried)
		if !ok {
			if len(errs) == 0 {
				errs = append(errs, fmt.Errorf("%w: %s", transfer.ErrPeerLost, s.describe(peer)))
			}
			return errors.Join(errs...)
		}
		tried[at] = true
		if at > 0 || s.prompt() == nil {
			transfer.Waits(sink)
		}
		err := s.try(ctx, at, peer, refs, f)
		if cause := context.Cause(ctx); cause != nil {
			// The path may have failed for a reason of its own just before.
			if err != nil && !errors.Is(err, cause) {
				return fmt.Errorf("%w: %v", cause, err) //nolint:errorlint // the call has ended, and the path is not blamed
			}
			return cause
		}
		if err != nil {
			errs = append(errs, err)
			if !s.config.Candidates[at].unreachable(err) {
				s.config.Log.Warn("a path failed", "path", s.config.Candidates[at].Path.Name(), "peer", peer.String(), "error", err)
			}
		}
	}
	return nil
}

// try fetches the missing objects on one path.
func (s *Selector) try(ctx context.Context, at int, peer transfer.Peer, refs []transfer.Ref, f *fetch) error {
	candidate := &s.config.Candidates[at]
	var end flow.End
	verdict := error(nil)
	defer func() {
		s.judge(ctx, candidate, &end, verdict)
		s.ended(peer, at, end)
	}()
	if candidate.Eligible != nil {
		if err := candidate.Eligible(ctx, peer); err != nil {
			// A peer that does not answer or is gone may be back soon. Any other reason lasts
			// longer, like a missing route.
			if verdict = err; !errors.Is(err, transfer.ErrStalled) && !errors.Is(err, transfer.ErrPeerLost) {
				verdict = fmt.Errorf("%w: %w", transfer.ErrUnreachable, err)
			}
			return verdict
		}
	}
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &attempt{fetch: f, began: time.Now(), cancel: cancel}
	a.allow = func(bytes uint64) (time.Duration, bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.machine.Allowed(peer.Address, at, bytes)
	}
	var some []transfer.Ref
	for i, r := range refs {
		if !f.done[i] {
			some, a.index = append(some, r), append(a.index, i)
		}
	}
	err := candidate.Path.Fetch(limited, peer, some, a)
	a.stop()
	a.withdraw()
	end.Bytes, end.Took = a.bytes, time.Since(a.began)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("%s from %s: %w: %d bytes did not come within %v", candidate.Path.Name(), peer, transfer.ErrStalled, a.placed, end.Took.Round(time.Millisecond))
	}
	if verdict = err; err != nil {
		return err
	}
	// An object that this path cannot deliver is not evidence against the path for other objects.
	switch {
	case a.later == nil:
	case !candidate.unreachable(a.later):
		verdict = a.later
	case a.came == 0:
		end.Kind = flow.GivenUp // the time of a refusal is not a measurement of the path, either
	}
	return a.later
}
