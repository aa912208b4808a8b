package sched

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// Cross-worker pre-assignment: a task is sent to a worker before its inputs, which other workers
// make, exist.
//
// In a stencil, or in any exchange between neighbours, the inputs of a task are made at several
// workers. If the scheduler assigned the task only after it knew all inputs, each step would cost
// one message to the scheduler and one back. So a short task is assigned early. At its worker it
// waits for completion notifications, which go directly from worker to worker and carry small
// results, but only those that this task needs. The scheduler learns about the results through the
// usual reports.
//
// Workers notify each other of success only. Any other end of an attempt reaches the scheduler
// first. The scheduler then recalls the attempts that wait for it at other workers (see
// noteStranded and recall).

const (
	// maxCrossMissing is the largest number of missing inputs of a task that may be pre-assigned.
	maxCrossMissing = 8
	// maxQueueRead bounds the queue entries that waitAfterInputs reads.
	maxQueueRead = 16
	// maxCrossMicros is the longest estimated run time of a task that is pre-assigned. For a longer
	// task the time of a message does not matter.
	maxCrossMicros = 2000
	// notifyMicros is the assumed latency of a completion notification between two workers of one
	// host, remoteNotifyMicros between two hosts. Both are round figures: 15 and 50 µs were
	// measured (ADRs 11, 14). No object arrives sooner.
	notifyMicros, remoteNotifyMicros = 20, 50
	// minLatencyMicros is the smallest measured latency that placement considers. Below it,
	// measurement noise dominates: it would place neighbouring points on the one worker that looks
	// 10 µs closer.
	minLatencyMicros = 100
)

// preassignMakers pre-assigns dependents of the attempts in m.makers, lowest rank first. The order
// matters: a choice among neighbours is right only if the tasks before it have been placed. While
// ready tasks wait for room at a worker, it does nothing, because then no worker is idle for the
// time of a message.
func (m *Machine) preassignMakers() {
	makers, next := m.scratch.makers[:0], m.scratch.crossTasks[:0]
	for !m.crowded() {
		for _, r := range m.makers {
			if _, t := m.lookup(r.Task); t != nil && t.state.assigned() && t.attempt == uint32(r.Attempt) {
				m.crossCandidates(t, len(makers), &next)
				makers = append(makers, maker{TaskRef: r})
			}
		}
		if m.makers = m.makers[:0]; len(next) == 0 {
			break
		}
		f := next.pop()
		m.preassignAcross(f.task, &makers[f.maker])
	}
	m.makers = m.makers[:0]
	m.scratch.makers, m.scratch.crossTasks = makers, next
	if cap(makers) > keptWork {
		m.makers, m.scratch.makers, m.scratch.crossTasks = nil, nil, nil
	}
}

// crowded reports whether ready tasks wait for room at a worker. Tasks that no worker may run, or
// whose memory fits no worker, do not count. Otherwise one such task would stop all pre-assignment
// for as long as it exists. After maxClasses classes in a list, crowded stops looking and returns
// true.
func (m *Machine) crowded() bool {
	if m.ready == 0 {
		return false
	}
	for _, classes := range [][]*class{m.classQueue.waiting, m.classQueue.passed} {
		for i, c := range classes {
			if i == maxClasses || c.ready > len(c.parked) && len(m.feasible(c)) > 0 {
				return true
			}
		}
	}
	return false
}

// maker is an attempt whose dependents are considered for pre-assignment. noted means that the
// attempt is already in deferredCross of a worker, because one of its dependents found no room.
type maker struct {
	TaskRef
	noted bool
}

// crossCandidates adds the dependents of a task that may be pre-assigned to the heap to.
func (m *Machine) crossCandidates(t *task, maker int, to *heap[crossTask]) {
	n := 0
	for e := t.dependents; e != 0 && n < maxDependents; n++ {
		id, b, ct, link := m.consumerOf(e)
		e = link.next
		if ct.state != TaskWaiting || ct.missing > maxCrossMissing || m.standsBy(id) || !m.mayPreassignCross(b, ct) {
			// If another input is missing too, this task is found again when that input is
			// assigned.
			continue
		}
		if t.unfinished == 1 && m.mayPreassign(b, ct, m.workers[t.worker-1]) {
			// preassign assigns it to the same worker, or has noted it in deferred.
			continue
		}
		to.push(crossTask{ct.rank, id, maker})
	}
}

