package sched

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
)

// A new machine loads the rows of the one before, in the order of the log, straight into its tables
// and without any consequence. Rows may refer to rows that come later or are gone. Loaded then
// derives all that follows from the rows: the dependents of tasks, the counts, which tasks are
// wanted. A task that cannot be used fails, with the reason, and all others go on.
//
// While rows are loaded, the state of a task is its end: WAITING if it has none.

// loading is the state of a machine between its first row and Loaded.
type loading struct {
	holders map[Holder]uint32
	// known has the slots of the graphs whose rows came. Others are there because a task is theirs.
	known map[uint32]bool
	// totals are those of the graphs' ops.
	totals map[uint32][]OpTotal
	// next is the lowest number that no task has had, as far as is known.
	next ids.TaskID
	ops  []uint32
	opts []uint32
}

// Loaded ends the loading of rows: from now on the machine takes steps, and the workers come back.
// A machine without rows needs it, too, if it reports facts.
type Loaded struct {
	// Restarts counts the restarts of the scheduler with this journal, including this one.
	Restarts uint64
	// Functions are the functions that are there.
	Functions []ids.FunctionHash
}

func (Loaded) event() {}

// Load puts or deletes a row. REQUIRES: the machine has taken no step.
func (m *Machine) Load(r Row) {
	l := m.restart.loading
	if l == nil {
		l = &loading{holders: map[Holder]uint32{}, known: map[uint32]bool{}, totals: map[uint32][]OpTotal{}}
		m.restart.loading, m.facts.on = l, false
	}
	switch r := r.(type) {
	case *Counters:
		l.next, m.nextGraph = max(l.next, r.NextTask), max(m.nextGraph, r.NextGraph)
	case *ClientOpened:
		m.loadClient(r)
	case *ClientClosed:
		m.unloadHolder(Holder{HolderClient, uint64(r.Client)})
		delete(m.clients, r.Client)
	case *GraphPut:
		m.loadGraph(r)
	case *GraphEnded:
		if g := m.graphOf(r.Graph); g != nil {
			g.endedAt = m.timed(r.At)
		}
	case *GraphDropped:
		m.unloadHolder(Holder{HolderGraph, uint64(r.Graph)})
		if g := m.graphOf(r.Graph); g != nil {
			g.dropped = true
		}
	case *GraphDeleted:
		m.unloadGraph(r.Graph)
	case *TasksPut:
		m.loadTasks(r)
	case *TasksEnded:
		m.loadEnds(r)
	case *DataPut:
		m.loadData(r)
	case *TaskTroubled:
		m.loadTrouble(r)
	case *TasksForgotten:
		for _, id := range r.Tasks {
			l.next = max(l.next, id+1)
			if b, t := m.lookup(id); t != nil {
				m.unloadTask(id, b, t)
			}
		}
	case *RunHoldsPut:
		for _, id := range r.Tasks {
			if _, t := m.lookup(id); t != nil {
				t.flags |= flagRunHold
			}
		}
	case *HoldsPut:
		h := m.loadHolder(r.Holder)
		for _, id := range r.Tasks {
			if b, t := m.lookup(id); t != nil && m.holders[h].held.add(id) {
				b.push(&t.holders, h)
			}
		}
	case *HoldsDeleted:
		if h, ok := l.holders[r.Holder]; ok {
			for _, id := range r.Tasks {
				if m.holders[h].held.remove(id) {
					b, t := m.at(id)
					b.drop(&t.holders, h)
				}
			}
		}
	case *HolderDeleted:
		m.unloadHolder(r.Holder)
	case *RequestPut:
		m.requests.add(requestKey{r.Client, r.Namespace, r.Request},
			answered{SubmitResult{Graph: r.Graph, Tasks: r.Tasks, Joined: r.Joined, Failed: r.Failed}, r.Body})
	default:
		panic(fmt.Sprintf("sched: a %T is no row", r))
	}
}

