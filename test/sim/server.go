package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
)

// server simulates the scheduler's loop around the real machines: sessions and watches.
type server struct {
	w          *world
	m          *sched.Machine
	members    *members.Machine
	effects    []sched.Effect
	assignment sched.Assignment

	// byID is indexed by worker id; nil for a lost worker.
	byID []*registeredWorker
	// lostWorkers are all workers that were ever lost.
	lostWorkers   map[ids.WorkerID]*registeredWorker
	sessions      map[members.Session]*session
	lastSession   members.Session
	dirtySessions []*session
	lastLink      uint64

	leases     map[ids.ClientID]*lease
	lastClient ids.ClientID
	notified   []*lease
	functions  map[ids.FunctionHash]bool
	datasets   uint64
	// answered are the accepted submissions, by request id, with their graphs.
	answered map[string]ids.GraphID

	// timer and lease are the times of the next TimePassed of the two machines; zero: not set.
	timer, lease time.Time
	// assigned has every attempt that was ever sent, with its worker.
	assigned map[sched.TaskRef]ids.WorkerID

	checkEvery, stepsSinceCheck int
}

// registeredWorker is one worker incarnation, known until it is lost.
type registeredWorker struct {
	id          ids.WorkerID
	name        string
	incarnation string
	proc        *process
	session     *session
}

// session is one stream of a worker, as the scheduler sees it.
type session struct {
	number   members.Session
	link     *link
	worker   *registeredWorker
	ended    bool
	lastSeen time.Time
	outgoing schedulerMessage
	dirty    bool
	peers    map[ids.WorkerID]bool
}

// schedulerMessage is one message to a worker. The worker handles stop and reregister first, then
// the registration, peers and accepted objects, then the other orders in the order of the fields.
type schedulerMessage struct {
	registered    ids.WorkerID
	peers         []peer
	assignments   []assignment
	freed         []sched.TaskRef
	retractions   []sched.TaskRef
	cancellations []sched.TaskRef
	releases      []sched.Replica
	rescues       []rescue
	accepted      []sched.Replica
	keeps         []sched.Replica
	drained       bool
	leave         bool // an operator retires or restarts the worker
	reregister    bool
	stop          string
}

// peer gives the address of a worker; at is nil if the worker is gone.
type peer struct {
	worker ids.WorkerID
	at     *process
}

type assignment struct {
	sched.Assignment
	op sched.OpSpec
}

// workerMessage is one message from a worker.
type workerMessage struct {
	reports []sched.Report
	gained  []sched.Stored
	lost    []sched.Replica
	failed  []sched.RescueFailed
	// draining asks to leave; leaving announces the end.
	draining, leaving bool
}

func (m *workerMessage) empty() bool {
	return len(m.reports)+len(m.gained)+len(m.lost)+len(m.failed) == 0 && !m.draining && !m.leaving
}

// clone copies the message, because the machine may keep its slices.
func (m workerMessage) clone() workerMessage {
	return workerMessage{slices.Clone(m.reports), slices.Clone(m.gained), slices.Clone(m.lost), slices.Clone(m.failed), m.draining, m.leaving}
}

func newServer(w *world, checkEvery int) *server {
	return &server{
		w: w, members: members.New(members.Config{Life: life, Lease: workerLease, Grace: reconnectGrace}), m: sched.New(sched.Config{InlineResultBytes: 4 << 10, InlineBudgetBytes: 1 << 10, MaxWorkerDeaths: 8, ChainBytes: 8 << 10}),
		byID: make([]*registeredWorker, 1), lostWorkers: map[ids.WorkerID]*registeredWorker{}, sessions: map[members.Session]*session{},
		leases: map[ids.ClientID]*lease{}, functions: map[ids.FunctionHash]bool{},
		answered: map[string]ids.GraphID{}, assigned: map[sched.TaskRef]ids.WorkerID{}, checkEvery: checkEvery,
	}
}

// process returns the process of a worker that is not lost.
func (s *server) process(id ids.WorkerID) *process {
	if r := s.get(id); r != nil && !r.proc.dead {
		return r.proc
	}
	return nil
}

func (s *server) get(id ids.WorkerID) *registeredWorker {
	if int(id) >= len(s.byID) {
		return nil
	}
	return s.byID[id]
}

func (s *server) step(ev sched.Event) {
	s.effects = s.m.Step(s.w.now, ev, s.effects[:0])
	s.carryOut()
}

