package sched

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// TaskInfo is a copied snapshot of one task.
type TaskInfo struct {
	Task      ids.TaskID
	Key       string
	Namespace string
	Graph     ids.GraphID
	Op        OpSpec
	State     TaskState
	// Attempt is the current or last attempt; 0 if there was none.
	Attempt ids.Attempt
	// Worker is the worker that has the current attempt; 0 if no worker has one.
	Worker ids.WorkerID
	// Replicas are the workers that hold the object. The first one keeps it.
	Replicas    []ids.WorkerID
	OutputBytes uint64
	// Inline says that the scheduler holds the object itself.
	Inline bool
	// Inputs are the first 1,000 of InputCount.
	Inputs     []string
	InputCount uint32
	// InputTasks are the tasks of Inputs, in the same order.
	InputTasks []ids.TaskID
	// Items are those of Inputs of which the task needs one item only, in ascending order of Input.
	Items []ItemInput
	// MissingInputs counts inputs that have no object now; a duplicate input counts twice.
	MissingInputs uint32
	// WaitingDependents counts the uses of the object by active tasks.
	WaitingDependents uint32
	// Holders counts clients, datasets and detached graphs that hold it.
	Holders uint32
	// Err is set if the state is FAILED or CANCELLED.
	Err     *TaskError
	Options Options
	// RunTime of the last finished attempt; 0: unknown.
	RunTime     time.Duration
	SubmittedAt time.Time
	// StartedAt is the time at which the current attempt was reported to run; zero unless RUNNING.
	StartedAt    time.Time
	RetriesUsed  uint32
	WorkerDeaths uint32
	LogTail      string
	// Linalg is the library that computed the object; empty: the task is none of linear algebra on
	// the CPU, or has no object.
	Linalg string
}

// TaskFilter selects tasks; zero fields select everything.
type TaskFilter struct {
	Graph     ids.GraphID
	Namespace string
	State     TaskState
	// Worker selects the tasks that are assigned to it or run on it.
	Worker ids.WorkerID
	// Client selects the tasks that it holds.
	Client ids.ClientID
	// Op selects by the name of the op.
	Op string
	// KeyPrefix selects keys that start with it.
	KeyPrefix string
}

// GraphInfo is a copied snapshot of one graph.
type GraphInfo struct {
	Graph     ids.GraphID
	Name      string
	Namespace string
	// Client is the client that submitted it; 0: detached.
	Client ids.ClientID
	// Counts has the number of tasks by state, indexed by TaskState. Forgotten tasks count as
	// RELEASED.
	Counts Counts
	// Ops are the summaries of the ops in the graph, merged by name, in order of first appearance.
	Ops       []OpSummary
	CreatedAt time.Time
	// EndedAt is the time at which the last task ended; zero while some task has not ended.
	EndedAt time.Time
	// FirstError is the error of the first task that failed; nil if none did.
	FirstError *TaskError
	// NewError is the error of the first task that failed since an effect last told of failures, or
	// before that effect if none has failed since; nil if none ever did.
	NewError *TaskError
	// ExpiresAt is the time at which the results of a detached graph are dropped; zero: not yet
	// known, or not detached.
	ExpiresAt time.Time
}

// WorkerInfo is a copied snapshot of one worker incarnation that is not lost.
type WorkerInfo struct {
	Worker      ids.WorkerID
	Name        string
	Incarnation string
	Host        string
	State       WorkerState
	Slots       uint32
	// Assigned counts attempts under way; Running counts those of them that have started.
	Assigned uint32
	Running  uint32
	// Objects counts replicas.
	Objects uint64
	// Finished counts attempts that succeeded here.
	Finished        uint64
	MemoryBytes     uint64
	MemoryUsedBytes uint64
	// Drain is nil if the worker is not drained. It must not be changed.
	Drain *copies.DrainInfo
}

const (
	// assignedInlineBytes bounds the inline results in one assignment. Further inputs are fetched
	// from their holders. This keeps the assignment far below the largest message size, both here
	// and between the worker and its executor.
	assignedInlineBytes = 4 << 20
	// manyInputs is the number of inputs above which an assignment names only the best fewHolders
	// holders of each input, for the same reason.
	manyInputs = 10_000
	fewHolders = 4
)

