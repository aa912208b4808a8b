package loop

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// defaultTTL is the lifetime of a client lease that asks for none
	// (OpenClientRequest.lease_ttl).
	defaultTTL = 30 * time.Second
	// awaitTTL is the lifetime of the lease of Await, the longest that a client may ask for. Await
	// closes its lease itself, and a task may run for long.
	awaitTTL = 24 * time.Hour
)

// client is one client lease.
type client struct {
	id       ids.ClientID
	spec     schedapi.ClientSpec
	openedAt time.Time
	lastSeen time.Time
	changes  changeLog
	watches  []*watch
	// kept says that a timer renews the lease because watches are open or calls of Ask wait, whose
	// number is asking.
	kept   bool
	asking int
	// await is not nil for a lease that Await opened for itself; it receives the task's final
	// update. Such leases are not listed in the catalogue.
	await chan sched.Update
	// dirty: the client is in clients.dirty. queued and stale: its row waits for a commit (see the
	// type dirty).
	dirty, queued, stale bool
}

type clients struct {
	byID  map[ids.ClientID]*client
	dirty []*client
	// recent is a cache of the last lookup, because effects come in runs for one client.
	recent *client
	// owners has the owner of each client, for readers in any goroutine.
	owners *sync.Map
}

func newClients() clients { return clients{byID: map[ids.ClientID]*client{}, owners: new(sync.Map)} }

func (cs *clients) get(id ids.ClientID) *client {
	if cs.recent != nil && cs.recent.id == id {
		return cs.recent
	}
	c := cs.byID[id]
	if c != nil {
		cs.recent = c
	}
	return c
}

func errUnknownClient(id ids.ClientID) error {
	return &sched.Error{Kind: sched.ErrUnknownClient, Object: id.String(), Message: fmt.Sprintf(
		"client %d is unknown: its lease ended, or it was opened at another scheduler; open a new one", uint64(id))}
}

// OpenClient opens a lease.
func (l *Loop) OpenClient(ctx context.Context, spec schedapi.ClientSpec) (*schedapi.Client, error) {
	var row *schedapi.Client
	var refused error
	err := l.call(ctx, func() {
		if refused = l.refuseNew(); refused != nil {
			return
		}
		c := l.openClient(spec)
		l.record(&journal.ClientOpened{Client: c.id, Spec: c.spec})
		if spec.Owner != "" {
			l.record(&journal.ClientOwned{Client: c.id, Owner: spec.Owner})
		}
		row = l.clientRow(c)
		row.Revision = l.catalog.Snapshot().Revision()
	})
	if err == nil {
		err = refused
	}
	return row, err
}

// OwnerOf returns the owner of an open client.
func (l *Loop) OwnerOf(id ids.ClientID) (owner string, known bool) {
	found, known := l.clients.owners.Load(id)
	owner, _ = found.(string)
	return owner, known
}

func (l *Loop) openClient(spec schedapi.ClientSpec) *client {
	if spec.TTL == 0 {
		spec.TTL = defaultTTL
	}
	return l.addClient(l.newClientID(), spec)
}

func (l *Loop) addClient(id ids.ClientID, spec schedapi.ClientSpec) *client {
	c := &client{id: id, spec: spec, openedAt: l.now, lastSeen: l.now}
	if starts := l.restarting.starts; starts > 0 {
		first := (starts - 1) * restartRevisions
		c.changes = changeLog{revision: first, floor: first}
	}
	l.clients.byID[c.id] = c
	l.clients.owners.Store(c.id, spec.Owner)
	l.step(sched.ClientOpened{Client: c.id, Namespace: spec.Namespace, Worker: spec.Worker, TTL: spec.TTL})
	l.dirty.client(c, l.now)
	return c
}

// renewLease renews the lease in whose name a call is made, and returns its client.
func (l *Loop) renewLease(id ids.ClientID) (*client, error) {
	c := l.clients.get(id)
	if c == nil {
		return nil, errUnknownClient(id)
	}
	c.lastSeen = l.now
	l.step(sched.ClientRenewed{Client: id})
	l.dirty.clientCounters(c)
	return c, nil
}

// RenewClient extends a lease by its lifetime.
func (l *Loop) RenewClient(ctx context.Context, id ids.ClientID) error {
	return l.do(ctx, func() error {
		_, err := l.renewLease(id)
		return err
	})
}

