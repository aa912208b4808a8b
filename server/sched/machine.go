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
//	   SUCCEEDED → RESCUING → SUCCEEDED: see server/copies
//	   RESCUING → RELEASED: lost after all, or not wanted any more
package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
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
	tails  map[ids.TaskID]string
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

// New makes an empty machine.
func New(c Config) *Machine {
	c = c.withDefaults()
	m := &Machine{
		config:       c,
		tasks:        dir{trimmed: uint64(c.FirstTask) >> (blockBits + dirBits)},
		nextID:       c.FirstTask,
		served:       firstRank << placeBits,
		lowestNested: firstRank,
		nextGraph:    1,
		namespaces:   make(map[string]*namespace),
		graphs:       make([]*graph, 1),
		graphIndex:   make(map[ids.GraphID]uint32),
		holders:      make([]holder, 1),
		clients:      make(map[ids.ClientID]*client),
		datasets:     make(map[uint64]uint32),
		opIndex:      make(map[OpSpec]uint32),
		functions:    make(map[ids.FunctionHash]int),
		options:      make([]options, 1),
		optionIndex:  map[string]uint32{},
		classIndex:   make(map[classKey]uint32),
		workerIndex:  make(map[ids.WorkerID]uint32),
		rates:        make(map[ratePair]rate),
		tails:        make(map[ids.TaskID]string),
		linalg:       make(map[ids.TaskID]string),
		lostData:     make(map[ids.TaskID]lostData),
		wide:         make(map[ids.TaskID]uint64),
		chains:       make(map[ids.TaskID][]chainLink),
		starts:       make(map[ids.TaskID]time.Time),
		trouble:      make(map[ids.TaskID]*trouble),
		latest:       make(map[ids.TaskID]uint32),
		errors:       make(map[ids.TaskID]*TaskError),
		requests:     requestLog{index: make(map[requestKey]answered)},
	}
	return m.init()
}

func (m *Machine) init() *Machine {
	text, body, place := canonical(&Options{})
	m.facts.on = m.config.Facts
	m.options[0] = options{text: text, body: body, place: place, rank: rankOf(0), tasks: 1}
	m.optionIndex[text] = 0
	m.copier = copies.New(copies.Config{RescueTimeout: m.config.RescueTimeout, BytesPerSecond: m.config.DefaultBytesPerSecond}, tables{m})
	return m
}

// Step handles an event that needs no answer. Events with an answer are allowed too; their answer
// or error is lost. The effects are appended to out and returned, so that the caller can reuse the
// slice.
func (m *Machine) Step(now time.Time, ev Event, out []Effect) []Effect {
	m.begin(now, ev, out)
	switch ev := ev.(type) {
	case TasksReported:
		m.tasksReported(ev)
	case ObjectsReported:
		m.objectsReported(ev)
	case TasksReleased:
		m.tasksReleased(ev)
	case GraphSubmitted:
		_, err := m.submit(ev)
		return m.finishUnless(err)
	case TasksHeld:
		_, err := m.tasksHeld(ev)
		return m.finishUnless(err)
	case TasksCancelled:
		_, err := m.tasksCancelled(ev)
		return m.finishUnless(err)
	case TasksRetried:
		_, err := m.tasksRetried(ev)
		return m.finishUnless(err)
	case GraphReleased:
		return m.finishUnless(m.graphReleased(ev))
	case DatasetPublished:
		_, err := m.datasetPublished(ev)
		return m.finishUnless(err)
	case DatasetUnpublished:
		m.datasetUnpublished(ev)
	case ClientOpened:
		m.clientOpened(ev)
	case ClientRenewed:
		m.clientRenewed(ev)
	case ClientClosed:
		m.clientClosed(ev.Client)
	case WorkerRegistered:
		m.workerRegistered(ev)
	case WorkerDisconnected:
		m.workerDisconnected(ev)
	case WorkerLost:
		m.workerLost(ev)
	case WorkerEnded:
		m.workerEnded(ev)
	case RescueFailed:
		m.rescueFailed(ev)
	case WorkerDraining:
		m.tell(copies.WorkerDraining(ev))
	case DrainOrdered:
		return m.finishUnless(m.drainOrdered(ev))
	case DrainUndone:
		return m.finishUnless(m.drainUndone(ev))
	case RebalanceOrdered:
		_, err := m.rebalanceOrdered(ev)
		return m.finishUnless(err)
	case RebalanceStopped:
		m.tell(copies.RebalanceStopped(ev))
	case WorkerMeasured:
		m.workerMeasured(ev)
	case RatesMeasured:
		for _, r := range ev {
			m.rateMeasured(r)
		}
	case TimePassed:
		m.timePassed()
	case Loaded:
		m.loaded(ev)
	case RestartEnded:
		m.restartEnded()
	}
	return m.finish()
}