// expectedSlack is the part of an expected result, not a declared one, that is added to it.
const expectedSlack = 16

// AssignmentOf fills into with everything that the worker needs to know about the current attempt
// of a task. It returns false if the task has no current attempt. It reuses the slices of into;
// they are valid until the next step.
func (m *Machine) AssignmentOf(id ids.TaskID, into *Assignment) bool {
	b, t := m.lookup(id)
	if t == nil || t.worker == 0 {
		return false
	}
	target := m.workers[t.worker-1]
	o := &m.options[t.options]
	inputs := into.Inputs[:0]
	*into = Assignment{
		Task:                id,
		Attempt:             ids.Attempt(t.attempt),
		Op:                  ids.OpID(t.op),
		Arguments:           b.argsOf(t, uint64(id&blockMask)),
		Rank:                t.rank,
		Timeout:             o.Timeout,
		Key:                 string(b.keyOf(t)),
		Namespace:           m.graphs[t.graph].ns.name,
		Slots:               max(o.Slots, 1),
		Resources:           o.Resources,
		ExpectedOutputBytes: m.outputBytes(t),
		Priority:            o.Priority,
	}
	edges := b.edgesOf(t)
	inline := 0
	var pieces uint64 // of the inputs that are items
	for i := range edges {
		in := edges[i].input
		pb, p := m.at(in)
		if edges[i].item != 0 {
			pieces += edges[i].bytesOf(p)
		}
		if len(inputs) < cap(inputs) {
			inputs = inputs[:len(inputs)+1]
		} else {
			inputs = append(inputs, AssignedInput{})
		}
		a := &inputs[len(inputs)-1]
		a.Replica = Replica{Task: in, Generation: ids.Attempt(p.attempt), Bytes: p.output}
		a.Holders, a.Inline, a.Upstream, a.Downstream = a.Holders[:0], nil, 0, false
		a.Item, a.Count = edges[i].item, edges[i].count.number()
		a.Pending = p.state != TaskSucceeded
		if a.Pending && p.worker != 0 && p.worker != t.worker {
			a.Holders = append(a.Holders, m.workers[p.worker-1].id)
		}
		if a.Pending || target.objects.has(in) {
			continue
		}
		a.Holders = m.sources(in, pb, p, target, a.Holders)
		if len(edges) > manyInputs {
			a.Holders = a.Holders[:min(len(a.Holders), fewHolders)]
		}
		// An object without a holder exists inline only, so it is always sent.
		known := pb.inlineOf(uint64(in & blockMask))
		if small := a.Item == 0 || len(known) <= inlineListBytes; small && inline+len(known) <= assignedInlineBytes || p.replicas == 0 {
			a.Inline = known
			inline += len(known)
		}
		if len(m.chains) > 0 && a.Inline == nil && a.Item == 0 {
			a.Upstream, a.Downstream = m.upstreamOf(in, p, target)
		}
	}
	into.Inputs = inputs
	if o.ExpectedOutputBytes == 0 {
		if m.ops[t.op].samples == 0 {
			// A task that reads pieces mostly puts them together. Without this, the first such
			// tasks would get memory for the pieces, and wait for each other with it.
			into.ExpectedOutputBytes = pieces
		}
		// Results of about the same size: half of them are larger than their mean, and a result
		// that does not fit into its memory waits for more of it while it holds its inputs.
		into.ExpectedOutputBytes += into.ExpectedOutputBytes / expectedSlack
	}
	return true
}

