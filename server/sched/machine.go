// Package sched is a Machine: it decides which task runs where and when, and which results are
// still wanted. Events go in as values, with the time at which they happened. Effects come out as
// values. It has no clock, goroutine, lock or IO, and one owner.
//
// A task makes one object, its result. An attempt is one assignment of a task to a worker; attempts
// of a task are numbered from 1, and the number of the attempt that made an object is the object's
// generation. A replica is a copy of an object on a worker.
//
// A task is wanted while a client, a dataset or a detached graph holds it, and while a task that
// has not ended needs its object. A task that a client submitted without a hold and without
// dependents is wanted until it has run once. A task or object that is not wanted is dropped or
// released in the same step. A wanted object that is lost is computed again from its inputs, as far
// back as needed. A task's record is forgotten when nothing holds it and no known task depends on
// it.
//
//	WAITING ⇄ READY → ASSIGNED → RUNNING → SUCCEEDED → RELEASED
//	   any of the first four → FAILED | CANCELLED | RELEASED (dropped)
//	   ASSIGNED → SUCCEEDED: its start was not reported
//	   WAITING, READY → SUCCEEDED: a client wrote the bytes, or an attempt that was given up ended
//	   ASSIGNED, RUNNING → READY or WAITING: retracted, retried, or its worker is gone
//	   SUCCEEDED → WAITING: its object is lost and wanted; RELEASED → WAITING: wanted again
//	   FAILED, CANCELLED → WAITING: retried
//	   FAILED, CANCELLED → RELEASED: forgotten, or submitted again
//	   RELEASED → FAILED | CANCELLED: its bytes are lost, or nobody wants the copy any more
//	   WAITING → ASSIGNED: ahead of its inputs
//	   SUCCEEDED → RESCUING → SUCCEEDED: see server/copies
//	   RESCUING → RELEASED: lost after all, or not wanted any more
//
// The table is in state.go, and docs/states/task.md draws it.
package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// Machine is the scheduler's state. It is not safe for concurrent use.
type Machine struct {
	config Config
	now    time.Time
	// epoch is the time of the first step, and millis that of this step in milliseconds since then.
	// millis wraps around after 49 days: only differences count.
	epoch  time.Time
	millis uint32
	out    []Effect
	cause  cause
	facts  facts

	tasks  dir
	nextID ids.TaskID
	// served is the place at which the machine is; see flow.go. lowestNested is the rank, without a
	// priority, of the task that a task has submitted last; see nestedRank.
	served, lowestNested uint64
	// freed are the EffectFreeSlot of this step.
	freed   []Effect
	current *block // the block of nextID, or nil

	namespaces map[string]*namespace
	graphs     []*graph // by slot; nil: free
	freeGraphs []uint32
	graphIndex map[ids.GraphID]uint32
	nextGraph  ids.GraphID
	// emptied are client graphs whose last task was forgotten, oldest first. Some may have tasks
	// again.
	emptied []ids.GraphID
	dirty   []uint32

	holders     []holder // by slot; [0] unused
	freeHolders []uint32
	clients     map[ids.ClientID]*client
	datasets    map[uint64]uint32 // holder slots

	ops         []op
	freeOps     []uint32
	opIndex     map[OpSpec]uint32
	unused      []uint32
	functions   map[ids.FunctionHash]int
	options     []options
	freeOptions []uint32
	optionIndex map[string]uint32

	classes     []*class // by slot; nil: free
	freeClasses []uint32
	classIndex  map[classKey]uint32
	// classQueue has all classes with tasks in their queues, and some that have just lost their
	// last task.
	classQueue classQueue
	ready      int
	stamp      uint64
	// wide caches the total input size of ready tasks with more than maxCounted inputs.
	wide map[ids.TaskID]uint64
	// reads counts the classes and inputs that placement has read; tests compare it with bounds.
	reads struct{ classes, inputs uint64 }

	workers     []*worker // by slot; nil: free
	freeWorkers []uint32
	workerIndex map[ids.WorkerID]uint32
	// order has the workers by id.
	order []*worker
	// workerVersion changes whenever the set of tasks that a worker may run can change.
	workerVersion uint64
	rotate        int
	rates         map[ratePair]rate

	// copier decides where copies of objects must be. See copies.go.
	copier *copies.Machine
	// lostData are the scattered objects of lost workers; see lostdata.go.
	lostData map[ids.TaskID]lostData
	// chains are the broadcast chains by object; see chain.go.
	chains map[ids.TaskID][]chainLink

	// kills counts the workers that were killed while they ran tasks.
	kills   uint64
	silent  silent
	trouble map[ids.TaskID]*trouble
	// latest has the last number of an attempt of each task whose current attempt is an older one.
	latest map[ids.TaskID]uint32
	errors map[ids.TaskID]*TaskError
	// starts has the time at which each RUNNING attempt was reported to run.
	starts map[ids.TaskID]time.Time
	// detailed are tasks whose errors have details, in the order of their failures. Some may have
	// lost the details since.
	detailed []ids.TaskID
	// tails is the last output of tasks. tailed lists the tasks in the order in which their output
	// came; some appear more than once or have no output any more.
	tails  map[ids.TaskID]tail
	tailed []ids.TaskID
	// linalg has the libraries that computed the objects of tasks of linear algebra.
	linalg map[ids.TaskID]string

	restart restart

	timers                    heap[timer]
	stealArmed, dispatchArmed bool
	// wideAt is the earliest time at which stealTasks considers a task with very many inputs again.
	wideAt time.Time

	// Work lists within a step; empty between steps.
	endings  []ending
	reruns   []rerun
	settling []ids.TaskID
	stranded []TaskRef
	// makers are attempts whose dependents may be pre-assigned to other workers.
	makers []TaskRef
	// copied are the graphs of copies that have ended or are not wanted.
	copied []ids.GraphID
	// changedOrders are those of which EffectOrdersChanged tells.
	changedOrders []copies.DrainOrderChanged
	// changedWorkers are the workers of which EffectWorkerChanged will tell.
	changedWorkers []ids.WorkerID
	// notifiers counts the workers with notifies set.
	notifiers int

	requests requestLog
	history  history
	runs     runs
	opTimes  opTimes
	totals   Totals
	scratch  scratch
}

