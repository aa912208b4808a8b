package sched

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

const (
	defaultBackoff = 100 * time.Millisecond
	longestBackoff = 30 * time.Second
	// unreachableBackoff is the wait after the second attempt in a row that could not fetch its inputs; it doubles.
	unreachableBackoff  = 10 * time.Millisecond
	longestUnreachable  = time.Second
	invalidRetryShiftAt = 20
)

// tasksReported takes a worker's outcomes. What is not about the current attempt is dropped; an object that such an attempt
// made is given up.
func (m *Machine) tasksReported(ev TasksReported) {
	w := m.workerOf(ev.Worker)
	if w == nil {
		m.totals.Stale += uint64(len(ev.Reports))
		return
	}
	w.reportedAt = m.now
	for i := range ev.Reports {
		r := &ev.Reports[i]
		b, t := m.lookup(r.Task)
		if t == nil || !t.current(w, r.Attempt) {
			m.totals.Stale++
			if r.Outcome == OutcomeSucceeded && !m.holds(w, b, t, r.Attempt) {
				m.tell(EffectRelease, w, r.Task, uint32(r.Attempt))
			}
			continue
		}
		if r.LogTail != "" {
			m.keepTail(r.Task, r.LogTail)
		}
		switch r.Outcome {
		case OutcomeStarted:
			if t.state == TaskAssigned {
				m.setState(r.Task, t, TaskRunning)
				w.running++
				m.notify(r.Task, b, t)
			}
		case OutcomeSucceeded:
			m.depart(b, t)
			m.complete(r.Task, b, t, w, r.OutputBytes, r.Inline, r.RunTime)
		case OutcomeFailed:
			m.leave(b, t)
			m.attemptFailed(r, b, t, w)
		case OutcomeInputUnreachable:
			m.leave(b, t)
			m.inputUnreachable(r, b, t, w)
		case OutcomeRetracted:
			m.leave(b, t)
			m.troubleOf(r.Task, t).avoid = w.id
			m.requeue(r.Task, b, t)
		case OutcomeCancelled:
			// The worker dropped it by itself, as one does that shuts down.
			m.leave(b, t)
			m.requeue(r.Task, b, t)
		case OutcomeRetractRefused:
			if t.flags&flagRetracting != 0 {
				t.flags &^= flagRetracting
				w.retracting--
			}
			t.flags |= flagPinned
		case OutcomeExecutorDied:
			cause := fmt.Sprintf("executor on %s died", w.name)
			if r.Err != nil && r.Err.Message != "" {
				cause = fmt.Sprintf("executor on %s: %s", w.name, r.Err.Message)
			}
			m.leave(b, t)
			if !m.blame(r.Task, b, t, cause, w, "EXECUTOR_DIED", false) {
				m.requeue(r.Task, b, t)
			}
		}
	}
	m.extend(w)
	m.spreadAgain(w)
}

// holds says whether the worker's replica of the task is known and of that generation.
func (m *Machine) holds(w *worker, b *block, t *task, generation ids.Attempt) bool {
	return t != nil && t.state == TaskSucceeded && t.attempt == uint32(generation) && b.has(t.replicas, w.slot)
}

// complete gives a task its object. REQUIRES: no worker has the task; its state is active.
func (m *Machine) complete(id ids.TaskID, b *block, t *task, w *worker, bytes uint64, inline []byte, run time.Duration) {
	m.dequeue(id, t)
	t.flags &^= flagBackoff | flagRunHold
	if tr := m.troubleIf(id, t); tr != nil {
		tr.unreachable, tr.blind = 0, nil
	}
	t.missing = 0
	t.output = bytes
	t.runMicros = uint32(min(max(run.Microseconds(), 0), 1<<32-1))
	w.finished++
	w.objects.add(id)
	b.push(&t.replicas, w.slot)
	m.keepInline(id, b, inline)
	if o := &m.ops[t.op]; o.spec.Kind != OpData {
		o.learn(run, bytes)
	} else {
		m.found(id)
	}
	p := &m.graphs[t.graph].prefixes[t.prefix]
	p.RunTime += run
	p.OutputBytes += bytes
	m.setState(id, t, TaskSucceeded)
	m.totals.Succeeded++
	m.notify(id, b, t)
	m.deactivate(b, t)
	m.arrived(t)
	m.reconsider(id, t)
}

// arrived tells the tasks that need an object that it is there.
func (m *Machine) arrived(t *task) {
	for r := t.dependents; r != 0; {
		cid, _, ct, e := m.consumerOf(r)
		switch {
		case ct.state == TaskWaiting:
			if ct.missing--; ct.missing == 0 {
				m.makeReady(cid, ct)
			}
		case ct.missing > 0:
			m.caughtUp(ct)
		}
		r = e.next
	}
}