// sources lists the workers from which target may fetch an object, best first: reachable workers
// first, then those without failed fetches, then the fastest. A holder on the same host counts as
// twice as fast.
func (m *Machine) sources(id ids.TaskID, b *block, t *task, target *worker, out []ids.WorkerID) []ids.WorkerID {
	n := 0
	for l := t.replicas; l != 0; l = b.links[l].next {
		out = append(out, m.workers[b.links[l].value].id)
		n++
	}
	if n < 2 {
		return out
	}
	tr := m.troubleIf(id, t)
	cost := func(w ids.WorkerID) float64 {
		from := m.workerOf(w)
		c := 1 / m.rate(w, target.id).bytesPerMicro
		if from.host == target.host {
			c /= 2
		}
		if !from.reachable() {
			c += 1e9
		}
		if tr != nil {
			for _, u := range tr.sourceFailures {
				if u.worker == w {
					c += 1e6 * float64(u.times)
				}
			}
		}
		return c
	}
	slices.SortFunc(out, func(x, y ids.WorkerID) int {
		cx, cy := cost(x), cost(y)
		switch {
		case cx < cy:
			return -1
		case cx > cy:
			return 1
		}
		return cmp.Or(cmp.Compare(spread(x, target.id), spread(y, target.id)), cmp.Compare(x, y))
	})
	return out
}

// spread is a tie-breaker that orders equal sources differently for each reader. So many readers of
// one object do not all ask the same holder, and in a broadcast each new replica serves further
// readers.
func spread(source, reader ids.WorkerID) uint64 {
	return (uint64(source) | uint64(reader)<<32) * 0x9e3779b97f4a7c15 >> 32
}

// UpdateOf returns the information that clients get about a task.
func (m *Machine) UpdateOf(id ids.TaskID) (Update, bool) {
	b, t := m.lookup(id)
	if t == nil {
		return Update{}, false
	}
	u := Update{Task: id, State: t.state, Generation: ids.Attempt(t.attempt)}
	if !t.state.unended() && len(m.tails) > 0 {
		u.LogWorker = m.tails[id].worker
	}
	switch t.state {
	case TaskSucceeded:
		u.OutputBytes = t.output
		u.Inline = b.inlineOf(uint64(id & blockMask))
		for l := t.replicas; l != 0; l = b.links[l].next {
			w := m.workers[b.links[l].value]
			if u.Worker == 0 || w.reachable() {
				u.Worker = w.id
			}
		}
	case TaskFailed, TaskCancelled:
		u.Err = m.errors[id]
	case TaskWaiting, TaskReady, TaskReleased, TaskRescuing:
	case TaskAssigned, TaskRunning:
		u.Worker = m.workers[t.worker-1].id
	}
	return u, true
}

// Op returns an interned op.
func (m *Machine) Op(id ids.OpID) OpSpec {
	if int(id) >= len(m.ops) {
		return OpSpec{}
	}
	return m.ops[id].spec
}

// Lookup finds a task by key.
func (m *Machine) Lookup(namespace, key string) (ids.TaskID, bool) {
	ns := m.namespaces[namespace]
	if ns == nil {
		return 0, false
	}
	id := ns.keys.find(m, key, hashKey(key))
	return id, id != 0
}

// HoldersOf returns the holders of a task's object, the latest first, at most limit of them.
func (m *Machine) HoldersOf(id ids.TaskID, limit int) (holders []Holder) {
	b, t := m.lookup(id)
	if t == nil {
		return nil
	}
	for l := t.holders; l != 0 && len(holders) < limit; l = b.links[l].next {
		holders = append(holders, m.holders[b.links[l].value].number())
	}
	return holders
}

// Dependent is a task that uses the object of another one.
type Dependent struct {
	Task ids.TaskID
	Key  string
}

// scannedDependents bounds the dependents of one task that DependentsOf reads.
const scannedDependents = 256

// DependentsOf returns the tasks that need a task's object and have not ended, the latest first, at
// most limit of them. It looks among the latest scannedDependents.
func (m *Machine) DependentsOf(id ids.TaskID, limit int) (dependents []Dependent) {
	_, t := m.lookup(id)
	if t == nil || t.unfinished == 0 {
		return nil
	}
	scanned := 0
	for r := t.dependents; r != 0 && scanned < scannedDependents && len(dependents) < limit; scanned++ {
		consumer, b, ct, e := m.consumerOf(r)
		if ct.undone() {
			dependents = append(dependents, Dependent{consumer, string(b.keyOf(ct))})
		}
		r = e.next
	}
	return dependents
}

