package sched

import "github.com/millrace/millrace/internal/ids"

// tasksCancelled stops tasks and all tasks that need them. With a client and without force, a task
// that other holders also want goes on for them, and only this client's hold ends. Unknown tasks
// are returned, and the known ones are stopped all the same: an unknown task may just have been
// released. A task that the client does not hold and others want counts as unknown.
func (m *Machine) tasksCancelled(ev TasksCancelled) (unknown []ids.TaskID, err *Error) {
	var c *client
	if ev.Client != 0 {
		if c = m.clients[ev.Client]; c == nil {
			return nil, unknownClient(ev.Client)
		}
	}
	for _, g := range ev.Graphs {
		if m.graphOf(g) == nil {
			return nil, unknownGraph(g)
		}
	}
	var tasks []ids.TaskID
	for _, id := range ev.Tasks {
		if _, t := m.lookup(id); t != nil {
			tasks = append(tasks, id)
		} else {
			unknown = append(unknown, id)
		}
	}
	named := len(tasks)
	for _, g := range ev.Graphs {
		m.eachTask(m.graphOf(g), func(id ids.TaskID, _ *block, _ *task) bool {
			tasks = append(tasks, id)
			return true
		})
	}
	reason := cancelError(ev.Reason)
	var foreign map[ids.TaskID]bool
	if c != nil && !ev.Force {
		foreign = m.foreign(tasks, c.holder, c.id)
	}
	for i, id := range tasks {
		_, t := m.at(id)
		switch {
		case foreign[id]:
			if !m.unhold(c.holder, id) && i < named {
				unknown = append(unknown, id)
			}
		case t.undone():
			m.endings = append(m.endings, ending{task: id, state: TaskCancelled, err: reason})
		}
	}
	if n := len(ev.Tasks); n > 0 && len(unknown) == n && len(ev.Graphs) == 0 {
		return nil, unknownTask(ev.Tasks[0]) // Nothing was changed.
	}
	return unknown, nil
}

// foreign finds the tasks that a holder other than the given one wants, directly or through their
// dependents: the other holds the task, or its graph runs the task for its own sake (flagRunHold).
// The given holder belongs to a client, or to a detached graph, whose client is 0. A nil result
// means none.
func (m *Machine) foreign(tasks []ids.TaskID, holder uint32, client ids.ClientID) map[ids.TaskID]bool {
	// There is only one holder, the given one. (Slot 0 of holders is unused.)
	if len(m.clients)+len(m.datasets) <= 1 && len(m.holders)-len(m.freeHolders) == 2 {
		return nil
	}
	// seen has the tasks visited so far; the value says whether another holder wants the task.
	seen := make(map[ids.TaskID]bool, len(tasks))
	type frame struct {
		id   ids.TaskID
		next edgeRef
	}
	var stack []frame
	enter := func(id ids.TaskID) {
		if _, ok := seen[id]; ok {
			return
		}
		b, t := m.at(id)
		others := t.flags&flagRunHold != 0 && m.graphs[t.graph].client != client
		for i := t.holders; i != 0; i = b.links[i].next {
			others = others || b.links[i].value != holder
		}
		seen[id] = others
		stack = append(stack, frame{id, t.dependents})
	}
	for _, root := range tasks {
		enter(root)
		for len(stack) > 0 {
			f := &stack[len(stack)-1]
			if f.next == 0 || seen[f.id] {
				wanted := seen[f.id]
				stack = stack[:len(stack)-1]
				if wanted && len(stack) > 0 {
					seen[stack[len(stack)-1].id] = true
				}
				continue
			}
			cid, _, ct, e := m.consumerOf(f.next)
			f.next = e.next
			if !ct.undone() {
				continue
			}
			if known, ok := seen[cid]; ok {
				if known {
					seen[f.id] = true
				}
				continue
			}
			enter(cid)
		}
	}
	return seen
}

// tasksRetried runs failed and cancelled tasks again, together with their failed and cancelled
// inputs.
func (m *Machine) tasksRetried(ev TasksRetried) (uint64, *Error) {
	for _, id := range ev.Tasks {
		if _, t := m.lookup(id); t == nil {
			return 0, unknownTask(id)
		}
	}
	before := m.totals.Counts[TaskFailed] + m.totals.Counts[TaskCancelled]
	for _, id := range ev.Tasks {
		m.reruns = append(m.reruns, rerun{task: id, retry: retryAll})
	}
	m.propagate()
	after := m.totals.Counts[TaskFailed] + m.totals.Counts[TaskCancelled]
	if after >= before {
		return 0, nil
	}
	return before - after, nil
}

func (m *Machine) graphReleased(ev GraphReleased) *Error {
	g := m.graphOf(ev.Graph)
	if g == nil {
		return unknownGraph(ev.Graph)
	}
	if g.active > 0 && !ev.Cancel {
		return &Error{Kind: ErrGraphRunning, Object: g.id.String(),
			Message: "graph " + g.id.String() + " has tasks that have not ended; wait for them, or release it with cancel"}
	}
	if ev.Cancel {
		var tasks []ids.TaskID
		m.eachTask(g, func(id ids.TaskID, _ *block, t *task) bool {
			if t.undone() {
				tasks = append(tasks, id)
			}
			return true
		})
		holder := g.holder
		if c := m.clients[g.client]; c != nil {
			holder = c.holder
		}
		foreign := m.foreign(tasks, holder, g.client)
		m.eachTask(g, func(id ids.TaskID, _ *block, t *task) bool {
			if t.undone() && !foreign[id] {
				m.endings = append(m.endings, ending{task: id, state: TaskCancelled, err: cancelError("graph released")})
			}
			return true
		})
		m.propagate()
	}
	if c := m.clients[g.client]; c != nil {
		m.eachTask(g, func(id ids.TaskID, _ *block, _ *task) bool {
			m.unhold(c.holder, id)
			return true
		})
	}
	m.dropGraph(g)
	return nil
}
