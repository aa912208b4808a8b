package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/test/model"
)

// client is one life of a client. It submits, joins, cancels and waits. At the end all tasks that
// it holds must have the right outcome.
type client struct {
	w         *world
	index     int
	namespace string
	id        ids.ClientID
	gone      bool
	// renewed is the time of the last answer to a renewal, seen that of the last renewal itself.
	// over: the lease was closed.
	renewed, seen time.Time
	over          bool
	// asks are the calls about coordination, taking those of them that take values from queues.
	asks     []*ask
	taking   []*request
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
	for _, id := range slices.Sorted(maps.Keys(c.held)) {
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
		if unanswered || unwritten(err) {
			again()
			return
		}
		c.after(delay(), func() { done(err) })
	})
}

// renew renews the client's lease.
func (c *client) renew() error {
	err := c.w.server.loop.RenewClient(context.Background(), c.id)
	if err == nil {
		c.renewedNow()
	}
	return err
}

// renewedNow notes that the lease was renewed, and when it may end.
func (c *client) renewedNow() {
	at := c.w.now
	c.seen = at
	c.w.after(clientTTL-time.Millisecond, func() {
		if c.seen.Equal(at) {
			c.w.coordination.leaseMayEnd(c)
		}
	})
}

// checkError handles the error of a call. It ignores the allowed kinds. After the end of the lease
// the client crashes. Any other error fails the run.
func (c *client) checkError(what string, err error, allowed ...sched.ErrorKind) {
	refused := (*sched.Error)(nil)
	switch {
	case err == nil, errors.As(err, &refused) && slices.Contains(allowed, refused.Kind):
	case refused != nil && refused.Kind == sched.ErrUnknownClient && (c.over || c.w.now.Sub(c.renewed) > clientTTL-time.Second):
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
			c.renewedNow()
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
		for range c.w.plan.coordinations {
			c.after(c.w.coordination.between(0, max(left, 0)), c.coordinate)
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
	for _, a := range c.asks {
		c.w.after(0, a.cancel)
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
	var op *model.Op
	c.call("close", func() error {
		c.over = true
		if op == nil {
			op = c.w.coordination.history.Begin(c.modelCall(model.LeaseEnds, "", ""))
		}
		err := c.w.server.loop.CloseClient(context.Background(), c.id)
		if err == nil && !c.w.server.troubled() {
			op.End(model.Answer{Met: true})
		}
		return err
	}, func(err error) {
		c.checkError("close", err)
		c.end()
		then()
	})
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
	for _, id := range slices.Sorted(maps.Keys(c.held)) {
		s := c.held[id]
		if !still[id] {
			mine := false
			w.oracle.walk(s, func(a *spec) bool {
				mine = mine || a.cancelledBy[c.id] || a.cancelledBy[0]
				return true
			})
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