// check tests the machine's invariants once in checkEvery steps.
func (s *server) check() {
	if s.stepsSinceCheck++; s.stepsSinceCheck >= s.checkEvery {
		s.deepCheck()
	}
}

func (s *server) deepCheck() {
	s.stepsSinceCheck = 0
	if err := s.m.Check(); err != nil {
		s.w.fail(nil, "the scheduler's invariant is broken: %v", err)
	}
}

// effectNames are the names of effects in the trace.
var effectNames = map[sched.EffectKind]string{
	sched.EffectAssign: "assign", sched.EffectRetract: "retract", sched.EffectCancel: "cancel", sched.EffectRelease: "release",
	sched.EffectNotify: "notify", sched.EffectClientExpired: "client-expired", sched.EffectGraphChanged: "graph-changed",
	sched.EffectGraphRemoved: "graph-removed", sched.EffectFunctionUnused: "function-unused", sched.EffectRescue: "rescue",
	sched.EffectUnmap: "unmap", sched.EffectAccept: "accept", sched.EffectDrained: "drained", sched.EffectKeep: "keep",
	sched.EffectRetire: "retire", sched.EffectRestart: "restart", sched.EffectWorkerChanged: "worker-changed",
	sched.EffectRebalanceEnded: "rebalance-ended", sched.EffectTaskForgotten: "forgotten", sched.EffectFreeSlot: "free-slot",
}

// carryOut carries out the effects of a step.
func (s *server) carryOut() {
	w := s.w
	for i := range s.effects {
		e := &s.effects[i]
		w.log("  %s %s %s/%s state %d %s %s", effectNames[e.Kind], e.Worker, e.Task, e.Attempt, e.State, e.Client, e.Graph)
		switch e.Kind {
		case sched.EffectAssign:
			s.assign(e)
		case sched.EffectFreeSlot:
			if o := s.messageTo(e.Worker); o != nil {
				o.freed = append(o.freed, sched.TaskRef{Task: e.Task, Attempt: e.Attempt})
			}
		case sched.EffectRetract:
			if o := s.messageTo(e.Worker); o != nil {
				o.retractions = append(o.retractions, sched.TaskRef{Task: e.Task, Attempt: e.Attempt})
			}
		case sched.EffectCancel:
			if o := s.messageTo(e.Worker); o != nil {
				o.cancellations = append(o.cancellations, sched.TaskRef{Task: e.Task, Attempt: e.Attempt})
			}
		case sched.EffectRelease:
			if o := s.messageTo(e.Worker); o != nil {
				o.releases = append(o.releases, sched.Replica{Task: e.Task, Generation: e.Attempt})
			}
		case sched.EffectNotify:
			s.notify(e)
		case sched.EffectClientExpired:
			w.log("client %s expired", e.Client)
			s.forgetClient(e.Client)
		case sched.EffectGraphChanged:
			s.graphChanged(e.Graph)
		case sched.EffectGraphRemoved, sched.EffectRebalanceEnded:
		case sched.EffectTaskEnded, sched.EffectGraphExpired: // they are for a journal, which is not simulated
		case sched.EffectFunctionUnused:
			delete(s.functions, e.Function)
		case sched.EffectRescue:
			o := s.messageTo(e.Worker)
			o.rescues = append(o.rescues, rescue{e.Dead, s.lostWorkers[e.Dead].incarnation, object{Task: e.Task, Generation: e.Attempt}})
		case sched.EffectUnmap:
			o := s.messageTo(e.Worker)
			o.peers = append(o.peers, peer{e.Dead, nil})
		case sched.EffectDrained:
			s.messageTo(e.Worker).drained = true
		case sched.EffectKeep:
			o := s.messageTo(e.Worker)
			o.keeps = append(o.keeps, sched.Replica{Task: e.Task, Generation: e.Attempt})
		case sched.EffectRetire, sched.EffectRestart:
			w.counts.ended++
			s.messageTo(e.Worker).leave = true
		case sched.EffectWorkerChanged:
			if info, _ := s.m.Worker(e.Worker); info.State == sched.WorkerStateDrained {
				w.counts.drained++
			}
		case sched.EffectAccept:
			o := s.messageTo(e.Worker)
			o.accepted = append(o.accepted, sched.Replica{Task: e.Task, Generation: e.Attempt})
		case sched.EffectTaskForgotten:
			if _, ok := s.m.Task(e.Task); ok {
				w.fail([]ids.TaskID{e.Task}, "%s is forgotten but still exists", e.Task)
			}
		default:
			w.fail(nil, "unknown effect %+v", e)
		}
	}
	s.check()
	if at, ok := s.m.NextDeadline(); ok && (s.timer.IsZero() || at.Before(s.timer)) {
		s.timer = at
		w.at(at, func() {
			if !s.timer.Equal(at) {
				return
			}
			s.timer = time.Time{}
			s.step(sched.TimePassed{})
			s.flush()
		})
	}
}