// SetTime sets the time of the machine, for each step, and before it loads rows: their times are
// brought onto the same clock.
func (m *Machine) SetTime(now time.Time) {
	m.now = now
	if m.epoch.IsZero() {
		m.epoch = now
	}
	m.millis = uint32(now.Sub(m.epoch).Milliseconds())
}

// timed returns a recorded time with the monotonic reading that it would have. One in the future is
// now: the clock was set back since then.
func (m *Machine) timed(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return m.now.Add(min(t.Sub(m.now), 0))
}

func (m *Machine) loadHolder(h Holder) uint32 {
	l := m.restart.loading
	i, ok := l.holders[h]
	if !ok {
		added := holder{kind: h.Kind, id: h.Number}
		if h.Kind == HolderClient {
			added.client = ids.ClientID(h.Number)
		}
		i = m.addHolder(added)
		l.holders[h] = i
	}
	return i
}

func (m *Machine) unloadHolder(h Holder) {
	l := m.restart.loading
	i, ok := l.holders[h]
	if !ok {
		return
	}
	for _, id := range m.holders[i].held.members(nil) {
		b, t := m.at(id)
		b.drop(&t.holders, i)
	}
	m.holders[i] = holder{}
	m.freeHolders = append(m.freeHolders, i)
	delete(l.holders, h)
}

func (m *Machine) loadClient(r *ClientOpened) {
	c := m.clients[r.Client]
	if c == nil {
		c = &client{id: r.Client, prune: 16}
		m.clients[r.Client] = c
	}
	c.ns, c.ttl, c.worker = m.namespace(r.Namespace), r.TTL, r.Worker
	c.holder = m.loadHolder(Holder{HolderClient, uint64(r.Client)})
}

// slotOf returns the slot of a graph, which it makes if it is not there.
func (m *Machine) slotOf(id ids.GraphID) uint32 {
	if slot, ok := m.graphIndex[id]; ok {
		return slot
	}
	g := m.placeGraph(&graph{id: id, prune: 16})
	m.nextGraph = max(m.nextGraph, id+1)
	return g.slot
}

func (m *Machine) loadGraph(r *GraphPut) {
	l := m.restart.loading
	slot := m.slotOf(r.Graph)
	l.known[slot] = true
	g := m.graphs[slot]
	g.name, g.ns, g.client, g.retention = r.Name, m.namespace(r.Namespace), r.Client, r.Retention
	g.createdAt, g.endedAt, g.dropped = m.timed(r.CreatedAt), m.timed(r.EndedAt), r.Dropped
	l.totals[slot] = nil
	m.loadTotals(slot, r.Ops)
}

// loadTotals sets the totals of ops of a graph.
func (m *Machine) loadTotals(slot uint32, totals []OpTotal) {
	l := m.restart.loading
	for _, total := range totals {
		known := l.totals[slot]
		if i := slices.IndexFunc(known, func(o OpTotal) bool { return o.Name == total.Name }); i >= 0 {
			known[i].Tasks = total.Tasks
		} else {
			l.totals[slot] = append(known, total)
		}
	}
}

// unloadGraph removes a graph. If tasks of it are there, they are forgotten later in the log.
func (m *Machine) unloadGraph(id ids.GraphID) {
	l := m.restart.loading
	m.nextGraph = max(m.nextGraph, id+1)
	m.unloadHolder(Holder{HolderGraph, uint64(id)})
	slot, ok := m.graphIndex[id]
	if !ok {
		return
	}
	delete(l.known, slot)
	delete(l.totals, slot)
	if m.graphs[slot].live == 0 {
		delete(m.graphIndex, id)
		m.graphs[slot] = nil
		m.freeGraphs = append(m.freeGraphs, slot)
	}
}