// Task returns a snapshot of one task.
func (m *Machine) Task(id ids.TaskID) (TaskInfo, bool) {
	b, t := m.lookup(id)
	if t == nil {
		return TaskInfo{}, false
	}
	g := m.graphs[t.graph]
	info := TaskInfo{
		Task:              id,
		Key:               string(b.keyOf(t)),
		Namespace:         g.ns.name,
		Graph:             g.id,
		Op:                m.ops[t.op].spec,
		State:             t.state,
		Attempt:           ids.Attempt(t.attempt),
		Inline:            b.inlineOf(uint64(id&blockMask)) != nil,
		WaitingDependents: t.unfinished,
		Holders:           uint32(b.length(t.holders)),
		Err:               m.errors[id],
		Options:           m.options[t.options].Options,
		StartedAt:         m.starts[id],
		SubmittedAt:       b.base.Add(time.Duration(t.submitted) * time.Millisecond),
	}
	if t.worker != 0 {
		info.Worker = m.workers[t.worker-1].id
	} else {
		info.RunTime = time.Duration(t.runMicros) * time.Microsecond
	}
	if t.state == TaskSucceeded || t.state == TaskRescuing {
		info.OutputBytes, info.Linalg = t.output, m.linalg[id]
	}
	for l := t.replicas; l != 0; l = b.links[l].next {
		info.Replicas = append(info.Replicas, m.workers[b.links[l].value].id)
	}
	slices.Reverse(info.Replicas)
	edges := b.edgesOf(t)
	info.InputCount = uint32(len(edges))
	for i := range edges {
		pb, p := m.at(edges[i].input)
		if p.state != TaskSucceeded {
			info.MissingInputs++
		}
		if i >= shownInputs {
			continue
		}
		info.Inputs = append(info.Inputs, string(pb.keyOf(p)))
		info.InputTasks = append(info.InputTasks, edges[i].input)
		if edges[i].item != 0 {
			info.Items = append(info.Items, ItemInput{Input: uint32(i), Item: edges[i].item, Count: edges[i].count.number()})
		}
	}
	if tr := m.troubleIf(id, t); tr != nil {
		info.RetriesUsed, info.WorkerDeaths = tr.retries, tr.deaths+tr.kills
	}
	info.LogTail = m.tails[id].text
	return info, true
}

const (
	// shownInputs bounds the inputs that a TaskInfo lists. listedKeys bounds the bytes of the
	// inputs' keys in one result of Tasks.
	shownInputs = 1000
	listedKeys  = 4 << 20
)

// visitedTasks bounds the tasks that one call of Tasks reads.
const visitedTasks = 50_000

// Tasks lists the tasks with ids above after, in order of ids. If next is not 0, there may be more
// tasks, and the caller continues with after = next. The list may be cut because of limit, because
// of its size, or because very many tasks were read; in the last case it may be empty.
func (m *Machine) Tasks(f TaskFilter, after ids.TaskID, limit int) (tasks []TaskInfo, next ids.TaskID) {
	bytes, visited := 0, 0
	last := after
	visit := func(id ids.TaskID, b *block, t *task) bool {
		if id <= after {
			return true
		}
		if visited == visitedTasks {
			next = last
			return false
		}
		visited++
		if !m.selects(&f, id, b, t) {
			last = id
			return true
		}
		if len(tasks) >= limit || bytes > listedKeys {
			next = last
			return false
		}
		last = id
		info, _ := m.Task(id)
		for _, key := range info.Inputs {
			bytes += len(key)
		}
		tasks = append(tasks, info)
		return true
	}
	if f.Graph != 0 {
		if g := m.graphOf(f.Graph); g != nil {
			m.eachTaskAfter(g, after, visit)
		}
		return tasks, next
	}
	m.eachLive(uint64(after)>>blockBits, visit)
	return tasks, next
}

// eachLive visits all tasks in order of ids, beginning with the block of the given number.
func (m *Machine) eachLive(from uint64, visit func(ids.TaskID, *block, *task) bool) {
	m.tasks.each(from, func(b *block) bool {
		for i := range b.tasks {
			if t := &b.tasks[i]; t.state != 0 && !visit(ids.TaskID(b.number<<blockBits|uint64(i)), b, t) {
				return false
			}
		}
		return true
	})
}

