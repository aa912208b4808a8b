// Package flow is a Machine: it chooses the path on which objects of a peer are
// fetched, and learns from how that went. Paths are given best first. For each
// peer and path it keeps a circuit breaker (two failures shut it, one probe at a
// time opens it again), the measured rate and latency, and, in words, why a path
// is not taken. The last path is never shut: somebody must be tried, and it
// bounds its own waiting.
package flow

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config is fixed for the life of a machine. Zero values are the defaults that
// each field names.
type Config struct {
	// Paths by name, best first. At least one.
	Paths []string
	// Failures in a row that shut a path: 2.
	Failures int
	// ShutFor is how long it stays shut before a probe: 30 s. A path that leads
	// nowhere (another host, no library) is asked again after AskAgain: 60 s.
	ShutFor, AskAgain time.Duration
	// Grace is the time that any fetch may take, whatever its size: 5 s. It may
	// take twenty times as long as its bytes would at the measured rate on top, or at
	// SlowestRate while none is known: 5 MB/s. That is for paths that crawl: those
	// that stand still find out by themselves.
	Grace       time.Duration
	SlowestRate float64
}

// State is whether a path is taken.
type State uint8

// The states of a path to a peer.
const (
	// Untried: nothing is known of it.
	Untried State = iota
	// Open: it works.
	Open
	// Shut: it failed too often lately.
	Shut
	// NoWay: it does not lead there.
	NoWay
)

