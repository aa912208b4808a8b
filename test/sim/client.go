package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// client is one life of a client. It submits, joins, cancels and waits. At the end all tasks that
// it holds must have the right outcome.
type client struct {
	w         *world
	index     int
	namespace string
	id        ids.ClientID
	gone      bool
	// renewed is the time of the last answer to a renewal.
	renewed  time.Time
	life     int
	requests int

	watch *link
	// revision is that of the last updates from the watch.
	revision uint64
	// held are the tasks that the client holds. latest has the last update that it received about
	// each.
	held   map[ids.TaskID]*spec
	latest map[ids.TaskID]sched.Update
	graphs []ids.GraphID
	// written are the tasks whose bytes come from this client, as far as it knows.
	written []*spec
	// pending counts calls and scatters in progress. Calls that change something are made one at a
	// time: queue has the waiting ones, busy means that one is in progress.
	pending int
	queue   []func()
	busy    bool
	// verified are the generations whose bytes were read and compared with the right value.
	verified map[ids.TaskID]ids.Attempt
	// verifying has the tasks whose result is being read.
	verifying map[ids.TaskID]bool
}

func newClient(w *world, index int) *client {
	c := &client{
		w: w, index: index, namespace: "shared",
		held: map[ids.TaskID]*spec{}, latest: map[ids.TaskID]sched.Update{},
		verified: map[ids.TaskID]ids.Attempt{}, verifying: map[ids.TaskID]bool{},
	}
	if index == 2 {
		c.namespace = "own"
	}
	return c
}

// outstanding describes the client's outstanding work, for failure reports.
func (c *client) outstanding() string {
	if c.gone {
		return "gone"
	}
	return fmt.Sprintf("has %d calls in progress (%d queued, busy %v, verifying %d), holds %d tasks, of which %d are not verified",
		c.pending, len(c.queue), c.busy, len(c.verifying), len(c.held), len(c.unverified()))
}

func (c *client) unverified() (list []ids.TaskID) {
	for _, id := range sortedKeys(c.held) {
		if _, ok := c.verified[id]; !ok && !c.gone {
			list = append(list, id)
		}
	}
	return list
}

// after runs do after a delay, unless the client has gone by then.
func (c *client) after(d time.Duration, do func()) {
	c.w.after(d, func() {
		if !c.gone {
			do()
		}
	})
}

// call makes a unary RPC that changes something. It waits for the answers to the earlier ones, so
// that a release does not overtake a hold. serve runs in the scheduler, done in the client.
func (c *client) call(what string, serve func() error, done func(error)) {
	c.pending++
	c.queue = append(c.queue, func() {
		c.try(what, serve, func(err error) {
			c.pending--
			c.busy = false
			done(err)
			c.nextCall()
		})
	})
	c.nextCall()
}

func (c *client) nextCall() {
	if c.busy || c.gone || len(c.queue) == 0 {
		return
	}
	c.busy = true
	next := c.queue[0]
	c.queue = c.queue[1:]
	next()
}

// query makes a unary RPC that changes nothing. It does not wait for other calls.
func (c *client) query(what string, serve func() error, done func(error)) {
	c.pending++
	c.try(what, serve, func(err error) {
		c.pending--
		done(err)
	})
}

// try repeats a call until it is answered.
func (c *client) try(what string, serve func() error, done func(error)) {
	w := c.w
	lost, unanswered := w.fault(2*w.plan.drop), w.fault(2*w.plan.drop)
	delay := func() time.Duration {
		if w.fault(w.plan.slow) {
			return w.between(time.Millisecond, 300*time.Millisecond)
		}
		return w.between(50*time.Microsecond, time.Millisecond)
	}
	again := func() {
		c.after(w.between(100*time.Millisecond, 600*time.Millisecond), func() { c.try(what, serve, done) })
	}
	if lost {
		again()
		return
	}
	w.after(delay(), func() {
		if !w.server.up {
			again()
			return
		}
		w.log("client %s: %s", c.id, what)
		err := serve()
		if err != nil {
			w.log("refused: %v", err)
		}
		w.server.settle()
		if unanswered {
			again()
			return
		}
		c.after(delay(), func() { done(err) })
	})
}

