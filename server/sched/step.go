package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
	"github.com/millrace/millrace/server/copies"
)

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
		tails:        make(map[ids.TaskID]tail),
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

// timePassed runs the timers that are due.
func (m *Machine) timePassed() {
	for len(m.timers) > 0 && !m.timers[0].at.After(m.now) {
		t := m.timers.pop()
		switch t.kind {
		case timerRetry:
			m.retryDue(ids.TaskID(t.id), t.attempt)
		case timerLease:
			m.leaseDue(ids.ClientID(t.id))
		case timerRetention:
			m.retentionDue(ids.GraphID(t.id))
		case timerSteal:
			m.stealArmed = false // each step ends with stealTasks
		case timerDispatch:
			m.dispatchArmed = false // each step ends with a dispatch
		case timerCopies:
			m.tell(copies.TimePassed{Wake: copies.Wake{Kind: t.wake, Worker: ids.WorkerID(t.id)}})
		case timerLostData:
			m.lostDataDue()
		}
	}
}
