package loop

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// lostKept bounds the catalogue rows of lost workers.
	lostKept = 256
	// runningKeysKept bounds the task keys that a death lists.
	runningKeysKept = 16
)

// worker is what the loop knows of a member, kept until it is lost.
type worker struct {
	id           ids.WorkerID
	name         string
	incarnation  string
	registration schedapi.Registration
	registeredAt time.Time
	// lastSeen is the time of the last message of the session before.
	lastSeen time.Time
	stats    schedapi.WorkerStats
	// session is nil while the worker is disconnected.
	session *session
	// queued and stale say that the row waits for a commit (see the type dirty).
	queued, stale bool
}

// workers holds the workers that are not lost.
type workers struct {
	// machine decides who they are.
	machine *members.Machine
	effects []members.Effect
	due     []members.Session
	// all is in the order of the workers' numbers.
	all  []*worker
	lost []ids.WorkerID
	// sessions are those that are open. last is the last number that was given to one.
	sessions      map[members.Session]*session
	last          members.Session
	dirtySessions []*session
}

func newWorkers(config members.Config) workers {
	return workers{machine: members.New(config), sessions: map[members.Session]*session{}}
}

func (ws *workers) find(id ids.WorkerID) (int, bool) {
	return slices.BinarySearchFunc(ws.all, id, func(w *worker, id ids.WorkerID) int { return cmp.Compare(w.id, id) })
}

// get returns a worker that is not lost, or nil.
func (ws *workers) get(id ids.WorkerID) *worker {
	if i, found := ws.find(id); found {
		return ws.all[i]
	}
	return nil
}

func (ws *workers) remove(w *worker) {
	if i, found := ws.find(w.id); found {
		ws.all = slices.Delete(ws.all, i, i+1)
	}
}

// knows reports whether an incarnation has a number.
func (ws *workers) knows(r *sched.WorkerRegistered) bool {
	return slices.ContainsFunc(ws.all, func(w *worker) bool { return w.incarnation == r.Incarnation && w.name == r.Name })
}

// connected returns the open sessions, in the order of their workers' numbers.
func (ws *workers) connected() []*session {
	var open []*session
	for _, w := range ws.all {
		if w.session != nil {
			open = append(open, w.session)
		}
	}
	return open
}

// Register opens the session of a worker incarnation, new or reconnected.
func (l *Loop) Register(ctx context.Context, r schedapi.Registration) (schedapi.Session, error) {
	var s *session
	var refused error
	err := l.call(ctx, func() {
		if refused = l.refuseIfDraining(); refused == nil && !l.workers.knows(&r.Worker) {
			refused = l.refuseNew() // Its number needs a record.
		}
		if refused == nil {
			s, refused = l.register(r)
		}
		if refused == nil {
			// Readers of LastSnapshot must find the address of each worker that holds an object.
			l.commit()
		}
	})
	if err = cmp.Or(err, refused); err != nil {
		return nil, err
	}
	return s, nil
}