// renew renews the client's lease.
func (c *client) renew() error { return c.w.server.loop.RenewClient(context.Background(), c.id) }

// checkError handles the error of a call. It ignores the allowed kinds. After the end of the lease
// the client crashes. Any other error fails the run.
func (c *client) checkError(what string, err error, allowed ...sched.ErrorKind) {
	refused := (*sched.Error)(nil)
	switch {
	case err == nil, errors.As(err, &refused) && slices.Contains(allowed, refused.Kind):
	case refused != nil && refused.Kind == sched.ErrUnknownClient && c.w.now.Sub(c.renewed) > clientTTL-time.Second:
		c.crash()
	default:
		c.w.fail(nil, "client %s: %s is refused: %v", c.id, what, err)
	}
}

func (c *client) open() {
	var opened ids.ClientID
	c.call("open", func() error {
		if opened != 0 {
			return nil
		}
		row, err := c.w.server.loop.OpenClient(context.Background(), schedapi.ClientSpec{Namespace: c.namespace, TTL: clientTTL})
		if err == nil {
			opened = row.ID
		}
		return err
	}, func(err error) {
		c.checkError("open", err)
		c.id, c.renewed = opened, c.w.now
		c.renewLoop()
		c.reconnect()
		left := c.w.plan.chaos - c.w.elapsed()
		for range c.w.plan.actions {
			c.after(c.w.between(0, max(left, 0)), c.act)
		}
	})
}

func (c *client) renewLoop() {
	c.query("renew", c.renew, func(err error) {
		if c.checkError("renew", err); err == nil {
			c.renewed = c.w.now
		}
		c.after(clientRenew, c.renewLoop)
	})
}

// reconnect opens a watch, which begins with the state of all held tasks.
func (c *client) reconnect() {
	l := c.w.newLink()
	c.watch = l
	l.downBroken = func() {
		c.after(c.w.between(0, 300*time.Millisecond), func() {
			if c.watch == l {
				c.reconnect()
			}
		})
	}
	l.send(true, func() { c.w.server.openWatch(c, l) }, nil)
}

// receiveUpdates handles updates from the watch. A snapshot has all tasks that the client holds.
func (c *client) receiveUpdates(l *link, revision uint64, snapshot bool, updates []sched.Update) {
	if c.gone || c.watch != l {
		return
	}
	w := c.w
	if snapshot {
		w.log("client %s gets a snapshot of %d tasks", c.id, len(updates))
		clear(c.latest)
	}
	c.revision = revision
	for _, u := range updates {
		w.log("client %s hears that %s is in state %d", c.id, u.Task, u.State)
		c.latest[u.Task] = u
		s := w.oracle.byTask[u.Task]
		if s == nil {
			w.fail([]ids.TaskID{u.Task}, "client %s hears of %s, which nobody submitted", c.id, u.Task)
		}
		if u.Inline != nil {
			if v, ok := valueOf(u.Inline, nil); !ok || v != s.value {
				w.fail([]ids.TaskID{u.Task}, "client %s got a wrong value of %s", c.id, u.Task)
			}
		}
	}
}

// crash ends the client without closing its lease. Another client takes its place.
func (c *client) crash() {
	if c.gone {
		return
	}
	w := c.w
	w.counts.clientCrashes++
	w.log("client %s crashes", c.id)
	for _, s := range c.written {
		s.mayBeLost = true
	}
	c.end()
	if !w.faultsOver {
		c.replace()
	}
}

func (c *client) end() {
	c.gone = true
	if c.watch != nil {
		c.watch.cut()
	}
}

// replace lets another client take the place of this one.
func (c *client) replace() {
	w := c.w
	next := newClient(w, c.index)
	next.life = c.life + 1
	w.clients[c.index] = next
	next.after(w.between(0, time.Second), next.open)
}

// close closes the client's lease or, if silently is set, lets the lease expire. then follows.
func (c *client) close(silently bool, then func()) {
	for _, s := range c.written {
		s.mayBeLost = true
	}
	if silently {
		c.end()
		return
	}
	c.call("close", func() error { return c.w.server.loop.CloseClient(context.Background(), c.id) }, func(err error) {
		c.checkError("close", err)
		c.end()
		then()
	})
}

