package sched

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// The durable state of the machine is a table of facts: the graphs, the known tasks with their ends
// and troubles, the holders of tasks, and the answers to recent submissions. If Config.Facts is
// set, each step reports the rows of the table that it has put or deleted, in order. A restart
// loads rows (see load.go) and decides nothing: neither the history nor a version that decides
// otherwise can make a difference. ADR 29 says more.
//
// Rows are plain values. A put of a row that is there replaces it, and a delete of one that is not
// there is nothing, so rows may be loaded twice, as long as the last ones come last.

// Row is a fact: a pointer to one of the types of this file, or a *ClientOpened or *ClientClosed,
// which are facts of the caller. The caller must not change it.
type Row any

// Counters are the lowest numbers that no task and no graph has had. Higher ones replace lower
// ones.
type Counters struct {
	NextTask  ids.TaskID
	NextGraph ids.GraphID
}

// GraphPut is a graph.
type GraphPut struct {
	Graph ids.GraphID
	// Client is the client that owns it; 0: detached.
	Client          ids.ClientID
	Name, Namespace string
	Retention       time.Duration
	CreatedAt       time.Time
	// EndedAt is the time at which all its tasks had ended; zero: they have not.
	EndedAt time.Time
	// Dropped means that it is removed with its last task.
	Dropped bool
	// Ops counts the tasks that it has ever had, by the names of their ops.
	Ops []OpTotal
}

// OpTotal counts the tasks of one op that a graph has ever had.
type OpTotal struct {
	Name  string
	Tasks uint64
}

// GraphEnded says that all tasks of a graph have ended.
type GraphEnded struct {
	Graph ids.GraphID
	At    time.Time
}

// GraphDropped ends the graph's own interest in its tasks.
type GraphDropped struct{ Graph ids.GraphID }

// GraphDeleted removes a graph.
type GraphDeleted struct{ Graph ids.GraphID }

// TasksPut are tasks of one graph.
type TasksPut struct {
	Graph ids.GraphID
	// Ops and Options are tables for the tasks.
	Ops     []OpSpec
	Options []Options
	Tasks   []TaskRow
	// Inputs are those of all tasks, one after the other.
	Inputs []InputRow
	// Totals are those of the tasks' ops, after these tasks, in the order in which the graph got
	// its first tasks of them; nil: they are in the row of the graph.
	Totals []OpTotal
}

// TaskRow is a task.
type TaskRow struct {
	Task ids.TaskID
	Key  string
	// Op is an index in TasksPut.Ops. Options is one in TasksPut.Options, plus 1; 0: defaults.
	Op, Options uint32
	// Inputs is the number of its inputs in TasksPut.Inputs.
	Inputs    uint32
	Arguments []byte
	// Position is its place in the order of all tasks of the same priority.
	Position uint64
	// Submitted is the time of its submission, in milliseconds of Unix time.
	Submitted int64
	// RunHold means that it runs once for its own sake.
	RunHold bool
}

// InputRow is an input of a task, or an item of one; see ItemInput.
type InputRow struct {
	Task  ids.TaskID
	Item  ids.Item
	Count uint32
}

// TasksEnded are tasks that have ended in the same way, each by an attempt: SUCCEEDED, FAILED or
// CANCELLED. WAITING takes their ends back: they run again if they are wanted.
type TasksEnded struct {
	State TaskState
	Tasks []TaskRef
	// Err is set if the state is FAILED or CANCELLED. All the tasks share it.
	Err *TaskError
}

// DataPut is a small object that a client scattered. It comes before the end of its task.
type DataPut struct {
	Task   ids.TaskID
	Bytes  uint64
	Inline []byte
}

// TaskTroubled counts the problems of a task so far. Without any, it has none any more.
type TaskTroubled struct {
	Task ids.TaskID
	// Retries counts the failures after which it was tried again, Deaths those of workers and
	// executors that ran it, Kills those for an outside reason, Early those of workers that
	// prepared it, and Reschedules the runs whose function asked to run again.
	Retries, Deaths, Kills, Early, Reschedules uint32
	// Causes has the causes of the deaths, oldest first.
	Causes []string
}

// TasksForgotten removes tasks.
type TasksForgotten struct{ Tasks []ids.TaskID }