func (m *Machine) loadTasks(r *TasksPut) {
	l := m.restart.loading
	slot := m.slotOf(r.Graph)
	m.loadTotals(slot, r.Totals)
	l.ops, l.opts = l.ops[:0], append(l.opts[:0], 0)
	for i := range r.Ops {
		l.ops = append(l.ops, m.internOp(r.Ops[i]))
	}
	for i := range r.Options {
		l.opts = append(l.opts, m.internOptions(r.Options[i]))
	}
	inputs := r.Inputs
	for i := range r.Tasks {
		t := &r.Tasks[i]
		n := min(int(t.Inputs), len(inputs))
		m.loadTask(slot, t, inputs[:n])
		inputs = inputs[n:]
	}
	for _, o := range l.ops {
		if m.ops[o].tasks == 0 {
			m.retireOp(o)
		}
	}
	for _, o := range l.opts {
		m.freeUnusedOptions(o)
	}
}

// loadTask puts a task. Only its run hold and its end ever change, so a task that is there gets
// back what the row has of these.
func (m *Machine) loadTask(slot uint32, r *TaskRow, inputs []InputRow) {
	l := m.restart.loading
	if r.Task == 0 || r.Task >= maxTaskID {
		return
	}
	n, index := uint64(r.Task)>>blockBits, uint64(r.Task&blockMask)
	l.next = max(l.next, r.Task+1)
	submitted := m.timed(time.UnixMilli(r.Submitted))
	b := m.tasks.block(n)
	if b == nil {
		b = m.tasks.add(n, submitted)
	}
	t := &b.tasks[index]
	if t.state != 0 {
		m.loadEnd(r.Task, b, t, TaskWaiting, 0, nil)
		t.flags &^= flagRunHold
		if r.RunHold {
			t.flags |= flagRunHold
		}
		return
	}
	*t = task{
		key:       uint32(len(b.bytes)),
		keyLen:    uint16(min(len(r.Key), maxKeyBytes)),
		argLen:    uint32(len(r.Arguments)),
		graph:     slot,
		edge:      uint32(len(b.edges)),
		inputs:    uint32(len(inputs)),
		rank:      r.Position & positionMask,
		submitted: uint32(min(max(submitted.Sub(b.base).Milliseconds(), 0), math.MaxUint32)),
		state:     TaskWaiting,
	}
	if int(r.Op) < len(l.ops) {
		t.op = l.ops[r.Op]
	} else {
		t.op = m.internOp(OpSpec{Name: "unknown"})
	}
	if int(r.Options) < len(l.opts) {
		t.options = l.opts[r.Options]
	}
	t.rank |= m.options[t.options].rank
	m.ops[t.op].tasks++
	m.options[t.options].tasks++
	m.graphs[slot].live++
	b.live++
	b.bytes = append(b.bytes, r.Key[:t.keyLen]...)
	if len(r.Arguments) <= smallBytes {
		b.bytes = append(b.bytes, r.Arguments...)
	} else {
		if b.blobs == nil {
			b.blobs = make([][]byte, blockTasks)
		}
		b.blobs[index] = r.Arguments
		t.flags |= flagBlob
	}
	if r.RunHold {
		t.flags |= flagRunHold
	}
	for i := range inputs {
		in := &inputs[i]
		b.edges = append(b.edges, edge{input: in.Task, item: in.Item, count: itemCountOf(in.Count), consumer: uint16(index)})
	}
}

func (m *Machine) unloadTask(id ids.TaskID, b *block, t *task) {
	for l := t.holders; l != 0; l = b.links[l].next {
		m.holders[b.links[l].value].held.remove(id)
	}
	for t.holders != 0 {
		b.drop(&t.holders, b.links[t.holders].value)
	}
	m.loadEnd(id, b, t, TaskWaiting, 0, nil)
	delete(m.trouble, id)
	m.graphs[t.graph].live--
	if o := &m.ops[t.op]; o.tasks > 0 {
		if o.tasks--; o.tasks == 0 {
			m.retireOp(t.op)
		}
	}
	m.options[t.options].tasks--
	m.freeUnusedOptions(t.options)
	if t.flags&flagBlob != 0 {
		b.blobs[id&blockMask] = nil
	}
	*t = task{}
	if b.live--; b.live == 0 {
		m.tasks.remove(b)
	}
}

