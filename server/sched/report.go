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
	// unreachableBackoff is the delay after the second attempt in a row that could not fetch its
	// inputs. It doubles with each further one, up to longestUnreachable.
	unreachableBackoff = 10 * time.Millisecond
	longestUnreachable = time.Second
	// maxRetryShift bounds the number of times that a back-off is doubled.
	maxRetryShift = 20
)

// tasksReported handles a worker's reports. A report about an attempt that is not the current one
// is dropped. If such an attempt made an object, the worker is told to release it.
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
		if m.restart.running && m.isReturned(w, r.Task, r.Attempt) {
			m.resume(r.Task)
		}
		if t == nil || !t.current(w, r.Attempt) {
			m.totals.Stale++
			if r.Outcome == OutcomeSucceeded && !m.holds(w, b, t, r.Attempt) {
				m.emitTo(EffectRelease, w, r.Task, uint32(r.Attempt))
			}
			continue
		}
		if r.LogTail != "" {
			m.keepTail(r.Task, tail{r.LogTail, w.id})
		}
		switch r.Outcome {
		case OutcomeStarted:
			m.started(r.Task, b, t, w)
		case OutcomeBlocked:
			m.started(r.Task, b, t, w)
			m.attemptBlocked(r.Task, t, w)
		case OutcomeGoesOn:
			m.attemptGoesOn(r.Task, t, w)
		case OutcomeSucceeded:
			m.noteRun(r, b, t, w)
			m.endAttempt(r.Task, b, t)
			m.madeBy(r.Task, t, w)
			m.complete(r.Task, b, t, w, r.OutputBytes, r.Inline, r.RunTime)
		case OutcomeFailed:
			m.noteRun(r, b, t, w)
			m.abandonAttempt(r.Task, b, t)
			m.attemptFailed(r, b, t, w)
		case OutcomeInputUnreachable:
			m.abandonAttempt(r.Task, b, t)
			m.inputUnreachable(r, b, t, w)
		case OutcomeRetracted:
			ran := t.state == TaskRunning
			m.abandonAttempt(r.Task, b, t)
			m.givenBack(r.Task, b, t, w, ran)
		case OutcomeCancelled:
			// The worker dropped it by itself, for example because it shuts down.
			m.abandonAttempt(r.Task, b, t)
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
			m.abandonAttempt(r.Task, b, t)
			if !m.blame(r.Task, b, t, cause, w, "EXECUTOR_DIED", false) {
				m.requeue(r.Task, b, t)
			}
		}
	}
	m.retryPreassign(w)
	m.retryCross(w)
}

// maxReschedules is how often the function of a task may ask to run again.
const maxReschedules = 100

// givenBack lets a task run elsewhere that a worker gave back. ran: its function had begun, and
// asked for that. The task fails if it has asked too often, since it may do so for ever.
func (m *Machine) givenBack(id ids.TaskID, b *block, t *task, w *worker, ran bool) {
	tr := m.troubleOf(id, t)
	tr.avoid = w.id
	if ran {
		tr.reschedules++
		m.putTrouble(id, tr)
	}
	if tr.reschedules <= maxReschedules {
		m.requeue(id, b, t)
		return
	}
	key := string(b.keyOf(t))
	m.end(id, b, t, TaskFailed, &TaskError{
		Reason: "RESCHEDULE", OriginKey: key, Worker: w.name, Attempt: ids.Attempt(t.attempt),
		Message: fmt.Sprintf("the function of task %s asked more than %d times to run again; let it wait for what it needs, or raise another error, which retries limit", key, maxReschedules),
	})
}

// holds reports whether the machine knows the worker's replica of the task, in that generation.
func (m *Machine) holds(w *worker, b *block, t *task, generation ids.Attempt) bool {
	return t != nil && t.state == TaskSucceeded && t.attempt == uint32(generation) && b.has(t.replicas, w.slot)
}