func (l *Loop) register(r schedapi.Registration) (*session, error) {
	ws := &l.workers
	ws.last++
	s := newSession(l, ws.last)
	ws.sessions[s.number] = s
	welcome, effects, refused := ws.machine.Register(l.now, members.Registered{
		Session: s.number, Worker: r.Worker, Life: r.Life, PID: r.PID, DataAddress: r.DataAddress, Device: r.Device,
	}, ws.effects[:0])
	if refused != nil {
		delete(ws.sessions, s.number)
		return nil, refused
	}
	name, objects, running := r.Worker.Name, len(r.Worker.Inventory), len(r.Worker.Running)
	w := ws.get(welcome.Worker)
	if w == nil {
		w = &worker{id: welcome.Worker, name: name, incarnation: r.Worker.Incarnation, registeredAt: l.now}
		ws.all = append(ws.all, w)
		l.restarting.lastWorker = max(l.restarting.lastWorker, w.id)
		l.record(&journal.WorkerNumbered{Worker: w.id, Name: name, Incarnation: r.Worker.Incarnation})
		l.log.Info("a worker registered", "worker", name, "id", w.id, "host", r.Worker.Host, "slots", r.Worker.Slots, "address", r.DataAddress)
		l.happened(schedapi.EventRegistered, schedapi.SeverityInfo, name, "worker %q registered from %s with %s", name, cmp.Or(r.Worker.Host, "an unnamed host"), counted(r.Worker.Slots, "slot", "slots"))
	} else {
		l.log.Info("a worker came back", "worker", name, "id", w.id)
		l.happened(schedapi.EventReturned, schedapi.SeverityInfo, name, "worker %q came back", name)
	}
	if welcome.Foreign {
		l.log.Warn("a worker comes from another life of the scheduler: its objects and running tasks are given up", "worker", name, "id", w.id,
			"objects", objects, "running", running)
	}
	r.Worker.Inventory, r.Worker.Written, r.Worker.Running = nil, nil, nil // The machine has them now, and they are long.
	w.registration, w.lastSeen = r, l.now
	w.session, s.worker = s, w
	for _, hash := range l.functions.Opened(w.id, r.Functions) {
		l.touchSession(s).building.Drop(hash)
	}
	l.learnOps(r.NativeOps)
	l.joined(effects)
	l.workerReturned(w.id)
	return s, nil
}

// member gives the machine of members an event and carries out the effects.
func (l *Loop) member(event members.Event) {
	l.joined(l.workers.machine.Step(l.now, event, l.workers.effects[:0]))
}

// joined carries out the effects of the machine of members, in order.
func (l *Loop) joined(effects []members.Effect) {
	for i := range effects {
		effect := &effects[i]
		switch effect.Kind {
		case members.EffectSchedule:
			l.step(effect.Event)
		case members.EffectEnded:
			l.endSession(effect)
		case members.EffectPeer:
			if s := l.workers.sessions[effect.Session]; s != nil {
				s.peers.Add(uint64(effect.Peer.Worker))
				l.touchSession(s).building.Peers = append(s.building.Peers, effect.Peer)
			}
		case members.EffectDrop:
			if s := l.workers.sessions[effect.Session]; s != nil {
				out := &l.touchSession(s).building
				out.Releases, out.Cancellations = append(out.Releases, effect.Objects...), append(out.Cancellations, effect.Attempts...)
			}
		case members.EffectLost:
			l.lose(effect)
		case members.EffectChanged:
			if w := l.workers.get(effect.Worker); w != nil {
				l.workerChanged(w)
			}
		case members.EffectUnmapped:
			l.log.Info("the memory of a dead worker is unmapped everywhere", "dead", effect.Peer.Name, "id", effect.Peer.Worker, "after", effect.Time)
		}
	}
	clear(effects) // They refer to inventories.
	l.workers.effects = effects[:0]
}

// endSession ends a session, with its last orders.
func (l *Loop) endSession(effect *members.Effect) {
	s := l.workers.sessions[effect.Session]
	if s == nil {
		return
	}
	delete(l.workers.sessions, s.number)
	if w := s.worker; w.session == s {
		w.session, w.lastSeen = nil, s.seen()
	}
	if effect.Stop != "" {
		s.building.StopReason = effect.Stop
	}
	s.building.Reregister = effect.Reregister
	s.end()
}

// checkMembers ends leases and graces that are over.
func (l *Loop) checkMembers() {
	l.workers.due = l.workers.machine.Due(l.now, l.workers.due[:0])
	heard := make([]members.Heard, len(l.workers.due))
	for i, number := range l.workers.due {
		s := l.workers.sessions[number]
		heard[i] = members.Heard{Session: number, At: s.seen()}
		if s.ended {
			heard[i].At = l.now // The drain of the scheduler has ended it, and no worker is lost by that.
		}
	}
	l.member(members.TimePassed{Heard: heard})
}