func (m *Machine) loadEnds(r *TasksEnded) {
	for _, ref := range r.Tasks {
		if b, t := m.lookup(ref.Task); t != nil {
			m.loadEnd(ref.Task, b, t, r.State, uint32(ref.Attempt), r.Err)
		}
	}
}

// loadEnd sets the end of a task. An end takes the run hold away.
func (m *Machine) loadEnd(id ids.TaskID, b *block, t *task, state TaskState, attempt uint32, err *TaskError) {
	if t.state == TaskFailed || t.state == TaskCancelled {
		m.dropError(id)
	}
	switch state {
	case TaskSucceeded:
		t.flags &^= flagRunHold
	case TaskFailed, TaskCancelled:
		t.flags &^= flagRunHold
		m.dropInline(b, uint64(id&blockMask))
		m.keepError(id, err)
	case TaskWaiting, TaskReady, TaskAssigned, TaskRunning, TaskReleased, TaskRescuing:
		state, attempt = TaskWaiting, 0
		m.dropInline(b, uint64(id&blockMask))
	}
	t.state, t.attempt = state, attempt
}

func (m *Machine) loadData(r *DataPut) {
	b, t := m.lookup(r.Task)
	if t == nil || m.ops[t.op].spec.Kind != OpData {
		return
	}
	if b.inline == nil {
		b.inline = make([][]byte, blockTasks)
	}
	m.dropInline(b, uint64(r.Task&blockMask))
	b.inline[r.Task&blockMask] = r.Inline
	m.totals.InlineBytes += uint64(len(r.Inline))
	t.output = r.Bytes
}

func (m *Machine) loadTrouble(r *TaskTroubled) {
	_, t := m.lookup(r.Task)
	if t == nil {
		return
	}
	tr := &trouble{retries: r.Retries, deaths: r.Deaths, kills: r.Kills, early: r.Early, reschedules: r.Reschedules, causes: r.Causes}
	if tr.durable() {
		t.flags |= flagTrouble
		m.trouble[r.Task] = tr
	} else {
		t.flags &^= flagTrouble
		delete(m.trouble, r.Task)
	}
}

// loaded derives all that follows from the rows, and leaves gaps in the numbers: those that were
// given out and not recorded are not given out again.
func (m *Machine) loaded(ev Loaded) {
	l := m.restart.loading
	if l == nil {
		l = new(loading)
	}
	m.restart = restart{running: true, returned: make(map[ids.TaskID]returned),
		attempts: uint32(min(ev.Restarts*restartAttempts, math.MaxUint32-restartAttempts))}
	m.facts.on = m.config.Facts
	m.nextID = max(m.nextID, l.next)
	if ev.Restarts > 0 {
		m.nextID = (m.nextID + restartTasks) | blockMask + 1
		// REQUIRES: the caller waits until this is durable before it gives out numbers. Otherwise
		// the next restart could give out the same ones, if nothing of this start is recorded.
		m.facts.put(&Counters{NextTask: m.nextID, NextGraph: m.nextGraph})
	}
	m.restart.first = m.nextID
	m.deriveOwners(l)
	m.countFunctions()
	x := &deriver{m: m, l: l, functions: map[ids.FunctionHash]bool{}}
	for _, f := range ev.Functions {
		x.functions[f] = true
	}
	m.tasks.each(0, func(b *block) bool {
		x.block(b, x.enter)
		return true
	})
	m.tasks.each(0, func(b *block) bool {
		x.block(b, x.link)
		return true
	})
	m.tasks.each(0, func(b *block) bool {
		x.block(b, x.settle)
		return true
	})
	x.graphs()
	m.endings = append(m.endings, x.unusable...)
	if m.restart.unusable = len(x.unusable); len(x.unusable) > 0 {
		m.restart.firstUnusable = x.unusable[0].err.Message
	}
}

