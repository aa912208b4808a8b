package sched

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// worker is a worker incarnation that is registered and not lost.
type worker struct {
	id          ids.WorkerID
	slot        uint32
	name        string
	incarnation string
	host        string
	state       WorkerState
	// disconnectedAt is the time at which its session broke, while it is disconnected.
	disconnectedAt time.Time
	slots          uint32
	resources      map[string]float64
	memory         uint64
	// memoryUsed and memoryEvictable are as last reported: see WorkerMeasured.
	memoryUsed      uint64
	memoryEvictable uint64
	// added are the bytes of the objects that it got since then.
	added     uint64
	executors []string
	pipelined bool // see WorkerRegistered.PipelinedReads
	linalg    Linalg

	// queue has the attempts in the order in which they were sent. An entry is stale if its attempt
	// is not under way here any more.
	queue []TaskRef
	// assigned counts the attempts under way here; running counts those of them in RUNNING.
	assigned, running int
	// usedSlots, usedResources and queuedMicros are sums over the attempts under way; queuedMicros
	// uses the run times estimated at assignment. Attempts that wait for pre-assigned inputs count
	// in preassigned instead of usedSlots, because they cannot run yet.
	usedSlots     uint64
	preassigned   int
	usedResources map[string]float64
	queuedMicros  uint64
	// blocked are the tasks whose attempts here wait for other tasks. They run, and count in
	// neither usedSlots nor queuedMicros.
	blocked taskSet
	// deferred are attempts here whose only dependent can be pre-assigned here once there is room.
	deferred []TaskRef
	// notifies: see WorkerRegistered.Notifies. deferredCross are attempts at any worker with a
	// dependent that can be pre-assigned here once there is room. Each attempt is in the list of
	// one worker at most.
	notifies      bool
	deferredCross []TaskRef
	// retracting counts the attempts that the worker was asked to give back and has not answered
	// for.
	retracting int
	// reportedAt is the time of the last report or registration.
	reportedAt time.Time
	// supervised: see WorkerRegistered.Supervised.
	supervised bool

	// objects are exactly the tasks whose replicas have a link to this worker. heldBytes is their
	// total size.
	objects   taskSet
	heldBytes uint64
	// fetching are inputs that attempts here will fetch. It is only an estimate, but always a
	// subset of the inputs of those attempts.
	fetching taskSet
	// fetchingItems counts the items of lists that attempts here will fetch: the edges with
	// edgeFetching.
	fetchingItems int
	// fetchingBytes is the total size of fetching and of these items, which a further fetch to this
	// worker has to share the link with. Exactly 0 when there are none.
	fetchingBytes uint64
	finished      uint64

	// mark and present are scratch values of one placement.
	mark    uint64
	present uint64
}

// gain records an object that the worker got. It returns false if the worker had it already.
func (w *worker) gain(id ids.TaskID, t *task) bool {
	if !w.objects.add(id) {
		return false
	}
	w.heldBytes += t.output
	w.added += t.output
	return true
}

// part records that the worker has an object no more.
func (w *worker) part(id ids.TaskID, t *task) {
	if w.objects.remove(id) {
		w.heldBytes -= t.output
	}
}

func (w *worker) reachable() bool { return w.state != WorkerStateDisconnected }

func (m *Machine) workerRegistered(ev WorkerRegistered) {
	w := m.workerOf(ev.Worker)
	if w == nil {
		w = &worker{id: ev.Worker}
		if k := len(m.freeWorkers); k > 0 {
			w.slot = m.freeWorkers[k-1]
			m.freeWorkers = m.freeWorkers[:k-1]
			m.workers[w.slot] = w
		} else {
			w.slot = uint32(len(m.workers))
			m.workers = append(m.workers, w)
		}
		m.workerIndex[ev.Worker] = w.slot
		at, _ := slices.BinarySearchFunc(m.order, ev.Worker, func(w *worker, id ids.WorkerID) int {
			return int(int64(w.id) - int64(id))
		})
		m.order = slices.Insert(m.order, at, w)
	}
	w.name, w.incarnation, w.host = ev.Name, ev.Incarnation, ev.Host
	w.state, w.supervised = WorkerStateActive, ev.Supervised
	m.silent.drop(ev.Incarnation)
	w.slots = max(ev.Slots, 1)
	w.resources, w.memory = ev.Resources, ev.MemoryBytes
	w.linalg = ev.Linalg
	w.executors, w.pipelined = ev.Executors, ev.PipelinedReads
	if w.notifies != ev.Notifies {
		w.notifies = ev.Notifies
		m.countNotifiers()
	}
	w.reportedAt = m.now
	m.workerVersion++
	m.tell(copies.SessionOpened{Worker: w.id})
	m.reconcile(w, &ev)
}

