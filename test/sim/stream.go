package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/members"
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
	// ops are the definitions that were sent on the stream.
	ops map[ids.OpID]sched.OpSpec
	// registered is the worker's number until it was sent. late means that the stream empties the
	// session a little later.
	registered ids.WorkerID
	late       bool
}

// register opens a session for an incarnation, which is new or comes back.
func (s *server) register(l *link, p *process, address string, ev sched.WorkerRegistered, functions []ids.FunctionHash) {
	w := s.w
	session, err := s.loop.Register(context.Background(), schedapi.Registration{Worker: ev, Life: life, DataAddress: address, Functions: functions})
	if dead := (*members.Error)(nil); errors.As(err, &dead) && dead.Kind == members.ErrDead {
		l.send(false, func() { p.run(func() { p.receive(l, &schedulerMessage{stop: "declared dead"}) }) }, nil)
	}
	if err != nil {
		w.log("%s (%s) is refused: %v", p.host.name, p.incarnation, err)
		if dead := (*members.Error)(nil); !errors.As(err, &dead) || dead.Kind != members.ErrDead {
			l.cut() // The name is in use, so the process tries again.
		}
		s.settle()
		return
	}
	id := session.Worker()
	w.log("%s registers as %s: holds %d, runs %v", ev.Name, id, len(ev.Inventory), ev.Running)
	x := &stream{s: s, link: l, proc: p, session: session, ops: map[ids.OpID]sched.OpSpec{}, registered: id}
	l.stream = x
	s.workers[id], s.ids[ev.Name] = p, id
	s.streams = append(s.streams, x)
	l.upBroken = func() {
		session.Disconnect()
		s.settle()
	}
	if l.broken {
		w.after(w.between(0, time.Second), l.upBroken)
	}
	s.settle()
}

// receive passes a worker's message to the loop. measured is nil unless it is a heartbeat.
func (x *stream) receive(said workerMessage, measured *members.Measured) {
	in := schedapi.Inbound{Reports: said.reports, Gained: said.gained, Lost: said.lost, Draining: said.draining, Leaving: said.leaving}
	for _, f := range said.failed {
		in.Rescues = append(in.Rescues, schedapi.RescueReport{Dead: f.Dead, Failed: slices.Clone(f.Objects)})
	}
	if measured != nil {
		in.Stats = &schedapi.WorkerStats{MemoryUsedBytes: measured.MemoryUsedBytes, Routes: []schedapi.Route{}}
		for _, p := range measured.Paths {
			path := schedapi.PathGRPC
			if p.Maps {
				path = schedapi.PathBorrow
			}
			in.Stats.Routes = append(in.Stats.Routes, schedapi.Route{
				Peer: p.Peer, Path: path, State: schedapi.RouteOpen, BytesPerSecond: p.BytesPerSecond, Latency: p.Latency})
		}
	}
	x.s.must(x.session.Report(context.Background(), in))
}