// act performs one random action.
func (c *client) act() {
	w := c.w
	if c.busy {
		// The answer to the current call decides which actions are possible, so try later.
		c.pending++
		c.after(5*time.Millisecond, func() {
			c.pending--
			c.act()
		})
		return
	}
	switch n := w.rng.IntN(100); {
	case n < 35 || len(c.held) == 0 && n < 75:
		c.submit(w.graph(c.namespace, c.prefix(), 1+w.rng.IntN(w.plan.tasks), nil), 0)
	case n < 47:
		c.extend()
	case n < 57:
		c.join()
	case n < 67:
		c.cancel()
	case n < 73:
		c.retry()
	case n < 83:
		c.release()
	case n < 88:
		c.holdByKey()
	case n < 94:
		c.detach()
	case n < 97:
		c.publish()
	case n < 99:
		c.misuse()
	case w.chance(0.3) && !w.faultsOver:
		c.close(false, c.replace)
	}
}

// misuse submits a graph with a circle, or with an input that nobody made, perhaps of a DATA task,
// which has none. Nothing may change.
func (c *client) misuse() {
	w := c.w
	ev := c.submission(w.graph(c.namespace, c.prefix(), 2+w.rng.IntN(8), nil), func(int) bool { return true })
	bad, allowed := &ev.Tasks[0], sched.ErrUnknownInput
	if bad.Inputs = append(bad.Inputs, "nobody's"); w.chance(0.5) {
		last := &ev.Tasks[len(ev.Tasks)-1]
		bad.Inputs[len(bad.Inputs)-1], allowed = last.Key, sched.ErrGraphHasCycle
		last.Inputs = append(last.Inputs, bad.Key)
	}
	bad.Op = uint32(len(ev.Ops))
	ev.Ops = append(ev.Ops, sched.OpSpec{Kind: sched.OpNative, Name: mixOp})
	c.call("misuse", func() error {
		before := w.server.m.Totals()
		submission := schedapi.Submission{Graph: cloned(ev)}
		_, err := w.server.loop.Submit(context.Background(), submission)
		if err == nil || w.server.m.Totals() != before {
			w.fail(nil, "client %s: a graph that is none was accepted, or changed something: %v", c.id, err)
		}
		return err
	}, func(err error) { c.checkError("misuse", err, allowed, sched.ErrInvalidField) })
}

func (c *client) prefix() string {
	c.requests++
	return fmt.Sprintf("c%d.%d.%d", c.index, c.life, c.requests)
}

// pickHeld picks up to n of the held tasks that want accepts; a nil want accepts all.
func (c *client) pickHeld(n int, want func(ids.TaskID) bool) []ids.TaskID {
	var from []ids.TaskID
	for _, id := range sortedKeys(c.held) {
		if want == nil || want(id) {
			from = append(from, id)
		}
	}
	c.w.rng.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
	return from[:min(n, len(from))]
}

// submission makes the event for some specs.
func (c *client) submission(specs []*spec, hold func(int) bool) sched.GraphSubmitted {
	ev := sched.GraphSubmitted{Client: c.id, Name: "sim", RequestID: c.prefix()}
	ops := map[sched.OpSpec]uint32{}
	for i, s := range specs {
		op, ok := ops[s.op]
		if !ok {
			op = uint32(len(ev.Ops))
			ops[s.op] = op
			ev.Ops = append(ev.Ops, s.op)
		}
		ev.Options = append(ev.Options, s.options)
		t := sched.TaskSpec{Key: s.key, Op: op, Options: uint32(i + 1), Arguments: s.arguments(), Hold: hold(i)}
		for _, in := range s.inputs {
			t.Inputs = append(t.Inputs, in.key)
		}
		if c.w.plan.items {
			t.Items = s.items()
		}
		ev.Tasks = append(ev.Tasks, t)
	}
	return ev
}

