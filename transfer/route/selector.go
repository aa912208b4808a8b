// Package route is a Loop: a route selector that makes several paths look like one. It owns the
// clock and the flow machine, which chooses the path for a peer. If a path fails at a fetch or
// takes too long, the fetch continues on the next path, into the same memory.
package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
)

// Rung is one candidate path.
type Rung struct {
	Path transfer.Path
	// Suits, if set, returns the reason why another path should be used for a peer although this
	// one could reach it; nil if there is none. It may block.
	Suits func(ctx context.Context, peer transfer.Peer) error
	// NoWay reports whether an error means that this path cannot reach the peer. nil: errors that
	// match transfer.ErrNoWay do.
	NoWay func(error) bool
}

// Config is fixed for the life of a ladder.
type Config struct {
	// Rungs are the candidates, best first.
	Rungs []Rung
	// Unused are paths that are only closed together with the others.
	Unused []transfer.Path
	// Flow has the limits of the flow machine. New fills in its paths.
	Flow flow.Config
	Log  *slog.Logger
}

// Path is the route selector.
type Path struct {
	config Config
	// lender is the candidate that can lend on request, atOnce the one that lends at once; -1 if
	// there is none.
	lender, atOnce int

	mu      sync.Mutex
	machine *flow.Machine // guarded by mu
}

var (
	_ transfer.Path     = (*Path)(nil)
	_ transfer.Borrower = (*Path)(nil)
	_ transfer.Lender   = (*Path)(nil)
	_ transfer.Rescuer  = (*Path)(nil)
	_ transfer.Follower = (*Path)(nil)
	_ transfer.Preparer = (*Path)(nil)
)

// New returns a route selector, which closes its paths in the end.
func New(c Config) *Path {
	p := &Path{config: c, lender: -1, atOnce: -1}
	for i, r := range c.Rungs {
		c.Flow.Paths = append(c.Flow.Paths, r.Path.Name())
		if _, ok := r.Path.(transfer.Borrower); ok && p.lender < 0 {
			p.lender = i
		}
		if _, ok := r.Path.(transfer.Lender); ok && p.atOnce < 0 {
			p.atOnce = i
		}
	}
	if p.config.Log == nil {
		p.config.Log = slog.New(slog.DiscardHandler)
	}
	p.machine = flow.New(c.Flow)
	return p
}

// Name is part of transfer.Path.
func (p *Path) Name() string { return "auto" }

// Close is part of transfer.Path.
func (p *Path) Close() error {
	var errs []error
	for _, r := range p.config.Rungs {
		errs = append(errs, r.Path.Close())
	}
	for _, path := range p.config.Unused {
		errs = append(errs, path.Close())
	}
	return errors.Join(errs...)
}

// Forget drops the connections to a peer that is gone, and what was learned about it.
func (p *Path) Forget(address string) {
	p.mu.Lock()
	p.machine.Forget(address)
	p.mu.Unlock()
	for _, r := range p.config.Rungs {
		if f, ok := r.Path.(interface{ Forget(string) }); ok {
			f.Forget(address)
		}
	}
}

// Lanes returns the state of each path to each peer. Peers are identified by their address.
func (p *Path) Lanes() []flow.Lane {
	p.mu.Lock()
	lanes := p.machine.Lanes()
	p.mu.Unlock()
	for i, l := range lanes {
		for _, r := range p.config.Rungs {
			if c, ok := r.Path.(carried); ok && r.Path.Name() == l.Path {
				lanes[i].Transport = c.Transport(l.Peer)
			}
		}
	}
	return lanes
}

// carried is a path with several transports.
type carried interface {
	// Transport names the transport to a peer's address. Empty: not connected.
	Transport(address string) string
}

func (p *Path) choose(peer transfer.Peer, tried []bool) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine.Choose(time.Now(), peer.Address, tried)
}

func (p *Path) ended(peer transfer.Peer, path int, e flow.End) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.machine.Ended(time.Now(), peer.Address, path, e)
}

func (p *Path) story(peer transfer.Peer) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine.Story(peer.Address)
}

func (r *Rung) noWay(err error) bool {
	if r.NoWay != nil {
		return r.NoWay(err)
	}
	return errors.Is(err, transfer.ErrNoWay)
}

// Lends is part of transfer.Borrower.
func (p *Path) Lends(peer transfer.Peer) bool {
	if p.lender < 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine.Promising(time.Now(), peer.Address, p.lender)
}

// Borrow is part of transfer.Borrower.
func (p *Path) Borrow(ctx context.Context, peer transfer.Peer, refs []transfer.Ref) ([]transfer.Loan, error) {
	if p.lender < 0 {
		return nil, fmt.Errorf("%s: %w: no path lends", peer, transfer.ErrNoWay)
	}
	tried := make([]bool, len(p.config.Rungs))
	for i := range tried {
		tried[i] = i != p.lender
	}
	at, ok := p.choose(peer, tried)
	if !ok {
		return nil, fmt.Errorf("%s: %w: %s", peer, transfer.ErrNoWay, p.story(peer))
	}
	rung := &p.config.Rungs[at]
	began := time.Now()
	loans, err := rung.Path.(transfer.Borrower).Borrow(ctx, peer, refs)
	end := flow.End{Took: time.Since(began)}
	for i := range loans {
		if loans[i].Err == nil {
			end.Bytes += loans[i].Head.Bytes()
		}
	}
	p.judge(ctx, rung, &end, err)
	p.ended(peer, at, end)
	return loans, err
}

func (p *Path) judge(ctx context.Context, rung *Rung, end *flow.End, err error) {
	switch {
	case err == nil:
		return
	case rung.noWay(err):
		end.Kind = flow.LeadsNowhere
	case ctx.Err() != nil:
		end.Kind = flow.GivenUp
	default:
		end.Kind = flow.Failed
	}
	end.Message = err.Error()
}

