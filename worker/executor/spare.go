package executor

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// spareDelay delays the start of a spare process, so that processes with work start first.
	spareDelay = 250 * time.Millisecond
	// longestSpareBackoff limits the pause after spare processes that died. It can be long,
	// because nothing waits for the next one.
	longestSpareBackoff = time.Minute
	// maxLoaded is the number of names per kind that are remembered, each of at most maxLoadedName
	// bytes. The limits are needed because a task can write to the link.
	maxLoaded     = 1000
	maxLoadedName = 200
)

// spare keeps at most one spare process of a kind, that is, a process without a slot. It has loaded
// the modules that tasks need, and replaces a process that died. It is started only after the first
// process of the kind has become ready and has said that its program supports spare processes.
type spare struct {
	pools   *Pools
	kind    string
	command []string
	// need has capacity 1. An entry means that a process of the kind became ready, so a spare one
	// should be started.
	need chan struct{}

	mu sync.Mutex
	// process is the process that can be taken, nil if there is none. It may not be ready yet.
	// Guarded by mu.
	process *process
}

// takeSpare returns a spare process, nil if there is none. The process may not be ready yet.
func (p *Pools) takeSpare(kind string) *process {
	for _, s := range p.spares[kind] {
		if taken := s.take(); taken != nil {
			return taken
		}
	}
	return nil
}

// wantSpare requests the spare processes of a kind, because a process of this kind became ready.
func (p *Pools) wantSpare(kind string) {
	for _, s := range p.spares[kind] {
		select {
		case s.need <- struct{}{}:
		default:
		}
	}
}

// recordLoaded records the modules that tasks made a process load.
func (p *Pools) recordLoaded(kind string, names []string) {
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

// toLoad returns the modules that tasks made processes of a kind load, sorted.
func (p *Pools) toLoad(kind string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.load[kind]))
}

// forgetLoaded clears the recorded modules of a kind, since one of them may have killed a spare
// process.
func (p *Pools) forgetLoaded(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.load, kind)
}

// take returns the process for a slot, nil if there is none alive.
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

// run starts a spare process whenever one is requested and there is none.
func (s *spare) run() {
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
		taken, cause := s.runProcess(s.pools.toLoad(s.kind))
		if taken {
			// The next one is requested when this one has become ready in its slot.
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

// runProcess keeps one process until a slot takes it or it has ended. If it has ended, cause is the
// reason.
func (s *spare) runProcess(load []string) (taken bool, cause string) {
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
			// The process is about to exit, or violates the protocol. Its output may give the
			// reason, so it gets a moment.
			limit.Reset(shutdownTimeout)
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
		return true, "" // a slot took it just now
	}
	p.kill()
	<-p.exited
	p.close()
	p.page.Close()
	return false, p.describe(nil)
}

// pause waits for d. It returns false if the pools are closed before that.
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