// RunHoldsPut are tasks that run once for their own sake.
type RunHoldsPut struct{ Tasks []ids.TaskID }

// HolderKind is the kind of a holder.
type HolderKind uint8

// Kinds of holders.
const (
	HolderClient HolderKind = iota + 1
	HolderDataset
	HolderGraph
)

// Holder keeps the objects of a set of tasks wanted: a client, a dataset or a detached graph, by
// its number.
type Holder struct {
	Kind   HolderKind
	Number uint64
}

// String returns the id of the client or graph, or the number of the dataset.
func (h Holder) String() string {
	switch h.Kind {
	case HolderClient:
		return ids.ClientID(h.Number).String()
	case HolderGraph:
		return ids.GraphID(h.Number).String()
	case HolderDataset:
	}
	return fmt.Sprintf("dataset%d", h.Number)
}

// HoldsPut is some holds of a holder, and HoldsDeleted their end.
type (
	HoldsPut struct {
		Holder Holder
		Tasks  []ids.TaskID
	}
	HoldsDeleted struct {
		Holder Holder
		Tasks  []ids.TaskID
	}
)

// HolderDeleted ends all holds of a holder.
type HolderDeleted struct{ Holder Holder }

// RequestPut is the answer to a submission with a request id. A client, or a namespace for
// submissions without one, has its own ids.
type RequestPut struct {
	Client             ids.ClientID
	Namespace, Request string
	// Body is a hash of the submission.
	Body   uint64
	Graph  ids.GraphID
	Tasks  []ids.TaskID
	Joined uint64
	Failed []ids.TaskID
}

// facts are the rows of a step.
type facts struct {
	// on means that rows are reported.
	on   bool
	rows []Row
}

// Facts returns the rows that the last step has put and deleted, in order. The slice is valid until
// the next step; the rows are not changed after that.
func (m *Machine) Facts() []Row { return m.facts.rows }

// put reports a row. Hot paths look at on before they make one.
func (f *facts) put(r Row) {
	if f.on {
		f.rows = append(f.rows, r)
	}
}

// lastOf returns the last row if it has a type.
func lastOf[T any](f *facts) (row T) {
	if n := len(f.rows); n > 0 {
		row, _ = f.rows[n-1].(T)
	}
	return row
}

// putEnd reports the end of a task, or that an ended task runs again.
func (m *Machine) putEnd(id ids.TaskID, t *task, state TaskState, err *TaskError) {
	f := &m.facts
	if !f.on {
		return
	}
	r := lastOf[*TasksEnded](f)
	if r == nil || r.State != state || r.Err != err {
		r = &TasksEnded{State: state, Err: err}
		f.rows = append(f.rows, r)
	}
	r.Tasks = append(r.Tasks, TaskRef{id, ids.Attempt(t.attempt)})
}

// putSuccess reports that a task has an object.
func (m *Machine) putSuccess(id ids.TaskID, b *block, t *task) {
	if !m.facts.on {
		return
	}
	if inline := b.inlineOf(uint64(id & blockMask)); inline != nil && m.ops[t.op].spec.Kind == OpData {
		m.facts.put(&DataPut{Task: id, Bytes: t.output, Inline: inline})
	}
	m.putEnd(id, t, TaskSucceeded, nil)
}

// putAgain reports that a task which has ended is as one that has not.
func (m *Machine) putAgain(id ids.TaskID, t *task) { m.putEnd(id, t, TaskWaiting, nil) }

func (m *Machine) putForgotten(id ids.TaskID) {
	f := &m.facts
	if !f.on {
		return
	}
	r := lastOf[*TasksForgotten](f)
	if r == nil {
		r = new(TasksForgotten)
		f.rows = append(f.rows, r)
	}
	r.Tasks = append(r.Tasks, id)
}

func (m *Machine) putHold(i uint32, id ids.TaskID) {
	f := &m.facts
	if !f.on {
		return
	}
	h := m.holders[i].number()
	r := lastOf[*HoldsPut](f)
	if r == nil || r.Holder != h {
		r = &HoldsPut{Holder: h}
		f.rows = append(f.rows, r)
	}
	r.Tasks = append(r.Tasks, id)
}