func (m *Machine) selects(f *TaskFilter, id ids.TaskID, b *block, t *task) bool {
	switch {
	case f.State != 0 && t.state != f.State,
		f.Worker != 0 && (t.worker == 0 || m.workers[t.worker-1].id != f.Worker),
		f.Namespace != "" && m.graphs[t.graph].ns.name != f.Namespace,
		f.Op != "" && m.ops[t.op].spec.Name != f.Op,
		f.KeyPrefix != "" && !strings.HasPrefix(string(b.keyOf(t)), f.KeyPrefix):
		return false
	}
	if f.Client != 0 {
		c := m.clients[f.Client]
		return c != nil && m.holders[c.holder].held.has(id)
	}
	return true
}

// Graph returns a snapshot of one graph.
func (m *Machine) Graph(id ids.GraphID) (GraphInfo, bool) {
	g := m.graphOf(id)
	if g == nil {
		return GraphInfo{}, false
	}
	return GraphInfo{
		Graph: g.id, Name: g.name, Namespace: g.ns.name, Client: g.client, Counts: g.counts, Ops: slices.Clone(g.summaries),
		CreatedAt: g.createdAt, EndedAt: g.endedAt, FirstError: g.firstError, NewError: g.newError, ExpiresAt: g.expiresAt,
	}, true
}

// Worker returns a snapshot of one worker.
func (m *Machine) Worker(id ids.WorkerID) (WorkerInfo, bool) {
	w := m.workerOf(id)
	if w == nil {
		return WorkerInfo{}, false
	}
	info := WorkerInfo{
		Worker: w.id, Name: w.name, Incarnation: w.incarnation, Host: w.host, State: w.state, Slots: w.slots,
		Assigned: uint32(w.assigned), Running: uint32(w.running), Objects: uint64(w.objects.count), Finished: w.finished,
		MemoryBytes: w.memory, MemoryUsedBytes: w.memoryUsed,
	}
	if drain, drained := m.copier.Drain(id); drained {
		info.Drain = &drain
	}
	return info, true
}

// KeysAt lists the keys of up to limit tasks that a worker has, in the order in which they were
// sent.
func (m *Machine) KeysAt(id ids.WorkerID, limit int) (keys []string) {
	w := m.workerOf(id)
	if w == nil {
		return nil
	}
	for _, r := range m.underWay(w) {
		if len(keys) == limit {
			break
		}
		b, t := m.at(r.Task)
		keys = append(keys, string(b.keyOf(t)))
	}
	return keys
}

// HeldBy visits the tasks that a client holds, in order.
func (m *Machine) HeldBy(id ids.ClientID, visit func(ids.TaskID)) {
	c := m.clients[id]
	if c == nil {
		return
	}
	for _, t := range m.holders[c.holder].held.members(nil) {
		visit(t)
	}
}

// HeldCount returns the number of tasks that a client holds.
func (m *Machine) HeldCount(id ids.ClientID) uint64 {
	if c := m.clients[id]; c != nil {
		return uint64(m.holders[c.holder].held.count)
	}
	return 0
}

// ReplicasOf returns the place of an object, at lower cost than Task: its generation and size, the
// state of its task, and the workers that hold it, appended to out.
func (m *Machine) ReplicasOf(id ids.TaskID, out []ids.WorkerID) (Replica, TaskState, []ids.WorkerID) {
	b, t := m.lookup(id)
	if t == nil {
		return Replica{}, 0, out
	}
	for l := t.replicas; l != 0; l = b.links[l].next {
		out = append(out, m.workers[b.links[l].value].id)
	}
	r := Replica{Task: id, Generation: ids.Attempt(t.attempt)}
	if t.state == TaskSucceeded || t.state == TaskRescuing {
		r.Bytes = t.output
	}
	return r, t.state, out
}

// Totals returns the sums over the whole machine.
func (m *Machine) Totals() Totals {
	t := m.totals
	t.Stale += m.copier.Totals().Stale
	t.Moved = m.copier.Totals().Moved
	t.Graphs, t.Clients, t.Workers = uint64(len(m.graphIndex)), uint64(len(m.clients)), uint64(len(m.order))
	t.ReadyQueued = uint64(m.ready)
	return t
}