// reconcile compares the inventory and attempts that a worker reports with the machine's records.
// The worker is right about its objects and attempts; the machine is right about which of them are
// wanted.
func (m *Machine) reconcile(w *worker, ev *WorkerRegistered) {
	held := make(map[ids.TaskID]bool, len(ev.Inventory))
	for _, r := range ev.Inventory {
		m.adopt(w, Stored{Replica: r})
		if _, t := m.lookup(r.Task); t != nil && t.attempt == uint32(r.Generation) {
			held[r.Task] = true // a replica of another generation does not count
		}
	}
	for _, r := range ev.Written {
		// If it was accepted, that message was lost. It is repeated now, before the worker gets
		// tasks that need the object.
		if _, t := m.lookup(r.Task); t != nil && t.attempt == uint32(r.Generation) && m.ops[t.op].spec.Kind == OpData && w.objects.has(r.Task) {
			held[r.Task] = true
			m.emitTo(EffectAccept, w, r.Task, t.attempt)
		}
	}
	var lost []ids.TaskID
	for _, id := range w.objects.members(nil) {
		if !held[id] && m.replicaLost(id, w) {
			lost = append(lost, id)
		}
	}
	m.tell(copies.InventoryRead{Worker: w.id})
	works := make(map[TaskRef]bool, len(ev.Running))
	m.forgetReturned(w)
	for _, r := range ev.Running {
		works[r] = true
		if b, t := m.lookup(r.Task); m.mayReturn(b, t, r.Attempt) {
			m.attemptReturned(w, r)
		} else if t == nil || !t.current(w, r.Attempt) {
			m.emitTo(EffectCancel, w, r.Task, uint32(r.Attempt))
		}
	}
	for _, r := range m.underWay(w) {
		b, t := m.at(r.Task)
		if !works[r] {
			m.abandonAttempt(r.Task, b, t)
			m.requeue(r.Task, b, t)
			continue
		}
		if t.flags&flagRetracting != 0 {
			// The answer to the retract request may have been lost with the session.
			t.flags &^= flagRetracting
			w.retracting--
		}
		m.attemptGoesOn(r.Task, t, w) // the worker reports again which attempts wait
	}
	m.recover(lost)
	m.tell(copies.WorkerReturned{Worker: w.id})
}

// current reports whether this attempt of the task is under way on the worker.
func (t *task) current(w *worker, a ids.Attempt) bool {
	return t.state.assigned() && t.worker == w.slot+1 && t.attempt == uint32(a)
}

// underWay lists the attempts under way on a worker, in the order in which they were sent.
func (m *Machine) underWay(w *worker) []TaskRef {
	var refs []TaskRef
	for _, r := range w.queue {
		if _, t := m.lookup(r.Task); t != nil && t.current(w, r.Attempt) {
			refs = append(refs, r)
		}
	}
	return refs
}

func (m *Machine) workerDisconnected(ev WorkerDisconnected) {
	w := m.workerOf(ev.Worker)
	if w == nil {
		return
	}
	w.state, w.disconnectedAt = WorkerStateDisconnected, m.now
	m.workerVersion++
	m.tell(copies.WorkersChanged{})
}

