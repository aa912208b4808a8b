// Package members is a Machine: it decides which worker incarnations belong to the cluster. It
// gives them their numbers, knows the addresses that they know of each other, ends the membership
// of those that are silent, gone or replaced, and remembers how they ended.
//
// A connected incarnation has a session and must be heard from within each lease. Without a session
// it is disconnected, and has the grace to come back. After that it is lost: it never comes back
// under its number.
//
//	Registered ──> connected ──Disconnected──> disconnected
//	                  │  ^─────Registered──────────┘ │
//	                  └───lease, Left, Died, grace,──┘
//	                       another incarnation
//	                              v
//	                            lost
//
// All events of the scheduling machine that concern membership are effects of this one.
package members

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
	"github.com/millrace/millrace/server/sched"
)

// The defaults of Config, and of the loop that has the same settings.
const (
	// DefaultLease is the longest silence of a connected worker. Workers report every second
	// (lifecycle.Beat), so five reports in a row must be lost.
	DefaultLease = 5 * time.Second
	// DefaultGrace is the time that a disconnected worker has to come back. Workers dial again
	// after 50 ms to 1 s. The command line sets 5 s, for networks that take seconds to find another
	// way.
	DefaultGrace = 2 * time.Second
)

// Config sets up a machine.
type Config struct {
	// Life is the life of the scheduler, or of its cluster. Objects of another life are dropped.
	Life uint64
	// Lease is the longest silence of a connected worker; 0: 5 s. Grace is the time that a
	// disconnected one has to come back; 0: 2 s.
	Lease, Grace time.Duration
}

// Machine knows all members. It is not safe for concurrent use.
type Machine struct {
	config Config
	now    time.Time
	out    []Effect

	// all has the members in the order of their numbers. last is the last number that was given.
	all       []*worker
	last      ids.WorkerID
	byName    map[string]*worker
	bySession map[Session]*worker
	timers    timers

	deaths     deaths
	tombstones map[ids.WorkerID]*tombstone
}

// worker is one incarnation, which is a member until it is lost.
type worker struct {
	id ids.WorkerID
	// seen is its last registration, without the inventory and the attempts.
	seen Registered
	// session is 0 while it is disconnected, since disconnectedAt. heard is the time of the last
	// message that the machine was told of.
	session               Session
	heard, disconnectedAt time.Time
	// timer is the time of the only timer that counts.
	timer time.Time
	// maps are the peers whose memory it has mapped.
	maps []ids.WorkerID
	// knows are the workers whose addresses were sent in this session.
	knows           Set
	memoryUsedBytes uint64
	// grace is the time that it has to come back. 0: as configured.
	grace time.Duration
}

// New returns a machine without members.
func New(config Config) *Machine {
	config.Lease = cmp.Or(config.Lease, DefaultLease)
	config.Grace = cmp.Or(config.Grace, DefaultGrace)
	return &Machine{
		config: config, byName: map[string]*worker{}, bySession: map[Session]*worker{},
		deaths: newDeaths(), tombstones: map[ids.WorkerID]*tombstone{},
	}
}

// Step handles an event. The effects are appended to out and returned, so that the caller can reuse
// the slice. A refused Registered has no effects; Register also returns the error.
func (m *Machine) Step(now time.Time, event Event, out []Effect) []Effect {
	m.begin(now, out)
	switch event := event.(type) {
	case Registered:
		_, _ = m.registered(event)
	case Disconnected:
		m.disconnected(event)
	case Left:
		if w := m.bySession[event.Session]; w != nil {
			m.lose(w, loss{cause: "left the cluster", left: true})
		}
	case Measured:
		m.measured(event)
	case Died:
		m.died(event)
	case Ran:
		m.deaths.ran(event)
	case Unmapped:
		m.unmapped(event)
	case Restored:
		m.restored(event)
	case StoodStill:
		m.stoodStill()
	case TimePassed:
		m.timePassed(event)
	}
	return m.end()
}

// Register is Step for Registered, with its answer.
func (m *Machine) Register(now time.Time, event Registered, out []Effect) (Welcome, []Effect, *Error) {
	m.begin(now, out)
	welcome, err := m.registered(event)
	return welcome, m.end(), err
}

func (m *Machine) begin(now time.Time, out []Effect) { m.now, m.out = now, out }

func (m *Machine) end() []Effect {
	if invariant.Enabled {
		if err := m.Check(); err != nil {
			panic(err)
		}
	}
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) emit(effect Effect) { m.out = append(m.out, effect) }

func (m *Machine) schedule(event sched.Event) {
	m.emit(Effect{Kind: EffectSchedule, Event: event})
}

func (m *Machine) changed(w *worker) { m.emit(Effect{Kind: EffectChanged, Worker: w.id}) }

func (m *Machine) find(id ids.WorkerID) (int, bool) {
	return slices.BinarySearchFunc(m.all, id, func(w *worker, id ids.WorkerID) int { return cmp.Compare(w.id, id) })
}

// get returns a member, or nil.
func (m *Machine) get(id ids.WorkerID) *worker {
	if i, found := m.find(id); found {
		return m.all[i]
	}
	return nil
}

// Len returns the number of members.
func (m *Machine) Len() int { return len(m.all) }

// Named returns the member that has a name.
func (m *Machine) Named(name string) (ids.WorkerID, bool) {
	if w := m.byName[name]; w != nil {
		return w.id, true
	}
	return 0, false
}

// Deaths returns how the incarnations of a name have ended, newest first. The slice never changes.
func (m *Machine) Deaths(name string) []Death { return m.deaths.byName[name] }

// open closes the session that a worker may have, and gives it another one.
func (m *Machine) open(w *worker, session Session) {
	if w.session != 0 {
		m.emit(Effect{Kind: EffectEnded, Session: w.session})
		delete(m.bySession, w.session)
	}
	w.session, w.heard, w.knows, w.grace = session, m.now, Set{}, 0
	m.bySession[session] = w
}

func (m *Machine) disconnected(event Disconnected) {
	w := m.bySession[event.Session]
	if w == nil {
		return
	}
	delete(m.bySession, w.session)
	m.emit(Effect{Kind: EffectEnded, Worker: w.id, Session: w.session})
	w.session, w.disconnectedAt, w.knows = 0, m.now, Set{}
	m.schedule(sched.WorkerDisconnected{Worker: w.id})
	m.changed(w)
	m.watch(w)
}

// maxRate is the highest rate that placement uses. A borrowed object is not copied, so its measured
// rate has no bound.
const maxRate = 100e9

// measured gives the scheduling machine the rates at which a worker fetches from each peer. The
// rate of a peer is that of the first path in the report that has one.
func (m *Machine) measured(event Measured) {
	w := m.bySession[event.Session]
	if w == nil {
		return
	}
	w.memoryUsedBytes = event.MemoryUsedBytes
	if event.Paths == nil {
		return
	}
	w.maps = w.maps[:0]
	var last ids.WorkerID
	var rates sched.RatesMeasured
	for _, path := range event.Paths {
		if path.Maps {
			w.maps = append(w.maps, path.Peer)
		}
		if path.BytesPerSecond == 0 || path.Peer == last {
			continue
		}
		last = path.Peer
		rates = append(rates, sched.RateMeasured{From: path.Peer, To: w.id, BytesPerSecond: min(path.BytesPerSecond, maxRate), Latency: path.Latency})
	}
	if len(rates) > 0 {
		m.schedule(rates)
	}
}