// cloned copies an event, as the network would, because the machine may keep its slices.
func cloned(ev sched.GraphSubmitted) sched.GraphSubmitted {
	ev.Ops, ev.Options, ev.Tasks = slices.Clone(ev.Ops), slices.Clone(ev.Options), slices.Clone(ev.Tasks)
	for i := range ev.Tasks {
		ev.Tasks[i].Inputs, ev.Tasks[i].Items = slices.Clone(ev.Tasks[i].Inputs), slices.Clone(ev.Tasks[i].Items)
		ev.Tasks[i].Arguments = slices.Clone(ev.Tasks[i].Arguments)
	}
	return ev
}

// submit sends a graph, holds some of its tasks and scatters its data. The tasks may be appended to
// an earlier graph.
func (c *client) submit(specs []*spec, graph ids.GraphID) {
	w := c.w
	used := map[*spec]bool{}
	for _, s := range specs {
		for _, in := range s.inputs {
			used[in] = true
		}
	}
	holds := make([]bool, len(specs))
	if graph == 0 && w.chance(0.15) {
		specs = slices.Clone(specs)
		slices.Reverse(specs)
	}
	for i, s := range specs {
		if s.kind == data {
			c.written = append(c.written, s)
		}
		holds[i] = !used[s] && w.chance(0.95) || w.chance(0.2) || s.kind == data
	}
	ev := c.submission(specs, func(i int) bool { return holds[i] })
	ev.Graph = graph
	var result sched.SubmitResult
	serve := func() error {
		r, err := w.server.submit(cloned(ev), specs)
		if err == nil {
			result = r
		}
		return err
	}
	c.call(fmt.Sprintf("submit %d tasks %s...", len(specs), specs[0].key), serve, func(err error) {
		c.checkError("submit", err, sched.ErrUnknownGraph, sched.ErrUnknownInput)
		if err != nil || c.gone {
			return
		}
		c.graphs = append(c.graphs, result.Graph)
		for i, id := range result.Tasks {
			if holds[i] {
				c.held[id] = specs[i]
			}
			if specs[i].kind == data {
				c.scatter(id, specs[i])
			}
		}
	})
	if w.fault(w.plan.duplicate * 3) {
		w.after(w.between(0, 10*time.Second), func() {
			w.counts.duplicates++
			if graph == 0 && c.gone || !w.server.up {
				return
			}
			w.log("again, client %s: submit %s...", c.id, specs[0].key)
			before := w.server.m.Totals().Submitted
			if _, known := w.server.answered[ev.RequestID]; known {
				if err := serve(); err != nil {
					w.log("refused: %v", err)
				}
				w.server.settle()
				if w.server.m.Totals().Submitted != before {
					w.fail(nil, "a submission was applied twice")
				}
			}
		})
	}
}

// submit submits a graph with the functions that the scheduler lacks.
func (s *server) submit(ev sched.GraphSubmitted, specs []*spec) (sched.SubmitResult, error) {
	submission := schedapi.Submission{Graph: ev}
	for _, op := range ev.Ops {
		if op.Kind == sched.OpPythonPickle {
			submission.Needed = append(submission.Needed, op.Function)
		}
	}
	accepted, err := s.loop.Submit(context.Background(), submission)
	if err == nil && len(accepted.MissingFunctions) > 0 {
		for _, hash := range accepted.MissingFunctions {
			submission.Functions = append(submission.Functions, schedapi.Function{Hash: hash, Payload: hash[:1]})
		}
		submission.Graph = cloned(ev)
		accepted, err = s.loop.Submit(context.Background(), submission)
	}
	if err != nil {
		return accepted.SubmitResult, err
	}
	result := accepted.SubmitResult
	for i, id := range result.Tasks {
		if was := s.w.oracle.byTask[id]; was != nil && was != specs[i] {
			s.w.fail([]ids.TaskID{id}, "%s is the number of %s and was that of %s", id, specs[i].key, was.key)
		}
		s.w.oracle.byTask[id] = specs[i]
	}
	if _, known := s.answered[ev.RequestID]; !known {
		s.w.oracle.graphs[result.Graph] = append(s.w.oracle.graphs[result.Graph], specs...)
		s.answered[ev.RequestID] = result.Graph
		if ev.Client == 0 {
			s.detached = append(s.detached, &detached{graph: result.Graph})
		}
	}
	return result, nil
}