func (m *Machine) workerMeasured(ev WorkerMeasured) {
	if w := m.workerOf(ev.Worker); w != nil {
		w.memoryUsed, w.memoryEvictable = ev.MemoryUsedBytes, min(ev.MemoryEvictableBytes, ev.MemoryUsedBytes)
		w.added = 0
		m.tell(copies.WorkerMeasured{})
	}
}

// workerLost removes a worker. Its attempts are queued again; a task that was running at too many
// deaths fails. Its objects, if wanted and without another replica, are rescued or computed again.
func (m *Machine) workerLost(ev WorkerLost) {
	w := m.workerOf(ev.Worker)
	if w == nil {
		return
	}
	cause := ev.Cause
	if cause == "" {
		cause = "lost"
	}
	refs := m.underWay(w)
	// Remove the replicas first, so that no attempt is sent again with an input that is gone.
	var lost []ids.TaskID
	if ev.DeviceFault {
		ev.Survivors = nil
	}
	m.noteLostData(w, cause, ev.Gone)
	rescued := m.orderRescues(copies.WorkerLost{Worker: w.id, Left: ev.Left, Survivors: ev.Survivors})
	for _, id := range w.objects.members(nil) {
		if len(rescued) > 0 && rescued[0].Object == id {
			m.carryOut(rescued[:1])
			rescued = rescued[1:]
			m.awaitRescue(id, w)
			continue
		}
		if m.removeReplica(id, w) {
			lost = append(lost, id)
		} else if _, t := m.at(id); t.replicas != 0 {
			m.tell(copies.KeeperLost{Object: id})
		}
	}
	blame := make([]bool, len(refs))
	any := false
	for i, r := range refs {
		_, t := m.at(r.Task)
		blame[i] = m.ran(r, t, ev.Calls) && !w.blocked.has(r.Task)
		any = any || blame[i]
	}
	mayHang := ev.Outside && !ev.Killed && !ev.Gone
	// A task may kill its worker before the report of its start arrives. If no task is known to
	// run, assume that the first ones of the queue ran. If it is known that none ran, only a worker
	// that crashed by itself is a reason to suspect them: they may do that while they are prepared.
	guess := !any && (!ev.Outside || (ev.Killed || mayHang) && !ev.Calls.Known)
	prepared := make([]bool, len(refs))
	for i := 0; i < len(refs) && i < int(w.slots); i++ {
		_, t := m.at(refs[i].Task)
		first := t.missing == 0 && !w.blocked.has(refs[i].Task)
		blame[i] = blame[i] || guess && first
		prepared[i] = first && !blame[i] && ev.Killed && ev.Calls.Known
	}
	blamed := 0
	for _, b := range blame {
		if b {
			blamed++
		}
	}
	alone := blamed == 1 && (any || len(refs) == 1)
	if ev.Killed && blamed > 0 {
		m.kills++
	}
	hung := suspects{worker: w.name, alone: alone, counted: any}
	for i, r := range refs {
		b, t := m.at(r.Task)
		m.abandonAttempt(r.Task, b, t)
		if blame[i] && mayHang {
			hung.tasks = append(hung.tasks, r.Task)
			blame[i] = any
		} else if ev.Killed && blamed > 0 {
			m.suspect(r.Task, t, blame[i] && alone, blame[i] && any)
		} else if blame[i] {
			m.suspect(r.Task, t, false, true)
		}
		if blame[i] && m.blame(r.Task, b, t, fmt.Sprintf("worker %s: %s", w.name, cause), w, "WORKER_DIED", ev.Outside) ||
			prepared[i] && m.noteKilledEarly(r.Task, b, t, fmt.Sprintf("worker %s: %s", w.name, cause), w) {
			continue
		}
		m.requeue(r.Task, b, t)
	}
	m.silent.add(w.incarnation, hung)
	delete(m.workerIndex, w.id)
	m.workers[w.slot] = nil
	m.freeWorkers = append(m.freeWorkers, w.slot)
	m.order = slices.DeleteFunc(m.order, func(o *worker) bool { return o == w })
	m.countNotifiers()
	m.workerVersion++
	m.forgetRates(w.id)
	m.recover(lost)
	m.tell(copies.WorkerRemoved{Worker: w.id})
}