// messageTo returns the next message to a worker. It fails the run if the worker has no session.
func (s *server) messageTo(id ids.WorkerID) *schedulerMessage {
	r := s.get(id)
	if r == nil || r.session == nil {
		s.w.fail(nil, "an order for %s, which has no session", id)
		return nil
	}
	return r.session.message(s)
}

func (x *session) message(s *server) *schedulerMessage {
	if !x.dirty {
		x.dirty = true
		s.dirtySessions = append(s.dirtySessions, x)
	}
	return &x.outgoing
}

func (s *server) assign(e *sched.Effect) {
	w := s.w
	o := s.messageTo(e.Worker)
	a := &s.assignment
	if !s.m.AssignmentOf(e.Task, a) || a.Attempt != e.Attempt {
		w.log("  (withdrawn in the same step)")
		return
	}
	ref := sched.TaskRef{Task: e.Task, Attempt: e.Attempt}
	if was, twice := s.assigned[ref]; twice {
		w.fail([]ids.TaskID{e.Task}, "%s/%s is assigned to %s, and was assigned to %s before", e.Task, e.Attempt, e.Worker, was)
	}
	s.assigned[ref] = e.Worker
	x := s.get(e.Worker).session
	op := s.m.Op(a.Op)
	if op.Kind == sched.OpPythonPickle && !s.functions[op.Function] {
		w.fail([]ids.TaskID{e.Task}, "%s needs a function that is gone", e.Task)
	}
	c := assignment{*a, op}
	c.Inputs = slices.Clone(a.Inputs)
	c.Arguments = slices.Clone(a.Arguments)
	if op.Name == copyOp {
		c.Arguments = w.oracle.copyOf(a).arguments()
	}
	for i := range c.Inputs {
		in := &c.Inputs[i]
		in.Holders = slices.Clone(in.Holders)
		known := in.Holders
		if in.Upstream != 0 {
			known = append([]ids.WorkerID{in.Upstream}, known...)
		}
		for _, h := range known {
			if x.peers[h] {
				continue
			}
			x.peers[h] = true
			if p, isNew := s.members.Introduce(x.number, h); isNew {
				o.peers = append(o.peers, peer{h, s.get(p.Worker).proc})
			}
		}
	}
	o.assignments = append(o.assignments, c)
}

// flush sends the collected messages: now, or sometimes a little later together with the next ones.
func (s *server) flush() {
	if len(s.dirtySessions) > 0 && s.w.chance(0.2) {
		s.w.after(s.w.between(0, 500*time.Microsecond), s.flushNow)
		return
	}
	s.flushNow()
}

func (s *server) flushNow() {
	for _, x := range s.dirtySessions {
		x.dirty = false
		if !x.ended {
			s.send(x)
		}
	}
	s.dirtySessions = s.dirtySessions[:0]
	s.flushWatches()
}

func (s *server) send(x *session) {
	said := x.outgoing
	x.outgoing = schedulerMessage{}
	p, l := x.worker.proc, x.link
	w := s.w
	w.log("stream %d to %s: %s", l.number, x.worker.name, &said)
	again := said
	again.registered = 0
	if !w.plan.duplicateAssign {
		again.assignments = nil
	}
	if w.plan.rebalanceEvery() > 0 {
		// A rebalance may bring an object back to a worker that dropped it. Real streams do not
		// repeat messages within a session.
		again.releases = nil
	}
	l.send(false, func() { p.run(func() { p.receive(l, &said) }) }, func() {
		p.run(func() {
			w.log("again, stream %d to %s", l.number, p.host.name)
			p.receive(l, &again)
		})
	})
}