// preassignAcross assigns a waiting task to the best worker. If that worker has no room, it notes
// the maker in the worker's list deferredCross, and retryCross tries again later.
func (m *Machine) preassignAcross(id ids.TaskID, from *maker) {
	b, t := m.at(id)
	if t.state != TaskWaiting {
		return // The task was in the heap twice.
	}
	w := m.chooseCross(b, t)
	switch {
	case w == nil:
	case m.preassignRoom(w):
		m.send(id, b, t, w)
	case !from.noted:
		// One note is enough: retryCross considers all dependents of the maker. So an attempt is
		// in the list of at most one worker.
		w.deferredCross = append(w.deferredCross, from.TaskRef)
		from.noted = true
	}
}

// retryCross retries the pre-assignments for which preassignAcross found no room, once the worker
// has a good amount of room: it would be wasteful to send workers and their peers one task at a
// time. Every other worker that has any room retries as well, because neighbours are placed one
// after the other, and each placement decides where the next one goes.
func (m *Machine) retryCross(w *worker) {
	slots := uint64(w.slots)
	if len(w.deferredCross) == 0 || uint64(w.preassigned) >= slots+minQueued && (w.queuedMicros >= queueMicros*slots/2 || w.preassigned >= maxQueued/2) {
		return
	}
	for _, w := range m.order {
		if len(w.deferredCross) > 0 && m.preassignRoom(w) {
			m.makers = append(m.makers, w.deferredCross...)
			w.deferredCross = w.deferredCross[:0]
		}
	}
}

// crossTask is a task that may be pre-assigned because of a maker. maker is an index in
// preassignMakers's list of makers.
type crossTask struct {
	rank  uint64
	task  ids.TaskID
	maker int
}

func (f crossTask) Before(g crossTask) bool {
	return f.rank < g.rank || f.rank == g.rank && f.task < g.task
}

// mayPreassignCross reports whether a waiting task may be pre-assigned across workers. The task
// must be short, and each input must exist or be under way at a worker that sends completion
// notifications.
func (m *Machine) mayPreassignCross(b *block, t *task) bool {
	o := &m.ops[t.op]
	if t.flags&flagTrouble != 0 || o.spec.Kind == OpData || o.samples == 0 || o.estimate() > maxCrossMicros {
		return false
	}
	if c := m.classes[t.class]; c.options.Slots > 1 || len(c.options.Resources) > 0 {
		return false
	}
	edges := b.edgesOf(t)
	for i := range edges {
		_, p := m.at(edges[i].input)
		switch {
		case p.state == TaskSucceeded:
		case !p.state.assigned() || p.flags&flagRetracting != 0:
			return false
		default:
			if at := m.workers[p.worker-1]; at.state != WorkerStateActive || !at.notifies {
				return false
			}
		}
	}
	return true
}

// chooseCross picks the worker at which the task would probably end first. The candidates are the
// workers that make an input, one holder of each existing input, and the least loaded worker. Among
// equals it picks the maker or holder of the object for which the fewest unassigned tasks wait, so
// that those can still go elsewhere. A worker with enough runnable tasks is not a candidate: its
// queue hides the time of a message. Returns nil if there is no candidate.
func (m *Machine) chooseCross(b *block, t *task) *worker {
	c := m.classes[t.class]
	from := m.feasible(c)
	edges := b.edgesOf(t)
	var best *worker
	// input is the input that best makes or holds; nil if best is the least loaded worker.
	var input *task
	var soonest float64
	m.stamp++
	consider := func(w *worker, p *task, wait float64) {
		if !w.notifies || w.usedSlots >= uint64(w.slots)+minQueued || !slices.Contains(from, w) || !m.memoryFits(w, b, t) {
			return
		}
		f := wait + m.expectMicros(w, edges)
		if best == nil || f < soonest || f == soonest && m.waiters(p) < m.waiters(input) {
			best, input, soonest = w, p, f
		}
	}
	// made is the estimated time until the last input exists, from the queues of its makers.
	var made float64
	for i := range edges {
		_, p := m.at(edges[i].input)
		if p.worker == 0 {
			continue
		}
		if w := m.workers[p.worker-1]; w.mark != m.stamp {
			w.mark = m.stamp
			wait := m.waitAfterInputs(w, edges)
			made = max(made, w.load()-wait)
			consider(w, p, wait)
		}
	}
	for i := range edges {
		pb, p := m.at(edges[i].input)
		if p.worker != 0 || p.replicas == 0 {
			continue
		}
		if w := m.workers[pb.links[p.replicas].value]; w.mark != m.stamp {
			w.mark = m.stamp
			consider(w, p, max(w.load()-made, 0))
		}
	}
	if idle, _ := m.leastLoaded(from, c, 0, 0, nil); idle != nil && idle.mark != m.stamp {
		consider(idle, nil, max(idle.load()-made, 0))
	}
	return best
}