// ran reports whether an attempt was running when its worker died. The functions of executor
// processes are known if the supervisor knows them; of others, the report of the start counts.
func (m *Machine) ran(r TaskRef, t *task, calls Calls) bool {
	if calls.Known && m.ops[t.op].spec.Kind != OpNative {
		return slices.Contains(calls.Attempts, r)
	}
	return t.state == TaskRunning
}

// maxEarlyKills is the number of kills of a worker, while it prepared the task, at which the task
// fails. Such a kill is no fault of the task. But the bytes of a task may contain code that kills
// the worker when they are loaded, and that must end as well.
const maxEarlyKills = 100

// noteKilledEarly counts a kill of the worker while it prepared the task. If that was one too many,
// it fails the task and returns true.
func (m *Machine) noteKilledEarly(id ids.TaskID, b *block, t *task, cause string, w *worker) bool {
	tr := m.troubleOf(id, t)
	tr.early++
	m.putTrouble(id, tr)
	if tr.early < maxEarlyKills {
		return false
	}
	tr.causes = append(tr.causes, fmt.Sprintf("%s, as %d times before the task had begun", cause, tr.early))
	m.poison(id, b, t, w.name, "WORKER_DIED")
	return true
}

// trouble records the problems of a task; most tasks have none.
type trouble struct {
	retries, deaths uint32
	// early counts the kills of workers that prepared the task.
	early uint32
	// reschedules counts the runs whose function asked to run again.
	reschedules uint32
	// kills are deaths for an outside reason.
	kills uint32
	// streak counts the kills, of any workers, at which only this task was running, since the last
	// kill of a worker that did not have it. lastKill is the number of the last kill of a worker
	// that had it. See suspect.
	streak   uint32
	lastKill uint64
	// unreachable counts consecutive attempts that could not fetch their inputs.
	unreachable uint32
	// causes has the causes of the deaths, oldest first.
	causes []string
	// avoid is a worker that the next attempt should not use; 0: none.
	avoid ids.WorkerID
	// sourceFailures counts the failed fetches of this task's object, by worker, in the order of
	// the first failures.
	sourceFailures []sourceFailure
	// inputFailures counts the failed fetches of this task's inputs, by source, reader and input.
	inputFailures []inputFailure
}

func (m *Machine) troubleOf(id ids.TaskID, t *task) *trouble {
	if t.flags&flagTrouble == 0 {
		t.flags |= flagTrouble
		m.trouble[id] = new(trouble)
	}
	return m.trouble[id]
}

// troubleIf returns the task's trouble record, or nil.
func (m *Machine) troubleIf(id ids.TaskID, t *task) *trouble {
	if t.flags&flagTrouble == 0 {
		return nil
	}
	return m.trouble[id]
}

// outsideFactor is the number of outside deaths that count as much as one other death. They count
// at all because a function may also kill its worker by a signal.
const outsideFactor = 4

// suspect records the kill of a worker that had the task. The sender of a kill is not known, and it
// is seldom a task; so blame counts a kill as a quarter of a death. There is one pattern that makes
// the task the likely cause: each of the last killed workers had it, and some of them were running
// only this task (alone). streak counts the latter.
//
//   - The kill of a worker without the task, or of one that was running others beside it (ran, not
//     alone), starts the count again: people and the system also kill such workers.
//   - The kill of a worker that had the task only in its queue, as far as is known, changes
//     nothing: reports of the tasks before it may have been lost with the worker.
//   - An orderly end does not count, and a task that succeeds is no suspect any more.
func (m *Machine) suspect(id ids.TaskID, t *task, alone, ran bool) {
	tr := m.troubleIf(id, t)
	if tr == nil && !alone {
		return
	}
	tr = m.troubleOf(id, t)
	inRow := tr.streak > 0 && tr.lastKill == m.kills-1
	switch {
	case alone && inRow:
		tr.streak++
	case alone:
		tr.streak = 1
	case ran || !inRow:
		tr.streak = 0
	}
	tr.lastKill = m.kills
}

