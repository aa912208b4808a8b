package loop

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// session is one worker's connection. The loop writes messages into building. At the end of each
// pass it moves them to ready, and the stream's goroutine takes all that has collected there.
type session struct {
	loop   *Loop
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
	// ops, peers and functions record the definitions sent to the worker in this session.
	ops       []sched.OpSpec // by number
	peers     bitset
	functions map[ids.FunctionHash]struct{}
}

var _ schedapi.Session = (*session)(nil)

func newSession(l *Loop, w *worker) *session {
	s := &session{
		loop: l, worker: w,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
		functions: map[ids.FunctionHash]struct{}{},
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
	s.saw(time.Now())
	return s.handle(ctx, message)
}

func (s *session) Undeliverable(task ids.TaskID, attempt ids.Attempt, reason string) {
	// The failure may have ended the stream, and its context with it.
	_ = s.loop.post(context.Background(), func() {
		l := s.loop
		l.log.Warn("an attempt cannot be sent", "task", task, "attempt", attempt, "worker", s.worker.name, "reason", reason)
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
// that the worker does not have yet.
func (l *Loop) assign(effect *sched.Effect) {
	s := l.sessionOf(effect.Worker)
	if s == nil || !l.machine.AssignmentOf(effect.Task, &l.assignment) {
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
	if s.peers.has(uint64(to)) {
		return
	}
	s.peers.set(uint64(to))
	if peer := l.workers.get(to); peer != nil {
		s.building.Peers = append(s.building.Peers, peer.peerOf(s.worker))
	}
}

// sendHostPeers sends a newly registered worker the addresses of the workers that share its host,
// and its own address to them.
func (l *Loop) sendHostPeers(w *worker) {
	for _, s := range l.workers.sessions() {
		if s.worker.sharesHost(w) {
			l.sendPeer(l.touchSession(s), w.id)
			l.sendPeer(l.touchSession(w.session), s.worker.id)
		}
	}
}

// sendFunction sends a function, once per session unless the worker reports that it lacks it.
func (l *Loop) sendFunction(s *session, hash ids.FunctionHash, again bool) {
	if _, sent := s.functions[hash]; sent && !again {
		return
	}
	f, known := l.functions[hash]
	if !known {
		// The attempt that needed it has ended in the meantime, and its task was the last one.
		l.log.Debug("a worker asks for a function that no task refers to", "function", hash, "worker", s.worker.name)
		return
	}
	s.functions[hash] = struct{}{}
	if !slices.Contains(f.at, s.worker) {
		f.at = append(f.at, s.worker)
	}
	l.touchSession(s)
	s.building.Functions = append(s.building.Functions, f.Function)
}

// function is a pickled function that tasks refer to.
type function struct {
	schedapi.Function
	// at lists the workers that have received the function, also lost ones.
	at []*worker
}

// dropsKept bounds the dropped functions per worker that are remembered, to be sent again after a
// reconnection.
const dropsKept = 4096

// dropFunction forgets a function that no task refers to, and orders the workers that have it to
// forget it. A broken connection may lose the order, so it is sent again when a worker reconnects.
func (l *Loop) dropFunction(hash ids.FunctionHash) {
	f := l.functions[hash]
	if f == nil {
		return
	}
	l.forgetFunction(hash)
	for _, w := range f.at {
		if l.workers.get(w.id) != w {
			continue
		}
		if s := w.session; s != nil {
			delete(s.functions, hash)
			for i := range s.ops {
				if s.ops[i].Function == hash {
					// The function is sent again with the next definition of its op.
					s.ops[i] = sched.OpSpec{}
				}
			}
			l.touchSession(s).building.Drop(hash)
		}
		if w.dropped = append(w.dropped, hash); len(w.dropped) > dropsKept {
			w.dropped = w.dropped[1:]
		}
	}
}

func (l *Loop) forgetFunction(hash ids.FunctionHash) {
	if f := l.functions[hash]; f != nil {
		l.functionBytes -= uint64(len(f.Payload))
		delete(l.functions, hash)
	}
}

// dropAgain repeats the orders to drop functions, which a reconnected worker may not have received.
func (l *Loop) dropAgain(s *session) {
	for _, hash := range s.worker.dropped {
		if l.functions[hash] == nil {
			l.touchSession(s).building.Drop(hash)
		}
	}
	s.worker.dropped = nil
}

// received handles one message of a worker: it gives its contents to the machine.
func (l *Loop) received(s *session, message schedapi.Inbound) {
	w := s.worker
	if s.ended || w.session != s {
		return // It is a late message of an ended session.
	}
	if len(message.Reports) > 0 {
		l.step(sched.TasksReported{Worker: w.id, Reports: message.Reports})
	}
	if len(message.Gained)+len(message.Lost) > 0 {
		l.step(sched.ObjectsReported{Worker: w.id, Gained: message.Gained, Lost: message.Lost})
	}
	for _, report := range message.Rescues {
		l.rescueReported(w, report)
	}
	for _, hash := range message.MissingFunctions {
		l.sendFunction(s, hash, true)
	}
	if message.Stats != nil {
		routes := w.stats.Routes
		w.stats = *message.Stats
		if w.stats.Routes == nil {
			w.stats.Routes = routes
		} else {
			l.measured(w)
		}
		l.step(sched.WorkerMeasured{Worker: w.id, MemoryUsedBytes: message.Stats.MemoryUsedBytes, MemoryEvictableBytes: message.Stats.MemoryEvictableBytes})
		if message.Stats.MemoryPressure {
			if s := l.sessionOf(w.id); s != nil {
				s.building.NextUses = l.machine.NextUses(w.id, s.building.NextUses[:0])
			}
		}
	}
	l.dirty.counters(w)
	if message.Draining {
		l.log.Info("a worker is to leave", "worker", w.name, "id", w.id)
		l.step(sched.WorkerDraining{Worker: w.id})
		l.workerChanged(w)
	}
	if message.Leaving {
		l.loseWorker(w, "left the cluster", nil, "")
	}
}

// maxRate is the highest rate that placement uses. A borrowed object is not copied, so its measured
// rate has no bound.
const maxRate = 100e9

// measured gives the machine the rates at which a worker fetches from each peer. For each peer it
// takes the first open path in the report that has a rate.
func (l *Loop) measured(w *worker) {
	var last ids.WorkerID
	var rates sched.RatesMeasured
	for _, route := range w.stats.Routes {
		if route.State != schedapi.RouteOpen || route.BytesPerSecond == 0 || route.Peer == last {
			continue
		}
		last = route.Peer
		rates = append(rates, sched.RateMeasured{From: route.Peer, To: w.id, BytesPerSecond: min(route.BytesPerSecond, maxRate), Latency: route.Latency})
	}
	if len(rates) > 0 {
		l.step(rates)
	}
}

// bitset is a set of small integers.
type bitset struct{ words []uint64 }

func (b *bitset) has(n uint64) bool {
	return n/64 < uint64(len(b.words)) && b.words[n/64]&(1<<(n%64)) != 0
}

func (b *bitset) set(n uint64) {
	for uint64(len(b.words)) <= n/64 {
		b.words = append(b.words, 0)
	}
	b.words[n/64] |= 1 << (n % 64)
}