// keepInline stores a small result if the budget allows.
func (m *Machine) keepInline(id ids.TaskID, b *block, inline []byte) {
	n := uint64(len(inline))
	if inline == nil || n > m.config.InlineResultBytes || m.totals.InlineBytes+n > m.config.InlineBudgetBytes {
		return
	}
	if b.inline == nil {
		b.inline = make([][]byte, blockTasks)
	}
	m.dropInline(b, uint64(id&blockMask))
	b.inline[id&blockMask] = inline
	m.totals.InlineBytes += n
}

// attemptFailed tries again, or gives up.
func (m *Machine) attemptFailed(r *Report, b *block, t *task, w *worker) {
	o := &m.options[t.options]
	if o.MaxRetries > 0 {
		tr := m.troubleOf(r.Task, t)
		if tr.retries < o.MaxRetries {
			delay := o.RetryBackoff
			if delay <= 0 {
				delay = defaultBackoff
			}
			delay = min(delay<<min(tr.retries, invalidRetryShiftAt), max(longestBackoff, o.RetryBackoff))
			if delay <= 0 {
				delay = longestBackoff
			}
			tr.retries++
			tr.avoid = w.id
			m.start(r.Task, b, t, false, delay)
			return
		}
	}
	err := TaskError{}
	if r.Err != nil {
		err = *r.Err
	}
	if err.Reason == "" {
		err.Reason = "UNKNOWN"
	}
	if err.OriginKey == "" {
		err.OriginKey = string(b.keyOf(t))
	}
	if err.Worker == "" {
		err.Worker = w.name
	}
	if err.Attempt == 0 {
		err.Attempt = r.Attempt
	}
	err.Attempts = 1
	if tr := m.troubleIf(r.Task, t); tr != nil {
		err.Attempts += tr.retries + uint32(len(tr.causes))
	}
	m.end(r.Task, b, t, TaskFailed, &err)
}

// inputUnreachable notes which replicas are gone or do not answer, and makes the attempt again.
func (m *Machine) inputUnreachable(r *Report, b *block, t *task, reader *worker) {
	unreachable := m.doubted(r.Unreachable)
	m.countBlind(unreachable, r.Task, t, reader.id)
	var lost []ids.TaskID
	c := m.classes[t.class]
	fits := func(w *worker) bool { return m.memoryFits(w, b, t) }
	// here: it has to be at this worker.
	here, stays := slices.Contains(m.usable(c, m.feasible(c), r.Task, b, t, fits), reader), false
	for _, u := range unreachable {
		pb, p := m.lookup(u.Task)
		if p == nil || p.state != TaskSucceeded || p.attempt != uint32(u.Generation) {
			continue
		}
		gone := func(id ids.WorkerID, order bool) {
			w := m.workerOf(id)
			if w == nil || !w.objects.has(u.Task) {
				return
			}
			if order {
				m.tell(EffectRelease, w, u.Task, uint32(u.Generation))
			}
			if m.removeReplica(u.Task, w) {
				lost = append(lost, u.Task)
			}
		}
		for _, id := range u.MissingAt {
			gone(id, false)
		}
		for _, id := range u.FailedAt {
			if p.state != TaskSucceeded {
				continue
			}
			times := m.countUnread(u.Task, p, id)
			if times < maxUnread || p.replicas == 0 {
				continue
			}
			// Where nothing can be elsewhere it is made again where it was: not the network, but the object may be to blame, as one
			// on the disk of a source that is read in place only.
			anew := here && m.ops[p.op].spec.Kind != OpData
			if pb.links[p.replicas].next == 0 && !anew && !m.elsewhere(u.Task, pb, p) {
				stays = true
				continue
			}
			gone(id, true)
		}
	}
	tr := m.troubleOf(r.Task, t)
	tr.unreachable++
	delay := time.Duration(0)
	if tr.unreachable > 1 {
		delay = min(unreachableBackoff<<min(tr.unreachable-2, 10), longestUnreachable)
	}
	if stays && here {
		// It has to be here and the input there: only the network can change.
		delay = longestUnreachable
	}
	m.start(r.Task, b, t, false, delay)
	m.recover(lost)
}

// doubted has what others miss at a worker count as not read, if it cannot be computed again. A worker shows an object that a
// client wrote when it hears that it is accepted, and a reader may come before; whether it has the bytes, it alone says.
func (m *Machine) doubted(unreachable []Unreachable) []Unreachable {
	out := slices.Clone(unreachable)
	for i := range out {
		u := &out[i]
		if _, p := m.lookup(u.Task); p != nil && len(u.MissingAt) > 0 && m.ops[p.op].spec.Kind == OpData {
			u.FailedAt, u.MissingAt = slices.Concat(u.FailedAt, u.MissingAt), nil
		}
	}
	return out
}

// retryDue ends a back-off.
func (m *Machine) retryDue(id ids.TaskID, attempt uint32) {
	_, t := m.lookup(id)
	if t == nil || t.flags&flagBackoff == 0 || t.attempt != attempt {
		return
	}
	t.flags &^= flagBackoff
	m.makeReady(id, t)
}