// String names the state for people.
func (s State) String() string {
	switch s {
	case Untried:
		return "untried"
	case Open:
		return "open"
	case Shut:
		return "shut"
	case NoWay:
		return "no way"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Lane is one path to one peer, as is known now.
type Lane struct {
	Peer, Path string
	State      State
	// Why the path is shut or no way, or failed last; empty if it never did.
	Why string
	// Rate in bytes a second and Latency of small objects, smoothed so that a fetch that was
	// held up says little; 0: not measured.
	Rate    float64
	Latency time.Duration
	// Fetches that succeeded and failed, and the bytes that came.
	Succeeded, Failed, Bytes uint64
	// Transport is what carries the bytes where the path has a choice. The machine
	// knows nothing of it: who owns the paths fills it in.
	Transport string
}

// Kind is how a fetch on a path ended.
type Kind uint8

// The kinds of ends.
const (
	// OK: it brought what it could; objects that are not there are no fault of it.
	OK Kind = iota
	// Failed: the peer was lost, silent, or talked nonsense.
	Failed
	// LeadsNowhere: this path does not lead to that peer.
	LeadsNowhere
	// GivenUp: whoever asked does not want it any more; it says nothing of the path.
	GivenUp
)

// End is the fact that a fetch has ended.
type End struct {
	Kind Kind
	// Message is why, unless OK.
	Message string
	// Bytes that came and the time that it took.
	Bytes uint64
	Took  time.Duration
}

type lane struct {
	Lane
	// inARow are failures since the last success.
	inARow int
	// until is when a path that is shut or no way may be probed.
	until time.Time
	// probing: one fetch is out to see whether it works again.
	probing bool
	// opened is when it was last found to work.
	opened time.Time
	// small is what a small object takes, large what a byte of a large one does.
	small, large figure
}

// figure is a time in nanoseconds as fetches tell it.
type figure struct {
	known float64 // 0: not measured
	// seen are the fetches that told it and waited for no connection, up to firsts.
	seen int
}

type peer struct {
	name  string
	lanes []lane // by path, in the order of Config.Paths
}

// Machine is not safe for concurrent use.
type Machine struct {
	config Config
	peers  []*peer // by name
}

// New returns a machine that knows no peer.
func New(c Config) *Machine {
	if len(c.Paths) == 0 {
		panic("flow: no paths")
	}
	if c.Failures <= 0 {
		c.Failures = 2
	}
	if c.ShutFor <= 0 {
		c.ShutFor = 30 * time.Second
	}
	if c.AskAgain <= 0 {
		c.AskAgain = time.Minute
	}
	if c.Grace <= 0 {
		c.Grace = 5 * time.Second
	}
	if c.SlowestRate <= 0 {
		c.SlowestRate = 5e6
	}
	return &Machine{config: c}
}

func (m *Machine) find(name string) (int, bool) {
	return slices.BinarySearchFunc(m.peers, name, func(p *peer, name string) int { return strings.Compare(p.name, name) })
}

func (m *Machine) peer(name string) *peer {
	i, ok := m.find(name)
	if !ok {
		p := &peer{name: name, lanes: make([]lane, len(m.config.Paths))}
		for at := range p.lanes {
			p.lanes[at].Lane = Lane{Peer: name, Path: m.config.Paths[at]}
		}
		m.peers = slices.Insert(m.peers, i, p)
	}
	return m.peers[i]
}

// Choose returns the best path to a peer that is not among those tried already in
// this fetch; false if there is none left. Every choice is followed by one Ended.
func (m *Machine) Choose(now time.Time, name string, tried []bool) (path int, ok bool) {
	p := m.peer(name)
	for i := range p.lanes {
		l := &p.lanes[i]
		if i < len(tried) && tried[i] {
			continue
		}
		switch l.State {
		case Untried, Open:
			return i, true
		case Shut, NoWay:
			if !l.probing && !now.Before(l.until) {
				l.probing = true
				return i, true
			}
		}
		if i == len(p.lanes)-1 {
			return i, true
		}
	}
	return 0, false
}

// State is that of a path to a peer.
func (m *Machine) State(name string, path int) State { return m.peer(name).lanes[path].State }

// Promising says whether a path to a peer works, or should be tried.
func (m *Machine) Promising(now time.Time, name string, path int) bool {
	l := &m.peer(name).lanes[path]
	return l.State == Untried || l.State == Open || !l.probing && !now.Before(l.until)
}

// Allowed is how long a fetch of so many bytes may take on a path, false for as
// long as it likes: there is nothing better to do than to wait for the last one.
func (m *Machine) Allowed(name string, path int, bytes uint64) (time.Duration, bool) {
	if path == len(m.config.Paths)-1 {
		return 0, false
	}
	rate := m.config.SlowestRate
	if l := &m.peer(name).lanes[path]; l.Rate > 0 {
		rate = min(max(rate, l.Rate/20), 1e12)
	}
	return m.config.Grace + time.Duration(float64(bytes)/rate*float64(time.Second)), true
}

const (
	// smallBytes is up to which size a fetch measures latency, largeBytes from
	// which size on it measures the rate.
	smallBytes = 128 << 10
	largeBytes = 1 << 20
	// gain of one measurement, and mostOff by how much one is believed to be longer than was known: one
	// that was held up makes it half as long again at most, and a handful tell what has changed for
	// good.
	gain    = 0.5
	mostOff = 2
	// firsts are the fetches of which the best counts.
	firsts = 3
)

// Ended is the fact that a fetch on a path has ended.
func (m *Machine) Ended(now time.Time, name string, path int, e End) {
	i, ok := m.find(name)
	if !ok {
		return // forgotten meanwhile
	}
	l := &m.peers[i].lanes[path]
	l.probing = false
	switch e.Kind {
	case GivenUp:
	case OK:
		if l.State != Open {
			l.opened = now
		}
		l.State, l.Why, l.inARow, l.until = Open, "", 0, time.Time{}
		l.Succeeded++
		l.Bytes += e.Bytes
		l.measure(now, e)
	case LeadsNowhere:
		l.State, l.Why, l.until = NoWay, e.Message, now.Add(m.config.AskAgain)
	case Failed:
		l.Failed++
		l.inARow++
		l.Why = e.Message
		if l.inARow >= m.config.Failures || l.State == Shut {
			l.State, l.until = Shut, now.Add(m.config.ShutFor)
		}
	}
}

func (l *lane) measure(now time.Time, e End) {
	// Who began before the path was open has waited until it was.
	waited := now.Add(-e.Took).Before(l.opened)
	switch {
	case e.Took <= 0:
	case e.Bytes <= smallBytes:
		l.small.learn(float64(e.Took), waited)
	case e.Bytes >= largeBytes:
		// Times and not rates are smoothed: they are what placement adds up.
		l.large.learn(float64(e.Took)/float64(e.Bytes), waited)
	}
	l.tell()
}

// learn takes a fetch in. A stall of some milliseconds tells nothing of the next fetch, and who believed it
// would send what is short elsewhere, so that no fetch would show that it is over.
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

// prove takes in what a proof measured, which is the best of several; fetches know better.
func (f *figure) prove(took float64) {
	if took <= 0 || f.seen == firsts {
		return
	}
	if f.known == 0 || took < f.known {
		f.known = took
	}
	f.seen = firsts
}

// tell shows what is known.
func (l *lane) tell() {
	l.Latency = time.Duration(l.small.known)
	if l.large.known > 0 {
		l.Rate = float64(time.Second) / l.large.known
	}
}

// Proved is the fact that a path was found to lead to a peer without a fetch, with what was
// measured then: 0 where it was not. It is no reason to take a path that failed. One that fetches have
// opened meanwhile was measured by such as waited for the same connection.
func (m *Machine) Proved(now time.Time, name string, path int, latency time.Duration, rate float64) {
	l := &m.peer(name).lanes[path]
	if l.State == Shut || l.State == NoWay {
		return
	}
	if l.State == Untried {
		l.State, l.opened = Open, now
	}
	l.small.prove(float64(latency))
	if rate > 0 {
		l.large.prove(float64(time.Second) / rate)
	}
	l.tell()
}

// Read is the fact that bytes were read in place by way of a path: there was no fetch.
func (m *Machine) Read(name string, path int, bytes uint64) {
	if i, ok := m.find(name); ok {
		m.peers[i].lanes[path].Bytes += bytes
	}
}

// Forget drops what is known of a peer that is gone.
func (m *Machine) Forget(name string) {
	if i, ok := m.find(name); ok {
		m.peers = slices.Delete(m.peers, i, i+1)
	}
}

// Lanes returns all peers' paths, by peer, best path first.
func (m *Machine) Lanes() []Lane {
	var out []Lane
	for _, p := range m.peers {
		for i := range p.lanes {
			out = append(out, p.lanes[i].Lane)
		}
	}
	return out
}

// Story says in words how a peer is reached and why not better.
func (m *Machine) Story(name string) string {
	i, ok := m.find(name)
	if !ok {
		return name + ": nothing was fetched from it"
	}
	var b strings.Builder
	for n := range m.peers[i].lanes {
		l := &m.peers[i].lanes[n]
		if n > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s %s", l.Path, l.State)
		if l.Why != "" {
			fmt.Fprintf(&b, " (%s)", l.Why)
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
		for n := range p.lanes {
			l := &p.lanes[n]
			if l.State == Open && l.probing {
				return fmt.Errorf("flow: %s to %s is open and probed", l.Path, p.name)
			}
			if (l.State == Shut || l.State == NoWay) && l.Why == "" {
				return fmt.Errorf("flow: %s to %s is %s and does not say why", l.Path, p.name, l.State)
			}
		}
	}
	return nil
}