// blame counts a death at which the task was running. If that was one too many, it fails the task
// and returns true.
func (m *Machine) blame(id ids.TaskID, b *block, t *task, cause string, w *worker, reason string, outside bool) bool {
	tr := m.troubleOf(id, t)
	if outside {
		tr.kills++
	} else {
		tr.deaths++
	}
	tr.causes = append(tr.causes, cause)
	tr.avoid = w.id
	m.putTrouble(id, tr)
	if !m.poisonous(tr) {
		return false
	}
	m.poison(id, b, t, w.name, reason)
	return true
}

// poisonous reports whether a task was running at too many deaths.
func (m *Machine) poisonous(tr *trouble) bool {
	most := m.config.MaxWorkerDeaths
	return tr.deaths >= most || tr.kills >= outsideFactor*most || tr.streak >= most
}

// poison fails a task because of the deaths at which it was running. REQUIRES: no worker has it.
func (m *Machine) poison(id ids.TaskID, b *block, t *task, worker, reason string) {
	key, tr := string(b.keyOf(t)), m.trouble[id]
	m.end(id, b, t, TaskFailed, &TaskError{
		Reason: "POISON_TASK",
		Message: fmt.Sprintf("task %s was running at %d deaths and is not tried again (%s): %s; look into the causes, then retry the task",
			key, len(tr.causes), reason, joinCauses(tr.causes)),
		OriginKey: key,
		Worker:    worker,
		Attempt:   ids.Attempt(t.attempt),
		Attempts:  tr.retries + uint32(len(tr.causes)),
		LogTail:   m.tails[id],
	})
}

// joinCauses lists causes by number. Only the last cause that has several lines (such as the stack
// of a crash) is shown in full; of each other one only the first line. The same function mostly
// crashes in the same place.
func joinCauses(causes []string) string {
	full := len(causes) - 1
	for full > 0 && !strings.Contains(causes[full], "\n") {
		full--
	}
	var b strings.Builder
	for i, c := range causes {
		if i > 0 {
			b.WriteString("; ")
		}
		if i != full {
			c, _, _ = strings.Cut(c, "\n")
		}
		fmt.Fprintf(&b, "%d. %s", i+1, c)
	}
	return b.String()
}

// abandonAttempt ends the current attempt, which made no object, in the worker's counts. The caller
// sets the task's new state.
func (m *Machine) abandonAttempt(id ids.TaskID, b *block, t *task) {
	at := t.worker
	m.endAttempt(id, b, t)
	m.noteStranded(t, at)
}

// freeResources subtracts a task's resources from those that its worker uses. Sums of whole numbers
// are exact. Other sums are computed again from the attempts under way, because floating-point
// subtraction does not restore a small amount that was added to a large one.
func (m *Machine) freeResources(w *worker, amounts map[string]float64) {
	exact := true
	// order-free: each name has its own sum.
	for name, amount := range amounts {
		used := w.usedResources[name]
		if exact = exact && used < 1<<53 && amount == math.Trunc(amount) && used == math.Trunc(used); !exact {
			break
		}
	}
	if exact {
		// order-free: each name has its own sum.
		for name, amount := range amounts {
			if w.usedResources[name] -= amount; w.usedResources[name] <= 0 {
				delete(w.usedResources, name)
			}
		}
		return
	}
	clear(w.usedResources)
	for _, r := range m.underWay(w) {
		_, t := m.at(r.Task)
		// order-free: each name has its own sum.
		for name, amount := range m.options[t.options].Resources {
			w.usedResources[name] += amount
		}
	}
}