// scratch is memory reused between steps; nothing in it has a meaning across steps.
type scratch struct {
	makers     []maker
	crossTasks heap[crossTask]
	candidates []*worker
	submit     submitScratch
}

// Totals has sums over the whole machine.
type Totals struct {
	// Counts of live tasks by state, indexed by TaskState.
	Counts                   Counts
	Tasks                    uint64
	Graphs, Clients, Workers uint64
	// ReadyQueued counts ready tasks that wait for a worker.
	ReadyQueued uint64
	InlineBytes uint64
	// HeldBytes is the approximate size of records, keys and arguments. For DetailBytes and
	// TailBytes see Config.
	HeldBytes, DetailBytes, TailBytes uint64
	// The fields from Submitted on only grow.
	Submitted, Forgotten, Assigned, Succeeded, Failed, Cancelled, Retracted, Recomputed uint64
	// Rescued counts objects that were copied out of the memory of dead workers.
	Rescued uint64
	// Moved counts objects that a rebalance has moved.
	Moved uint64
	// Stale counts reports that were dropped because their attempt was not the current one.
	Stale uint64
}

// Statuses returns the words of Explanation.Status. They equal those of the API's TaskStatus.
func Statuses() []string {
	return []string{
		"INPUTS_MISSING", "WAITING_FOR_DATA", "NO_WORKERS", "NO_WORKER_FITS", "ALL_WORKERS_BUSY", "RETRY_BACKOFF",
		"ASSIGNED", "PREASSIGNED", "RUNNING", "RESCUING", "ENDED",
	}
}

// lookup finds the record of a task; nil if the task is forgotten or never existed.
func (m *Machine) lookup(id ids.TaskID) (*block, *task) {
	b := m.tasks.block(uint64(id) >> blockBits)
	if b == nil {
		return nil, nil
	}
	t := &b.tasks[id&blockMask]
	if t.state == 0 {
		return nil, nil
	}
	return b, t
}

// at is lookup for ids that the machine itself keeps. REQUIRES: the task is not forgotten.
func (m *Machine) at(id ids.TaskID) (*block, *task) {
	b := m.tasks.block(uint64(id) >> blockBits)
	return b, &b.tasks[id&blockMask]
}

func (m *Machine) edge(r edgeRef) *edge {
	return &m.tasks.block(uint64(r) >> edgeBits).edges[r&(maxBlockEdges-1)]
}

// consumerOf returns the task that an edge belongs to: the one that uses the object.
func (m *Machine) consumerOf(r edgeRef) (ids.TaskID, *block, *task, *edge) {
	b := m.tasks.block(uint64(r) >> edgeBits)
	e := &b.edges[r&(maxBlockEdges-1)]
	return ids.TaskID(b.number<<blockBits | uint64(e.consumer)), b, &b.tasks[e.consumer], e
}

// linkEdge prepends edge i of block b to its producer's list of dependents. So lists run from the
// newest dependent to the oldest; only ranks decide the order of tasks.
func (m *Machine) linkEdge(b *block, i uint32, producer *task) {
	r := edgeRef(b.number<<edgeBits | uint64(i))
	e := &b.edges[i]
	e.next, e.prev, e.flags = producer.dependents, 0, edgeLinked
	if e.next != 0 {
		m.edge(e.next).prev = r
	}
	producer.dependents = r
}

func (m *Machine) unlinkEdge(e *edge, producer *task) {
	if e.flags&edgeLinked == 0 {
		return
	}
	if e.prev != 0 {
		m.edge(e.prev).next = e.next
	} else {
		producer.dependents = e.next
	}
	if e.next != 0 {
		m.edge(e.next).prev = e.prev
	}
	e.flags, e.next, e.prev = 0, 0, 0
}

func (m *Machine) workerOf(id ids.WorkerID) *worker {
	slot, ok := m.workerIndex[id]
	if !ok {
		return nil
	}
	return m.workers[slot]
}

func (m *Machine) emit(e Effect) { m.out = append(m.out, e) }

// emitTo emits an order to a worker, unless the worker is disconnected. Reconciliation on reconnect
// finds the objects and attempts that the worker then has without need.
func (m *Machine) emitTo(kind EffectKind, w *worker, id ids.TaskID, attempt uint32) {
	if w.reachable() {
		m.emit(Effect{Kind: kind, Worker: w.id, Task: id, Attempt: ids.Attempt(attempt)})
	}
}