// extend appends tasks to an earlier graph. Some of them use tasks that the client holds.
func (c *client) extend() {
	w := c.w
	if len(c.graphs) == 0 {
		return
	}
	var known []*spec
	for _, id := range c.pickHeld(5, nil) {
		known = append(known, c.held[id])
	}
	c.submit(w.graph(c.namespace, c.prefix(), 1+w.rng.IntN(w.plan.tasks), known), pick(w, c.graphs))
}

// join submits an earlier graph again, all of it or a first part.
func (c *client) join() {
	w := c.w
	var from []ids.GraphID
	for _, g := range sortedKeys(w.oracle.graphs) {
		if specs := w.oracle.graphs[g]; specs[0].namespace == c.namespace && c.closed(specs) {
			from = append(from, g)
		}
	}
	if len(from) == 0 {
		return
	}
	specs := w.oracle.graphs[pick(w, from)]
	c.submit(slices.Clone(specs[:1+w.rng.IntN(len(specs))]), 0)
}

// closed reports whether the tasks need only one another, each once and inputs first.
func (c *client) closed(specs []*spec) bool {
	seen := map[*spec]bool{}
	for _, s := range specs {
		for _, in := range s.inputs {
			if !seen[in] {
				return false
			}
		}
		if seen[s] {
			return false
		}
		seen[s] = true
	}
	return true
}

// cancel cancels some tasks or a graph.
func (c *client) cancel() {
	w := c.w
	ev := sched.TasksCancelled{Client: c.id, Reason: "sim", Force: w.chance(0.3)}
	if w.chance(0.2) {
		ev.Client, ev.Force = 0, false // an operator does it
	}
	if len(c.graphs) > 0 && w.chance(0.2) {
		ev.Graphs = append(ev.Graphs, pick(w, c.graphs))
	} else {
		ev.Tasks = c.pickHeld(1+w.rng.IntN(4), nil)
	}
	if len(ev.Tasks)+len(ev.Graphs) == 0 {
		return
	}
	c.call(fmt.Sprintf("cancel %v %v force %v", ev.Tasks, ev.Graphs, ev.Force), func() error {
		named := []*spec{}
		for _, id := range ev.Tasks {
			named = append(named, w.oracle.byTask[id])
		}
		for _, g := range ev.Graphs {
			named = append(named, w.oracle.graphs[g]...)
		}
		for _, s := range named {
			s.cancelledAt, s.mayBeLost = w.events, true
			s.cancelledBy[ev.Client] = true
		}
		again := ev
		again.Tasks, again.Graphs = nil, slices.Clone(ev.Graphs)
		_, err := w.server.loop.Cancel(context.Background(), again, schedapi.TaskSet{Tasks: slices.Clone(ev.Tasks)})
		return err
	}, func(err error) { c.checkError("cancel", err, sched.ErrUnknownTask, sched.ErrUnknownGraph) })
}

// retry runs failed or cancelled tasks again. A copy may run at one worker only, which may be gone.
func (c *client) retry() {
	w := c.w
	tasks := c.pickHeld(5, func(id ids.TaskID) bool {
		state := c.latest[id].State
		return (state == sched.TaskFailed || state == sched.TaskCancelled) && c.held[id].op.Name != copyOp
	})
	if len(tasks) == 0 {
		return
	}
	c.call(fmt.Sprintf("retry %v", tasks), func() error {
		_, err := w.server.loop.Retry(context.Background(), c.id, schedapi.TaskSet{Tasks: slices.Clone(tasks)}, nil)
		if err == nil {
			for _, id := range tasks {
				w.oracle.byTask[id].retriedAt = w.events
			}
		}
		return err
	}, func(err error) { c.checkError("retry", err, sched.ErrUnknownTask) })
}

// release ends the holds on some tasks.
func (c *client) release() {
	w := c.w
	tasks := c.pickHeld(1+w.rng.IntN(10), nil)
	for _, id := range tasks {
		c.held[id].mayBeLost = true
		delete(c.held, id)
		delete(c.latest, id)
		delete(c.verified, id)
	}
	c.call(fmt.Sprintf("release %v", tasks), func() error {
		return w.server.loop.Release(context.Background(), c.id, schedapi.TaskSet{Tasks: slices.Clone(tasks)})
	}, func(err error) { c.checkError("release", err) })
}