func (m *Machine) putUnhold(i uint32, id ids.TaskID) {
	f := &m.facts
	if !f.on {
		return
	}
	h := m.holders[i].number()
	r := lastOf[*HoldsDeleted](f)
	if r == nil || r.Holder != h {
		r = &HoldsDeleted{Holder: h}
		f.rows = append(f.rows, r)
	}
	r.Tasks = append(r.Tasks, id)
}

func (m *Machine) putRunHold(id ids.TaskID) {
	f := &m.facts
	if !f.on {
		return
	}
	r := lastOf[*RunHoldsPut](f)
	if r == nil {
		r = new(RunHoldsPut)
		f.rows = append(f.rows, r)
	}
	r.Tasks = append(r.Tasks, id)
}

// putTrouble reports the counts of a task's trouble.
func (m *Machine) putTrouble(id ids.TaskID, tr *trouble) {
	if m.facts.on {
		m.facts.put(tr.row(id))
	}
}

func (tr *trouble) row(id ids.TaskID) *TaskTroubled {
	return &TaskTroubled{Task: id, Retries: tr.retries, Deaths: tr.deaths, Kills: tr.kills, Early: tr.early,
		Reschedules: tr.reschedules, Causes: tr.causes[:len(tr.causes):len(tr.causes)]}
}

