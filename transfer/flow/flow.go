// Package flow is a Machine: for each peer it chooses the path on which objects are fetched, and
// learns from the results. Paths are given best first. For each peer and path it keeps a circuit
// breaker (two failures shut it, one probe at a time opens it again), the measured rate and
// latency, and a readable reason why a path is not used. The last path is chosen in any state: some
// path must be tried, and the last one bounds its own waiting.
package flow

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config is fixed for the life of a machine. A zero value means the default that each field names.
type Config struct {
	// Paths are the names, best first. At least one.
	Paths []string
	// Failures is the number of consecutive failures that shut a path: 2.
	Failures int
	// Grace is the time that any fetch may take, whatever its size: 5 s. Added to it is the time
	// for its bytes at a twentieth of the measured rate, or at slowestRate, if that is faster or no
	// rate is known. This limit catches slow paths; a path detects by itself that it
	// has stalled.
	Grace time.Duration
}

const (
	// shutFor is how long a path stays shut before a probe. A path that cannot reach the peer
	// (another host, no library) is probed again after askAgain.
	shutFor  = 30 * time.Second
	askAgain = time.Minute
	// slowestRate is in bytes per second; see Config.Grace.
	slowestRate = 5e6
)

// State says whether a path is used.
type State uint8

// The states of a path to a peer.
const (
	// Untried: nothing is known about it.
	Untried State = iota
	// Open: it works.
	Open
	// Shut: it failed too often recently.
	Shut
	// Unreachable: it cannot reach the peer.
	Unreachable
)

