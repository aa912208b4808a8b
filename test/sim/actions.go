package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// This file has the actions of clients.

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
		after := w.server.m.Totals()
		before.Retracted = after.Retracted // Each step may move tasks to idle workers.
		if err == nil || after != before {
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
	for _, id := range slices.Sorted(maps.Keys(c.held)) {
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
			submission.Functions = append(submission.Functions, functions.Function{Hash: hash, Payload: hash[:1]})
		}
		submission.Graph = cloned(ev)
		accepted, err = s.loop.Submit(context.Background(), submission)
	}
	if err != nil {
		if unwritten(err) {
			s.note(specs)
		}
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

// note notes the tasks of a submission that was perhaps accepted, though the client was not told.
func (s *server) note(specs []*spec) {
	for i := range specs {
		if id, known := s.m.Lookup(specs[i].namespace, specs[i].key); known && s.w.oracle.byTask[id] == nil {
			s.w.oracle.byTask[id] = specs[i]
		}
	}
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
	for _, g := range slices.Sorted(maps.Keys(w.oracle.graphs)) {
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
				w.oracle.retried(w.oracle.byTask[id])
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
		_, err := w.server.loop.Publish(context.Background(), schedapi.DatasetSpec{Client: c.id, Name: name, Keys: slices.Clone(keys), Replace: true})
		if err == nil {
			published = true
			w.after(w.between(0, w.plan.chaos), func() { w.server.unpublish(c.namespace, name) })
		}
		return err
	}, func(err error) { c.checkError("publish", err, sched.ErrUnknownTask, sched.ErrUnknownInput) })
}

// unpublish ends a dataset, as often as the scheduler cannot write that down.
func (s *server) unpublish(namespace, name string) {
	s.whenUp(func() {
		s.w.log("unpublish %s", name)
		err := s.loop.Unpublish(context.Background(), namespace, name)
		s.settle()
		if unwritten(err) {
			s.w.after(100*time.Millisecond, func() { s.unpublish(namespace, name) })
			return
		}
		if gone := (*sched.Error)(nil); !errors.As(err, &gone) || gone.Kind != sched.ErrUnknownDataset {
			s.must(err)
		}
	})
}

// scatter writes the bytes of a data task to some worker, until one has answered that they are
// accepted, or the scheduler wants none.
func (c *client) scatter(task ids.TaskID, s *spec) {
	w, done := c.w, false
	c.pending++
	answered := func(p *process) func(bool) {
		return func(accepted bool) {
			w.counts.writes++
			if done = done || accepted; !accepted {
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
				w.server.whenUp(func() {
					// Ask the scheduler: the client's last update may be older than its last
					// submission.
					if u, ok := w.server.m.UpdateOf(task); !done && ok && u.State == sched.TaskWaiting && c.held[task] != nil && !c.gone {
						try()
						return
					}
					c.pending--
				})
			})
		})
	}
	try()
}