// durable reports whether a restart must know of the trouble.
func (tr *trouble) durable() bool {
	return tr.retries+tr.deaths+tr.kills+tr.early+tr.reschedules > 0
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

// total counts the tasks that the graph has ever had: forgotten ones count as RELEASED.
func (s *OpSummary) total() OpTotal {
	total := OpTotal{Name: s.Name}
	for _, n := range s.Counts {
		total.Tasks += n
	}
	return total
}

// putTasks reports the new tasks of a submission, and returns the row; nil: there is none.
func (s *submission) putTasks(g *graph) *TasksPut {
	m, ev := s.m, s.ev
	n := len(ev.Tasks) - s.joined
	if !m.facts.on || n == 0 {
		return nil
	}
	sc := &m.scratch.submit
	r := &TasksPut{Graph: g.id, Ops: ev.Ops, Options: ev.Options, Tasks: make([]TaskRow, 0, n)}
	used := slices.DeleteFunc(slices.Clone(sc.summaries), func(at uint32) bool { return at == math.MaxUint32 })
	slices.Sort(used)
	for _, at := range slices.Compact(used) {
		r.Totals = append(r.Totals, g.summaries[at].total())
	}
	inputs := 0
	for i, id := range sc.ids {
		if id >= s.first {
			inputs += len(ev.Tasks[i].Inputs)
		}
	}
	r.Inputs = make([]InputRow, 0, inputs)
	submitted := m.now.UnixMilli()
	for i, id := range sc.ids {
		if id < s.first {
			continue
		}
		spec := &ev.Tasks[i]
		b, t := m.at(id)
		r.Tasks = append(r.Tasks, TaskRow{Task: id, Key: spec.Key, Op: spec.Op, Options: spec.Options, Inputs: t.inputs,
			Arguments: spec.Arguments, Position: t.rank & positionMask, Submitted: submitted})
		edges := b.edgesOf(t)
		for k := range edges {
			e := &edges[k]
			r.Inputs = append(r.Inputs, InputRow{e.input, e.item, e.count.number()})
		}
	}
	m.facts.put(r)
	return r
}

// positionMask selects the position of a rank, without the priority.
const positionMask = 1<<48 - 1

// Rows calls put for the rows of a part of the durable state, and returns the cursor of the next
// part; more is false after the last one. The cursor of the first part is 0. A part has about as
// many rows as a block of tasks. Steps may come between the parts. The facts of these steps have
// their changes, so all parts, followed by all facts since the first part, give the whole state.
func (m *Machine) Rows(cursor uint64, put func(Row)) (next uint64, more bool) {
	section, at := cursor>>sectionShift, cursor&(1<<sectionShift-1)
	switch section {
	case sectionGraphs:
		if at == 0 {
			put(&Counters{NextTask: m.nextID, NextGraph: m.nextGraph})
		}
		end := min(at+graphsAtOnce, uint64(len(m.graphs)))
		for _, g := range m.graphs[min(at, end):end] {
			if g != nil {
				put(g.row())
			}
		}
		if end < uint64(len(m.graphs)) {
			return end, true
		}
		return sectionRequests << sectionShift, true
	case sectionRequests:
		if next, more := m.requests.rows(at, put); more {
			return sectionRequests<<sectionShift | next, true
		}
		return sectionTasks << sectionShift, true
	default:
		more := false
		m.tasks.each(at, func(b *block) bool {
			m.blockRows(b, put)
			next, more = sectionTasks<<sectionShift|(b.number+1), true
			return false
		})
		return next, more
	}
}

// Sections of the cursor of Rows.
const (
	sectionGraphs = iota
	sectionRequests
	sectionTasks
	sectionShift = 60
	graphsAtOnce = blockTasks
)

// blockRows calls put for the rows of the tasks of a block.
func (m *Machine) blockRows(b *block, put func(Row)) {
	var r *TasksPut
	ops, opts := map[uint32]uint32{}, map[uint32]uint32{}
	holds := map[uint32][]ids.TaskID{}
	var ends []Row
	graph := uint32(0)
	for i := range b.tasks {
		t := &b.tasks[i]
		if t.state == 0 {
			continue
		}
		id := ids.TaskID(b.number<<blockBits | uint64(i))
		if r == nil || t.graph != graph {
			if r != nil {
				put(r)
			}
			graph, r = t.graph, &TasksPut{Graph: m.graphs[t.graph].id}
			clear(ops)
			clear(opts)
		}
		op, ok := ops[t.op]
		if !ok {
			op = uint32(len(r.Ops))
			ops[t.op], r.Ops = op, append(r.Ops, m.ops[t.op].spec)
		}
		option := uint32(0)
		if t.options != 0 {
			if option, ok = opts[t.options]; !ok {
				r.Options = append(r.Options, m.options[t.options].Options)
				option = uint32(len(r.Options))
				opts[t.options] = option
			}
		}
		r.Tasks = append(r.Tasks, TaskRow{Task: id, Key: string(b.keyOf(t)), Op: op, Options: option, Inputs: t.inputs, Arguments: b.argsOf(t, uint64(i)),
			Position: t.rank & positionMask, Submitted: b.base.UnixMilli() + int64(t.submitted), RunHold: t.flags&flagRunHold != 0})
		edges := b.edgesOf(t)
		for k := range edges {
			r.Inputs = append(r.Inputs, InputRow{edges[k].input, edges[k].item, edges[k].count.number()})
		}
		for l := t.holders; l != 0; l = b.links[l].next {
			holds[b.links[l].value] = append(holds[b.links[l].value], id)
		}
		ends = m.endRows(id, b, t, ends)
	}
	if r != nil {
		put(r)
	}
	for _, end := range ends {
		put(end)
	}
	for _, h := range sortedKeys(holds) {
		put(&HoldsPut{Holder: m.holders[h].number(), Tasks: holds[h]})
	}
}

// endRows appends the rows of the end and of the troubles of a task.
func (m *Machine) endRows(id ids.TaskID, b *block, t *task, rows []Row) []Row {
	if tr := m.troubleIf(id, t); tr != nil && tr.durable() {
		rows = append(rows, tr.row(id))
	}
	state, data := t.state, m.ops[t.op].spec.Kind == OpData
	switch {
	case state == TaskSucceeded || state == TaskRescuing || t.state.active() && !t.undone() || data && state == TaskWaiting && m.dataLost(id):
		state = TaskSucceeded
	case data && state == TaskReleased && t.attempt > 0:
		state = TaskSucceeded // If it is wanted again, nobody brings its bytes.
	case state == TaskFailed || state == TaskCancelled:
	default:
		return rows
	}
	if inline := b.inlineOf(uint64(id & blockMask)); inline != nil && data {
		rows = append(rows, &DataPut{Task: id, Bytes: t.output, Inline: inline})
	}
	err := m.errors[id]
	var r *TasksEnded
	if n := len(rows); n > 0 {
		r, _ = rows[n-1].(*TasksEnded)
	}
	if r == nil || r.State != state || r.Err != err {
		r = &TasksEnded{State: state, Err: err}
		rows = append(rows, r)
	}
	r.Tasks = append(r.Tasks, TaskRef{id, ids.Attempt(t.attempt)})
	return rows
}
