package sched

import (
	"fmt"
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

// WrittenRows returns the rows that say of an object, which a client wrote to a worker, that its
// task has succeeded; none if the machine would not take it for that. It changes nothing.
func (m *Machine) WrittenRows(worker ids.WorkerID, s *Stored) (rows []Row) {
	_, t := m.lookup(s.Task)
	if !s.Written || t == nil || !m.brings(t, uint32(s.Generation)) || m.workerOf(worker) == nil {
		return nil
	}
	if m.fitsInline(s.Inline) {
		rows = append(rows, &DataPut{Task: s.Task, Bytes: s.Bytes, Inline: s.Inline})
	}
	return append(rows, &TasksEnded{State: TaskSucceeded, Tasks: []TaskRef{{s.Task, s.Generation}}})
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