// holdByKey holds tasks of its namespace by their keys.
func (c *client) holdByKey() {
	w := c.w
	var keys []string
	var specs []*spec
	for range 1 + w.rng.IntN(3) {
		if len(w.oracle.specs) == 0 {
			return
		}
		if s := pick(w, w.oracle.specs); s.namespace == c.namespace && !slices.Contains(keys, s.key) {
			keys, specs = append(keys, s.key), append(specs, s)
		}
	}
	if len(keys) == 0 {
		return
	}
	var tasks []ids.TaskID
	c.call(fmt.Sprintf("hold %v", keys), func() (err error) {
		tasks, err = w.server.loop.Hold(context.Background(), c.id, schedapi.TaskSet{Keys: slices.Clone(keys)})
		return err
	}, func(err error) {
		c.checkError("hold", err, sched.ErrUnknownTask, sched.ErrUnknownInput)
		if err != nil {
			return
		}
		for i, id := range tasks {
			c.held[id] = specs[i]
			if specs[i].kind == data {
				c.scatter(id, specs[i])
			}
		}
	})
}

// detach submits a graph that needs no client.
func (c *client) detach() {
	w := c.w
	specs := w.graph("detached", "d"+c.prefix(), 1+w.rng.IntN(w.plan.tasks), nil)
	for _, s := range specs {
		if s.kind == data {
			s.kind = works
			s.op = w.randomOp(works)
		}
	}
	ev := c.submission(specs, func(int) bool { return false })
	ev.Client, ev.Namespace, ev.Retention = 0, "detached", w.between(0, 20*time.Second)
	var graph ids.GraphID
	c.call(fmt.Sprintf("submit detached %d tasks", len(specs)), func() error {
		result, err := w.server.submit(cloned(ev), specs)
		graph = result.Graph
		return err
	}, func(err error) {
		c.checkError("submit detached", err)
		if err == nil && w.chance(0.3) {
			c.after(w.between(0, 3*time.Second), func() { c.releaseGraph(graph, w.chance(0.5)) })
		}
	})
}

func (c *client) releaseGraph(graph ids.GraphID, cancel bool) {
	w := c.w
	c.call(fmt.Sprintf("release %s cancel %v", graph, cancel), func() error {
		if cancel {
			for _, s := range w.oracle.graphs[graph] {
				s.cancelledAt = w.events
			}
		}
		return w.server.loop.ReleaseGraph(context.Background(), sched.GraphReleased{Graph: graph, Cancel: cancel})
	}, func(err error) {
		c.checkError("release graph", err, sched.ErrGraphRunning, sched.ErrUnknownGraph)
	})
}

// publish publishes some held tasks as a dataset, which is unpublished after a random time.
func (c *client) publish() {
	w := c.w
	var keys []string
	for _, id := range c.pickHeld(3, nil) {
		keys = append(keys, c.held[id].key)
	}
	if len(keys) == 0 {
		return
	}
	name := "set." + c.prefix()
	published := false
	c.call(fmt.Sprintf("publish %s: %v", name, keys), func() error {
		if published {
			return nil
		}
		_, err := w.server.loop.Publish(context.Background(), schedapi.DatasetSpec{Client: c.id, Name: name, Keys: slices.Clone(keys)})
		if err == nil {
			published = true
			w.after(w.between(0, w.plan.chaos), func() {
				w.server.whenUp(func() {
					w.log("unpublish %s", name)
					w.server.must(w.server.loop.Unpublish(context.Background(), c.namespace, name))
				})
			})
		}
		return err
	}, func(err error) { c.checkError("publish", err, sched.ErrUnknownTask, sched.ErrUnknownInput) })
}