// waiters counts the dependents of a task that no worker has yet. For nil it returns a number above
// any count.
func (m *Machine) waiters(t *task) (waiting int) {
	if t == nil {
		return maxDependents + 1
	}
	n := 0
	for e := t.dependents; e != 0 && n < maxDependents; n++ {
		_, _, ct, link := m.consumerOf(e)
		if ct.state == TaskWaiting {
			waiting++
		}
		e = link.next
	}
	return waiting
}

// waitAfterInputs estimates, in microseconds, how long a task would wait at a worker after its
// inputs exist: the run times of the attempts that the worker got after the last input that it
// makes itself. Attempts before that input do not count. The task waits for that input at any
// worker, and the length of that part of the queue depends mainly on which worker reported last. If
// the input is not among the last maxQueueRead entries, the result is the load of the whole queue.
// REQUIRES: the worker makes one of the inputs.
func (m *Machine) waitAfterInputs(w *worker, edges []edge) float64 {
	var micros uint64
	for i := range min(len(w.queue), maxQueueRead) {
		r := w.queue[len(w.queue)-1-i]
		_, t := m.lookup(r.Task)
		if t == nil || !t.current(w, r.Attempt) {
			continue
		}
		for k := range edges {
			if edges[k].input == r.Task {
				return float64(micros) / float64(w.slots)
			}
		}
		micros += uint64(t.runMicros)
	}
	return w.load()
}

// expectMicros is fetchMicros plus an estimate for the inputs that do not exist yet. The size of
// such an input is the average result size of its op.
func (m *Machine) expectMicros(w *worker, edges []edge) float64 {
	_, micros := m.fetchMicros(w, edges)
	var latency float64
	for i := range edges {
		_, p := m.at(edges[i].input)
		if p.worker == 0 || p.worker == w.slot+1 {
			continue
		}
		maker, notify := m.workers[p.worker-1], float64(notifyMicros)
		if maker.host != w.host {
			notify = remoteNotifyMicros
		}
		latency = max(latency, notify)
		if m.ops[p.op].outputBytes <= float64(m.config.InlineResultBytes) {
			continue // A small result comes with the notification.
		}
		r := m.rate(maker.id, w.id)
		if r.latencyMicros >= minLatencyMicros {
			latency = max(latency, r.latencyMicros)
		}
		micros += m.ops[p.op].outputBytes / r.bytesPerMicro
	}
	return micros + latency
}

// recall takes an attempt back that waits for an input that will not come, and queues its task
// again.
func (m *Machine) recall(r TaskRef) {
	b, t := m.lookup(r.Task)
	if t == nil || !t.state.assigned() || t.attempt != uint32(r.Attempt) || t.missing == 0 {
		return
	}
	m.takeBack(r.Task, b, t)
}

// takeBack ends the attempt of a task, and queues the task again.
func (m *Machine) takeBack(id ids.TaskID, b *block, t *task) {
	w := m.workers[t.worker-1]
	m.abandonAttempt(id, b, t)
	m.emitTo(EffectCancel, w, id, t.attempt)
	m.requeue(id, b, t)
}