// objectsReported takes objects that came or went other than by tasks.
func (m *Machine) objectsReported(ev ObjectsReported) {
	w := m.workerOf(ev.Worker)
	if w == nil {
		return
	}
	for i := range ev.Gained {
		m.adopt(w, ev.Gained[i])
	}
	var lost []ids.TaskID
	for _, r := range ev.Lost {
		_, t := m.lookup(r.Task)
		if t != nil && t.state == TaskSucceeded && t.attempt == uint32(r.Generation) && w.objects.has(r.Task) && m.removeReplica(r.Task, w) {
			lost = append(lost, r.Task)
		}
	}
	m.recover(lost)
}

// adopt enters an object that a worker holds, or has it released if it is of no use.
func (m *Machine) adopt(w *worker, s Stored) {
	b, t := m.lookup(s.Task)
	generation := uint32(s.Generation)
	switch {
	case t == nil:
	case s.Written && !m.mayWrite(w, s.Task, t, generation):
	case t.state == TaskSucceeded && t.attempt == generation:
		if w.objects.add(s.Task) {
			b.push(&t.replicas, w.slot)
			m.came(s.Task, t, w)
		}
		if s.Written {
			m.tell(EffectAccept, w, s.Task, generation)
		}
		return
	case t.state == TaskRescuing && t.attempt == generation:
		m.rescued(s.Task, b, t, w)
		return
	case m.ops[t.op].spec.Kind == OpData:
		if t.state == TaskFailed && t.attempt == generation && !s.Written && t.wanted() && m.errors[s.Task].Reason == "OBJECT_LOST" {
			// It was given up, and the worker is back after all.
			m.absolve(s.Task, t)
			m.setState(s.Task, t, TaskWaiting)
		}
		if t.state == TaskWaiting && generation == 1 {
			t.attempt = 1
			m.tell(EffectAccept, w, s.Task, generation)
			m.complete(s.Task, b, t, w, s.Bytes, s.Inline, 0)
			return
		}
	case t.current(w, s.Generation):
		m.depart(b, t)
		m.complete(s.Task, b, t, w, s.Bytes, s.Inline, 0)
		return
	case (t.state == TaskWaiting || t.state == TaskReady) && t.attempt == generation && generation > 0:
		// The attempt was written off, but it did finish.
		m.complete(s.Task, b, t, w, s.Bytes, s.Inline, 0)
		return
	}
	m.tell(EffectRelease, w, s.Task, generation)
	if t != nil && t.state == TaskSucceeded && t.attempt == generation && w.objects.has(s.Task) {
		// A client wrote where the worker has the object itself: nobody knows which of the two is there.
		if m.removeReplica(s.Task, w) {
			m.recover([]ids.TaskID{s.Task})
		}
	}
}

// mayWrite says whether a client may have written a task's object to a worker. Clients write the bytes of DATA tasks, each once:
// nobody may replace a computed result, or bytes that are there already. A worker whose connection broke reports the same again.
func (m *Machine) mayWrite(w *worker, id ids.TaskID, t *task, generation uint32) bool {
	if m.ops[t.op].spec.Kind != OpData {
		return false
	}
	return t.state == TaskWaiting || t.state == TaskSucceeded && t.attempt == generation && w.objects.has(id)
}

// removeReplica says whether the object is lost with it: then the task is RELEASED, and recover must be called.
func (m *Machine) removeReplica(id ids.TaskID, w *worker) bool {
	b, t := m.at(id)
	w.objects.remove(id)
	b.drop(&t.replicas, w.slot)
	if t.replicas != 0 || b.inlineOf(uint64(id&blockMask)) != nil {
		return false
	}
	m.withdraw(id, t, TaskReleased)
	return true
}

// withdraw takes an object's last replica from the tasks that need it. to is RELEASED or RESCUING.
func (m *Machine) withdraw(id ids.TaskID, t *task, to TaskState) {
	m.setState(id, t, to)
	for r := t.dependents; r != 0; {
		cid, _, ct, e := m.consumerOf(r)
		switch ct.state {
		case TaskWaiting:
			ct.missing++
		case TaskReady:
			m.dequeue(cid, ct)
			ct.flags &^= flagBackoff
			ct.missing = 1
			m.setState(cid, ct, TaskWaiting)
		case TaskAssigned, TaskRunning:
			if ct.missing > 0 {
				ct.missing++ // It is ahead of this one as well, until arrived.
			}
		case TaskSucceeded, TaskFailed, TaskCancelled, TaskReleased, TaskRescuing:
		}
		r = e.next
	}
}

// recover has lost objects computed again that are wanted.
func (m *Machine) recover(lost []ids.TaskID) {
	for _, id := range lost {
		_, t := m.lookup(id)
		if t == nil || t.state != TaskReleased {
			continue
		}
		if t.wanted() {
			m.totals.Recomputed++
			m.reviving = append(m.reviving, revival{task: id})
		} else {
			m.reconsider(id, t)
		}
	}
}