// String lists the content of a message.
func (o *schedulerMessage) String() string {
	b := []byte{}
	if o.registered != 0 {
		b = fmt.Appendf(b, "registered %s ", o.registered)
	}
	for i := range o.assignments {
		b = fmt.Appendf(b, "assign %s/%s ", o.assignments[i].Task, o.assignments[i].Attempt)
	}
	for _, r := range o.freed {
		b = fmt.Appendf(b, "free %s/%s ", r.Task, r.Attempt)
	}
	for _, r := range o.retractions {
		b = fmt.Appendf(b, "retract %s/%s ", r.Task, r.Attempt)
	}
	for _, r := range o.cancellations {
		b = fmt.Appendf(b, "cancel %s/%s ", r.Task, r.Attempt)
	}
	for _, r := range o.releases {
		b = fmt.Appendf(b, "release %s/%s ", r.Task, r.Generation)
	}
	for _, r := range o.rescues {
		b = fmt.Appendf(b, "rescue %s of %s ", r.object, r.dead)
	}
	for _, r := range o.accepted {
		b = fmt.Appendf(b, "accept %s/%s ", r.Task, r.Generation)
	}
	for _, r := range o.keeps {
		b = fmt.Appendf(b, "keep %s/%s ", r.Task, r.Generation)
	}
	if o.drained {
		b = append(b, "drained "...)
	}
	if o.leave {
		b = append(b, "leave "...)
	}
	if o.reregister {
		b = append(b, "reregister "...)
	}
	return string(append(b, o.stop...))
}

// String lists the content of a message.
func (m *workerMessage) String() string {
	b := []byte{}
	for i := range m.reports {
		r := &m.reports[i]
		b = fmt.Appendf(b, "%s/%s outcome %d ", r.Task, r.Attempt, r.Outcome)
		for _, u := range r.Unreachable {
			b = fmt.Appendf(b, "(no %s/%s: failed %v missing %v) ", u.Task, u.Generation, u.FailedAt, u.MissingAt)
		}
	}
	for _, g := range m.gained {
		b = fmt.Appendf(b, "gained %s/%s ", g.Task, g.Generation)
	}
	for _, g := range m.lost {
		b = fmt.Appendf(b, "lost %s/%s ", g.Task, g.Generation)
	}
	for _, f := range m.failed {
		b = fmt.Appendf(b, "not rescued %v of %s ", f.Objects, f.Dead)
	}
	if m.draining {
		b = append(b, "draining "...)
	}
	if m.leaving {
		b = append(b, "leaving"...)
	}
	return string(b)
}

// register opens a session for an incarnation, which is new or comes back.
func (s *server) register(l *link, p *process, address string, ev sched.WorkerRegistered) {
	w := s.w
	s.lastSession++
	x := &session{number: s.lastSession, link: l, lastSeen: w.now, peers: map[ids.WorkerID]bool{}}
	welcome, effects, refused := s.members.Register(w.now, members.Registered{Session: x.number, Worker: ev, Life: life, DataAddress: address}, nil)
	switch {
	case refused != nil && refused.Kind == members.ErrDead:
		l.send(false, func() { p.run(func() { p.receive(l, &schedulerMessage{stop: "declared dead"}) }) }, nil)
		return
	case refused != nil:
		l.cut() // The name is in use, so the process tries again.
		return
	}
	r := s.get(welcome.Worker)
	if r == nil {
		r = &registeredWorker{id: welcome.Worker, name: ev.Name, incarnation: ev.Incarnation, proc: p}
		s.byID = append(s.byID, r)
	}
	s.sessions[x.number], x.worker, r.session = x, r, x
	s.joined(effects)
	l.upBroken = func() { s.disconnected(x) }
	if l.broken {
		w.after(w.between(0, time.Second), l.upBroken)
	}
	s.flush()
}

// member gives the machine of members an event and carries out the effects.
func (s *server) member(ev members.Event) { s.joined(s.members.Step(s.w.now, ev, nil)) }

// joined carries out the effects of the machine of members.
func (s *server) joined(effects []members.Effect) {
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case members.EffectSchedule:
			s.schedule(e.Event)
		case members.EffectEnded:
			s.endSession(e)
		case members.EffectPeer:
			if x := s.sessions[e.Session]; x != nil {
				x.peers[e.Peer.Worker] = true
				known := peer{worker: e.Peer.Worker}
				if e.Peer.Address != "" {
					known.at = s.get(e.Peer.Worker).proc
				}
				out := x.message(s)
				out.peers = append(out.peers, known)
			}
		case members.EffectLost:
			r := s.byID[e.Worker]
			s.w.log("%s (%s) is lost: %s", r.name, r.id, e.Cause)
			s.w.oracle.lostWorkers++
			s.byID[r.id], s.lostWorkers[r.id] = nil, r
		case members.EffectChanged, members.EffectUnmapped:
		case members.EffectDrop:
			s.w.fail(nil, "objects are dropped as if there were two lives: %+v", e)
		}
	}
	if at, ok := s.members.NextDeadline(); ok && (s.lease.IsZero() || at.Before(s.lease)) {
		s.lease = at
		s.w.at(at, func() { s.checkMembers(at) })
	}
	if err := s.members.Check(); err != nil {
		s.w.fail(nil, "the invariant of members is broken: %v", err)
	}
}