// deriveOwners gives the graphs, clients and datasets their holders and namespaces.
func (m *Machine) deriveOwners(l *loading) {
	// order-free: each is counted on its own.
	for _, c := range m.clients {
		c.ns.refs++
		c.flow.ns = c.ns
		c.expires = m.now.Add(c.ttl)
	}
	for _, id := range slices.Sorted(maps.Keys(m.clients)) {
		m.arm(timer{at: m.clients[id].expires, kind: timerLease, id: uint64(id)})
	}
	for _, id := range slices.Sorted(maps.Keys(m.graphIndex)) {
		g := m.graphs[m.graphIndex[id]]
		if !l.known[g.slot] {
			// Nothing says what it is. It is there until its tasks are gone.
			g.ns, g.dropped, g.createdAt = m.namespace("default"), true, m.now
		}
		for _, total := range l.totals[g.slot] {
			g.summary(total.Name)
		}
		g.ns.refs++
		g.flow = m.flowOf(g)
		g.live = 0
		c := m.clients[g.client]
		switch {
		case g.dropped:
		case g.client == 0:
			g.holder = m.loadedHolder(l, Holder{HolderGraph, uint64(id)})
		case c == nil:
			g.dropped = true
		default:
			c.graphs = append(c.graphs, id)
		}
	}
	for _, h := range slices.SortedFunc(keysOf(l.holders), func(a, b Holder) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Number, b.Number))
	}) {
		i := l.holders[h]
		switch h.Kind {
		case HolderDataset:
			m.datasets[h.Number] = i
			continue
		case HolderClient:
			if m.clients[ids.ClientID(h.Number)] != nil {
				continue
			}
		case HolderGraph:
			if g := m.graphOf(ids.GraphID(h.Number)); g != nil && g.holder == i {
				continue
			}
		}
		m.dropLoaded(l, h)
	}
	// order-free: all of these are deleted.
	for name, ns := range m.namespaces {
		if ns.refs == 0 {
			delete(m.namespaces, name)
		}
	}
}

func keysOf[K comparable, V any](from map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		// order-free: the caller sorts them.
		for k := range from {
			if !yield(k) {
				return
			}
		}
	}
}

func (m *Machine) loadedHolder(l *loading, h Holder) uint32 {
	if i, ok := l.holders[h]; ok {
		return i
	}
	i := m.addHolder(holder{kind: h.Kind, id: h.Number})
	l.holders[h] = i
	return i
}

// dropLoaded removes a holder that nobody is. Its end was not recorded.
func (m *Machine) dropLoaded(l *loading, h Holder) {
	i := l.holders[h]
	for _, id := range m.holders[i].held.members(nil) {
		b, t := m.at(id)
		b.drop(&t.holders, i)
	}
	m.facts.put(&HolderDeleted{h})
	m.holders[i] = holder{}
	m.freeHolders = append(m.freeHolders, i)
	delete(l.holders, h)
}

func (m *Machine) countFunctions() {
	for i := range m.ops {
		if o := &m.ops[i]; o.tasks > 0 && o.spec.Function != (ids.FunctionHash{}) {
			m.functions[o.spec.Function]++
		}
	}
}

// NeedsFunction reports whether a known task has an op with this function.
func (m *Machine) NeedsFunction(hash ids.FunctionHash) bool { return m.functions[hash] > 0 }

// Datasets lists the datasets that hold tasks, in order.
func (m *Machine) Datasets() []uint64 { return slices.Sorted(maps.Keys(m.datasets)) }

// Unusable returns the number of tasks that Loaded could not use, and the message of the first one.
func (m *Machine) Unusable() (tasks int, first string) {
	return m.restart.unusable, m.restart.firstUnusable
}