// Submit is Step for GraphSubmitted, with its answer. On an error nothing has changed and there are
// no effects.
func (m *Machine) Submit(now time.Time, ev GraphSubmitted, out []Effect) (SubmitResult, []Effect, *Error) {
	m.begin(now, ev, out)
	result, err := m.submit(ev)
	return result, m.finishUnless(err), err
}

// Hold is Step for TasksHeld. It returns the numbers of the tasks, then those of the keys.
func (m *Machine) Hold(now time.Time, ev TasksHeld, out []Effect) ([]ids.TaskID, []Effect, *Error) {
	m.begin(now, ev, out)
	tasks, err := m.tasksHeld(ev)
	return tasks, m.finishUnless(err), err
}

// Cancelled is the answer to TasksCancelled: the number of tasks that became CANCELLED, and the
// named tasks that are unknown, because they do not exist or only others hold them.
type Cancelled struct {
	Tasks   uint64
	Unknown []ids.TaskID
}

// Cancel is Step for TasksCancelled.
func (m *Machine) Cancel(now time.Time, ev TasksCancelled, out []Effect) (done Cancelled, effects []Effect, err *Error) {
	m.begin(now, ev, out)
	before := m.totals.Cancelled
	done.Unknown, err = m.tasksCancelled(ev)
	effects = m.finishUnless(err)
	done.Tasks = m.totals.Cancelled - before
	return done, effects, err
}

// Retry is Step for TasksRetried. It returns the number of tasks that run again, inputs included.
func (m *Machine) Retry(now time.Time, ev TasksRetried, out []Effect) (retried uint64, effects []Effect, err *Error) {
	m.begin(now, ev, out)
	retried, err = m.tasksRetried(ev)
	return retried, m.finishUnless(err), err
}

// ReleaseGraph is Step for GraphReleased.
func (m *Machine) ReleaseGraph(now time.Time, ev GraphReleased, out []Effect) ([]Effect, *Error) {
	m.begin(now, ev, out)
	err := m.graphReleased(ev)
	return m.finishUnless(err), err
}

// OrderDrain is Step for DrainOrdered.
func (m *Machine) OrderDrain(now time.Time, ev DrainOrdered, out []Effect) ([]Effect, *Error) {
	m.begin(now, ev, out)
	err := m.drainOrdered(ev)
	return m.finishUnless(err), err
}

// UndoDrain is Step for DrainUndone.
func (m *Machine) UndoDrain(now time.Time, ev DrainUndone, out []Effect) ([]Effect, *Error) {
	m.begin(now, ev, out)
	err := m.drainUndone(ev)
	return m.finishUnless(err), err
}

// OrderRebalance is Step for RebalanceOrdered. It returns the plan.
func (m *Machine) OrderRebalance(now time.Time, ev RebalanceOrdered, out []Effect) (copies.RebalanceInfo, []Effect, *Error) {
	m.begin(now, ev, out)
	info, err := m.rebalanceOrdered(ev)
	return info, m.finishUnless(err), err
}

// Publish is Step for DatasetPublished. It returns the task of each key.
func (m *Machine) Publish(now time.Time, ev DatasetPublished, out []Effect) ([]ids.TaskID, []Effect, *Error) {
	m.begin(now, ev, out)
	tasks, err := m.datasetPublished(ev)
	return tasks, m.finishUnless(err), err
}

// NextDeadline is the time at which TimePassed is due next; false: no timer is set.
func (m *Machine) NextDeadline() (time.Time, bool) {
	if len(m.timers) == 0 {
		return time.Time{}, false
	}
	return m.timers[0].at, true
}

// keptWork bounds the capacity that a work list keeps between steps.
const keptWork = 1 << 14

func (m *Machine) begin(now time.Time, ev Event, out []Effect) {
	m.checkLoading(ev)
	m.now, m.out, m.cause, m.changedOrders = now, out, causeOf(ev), nil
	if m.facts.rows = m.facts.rows[:0]; cap(m.facts.rows) > keptWork {
		m.facts.rows = nil
	}
	if m.epoch.IsZero() {
		m.epoch = now
	}
	m.millis = uint32(now.Sub(m.epoch).Milliseconds())
}

