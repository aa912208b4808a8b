package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/rpc"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// stream is the scheduler's end of a worker's stream. As the network adapter does, it passes the
// worker's messages to the loop's session, and sends what the session has for the worker.
type stream struct {
	s        *server
	link     *link
	proc     *process
	session  schedapi.Session
	outbound schedapi.Outbound
	message  rpc.SessionMessage
	// ops are the operations that were defined on the stream.
	ops map[uint32]bool
	// start is the number of the scheduler's start.
	start int
	// late means that the stream empties the session a little later.
	late bool
}

// register opens a session for an incarnation, which is new or comes back.
func (s *server) register(l *link, p *process, message []byte) {
	w := s.w
	if !s.up {
		l.cut()
		return
	}
	first := new(workerv1.SessionRequest)
	decoded(message, first)
	r := rpc.RegistrationFrom(first.GetRegister())
	session, err := s.loop.Register(context.Background(), r)
	dead := (*members.Error)(nil)
	if refusal := errors.As(err, &dead) && dead.Kind == members.ErrDead; refusal {
		stop := encoded(&workerv1.SessionResponse{StopReason: dead.Message})
		l.send(false, func() { p.run(func() { p.receive(l, stop) }) }, nil)
	} else if err != nil {
		l.cut() // The name is in use, so the process tries again.
	}
	if err != nil {
		w.log("%s (%s) is refused: %v", p.host.name, p.incarnation, err)
		s.settle()
		return
	}
	id := session.Worker()
	w.log("%s registers as %s: holds %d, runs %v", p.host.name, id, len(r.Worker.Inventory), r.Worker.Running)
	x := &stream{s: s, link: l, proc: p, session: session, ops: map[uint32]bool{}, start: s.starts}
	l.stream = x
	s.workers[id], s.ids[p.host.name] = p, id
	registered := encoded(rpc.RegisteredTo(id, s.loop.Cluster()))
	w.log("stream %d to %s: registered %s", l.number, p.host.name, id)
	l.send(false, func() { p.run(func() { p.receive(l, registered) }) }, nil)
	s.streams = append(s.streams, x)
	l.upBroken = func() {
		if x.start == s.starts && s.up {
			session.Disconnect()
			s.settle()
		}
	}
	if l.broken {
		w.after(w.between(0, time.Second), l.upBroken)
	}
	s.settle()
}

// receive passes a worker's message to the loop.
func (x *stream) receive(message []byte) {
	if x.start != x.s.starts || !x.s.up {
		return // Its scheduler was killed.
	}
	m := new(workerv1.SessionRequest)
	decoded(message, m)
	x.s.must(x.session.Report(context.Background(), rpc.InboundFrom(m)))
}

func decoded(b []byte, m proto.Message) {
	if err := proto.Unmarshal(b, m); err != nil {
		panic(err)
	}
}

// empty sends what the session has for the worker: now, or sometimes a little later together with
// the next messages.
func (x *stream) empty() {
	if len(x.session.Wake()) == 0 && !x.ended() || x.late {
		return
	}
	w := x.s.w
	if w.chance(0.2) {
		x.late = true
		w.after(w.between(0, 500*time.Microsecond), func() {
			if x.late = false; x.start == x.s.starts && x.s.up {
				x.send(true)
			}
		})
		return
	}
	x.send(false)
}

func (x *stream) ended() bool {
	select {
	case <-x.session.Done():
		return true
	default:
		return false
	}
}

// send sends all that the session has for the worker. It ends the stream if the session has ended.
// late: the messages are older than the last step of the scheduler.
func (x *stream) send(late bool) {
	w, p, l := x.s.w, x.proc, x.link
	ended, final := x.ended(), false
	select {
	case <-x.session.Wake():
	default:
	}
	if x.session.Take(&x.outbound) {
		err := x.message.Send(&x.outbound, func(m *workerv1.SessionResponse) error {
			final = final || m.GetStopReason() != "" || m.GetReregister()
			x.check(m)
			if !late {
				x.checkNow(m)
			}
			w.log("stream %d to %s: %s", l.number, p.host.name, saidDown(m))
			if m.GetLeave() != nil {
				w.counts.ended++
			}
			whole := encoded(m)
			l.send(false, func() { p.run(func() { p.receive(l, whole) }) }, func() {
				p.run(func() {
					w.log("again, stream %d to %s", l.number, p.host.name)
					p.receive(l, encoded(w.repeatedDown(whole)))
				})
			})
			return nil
		}, x.session.Undeliverable)
		if err != nil {
			w.fail(nil, "stream %d: %v", l.number, err)
		}
	}
	if ended {
		x.s.streams = slices.DeleteFunc(x.s.streams, func(o *stream) bool { return o == x })
		if !final {
			l.cut()
		}
	}
}