// deriver derives the state of the tasks that were loaded.
type deriver struct {
	m         *Machine
	l         *loading
	functions map[ids.FunctionHash]bool
	unusable  []ending
	// open are the slots of graphs with tasks that have not ended.
	open map[uint32]bool
}

func (x *deriver) block(b *block, visit func(ids.TaskID, *block, *task)) {
	for i := range b.tasks {
		if t := &b.tasks[i]; t.state != 0 {
			visit(ids.TaskID(b.number<<blockBits|uint64(i)), b, t)
		}
	}
}

// fail notes that a task cannot be used. It becomes one without inputs that nothing can compute.
func (x *deriver) fail(id ids.TaskID, b *block, t *task, cause string) {
	m := x.m
	key := string(b.keyOf(t))
	x.unusable = append(x.unusable, ending{task: id, state: TaskFailed, err: &TaskError{Reason: "OBJECT_LOST", OriginKey: key, Message: fmt.Sprintf(
		"task %s was accepted before the scheduler was started again, and cannot be brought back: %s; release it, and submit it again", key, cause)}})
	m.loadEnd(id, b, t, TaskWaiting, 0, nil)
	m.ops[t.op].tasks--
	old := t.op
	t.op = m.internOp(OpSpec{Kind: OpData, Name: m.ops[old].spec.Name})
	m.ops[t.op].tasks++
	if o := &m.ops[old]; o.tasks == 0 {
		if f := o.spec.Function; f != (ids.FunctionHash{}) {
			if m.functions[f]--; m.functions[f] == 0 {
				delete(m.functions, f)
			}
		}
		m.retireOp(old)
	}
	t.inputs = 0
}

// enter makes a task a member of its graph and namespace, or notes why it cannot be used.
func (x *deriver) enter(id ids.TaskID, b *block, t *task) {
	m := x.m
	g := m.graphs[t.graph]
	hash := hashKeyBytes(b.keyOf(t))
	spec := &m.ops[t.op].spec
	missing := ids.TaskID(0)
	for i := range b.edgesOf(t) {
		if in := b.edges[t.edge+uint32(i)].input; missing == 0 {
			if _, p := m.lookup(in); p == nil {
				missing = in
			}
		}
	}
	switch {
	case !x.l.known[t.graph]:
		x.fail(id, b, t, fmt.Sprintf("the graph %s, which it belongs to, is not recorded", g.id))
	case spec.Kind < OpNative || spec.Kind > OpData:
		x.fail(id, b, t, fmt.Sprintf("the kind %d of its op is not known to this version", spec.Kind))
	case spec.Function != (ids.FunctionHash{}) && !x.functions[spec.Function]:
		x.fail(id, b, t, fmt.Sprintf("the function %s, which it needs, is not recorded", spec.Function))
	case missing != 0:
		x.fail(id, b, t, fmt.Sprintf("the task %s, whose result it needs, is not recorded", missing))
	case g.ns.keys.find(m, string(b.keyOf(t)), hash) != 0:
		x.fail(id, b, t, fmt.Sprintf("the task %s has the same key", g.ns.keys.find(m, string(b.keyOf(t)), hash)))
	}
	if g.ns.keys.find(m, string(b.keyOf(t)), hash) != 0 {
		x.rename(id, b, t)
		hash = hashKeyBytes(b.keyOf(t))
	}
	g.ns.keys.insert(m, hash, id)
	t.summary = g.summary(m.ops[t.op].spec.Name)
	t.class = m.internClass(t.op, t.options)
	m.classes[t.class].tasks++
	m.totals.Tasks++
	m.totals.HeldBytes += t.heldBytes()
	g.ns.add(t)
	g.live++
	m.addRange(g, id, id+1)
	if t.flags&flagRunHold != 0 && (g.client == 0 || g.dropped) {
		t.flags &^= flagRunHold
	}
	if position := t.rank & positionMask; nested(position) {
		m.lowestNested = min(m.lowestNested, position)
	} else {
		g.flow.finish = max(g.flow.finish, (position+1)<<placeBits)
	}
	data := m.ops[t.op].spec.Kind == OpData
	switch t.state {
	case TaskFailed, TaskCancelled:
		if m.errors[id] == nil {
			m.keepError(id, &TaskError{Reason: "UNKNOWN", OriginKey: string(b.keyOf(t)), Message: "it ended so before the scheduler was started again, and the cause is not recorded"})
		}
		if t.state == TaskFailed && g.firstError == nil {
			g.firstError = m.errors[id]
		}
	case TaskSucceeded:
		if data && b.inlineOf(uint64(id&blockMask)) != nil {
			break
		}
		t.state = TaskWaiting
		t.flags |= flagPinned
		if data {
			m.lostData[id] = lostData{name: "unknown", cause: "the scheduler was started again, and no worker brought them back", until: m.now.Add(1000 * time.Hour)}
			m.restart.data = append(m.restart.data, id)
		}
	case TaskWaiting, TaskReady, TaskAssigned, TaskRunning, TaskReleased, TaskRescuing:
	}
}

