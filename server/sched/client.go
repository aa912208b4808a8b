package sched

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// client is an open lease. It keeps alive the tasks that it holds and the tasks that run for its
// graphs' sake.
type client struct {
	id     ids.ClientID
	ns     *namespace
	holder uint32
	// worker is the name of the worker whose task opened this client; empty if no task did.
	worker string
	ttl    time.Duration
	// expires is the end of the lease if it is not renewed. A timer at or before that time exists.
	expires time.Time
	// graphs are the client's own graphs. Removed graphs are dropped from the list when its length
	// exceeds prune.
	graphs []ids.GraphID
	prune  int
	flow   flow
}

func (m *Machine) clientOpened(ev ClientOpened) {
	c := m.clients[ev.Client]
	if ev.Client == 0 {
		return
	}
	if c == nil {
		ns := m.namespace(ev.Namespace)
		ns.refs++
		c = &client{id: ev.Client, ns: ns, prune: 16, holder: m.addHolder(holder{kind: HolderClient, id: uint64(ev.Client), client: ev.Client})}
		c.flow.ns = ns
		m.clients[ev.Client] = c
	}
	c.ttl, c.worker = ev.TTL, ev.Worker
	c.expires = m.now.Add(ev.TTL)
	m.arm(timer{at: c.expires, kind: timerLease, id: uint64(ev.Client)})
}

func (m *Machine) clientRenewed(ev ClientRenewed) {
	if c := m.clients[ev.Client]; c != nil {
		c.expires = m.now.Add(c.ttl)
	}
}

func (m *Machine) leaseDue(id ids.ClientID) {
	c := m.clients[id]
	if c == nil {
		return
	}
	if c.expires.After(m.now) {
		m.arm(timer{at: c.expires, kind: timerLease, id: uint64(id)})
		return
	}
	m.emit(Effect{Kind: EffectClientExpired, Client: id})
	m.clientClosed(id)
}

// clientClosed drops all graphs and holds of the client.
func (m *Machine) clientClosed(id ids.ClientID) {
	c := m.clients[id]
	if c == nil {
		return
	}
	for _, gid := range c.graphs {
		if g := m.graphOf(gid); g != nil {
			m.dropGraph(g)
		}
	}
	m.facts.put(&HolderDeleted{m.holders[c.holder].number()})
	m.removeHolder(c.holder)
	delete(m.clients, id)
	m.unrefNamespace(c.ns)
}

// tasksHeld makes a client hold tasks by number and by key.
func (m *Machine) tasksHeld(ev TasksHeld) ([]ids.TaskID, *Error) {
	c := m.clients[ev.Client]
	if c == nil {
		return nil, unknownClient(ev.Client)
	}
	for _, id := range ev.Tasks {
		if _, t := m.lookup(id); t == nil {
			return nil, &Error{Kind: ErrUnknownTask, Object: id.String(),
				Message: fmt.Sprintf("there is no task %s: it was never submitted, or everybody released it", id)}
		}
	}
	tasks, err := m.lookupAll(c.ns, ev.Keys)
	if err != nil {
		return nil, err
	}
	tasks = append(slices.Clip(ev.Tasks), tasks...)
	m.holdAll(c.holder, tasks)
	return tasks, nil
}

func (m *Machine) lookupAll(ns *namespace, keys []string) ([]ids.TaskID, *Error) {
	tasks := make([]ids.TaskID, len(keys))
	for i, key := range keys {
		tasks[i] = ns.keys.find(m, key, hashKey(key))
		if tasks[i] == 0 {
			return nil, unknownKey(ns.name, key)
		}
	}
	return tasks, nil
}

func (m *Machine) holdAll(holder uint32, tasks []ids.TaskID) {
	for _, id := range tasks {
		_, t := m.at(id)
		isNew := m.hold(holder, id)
		if t.state == TaskReleased {
			if isNew {
				m.reruns = append(m.reruns, rerun{task: id})
			}
		} else if h := &m.holders[holder]; h.kind == HolderClient && ended(t.state) {
			// NB: also if the client already holds the task. It may have lost the answer to its
			// first call, and with it the earlier notification.
			m.notifyOne(id, t, h.client)
		}
	}
}

// datasetPublished holds tasks for a dataset. If the dataset is already known, the new tasks
// replace the old ones.
func (m *Machine) datasetPublished(ev DatasetPublished) ([]ids.TaskID, *Error) {
	ns := m.namespaces[ev.Namespace]
	if ns == nil {
		if len(ev.Keys) > 0 {
			return nil, unknownKey(ev.Namespace, ev.Keys[0])
		}
		ns = &namespace{name: ev.Namespace}
	}
	tasks, err := m.lookupAll(ns, ev.Keys)
	if err != nil {
		return nil, err
	}
	old, replaced := m.datasets[ev.Dataset]
	if replaced {
		m.facts.put(&HolderDeleted{m.holders[old].number()})
	}
	slot := m.addHolder(holder{kind: HolderDataset, id: ev.Dataset})
	m.holdAll(slot, tasks)
	if replaced {
		m.removeHolder(old)
	}
	m.datasets[ev.Dataset] = slot
	return tasks, nil
}

func (m *Machine) datasetUnpublished(ev DatasetUnpublished) {
	if slot, ok := m.datasets[ev.Dataset]; ok {
		delete(m.datasets, ev.Dataset)
		m.facts.put(&HolderDeleted{m.holders[slot].number()})
		m.removeHolder(slot)
	}
}

// tasksReleased ends a client's holds.
func (m *Machine) tasksReleased(ev TasksReleased) {
	c := m.clients[ev.Client]
	if c == nil {
		return
	}
	for _, id := range ev.Tasks {
		m.unhold(c.holder, id)
	}
}