// String returns the readable name of the state.
func (s State) String() string {
	switch s {
	case Untried:
		return "untried"
	case Open:
		return "open"
	case Shut:
		return "shut"
	case Unreachable:
		return "unreachable"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Route is the current knowledge about the path to a peer.
type Route struct {
	Peer, Path string
	State      State
	// Why is the reason why the path is Shut or Unreachable, or the error of the last failure.
	// Empty after a success.
	Why string
	// Rate in bytes per second, and Latency of small objects. Both are smoothed so that a single
	// delayed fetch has little weight. 0: not measured.
	Rate    float64
	Latency time.Duration
	// The numbers of successful and failed fetches, and the bytes that arrived.
	Succeeded, Failed, Bytes uint64
	// Transport names the mechanism that carries the bytes, Staged the ends at which they go
	// through host memory, ConnectionWhy the reason why the connection is not a better one, and
	// ConnectRate is the rate that was timed when the peer was connected: see transfer.Lane. The
	// machine does not know them; the owner of the paths sets them.
	Transport, Staged, ConnectionWhy string
	ConnectRate                      float64
}

// Kind is the way in which a fetch on a path ended.
type Kind uint8

// The kinds of ends.
const (
	// OK: it delivered all objects that exist. A missing object is no failure of the path.
	OK Kind = iota
	// Failed: the peer was lost, did not answer, or violated the protocol.
	Failed
	// CannotReach: this path cannot reach the peer.
	CannotReach
	// GivenUp: the end says nothing about the path. The caller cancelled the fetch, for example, or
	// the path refused only these objects.
	GivenUp
)

// End is the result of a fetch.
type End struct {
	Kind Kind
	// Message is the reason, unless Kind is OK.
	Message string
	// Bytes is the number of bytes that arrived, Took the duration of the fetch.
	Bytes uint64
	Took  time.Duration
}

type route struct {
	Route
	// failures counts the failures since the last success.
	failures int
	// until is when a path that is Shut or Unreachable may be probed.
	until time.Time
	// probing: one fetch is testing whether the path works again.
	probing bool
	// opened is when the path last became Open.
	opened time.Time
	// small is the time of a small fetch. large is the time per byte of a large one.
	small, large figure
}

// figure is a measured time in nanoseconds.
type figure struct {
	known float64 // 0: not measured
	// seen counts the measuring fetches that did not wait for a connection, up to firsts. A proof
	// sets it to firsts.
	seen int
}

type peer struct {
	// name is any key of the peer; package route uses its address.
	name   string
	routes []route // by path, in the order of Config.Paths
}

// Machine is not safe for concurrent use.
type Machine struct {
	config Config
	peers  []*peer // sorted by name
}

// New returns a machine that knows no peer.
func New(c Config) *Machine {
	if len(c.Paths) == 0 {
		panic("flow: no paths")
	}
	if c.Failures <= 0 {
		c.Failures = 2
	}
	if c.Grace <= 0 {
		c.Grace = 5 * time.Second
	}
	return &Machine{config: c}
}

func (m *Machine) find(name string) (int, bool) {
	return slices.BinarySearchFunc(m.peers, name, func(p *peer, name string) int { return strings.Compare(p.name, name) })
}

func (m *Machine) peer(name string) *peer {
	i, ok := m.find(name)
	if !ok {
		p := &peer{name: name, routes: make([]route, len(m.config.Paths))}
		for at := range p.routes {
			p.routes[at].Route = Route{Peer: name, Path: m.config.Paths[at]}
		}
		m.peers = slices.Insert(m.peers, i, p)
	}
	return m.peers[i]
}

// Choose returns the best path to a peer among those not yet tried in this fetch; false if there is
// none left. The caller must call Ended once for each choice.
func (m *Machine) Choose(now time.Time, name string, tried []bool) (path int, ok bool) {
	p := m.peer(name)
	for i := range p.routes {
		r := &p.routes[i]
		if i < len(tried) && tried[i] {
			continue
		}
		switch r.State {
		case Untried, Open:
			return i, true
		case Shut, Unreachable:
			if !r.probing && !now.Before(r.until) {
				r.probing = true
				return i, true
			}
		}
		if i == len(p.routes)-1 {
			return i, true
		}
	}
	return 0, false
}

// State returns the state of a path to a peer.
func (m *Machine) State(name string, path int) State { return m.peer(name).routes[path].State }

// Promising reports whether a path to a peer works, or should be tried.
func (m *Machine) Promising(now time.Time, name string, path int) bool {
	r := &m.peer(name).routes[path]
	return r.State == Untried || r.State == Open || !r.probing && !now.Before(r.until)
}

// Allowed returns how long a fetch of the given size may take on a path. false means without limit,
// on the last path: no alternative is left.
func (m *Machine) Allowed(name string, path int, bytes uint64) (time.Duration, bool) {
	if path == len(m.config.Paths)-1 {
		return 0, false
	}
	rate := slowestRate
	if r := &m.peer(name).routes[path]; r.Rate > 0 {
		rate = min(max(rate, r.Rate/20), 1e12)
	}
	return m.config.Grace + time.Duration(float64(bytes)/rate*float64(time.Second)), true
}

const (
	// Fetches of up to smallBytes measure the latency, fetches of at least largeBytes measure the
	// rate.
	smallBytes = 128 << 10
	largeBytes = 1 << 20
	// gain is the weight of one measurement. mostOff is the largest factor by which one may exceed
	// the known time; more is cut off. So one delayed fetch raises the time by at most half, and a
	// few fetches suffice to follow a lasting change.
	gain    = 0.5
	mostOff = 2
	// Of the first `firsts` fetches the best one counts.
	firsts = 3
)

// Ended processes the end of a fetch on a path.
func (m *Machine) Ended(now time.Time, name string, path int, e End) {
	i, ok := m.find(name)
	if !ok {
		return // the peer was forgotten in the meantime
	}
	r := &m.peers[i].routes[path]
	r.probing = false
	switch e.Kind {
	case GivenUp:
	case OK:
		if r.State != Open {
			r.opened = now
		}
		r.State, r.Why, r.failures, r.until = Open, "", 0, time.Time{}
		r.Succeeded++
		r.Bytes += e.Bytes
		r.measure(now, e)
	case CannotReach:
		r.State, r.Why, r.until = Unreachable, e.Message, now.Add(askAgain)
	case Failed:
		r.Failed++
		r.failures++
		r.Why = e.Message
		if r.failures >= m.config.Failures || r.State == Shut {
			r.State, r.until = Shut, now.Add(shutFor)
		}
	}
}

func (r *route) measure(now time.Time, e End) {
	// A fetch that began before the path was open includes the time for connecting.
	waited := now.Add(-e.Took).Before(r.opened)
	switch {
	case e.Took <= 0:
	case e.Bytes <= smallBytes:
		r.small.learn(float64(e.Took), waited)
	case e.Bytes >= largeBytes:
		// Smooth times, not rates: placement adds up times.
		r.large.learn(float64(e.Took)/float64(e.Bytes), waited)
	}
	r.publish()
}

// learn updates the figure with a fetch. A stall of some milliseconds says nothing about the next
// fetch. If it were believed, short fetches would go elsewhere, and none would show that the stall
// is over.
func (f *figure) learn(took float64, waited bool) {
	switch {
	case f.known == 0:
		f.known = took // better than nothing
	case waited || f.seen < firsts:
		f.known = min(f.known, took)
	default:
		f.known += gain * (min(took, mostOff*f.known) - f.known)
	}
	if !waited {
		f.seen = min(f.seen+1, firsts)
	}
}

// prove updates the figure with the measurement of a proof, the best of several. Once enough
// fetches were measured, a proof is ignored.
func (f *figure) prove(took float64) {
	if took <= 0 || f.seen == firsts {
		return
	}
	if f.known == 0 || took < f.known {
		f.known = took
	}
	f.seen = firsts
}

// publish publishes the figures in Route.
func (r *route) publish() {
	r.Latency = time.Duration(r.small.known)
	if r.large.known > 0 {
		r.Rate = float64(time.Second) / r.large.known
	}
}

// Proved processes that a path was found to reach a peer without a fetch, with the measurements of
// that proof; 0 means not measured. It does not reopen a path that failed. If fetches opened the
// path before, they may have waited for the same connection, so the proof's figures still count.
func (m *Machine) Proved(now time.Time, name string, path int, latency time.Duration, rate float64) {
	r := &m.peer(name).routes[path]
	if r.State == Shut || r.State == Unreachable {
		return
	}
	if r.State == Untried {
		r.State, r.opened = Open, now
	}
	r.small.prove(float64(latency))
	if rate > 0 {
		r.large.prove(float64(time.Second) / rate)
	}
	r.publish()
}

// Read counts bytes that were read in place over a path, without a fetch.
func (m *Machine) Read(name string, path int, bytes uint64) {
	if i, ok := m.find(name); ok {
		m.peers[i].routes[path].Bytes += bytes
	}
}

// Forget drops everything about a peer that is gone.
func (m *Machine) Forget(name string) {
	if i, ok := m.find(name); ok {
		m.peers = slices.Delete(m.peers, i, i+1)
	}
}

// Routes returns the paths of all peers, sorted by peer, best path first.
func (m *Machine) Routes() []Route {
	var out []Route
	for _, p := range m.peers {
		for i := range p.routes {
			out = append(out, p.routes[i].Route)
		}
	}
	return out
}

// Describe describes in one line how a peer is reached, and why not by a better path.
func (m *Machine) Describe(name string) string {
	i, ok := m.find(name)
	if !ok {
		return name + ": nothing was fetched from it"
	}
	var b strings.Builder
	for n := range m.peers[i].routes {
		r := &m.peers[i].routes[n]
		if n > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s %s", r.Path, r.State)
		if r.Why != "" {
			fmt.Fprintf(&b, " (%s)", r.Why)
		}
	}
	return b.String()
}

// Check returns the first broken invariant.
func (m *Machine) Check() error {
	for i, p := range m.peers {
		if i > 0 && m.peers[i-1].name >= p.name {
			return fmt.Errorf("flow: peers %q and %q are out of order", m.peers[i-1].name, p.name)
		}
		for n := range p.routes {
			r := &p.routes[n]
			if r.State == Open && r.probing {
				return fmt.Errorf("flow: %s to %s is open and probed", r.Path, p.name)
			}
			if (r.State == Shut || r.State == Unreachable) && r.Why == "" {
				return fmt.Errorf("flow: %s to %s is %s and does not say why", r.Path, p.name, r.State)
			}
		}
	}
	return nil
}
