package executor

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// spareDelay is how long a spare process is put off: those that have work are started before it.
	spareDelay = 250 * time.Millisecond
	// longestSpareBackoff bounds the pause after spare processes that died: nothing waits for the next one.
	longestSpareBackoff = time.Minute
	// maxLoaded of a kind are remembered, each of maxLoadedName bytes at most. A task can write to the link.
	maxLoaded     = 1000
	maxLoadedName = 200
)

// spare keeps at most one process of a kind that no lane has. It has loaded what tasks need, and takes the place of one that
// died. There is none before the first process of the kind has got ready, and has said that its program knows spare ones.
type spare struct {
	pools   *Pools
	kind    string
	command []string
	// need has room for one: a process of the kind got ready, so that there should be a spare one.
	need chan struct{}

	mu sync.Mutex
	// process is the one that can be taken, nil if there is none; it may not be ready. Guarded by mu.
	process *process
}

// takeSpare returns a spare process, nil if there is none. It may not be ready yet.
func (p *Pools) takeSpare(kind string) *process {
	for _, s := range p.spares[kind] {
		if taken := s.take(); taken != nil {
			return taken
		}
	}
	return nil
}

// wantSpare says that a process of a kind got ready.
func (p *Pools) wantSpare(kind string) {
	for _, s := range p.spares[kind] {
		select {
		case s.need <- struct{}{}:
		default:
		}
	}
}

// loaded notes what tasks made a process load.
func (p *Pools) loaded(kind string, names []string) {
	if len(names) == 0 || len(p.spares[kind]) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.load[kind]
	if known == nil {
		known = make(map[string]struct{})
		p.load[kind] = known
	}
	for _, name := range names {
		if len(known) < maxLoaded && len(name) <= maxLoadedName {
			known[name] = struct{}{}
		}
	}
}

// toLoad is what tasks made processes of a kind load, sorted.
func (p *Pools) toLoad(kind string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.load[kind]))
}

// forgetLoaded forgets that: a spare process may have died of it.
func (p *Pools) forgetLoaded(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.load, kind)
}

// take returns the process for a lane, nil if there is none that lives.
func (s *spare) take() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.process
	if p == nil {
		return nil
	}
	select {
	case <-p.exited:
		return nil
	default:
	}
	s.process = nil
	close(p.taken)
	return p
}

// keep starts a process whenever one is wanted and there is none.
func (s *spare) keep() {
	failures := 0
	for {
		select {
		case <-s.need:
		case <-s.pools.closing:
			return
		}
		pause := spareDelay
		if failures > 0 {
			pause = min(max(firstBackoff<<min(failures-1, 20), spareDelay), longestSpareBackoff)
		}
		if !s.pools.pause(pause) {
			return
		}
		taken, cause := s.once(s.pools.toLoad(s.kind))
		if taken {
			// The next one is wanted when this one has got ready.
			failures = 0
			continue
		}
		select {
		case <-s.pools.closing:
			return
		default:
		}
		failures++
		s.pools.forgetLoaded(s.kind)
		s.pools.config.Log.Warn("spare executor died; another one is started later", "kind", s.kind, "times", failures, "cause", cause)
		s.pools.wantSpare(s.kind)
	}
}

// once keeps one process until a lane takes it, or it has ended; then cause says why.
func (s *spare) once(load []string) (taken bool, cause string) {
	p, err := s.pools.startProcess(s.kind, s.command, true, load)
	if err != nil {
		return false, err.Error()
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	limit := time.NewTimer(s.pools.config.ReadyTimeout)
	defer limit.Stop()
	ready, broken, closing := p.ready, p.broken, s.pools.closing
	for {
		select {
		case <-p.taken:
			return true, ""
		case <-ready:
			ready = nil
			limit.Stop()
			s.pools.config.Log.Debug("spare executor ready", "kind", s.kind, "pid", p.pid())
			continue
		case <-broken:
			broken = nil
			// It is about to exit, or speaks nonsense; it has a moment to say why.
			limit.Reset(farewell)
			continue
		case <-limit.C:
			if broken != nil {
				p.breakOff(fmt.Errorf("it said nothing for %v", s.pools.config.ReadyTimeout))
			}
		case <-closing:
		case <-p.exited:
		}
		break
	}
	s.mu.Lock()
	mine := s.process == p
	s.process = nil
	s.mu.Unlock()
	if !mine {
		return true, "" // just now
	}
	p.kill()
	<-p.exited
	p.close()
	p.page.close()
	return false, p.describe(nil)
}

// pause waits. It returns false if the pools are closed meanwhile.
func (p *Pools) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.closing:
		return false
	}
}