// attemptFailed starts the task again after a back-off, or fails it if no retries are left.
func (m *Machine) attemptFailed(r *Report, b *block, t *task, w *worker) {
	o := &m.options[t.options]
	if o.MaxRetries > 0 {
		tr := m.troubleOf(r.Task, t)
		if tr.retries < o.MaxRetries {
			delay := o.RetryBackoff
			if delay <= 0 {
				delay = defaultBackoff
			}
			delay = min(delay<<min(tr.retries, maxRetryShift), max(longestBackoff, o.RetryBackoff))
			if delay <= 0 {
				delay = longestBackoff
			}
			tr.retries++
			m.putTrouble(r.Task, tr)
			tr.avoid = w.id
			m.start(r.Task, b, t, retryNone, delay)
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
	if edges := b.edgesOf(t); r.AtFault > 0 && int(r.AtFault) <= len(edges) {
		e := &edges[r.AtFault-1]
		pb, p := m.at(e.input)
		err.Message = fmt.Sprintf("input %d, %sthe result of task %s: %s", r.AtFault-1, e.itemText(), pb.keyOf(p), err.Message)
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

// inputUnreachable counts the failed fetches, removes replicas that are gone or fail too often, and
// starts the task again.
func (m *Machine) inputUnreachable(r *Report, b *block, t *task, reader *worker) {
	unreachable := m.believeHolders(once(r.Unreachable), reader.id)
	m.countInputFailures(unreachable, r.Task, t, reader.id)
	var lost []ids.TaskID
	c := m.classes[t.class]
	fits := func(w *worker) bool { return m.memoryFits(w, b, t) }
	// here means that the reader is still a usable worker for the task. stays means that an input
	// cannot be made anywhere else.
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
				m.emitTo(EffectRelease, w, u.Task, uint32(u.Generation))
			}
			if m.replicaLost(u.Task, w) {
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
			times := m.countSourceFailure(u.Task, p, id)
			if times < maxSourceFailures || p.replicas == 0 || m.mayHaveDied(id) {
				continue
			}
			// If the task has to be here, the object may be made again even at the same worker. The
			// fault may lie in the object, not in the network: for example a file of a source that
			// is only read in place.
			anew := here && m.ops[p.op].spec.Kind != OpData
			if pb.links[p.replicas].next == 0 && !anew && !m.otherPlace(u.Task, pb, p) {
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
		// The task has to be here and the input there. Only the network can change.
		delay = longestUnreachable
	}
	m.start(r.Task, b, t, retryNone, delay)
	m.recover(lost)
}

// once returns one entry for each object: an attempt that uses an object twice failed once to fetch
// it.
func once(unreachable []Unreachable) []Unreachable {
	at := make(map[TaskRef]int, len(unreachable))
	var out []Unreachable
	for _, u := range unreachable {
		i, again := at[TaskRef{u.Task, u.Generation}]
		if !again {
			at[TaskRef{u.Task, u.Generation}] = len(out)
			out = append(out, u)
			continue
		}
		out[i].FailedAt = union(out[i].FailedAt, u.FailedAt)
		out[i].MissingAt = union(out[i].MissingAt, u.MissingAt)
	}
	return out
}

// union returns the workers of both lists, each once.
func union(a, b []ids.WorkerID) []ids.WorkerID {
	out := slices.Clone(a)
	for _, id := range b {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// believeHolders moves MissingAt to FailedAt for scattered data, which cannot be computed again. A
// worker shows an object that a client wrote only after EffectAccept, and a reader may come
// earlier. Only the holder itself can say that it has lost the bytes; if it is the reader, it does
// so here.
func (m *Machine) believeHolders(unreachable []Unreachable, reader ids.WorkerID) []Unreachable {
	out := slices.Clone(unreachable)
	for i := range out {
		u := &out[i]
		if _, p := m.lookup(u.Task); p != nil && len(u.MissingAt) > 0 && m.ops[p.op].spec.Kind == OpData {
			missing := u.MissingAt
			u.FailedAt, u.MissingAt = slices.Clone(u.FailedAt), nil
			for _, id := range missing {
				if id == reader {
					u.MissingAt = append(u.MissingAt, id)
				} else {
					u.FailedAt = append(u.FailedAt, id)
				}
			}
		}
	}
	return out
}

// madeBy records the library that computed a task, if its operation is one of linear algebra. The
// record outlives the worker, and costs nothing for other operations.
func (m *Machine) madeBy(id ids.TaskID, t *task, w *worker) {
	if spec := &m.ops[t.op].spec; spec.Kind == OpNative && slices.Contains(w.linalg.Ops, spec.Name) {
		m.linalg[id] = w.linalg.Library
		return
	}
	delete(m.linalg, id) // an earlier attempt may have run elsewhere
}