// empty sends what the session has for the worker: now, or sometimes a little later together with
// the next messages.
func (x *stream) empty() {
	if len(x.session.Wake()) == 0 && !x.ended() && x.registered == 0 || x.late {
		return
	}
	w := x.s.w
	if x.registered == 0 && w.chance(0.2) {
		x.late = true
		w.after(w.between(0, 500*time.Microsecond), func() {
			x.late = false
			x.send()
		})
		return
	}
	x.send()
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
func (x *stream) send() {
	w, p, l := x.s.w, x.proc, x.link
	ended := x.ended()
	select {
	case <-x.session.Wake():
	default:
	}
	said := schedulerMessage{registered: x.registered}
	x.registered = 0
	if x.session.Take(&x.outbound) {
		x.take(&said)
	}
	w.log("stream %d to %s: %s", l.number, p.host.name, &said)
	again := said
	again.registered, again.functions, again.dropped = 0, nil, nil
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
	if ended {
		x.s.streams = slices.DeleteFunc(x.s.streams, func(o *stream) bool { return o == x })
		if said.stop == "" && !said.reregister {
			l.cut()
		}
	}
}

// take copies what the session has into a message, as the network would.
func (x *stream) take(said *schedulerMessage) {
	out := &x.outbound
	for _, d := range out.Ops {
		x.ops[d.ID] = d.Op
	}
	for _, f := range out.Functions {
		said.functions = append(said.functions, f.Hash)
	}
	said.dropped = slices.Clone(out.Dropped)
	for _, p := range out.Peers {
		known := peer{worker: p.Worker}
		if p.Address != "" {
			known.at = x.s.workers[p.Worker]
		}
		said.peers = append(said.peers, known)
	}
	for i := range out.Assignments {
		said.assignments = append(said.assignments, x.assignment(&out.Assignments[i]))
	}
	said.freed, said.retractions, said.cancellations = slices.Clone(out.FreedSlots), slices.Clone(out.Retractions), slices.Clone(out.Cancellations)
	said.releases, said.accepted, said.keeps = slices.Clone(out.Releases), slices.Clone(out.Accepted), slices.Clone(out.Keeps)
	for _, r := range out.Rescues {
		for _, o := range r.Objects {
			said.rescues = append(said.rescues, rescue{r.Dead.Worker, r.Incarnation, object{Task: o.Task, Generation: o.Generation}})
		}
	}
	said.drained, said.reregister, said.stop = out.Drained, out.Reregister, out.StopReason
	if out.Leave != nil {
		said.leave = true
		x.s.w.counts.ended++
	}
}

// assignment copies one assignment, and checks that its attempt is sent for the first time.
func (x *stream) assignment(a *schedapi.Assignment) assignment {
	s, out := x.s, &x.outbound
	w, self := s.w, x.session.Worker()
	ref := sched.TaskRef{Task: a.Task, Attempt: a.Attempt}
	if was, twice := s.assigned[ref]; twice {
		w.fail([]ids.TaskID{a.Task}, "%s/%s is assigned to %s, and was assigned to %s before", a.Task, a.Attempt, self, was)
	}
	s.assigned[ref] = self
	op, defined := x.ops[a.Op]
	if !defined {
		w.fail([]ids.TaskID{a.Task}, "%s/%s is sent to %s, and its op is not defined there", a.Task, a.Attempt, self)
	}
	c := assignment{sched.Assignment{
		Task: a.Task, Attempt: a.Attempt, Op: a.Op, Arguments: slices.Clone(out.Arguments(a)), Inputs: slices.Clone(out.Inputs(a)), Rank: a.Rank, Timeout: a.Timeout,
		Key: a.Key, Namespace: a.Namespace, Slots: a.Slots, Resources: a.Resources, ExpectedOutputBytes: a.ExpectedOutputBytes, Priority: a.Priority,
	}, op}
	if op.Name == copyOp {
		c.Arguments = w.oracle.copyOf(&c.Assignment).arguments()
	}
	for i := range c.Inputs {
		c.Inputs[i].Holders = slices.Clone(c.Inputs[i].Holders)
	}
	return c
}

// watch is the scheduler's end of the stream of a client's updates.
type watch struct {
	s      *server
	link   *link
	client *client
	tasks  schedapi.TaskWatch
}

// openWatch starts a stream of updates. It resumes after the last revision that the client has.
func (s *server) openWatch(c *client, l *link) {
	tasks, err := s.loop.WatchTasks(context.Background(), c.id, c.revision)
	if err != nil {
		s.w.log("client %s: watch: %v", c.id, err)
		s.settle()
		return // The client learns it when it renews its lease.
	}
	v := &watch{s: s, link: l, client: c, tasks: tasks}
	s.watches = append(s.watches, v)
	l.upBroken = v.close
	if l.broken {
		s.w.after(s.w.between(0, time.Second), v.close)
	}
	s.settle()
}

func (v *watch) close() {
	v.forget()
	v.tasks.Close()
	v.s.settle()
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
			v.tasks.Done(batch)
			v.s.settle()
		})
	default:
	}
}