// workerChanged puts a worker whose state changed into the next commit. Readers wait for it.
func (l *Loop) workerChanged(w *worker) {
	l.acknowledge()
	l.dirty.worker(w, l.now)
}

// disconnected keeps a worker whose connection broke for the grace period.
func (l *Loop) disconnected(s *session) {
	if s.ended {
		return
	}
	l.log.Warn("the connection of a worker broke", "worker", s.worker.name, "id", s.worker.id, "grace", l.config.ReconnectGrace)
	l.happened(schedapi.EventDisconnected, schedapi.SeverityWarning, s.worker.name, "the connection of worker %q broke; it has %v to come back", s.worker.name, l.config.ReconnectGrace)
	l.member(members.Disconnected{Session: s.number})
}

// renewLeases renews all leases after a standstill: the loop did not run for so long (its process
// or machine was stopped, or it got no processor) that messages of workers and clients may still be
// unread. Their silence is no evidence of a failure.
func (l *Loop) renewLeases(gap time.Duration) {
	l.log.Warn("the scheduler has stood still: all leases begin anew", "for", gap)
	l.happened(schedapi.EventStandstill, schedapi.SeverityWarning, "", "the scheduler has stood still for %v, and all leases begin anew", gap.Round(time.Millisecond))
	l.member(members.StoodStill{})
	for _, id := range slices.Sorted(maps.Keys(l.clients.byID)) {
		l.step(sched.ClientRenewed{Client: id})
	}
}

// ReportDeath records how an incarnation ended and declares its worker lost at once.
func (l *Loop) ReportDeath(ctx context.Context, died members.Died) error {
	return l.call(ctx, func() { l.member(died) })
}

// lose removes a worker that is lost. Its session ends by a later effect.
func (l *Loop) lose(effect *members.Effect) {
	w := l.workers.get(effect.Worker)
	if effect.Left {
		l.log.Info("a worker left", "worker", w.name, "id", w.id)
		l.happened(schedapi.EventLeft, schedapi.SeverityInfo, w.name, "worker %q left", w.name)
	} else {
		l.log.Warn("a worker is lost", "worker", w.name, "id", w.id, "cause", effect.Cause)
		cause := deathLost
		if known := l.workers.machine.Deaths(w.name); len(known) > 0 && known[0].Incarnation == w.incarnation {
			cause = causeOf(&known[0])
		}
		l.deaths[cause].Add(1)
		l.happened(schedapi.EventLost, schedapi.SeverityError, w.name, "worker %q is lost: %s", w.name, effect.Cause)
	}
	if effect.Died {
		// The event has no effects, and the effects of the step before are still in use.
		_ = l.workers.machine.Step(l.now, members.Ran{Name: w.name, Incarnation: w.incarnation, Keys: l.machine.KeysAt(w.id, runningKeysKept)}, nil)
	}
	l.acknowledge() // The end of its session tells the worker, and tasks that fail tell their clients.
	last := l.workerRow(w)
	l.workers.remove(w)
	l.functions.Gone(w.id)
	l.note(&journal.WorkerGone{Worker: w.id})
	last.State, last.AssignedTasks, last.Objects = schedapi.WorkerLost, 0, 0
	l.dirty.lost = append(l.dirty.lost, last)
	l.dirty.soon(l.now)
	l.workers.lost = append(l.workers.lost, w.id)
	l.workerReturned(w.id)
}

// learnOps adds names to the known native ops.
func (l *Loop) learnOps(names []string) {
	known := map[string]struct{}{}
	for _, name := range l.NativeOps() {
		known[name] = struct{}{}
	}
	before := len(known)
	for _, name := range names {
		known[name] = struct{}{}
	}
	if len(known) > before {
		ops := slices.Sorted(maps.Keys(known))
		l.nativeOps.Store(&ops)
	}
}