// repeatedDown is what may come again of a message. Real streams do not repeat messages within a
// session: an assignment would run twice, and a rebalance may bring an object back to a worker that
// dropped it.
func (w *world) repeatedDown(message []byte) *workerv1.SessionResponse {
	m := new(workerv1.SessionResponse)
	decoded(message, m)
	m.Functions, m.DroppedFunctions, m.Assignments = nil, nil, nil
	if w.plan.rebalanceEvery() > 0 {
		m.Releases = nil
	}
	return m
}

// check checks that each attempt of a message is sent for the first time, and its operation is
// known.
func (x *stream) check(m *workerv1.SessionResponse) {
	s, self := x.s, x.session.Worker()
	for _, d := range m.GetOps() {
		x.ops[d.GetOpId()] = true
	}
	for _, a := range m.GetAssignments() {
		ref := sched.TaskRef{Task: ids.TaskID(a.GetTaskId()), Attempt: ids.Attempt(a.GetAttempt())}
		if was, twice := s.assigned[ref]; twice {
			s.w.fail([]ids.TaskID{ref.Task}, "%s/%s is assigned to %s, and was assigned to %s before", ref.Task, ref.Attempt, self, was)
		}
		s.assigned[ref] = self
		s.checkNeeded(ref.Task)
		if !x.ops[a.GetOpId()] {
			s.w.fail([]ids.TaskID{ref.Task}, "%s/%s is sent to %s, and its op is not defined there", ref.Task, ref.Attempt, self)
		}
		if s.w.oracle.byTask[ref.Task] == nil {
			s.w.oracle.copyOf(a)
		}
	}
}

// checkNow checks a message against the state of the scheduler at the same time: only an active
// worker gets tasks, and no object is dropped before another worker has it, and keeps it.
func (x *stream) checkNow(m *workerv1.SessionResponse) {
	s, self := x.s, x.session.Worker()
	if info, _ := s.m.Worker(self); len(m.GetAssignments()) > 0 && info.State != sched.WorkerStateActive {
		s.w.fail([]ids.TaskID{ids.TaskID(m.GetAssignments()[0].GetTaskId())}, "%s gets tasks, and is %d", self, info.State)
	}
	for _, r := range m.GetReleases() {
		o := object{Task: ids.TaskID(r.GetTaskId()), Generation: ids.Attempt(r.GetGeneration())}
		info, known := s.m.Task(o.Task)
		if !known || info.State != sched.TaskSucceeded || info.Attempt != o.Generation || info.Inline || s.w.oracle.byTask[o.Task].mayBeLost || s.w.mayLoseAny {
			continue
		}
		if !slices.ContainsFunc(info.Replicas, func(id ids.WorkerID) bool {
			p := s.workers[id]
			return p.dead || p.store.Here(o) && (!s.moving || p.kept[o] || p.keeps(o))
		}) {
			s.w.fail([]ids.TaskID{o.Task}, "%s is dropped at %s, and no other worker keeps it: %v", o, self, info.Replicas)
		}
	}
}

// watch is the scheduler's end of the stream of a client's updates.
type watch struct {
	s      *server
	link   *link
	client *client
	tasks  schedapi.TaskWatch
	start  int
}

// openWatch starts a stream of updates. It resumes after the last revision that the client has.
func (s *server) openWatch(c *client, l *link) {
	if !s.up {
		l.cut()
		return
	}
	tasks, err := s.loop.WatchTasks(context.Background(), c.id, c.revision)
	if err != nil {
		s.w.log("client %s: watch: %v", c.id, err)
		s.settle()
		return // The client learns it when it renews its lease.
	}
	v := &watch{s: s, link: l, client: c, tasks: tasks, start: s.starts}
	s.watches = append(s.watches, v)
	l.upBroken = v.close
	if l.broken {
		s.w.after(s.w.between(0, time.Second), v.close)
	}
	s.settle()
}

func (v *watch) close() {
	if v.start == v.s.starts && v.s.up {
		v.forget()
		v.tasks.Close()
		v.s.settle()
	}
}

func (v *watch) forget() {
	v.s.watches = slices.DeleteFunc(v.s.watches, func(o *watch) bool { return o == v })
}

// empty sends the next batch, if there is one. After a while, the loop gets its memory back.
func (v *watch) empty() {
	select {
	case batch, open := <-v.tasks.Ready():
		if !open {
			v.forget()
			v.link.cut()
			return
		}
		updates, revision, snapshot := slices.Clone(batch.Updates), batch.Revision, batch.Snapshot
		c, w := v.client, v.s.w
		v.link.send(false, func() { c.receiveUpdates(v.link, revision, snapshot, updates) }, nil)
		w.after(w.between(0, 200*time.Microsecond), func() {
			if v.start == v.s.starts && v.s.up {
				v.tasks.Done(batch)
				v.s.settle()
			}
		})
	default:
	}
}