// rename gives a task whose key another task has a key of its own.
func (x *deriver) rename(id ids.TaskID, b *block, t *task) {
	key := fmt.Sprintf("%.1000s (%s)", b.keyOf(t), id)
	if t.flags&flagBlob != 0 {
		t.flags &^= flagBlob
		b.blobs[id&blockMask] = nil
	}
	t.key, t.keyLen, t.argLen = uint32(len(b.bytes)), uint16(len(key)), 0
	b.bytes = append(b.bytes, key...)
}

// link makes a task a dependent of its inputs, and counts it.
func (x *deriver) link(id ids.TaskID, b *block, t *task) {
	m := x.m
	for i := range b.edgesOf(t) {
		at := t.edge + uint32(i)
		_, p := m.at(b.edges[at].input)
		m.linkEdge(b, at, p)
		if t.undone() {
			p.unfinished++
		}
		if p.state != TaskSucceeded && t.state == TaskWaiting {
			t.missing++
		}
	}
	g := m.graphs[t.graph]
	g.counts[t.state]++
	g.summaries[t.summary].Counts[t.state]++
	m.totals.Counts[t.state]++
	if t.state.unended() {
		g.begin(1)
	}
	if t.undone() {
		if x.open == nil {
			x.open = map[uint32]bool{}
		}
		x.open[t.graph] = true
	}
	if g.client == 0 && !g.dropped && m.isCopy(b, t) {
		// The order for which it was made is forgotten.
		m.copied = append(m.copied, g.id)
	}
}

// settle lets a task that nobody wants go. NB: that may follow from dependents in later blocks.
func (x *deriver) settle(id ids.TaskID, _ *block, t *task) { x.m.reconsider(id, t) }

// graphs counts the tasks that graphs have had, and tells of all graphs.
func (x *deriver) graphs() {
	m := x.m
	m.deriveFlows()
	for slot, g := range m.graphs {
		if g == nil {
			continue
		}
		for _, total := range x.l.totals[uint32(slot)] {
			p := &g.summaries[g.summary(total.Name)]
			if n := p.total().Tasks; n < total.Tasks {
				p.Counts[TaskReleased] += total.Tasks - n
				g.counts[TaskReleased] += total.Tasks - n
			}
		}
		g.failing = g.active > 0 && g.firstError != nil
		if g.failing {
			g.newError = g.firstError
		}
		if !x.open[uint32(slot)] {
			g.endedBefore = g.endedAt
		}
		g.endedAt = time.Time{}
		m.touch(uint32(slot), g)
	}
}

// checkLoading panics if a step comes between rows.
func (m *Machine) checkLoading(ev Event) {
	if _, ok := ev.(Loaded); !ok && invariant.Enabled && m.restart.loading != nil {
		panic("sched: a step comes before Loaded")
	}
}