// Rescue is part of transfer.Rescuer. It uses the first path that has the memory mapped.
func (p *Path) Rescue(ctx context.Context, peer transfer.Peer, incarnation [16]byte, refs []transfer.Ref, sink transfer.Sink) error {
	err := fmt.Errorf("rescue from %s: %w: no path maps memory", peer, transfer.ErrNoWay)
	for _, r := range p.config.Rungs {
		if path, ok := r.Path.(transfer.Rescuer); ok {
			if err = path.Rescue(ctx, peer, incarnation, refs, sink); !errors.Is(err, transfer.ErrNoWay) {
				return err
			}
		}
	}
	return err
}

// Follow is part of transfer.Follower. It uses the first suitable path; its error matches ErrNoWay
// if there is none. The duration is not used as a measurement: it depends on the upstream worker.
func (p *Path) Follow(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	tried := make([]bool, len(p.config.Rungs))
	for i, r := range p.config.Rungs {
		if _, able := r.Path.(transfer.Follower); !able {
			tried[i] = true
		}
	}
	at, ok := p.choose(peer, tried)
	if !ok {
		return fmt.Errorf("behind %s: %w: no path follows: %s", peer, transfer.ErrNoWay, p.story(peer))
	}
	rung := &p.config.Rungs[at]
	end, err := flow.End{Kind: flow.GivenUp}, error(nil)
	if rung.Suits != nil {
		err = rung.Suits(ctx, peer)
	}
	if err == nil {
		err = rung.Path.(transfer.Follower).Follow(ctx, peer, refs, sink)
	}
	if err != nil {
		p.judge(ctx, rung, &end, err)
	}
	p.ended(peer, at, end)
	return err
}

// Prepare is part of transfer.Preparer. It uses the first suitable path; its error matches ErrNoWay
// if there is none.
func (p *Path) Prepare(ctx context.Context, peer transfer.Peer) (transfer.Measured, error) {
	for i := range p.config.Rungs {
		rung := &p.config.Rungs[i]
		path, able := rung.Path.(transfer.Preparer)
		if !able {
			continue
		}
		if rung.Suits != nil {
			if err := rung.Suits(ctx, peer); err != nil {
				continue
			}
		}
		m, err := path.Prepare(ctx, peer)
		if err == nil {
			p.mu.Lock()
			p.machine.Proved(time.Now(), peer.Address, i, m.Latency, m.BytesPerSecond)
			p.mu.Unlock()
		}
		return m, err
	}
	return transfer.Measured{}, fmt.Errorf("%s: %w: no path prepares anything", peer, transfer.ErrNoWay)
}

// Fetch is part of transfer.Path.
func (p *Path) Fetch(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	f := &fetch{sink: sink, done: make([]bool, len(refs)), places: make([]place, len(refs)), left: len(refs)}
	tried := make([]bool, len(p.config.Rungs))
	var errs []error
	for f.left > 0 {
		at, ok := p.choose(peer, tried)
		if !ok {
			if len(errs) == 0 {
				errs = append(errs, fmt.Errorf("%w: %s", transfer.ErrPeerLost, p.story(peer)))
			}
			return errors.Join(errs...)
		}
		tried[at] = true
		if at > 0 || p.prompt() == nil {
			transfer.Waits(sink)
		}
		err := p.try(ctx, at, peer, refs, f)
		if ctx.Err() != nil {
			if err == nil {
				err = context.Cause(ctx)
			}
			return err
		}
		if err != nil {
			errs = append(errs, err)
			if !p.config.Rungs[at].noWay(err) {
				p.config.Log.Warn("a path failed", "path", p.config.Rungs[at].Path.Name(), "peer", peer.String(), "error", err)
			}
		}
	}
	return nil
}

// try fetches the missing objects on one path.
func (p *Path) try(ctx context.Context, at int, peer transfer.Peer, refs []transfer.Ref, f *fetch) error {
	rung := &p.config.Rungs[at]
	var end flow.End
	verdict := error(nil)
	defer func() {
		p.judge(ctx, rung, &end, verdict)
		p.ended(peer, at, end)
	}()
	if rung.Suits != nil {
		if err := rung.Suits(ctx, peer); err != nil {
			// A peer that does not answer or is gone may be back soon. Any other reason lasts
			// longer, like a missing route.
			if verdict = err; !errors.Is(err, transfer.ErrStalled) && !errors.Is(err, transfer.ErrPeerLost) {
				verdict = fmt.Errorf("%w: %w", transfer.ErrNoWay, err)
			}
			return verdict
		}
	}
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &attempt{fetch: f, began: time.Now(), cancel: cancel}
	a.allow = func(bytes uint64) (time.Duration, bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.machine.Allowed(peer.Address, at, bytes)
	}
	var some []transfer.Ref
	for i, r := range refs {
		if !f.done[i] {
			some, a.index = append(some, r), append(a.index, i)
		}
	}
	err := rung.Path.Fetch(limited, peer, some, a)
	a.stop()
	a.withdraw()
	end.Bytes, end.Took = a.bytes, time.Since(a.began)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("%s from %s: %w: %d bytes did not come within %v", rung.Path.Name(), peer, transfer.ErrStalled, a.placed, end.Took.Round(time.Millisecond))
	}
	if verdict = err; err != nil {
		return err
	}
	// An object that this path cannot deliver is not evidence against the path for other objects.
	switch {
	case a.later == nil:
	case !rung.noWay(a.later):
		verdict = a.later
	case a.came == 0:
		end.Kind = flow.GivenUp // the time of a refusal is not a measurement of the path, either
	}
	return a.later
}