// scatter writes the bytes of a data task to some worker, until the scheduler knows a worker that
// has them.
func (c *client) scatter(task ids.TaskID, s *spec) {
	w := c.w
	c.pending++
	answered := func(p *process) func(bool) {
		return func(accepted bool) {
			w.counts.writes++
			if !accepted {
				w.counts.refused++
				w.log("%s/%s is refused at %s", task, dataGeneration, p.host.name)
			}
		}
	}
	var try func()
	try = func() {
		p := pick(w, w.hosts).proc
		again := func() { c.after(w.between(10*time.Millisecond, 200*time.Millisecond), try) }
		if p == nil || p.stopped {
			again()
			return
		}
		c.after(w.between(100*time.Microsecond, 3*time.Millisecond), func() {
			if p.dead || p.stopped {
				again()
				return
			}
			o := object{Task: task, Generation: dataGeneration}
			w.log("client %s scatters %s to %s", c.id, o, p.host.name)
			p.write(o, s, answered(p))
			// A client that gets no answer tries again at another worker. One of the two copies is
			// then refused.
			if w.chance(0.15) {
				second := pick(w, w.hosts).proc
				c.after(w.between(0, 5*time.Millisecond), func() {
					if second != nil && !second.dead && !second.stopped {
						second.write(o, s, answered(second))
					}
				})
			}
			// The worker may die before its report reaches the scheduler.
			c.after(w.between(500*time.Millisecond, 2*time.Second), func() {
				// Ask the scheduler: the client's last update may be older than its last
				// submission.
				if u, ok := w.server.m.UpdateOf(task); ok && u.State == sched.TaskWaiting && c.held[task] != nil {
					try()
					return
				}
				c.pending--
			})
		})
	}
	try()
}

// complete reports whether all tasks that the client holds have the right outcome, and their
// results could be read.
func (c *client) complete() bool {
	w := c.w
	if c.gone {
		return true
	}
	// One pending call is the renewal.
	if c.id == 0 || c.pending > 1 {
		return false
	}
	still := map[ids.TaskID]bool{}
	w.server.m.HeldBy(c.id, func(id ids.TaskID) { still[id] = true })
	done := true
	for _, id := range sortedKeys(c.held) {
		s := c.held[id]
		if !still[id] {
			mine := false
			w.oracle.walk(s, func(a *spec) { mine = mine || a.cancelledBy[c.id] || a.cancelledBy[0] })
			if !mine {
				w.fail([]ids.TaskID{id}, "client %s does not hold %s (%s) any more", c.id, id, s.key)
			}
			delete(c.held, id)
			continue
		}
		u := c.latest[id]
		switch u.State {
		case sched.TaskSucceeded, sched.TaskFailed, sched.TaskCancelled:
		case sched.TaskWaiting, sched.TaskReady, sched.TaskAssigned, sched.TaskRunning, sched.TaskReleased, sched.TaskRescuing:
			done = false
			continue
		default:
			done = false
			continue
		}
		if now, ok := w.server.m.UpdateOf(id); !ok || now.State != u.State {
			done = false // the update is on its way
			continue
		}
		if err := w.oracle.check(s, u.State, u.Err); err != nil {
			w.fail([]ids.TaskID{id}, "client %s: %v", c.id, err)
		}
		if u.State == sched.TaskSucceeded && u.Inline == nil && c.verified[id] != u.Generation {
			done = false
			c.verify(id, s)
			continue
		}
		c.verified[id] = u.Generation
	}
	return done
}

// verify reads a result from a worker that the scheduler names.
func (c *client) verify(id ids.TaskID, s *spec) {
	w := c.w
	if c.verifying[id] {
		return
	}
	c.verifying[id] = true
	c.query(fmt.Sprintf("locate %s", id), c.renew, func(err error) {
		c.checkError("locate", err)
		info, ok := w.server.m.Task(id)
		if !ok || len(info.Replicas) == 0 {
			delete(c.verifying, id)
			return
		}
		u := c.latest[id]
		p := w.server.process(pick(w, info.Replicas))
		c.after(w.between(100*time.Microsecond, time.Millisecond), func() {
			delete(c.verifying, id)
			if p == nil || p.dead || p.stopped {
				return
			}
			v, there := p.read(object{Task: id, Generation: u.Generation})
			if !there {
				w.log("client %s does not find %s/%s on %s", c.id, id, u.Generation, p.host.name)
				return
			}
			if v != s.value {
				w.fail([]ids.TaskID{id}, "client %s read a wrong value of %s", c.id, id)
			}
			c.verified[id] = u.Generation
		})
	})
}