// checkMembers ends the leases and graces that are over.
func (s *server) checkMembers(at time.Time) {
	if !s.lease.Equal(at) {
		return
	}
	s.lease = time.Time{}
	var passed members.TimePassed
	for _, number := range s.members.Due(at, nil) {
		passed.Heard = append(passed.Heard, members.Heard{Session: number, At: s.sessions[number].lastSeen})
	}
	effects := s.members.Step(at, passed, nil)
	s.joined(effects)
	if len(effects) > 0 {
		s.flush()
	}
}

// schedule passes on what the machine of members tells that of tasks.
func (s *server) schedule(ev sched.Event) {
	switch ev := ev.(type) {
	case sched.WorkerRegistered:
		s.w.log("%s registers as %s: holds %d, runs %v", ev.Name, ev.Worker, len(ev.Inventory), ev.Running)
		s.byID[ev.Worker].session.message(s).registered = ev.Worker
	case sched.WorkerDisconnected:
		s.w.log("%s (%s) is disconnected", s.byID[ev.Worker].name, ev.Worker)
	}
	s.step(ev)
}

// endSession ends a session, with its last orders unless another session follows.
func (s *server) endSession(e *members.Effect) {
	x := s.sessions[e.Session]
	delete(s.sessions, e.Session)
	x.ended = true
	r := x.worker
	switch {
	case e.Worker != 0:
		r.session = nil
	case r.session != x:
		x.link.cut() // The worker will see the end of its old stream.
	default:
		r.session = nil
		x.outgoing.reregister, x.outgoing.stop = e.Reregister, e.Stop
		s.send(x)
	}
}

func (s *server) disconnected(x *session) {
	if !x.ended {
		s.member(members.Disconnected{Session: x.number})
		s.flush()
	}
}

// died handles a supervisor's report that an incarnation has ended.
func (s *server) died(name, incarnation string) {
	s.member(members.Died{Name: name, Death: members.Death{Incarnation: incarnation, Cause: "killed by SIGKILL", Signal: "SIGKILL"}})
	s.flush()
}

// receive passes a worker's message to the machines. measured is nil unless it is a heartbeat.
func (s *server) receive(x *session, said workerMessage, measured *members.Measured) {
	r := x.worker
	if x.ended {
		s.w.log("stream %d is stale", x.link.number)
		return
	}
	x.lastSeen = s.w.now
	if len(said.reports) > 0 {
		s.step(sched.TasksReported{Worker: r.id, Reports: said.reports})
	}
	if len(said.gained)+len(said.lost) > 0 {
		s.step(sched.ObjectsReported{Worker: r.id, Gained: said.gained, Lost: said.lost})
	}
	if measured != nil {
		measured.Session = x.number
		s.member(*measured)
		s.step(sched.WorkerMeasured{Worker: r.id, MemoryUsedBytes: measured.MemoryUsedBytes})
	}
	for _, f := range said.failed {
		f.Worker, f.Objects = r.id, slices.Clone(f.Objects)
		s.step(f)
	}
	if said.draining {
		s.w.log("%s (%s) asks to leave", r.name, r.id)
		s.step(sched.WorkerDraining{Worker: r.id})
	}
	if said.leaving {
		s.member(members.Left{Session: x.number})
	}
	s.flush()
}

// copyOp is the op of the tasks by which the machine copies objects.
const copyOp = "core.replicate"

// orderDrain is an operator's order to drain a worker.
func (s *server) orderDrain(name string, purpose sched.DrainPurpose, timeout time.Duration) {
	id, here := s.members.Named(name)
	if !here {
		return
	}
	r := s.byID[id]
	s.w.log("%s (%s) is to be drained, purpose %d, timeout %s", name, r.id, purpose, timeout)
	effects, err := s.m.OrderDrain(s.w.now, sched.DrainOrdered{Workers: []ids.WorkerID{r.id}, Purpose: purpose, Reason: "simulated", Timeout: timeout}, s.effects[:0])
	s.ordered(effects, err)
}