// CloseClient ends a lease and releases its holds. An unknown lease is no error.
func (l *Loop) CloseClient(ctx context.Context, id ids.ClientID) error {
	return l.call(ctx, func() {
		l.awaitFacts() // If the client is gone, an earlier call may have ended it.
		l.closeClient(id)
	})
}

func (l *Loop) closeClient(id ids.ClientID) {
	if l.clients.get(id) == nil {
		return
	}
	l.step(sched.ClientClosed{Client: id})
	l.forgetClient(id, false)
	l.settleHolds()
}

// forgetClient ends a client's watches and deletes its state.
func (l *Loop) forgetClient(id ids.ClientID, expired bool) {
	c := l.clients.get(id)
	if c == nil {
		return
	}
	if expired && c.await == nil {
		l.log.Info("a client's lease ended", "client", id, "name", c.spec.Name, "ttl", c.spec.TTL)
		l.happened(schedapi.EventClientLost, schedapi.SeverityInfo, "", "the lease of %s ended: it was silent for %v, and its results are released", named("a client", c.spec.Name), c.spec.TTL)
	}
	if c.await == nil {
		l.record(&sched.ClientClosed{Client: id})
	} else {
		l.note(&sched.ClientClosed{Client: id})
	}
	delete(l.clients.byID, id)
	l.clients.owners.Delete(id)
	l.clients.recent = nil
	for _, w := range c.watches {
		w.end()
	}
	c.watches = nil
	if !l.restarting.loading { // Otherwise what follows from it is recorded, too.
		l.coordinated(l.coordination.machine.ClientGone(l.now, id, l.coordination.effects[:0]))
	}
	l.dirty.client(c, l.now)
}

// notify records that a task changed, for the watches of the client.
func (l *Loop) notify(effect *sched.Effect) {
	c := l.clients.get(effect.Client)
	if c == nil || l.restarting.loading {
		return
	}
	if c.await != nil {
		l.notifyAwaiting(c, effect.Task)
		return
	}
	c.changes.add(effect.Task, effect.State)
	if c.changes.full() {
		c.changes.trim(c.delivered())
	}
	if !c.dirty {
		c.dirty = true
		l.clients.dirty = append(l.clients.dirty, c)
	}
	l.dirty.clientCounters(c)
}

// delivered is the revision up to which every watch has received all changes.
func (c *client) delivered() uint64 {
	least := c.changes.revision
	for _, w := range c.watches {
		least = min(least, w.cursor)
	}
	return least
}

// flushClients hands changes to the watches that wait for a batch.
func (l *Loop) flushClients() {
	for _, c := range l.clients.dirty {
		c.dirty = false
		for _, w := range c.watches {
			w.feed()
		}
	}
	l.clients.dirty = l.clients.dirty[:0]
}

// Await holds a task until it has ended, and returns its update. It opens a client lease of its own
// and closes it at the end.
func (l *Loop) Await(ctx context.Context, namespace, key string) (sched.Update, error) {
	var c *client
	err := l.do(ctx, func() error {
		c = l.openAwaiting(l.newClientID(), namespace)
		l.note(&journal.ClientAwaits{Client: c.id, Namespace: namespace})
		tasks, err := l.hold(sched.TasksHeld{Client: c.id, Keys: []string{key}})
		if err != nil {
			return err
		}
		l.notifyAwaiting(c, tasks[0])
		return nil
	})
	if c != nil {
		defer func() { l.settle(func() { l.closeClient(c.id) }) }()
	}
	if err != nil {
		return sched.Update{}, err
	}
	select {
	case update := <-c.await:
		return update, nil
	case <-ctx.Done():
		return sched.Update{}, ctx.Err()
	case <-l.draining:
		return sched.Update{}, l.refuseIfDraining()
	}
}

// openAwaiting opens a lease of Await.
func (l *Loop) openAwaiting(id ids.ClientID, namespace string) *client {
	c := l.addClient(id, awaitSpec(namespace))
	c.await = make(chan sched.Update, 1)
	return c
}

func awaitSpec(namespace string) schedapi.ClientSpec {
	return schedapi.ClientSpec{Name: "await", Namespace: namespace, TTL: awaitTTL}
}

func (l *Loop) notifyAwaiting(c *client, task ids.TaskID) {
	update, ok := l.machine.UpdateOf(task)
	if !ok || update.State < sched.TaskSucceeded || update.State == sched.TaskReleased || update.State == sched.TaskRescuing {
		return
	}
	select {
	case c.await <- update:
	default:
	}
}