// finish carries out all consequences of the event, until the work lists are empty, and returns the
// effects.
func (m *Machine) finish() []Effect {
	for {
		m.propagate()
		m.dispatch()
		m.preassignMakers()
		if m.copier.Pending() {
			m.tell(copies.Continued{})
			continue
		}
		if len(m.endings)+len(m.reruns)+len(m.settling)+len(m.stranded)+len(m.copied) == 0 {
			break
		}
	}
	// After a step that touched very many tasks, do not keep the large lists for ever.
	if cap(m.settling) > keptWork {
		m.settling = nil
	}
	if cap(m.endings) > keptWork {
		m.endings = nil
	}
	if cap(m.reruns) > keptWork {
		m.reruns = nil
	}
	if cap(m.stranded) > keptWork {
		m.stranded = nil
	}
	m.stealTasks()
	m.flushGraphs()
	m.flushWorkers()
	m.out = append(m.out, m.freed...)
	m.freed = m.freed[:0]
	out := m.out
	m.out = nil
	if invariant.Enabled {
		if err := m.Check(); err != nil {
			panic(err)
		}
	}
	return out
}

// finishUnless is finish if err is nil. A refused event has no effects at all, not even those that
// were due anyway.
func (m *Machine) finishUnless(err *Error) []Effect {
	if err == nil {
		return m.finish()
	}
	out := m.out
	m.out = nil
	if invariant.Enabled {
		if err := m.Check(); err != nil {
			panic(err)
		}
	}
	return out
}

// propagate empties the work lists: failures reach dependents, wanted tasks without an object start
// again, attempts whose inputs will not come are recalled, and tasks that are not wanted any more
// are dropped or released.
func (m *Machine) propagate() {
	for {
		switch {
		case len(m.endings) > 0:
			d := m.endings[len(m.endings)-1]
			m.endings = m.endings[:len(m.endings)-1]
			m.applyEnding(d)
		case len(m.reruns) > 0:
			r := m.reruns[len(m.reruns)-1]
			m.reruns = m.reruns[:len(m.reruns)-1]
			m.runAgain(r)
		case len(m.stranded) > 0:
			r := m.stranded[len(m.stranded)-1]
			m.stranded = m.stranded[:len(m.stranded)-1]
			m.recall(r)
		case len(m.settling) > 0:
			id := m.settling[len(m.settling)-1]
			m.settling = m.settling[:len(m.settling)-1]
			m.settle(id)
		case len(m.copied) > 0:
			m.dropCopied()
		default:
			return
		}
	}
}

func (m *Machine) emit(e Effect) { m.out = append(m.out, e) }

// notify sends the task's state to the clients that hold the task.
func (m *Machine) notify(id ids.TaskID, b *block, t *task) {
	for i := t.holders; i != 0; i = b.links[i].next {
		if h := &m.holders[b.links[i].value]; h.kind == HolderClient {
			m.emit(Effect{Kind: EffectNotify, Task: id, Client: h.client, State: t.state, Attempt: ids.Attempt(t.attempt)})
		}
	}
}

// setState moves a task to another state and updates all counts by state.
func (m *Machine) setState(id ids.TaskID, t *task, to TaskState) {
	from := t.state
	m.count(t, to)
	if to == TaskReady {
		t.readied = m.millis
	}
	m.history.add(m, id, from, to, t.attempt, t.worker)
	if m.copier.Copying() && !to.unended() {
		ended := copies.CopyEnded{Task: id}
		if err := m.errors[id]; err != nil {
			ended.Error = err.Message
		}
		m.tell(ended)
	}
}

// count sets the state of a task with all counts that follow from it.
func (m *Machine) count(t *task, to TaskState) {
	g := m.graphs[t.graph]
	p := &g.summaries[t.summary]
	from := t.state
	t.state = to
	g.counts[from]--
	g.counts[to]++
	p.Counts[from]--
	p.Counts[to]++
	m.totals.Counts[from]--
	m.totals.Counts[to]++
	if to == TaskAssigned && m.restart.attempts > 0 {
		g.endedBefore = time.Time{}
	}
	if from.unended() != to.unended() {
		if to.unended() {
			g.begin(1)
		} else {
			g.endOne()
		}
	}
	m.touch(t.graph, g)
}

// activate counts the task as a user of its inputs; deactivate takes that back.
func (m *Machine) activate(b *block, t *task) {
	for i := range b.edgesOf(t) {
		_, p := m.at(b.edges[t.edge+uint32(i)].input)
		p.unfinished++
	}
}

func (m *Machine) deactivate(b *block, t *task) {
	edges := b.edgesOf(t)
	for i := range edges {
		id := edges[i].input
		_, p := m.at(id)
		if p.unfinished--; p.unfinished == 0 {
			m.reconsider(id, p)
		}
	}
}

func (t *task) wanted() bool {
	return t.holders != 0 || t.unfinished > 0 || t.flags&flagRunHold != 0
}

// reconsider queues a task that is perhaps not wanted any more.
func (m *Machine) reconsider(id ids.TaskID, t *task) {
	if t.flags&flagSettling == 0 && !t.wanted() {
		t.flags |= flagSettling
		m.settling = append(m.settling, id)
	}
}