// undoDrain is an operator's order to use a worker again.
func (s *server) undoDrain(name string) {
	s.w.log("the drain of %s is undone", name)
	effects, err := s.m.UndoDrain(s.w.now, sched.DrainUndone{Names: []string{name}}, s.effects[:0])
	s.ordered(effects, err)
}

// orderRebalance is an operator's order to even out the bytes that workers hold.
func (s *server) orderRebalance() {
	info, effects, err := s.m.OrderRebalance(s.w.now, sched.RebalanceOrdered{}, s.effects[:0])
	s.w.log("rebalance %d moves %d objects", info.Number, info.PlannedObjects)
	s.ordered(effects, err)
}

func (s *server) stopRebalance(number uint64) {
	s.w.log("rebalance %d is stopped", number)
	s.step(sched.RebalanceStopped{Rebalance: number})
	s.flush()
}

func (s *server) ordered(effects []sched.Effect, err *sched.Error) {
	if err != nil {
		s.w.log("  refused: %s", err.Message)
	}
	s.effects = effects
	s.carryOut()
	s.flush()
}

// graphChanged checks the outcomes of a detached graph when it ends.
func (s *server) graphChanged(id ids.GraphID) {
	info, ok := s.m.Graph(id)
	if !ok {
		s.w.fail(nil, "graph %s changed but does not exist", id)
	}
	if info.Client != 0 || info.EndedAt.IsZero() || !info.EndedAt.Equal(s.w.now) {
		return
	}
	for _, spec := range s.w.oracle.graphs[id] {
		task, ok := s.m.Lookup(spec.namespace, spec.key)
		if !ok {
			continue
		}
		t, _ := s.m.Task(task)
		if t.State == sched.TaskReleased || t.Graph != id {
			continue
		}
		if err := s.w.oracle.check(spec, t.State, t.Err); err != nil {
			s.w.fail([]ids.TaskID{task}, "detached graph %s: %v", id, err)
		}
	}
}

// lease is the scheduler's record of a client.
type lease struct {
	id    ids.ClientID
	ns    string
	watch *watch
	dirty bool
}

// watch is one stream of updates to a client.
type watch struct {
	link    *link
	client  *client
	changed []ids.TaskID
	listed  map[ids.TaskID]bool
}

func (s *server) openClient(ns string) ids.ClientID {
	s.lastClient++
	s.leases[s.lastClient] = &lease{id: s.lastClient, ns: ns}
	s.step(sched.ClientOpened{Client: s.lastClient, Namespace: ns, TTL: clientTTL})
	return s.lastClient
}

// renewLease renews a client's lease. It returns an error if the lease has ended.
func (s *server) renewLease(id ids.ClientID) *sched.Error {
	if s.leases[id] == nil {
		return &sched.Error{Kind: sched.ErrUnknownClient, Object: id.String(), Message: "the lease ended"}
	}
	s.step(sched.ClientRenewed{Client: id})
	return nil
}

func (s *server) forgetClient(id ids.ClientID) { delete(s.leases, id) }

func (s *server) notify(e *sched.Effect) {
	l := s.leases[e.Client]
	if l == nil {
		s.w.fail([]ids.TaskID{e.Task}, "a notification about %s is for client %s, which does not exist", e.Task, e.Client)
		return
	}
	if l.watch != nil {
		l.changed(s, e.Task)
	}
}

func (l *lease) changed(s *server, task ids.TaskID) {
	if !l.watch.listed[task] {
		l.watch.listed[task] = true
		l.watch.changed = append(l.watch.changed, task)
	}
	if !l.dirty {
		l.dirty = true
		s.notified = append(s.notified, l)
	}
}

// openWatch starts a watch with a snapshot of everything that the client holds.
func (s *server) openWatch(c *client, lk *link) {
	l := s.leases[c.id]
	if l == nil {
		return
	}
	l.watch = &watch{link: lk, client: c, listed: map[ids.TaskID]bool{}}
	s.m.HeldBy(c.id, func(id ids.TaskID) { l.changed(s, id) })
	s.flush()
}

func (s *server) flushWatches() {
	for _, l := range s.notified {
		l.dirty = false
		v := l.watch
		if v == nil || len(v.changed) == 0 {
			continue
		}
		var updates []sched.Update
		for _, task := range v.changed {
			if u, ok := s.m.UpdateOf(task); ok {
				updates = append(updates, u)
			}
		}
		v.changed = v.changed[:0]
		clear(v.listed)
		c := v.client
		v.link.send(false, func() { c.receiveUpdates(v.link, updates) }, nil)
	}
	s.notified = s.notified[:0]
}
