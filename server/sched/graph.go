package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// graph is a set of tasks that were submitted together or appended later.
type graph struct {
	id     ids.GraphID
	slot   uint32
	name   string
	ns     *namespace
	client ids.ClientID // 0: detached
	// flow is that of its client.
	flow *flow
	// holder is the holder slot of a detached graph; 0: none. It holds the tasks that were
	// submitted with a hold or without dependents, until the retention time after the graph's end
	// is over.
	holder    uint32
	retention time.Duration
	// ranges cover the ids of its tasks, in order. They may also contain ids of forgotten tasks or
	// of other graphs' tasks.
	ranges []idRange
	// prune is the number of ranges at which ranges without tasks are dropped.
	prune int
	// live counts tasks that are not forgotten. active counts tasks that have not ended or whose
	// object is being rescued.
	live, active uint64
	counts       Counts
	summaries    []OpSummary
	summaryIndex map[string]uint32 // made when there are more than 16 summaries
	createdAt    time.Time
	endedAt      time.Time
	expiresAt    time.Time
	firstError   *TaskError
	// failing says that tasks have failed since an effect told so, and newError is the error of the
	// first of them. It stays until another task fails; nil: none has failed.
	newError *TaskError
	failing  bool
	dirty    bool
	// dropped means that the graph is removed together with its last task.
	dropped bool
	emptied bool // in Machine.emptied
	// endedBefore is the time at which it had ended before a restart, until one of its tasks runs.
	endedBefore time.Time
}

// idRange is the half-open range of ids [first, end).
type idRange struct{ first, end ids.TaskID }

// keptEmptyGraphs bounds the client graphs without tasks. They are kept because their client may
// append to them.
const keptEmptyGraphs = 10_000

func (m *Machine) graphOf(id ids.GraphID) *graph {
	if slot, ok := m.graphIndex[id]; ok {
		return m.graphs[slot]
	}
	return nil
}

func (m *Machine) newGraph(ev *GraphSubmitted, ns *namespace) *graph {
	g := m.placeGraph(&graph{id: m.nextGraph, name: ev.Name, ns: ns, client: ev.Client, retention: ev.Retention, createdAt: m.now, prune: 16})
	m.nextGraph++
	ns.refs++
	g.flow = m.flowOf(g)
	if m.facts.on {
		m.facts.put(g.row())
	}
	if ev.Client == 0 {
		g.holder = m.addHolder(holder{kind: HolderGraph, id: uint64(g.id)})
	} else {
		c := m.clients[ev.Client]
		c.graphs = append(c.graphs, g.id)
		if len(c.graphs) > c.prune {
			keep := c.graphs[:0]
			for _, id := range c.graphs {
				if m.graphOf(id) != nil {
					keep = append(keep, id)
				}
			}
			c.graphs, c.prune = keep, 2*len(keep)+16
		}
	}
	return g
}

// flowOf returns the flow of a graph.
func (m *Machine) flowOf(g *graph) *flow {
	if c := m.clients[g.client]; c != nil {
		return &c.flow
	}
	return &g.ns.flow
}

// begin counts tasks that have not ended, and endOne the end of one.
func (g *graph) begin(tasks uint64) {
	if g.active == 0 && tasks > 0 {
		g.flow.graphs++
	}
	g.active += tasks
}

func (g *graph) endOne() {
	if g.active--; g.active == 0 {
		g.flow.graphs--
	}
}

// placeGraph gives a graph a slot.
func (m *Machine) placeGraph(g *graph) *graph {
	if k := len(m.freeGraphs); k > 0 {
		g.slot = m.freeGraphs[k-1]
		m.freeGraphs = m.freeGraphs[:k-1]
		m.graphs[g.slot] = g
	} else {
		g.slot = uint32(len(m.graphs))
		m.graphs = append(m.graphs, g)
	}
	m.graphIndex[g.id] = g.slot
	return g
}

func (g *graph) summary(name string) uint32 {
	if g.summaryIndex != nil {
		if i, ok := g.summaryIndex[name]; ok {
			return i
		}
	} else {
		for i := range g.summaries {
			if g.summaries[i].Name == name {
				return uint32(i)
			}
		}
	}
	i := uint32(len(g.summaries))
	g.summaries = append(g.summaries, OpSummary{Name: name})
	switch {
	case g.summaryIndex != nil:
		g.summaryIndex[name] = i
	case len(g.summaries) > 16:
		g.summaryIndex = make(map[string]uint32, 2*len(g.summaries))
		for k := range g.summaries {
			g.summaryIndex[g.summaries[k].Name] = uint32(k)
		}
	}
	return i
}

// addRange records that the graph got the tasks from first to end - 1.
func (m *Machine) addRange(g *graph, first, end ids.TaskID) {
	if n := len(g.ranges); n > 0 && g.ranges[n-1].end == first {
		g.ranges[n-1].end = end
		return
	}
	if len(g.ranges) >= g.prune {
		keep := g.ranges[:0]
		for _, r := range g.ranges {
			alive := false
			m.eachIn(r, func(_ ids.TaskID, _ *block, t *task) bool {
				alive = t.graph == g.slot
				return !alive
			})
			if alive {
				keep = append(keep, r)
			}
		}
		g.ranges = keep
		g.prune = 2*len(keep) + 16
	}
	g.ranges = append(g.ranges, idRange{first, end})
}

