package loop

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// session is one worker's connection. The loop writes messages into building. At the end of each
// pass it moves them to ready, and the stream's goroutine takes all that has collected there.
type session struct {
	loop   *Loop
	number members.Session
	worker *worker
	wake   chan struct{}
	done   chan struct{}
	// lastSeen is the time of the last message, in nanoseconds since the loop's start by the
	// monotonic clock, because the wall clock can be set. The stream's goroutine writes it, so that
	// a busy loop does not make workers look silent.
	lastSeen atomic.Int64

	mu    sync.Mutex // guards ready
	ready schedapi.Outbound

	// The loop owns the remaining fields.
	building schedapi.Outbound
	dirty    bool
	ended    bool
	// ops and peers record the definitions sent to the worker in this session.
	ops   []sched.OpSpec // by number
	peers members.Set
}

var _ schedapi.Session = (*session)(nil)

func newSession(l *Loop, number members.Session) *session {
	s := &session{
		loop: l, number: number,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	s.saw(l.now)
	return s
}

// saw records that the worker is alive; seen returns the last time that was recorded.
func (s *session) saw(now time.Time) { s.lastSeen.Store(int64(now.Sub(s.loop.start))) }
func (s *session) seen() time.Time   { return s.loop.start.Add(time.Duration(s.lastSeen.Load())) }

// Worker returns the number of the worker's incarnation, which never changes.
func (s *session) Worker() ids.WorkerID  { return s.worker.id }
func (s *session) Wake() <-chan struct{} { return s.wake }
func (s *session) Done() <-chan struct{} { return s.done }

func (s *session) Take(into *schedapi.Outbound) bool {
	into.Reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready.Empty() {
		return false
	}
	*into, s.ready = s.ready, *into
	return true
}

func (s *session) Report(ctx context.Context, message schedapi.Inbound) error {
	s.saw(s.loop.config.Clock())
	return s.handle(ctx, message)
}

func (s *session) Undeliverable(task ids.TaskID, attempt ids.Attempt, reason string) {
	// The failure may have ended the stream, and its context with it.
	_ = s.loop.post(context.Background(), func() {
		l := s.loop
		l.log.Warn("an attempt cannot be sent", "task", task, "attempt", attempt, "worker", s.worker.name, "reason", reason)
		l.happened(schedapi.EventTooLarge, schedapi.SeverityWarning, s.worker.name, "task %d cannot be sent to worker %q: %s", uint64(task), s.worker.name, reason)
		l.step(sched.TasksReported{Worker: s.worker.id, Reports: []sched.Report{{
			Task: task, Attempt: attempt, Outcome: sched.OutcomeFailed, Err: &sched.TaskError{Reason: "TOO_LARGE", Message: reason},
		}}})
	})
}

func (s *session) Disconnect() {
	// The stream has ended: its context is cancelled.
	_ = s.loop.post(context.Background(), func() { s.loop.disconnected(s) })
}

// flush hands the messages in building to the stream.
func (s *session) flush() {
	s.mu.Lock()
	if s.ready.Empty() {
		s.ready, s.building = s.building, s.ready
	} else {
		s.ready.Append(&s.building)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// end flushes the session and closes it.
func (s *session) end() {
	if s.ended {
		return
	}
	s.ended = true
	s.flush()
	close(s.done)
}

// sessionOf returns a worker's open session and marks it for the next flush; nil if there is none.
func (l *Loop) sessionOf(id ids.WorkerID) *session {
	w := l.workers.get(id)
	if w == nil || w.session == nil {
		return nil
	}
	return l.touchSession(w.session)
}

func (l *Loop) touchSession(s *session) *session {
	if !s.dirty {
		s.dirty = true
		l.workers.dirtySessions = append(l.workers.dirtySessions, s)
	}
	return s
}

func (l *Loop) flushSessions() {
	for _, s := range l.workers.dirtySessions {
		s.dirty = false
		if !s.ended {
			s.flush()
		}
	}
	l.workers.dirtySessions = l.workers.dirtySessions[:0]
}

// assign builds the message of one assignment, and before it the op, function and peer definitions
// that the worker does not have yet. It sends nothing if the attempt was taken back in the same
// step: the task may be assigned to another worker by now.
func (l *Loop) assign(effect *sched.Effect) {
	s := l.sessionOf(effect.Worker)
	if s == nil || !l.machine.AssignmentOf(effect.Task, &l.assignment) || l.assignment.Attempt != effect.Attempt {
		return
	}
	a := &l.assignment
	// The machine reuses the number of an op that no task refers to any more.
	if op := l.machine.Op(a.Op); int(a.Op) >= len(s.ops) || s.ops[a.Op] != op {
		for int(a.Op) >= len(s.ops) {
			s.ops = append(s.ops, sched.OpSpec{})
		}
		s.ops[a.Op] = op
		s.building.Ops = append(s.building.Ops, schedapi.OpDefinition{ID: a.Op, Op: op})
		if op.Kind == sched.OpPythonPickle {
			l.sendFunction(s, op.Function, false)
		}
	}
	for i := range a.Inputs {
		for _, holder := range a.Inputs[i].Holders {
			l.sendPeer(s, holder)
		}
		if upstream := a.Inputs[i].Upstream; upstream != 0 {
			l.sendPeer(s, upstream)
		}
	}
	s.building.Assign(a)
	l.dirty.counters(s.worker)
}

// sendPeer sends a worker the address of a peer, once per session.
func (l *Loop) sendPeer(s *session, to ids.WorkerID) {
	if s.peers.Has(uint64(to)) {
		return
	}
	s.peers.Add(uint64(to))
	if peer, isNew := l.workers.machine.Introduce(s.number, to); isNew {
		s.building.Peers = append(s.building.Peers, peer)
	}
}

// sendFunction sends a function, once unless the worker reports that it lacks it.
func (l *Loop) sendFunction(s *session, hash ids.FunctionHash, again bool) {
	f, send, known := l.functions.Send(s.worker.id, hash, again)
	if send {
		l.touchSession(s).building.Functions = append(s.building.Functions, f)
	} else if !known {
		// The attempt that needed it has ended in the meantime, and its task was the last one.
		l.log.Debug("a worker asks for a function that no task refers to", "function", hash, "worker", s.worker.name)
	}
}

// dropFunction forgets a function that no task refers to, and orders the workers that have it to
// forget it.
func (l *Loop) dropFunction(hash ids.FunctionHash) {
	if _, known := l.functions.Get(hash); known {
		l.note(&journal.FunctionDeleted{Hash: hash})
	}
	for _, id := range l.functions.Drop(hash) {
		s := l.sessionOf(id)
		if s == nil {
			continue
		}
		for i := range s.ops {
			if s.ops[i].Function == hash {
				// The function is sent again with the next definition of its op.
				s.ops[i] = sched.OpSpec{}
			}
		}
		s.building.Drop(hash)
	}
}

// received handles one message of a worker: it gives its contents to the machine.
func (l *Loop) received(s *session, message schedapi.Inbound) {
	w := s.worker
	if s.ended {
		return // It is a late message of an ended session.
	}
	if message.Draining { // before the reports, which make room for new tasks
		l.log.Info("a worker is to leave", "worker", w.name, "id", w.id)
		l.step(sched.WorkerDraining{Worker: w.id})
		l.workerChanged(w)
	}
	if len(message.Reports) > 0 {
		l.step(sched.TasksReported{Worker: w.id, Reports: message.Reports})
	}
	if gained := l.recordWritten(s, message.Gained); len(gained)+len(message.Lost) > 0 {
		for _, lost := range message.Lost {
			l.loseWritten(s, lost)
		}
		l.step(sched.ObjectsReported{Worker: w.id, Gained: gained, Lost: message.Lost})
	}
	for _, report := range message.Rescues {
		l.rescueReported(s, report)
	}
	for _, hash := range message.MissingFunctions {
		l.sendFunction(s, hash, true)
	}
	if message.Stats != nil {
		before := w.stats
		w.stats = *message.Stats
		if w.stats.Routes == nil {
			w.stats.Routes = before.Routes
		}
		l.compareStats(w, &before)
		l.member(members.Measured{Session: s.number, MemoryUsedBytes: message.Stats.MemoryUsedBytes, Paths: openPaths(message.Stats.Routes)})
		l.step(sched.WorkerMeasured{Worker: w.id, MemoryUsedBytes: message.Stats.MemoryUsedBytes, MemoryEvictableBytes: message.Stats.MemoryEvictableBytes})
		if message.Stats.MemoryPressure {
			if s := l.sessionOf(w.id); s != nil {
				s.building.NextUses = l.machine.NextUses(w.id, s.building.NextUses[:0])
			}
		}
	}
	l.dirty.counters(w)
	if message.Leaving {
		l.member(members.Left{Session: s.number})
	}
}

// openPaths lists the open paths of a report; nil for a report without routes.
func openPaths(routes []schedapi.Route) []members.Path {
	if routes == nil {
		return nil
	}
	paths := make([]members.Path, 0, len(routes))
	for i := range routes {
		// NB: the path pinned maps only the tier below a slab, from which nothing is rescued.
		if r := &routes[i]; r.State == schedapi.RouteOpen {
			maps := r.Path == schedapi.PathBorrow || r.Path == schedapi.PathIPC
			paths = append(paths, members.Path{Peer: r.Peer, Maps: maps, BytesPerSecond: r.BytesPerSecond, Latency: r.Latency})
		}
	}
	return paths
}