// endAttempt ends the current attempt, which may have made its object, in the worker's counts.
func (m *Machine) endAttempt(id ids.TaskID, b *block, t *task) {
	w := m.workers[t.worker-1]
	o := &m.options[t.options]
	w.assigned--
	if t.state == TaskRunning {
		w.running--
		delete(m.starts, id)
	}
	if t.missing > 0 {
		w.preassigned--
		t.missing = 0
	} else if !w.blocked.has(id) {
		w.usedSlots -= uint64(max(o.Slots, 1))
	}
	w.queuedMicros -= uint64(t.runMicros)
	w.blocked.remove(id)
	if t.flags&flagRetracting != 0 {
		w.retracting--
	}
	t.flags &^= flagRetracting | flagPinned
	if m.copier.Draining() {
		m.tell(copies.AttemptEnded{Worker: w.id})
	}
	t.worker = 0
	t.runMicros = 0
	if len(o.Resources) > 0 {
		m.freeResources(w, o.Resources)
	}
	if w.fetching.count > 0 || w.fetchingItems > 0 {
		edges := b.edgesOf(t)
		for i := range edges {
			_, p := m.at(edges[i].input)
			if edges[i].item != 0 {
				edges[i].fetchEnded(p, w)
			} else {
				m.fetchEnded(edges[i].input, p, w)
			}
		}
	}
	if w.assigned == 0 {
		w.queue, w.deferred, w.deferredCross = w.queue[:0], nil, nil
	} else if len(w.queue) > 2*w.assigned+64 {
		keep := w.queue[:0]
		for _, r := range w.queue {
			if _, t := m.lookup(r.Task); t != nil && t.current(w, r.Attempt) {
				keep = append(keep, r)
			}
		}
		w.queue = keep
	}
}

// expectFetch notes that the worker will fetch an object: now, or (atOnce false) after a
// pre-assigned attempt's inputs exist.
func (m *Machine) expectFetch(id ids.TaskID, t *task, w *worker, atOnce bool) {
	if !w.fetching.add(id) {
		return
	}
	w.fetchingBytes += t.output
	if atOnce {
		m.joinChain(id, t, w)
	}
}

// fetchEnded notes that the worker has the object or will not fetch it. The object may have another
// size than at expectFetch, if it was made again in between.
func (m *Machine) fetchEnded(id ids.TaskID, t *task, w *worker) {
	if w.fetching.remove(id) {
		w.fetched(t.output)
		m.leaveChain(id, w)
	}
}

// fetched takes an object or an item, which is expected no more, out of fetchingBytes.
func (w *worker) fetched(bytes uint64) {
	w.fetchingBytes -= min(bytes, w.fetchingBytes)
	if w.fetching.count == 0 && w.fetchingItems == 0 {
		w.fetchingBytes = 0
	}
}

// ratePair is the direction of a transfer between two workers.
type ratePair struct{ from, to ids.WorkerID }

type rate struct {
	bytesPerMicro float64
	latencyMicros float64
}

func (m *Machine) rateMeasured(ev RateMeasured) {
	if ev.BytesPerSecond <= 0 {
		return
	}
	for _, id := range []ids.WorkerID{ev.From, ev.To} {
		if id != 0 && m.workerOf(id) == nil {
			return
		}
	}
	m.rates[ratePair{ev.From, ev.To}] = rate{ev.BytesPerSecond / 1e6, float64(ev.Latency) / float64(time.Microsecond)}
}

// rate returns the best known rate of a direction: of the pair, else of the sender, else of the
// receiver, else the default.
func (m *Machine) rate(from, to ids.WorkerID) rate {
	if len(m.rates) > 0 {
		for _, p := range [...]ratePair{{from, to}, {from, 0}, {0, to}, {0, 0}} {
			if r, ok := m.rates[p]; ok {
				return r
			}
		}
	}
	return rate{m.config.DefaultBytesPerSecond / 1e6, float64(m.config.DefaultLatency) / float64(time.Microsecond)}
}

func (m *Machine) forgetRates(id ids.WorkerID) {
	var gone []ratePair
	// order-free: all of these are deleted.
	for p := range m.rates {
		if p.from == id || p.to == id {
			gone = append(gone, p)
		}
	}
	for _, p := range gone {
		delete(m.rates, p)
	}
}