// eachIn visits the tasks of a range that are not forgotten, in order, until visit returns false.
func (m *Machine) eachIn(r idRange, visit func(ids.TaskID, *block, *task) bool) {
	for id := r.first; id < r.end; {
		b := m.tasks.block(uint64(id) >> blockBits)
		end := min(r.end, (id|blockMask)+1)
		if b == nil {
			id = end
			continue
		}
		for ; id < end; id++ {
			if t := &b.tasks[id&blockMask]; t.state != 0 && !visit(id, b, t) {
				return
			}
		}
	}
}

// eachTask visits the tasks of a graph in order.
func (m *Machine) eachTask(g *graph, visit func(ids.TaskID, *block, *task) bool) {
	m.eachTaskAfter(g, 0, visit)
}

// eachTaskAfter visits the tasks of a graph with ids above after, in order.
func (m *Machine) eachTaskAfter(g *graph, after ids.TaskID, visit func(ids.TaskID, *block, *task) bool) {
	stop := false
	for _, r := range g.ranges {
		r.first = max(r.first, after+1)
		m.eachIn(r, func(id ids.TaskID, b *block, t *task) bool {
			if t.graph == g.slot {
				stop = !visit(id, b, t)
			}
			return !stop
		})
		if stop {
			return
		}
	}
}

// touch marks a graph as changed. flushGraphs reports each marked graph once at the end of the
// step.
func (m *Machine) touch(slot uint32, g *graph) {
	if !g.dirty {
		g.dirty = true
		m.dirty = append(m.dirty, slot)
	}
}

// flushGraphs reports the graphs that changed in this step, and removes those that are done.
func (m *Machine) flushGraphs() {
	for _, slot := range m.dirty {
		g := m.graphs[slot]
		g.dirty = false
		switch {
		case g.active > 0:
			g.endedAt, g.expiresAt = time.Time{}, time.Time{}
		case g.endedAt.IsZero():
			if g.endedAt = g.endedBefore; g.endedAt.IsZero() {
				g.endedAt = m.now
				if m.facts.on {
					m.facts.put(&GraphEnded{Graph: g.id, At: m.now})
				}
			}
			if g.holder != 0 {
				g.expiresAt = g.endedAt.Add(g.retention)
				m.arm(timer{at: g.expiresAt, kind: timerRetention, id: uint64(g.id)})
			}
		}
		if g.live == 0 {
			if g.dropped {
				m.removeGraph(g)
				continue
			}
			if g.client != 0 && !g.emptied {
				g.emptied = true
				m.emptied = append(m.emptied, g.id)
			}
		}
		m.emit(Effect{Kind: EffectGraphChanged, Graph: g.id, Ended: g.active == 0, Failed: g.active == 0 && g.failing})
		g.failing = g.failing && g.active > 0
	}
	m.dirty = m.dirty[:0]
	for len(m.emptied) > keptEmptyGraphs {
		g := m.graphOf(m.emptied[0])
		m.emptied = m.emptied[1:]
		if g == nil {
			continue
		}
		if g.emptied = false; g.live == 0 {
			m.removeGraph(g)
		}
	}
	if len(m.emptied) == 0 {
		m.emptied = nil
	}
}

func (m *Machine) removeGraph(g *graph) {
	if g.holder != 0 {
		m.removeHolder(g.holder)
	}
	delete(m.graphIndex, g.id)
	m.graphs[g.slot] = nil
	m.freeGraphs = append(m.freeGraphs, g.slot)
	m.unrefNamespace(g.ns)
	if m.facts.on {
		m.facts.put(&GraphDeleted{Graph: g.id})
	}
	m.emit(Effect{Kind: EffectGraphRemoved, Graph: g.id})
}

// dropGraph ends the graph's own interest in its tasks: the holds of a detached graph, and the
// tasks that run for their own sake. The graph is removed with its last task.
func (m *Machine) dropGraph(g *graph) {
	if m.facts.on && !g.dropped {
		m.facts.put(&GraphDropped{Graph: g.id})
	}
	g.dropped = true
	m.touch(g.slot, g)
	if g.holder != 0 {
		m.removeHolder(g.holder)
		g.holder = 0
		return
	}
	m.eachTask(g, func(id ids.TaskID, _ *block, t *task) bool {
		if t.flags&flagRunHold != 0 {
			t.flags &^= flagRunHold
			m.reconsider(id, t)
		}
		return true
	})
}

func (m *Machine) retentionDue(id ids.GraphID) {
	g := m.graphOf(id)
	if g != nil && g.holder != 0 && !g.expiresAt.IsZero() && !g.expiresAt.After(m.now) {
		m.dropGraph(g)
	}
}

func (g *graph) row() *GraphPut {
	r := &GraphPut{Graph: g.id, Client: g.client, Name: g.name, Namespace: g.ns.name, Retention: g.retention,
		CreatedAt: g.createdAt, EndedAt: g.endedAt, Dropped: g.dropped, Ops: make([]OpTotal, len(g.summaries))}
	for i := range g.summaries {
		r.Ops[i] = g.summaries[i].total()
	}
	if r.EndedAt.IsZero() {
		r.EndedAt = g.endedBefore
	}
	return r
}

// OpSummary sums up the tasks of one op in one graph.
type OpSummary struct {
	Name   string
	Counts Counts
	// RunTime is the sum over finished attempts.
	RunTime time.Duration
	// OutputBytes is the sum over finished attempts.
	OutputBytes uint64
}

// total counts the tasks that the graph has ever had: forgotten ones count as RELEASED.
func (s *OpSummary) total() OpTotal {
	total := OpTotal{Name: s.Name}
	for _, n := range s.Counts {
		total.Tasks += n
	}
	return total
}
